"""How far training moved the weights: distances, shares in spacings of the dtype, cosines between runs' updates.

Everything is a sum over coordinates (in float64, of Δ = θ − θ₀ in float64), so that slices, tensors, layers and groups
add up: `Tally`. One pass serves any number of children of one base.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth.analysis.histogram import Histogram
from esth.analysis.pair import Family, Slice
from esth.models.groups import by_group, kind
from esth.models.stored import as_bits
from esth.noise import Float32

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
"""Of |Δ| that are told, and the largest."""

# Numbers of a dtype in [2^e, 2^(e+1)) are 2^(e − bits) apart, and never less than 2^least.
_BITS = {"F32": 23, "F16": 10, "BF16": 7}
_LEAST = {"F32": -149, "F16": -24, "BF16": -133}

DOUBLINGS = 24
"""Updates are counted by the octave of their size in spacings, up to 2^DOUBLINGS spacings and beyond."""

SPACINGS = ("0", "(0, 1)", *(f"[2^{k}, 2^{k + 1})" for k in range(DOUBLINGS)), f"[2^{DOUBLINGS}, ∞)")
"""What the columns of `Tally.spacings` count: |Δ| in spacings of the child's dtype at the base's value."""


@dataclass(frozen=True)
class Tally:
    """What R children of one base changed in some coordinates.

    Attributes:
        size: number of coordinates.
        base: ‖θ₀‖².
        gram: [R, R] inner products ΔᵢᵀΔⱼ of the updates.
        changed: [R] coordinates that changed at all.
        lost: [R] coordinates that changed, but whose θ and θ₀ are one number when rounded to bfloat16.
        spacings: [R, len(SPACINGS)] coordinates by the size of their change.
    """

    size: int
    base: float
    gram: Floats = field(repr=False)
    changed: Counts
    lost: Counts
    spacings: Counts = field(repr=False)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.size + other.size,
            self.base + other.base,
            self.gram + other.gram,
            self.changed + other.changed,
            self.lost + other.lost,
            self.spacings + other.spacings,
        )

    def distance(self, run: int) -> float:
        """‖Δ‖."""
        return math.sqrt(self.gram[run, run])

    def relative(self, run: int) -> float:
        """‖Δ‖/‖θ₀‖: 0 where nothing moved, infinite where a base of norm 0 did."""
        return _ratio(self.distance(run), math.sqrt(self.base))

    def share_changed(self, run: int) -> float:
        """Of all coordinates, 0 where there are none."""
        return _ratio(float(self.changed[run]), self.size)

    def share_lost(self, run: int) -> float:
        """Of the coordinates that changed, those whose change rounds to nothing in bfloat16; 0 where none changed."""
        return _ratio(float(self.lost[run]), float(self.changed[run]))

    def cosine(self, i: int, j: int) -> float:
        """Between the updates of two runs; NaN where one did not move."""
        lengths = self.distance(i) * self.distance(j)
        return math.nan if lengths == 0 else max(-1.0, min(1.0, float(self.gram[i, j]) / lengths))

    def to_dict(self, run: int) -> dict[str, Any]:
        """Of one run, as JSON types."""
        spacings = {name: int(n) for name, n in zip(SPACINGS, self.spacings[run], strict=True) if n}
        relative = self.relative(run)
        return {
            "coordinates": self.size,
            "distance": self.distance(run),
            "base_norm": math.sqrt(self.base),
            "relative_distance": relative if math.isfinite(relative) else "inf",
            "changed": int(self.changed[run]),
            "rounds_to_nothing_in_bfloat16": int(self.lost[run]),
            "changes_in_spacings": spacings,
        }


def _ratio(a: float, b: float) -> float:
    return 0.0 if a == 0 else math.inf if b == 0 else a / b


def nothing(runs: int) -> Tally:
    """Of no coordinates."""
    zeros = np.zeros(runs, np.int64)
    return Tally(0, 0.0, np.zeros((runs, runs)), zeros, zeros, np.zeros((runs, len(SPACINGS)), np.int64))


def tally(part: Slice, updates: Floats, dtypes: Sequence[str]) -> Tally:
    """Of a stretch of coordinates.

    Args:
        updates: [R, n] of `updates_of`.
        dtypes: [R] that the children are stored in.
    """
    wide = part.base.astype(np.float64)
    changed = updates != 0
    rounded = bfloat16(part.base)
    lost = [moved & (bfloat16(child) == rounded) for moved, child in zip(changed, part.children, strict=True)]
    spacings = [_count_spacings(part.base, update, dtype) for update, dtype in zip(updates, dtypes, strict=True)]
    return Tally(
        len(wide),
        float(wide @ wide),
        updates @ updates.T,
        np.count_nonzero(changed, axis=1).astype(np.int64),
        np.count_nonzero(lost, axis=1).astype(np.int64),
        np.stack(spacings),
    )


def bfloat16(values: Float32) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even; both zeros are +0."""
    rounded = as_bits(values, "BF16")
    rounded[rounded == 0x8000] = 0
    return rounded


