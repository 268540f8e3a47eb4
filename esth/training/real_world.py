"""The real world: a causal language model in engines, on this machine or on many (`esth.models.workers`)."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError, require
from esth.models.displacement import SLICE
from esth.models.engine import Sampling, check_tokens
from esth.models.saving import save_center
from esth.models.stored import StoredWeights, read_arrays
from esth.models.workers import load_workers
from esth.noise import Direction, Keyed, hashed
from esth.tasks.task import Problem, Task, encode
from esth.training.config import TrainConfig
from esth.training.evaluation import Evaluation, evaluate_workers
from esth.training.problem_sets import problem_sets
from esth.training.worlds import Decoding, Rewards, Spent, Update, World, anchored

if TYPE_CHECKING:
    from esth.models.checkpoint import Checkpoint
    from esth.models.engine import Engine


class RealWorld(World):
    """A checkpoint around which a population earns rewards on a task.

    Memory: one copy of the weights beside the model itself, in each engine; members are made one after another.

    Raises:
        InputError: whatever is wrong with the model, the engine or the task; no answers to verify responses by.
        MissingExtra: what the engine needs is not installed.
    """

    def __init__(self, config: TrainConfig) -> None:
        sets = problem_sets(config)
        self.workers = load_workers(
            config.model, config.engine, workers=config.workers, threads=config.threads, dtype=config.dtype
        )
        try:
            checkpoint = self.workers.checkpoint
            self.training = _Set.of(sets.training, checkpoint)
            self.evaluated = {name: _Set.of(task, checkpoint) for name, task in sets.evaluated.items()}
        except BaseException:
            self.workers.close()
            raise
        self.n_problems = len(sets.training)
        self.temperature = config.temperature
        self.start = StoredWeights.of(self.workers.checkpoint)

    @property
    def identity(self) -> dict[str, Any]:
        checkpoint = self.workers.checkpoint
        evaluated = {name: problems.digest for name, problems in self.evaluated.items()}
        return {
            "model": checkpoint.name,
            "weights": checkpoint.fingerprint,
            "problems": self.training.digest,
            "evaluated": evaluated,
        }

    def rewards(
        self, members: Sequence[Direction], sigma: float, problems: NDArray[np.int64], decoding: Decoding, seed: int
    ) -> Rewards:
        """See `World`. The entropy is not measured: it would cost a second pass over every response."""
        if decoding.kind not in ("greedy", "sampled"):
            raise InputError(f"fitness {decoding.kind} is not known for a language model: greedy or sampled")
        temperature = self.temperature if decoding.kind == "sampled" else 0.0
        sampling = Sampling(temperature, self.training.task.max_tokens)
        items = [
            _Item(
                Keyed(member, ("common",)) if decoding.common else member,
                row.tolist(),
                [self.training.prompts[x] for x in row],
                [self.training.task.problems[x] for x in row],
            )
            for member, row in zip(members, problems, strict=True)
        ]
        work = partial(_earn, self.training.task.verifier, sigma, decoding.samples, sampling, seed)
        values = np.empty((*problems.shape, decoding.samples))
        tokens = truncated = 0
        for i, earned in self.workers.map(work, items):
            values[i] = earned.rewards
            tokens += earned.tokens
            truncated += earned.truncated
        return Rewards(values, math.nan, truncated / values.size, Spent(values.size, tokens, values.size, 0))

    def apply_update(self, update: Update, decay: float = 0.0) -> None:
        self.workers.apply_update(*anchored(update, decay, self.start))

    def evaluate(self, samples: int, seed: int) -> list[Evaluation]:
        """See `World`. The numbers are the same for any number of workers (float32, engine transformers)."""
        return [
            evaluate_workers(
                self.workers,
                problems.task,
                samples,
                Sampling(self.temperature, problems.task.max_tokens),
                seed,
                name,
                prompts=problems.prompts,
            )
            for name, problems in self.evaluated.items()
        ]

    def drift(self) -> float:
        """See `World`. θ₀ in the dtype of the engines: a center that has not moved has drift 0."""
        ((_, names),) = self.workers.map(_names, [None])
        sums = np.empty((len(names), 2))
        for i, squares in self.workers.map(partial(_squares, self.start), names):
            sums[i] = squares
        moved, all_of_it = (math.fsum(column) for column in sums.T)
        return math.sqrt(moved / all_of_it)

    def save(self, folder: Path) -> None:
        save_center(self.workers, folder)

    def load(self, folder: Path) -> None:
        try:
            self.workers.load_center(read_arrays(folder))
        except InputError as error:
            raise InputError(f"{folder} is no center of {self.workers.checkpoint.name}: {error}") from error

    def close(self) -> None:
        self.workers.close()


class _Set(NamedTuple):
    """A task, its prompts as token ids, and a digest of both."""

    task: Task
    prompts: list[list[int]]
    digest: str

    @classmethod
    def of(cls, task: Task, checkpoint: "Checkpoint") -> "_Set":
        unanswered = next((p.id for p in task.problems if not p.answer), None)
        if unanswered is not None:
            raise InputError(f"task {task.name}: problem {unanswered} has no answer to verify responses by")
        prompts = [encode(checkpoint.tokenizer, problem) for problem in task.problems]
        for problem, tokens in zip(task.problems, prompts, strict=True):
            check_tokens(
                f"problem {problem.id}", tokens, task.max_tokens, checkpoint.context, max(tokens, default=0) + 1
            )
        read = [(x, p.id, p.answer, p.choices, p.numbers) for x, p in zip(prompts, task.problems, strict=True)]
        described = json.dumps([task.verifier.__name__, task.max_tokens, read])
        return cls(task, prompts, f"{hashed(described):016x}")


# Work of an engine: functions of the center and the item alone


class _Item(NamedTuple):
    """A member and its problems: their indices, which name the streams of responses, token ids, what verifiers read."""

    member: Direction
    ids: list[int]
    prompts: list[list[int]]
    problems: list[Problem]


class _Earned(NamedTuple):
    """Rewards [P, m], tokens generated and responses cut."""

    rewards: NDArray[np.float64]
    tokens: int
    truncated: int


def _earn(
    verifier: Callable[[str, Problem], bool],
    sigma: float,
    samples: int,
    sampling: Sampling,
    seed: int,
    engine: "Engine",
    item: _Item,
) -> _Earned:
    """What one member earns."""
    engine.set_member(item.member, sigma)
    said = engine.sample(item.prompts, samples, sampling, seed, prompt_ids=item.ids)
    rewards = [
        [float(verifier(engine.checkpoint.decode(response.tokens), problem)) for response in group]
        for problem, group in zip(item.problems, said, strict=True)
    ]
    responses = [response for group in said for response in group]
    return _Earned(np.array(rewards), sum(len(r.tokens) for r in responses), sum(r.truncated for r in responses))


def _names(engine: "Engine", item: None) -> list[str]:
    return sorted(engine.center)


def _squares(start: StoredWeights, engine: "Engine", name: str) -> tuple[float, float]:
    """‖θ − θ₀‖² and ‖θ₀‖² of one parameter, in float64, a slice at a time."""
    torch = require("torch", "llm")
    center = engine.center[name]
    flat = center.detach().view(-1)
    sums = []
    for i in range(0, center.numel(), SLICE):
        here = flat[i : i + SLICE].cpu()
        there = torch.from_numpy(start.noise(name, center.shape, i, len(here))).to(here.dtype).double()
        sums.append(((here.double() - there).square().sum().item(), there.square().sum().item()))
    moved, all_of_it = (math.fsum(column) for column in zip(*sums, strict=True))
    return moved, all_of_it
