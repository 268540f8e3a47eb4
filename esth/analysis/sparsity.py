"""Functional sparsity: how much of an update Δ = θ − θ₀ can be taken back before the model notices (claim C5).

    family = open_family("demo", ["run"])
    n = round(0.9 * changes(family).changed)
    (cut,) = cuts(family, "smallest", [n])
    rebuild(family, cut, Path("pruned"))             # θ₀ + the largest tenth of Δ, a folder to evaluate

Coordinates are zeroed in one of three orders: smallest |Δ| first, which is what a threshold does; in random order and
largest first, the controls. Every order zeroes exactly as many as it is asked to: where several |Δ| are equal (in 16
bits most are), a random number of each coordinate decides, a function of seed, tensor and position (`esth.noise`).

What a threshold is measured in, *one ES step*, has two readings, and both are reported:

    step    the rms of a coordinate of one update if z is independent of Gaussian noise (P4.4): α/√N · rms(z), from the
            coefficients cᵢ = αzᵢ/N of the run's log as √(Σᵢ cᵢ²), rms over its updates; α/√N for z-scores
    sigma   σ, the distance in a coordinate that a member stands from the center

Under P4.4 a coordinate is a sum of independent steps, normal with variance V = Σ of the steps' squares, and the share
of |Δ| below t is erf(t/√(2V)): what random drift alone would leave there, told beside what is measured. After T equal
steps it is erf(1/√(2T)) for t of one step: by the first reading an ES run of many steps cannot have most of its
updates within one. GRPO has no such step; AdamW moves a coordinate by about its learning rate, which stands in.

What zeroing should cost, to first order: the gain is Σ gᵢΔᵢ. If (gᵢ, Δᵢ) is jointly normal with mean 0, alike in all
coordinates, E[gᵢ|Δᵢ] is one multiple of Δᵢ, and the coordinates that are kept have that share of the gain which they
have of ‖Δ‖², in whichever order |Δ| chose them. Of normal updates the smallest share s holds s − 2tφ(t) of ‖Δ‖²,
Φ(t) = (1 + s)/2 (`normal_squares`): .07 at s = .5, but .31 and .65 at the shares .776 and .930 that C5 speaks of.

Memory: slices of both models and some counters, whatever their size; five passes over the weights a set of cuts.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esth._files import write_folder, write_whole
from esth.analysis.pair import Family, Slice, Weights
from esth.errors import InputError
from esth.models.groups import kind
from esth.models.saving import COPIED, begin_safetensors
from esth.models.stored import as_bits
from esth.noise import Float32, Member, hashed, words
from esth.training.config import ESConfig, GRPOConfig
from esth.training.folder import RunFolder

ORDERS = ("smallest", "random", "largest")

Keys = NDArray[np.uint64]

DIGIT = 16
"""Bits of a key that one pass over the weights counts."""

OCTAVE_PARTS = 21
"""Bits of a float32 that a bin of `Changes.histogram` ignores: four bins an octave, equally wide within it."""


# How large updates are


class Changes(NamedTuple):
    """What a pass over Δ counts.

    Attributes:
        size: coordinates.
        changed: those whose value is another.
        squares: ΣΔ².
        below: for each threshold t, changed coordinates with |Δ| < t.
        histogram: changed coordinates with edges[i] <= |Δ| < edges[i+1], `histogram_edges`.
    """

    size: int
    changed: int
    squares: float
    below: list[int]
    histogram: NDArray[np.int64]


def changes(family: Family, thresholds: Sequence[float] = ()) -> Changes:
    """Count changed coordinates, and how many of them are smaller than each threshold.

    Raises:
        InputError: weights that are not finite, a threshold that is no number.
    """
    if any(math.isnan(t) for t in thresholds):
        raise InputError(f"thresholds must be numbers, not {list(thresholds)}")
    changed, squares, below = 0, 0.0, [0] * len(thresholds)
    histogram = np.zeros(len(histogram_edges()) - 1, np.int64)
    for part in family.slices():
        size = magnitude(part)
        size = size[size > 0]
        changed += len(size)
        squares += float(np.square(size, dtype=np.float64).sum())
        below = [b + int((size < np.float64(t)).sum()) for b, t in zip(below, thresholds, strict=True)]
        histogram += np.bincount(size.view(np.uint32) >> OCTAVE_PARTS, minlength=len(histogram))
    return Changes(family.size, changed, squares, below, histogram)


def histogram_edges() -> Float32:
    """Edges of `Changes.histogram`: 0 and every quarter of an octave of float32's range, to infinity."""
    last = int(np.float32(np.inf).view(np.uint32)) >> OCTAVE_PARTS
    return (np.arange(last + 2, dtype=np.uint32) << OCTAVE_PARTS).clip(max=last << OCTAVE_PARTS).view(np.float32)


