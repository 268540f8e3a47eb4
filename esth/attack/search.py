"""The search: random batches first, then a local descent from the closest instances, then exact arithmetic.

Everything is a function of (seed, lemma, place in the search): the result does not depend on the number of workers, on
an interruption, or on the order in which parts finish.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from esth.attack.bound import Bound, Instances
from esth.lemmas import LEMMAS

BATCH = 4096
"""Random instances that share their sizes."""
CHUNK = 8
"""Batches in one piece of work."""
STARTS = 8
"""Instances from which a bound is attacked locally, each the closest of its batch."""
OFFSPRING = 128
"""Perturbations of the best instance in a round of the local search."""
SHARE = 0.05
"""Of the random instances, how many more the local search tries (`rounds`)."""


@dataclass(frozen=True)
class Candidate:
    """An instance close to breaking a bound: where it is, its guarded margin, and its place in the search."""

    margin: float
    place: tuple[int, ...]
    setting: dict[str, int]
    x: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON types; numbers as strings, to the bit and infinities included."""
        x = [repr(v) for v in self.x]
        return {"margin": repr(self.margin), "place": list(self.place), "setting": self.setting, "x": x}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Candidate":
        """Inverse of `to_dict`."""
        x = tuple(float(v) for v in stored["x"])
        return cls(float(stored["margin"]), tuple(stored["place"]), dict(stored["setting"]), x)


def bounds_of(lemma: str, constants: dict[str, float] | None = None) -> tuple[Bound, ...]:
    """The bounds of a lemma, with constants other than 1 where `constants` names a bound."""
    constants = constants or {}
    bounds = import_module(f"esth.attack.{lemma}").BOUNDS
    return tuple(replace(bound, constant=constants.get(bound.name, 1.0)) for bound in bounds)


def spaces_of(bounds: Iterable[Bound]) -> list[str]:
    """Names of the spaces, in order of appearance."""
    return list(dict.fromkeys(bound.space.name for bound in bounds))


def closest(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The `STARTS` with the smallest margin, ties by place."""
    return sorted(candidates, key=lambda c: (c.margin, c.place))[:STARTS]


def scan(
    lemma: str, constants: dict[str, float], seed: int, space: int, batches: range, instances: int
) -> dict[str, list[Candidate]]:
    """Random search: the closest instance of each batch, for every bound of one space; at most STARTS each."""
    every = bounds_of(lemma, constants)
    name = spaces_of(every)[space]
    bounds = [bound for bound in every if bound.space.name == name]
    region = bounds[0].space
    found: dict[str, list[Candidate]] = {bound.name: [] for bound in bounds}
    for batch in batches:
        rng = np.random.default_rng([seed, LEMMAS.index(lemma), space, batch])
        setting = dict(region.setting(rng))
        x = region.draw(setting, rng, min(BATCH, instances - batch * BATCH))
        drawn = Instances(region.decode(setting, x))
        for bound in bounds:
            margins = bound.margins(setting, drawn).guarded
            row = int(np.argmin(margins))
            candidate = Candidate(float(margins[row]), (batch, row), setting, tuple(x[row].tolist()))
            found[bound.name].append(candidate)
    return {name: closest(candidates) for name, candidates in found.items()}


def rounds(instances: int) -> int:
    """Rounds of the local search from each start, of `OFFSPRING` instances each."""
    return max(40, math.ceil(SHARE * instances / (STARTS * OFFSPRING)))


def descend(bound: Bound, start: Candidate, seed: int, n_rounds: int) -> Candidate:
    """Local search from `start`: perturbations on all scales at once, of all numbers or of few; the best is kept.

    A (1 + λ) evolution strategy. Steps from 1e-7 to 10 are tried in each round, so that no step size has to be adapted,
    and the last successful move is tried again, longer and shorter: it follows narrow valleys.
    """
    rng = np.random.default_rng([seed, 1, *start.place])
    best, x = start.margin, np.array(start.x)
    move = np.zeros_like(x)
    for _ in range(n_rounds):
        steps = 10.0 ** rng.uniform(-7, 1, size=(OFFSPRING, 1))
        noise = steps * rng.standard_normal((OFFSPRING, len(x)))
        sparse = rng.random((OFFSPRING, 1)) < 0.5
        noise = np.where(sparse & (rng.random(noise.shape) > 2.0 / len(x)), 0.0, noise)
        along = rng.random((OFFSPRING, 1)) < 0.25
        trial = x + np.where(along, rng.exponential(2.0, size=(OFFSPRING, 1)) * move + 0.1 * noise, noise)
        margins = bound.margins(start.setting, bound.instances(start.setting, trial)).guarded
        row = int(np.argmin(margins))
        if margins[row] < best:
            # Infinite entries stay where they are: the difference of two is not a number.
            move = np.where(np.isfinite(x), trial[row] - np.where(np.isfinite(x), x, 0.0), 0.0)
            best, x = float(margins[row]), trial[row]
    return replace(start, margin=best, x=tuple(x.tolist()))


@dataclass(frozen=True)
class Finding:
    """What the attack on one bound came to.

    Attributes:
        candidate: the closest instance.
        relative: its relative margin in float64.
        exact: the same in decimal arithmetic; NaN if the finest precision could not tell it.
        suspicions: of the locally improved instances, how many float64 puts beyond rounding.
    """

    candidate: Candidate
    relative: float
    exact: float
    suspicions: int

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "candidate": self.candidate.to_dict(), "relative": repr(self.relative), "exact": repr(self.exact),
            "suspicions": self.suspicions,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Finding":
        """Inverse of `to_dict`."""
        candidate = Candidate.from_dict(stored["candidate"])
        return cls(candidate, float(stored["relative"]), float(stored["exact"]), stored["suspicions"])


def refine(
    lemma: str, constants: dict[str, float], seed: int, name: str, starts: list[Candidate], n_rounds: int
) -> Finding:
    """Local search from every start, then the judgement of exact arithmetic.

    The closest instance in exact arithmetic is reported: a violation if there is one, whatever float64 thinks of it.
    """
    bound = next(b for b in bounds_of(lemma, constants) if b.name == name)
    ends = closest(descend(bound, start, seed, n_rounds) for start in starts)
    judged = [(bound.exact_margin(end.setting, np.array(end.x)) if end.margin != 1.0 else 1.0, end) for end in ends]
    exact, end = min(judged, key=lambda pair: (math.isnan(pair[0]), pair[0], pair[1].place))
    relative = float(bound.margins(end.setting, bound.instances(end.setting, np.array([end.x]))).relative[0])
    return Finding(end, relative, exact, sum(end.margin < 0 for end in ends))
