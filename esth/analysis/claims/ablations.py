"""Rules of the claims on how ES is set up: C7 and C8 from the studies of training, C9 and C10 from their own."""

import math
from collections.abc import Iterator

import numpy as np

from esth.analysis.claims.claim import Part, Row, judge, less
from esth.analysis.claims.comparisons import PLACES, gap, orders, row
from esth.analysis.claims.sources import ES_ARMS, Found, Study
from esth.estimators.intervals import Estimate, Interval, normal

REFERENCE = ES_ARMS[0]
UNSCORED = "ES, no z-score"
SMALL, LARGE = "ES, a tenth of sigma", "ES, three times sigma"

SAVED = 0.1
"""A smaller share of the variance than this is called none (C10)."""

SAVING = {"scoring": (SAVED, math.inf), "own": (-math.inf, SAVED)}
"""Where the paper puts the share that pairs save: of scored labels, and of rewards regenerated with own numbers."""


def z_scores(t: Study) -> Iterator[Row]:
    """C7. Seen: pass@1 with z-scores is above that with raw rewards, all other settings equal, α too."""
    part = Part("pass@1, z-scores less raw", t.difference("ends", REFERENCE, UNSCORED, "pass@1"), above=0)
    drifts = [float(np.mean(t.values("ends", arm, "drift"))) for arm in (REFERENCE, UNSCORED)]
    note = f"at one α; drift {drifts[0]:.3g} and {drifts[1]:.3g}: raw rewards make smaller steps"
    arms, seeds = f"{REFERENCE}; {UNSCORED}", len(t.values("ends", UNSCORED, "drift"))
    verdict, why = judge([part], learned=t.learned("ends", REFERENCE), seeds=seeds)
    yield Row("C7", t.scale, t.model, PLACES["ends"], arms, (part,), verdict, why, (note,), seeds, t.name)


def sigmas(t: Study) -> Iterator[Row]:
    """C8, its two halves. Small σ seen: a gap between the gains on trained and held-out problems, larger than the gap
    of the reference (a gap alone every σ has). Large σ seen: pass@1 below that of the reference.
    """
    learned = t.learned("ends", REFERENCE)
    gaps = [gap(t, arm) for arm in (SMALL, REFERENCE)]
    parts = [
        Part("pass@1, gain on trained less held-out problems", gaps[0], above=0),
        Part("that gap less the reference's", less(gaps[0], gaps[1]), above=0),
        Part("held out, less the base", t.effect("ends", SMALL, "pass@1")),
    ]
    yield row(t, "C8", "sigma / 10", f"{SMALL}; {REFERENCE}", parts, learned=learned, seeds=_seeds(t, SMALL))
    parts = [
        Part("pass@1 less the reference's", t.difference("ends", LARGE, REFERENCE, "pass@1"), below=0),
        Part("less the base", t.effect("ends", LARGE, "pass@1")),
    ]
    yield row(t, "C8", "sigma × 3", f"{LARGE}; {REFERENCE}", parts, learned=learned, seeds=_seeds(t, LARGE))


def _seeds(t: Study, arm: str) -> int:
    return len(t.values("ends", arm, "drift"))


# C9: results/population_size