def magnitude(part: Slice) -> Float32:
    """|Δ| of a slice; infinite where float32 does not hold it."""
    with np.errstate(over="ignore"):
        return np.abs(part.child - part.base)


# One step


class Scale(NamedTuple):
    """What thresholds are measured in.

    Attributes:
        name: "step" or "sigma".
        size: in units of the weights.
        drift: variance V of a coordinate under P4.4 alone, for the share that random drift would leave below a
            threshold; None where no such prediction is made.
    """

    name: str
    size: float
    drift: float | None

    def drift_below(self, threshold: float) -> float | None:
        """erf(t/√(2V)): share of |Δ| < t if Δ is random drift (P4.4)."""
        return None if self.drift is None else math.erf(threshold / math.sqrt(2.0 * self.drift))


def scales(run: RunFolder, update: int) -> list[Scale]:
    """step and sigma of an ES run, the learning rate as the step of GRPO, from its first `update` updates.

    Raises:
        InputError: an ES run none of whose updates moved anything.
    """
    config = run.config
    if isinstance(config, GRPOConfig):
        return [Scale("step", config.learning_rate, None)]
    assert isinstance(config, ESConfig)
    squares = [s for s in map(step_variance, run.log()[:update]) if s > 0]
    if not squares:
        raise InputError(f"{run.path}: all updates were zero: there is nothing to take back")
    drift = math.fsum(squares) if config.decay == 0 else None
    return [Scale("step", math.sqrt(math.fsum(squares) / len(squares)), drift), Scale("sigma", config.sigma, drift)]


def step_variance(update: Iterable[tuple[Member, float]]) -> float:
    """Variance of a coordinate of Σ cᵢεᵢ given the coefficients: Σ over directions of c², a pair's being c₊ − c₋."""
    along: dict[int, float] = {}
    for member, coefficient in update:
        along[member.seed] = along.get(member.seed, 0.0) + member.sign * coefficient
    return math.fsum(c * c for c in along.values())


def normal_squares(share: float) -> float:
    """Share of Σ Δ² that the smallest `share` of normal Δ with mean 0 hold: s − 2tφ(t), Φ(t) = (1 + s)/2."""
    if not 0 <= share <= 1:
        raise InputError(f"a share lies in [0, 1], not {share}")
    if share == 1:
        return 1.0
    t = NormalDist().inv_cdf((1.0 + share) / 2.0)
    return share - 2.0 * t * NormalDist().pdf(t)


# Which coordinates


class Cut(NamedTuple):
    """The first `zeroed` changed coordinates in an order: those whose key is below `key`, and `ties` equal to it.

    Attributes:
        order: of ORDERS.
        seed: of the random numbers.
        zeroed: how many coordinates.
        key: 0 zeroes nothing.
        ties: the first ones in the order of `Family.slices`.
    """

    order: str
    seed: int
    zeroed: int
    key: int
    ties: int


def cuts(family: Family, order: str, counts: Sequence[int], seed: int = 0) -> list[Cut]:
    """The cut of each count of changed coordinates, found without sorting them: by counting, digit after digit.

    Raises:
        InputError: an unknown order, a count that is negative or above the number of changed coordinates.
    """
    if order not in ORDERS:
        raise InputError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    found = smallest(lambda: (keys(part, order, seed) for part in family.slices()), counts)
    return [Cut(order, seed, n, key, ties) for n, (key, ties) in zip(counts, found, strict=True)]


def keys(part: Slice, order: str, seed: int) -> Keys:
    """Where each coordinate of a slice stands in an order, uint64: 0 if it is unchanged, and else > 0.

    Smallest and largest first: |Δ| as float32's bits, which are ordered as it is, in the upper half of the key.
    """
    size = magnitude(part)
    random = words(hashed(seed, "sparsity", part.name, bits=128), part.start).random_raw(len(size))
    if order == "random":
        found = random | np.uint64(1)
    else:
        bits = size.view(np.uint32)
        found = (bits if order == "smallest" else ~bits).astype(np.uint64) << np.uint64(32) | random >> np.uint64(32)
    return np.where(size > 0, found, np.uint64(0))


