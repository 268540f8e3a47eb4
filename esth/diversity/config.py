"""Everything that defines a sampled population besides the checkpoint."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esth._array import check_weights
from esth.errors import InputError
from esth.noise import check_family
from esth.sample import Floats

if TYPE_CHECKING:
    from esth.models.engine import Sampling
    from esth.tasks import Task


DTYPES = ("float32", "bfloat16", "float16")


def check_least(settings: object, **least: int) -> None:
    """Raise InputError where a setting is smaller than its least value."""
    for name, value in least.items():
        if getattr(settings, name) < value:
            raise InputError(f"{name} must be at least {value}, not {getattr(settings, name)}")


@dataclass(frozen=True)
class DiversityConfig:
    """A population, its prompts and its policy.

    Attributes:
        sigma: scale of the noise on every parameter, > 0.
        members: N.
        samples: responses m of each member (and of the center) to each prompt, >= 2.
        scored: of these, the first that are scored under every member (JS needs few, success many), 0 or >= 2; all if
            none.
        prompts: prompts taken from the task.
        task: name of a task (esth/tasks), or "file" for one of the user's own.
        data: the user's file (JSONL, Parquet, CSV, TSV), or where a benchmark's file lies.
        split: train, validation, test or all, as far as the task has it.
        difficulty: of generated tasks; the task's easiest if none.
        question: field of the prompt in a user's file.
        answer: field of the answer in a user's file.
        verifier: in place of the task's own (esth/tasks/verifiers.py).
        family: gaussian, antithetic, rademacher or low-rank.
        rank: of low-rank noise.
        weights: one a member, sums to 1, as [0.5,0.3,0.2]; uniform if none.
        temperature: of the policy; part of what JS is measured on.
        max_tokens: a response is cut there; the task's own limit if none.
        top_k: only the k most likely tokens (L1.1 and L1.3 then do not apply, and are left out).
        top_p: only the most likely tokens of this mass (likewise).
        engine: that holds the weights: transformers or vllm.
        workers: engines side by side (more than one: Ray); the numbers do not depend on it.
        dtype: of the weights.
        seed: of members, prompts and responses.
        block_gib: GiB that the next-token distributions held at a time may take.
    """

    sigma: float = 0.001
    members: int = 6
    samples: int = 4
    scored: int | None = None
    prompts: int = 16
    task: str = "arithmetic"
    data: str | None = None
    split: str = "test"
    difficulty: str | None = None
    question: str = "question"
    answer: str = "answer"
    verifier: str | None = None
    family: str = "gaussian"
    rank: int = 1
    weights: list[float] | None = None
    temperature: float = 0.7
    max_tokens: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    engine: str = "transformers"
    workers: int = 1
    dtype: str = "float32"
    seed: int = 0
    block_gib: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise InputError(f"sigma must be finite and > 0 (0 makes all members equal), not {self.sigma}")
        check_family(self.family)
        check_least(self, members=1, samples=2, prompts=1, workers=1, rank=1, seed=0)
        if self.scored is not None and not (self.scored == 0 or 2 <= self.scored <= self.samples):
            raise InputError(f"scored must be 0, or 2 to samples = {self.samples}, not {self.scored}")
        if self.family == "antithetic" and self.members % 2:
            raise InputError(f"antithetic members come in pairs: members must be even, not {self.members}")
        if self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype}")
        if not self.block_gib > 0:
            raise InputError(f"block_gib must be positive, not {self.block_gib}")
        self.weight_vector()
        self.sampling(1)

    def weight_vector(self) -> Floats:
        """Member weights [N]."""
        return np.asarray(check_weights(self.weights, np.zeros(self.members)), dtype=np.float64)

    @property
    def scored_samples(self) -> int:
        """Responses of a member to a prompt that are scored under every member."""
        return self.samples if self.scored is None else self.scored

    def sampling(self, default_tokens: int) -> "Sampling":
        """The policy's sampling, with the task's token limit unless one is given."""
        from esth.models.engine import Sampling

        limit = default_tokens if self.max_tokens is None else self.max_tokens
        return Sampling(self.temperature, limit, self.top_k, self.top_p)

    def load_task(self) -> "Task":
        """The task's first `prompts` problems."""
        from esth.tasks import load_task

        return load_task(
            self.task,
            split=self.split,
            n=self.prompts,
            seed=self.seed,
            difficulty=self.difficulty,
            data=self.data,
            question=self.question,
            answer=self.answer,
            verifier=self.verifier,
        )

    @property
    def smooth(self) -> bool:
        """Whether the sampled policy is a softmax of full support, as L1 asks."""
        return self.temperature > 0 and self.top_k is None and self.top_p is None
