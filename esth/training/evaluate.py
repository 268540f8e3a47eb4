"""Evaluating any model, or the last center of a run, beside a base: `esth evaluate`."""

import math
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from esth.diversity.config import DTYPES, check_least
from esth.diversity.sampling import Progress, quiet
from esth.errors import InputError
from esth.models import check_engine
from esth.models.checkpoint import SHIPPED, Checkpoint, load_checkpoint
from esth.models.engine import Sampling
from esth.models.workers import load_workers
from esth.noise import hashed
from esth.tasks import load_task
from esth.tasks.task import Task
from esth.training.config import ESConfig, GRPOConfig
from esth.training.evaluation import Evaluation, evaluate_workers
from esth.training.folder import RunFolder
from esth.training.problem_sets import TASK_SEED
from esth.training.run import last_center, rebuild

PROMPTS = 128
"""Problems of a task, where nothing else is said and it has so many."""


@dataclass(frozen=True)
class EvaluationConfig:
    """What a model is evaluated on, and how it answers.

    Attributes:
        task: name of a task (esth/tasks), or "file" for one of the user's own; if none, the task of the run that is
            evaluated, with its data and difficulty, chain for tiny-3 and tiny-4, and arithmetic for other models.
        data: the user's file, or where a benchmark's file lies.
        difficulty: of a generated task.
        question: field of the prompt in a user's file.
        answer: field of the answer in a user's file.
        verifier: in place of the task's own.
        split: train, validation, test or all, as far as the task has it.
        held_out: further tasks, as NAME or NAME:DIFFICULTY, their test split.
        prompts: problems of each task, the first of its split; if none, 128, or all where there are fewer.
        samples: responses to each.
        temperature: of the policy; if none, of the run that is evaluated, else 1.
        max_tokens: a response is cut there; the task's own limit if none.
        k: of pass@k, as [1,16,32]; 1, 16 and 32 as far as there are so many responses if none.
        seed: of responses. One seed is one set of random numbers, whatever the model.
        engine: that holds the weights: transformers or vllm.
        workers: engines side by side (more than one: Ray).
        threads: of torch, in each engine.
        dtype: of the weights.
    """

    task: str | None = None
    data: str | None = None
    difficulty: str | None = None
    question: str = "question"
    answer: str = "answer"
    verifier: str | None = None
    split: str = "test"
    held_out: list[str] | None = None
    prompts: int | None = None
    samples: int = 32
    temperature: float | None = None
    max_tokens: int | None = None
    k: list[int] | None = None
    seed: int = 0
    engine: str = "transformers"
    workers: int = 1
    threads: int = 1
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_least(self, samples=1, seed=0, workers=1, threads=1)
        if self.prompts is not None:
            check_least(self, prompts=2)
        if self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.temperature is not None and not 1e-6 <= self.temperature < math.inf:
            raise InputError(f"temperature must be finite and at least 1e-6, not {self.temperature}")
        wrong = next((k for k in self.k or () if not 1 <= k <= self.samples), None)
        if wrong is not None:
            raise InputError(f"pass@k with k = {wrong} needs 1 <= k <= samples = {self.samples}")
        if self.task is None and any(v is not None for v in (self.data, self.difficulty, self.verifier)):
            raise InputError("data, difficulty and verifier need the task they are for: name it")

    def tasks(self) -> dict[str, Task]:
        """The problems of each task, by its name."""
        assert self.task is not None
        found = {
            _label(self.task, self.difficulty): self._first(
                self.task,
                split="all" if self.task == "file" else self.split,
                difficulty=self.difficulty,
                data=self.data,
                question=self.question,
                answer=self.answer,
                verifier=self.verifier,
                max_tokens=self.max_tokens,
            )
        }
        for name in self.held_out or ():
            if name in found:
                raise InputError(f"held_out names {name!r}, which is evaluated already")
            task, _, level = name.partition(":")
            found[name] = self._first(task, split="test", difficulty=level or None)
        return found

    def _first(self, task: str, **options: Any) -> Task:
        """As many problems as are asked for, or up to PROMPTS."""
        found = load_task(task, n=self.prompts, seed=TASK_SEED, **options)
        return found if self.prompts is not None else replace(found, problems=found.problems[:PROMPTS])


