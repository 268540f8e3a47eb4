"""The problems a run trains on, and those it is evaluated on."""

from dataclasses import dataclass
from typing import Any

from esth.errors import InputError
from esth.tasks import load_task
from esth.tasks.task import Task
from esth.training.config import TrainConfig

TASK_SEED = 0
"""Which problems a task of a given size draws: the same for all runs, so that runs of several seeds can be paired."""


@dataclass(frozen=True)
class ProblemSets:
    """Training problems, and evaluation sets by name."""

    training: Task
    evaluated: dict[str, Task]


def problem_sets(config: TrainConfig, difficulty: str | None = None) -> ProblemSets:
    """The problems of a configuration; evaluated are "train", "held-out", and the further tasks by their names.

    "train" are the first training problems: the success on what was trained on, for the gap to what was held out.

    Args:
        difficulty: of the task where the configuration does not say.

    Raises:
        InputError: whatever is wrong with a task's name, file or size.
    """
    options: dict[str, Any] = {
        "seed": TASK_SEED,
        "difficulty": config.difficulty or difficulty,
        "max_tokens": config.max_tokens,
    }
    reading: dict[str, Any] = {"question": config.question, "answer": config.answer, "verifier": config.verifier}
    own = config.task == "file"
    training = load_task(
        config.task, split="all" if own else "train", n=config.problems, data=config.data, **options, **reading
    )
    count = config.evaluation_prompts
    evaluated = {"train": _first(training, count)}
    if not own:
        evaluated["held-out"] = load_task(
            config.task, split=config.evaluation_split, n=count, data=config.data, **options, **reading
        )
    elif config.evaluation_data is not None:
        held_out = load_task("file", split="all", n=count, data=config.evaluation_data, **options, **reading)
        evaluated["held-out"] = held_out
    for name in config.held_out or ():
        if name in evaluated:
            raise InputError(f"held_out names {name!r} twice")
        task, _, level = name.partition(":")
        evaluated[name] = load_task(task, split="test", n=count, seed=TASK_SEED, difficulty=level or None)
    return ProblemSets(training, evaluated)


def _first(task: Task, n: int) -> Task:
    return Task(task.name, task.split, task.problems[:n], task.verifier, task.max_tokens)
