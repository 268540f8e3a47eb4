"""What a world is: a policy that both methods train, around its center, with problems to train on and to hold out.

Problems are indices into the training problems. Everything random is named by a seed that is passed in, so an update
is a function of the center and of the update's number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError
from esth.noise import Direction, hashed

if TYPE_CHECKING:
    import torch

    from esth.training.evaluation import Evaluation

Update = Sequence[tuple[Direction, float]]


@dataclass(frozen=True)
class Decoding:
    """How members answer when their fitness is measured.

    Attributes:
        kind: "greedy", "sampled", or "expected" (the exact success, where the world knows it).
        samples: responses to a prompt, 1 unless sampled.
        common: all members draw with the same uniform numbers.
    """

    kind: str = "greedy"
    samples: int = 1
    common: bool = False


@dataclass(frozen=True)
class Spent:
    """What something cost. Passes count responses, one a response: generating or scoring it is one forward pass."""

    responses: int = 0
    tokens: int = 0
    forward_passes: int = 0
    backward_passes: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.responses + other.responses,
            self.tokens + other.tokens,
            self.forward_passes + other.forward_passes,
            self.backward_passes + other.backward_passes,
        )


class Rewards(NamedTuple):
    """What a population earned.

    Attributes:
        values: rewards [N, P, m] in [0, 1].
        entropy: mean entropy of the next-token distribution over all sampled positions, nats; NaN where not measured.
        truncated: share of responses that were cut.
        spent: the cost.
    """

    values: NDArray[np.float64]
    entropy: float
    truncated: float
    spent: Spent


def problem_batches(n_problems: int, prompts: int, seed: int, t: int, batches: int = 1) -> NDArray[np.int64]:
    """Indices of the problems of update t [batches, prompts], each batch without replacement; for both methods."""
    rng = np.random.default_rng(hashed(seed, "problems", t))
    return np.stack([rng.choice(n_problems, prompts, replace=False) for _ in range(batches)])


def anchored(update: Update, decay: float, start: Direction) -> tuple[Update, float]:
    """θ ← θ + λ(θ₀ − θ) + Σ coefficient · direction as an update and the share k of θ that is kept: kθ + (1 − k)θ₀ + ….

    k is 1 − decay in float32, and then 1 − k is exact: rounded one by one they would not sum to 1, and the center
    would be drawn to another point than θ₀, by 1e-8/decay of it.

    Raises:
        InputError: decay outside [0, 1).
    """
    if not 0 <= decay < 1:
        raise InputError(f"decay must be in [0, 1), not {decay}")
    keep = float(np.float32(1 - decay))
    return ([*update, (start, 1 - keep)], keep) if keep < 1 else (update, 1.0)


class World(Protocol):
    """A policy with its center θ, starting at θ₀."""

    n_problems: int

    @property
    def identity(self) -> dict[str, Any]:
        """What the run started from: the model's name, the fingerprint of θ₀, the problems."""
        ...

    def rewards(
        self, members: Sequence[Direction], sigma: float, problems: NDArray[np.int64], decoding: Decoding, seed: int
    ) -> Rewards:
        """Rewards [N, P, m] of the members θ + σε on the problems [N, P], their indices."""
        ...

    def apply_update(self, update: Update, decay: float = 0.0) -> None:
        """θ ← θ + decay (θ₀ − θ) + Σ coefficient · direction: a function of θ, θ₀ and the update, bit for bit."""
        ...

    def evaluate(self, samples: int, seed: int) -> "list[Evaluation]":
        """The center on every evaluation set: "train" (problems trained on), "held-out", and further tasks."""
        ...

    def drift(self) -> float:
        """‖θ − θ₀‖/‖θ₀‖."""
        ...

    def save(self, folder: Path) -> None:
        """Write the center to a new folder (a Hugging Face folder where it is a language model)."""
        ...

    def load(self, folder: Path) -> None:
        """Make the weights in a folder the center; θ₀ stays.

        Raises:
            InputError: weights of other names or shapes.
        """
        ...

    def close(self) -> None:
        """Let go of processes, if any."""
        ...


@dataclass(frozen=True)
class Responses:
    """Responses of the center, for GRPO: B = P·G rows, the G of a prompt together, padded to T tokens.

    Attributes:
        tokens: whatever the world needs to score them again.
        mask: [B, T], 1 for a token of the response (the stop token included), float64 or float32.
        log_p: log-probability of each token when it was drawn [B, T], 0 behind the end; no gradient.
        rewards: [P, G].
        entropy, truncated, spent: as in `Rewards`.
    """

    tokens: Any
    mask: "torch.Tensor"
    log_p: "torch.Tensor"
    rewards: NDArray[np.float64]
    entropy: float
    truncated: float
    spent: Spent


class DifferentiableWorld(World, Protocol):
    """A world whose center has gradients: what our own GRPO trains.

    Attributes:
        max_tokens: a response is cut there.
    """

    max_tokens: int

    @property
    def parameters(self) -> "Mapping[str, torch.Tensor]":
        """θ by name: contiguous tensors that an optimiser moves in place, the same ones for the life of the world."""
        ...

    def respond(self, problems: NDArray[np.int64], n: int, seed: int) -> Responses:
        """n sampled responses of the center to each of the problems [P]."""
        ...

    def log_probabilities(self, responses: Responses, parameters: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
        """log p of each token [B, T] under the given parameters, differentiable in them; 0 behind the end."""
        ...
