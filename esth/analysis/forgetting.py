"""Forgetting: tasks that a run was not trained on, before and after it, paired by prompt; what was learned by heart.

    found = forgetting_of([RunFolder(path) for path in runs])     # the runs of one arm, one a seed
    console.print(found.table())

Everything is read from evaluations that runs keep: no model is needed. Ba et al. find that held-out benchmarks are not
forgotten, and take earlier reports for training problems learned by heart (C12): a large gap between the gains on
problems trained on and held out is that, a loss on another task is forgetting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from esth.analysis.over_seeds import change, gap, level, quantities_of, values
from esth.check import rich_safe, signed
from esth.errors import InputError
from esth.estimators.intervals import Interval
from esth.training.evaluation import TRIES, Evaluation
from esth.training.folder import Point, RunFolder

MARGIN = 0.02
"""A loss of fewer points than this counts as none, for every arm and task."""

TRAIN, HELD_OUT = "train", "held-out"


class Row(NamedTuple):
    """One quantity of one task.

    Attributes:
        task: "train" and "held-out" are problems of the task trained on, any other name is a further task.
        quantity: pass@k or greedy accuracy.
        before, after: of the start and the end.
        change: after − before, paired by seed and prompt.
        verdict: see `judged`.
    """

    task: str
    quantity: str
    before: Interval
    after: Interval
    change: Interval
    verdict: str


class Gap(NamedTuple):
    """The quantity on training problems less that on held-out ones, before and after, and the difference of gains."""

    quantity: str
    before: Interval
    after: Interval
    gain: Interval


def judged(change: Interval, margin: float = MARGIN) -> str:
    """gained, lost (the interval lies on one side of 0), kept (a loss of `margin` is excluded), or undecided."""
    if change.lower > 0:
        return "gained"
    if change.upper < 0:
        return "lost"
    return "kept" if change.lower > -margin else "undecided"


@dataclass(frozen=True)
class Forgetting:
    """What an arm did to tasks.

    Attributes:
        seeds: runs.
        rows: a row a task and quantity.
        gaps: a row a quantity; none without problems trained on and held out.
    """

    seeds: int
    rows: list[Row]
    gaps: list[Gap]

    @property
    def verdict(self) -> str:
        """Of further tasks, by pass@1: forgotten if one lost, else undecided if one is, else kept; no task if none."""
        found = [r.verdict for r in self.rows if r.task not in (TRAIN, HELD_OUT) and r.quantity == "pass@1"]
        if not found:
            return "no task"
        if "lost" in found:
            return "forgotten"
        return "undecided" if "undecided" in found else "kept"

    def to_dict(self) -> dict[str, Any]:
        """JSON types; intervals as [value, lower, upper]."""
        return {
            "seeds": self.seeds,
            "margin": MARGIN,
            "verdict": self.verdict,
            "rows": [_plain(row) for row in self.rows],
            "gaps": [_plain(row) for row in self.gaps],
        }

    def table(self, title: str = "Before and after") -> Any:
        """A rich table of rows and gaps."""
        from rich.table import Table

        over = f"{self.seeds} seeds and prompts" if self.seeds > 1 else "prompts, one seed"
        out = Table(title=rich_safe(f"{title}: [95 %] over {over}"), title_justify="left")
        for column in ("problems", "quantity", "before", "after", "change", ""):
            out.add_column(column, no_wrap=True)
        for task in dict.fromkeys(row.task for row in self.rows):
            for row in (r for r in self.rows if r.task == task):
                cells = (row.task, row.quantity, f"{row.before.value:.3f}", f"{row.after.value:.3f}")
                out.add_row(*map(rich_safe, (*cells, signed(row.change), row.verdict)))
            out.add_section()
        for less in self.gaps:
            cells = ("train less held-out", less.quantity, f"{less.before.value:+.3f}", f"{less.after.value:+.3f}")
            out.add_row(*map(rich_safe, (*cells, signed(less.gain), "")))
        return out


def forgetting(starts: Sequence[Point], ends: Sequence[Point], ks: Sequence[int] = TRIES) -> Forgetting:
    """Compare the ends of an arm's runs with their starts, one of each a seed.

    Args:
        starts, ends: evaluated centers (`RunFolder.points`, `Trajectory.start` and `.end.point`).
        ks: of pass@k, as far as there are so many responses.

    Raises:
        InputError: no run, runs of different tasks or prompts.
    """
    if not starts or len(starts) != len(ends):
        raise InputError(f"forgetting needs runs, each with its start and end: {len(starts)} starts, {len(ends)} ends")
    tasks = list(starts[0].sets)
    other = next((p for p in (*starts, *ends) if list(p.sets) != tasks), None)
    if other is not None:
        raise InputError(f"runs of one arm need the same tasks: {', '.join(tasks)}, and {', '.join(other.sets)}")
    rows, gaps = [], []
    for task in tasks:
        before, after = _sets(starts, task), _sets(ends, task)
        for quantity in quantities_of([*before, *after], ks):
            moved = change(after, before, quantity)
            verdict = judged(moved)
            rows.append(Row(task, quantity, level(before, quantity), level(after, quantity), moved, verdict))
    if TRAIN in tasks and HELD_OUT in tasks:
        sides = [(_sets(starts, task), _sets(ends, task)) for task in (TRAIN, HELD_OUT)]
        gaps = [
            _gap(quantity, *sides) for quantity in quantities_of([e for s in sides for side in s for e in side], ks)
        ]
    return Forgetting(len(starts), rows, gaps)


def forgetting_of(runs: Sequence[RunFolder], ks: Sequence[int] = TRIES) -> Forgetting:
    """The same of the runs of one arm, one a seed: each one's first and last evaluated center.

    Raises:
        InputError: as `forgetting`, or a run that has no evaluation after its start.
    """
    points = [run.points() for run in runs]
    for run, found in zip(runs, points, strict=True):
        if len(found) < 2:
            raise InputError(f"{run.path} has {len(found)} evaluated centers: a start and an end are needed")
    return forgetting([p[0] for p in points], [p[-1] for p in points], ks)


Side = tuple[list[Evaluation], list[Evaluation]]
"""Evaluations of the starts and of the ends."""


def _gap(quantity: str, train: Side, held_out: Side) -> Gap:
    (train_before, train_after), (held_before, held_after) = (
        [np.stack([values(e, quantity) for e in found]) for found in side] for side in (train, held_out)
    )
    return Gap(
        quantity,
        gap(train_before, held_before),
        gap(train_after, held_after),
        gap(train_after - train_before, held_after - held_before),
    )


def _sets(points: Sequence[Point], task: str) -> list[Evaluation]:
    return [p.sets[task] for p in points]


def _plain(row: Row | Gap) -> dict[str, Any]:
    return {name: value.rounded() if isinstance(value, Interval) else value for name, value in row._asdict().items()}
