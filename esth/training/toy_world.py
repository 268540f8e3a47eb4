"""The toy world: linear-softmax policies of 12 parameters, where every expectation is a sum.

A prompt has 8 outcomes with features φ ~ N(0, I) and logits φ·θ; two or three outcomes are right, those that a hidden
teacher scores highest, φ·τ + noise. So prompts, held-out ones too, share what there is to learn; the right answers of a
prompt differ in probability; and the noise leaves some that the shared direction makes less likely. θ₀ is nearly
orthogonal to τ: pass@1 is .38 on the first 256 training prompts and .34 on the first 128 held-out ones, pass@16 .84 and
.88.
The world is one fixed draw: a configuration's seed drives the training only.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from esth._files import write_text, write_whole
from esth.divergence import entropy
from esth.errors import InputError
from esth.models.displacement import check_finite, check_update, displace
from esth.noise import Combination, Direction, parameter_noise, uniforms
from esth.policies import LinearSoftmax
from esth.training.config import TrainConfig
from esth.training.evaluation import Evaluation
from esth.training.worlds import Decoding, Responses, Rewards, Spent, Update

Float = NDArray[np.float64]
Int = NDArray[np.int64]

NAME = "theta"
MODEL_TYPE = "esth-toy"

DRAW = 0
"""Names the one draw."""
DIMENSION = 12
OUTCOMES = 8
SCALE = 2.0
"""‖θ₀‖, the standard deviation of the logits at θ₀."""
ALIGNED = 0.15
"""Cosine of θ₀ and the teacher."""
NOISE = 1.0
"""Of the teacher's scores, whose standard deviation is 1."""


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts with their features and right answers.

    Attributes:
        ids: [X].
        features: φ [X, V, d].
        accepted: 1 for a right outcome [X, V].
    """

    ids: tuple[str, ...]
    features: Float
    accepted: Float

    def policy(self, temperature: float = 1.0, which: Int | slice = slice(None)) -> LinearSoftmax:
        """The policies of these prompts, or of some."""
        return LinearSoftmax(self.features[which], temperature=temperature)


def draw(split: str, count: int) -> Prompts:
    """The first `count` prompts of a split, "train" or "held-out"; a larger count only appends."""
    found = [_prompt(split, i) for i in range(count)]
    features, accepted = (np.stack(arrays) for arrays in zip(*found, strict=True))
    return Prompts(tuple(f"{split}-{i}" for i in range(count)), features, accepted)


@cache
def _prompt(split: str, i: int) -> tuple[Float, Float]:
    """φ [V, d] and the right outcomes [V] of one prompt: two of an even one, three of an odd one."""
    features = _normals(f"{split} {i} features", OUTCOMES, DIMENSION)
    scores = features @ _directions()[0] + NOISE * _normals(f"{split} {i} noise", OUTCOMES)
    accepted = np.zeros(OUTCOMES)
    accepted[np.argsort(-scores)[: 2 + i % 2]] = 1.0
    return features, accepted


def start() -> Float:
    """θ₀ [d]."""
    teacher, other = _directions()
    return SCALE * (ALIGNED * teacher + math.sqrt(1 - ALIGNED**2) * other)


def _directions() -> tuple[Float, Float]:
    """The teacher τ and a direction orthogonal to it, unit vectors [d]."""
    teacher, other = _normals("teacher", DIMENSION), _normals("other", DIMENSION)
    teacher = teacher / np.linalg.norm(teacher)
    other = other - (other @ teacher) * teacher
    return teacher, other / np.linalg.norm(other)


def _normals(name: str, *shape: int) -> Float:
    return parameter_noise(DRAW, name, shape).astype(np.float64).reshape(shape)


class ToyWorld:
    """A `DifferentiableWorld` whose center is float64; noise and updates are float32, as of any checkpoint.

    Attributes:
        training: the prompts trained on.
        held_out: those that are not.
        temperature: of the policy.
    """

    max_tokens = 1

    def __init__(self, config: TrainConfig) -> None:
        self.training, self.held_out = draw("train", config.problems), draw("held-out", config.evaluation_prompts)
        self.temperature, self.n_problems = config.temperature, config.problems
        self._start = torch.from_numpy(start())
        self._center = {NAME: self._start.clone()}

    @property
    def identity(self) -> dict[str, Any]:
        """The model's name, a digest of θ₀ and of all prompts, and their numbers."""
        digest = hashlib.blake2b(self._start.numpy().tobytes(), digest_size=16)
        for prompts in (self.training, self.held_out):
            digest.update(prompts.features.tobytes() + prompts.accepted.tobytes())
        return {"model": "toy", "fingerprint": digest.hexdigest(), "problems": self.n_problems}

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """θ [d], under the name "theta"."""
        return self._center

    @property
    def theta(self) -> Float:
        """A copy of the center [d]."""
        return self._center[NAME].numpy().copy()

    # Exactly, at any θ

    def success(self, theta: Float, problems: Int) -> Float:
        """p = π(right): θ [d] on problems [P] -> [P], or members' [N, d] on theirs [N, P] -> [N, P]."""
        return right_mass(self._log_p(theta, problems), self.training.accepted[problems])

    def greedy(self, theta: Float, problems: Int) -> Float:
        """1 where the likeliest outcome is right; shapes as `success`."""
        return best_right(self._log_p(theta, problems), self.training.accepted[problems])

    def entropy(self, theta: Float, problems: Int) -> Float:
        """H(π), nats; shapes as `success`."""
        return entropies(self._log_p(theta, problems))

    def _log_p(self, theta: Float, problems: Int) -> Float:
        """log π [..., P, V]."""
        some, where = np.unique(problems, return_inverse=True)
        log_p = self.training.policy(self.temperature, some).log_p(theta)
        return np.take_along_axis(log_p, where.reshape(problems.shape)[..., None], axis=-2)

    # What ES needs

    def rewards(
        self, members: Sequence[Direction], sigma: float, problems: Int, decoding: Decoding, seed: int
    ) -> Rewards:
        """As `World.rewards`; what is expected costs no response."""
        thetas = self.theta + np.stack([m.noise(NAME, (DIMENSION,), scale=sigma) for m in members])
        log_p, accepted = self._log_p(thetas, problems), self.training.accepted[problems]
        mean = float(entropies(log_p).mean())
        if decoding.kind == "expected":
            return Rewards(right_mass(log_p, accepted)[..., None], mean, 0.0, Spent())
        if decoding.kind == "greedy":
            values = best_right(log_p, accepted)[..., None]
        else:
            keys = [("common",) if decoding.common else m.key for m in members]
            u = np.stack([_streams(seed, key, x, decoding.samples) for key, x in zip(keys, problems, strict=True)])
            values = _at(accepted, inverse_cdf(log_p, u))
        return Rewards(values, mean, 0.0, Spent(values.size, values.size, values.size))

    def apply_update(self, update: Update, decay: float = 0.0) -> None:
        """As `World.apply_update`.

        Raises:
            InputError: coefficients that are not finite, or an update that overflows: the center stays.
        """
        check_update(update)
        theta = self._center[NAME]
        moved = {NAME: theta + decay * (self._start - theta)}
        displace(moved, Combination(tuple(update)).noise, moved)
        check_finite(moved)
        theta.copy_(moved[NAME])

    def evaluate(self, samples: int, seed: int) -> list[Evaluation]:
        """Exact, whatever `samples` and `seed`: the first training prompts, as many as are held out, and these."""
        seen = draw("train", min(self.n_problems, len(self.held_out.ids)))
        return [self._evaluate("train", seen), self._evaluate("held-out", self.held_out)]

    def _evaluate(self, name: str, prompts: Prompts) -> Evaluation:
        log_p = prompts.policy(self.temperature).log_p(self.theta)
        p, greedy = right_mass(log_p, prompts.accepted), best_right(log_p, prompts.accepted)
        return Evaluation(name, prompts.ids, 0, p, greedy, entropies(log_p), np.ones(len(p)), np.zeros(len(p)))

    def drift(self) -> float:
        """As `World.drift`."""
        return float((self._center[NAME] - self._start).norm() / self._start.norm())

    def save(self, folder: Path) -> None:
        """As `World.save`: model.safetensors and a config.json that says what it is."""
        write_whole(folder / "model.safetensors", lambda stream: stream.write(save(self._center)))
        write_text(folder / "config.json", json.dumps({"model_type": MODEL_TYPE, "hidden_size": DIMENSION}) + "\n")

    def load(self, folder: Path) -> None:
        """As `World.load`.

        Raises:
            InputError: no toy center.
        """
        try:
            found = load_file(folder / "model.safetensors")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{folder} holds no center of the toy world: {error}") from error
        theta = found.get(NAME)
        if theta is None or len(found) > 1 or theta.shape != (DIMENSION,) or theta.dtype != torch.float64:
            raise InputError(f"{folder} holds no center of the toy world: its weights have other names or shapes")
        if not theta.isfinite().all():
            raise InputError(f"{folder} holds weights that are not finite")
        self._center[NAME].copy_(theta)

    def close(self) -> None:
        """Nothing to let go of."""

    # What GRPO needs

    def respond(self, problems: Int, n: int, seed: int) -> Responses:
        """As `DifferentiableWorld.respond`."""
        log_p = self._log_p(self.theta, problems)
        outcomes = inverse_cdf(log_p, _streams(seed, ("center",), problems, n))
        chosen = torch.from_numpy(_at(log_p, outcomes).reshape(-1, 1))
        rows = torch.from_numpy(np.repeat(problems, n)), torch.from_numpy(outcomes.reshape(-1))
        return Responses(
            tokens=rows,
            mask=torch.ones_like(chosen),
            log_p=chosen,
            rewards=_at(self.training.accepted[problems], outcomes),
            entropy=float(entropies(log_p).mean()),
            truncated=0.0,
            spent=Spent(chosen.numel(), chosen.numel(), chosen.numel()),
        )

    def log_probabilities(self, responses: Responses, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """As `DifferentiableWorld.log_probabilities`."""
        problems, outcomes = responses.tokens
        features = torch.from_numpy(self.training.features)[problems]
        log_p = torch.log_softmax(features @ parameters[NAME] / self.temperature, dim=-1)
        return log_p.gather(1, outcomes[:, None])


def right_mass(log_p: Float, accepted: Float) -> Float:
    """Success p of distributions [..., V] whose right outcomes are 1 in `accepted` [..., V]: -> [...]."""
    return np.minimum((np.exp(log_p) * accepted).sum(axis=-1), 1.0)


def best_right(log_p: Float, accepted: Float) -> Float:
    """1 where the likeliest outcome is right: [..., V], [..., V] -> [...]."""
    return _at(accepted, log_p.argmax(axis=-1)[..., None])[..., 0]


def entropies(log_p: Float) -> Float:
    """H of distributions [..., V] -> [...], nats; 0 where rounding would leave less."""
    return np.maximum(entropy(log_p), 0.0)


def inverse_cdf(log_p: Float, u: Float) -> Int:
    """Outcomes [..., m] of distributions [..., V] at the numbers u [..., m] in [0, 1), multiples of 2⁻⁵¹."""
    below = np.cumsum(np.exp(log_p), axis=-1)
    return np.sum(below[..., None, :] <= (u * below[..., -1:])[..., None], axis=-1)


def _streams(seed: int, who: Sequence[int | str], problems: Int, n: int) -> Float:
    """Each response's number [P, n], named by seed, member, problem and try: the problem's place in a stream."""
    count = int(problems.max()) + 1
    return np.stack([uniforms("toy response", seed, *who, i, count=count)[problems] for i in range(n)], axis=-1)


def _at(values: Float, outcomes: Int) -> Float:
    return np.take_along_axis(values, outcomes, axis=-1)
