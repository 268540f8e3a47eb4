"""The curve of functional sparsity: what success is left when so much of the update is zeroed, and how much can be.

"The interval holds 0" alone would reward small samples, so two readings stand beside each other, and both are of the
largest share up to which *every* share that was tried passes, from 0 on:

    no loss seen    the interval of pass@1 less the unchanged child's does not lie below 0
    within margin   its lower end is above −MARGIN: a larger loss is excluded, whether or not a smaller one is seen

C5 is judged by the second. If the run itself has not learned, zeroing all of it costs nothing, and says nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from esth.analysis.over_seeds import change, level, quantities_of
from esth.analysis.sparsity import ORDERS
from esth.estimators.intervals import Interval
from esth.training.compare import gained
from esth.training.evaluation import Evaluation

MARGIN = 0.02
"""Points of pass@1 whose loss must be excluded; fixed before any rebuilt model was evaluated."""

PAPER = (0.776, 0.930)
"""Shares of nonzero ES updates that Ba et al. zero without loss: the least and the largest of their runs (C5)."""

UNLEARNED = "undecided: the run did not learn"


class Tried(NamedTuple):
    """A rebuilt model of each seed.

    Attributes:
        order: of `esth.analysis.sparsity.ORDERS`.
        cut: what was asked for, as "0.9" (of changed coordinates), "1 step" or "1 sigma".
        shares: of changed coordinates that were zeroed, one a seed.
        kept: share of ‖Δ‖² that is left, one a seed.
        evaluations: one a seed.
    """

    order: str
    cut: str
    shares: list[float]
    kept: list[float]
    evaluations: list[Evaluation]

    @property
    def share(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.shares))


def no_loss_seen(difference: Interval) -> bool:
    """The interval does not lie below 0."""
    return bool(difference.upper >= 0)


def within_margin(difference: Interval) -> bool:
    """The interval does not reach a loss of MARGIN."""
    return bool(difference.lower > -MARGIN)


def largest_share(curve: Sequence[tuple[float, Interval]], passes: Callable[[Interval], bool]) -> float:
    """The largest share of the curve (share, difference to the unchanged child) with none that fails up to it; else 0.

    Shares tried twice (by different cuts) must pass twice.
    """
    failed = min((share for share, difference in curve if not passes(difference)), default=2.0)
    return max((share for share, _ in curve if share < failed), default=0.0)


def verdict(learned: bool, curve: Sequence[tuple[float, Interval]]) -> str:
    """C5 of one arm, from its curve of smallest-first zeroing.

    seen: up to the paper's least share, losses of MARGIN are excluded; contrary: at that share or a smaller one the
    whole interval of the loss lies beyond MARGIN; undecided otherwise, and where the run did not learn.
    """
    if not learned:
        return UNLEARNED
    if largest_share(curve, within_margin) >= PAPER[0] - 1e-3:  # a share is that of a whole number of coordinates
        return "seen"
    lost = any(share <= PAPER[0] + 1e-3 and difference.upper < -MARGIN for share, difference in curve)
    return "contrary" if lost else "undecided"


@dataclass(frozen=True)
class Curves:
    """One arm: its base, its unchanged children and what was rebuilt of them, one a seed, on the same problems.

    Attributes:
        base, child: evaluations, one a seed.
        tried: any number of cuts.
    """

    base: list[Evaluation]
    child: list[Evaluation]
    tried: list[Tried]

    @property
    def quantities(self) -> list[str]:
        """What is reported."""
        return quantities_of([*self.base, *self.child])

    @property
    def learned(self) -> bool:
        """See `esth.training.compare.gained`."""
        return gained(change(self.child, self.base, "pass@1"))

    def curve(self, order: str) -> list[tuple[float, Interval]]:
        """Share zeroed and pass@1 less the unchanged child's, ascending, to the base, of which all is zeroed."""
        losses = [(t.share, change(t.evaluations, self.child, "pass@1")) for t in self._of(order)]
        return [*losses, (1.0, change(self.base, self.child, "pass@1"))]

    def _of(self, order: str) -> list[Tried]:
        return sorted((t for t in self.tried if t.order == order), key=lambda t: t.share)

    def to_dict(self) -> dict[str, Any]:
        """Levels, differences and readings as JSON types, intervals as [value, lower, upper].

        "expected" is what a row should have of pass@1 less the child's, to first order: the gain times the share of
        ‖Δ‖² that was zeroed, with a minus (`esth.analysis.sparsity`).
        """
        drawn = {(t.order, t.cut): t for t in self.tried}
        gain = float(change(self.child, self.base, "pass@1").value)
        return {
            "margin": MARGIN,
            "learned": self.learned,
            "base": {q: {"value": level(self.base, q).rounded()} for q in self.quantities},
            "child": {
                q: {"value": level(self.child, q).rounded(), "gain": change(self.child, self.base, q).rounded()}
                for q in self.quantities
            },
            "rows": [
                {
                    "order": t.order,
                    "cut": t.cut,
                    "share": [round(s, 6) for s in t.shares],
                    "kept": [round(k, 6) for k in t.kept],
                    "expected": round(-(1.0 - float(np.mean(t.kept))) * gain, 6),
                    "effects": {q: self._effect(t, q, drawn.get(("random", t.cut))) for q in self.quantities},
                }
                for order in ORDERS
                for t in self._of(order)
            ],
            "largest": {
                order: {
                    "no loss seen": round(largest_share(self.curve(order), no_loss_seen), 6),
                    "within margin": round(largest_share(self.curve(order), within_margin), 6),
                }
                for order in ORDERS
                if self._of(order)
            },
            "verdict": verdict(self.learned, self.curve("smallest")),
        }

    def _effect(self, tried: Tried, quantity: str, random: Tried | None) -> dict[str, list[float]]:
        """Level, and differences to the child, the base, and what random zeroing of as many leaves."""
        found = {
            "value": level(tried.evaluations, quantity),
            "less child": change(tried.evaluations, self.child, quantity),
            "less base": change(tried.evaluations, self.base, quantity),
        }
        if random is not None and random is not tried:
            found["less random"] = change(tried.evaluations, random.evaluations, quantity)
        return {name: interval.rounded() for name, interval in found.items()}
