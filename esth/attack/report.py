"""What an attack found, as an object and as a table."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from esth.attack.bound import Bound, Float
from esth.attack.search import Finding


class Outcome(StrEnum):
    """How a bound came out of its attack."""

    HELD = "held"
    VIOLATED = "violated"
    """An instance breaks it in exact arithmetic."""
    ROUNDING = "rounding"
    """It holds in exact arithmetic, but float64 breaks it by more than the allowance: a defect of the library."""


@dataclass(frozen=True)
class BoundResult:
    """The attack on one bound.

    Attributes:
        bound: what was attacked.
        outcome: see `Outcome`.
        instances: how many were tried, locally perturbed ones included.
        margin: relative margin of the closest instance, exact where decimal arithmetic could tell it.
        tightness: the same as smaller/larger, 1 − margin: 1 is equality.
        setting: sizes of the closest instance.
        instance: its arrays.
        float_margin: its relative margin in float64.
    """

    bound: Bound
    outcome: Outcome
    instances: int
    margin: float
    setting: dict[str, int]
    instance: dict[str, Float]
    float_margin: float

    @property
    def tightness(self) -> float:
        """How close to equality the bound came."""
        return 1.0 - self.margin

    def to_dict(self) -> dict[str, Any]:
        """JSON types; infinite entries of the instance as strings."""
        return {
            "name": self.bound.name,
            "statement": self.bound.statement,
            "formula": self.bound.formula,
            "constant": self.bound.constant,
            "limit": self.bound.limit,
            "outcome": str(self.outcome),
            "instances": self.instances,
            "margin": _number(self.margin),
            "float_margin": _number(self.float_margin),
            "setting": self.setting,
            "instance": {name: _nested(array) for name, array in self.instance.items()},
        }


@dataclass(frozen=True)
class AttackResult:
    """The attack on all bounds of a lemma."""

    lemma: str
    seed: int
    bounds: tuple[BoundResult, ...]

    @property
    def violated(self) -> list[BoundResult]:
        """The bounds that were broken, in exact arithmetic or by rounding."""
        return [result for result in self.bounds if result.outcome is not Outcome.HELD]

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"lemma": self.lemma, "seed": self.seed, "bounds": [result.to_dict() for result in self.bounds]}


def conclude(bound: Bound, finding: Finding, instances: int) -> BoundResult:
    """Judge a finding."""
    candidate = finding.candidate
    sound = Outcome.ROUNDING if finding.suspicions else Outcome.HELD
    outcome = Outcome.VIOLATED if finding.exact < 0 else sound
    instance = bound.space.decode(candidate.setting, np.array([candidate.x]))
    return BoundResult(
        bound, outcome, instances, finding.relative if math.isnan(finding.exact) else finding.exact,
        candidate.setting, {name: array[0] for name, array in instance.items()}, finding.relative,
    )  # fmt: skip


def show(result: AttackResult, console: Any = None) -> None:
    """Print a table of the bounds and, below, the closest instance of each.

    Args:
        console: a rich Console; one on standard output if None.
    """
    from rich.console import Console
    from rich.table import Table

    from esth.check import rich_safe

    console = console or Console()
    table = Table(title=f"Attack on {result.lemma}, seed {result.seed}", title_justify="left")
    for column in ("", "name", "bound"):
        table.add_column(column, no_wrap=column == "name")
    for column in ("instances", "margin", "outcome"):
        table.add_column(column, justify="right", no_wrap=True)
    style = {Outcome.HELD: "green", Outcome.VIOLATED: "bold red", Outcome.ROUNDING: "yellow"}
    for row in result.bounds:
        table.add_row(
            row.bound.statement, rich_safe(row.bound.name), rich_safe(_claim(row.bound)), f"{row.instances:.2g}",
            f"{row.margin:.2g}", f"[{style[row.outcome]}]{row.outcome}[/]",
        )  # fmt: skip
    console.print(table)
    console.print("margin: (larger - smaller)/larger of the closest instance, in exact arithmetic. These instances:")
    for row in result.bounds:
        arrays = "; ".join(f"{name} = {_short(array)}" for name, array in row.instance.items())
        console.print(rich_safe(f"  {row.bound.name}: {arrays}"), highlight=False, soft_wrap=True)


def _claim(bound: Bound) -> str:
    """The formula, and how it was falsified or how far from sharp it is."""
    if bound.constant != 1:
        return f"{bound.formula}  ({bound.scaled} side × {bound.constant:g})"
    return bound.formula if bound.sharp else f"{bound.formula}  (never above {bound.limit:.4f} of it)"


def _short(array: Float) -> str:
    return np.array2string(array, precision=4, separator=", ", threshold=24).replace("\n", "")


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _nested(array: Any) -> Any:
    return _number(float(array)) if np.ndim(array) == 0 else [_nested(item) for item in array]