def smallest(stream: Callable[[], Iterable[Keys]], counts: Sequence[int]) -> list[tuple[int, int]]:
    """For each count n the n-th smallest key > 0, and how many keys equal to it the n smallest hold; (0, 0) for n = 0.

    Args:
        stream: the keys, as often as it is called, always in one order.

    Raises:
        InputError: a count that is negative or above the number of keys > 0.
    """
    prefix, rest = [0] * len(counts), list(counts)
    for shift in range(64 - DIGIT, -1, -DIGIT):
        counted = {p: np.zeros(1 << DIGIT, np.int64) for p in prefix}
        for part in stream():
            _count(part[part > 0] >> np.uint64(shift), counted)
        for i, n in enumerate(rest):
            below = np.cumsum(counted[prefix[i]])
            if not 0 <= n <= below[-1]:
                raise InputError(f"{counts[i]} coordinates cannot be zeroed: {below[-1]} have changed")
            digit = int(np.searchsorted(below, n)) if n > 0 else 0
            rest[i] = n - (int(below[digit - 1]) if digit > 0 else 0)
            prefix[i] = prefix[i] << DIGIT | digit
    return list(zip(prefix, rest, strict=True))


def _count(digits: Keys, counted: dict[int, NDArray[np.int64]]) -> None:
    """Count the last digit of keys under each prefix of the digits before it."""
    before, last = digits >> np.uint64(DIGIT), (digits & np.uint64((1 << DIGIT) - 1)).astype(np.int64)
    for prefix, counts in counted.items():
        counts += np.bincount(last[before == np.uint64(prefix)], minlength=len(counts))


# The model without them


class Rebuilt(NamedTuple):
    """What was written.

    Attributes:
        zeroed: changed coordinates that have the base's value.
        squares: ΣΔ² of the others.
    """

    zeroed: int
    squares: float


def rebuild(family: Family, cut: Cut, out: Path) -> Rebuilt:
    """Write base + what the cut leaves of the update, as a model folder like the child's.

    Config, tokenizer, dtype and names of tensors are the child's; the weights are in one file. Coordinates that are
    kept have the child's bits, the others the base's (rounded where the child's dtype is narrower): nothing is
    computed. Where both values are the same, −0 and 0, the base's stands as soon as anything is zeroed.

    Raises:
        InputError: `out` is there already, or the disk refuses: nothing is left behind then.
    """
    if out.exists():
        raise InputError(f"{out} is there already: name a new folder")
    (child,) = family.children
    found: list[Rebuilt] = []

    def fill(half: Path) -> None:
        half.mkdir()
        for file in sorted(child.folder.iterdir()):
            if file.suffix in COPIED and not file.name.endswith(".index.json") and file.name != "run.json":
                shutil.copyfile(file, half / file.name)
        write_whole(half / "model.safetensors", lambda stream: found.append(_write(family, cut, stream)))

    write_folder(out, fill)
    return found[0]


def cut_slices(family: Family, cut: Cut) -> Iterator[tuple[Slice, NDArray[np.bool_]]]:
    """Every slice with which of its coordinates have the base's value."""
    ties = cut.ties
    for part in family.slices():
        found = keys(part, cut.order, cut.seed)
        zeroed = found < np.uint64(cut.key)
        equal = np.flatnonzero(found == np.uint64(cut.key))[:ties]
        zeroed[equal] = True
        ties -= len(equal)
        yield part, zeroed


def _write(family: Family, cut: Cut, stream: Any) -> Rebuilt:
    """The weights as a safetensors file."""
    places = _places(family)
    stored = Weights.open(family.children[0].folder).tensors
    tensors = {name: stored[name] for found in places.values() for name in found}
    begins = begin_safetensors(stream, {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    zeroed, squares = 0, 0.0
    for part, mask in cut_slices(family, cut):
        size = magnitude(part)
        zeroed += int((mask & (size > 0)).sum())
        squares += float(np.square(size[~mask], dtype=np.float64).sum())
        weights = np.where(mask, part.base, part.child)
        for name in places[part.name]:
            bits = as_bits(weights, tensors[name].dtype)
            stream.seek(begins[name] + part.start * bits.itemsize)
            stream.write(bits.data.cast("B"))
    return Rebuilt(zeroed, squares)


def _places(family: Family) -> dict[str, list[str]]:
    """Under which names the child stores each tensor of the family: a head that is the embedding may have its own."""
    (child,) = family.children
    aligned = {tensor: name for name, tensor in child.tensors.items()}
    found: dict[str, list[str]] = {name: [] for name in family.shapes}
    for name, tensor in Weights.open(child.folder).tensors.items():
        embedding = next((n for n in found if kind(n) == "token"), name)
        found[aligned.get(tensor, embedding)].append(name)
    return found
