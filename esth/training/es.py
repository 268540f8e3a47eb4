"""Evolution strategies: θ ← θ + (α/N) Σ zᵢ εᵢ, one rule for every world (Qiu et al. 2025, arXiv 2509.24372).

The members of update t are named by (seed, t), so the update is a list of (member, coefficient) pairs: a log of these
rebuilds any center. By P4 it is the linear tilt of the population's mean with β = α/σ, less σ ε̄.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esth.noise import Member, hashed, population
from esth.training.config import ESConfig
from esth.training.worlds import Decoding, Rewards, World, problem_batches
from esth.weighting import centered_ranks, zscore


class Step(NamedTuple):
    """An update, and what it was made of.

    Attributes:
        update: (member, coefficient) pairs; coefficients are 0 where the rewards have no spread.
        fitness: mean reward of each member [N].
        rewards: what the population earned.
    """

    update: list[tuple[Member, float]]
    fitness: NDArray[np.float64]
    rewards: Rewards


def step(world: World, config: ESConfig, t: int) -> Step:
    """Update number t, from the center the world has now; the center does not move."""
    members = population(hashed(config.seed, "members", t), config.population, config.family, config.rank)
    decoding = Decoding(config.fitness, config.samples, config.common_random_numbers)
    rewards = world.rewards(members, config.sigma, problems(world, config, t), decoding, hashed(config.seed, "es", t))
    fitness = rewards.values.mean(axis=(1, 2))
    z = normalized(fitness, config.normalization)
    scale = config.step / config.population
    return Step([(member, scale * float(x)) for member, x in zip(members, z, strict=True)], fitness, rewards)


def normalized(fitness: NDArray[np.float64], normalization: str) -> NDArray[np.float64]:
    """z [N]: z-scores, centered ranks in [−½, ½], or the fitness itself; all 0 where the fitness has no spread.

    Without spread there is nothing to prefer: raw equal rewards would only add their noise, Σ f εᵢ.
    """
    if fitness.max() == fitness.min():
        return np.zeros_like(fitness)
    if normalization == "none":
        return fitness
    return np.asarray(zscore(fitness) if normalization == "zscore" else centered_ranks(fitness))


def problems(world: World, config: ESConfig, t: int) -> NDArray[np.int64]:
    """Indices of the problems of update t [N, P]: one draw for all members, or one for each."""
    batches = config.population if config.fresh_prompts else 1
    drawn = problem_batches(world.n_problems, config.prompts, config.seed, t, batches)
    return np.broadcast_to(drawn, (config.population, config.prompts))


def metrics(taken: Step) -> dict[str, Any]:
    """What a run's line says of an update: mean reward, its spread over members (sd), the best, entropy in nats."""
    flat = taken.fitness.max() == taken.fitness.min()
    return {
        "reward": float(taken.fitness.mean()),
        "spread": float(taken.fitness.std()),
        "best": float(taken.fitness.max()),
        "entropy": taken.rewards.entropy,
        "truncated": taken.rewards.truncated,
        **({"note": "rewards have no spread: the update is zero"} if flat else {}),
    }