def population_size(found: Found) -> Iterator[Row]:
    """C9, its two halves. Members: at the smallest size N = 10 and 20 lose more than the study's margin against
    N = 30, at the larger ones less than that is gained or lost. Density: the share of members that beat their center
    grows from size to size.
    """
    margin, reference = found.number("margin"), int(found.number("reference"))
    sizes = sorted(found.names("sizes"), key=lambda name: found.number("sizes", name))
    parts = []
    for name in sizes:
        bounds = (-math.inf, -margin) if name == sizes[0] else (-margin, margin)
        for n in found.names("against the reference", name):
            interval = found.interval("against the reference", name, n, "difference", "pass@1")
            parts.append(Part(f"pass@1, {name}: N = {n} less {reference}", interval, *bounds))
    seeds = min(len(found.numbers("ends", arm, "updates")) for arm in found.names("ends"))
    learned = all(found.truth("learned", f"{name}, N = {reference}") for name in sizes)
    verdict, why = judge(parts, learned=learned, seeds=seeds)
    notes = (", ".join(f"{name}: {found.number('sizes', name):,.0f} parameters" for name in sizes), f"±{margin:g}")
    yield Row("C9", "tiny", _of("tiny-3", sizes), "members needed", f"N = 10, 20, {reference}", tuple(parts), verdict,
              why, notes, seeds, found.name)  # fmt: skip
    for i in range(found.count("density", sizes[0])):
        sigma = found.number("density", sizes[0], i, "sigma")
        shares = [found.interval("density", name, i, "share") for name in sizes]
        told = [
            Part(f"share, {name}", share, signed=False) for name, share in zip(sizes, shares, strict=True)
        ]  # fmt: skip
        steps = [
            Part(f"{large} less {small}", less(b, a), above=0)
            for (small, a), (large, b) in zip(
                zip(sizes, shares, strict=True), zip(sizes[1:], shares[1:], strict=True), strict=False
            )
        ]
        verdict, why = judge(steps)
        yield Row("C9", "tiny", _of("tiny-3", sizes), f"density at sigma {sigma:g}", "members that beat their center",
                  (*told, *steps), verdict, why, (), None, found.name)  # fmt: skip


def _of(model: str, sizes: list[str]) -> str:
    return f"{model} and {len(sizes) - 1} more sizes"


# C10: results/antithetic, results/llm/*/two_point.json


def two_point_training(found: Found) -> Iterator[Row]:
    """C10 on tiny-3. Variance seen: around every center that was looked at, pairs save more than SAVED of the variance
    of scored labels and less than SAVED of that of regenerated rewards (numbers of their own). Training seen, for each
    fitness: two-point ES is not better than one-point ES by the study's margin.
    """
    parts = []
    for i in range(found.count("measured")):
        update = int(found.number("measured", i, "update"))
        for kind, bounds in SAVING.items():
            share = _saved(*found.estimate("measured", i, "kinds", kind, "batch", "ratio"))
            parts.append(Part(f"{kind}, after {update} updates", share, *bounds))
    verdict, why = judge(parts)
    yield Row("C10", "tiny", "tiny-3", "variance saved", "share (C − C′)/(V − C′)", tuple(parts), verdict, why, (),
              None, found.name)  # fmt: skip
    margin = found.number("margin")
    for fitness in found.names("two-point less one-point"):
        interval = found.interval("two-point less one-point", fitness, "pass@1")
        part = Part("pass@1, two-point less one-point", interval, below=margin)
        arms = [f"{estimator}, {fitness}" for estimator in ("one-point", "two-point")]
        seeds = len(found.numbers("ends", arms[0], "updates"))
        verdict, why = judge([part], learned=found.truth("learned", arms[0]), seeds=seeds)
        yield Row("C10", "tiny", "tiny-3", f"training, {fitness}", "; ".join(arms), (part,), verdict, why,
                  (f"margin {margin:g}",), seeds, found.name)  # fmt: skip


def two_point_measured(found: Found) -> Iterator[Row]:
    """C10 around a checkpoint that was not trained here: the variances alone, of single evaluations; the share is of
    V − C′ at its estimate, the interval that of C − C′. One center with one draw of few pairs counts as one seed.
    """
    parts = []
    for kind, bounds in SAVING.items():
        keys = ("data", "kinds", kind, "single")
        (wins, se), (variance, _) = (found.estimate(*keys, name) for name in ("wins", "one_point"))
        share = _interval(wins / variance, se / variance) if variance > 0 else None
        parts.append(Part(kind, share, *bounds))
    verdict, why = judge(parts, seeds=1)
    note = f"{int(found.number('data', 'pairs'))} pairs at one center"
    yield Row("C10", "real", found.text("model"), "variance saved", "share (C − C′)/(V − C′)", tuple(parts), verdict,
              why, (note,), 1, found.name)  # fmt: skip


def _saved(ratio: float, se: float) -> Interval:
    """1 − (V − C)/(V − C′)."""
    return _interval(1.0 - ratio, se)


def _interval(value: float, se: float) -> Interval:
    return normal(Estimate(np.asarray(value), np.asarray(se)))


RULES = {"C7": z_scores, "C8": sigmas, "C11": orders}
"""Of studies alone."""
