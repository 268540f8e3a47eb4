"""What a claim says in numbers, and what numbers say of it.

A rule turns a claim into parts: a quantity and the region in which the claim puts it, fixed in code before the figures
are read. A part is seen if the whole 95 % interval lies in the region, contrary if none of it does, else undecided.
A claim is seen if all its parts are, contrary if one of them is, else undecided: where it makes several statements,
each is tested at its own 95 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from esth.estimators.intervals import Interval, student

SEEDS = 2
"""Training runs of each arm that a verdict needs: one run says nothing of another."""

UNLEARNED = "ES did not learn"


class Verdict(StrEnum):
    """How a claim came out at one scale."""

    SEEN = "seen"
    CONTRARY = "contrary"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Part:
    """One quantity and where the claim puts it.

    Attributes:
        what: the quantity, with its unit if it has one.
        interval: with 95 %; None where it was not measured.
        above, below: the claim puts it between these; without either it is told, and not judged.
        signed: a difference, told with its sign.
    """

    what: str
    interval: Interval | None
    above: float = -math.inf
    below: float = math.inf
    signed: bool = True

    @property
    def judged(self) -> bool:
        """Whether the verdict depends on it."""
        return math.isfinite(self.above) or math.isfinite(self.below)

    @property
    def verdict(self) -> Verdict:
        """Of this part alone."""
        if self.interval is None:
            return Verdict.UNDECIDED
        _, lower, upper = self.interval
        if self.above < lower and upper < self.below:
            return Verdict.SEEN
        return Verdict.CONTRARY if upper < self.above or self.below < lower else Verdict.UNDECIDED

    def told(self) -> str:
        """The figure with its interval, as "pass@1 +0.064 [+0.038, +0.091]"."""
        if self.interval is None:
            return f"{self.what} not measured"
        value, lower, upper = map(float, self.interval)
        shown = [_number(x, self.signed) for x in (value, lower, upper)]
        return f"{self.what} {shown[0]}" + (f" [{shown[1]}, {shown[2]}]" if lower < upper else "")

    def to_dict(self) -> dict[str, Any]:
        """JSON types; a bound that is not there is null."""
        bounds = [x if math.isfinite(x) else None for x in (self.above, self.below)]
        interval = None if self.interval is None else [float(x) for x in self.interval]
        return {"what": self.what, "interval": interval, "above": bounds[0], "below": bounds[1]}


def _number(value: float, signed: bool) -> str:
    rounded = round(value, 3 if abs(value) < 10 else 1) + 0.0  # no -0.000
    return f"{rounded:{'+' if signed else ''}.{3 if abs(value) < 10 else 1}f}"


@dataclass(frozen=True)
class Row:
    """A claim at one scale, read in one way.

    Attributes:
        claim: "C1" … "C14".
        scale: toy, tiny or real.
        model: that was trained or measured.
        reading: what is compared, where: "at equal updates".
        arms: the runs that are compared, by their names in the result file.
        parts: quantities, judged and told.
        verdict: by `judge`.
        why: what an undecided verdict is due to, where it is not the interval.
        notes: what else must be known of the figures.
        seeds: training runs of each arm; None where nothing was trained.
        source: the result file, or None.
        command: that would make it, of a row that was not run; `cost`: of that.
        main: whether the short table has it.
    """

    claim: str
    scale: str
    model: str
    reading: str
    arms: str = ""
    parts: tuple[Part, ...] = ()
    verdict: Verdict = Verdict.NOT_RUN
    why: str = ""
    notes: tuple[str, ...] = ()
    seeds: int | None = None
    source: str | None = None
    command: str = ""
    cost: str = ""
    main: bool = True

    @property
    def told(self) -> str:
        """The verdict, with its reason."""
        return f"{self.verdict}: {self.why}" if self.why else str(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        names = ("claim", "scale", "model", "reading", "arms", "why", "seeds", "source", "command", "cost")
        return {
            **{name: getattr(self, name) for name in names},
            "verdict": str(self.verdict),
            "figures": [part.to_dict() for part in self.parts],
            "notes": list(self.notes),
        }


def judge(parts: Sequence[Part], *, learned: bool = True, seeds: int | None = None) -> tuple[Verdict, str]:
    """The verdict on all parts, and why it is undecided where that is not for its intervals.

    Args:
        learned: whether ES learned, where the claim compares it.
        seeds: training runs of each arm; None where nothing was trained.
    """
    if not learned:
        return Verdict.UNDECIDED, UNLEARNED
    found = [part.verdict for part in parts if part.judged]
    if Verdict.CONTRARY in found:
        verdict = Verdict.CONTRARY
    else:
        verdict = Verdict.SEEN if all(v is Verdict.SEEN for v in found) and found else Verdict.UNDECIDED
    if seeds is not None and seeds < SEEDS:
        return Verdict.UNDECIDED, one_seed(verdict)
    missing = [part.what for part in parts if part.judged and part.interval is None]
    return verdict, f"no {', no '.join(missing)}" if missing and verdict is Verdict.UNDECIDED else ""


def one_seed(verdict: Verdict) -> str:
    """Why one run of each arm decides nothing, and what it would have said."""
    return f"one seed (these runs alone: {verdict})"


# Arithmetic of intervals


def less(a: Interval | None, b: Interval | None, weight: float = 1.0) -> Interval | None:
    """a − weight·b of two estimates of unknown dependence: sd(a − b) ≤ sd(a) + sd(b), so half-widths add."""
    if a is None or b is None:
        return None
    lower, upper = sorted((weight * b.lower, weight * b.upper))
    return Interval(a.value - weight * b.value, a.lower - upper, a.upper - lower)


def negative(a: Interval | None) -> Interval | None:
    """−a."""
    return None if a is None else Interval(-a.value, -a.upper, -a.lower)


def interval(value: float, lower: float, upper: float) -> Interval:
    """An `Interval` of three numbers."""
    return Interval(*(np.asarray(x, dtype=np.float64) for x in (value, lower, upper)))


def exact(value: float) -> Interval:
    """A number without an error."""
    return interval(value, value, value)


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Student's interval of a mean over seeds; of one seed its exact value, of none nothing."""
    if len(values) < 2:
        return exact(values[0]) if values else None
    return student(values)


def ratio(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Geometric mean of a/b over seeds, paired in their order, by Student's interval of its logarithm; of one seed each
    the exact ratio.

    None where one of them is not positive, which has no ratio, or where there are not as many of both.
    """
    if len(a) != len(b) or any(x <= 0 for x in (*a, *b)):
        return None
    pairs = zip(a, b, strict=True)
    logarithm = over_seeds([math.log(x / y) for x, y in pairs])
    return None if logarithm is None else interval(*(math.exp(x) for x in logarithm))
