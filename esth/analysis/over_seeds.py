"""Quantities of one arm over its seeds: levels, changes paired by prompt, and gaps between two sets of prompts.

With two seeds or more, intervals are for other seeds and other prompts (`crossed`); with one seed they are for other
prompts only, and say nothing of another run.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from esth.errors import InputError
from esth.estimators.intervals import Interval, bounded_mean, crossed, interaction, student
from esth.training.evaluation import CONFIDENCE, TRIES, Evaluation, bounded_difference

Floats = NDArray[np.float64]

GREEDY = "greedy"


def quantities_of(evaluations: Sequence[Evaluation], ks: Sequence[int] = TRIES) -> list[str]:
    """Names of what is reported of them: pass@k for each k that all have responses for, and greedy accuracy."""
    least = min((e.samples for e in evaluations if e.samples > 0), default=max(ks))
    return [*(f"pass@{k}" for k in ks if k <= least), GREEDY]


def values(evaluation: Evaluation, quantity: str) -> Floats:
    """The quantity of each prompt [P], in [0, 1]."""
    return evaluation.greedy if quantity == GREEDY else evaluation.per_prompt(int(quantity.removeprefix("pass@")))


def level(evaluations: Sequence[Evaluation], quantity: str) -> Interval:
    """Mean of a quantity over seeds and prompts: evaluations, one a seed, of the same prompts.

    Raises:
        InputError: no evaluation, or other prompts.
    """
    _check_paired(evaluations, evaluations)
    return mean_of(_table(evaluations, quantity))


def change(after: Sequence[Evaluation], before: Sequence[Evaluation], quantity: str) -> Interval:
    """Mean of after − before, paired by seed and prompt.

    Raises:
        InputError: no evaluation, as many of one as of the other are needed, other prompts.
    """
    _check_paired(after, before)
    return difference_of(_table(after, quantity), _table(before, quantity))


def mean_of(table: Floats, bounded: bool = True) -> Interval:
    """Mean of values [S, P] of S seeds on P prompts, in [0, 1] if `bounded`: -> scalar."""
    if len(table) > 1:
        return crossed(table)
    return _plain(bounded_mean(table[0]) if bounded else student(table[0]))


def difference_of(a: Floats, b: Floats, bounded: bool = True) -> Interval:
    """Mean of a − b, paired values as `mean_of` has them: -> scalar."""
    if len(a) > 1:
        return crossed(a - b)
    return _plain(bounded_difference(a[0], b[0], CONFIDENCE) if bounded else student(a[0] - b[0]))


def gap(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of a less mean of b: the same S seeds on X prompts [S, X] and on Y other prompts [S, Y] -> scalar.

    The seeds are paired, the prompts are not. Variance: s²(seed means of a − b)/S + s²(prompt means of a)/X + the same
    of b, less the interactions' shares MS/(SX) and MS/(SY) that both the first and the others hold, and no less than
    the first, or the other two. Satterthwaite's degrees of freedom. With one seed this is Welch's interval.

    Raises:
        InputError: other numbers of seeds, or fewer than 2 prompts.
    """
    sides = [np.asarray(side, dtype=np.float64) for side in (a, b)]
    if any(s.ndim != 2 or s.shape[1] < 2 for s in sides) or len(sides[0]) != len(sides[1]) or len(sides[0]) < 1:
        shapes = " and ".join(str(list(s.shape)) for s in sides)
        raise InputError(f"a gap needs [seeds, at least 2 prompts] twice, with as many seeds, not {shapes}")
    n_seeds = len(sides[0])
    prompts = [s.mean(0).var(ddof=1) / s.shape[1] for s in sides]
    freedoms = [s.shape[1] - 1 for s in sides]
    parts, floor, both = list(prompts), sum(prompts), 0.0
    if n_seeds > 1:
        seeds = (sides[0].mean(1) - sides[1].mean(1)).var(ddof=1) / n_seeds
        parts, freedoms, floor = [*prompts, seeds], [*freedoms, n_seeds - 1], max(floor, seeds)
        both = sum(interaction(s) / s.size for s in sides)
    spread = sum(p * p / f for p, f in zip(parts, freedoms, strict=True))
    least = min(freedoms)
    freedom = max(sum(parts) ** 2 / spread, least) if spread > 0 else least
    half = stats.t.isf(0.5 * (1.0 - confidence), freedom) * math.sqrt(max(sum(parts) - both, floor))
    value = sides[0].mean() - sides[1].mean()
    return _plain(Interval(value, value - half, value + half))


def _table(evaluations: Sequence[Evaluation], quantity: str) -> Floats:
    return np.stack([values(e, quantity) for e in evaluations])


def _check_paired(after: Sequence[Evaluation], before: Sequence[Evaluation]) -> None:
    if len(after) != len(before) or not after:
        raise InputError(f"seeds must be paired, at least one: {len(after)} evaluations against {len(before)}")
    other = next((e for e in (*after, *before) if e.ids != after[0].ids), None)
    if other is not None:
        raise InputError(
            f"evaluations {after[0].name!r} and {other.name!r} have different prompts: they are not paired"
        )


def _plain(interval: Interval) -> Interval:
    return Interval(*(np.asarray(x, dtype=np.float64)[()] for x in interval))
