"""Expected updates in the toy world, by enumeration: what of a sampled update is drift, and what is noise.

GRPO. With rewards in {0, 1} and j of the other G − 1 responses right, a right response has some advantage A₊(j), a
wrong one A₋(j). Since E[∇log π; right] = ∇p = −E[∇log π; wrong], the expected gradient of a prompt is c(p) ∇p with
c(p) = E_{j ~ Bin(G−1, p)}[A₊(j) − A₋(j)]: 1 − 1/G without scaling, near 1/√(p(1−p)) with it if G p(1−p) is large.

ES. Rademacher noise has 2ᵈ directions: α E[z ε] is the update of the population that holds each of them once.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError
from esth.noise import Combination
from esth.training import es
from esth.training.config import ESConfig, GRPOConfig
from esth.training.grpo import GRPO, SPREAD
from esth.training.toy_world import DIMENSION, NAME, ToyWorld
from esth.training.worlds import problem_batches

Float = NDArray[np.float64]
Int = NDArray[np.int64]


def expected_grpo_gradient(world: ToyWorld, problems: Int, generations: int, scale_rewards: str) -> Float:
    """E[mean of A ∇log π] over all responses to the problems [P], at the center: the direction of ascent [d]."""
    policy, accepted = world.training.policy(world.temperature, problems), world.training.accepted[problems]
    c = grpo_slope(policy.success(world.theta, accepted), generations, scale_rewards)
    return np.asarray((c[:, None] * policy.success_gradient(world.theta, accepted)).mean(axis=0))


def grpo_slope(p: Float, generations: int, scale_rewards: str) -> Float:
    """c(p) [P] of prompts with success p [P] whose groups make one batch."""
    g = generations
    j = np.arange(g)[:, None]
    slopes = []
    for x, success in enumerate(p):
        own = right_of([success] * (g - 1))
        if scale_rewards == "batch":
            rest = right_of([q for y, q in enumerate(p) if y != x for _ in range(g)])
            m, n = np.arange(len(rest)), len(p) * g
            by_right, by_wrong = _spread(j + 1 + m, n), _spread(j + m, n)
        else:
            rest = np.ones(1)
            by_right, by_wrong = _spread(j + 1, g), _spread(j, g)
        if scale_rewards == "none":
            by_right = by_wrong = np.ones_like(by_right)
        gap = (1 - (j + 1) / g) / by_right + (j / g) / by_wrong
        slopes.append(own @ gap @ rest)
    return np.array(slopes)


def _spread(right: Int, n: int) -> Float:
    """What advantages are divided by where `right` of n rewards are 1."""
    return np.sqrt(right * (n - right) / (n * (n - 1))) + SPREAD


def right_of(p: list[float]) -> Float:
    """Probabilities of 0, 1, …, n right ones among n independent responses with successes p [n]."""
    total = np.ones(1)
    for success in p:
        total = np.convolve(total, [1 - success, success])
    return total


def expected_es_update(world: ToyWorld, config: ESConfig, problems: Int) -> Float:
    """α E[z ε] over all Rademacher directions and responses, at the center on the problems [P]: [d].

    Exact for any N without normalisation; z-scores and ranks are those of infinitely many members.

    Raises:
        InputError: another family; z-scores of members that share uniform numbers, or ranks of sampled fitness.
    """
    if config.family != "rademacher":
        raise InputError(f"expected updates sum over Rademacher directions: family = {config.family}")
    sampled = config.fitness == "sampled"
    if sampled and (
        config.normalization == "ranks" or (config.normalization == "zscore" and config.common_random_numbers)
    ):
        raise InputError("the expected update of such a normalisation of sampled fitness is no finite sum")
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=DIMENSION)))
    thetas = world.theta + config.sigma * signs
    every = np.broadcast_to(problems, (len(signs), len(problems)))
    success = world.greedy(thetas, every) if config.fitness == "greedy" else world.success(thetas, every)
    fitness = success.mean(axis=1)
    z = es.normalized(fitness, config.normalization)
    if config.normalization == "ranks":  # among N members a rank is one of N, in units of 1/(N − 1)
        z = z * (1 - 1 / len(signs))
    if sampled and config.normalization == "zscore":  # L3.5: noise of the responses attenuates
        noise = (success * (1 - success)).mean() / (config.samples * len(problems))
        z = z * math.sqrt(fitness.var() / (fitness.var() + noise))
    return config.step * np.asarray((z[:, None] * signs).mean(axis=0))


def es_updates(world: ToyWorld, config: ESConfig, count: int) -> Float:
    """Sampled updates 1 … count at the center, which stays [count, d]; each has its members, responses and problems."""
    steps = (es.step(world, config, t).update for t in range(1, count + 1))
    return np.stack([Combination(tuple(update)).noise(NAME, (DIMENSION,)) for update in steps]).astype(np.float64)


def grpo_gradients(world: ToyWorld, config: GRPOConfig, count: int) -> Float:
    """Sampled directions of ascent 1 … count at the center, which stays [count, d], before AdamW."""
    method, found = GRPO(world, config), []
    for t in range(1, count + 1):
        drawn = problem_batches(world.n_problems, config.prompts, config.seed, t)[0]
        method.backward(method.respond(drawn, t))
        found.append(-method.gradient[NAME].numpy())
    return np.stack(found)


class Split(NamedTuple):
    """Updates as drift and noise.

    Attributes:
        drift: their mean [d].
        signal: ‖E Δ‖², without bias: may be negative.
        noise: tr Cov Δ, without bias. E‖Δ‖² = signal + noise, to compare with P4.4's α²d/N.
    """

    drift: Float
    signal: float
    noise: float


def split(updates: Float) -> Split:
    """Independent updates [M, d] at one center, M >= 2."""
    if len(updates) < 2:
        raise InputError(f"drift and noise of {len(updates)} updates: at least 2 are needed")
    drift = updates.mean(axis=0)
    noise = float(updates.var(axis=0, ddof=1).sum())
    return Split(drift, float(drift @ drift) - noise / len(updates), noise)
