"""A base beside what was trained from it: one pass over the weights, and tr F of the base if asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from esth.analysis import landing
from esth.analysis.drift import QUANTILES, Drift, Tally, updates_of
from esth.analysis.histogram import RESOLUTION, Histogram
from esth.analysis.landing import Coordinate, Expected, Largest
from esth.analysis.pair import SLICE, Family, Weights, open_family
from esth.analysis.traces import TraceConfig, Traces, fisher_traces
from esth.diversity.sampling import Progress, quiet, versions
from esth.errors import InputError

TOP = 100
"""Largest coordinates that are looked at, as in the paper (C6)."""


@dataclass(frozen=True)
class Comparison:
    """A base and R children.

    Attributes:
        family: whose weights were compared.
        drift: how far they moved.
        largest: [R] their largest changes.
        traces: tr F of the base, if it was asked for.
    """

    family: Family
    drift: Drift
    largest: list[Largest]
    traces: Traces | None

    def label(self, name: str) -> str:
        """Kind of a tensor, as tables say it."""
        return self.drift.places[name].label

    @cached_property
    def labels(self) -> list[str]:
        """Kinds that there are, in the order of their groups."""
        order = {label: i for i, label in enumerate(dict.fromkeys(map(self.label, self.family.shapes)))}
        places = dict.fromkeys((p.group, p.label) for p in self.drift.places.values())
        groups = list(dict.fromkeys(p.group for p in self.drift.places.values()))
        return [label for _, label in sorted(places, key=lambda p: (groups.index(p[0]), order[p[1]]))]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Coordinates of every tensor."""
        return {name: tally.size for name, tally in self.drift.tensors.items()}

    @cached_property
    def sizes_by_kind(self) -> dict[str, int]:
        """Coordinates of every kind."""
        return {kind: tally.size for kind, tally in self.drift.by_kind().items()}

    # Where the largest lie

    def top_by_kind(self, run: int) -> dict[str, int]:
        """How many of a run's largest coordinates are of each kind."""
        return landing.count_by([c.name for c in self.largest[run].top], self.label)

    def expected_by_size(self, run: int) -> dict[str, Expected]:
        """The same, if |Δ| were exchangeable."""
        return landing.by_size(self.sizes_by_kind, len(self.largest[run].top))

    def expected_by_fisher(self, run: int) -> dict[str, Expected] | None:
        """The same, if Δ were normal with each tensor's mean Fisher information as its variance."""
        if self.traces is None or not self.largest[run].top:
            return None
        return landing.by_variance(self.sizes, self.traces.mean(), self.label, len(self.largest[run].top))

    def single_steps(self, run: int) -> int:
        """How many of a run's largest coordinates moved by one spacing of their dtype or less."""
        dtypes = {name: tensor.dtype for name, tensor in self.family.children[run].tensors.items()}
        return landing.single_steps(self.largest[run].top, dtypes)

    def layer_peaks(self, run: int) -> dict[str, Coordinate]:
        """The largest change of each layer (and of each tensor outside them) that changed."""
        return landing.layer_peaks(self.largest[run].peaks)

    def peaks_by_kind(self, run: int) -> dict[str, int]:
        """Of how many layers each kind holds the largest change."""
        return landing.count_by([c.name for c in self._proper_peaks(run).values()], self.label)

    def expected_peaks(self, run: int) -> dict[str, Expected]:
        """The same, if |Δ| were exchangeable within a layer."""
        return landing.of_layers(self.sizes, self.label, list(self._proper_peaks(run)))

    def _proper_peaks(self, run: int) -> dict[str, Coordinate]:
        """Without tensors outside the layers: their largest coordinate is of their own kind whatever happens."""
        return {at: peak for at, peak in self.layer_peaks(run).items() if at not in self.family.shapes}

    def ties_by_kind(self, run: int) -> dict[str, int]:
        """Coordinates that share the largest |Δ| of all, by kind."""
        found: dict[str, int] = {}
        for name, n in self.largest[run].ties.items():
            found[self.label(name)] = found.get(self.label(name), 0) + n
        return found

    def square_share(self, run: int) -> dict[str, float]:
        """Of ‖Δ‖² in each kind; 0 in all where nothing changed."""
        total = float(self.drift.whole.gram[run, run])
        return {k: float(t.gram[run, run]) / total if total else 0.0 for k, t in self.drift.by_kind().items()}

    # JSON

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON types: sums and counts exact up to rounding, quantiles up to the resolution."""
        runs = range(len(self.family.children))
        groups = self.drift.by_group()
        return {
            "base": _weights(self.family.base),
            "runs": [self._run(r) for r in runs],
            "cosines": {
                "whole": _cosines(self.drift.whole),
                "groups": {name: _cosines(tally) for name, tally in groups.items()},
            },
            "quantile_resolution": RESOLUTION,
            "confidence": landing.CONFIDENCE,
            "fisher": None if self.traces is None else self.traces.to_dict(),
            "notes": self.family.notes,
            "versions": versions(),
        }

    def _run(self, r: int) -> dict[str, Any]:
        def tallies(found: dict[str, Tally]) -> dict[str, Any]:
            return {name: tally.to_dict(r) for name, tally in found.items()}

        return {
            **_weights(self.family.children[r]),
            "whole": self.drift.whole.to_dict(r),
            "groups": tallies(self.drift.by_group()),
            "kinds": tallies(self.drift.by_kind()),
            "layers": tallies(self.drift.by_layer()),
            "tensors": tallies(self.drift.tensors),
            "magnitudes": {
                "whole": _quantiles(self.drift.histogram(r)),
                **{group: _quantiles(found[r]) for group, found in self.drift.magnitudes.items()},
            },
            "landing": self._landing(r),
        }

    def _landing(self, r: int) -> dict[str, Any]:
        def expected(found: dict[str, Expected] | None) -> dict[str, Any] | None:
            return None if found is None else {kind: e.to_dict() for kind, e in found.items()}

        def coordinate(c: Coordinate) -> dict[str, Any]:
            return {
                "tensor": c.name,
                "position": c.position,
                "base": c.base,
                "update": c.update,
                "kind": self.label(c.name),
            }

        shares = None if self.traces is None else self.traces.shares(self.label)
        return {
            "top": [coordinate(c) for c in self.largest[r].top],
            "top_by_kind": self.top_by_kind(r),
            "top_that_moved_one_spacing": self.single_steps(r),
            "expected_by_size": expected(self.expected_by_size(r)),
            "expected_by_fisher": expected(self.expected_by_fisher(r)),
            "share_of_squared_distance": self.square_share(r),
            "share_of_coordinates": {k: n / self.family.size for k, n in self.sizes_by_kind.items()},
            "share_of_fisher_trace": shares
            and {k: {"value": float(e.value), "se": float(e.se)} for k, e in shares.items()},
            "largest_of_tensors": [coordinate(c) for c in self.largest[r].peaks.values()],
            "largest_of_layers_by_kind": self.peaks_by_kind(r),
            "expected_of_layers": expected(self.expected_peaks(r)),
            "ties_of_the_largest_by_kind": self.ties_by_kind(r),
        }


def _weights(weights: Weights) -> dict[str, Any]:
    return {"name": weights.name, "dtypes": sorted({tensor.dtype for tensor in weights.tensors.values()})}


def _quantiles(found: Histogram) -> dict[str, float]:
    return {**{str(q): found.quantile(q) for q in QUANTILES}, "largest": found.largest}


def _cosines(tally: Tally) -> list[list[float | None]]:
    runs = range(len(tally.changed))
    return [[None if (c := tally.cosine(i, j)) != c else c for j in runs] for i in runs]


def compare(
    base: str,
    runs: Sequence[str],
    *,
    top: int = TOP,
    fisher: TraceConfig | None = None,
    progress: Progress = quiet,
    count: int = SLICE,
) -> Comparison:
    """Compare what was trained from a base with it.

    Memory: slices of base and children, a histogram a group and child; not the size of any tensor. Time: the weights
    are read once.

    Args:
        base, runs: as `esth.analysis.pair.Weights.open` takes them.
        top: how many of the largest coordinates are looked at.
        fisher: measure tr F of the base so, as another expectation of where they lie; this loads the model.
        progress: called as slices are done, in bytes.
        count: elements of a slice.

    Raises:
        InputError: models that cannot be compared (`esth.analysis.pair.open_family`), top < 1, no run.
    """
    if top < 1 or not runs:
        raise InputError(f"a comparison needs a run, and top of at least 1, not {top}")
    family = open_family(base, runs)
    traces = None if fisher is None else fisher_traces(family.base, fisher, list(family.shapes), progress)
    drift, largest = Drift(family), [Largest(top) for _ in runs]
    done = 0
    for part in family.slices(count):
        updates = updates_of(part)
        drift.add(part, updates)
        for one, update in zip(largest, updates, strict=True):
            one.add(part.name, part.start, part.base, update)
        done += family.stored_bytes(part)
        progress("comparing", done, family.bytes, 0)
    return Comparison(family, drift, largest, traces)