def spacing_exponents(base: Float32, dtype: str) -> Counts:
    """e such that numbers of the dtype next to a weight, away from 0, lie 2^e from it: int64 [n]."""
    exponents = ((base.view(np.uint32) >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int64) - 127
    return np.maximum(exponents - _BITS[dtype], _LEAST[dtype])


def _count_spacings(base: Float32, update: Floats, dtype: str) -> Counts:
    """[len(SPACINGS)] coordinates by the octave of |Δ| in spacings."""
    octaves = ((update.view(np.int64) >> 52) & 0x7FF) - 1023 - spacing_exponents(base, dtype)
    columns = np.where(update == 0, 0, np.clip(octaves, -1, DOUBLINGS) + 2)
    return np.bincount(columns, minlength=len(SPACINGS)).astype(np.int64)


# The whole model


def layer(name: str) -> str:
    """The layer of a tensor, as "model.layers.3"; outside the layers the tensor's own name."""
    found = re.match(r"(?:.*?\.)?(?:layers?|h|blocks?)\.\d+(?=\.)", name)
    return found[0] if found else name


@dataclass(frozen=True)
class Place:
    """Group and kind of a tensor (`esth.models.groups`), an embedding being one though it is stored as the head."""

    group: str
    kind: str

    @property
    def label(self) -> str:
        """What tables say: "attention q", "mlp gate", "embedding", "norm"."""
        return _LABELS.get(self.kind, f"{self.group} {self.kind}")


_LABELS = {
    "token": "embedding", "position": "embedding of positions", "norm": "norm", "head": "head", "other": "other"
}  # fmt: skip


def places(names: Iterable[str]) -> dict[str, Place]:
    """Of every tensor."""
    return {
        name: Place(group, "token" if group == "embeddings" and kind(name) == "head" else kind(name))
        for group, members in by_group(names).items()
        for name in members
    }


class Drift:
    """The sums of a family, tensor by tensor, filled slice by slice (`add`); |Δ| by group in histograms."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.runs = [child.name for child in family.children]
        self.places = places(family.shapes)
        self.tensors = {name: nothing(len(self.runs)) for name in family.shapes}
        self.magnitudes: dict[str, list[Histogram]] = {}

    def add(self, part: Slice, updates: Floats) -> None:
        """Count a slice and its updates Δ, float64 [R, n]."""
        dtypes = [child.tensors[part.name].dtype for child in self.family.children]
        self.tensors[part.name] += tally(part, updates, dtypes)
        group = self.places[part.name].group
        histograms = self.magnitudes.setdefault(group, [Histogram() for _ in self.runs])
        for histogram, update in zip(histograms, updates, strict=True):
            histogram.add(abs(update))

    def by(self, of: Callable[[str], str]) -> dict[str, Tally]:
        """Tallies of the tensors that `of` gives one name to, in the order of their first tensor."""
        found: dict[str, list[Tally]] = {}
        for name, one in self.tensors.items():
            found.setdefault(of(name), []).append(one)
        return {name: reduce(add, tallies) for name, tallies in found.items()}

    @property
    def whole(self) -> Tally:
        """Of the whole model."""
        return reduce(add, self.tensors.values())

    def by_layer(self) -> dict[str, Tally]:
        """By layer; tensors outside the layers on their own."""
        return self.by(layer)

    def by_group(self) -> dict[str, Tally]:
        """By group."""
        return self.by(lambda name: self.places[name].group)

    def by_kind(self) -> dict[str, Tally]:
        """By kind, under the names of `Place.label`."""
        return self.by(lambda name: self.places[name].label)

    def histogram(self, run: int) -> Histogram:
        """|Δ| of the whole model."""
        return reduce(add, (histograms[run] for histograms in self.magnitudes.values()), Histogram())


def updates_of(part: Slice) -> Floats:
    """Δ = θ − θ₀ of every child: float64 [R, n], exact unless 2^29 lies between the two."""
    return np.stack([np.subtract(child, part.base, dtype=np.float64) for child in part.children])


def drift(family: Family, count: int | None = None) -> Drift:
    """One pass over a family for its drift alone; `esth.analysis.compare` looks at the largest changes as well."""
    found = Drift(family)
    for part in family.slices() if count is None else family.slices(count):
        found.add(part, updates_of(part))
    return found