class Evaluated(NamedTuple):
    """Evaluations of a model and, if there is one, of its base, by the same tasks in the same order."""

    model: list[Evaluation]
    base: list[Evaluation] | None


def evaluate(
    model: str,
    config: EvaluationConfig | None = None,
    base: str | None = None,
    progress: Progress = quiet,
    trust_remote_code: bool = False,
    *,
    update: int | None = None,
) -> Evaluated:
    """Evaluate a model, and a base on the same problems with the same random numbers.

    Args:
        model, base: the folder of a run, whose last center is meant; a model's folder, a hub name, "demo", "tiny-3".
        progress: called as problems are done.
        trust_remote_code: let transformers run Python code that comes with the checkpoint.
        update: of a run of ES: the center after so many updates, rebuilt from its log.

    Raises:
        InputError: no such model, a run of the toy world or without a checkpoint, whatever is wrong with the task.
    """
    config = _complete(config or EvaluationConfig(), model)
    check_engine(config.engine)
    places = [_weights(name) for name in (model, base) if name is not None]
    with tempfile.TemporaryDirectory() as scratch:
        if update is not None:
            run = run_of(model)
            if run is None:
                raise InputError(f"{model} is no run: only a run has a center after {update} updates")
            places[0] = str(Path(scratch) / "center")
            rebuild(run, update, Path(places[0]))
        # All of them, and the tasks, before one is evaluated: a mistake should not cost what it takes.
        checkpoints = [load_checkpoint(place, trust_remote_code=trust_remote_code) for place in places]
        tasks = config.tasks()
        found = [_evaluate(checkpoint, config, tasks, progress) for checkpoint in checkpoints]
    return Evaluated(found[0], found[1] if base is not None else None)


def _evaluate(
    checkpoint: Checkpoint, config: EvaluationConfig, tasks: dict[str, Task], progress: Progress
) -> list[Evaluation]:
    with load_workers(
        checkpoint, config.engine, workers=config.workers, threads=config.threads, dtype=config.dtype
    ) as workers:
        return [
            evaluate_workers(
                workers,
                task,
                config.samples,
                Sampling(config.temperature or 1.0, task.max_tokens),
                hashed("evaluation", config.seed),
                name,
                partial(progress, f"{checkpoint.name}: {name}"),
            )
            for name, task in tasks.items()
        ]


def run_of(model: str) -> RunFolder | None:
    """The run whose folder it is, if it is one's."""
    return RunFolder(Path(model)) if (Path(model) / "identity.json").is_file() else None


def _weights(model: str) -> str:
    """Where the weights lie: a run's last center, or what a model's name means."""
    run = run_of(model)
    if run is None:
        if model == "toy":
            raise InputError("policies of the toy world answer no other prompts: its runs keep their own evaluations")
        return model
    if run.config.world == "toy":
        raise InputError(f"{model} is a run of the toy world: its folder has its evaluations, and it answers no others")
    return str(last_center(run))


def _complete(config: EvaluationConfig, model: str) -> EvaluationConfig:
    """With the task and the temperature of the run that is evaluated, or the defaults of a model."""
    run = run_of(model)
    trained: ESConfig | GRPOConfig | None = None if run is None else run.config
    if config.temperature is None:
        config = replace(config, temperature=1.0 if trained is None else trained.temperature)
    if config.task is not None:
        return config
    if trained is None:
        own = ("chain", model[-1]) if model in SHIPPED else ("arithmetic", None)
        return replace(config, task=own[0], difficulty=own[1])
    chains = trained.task == "chain"
    return replace(
        config,
        task=trained.task,
        data=trained.evaluation_data or trained.data,
        difficulty=trained.difficulty or (trained.model[-1] if chains and trained.model in SHIPPED else None),
        question=trained.question,
        answer=trained.answer,
        verifier=trained.verifier,
        max_tokens=config.max_tokens or trained.max_tokens,
    )


def _label(task: str, difficulty: str | None) -> str:
    return task if difficulty is None else f"{task}:{difficulty}"
