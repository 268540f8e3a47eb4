"""Where the largest changes lie: the top K coordinates by kind of parameter, and what chance alone would put there.

Three expectations, each a statement about an update that knows nothing of the task:

    by size      |Δᵢ| of all D coordinates exchangeable (noise of one variance everywhere): of the top K, those of a
                 kind with n coordinates are hypergeometric, mean K n/D. Exact.
    by Fisher    Δᵢ normal with mean 0, its variance in each tensor that tensor's mean Fisher information a coordinate,
                 tr F_τ/n_τ: what score gradients with rewards independent of the responses add up to, but that
                 coordinates of one tensor are taken as alike. Those beyond the level that K exceed in the mean:
                 n_τ · 2Φ(−t/√(tr F_τ/n_τ)); a kind's count of K is binomial, which is
                 too wide for a kind that is small and loud (it has no more than its n coordinates).
    of a layer   its largest coordinate is of a kind with chance n/D within the layer; over layers independent.

The share of ‖Δ‖² a kind holds stands beside the same two: n/D is its mean under noise of one variance, exactly and
whatever the distribution; tr F_kind/tr F is the ratio of the means of both squares under such score noise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from esth.analysis.drift import Floats, layer, spacing_exponents
from esth.noise import Float32

CONFIDENCE = 0.95


class Coordinate(NamedTuple):
    """One coordinate's change: tensor, position in it (flat), θ₀ and Δ there."""

    name: str
    position: int
    base: float
    update: float


@dataclass
class Largest:
    """The K largest |Δ| of one child, the largest of each tensor, and how often the largest of all occurs.

    Slices must come in one order (tensor by tensor, from the start): among equal |Δ| the first counts. Coordinates
    that did not change are never among them, so that there may be fewer than K.

    Attributes:
        k: how many are kept, at least 1.
        top: largest first.
        peaks: of each tensor that changed.
        ties: by tensor, coordinates whose |Δ| equals the largest of all: in 16 bits there are many.
    """

    k: int
    top: list[Coordinate] = field(default_factory=list)
    peaks: dict[str, Coordinate] = field(default_factory=dict)
    ties: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, start: int, base: Float32, update: Floats) -> None:
        """See a slice: θ₀, float32 [n], and Δ, float64 [n], of positions start … start+n−1 of a tensor."""
        size = np.abs(update)
        at = int(size.argmax())
        largest = float(size[at])
        if largest == 0:
            return

        def coordinate(i: int) -> Coordinate:
            return Coordinate(name, start + i, float(base[i]), float(update[i]))

        self._count_ties(name, size, largest)
        if name not in self.peaks or largest > abs(self.peaks[name].update):
            self.peaks[name] = coordinate(at)
        least = abs(self.top[-1].update) if len(self.top) == self.k else 0.0
        if largest > least:
            here = [coordinate(i) for i in _first_largest(size, self.k, least)]
            # Sorting is stable: what came before stays before what is as large.
            self.top = sorted(self.top + here, key=lambda c: -abs(c.update))[: self.k]

    def _count_ties(self, name: str, size: Floats, largest: float) -> None:
        before = abs(self.top[0].update) if self.top else 0.0
        if largest > before:
            self.ties = {}
        if largest >= before:
            self.ties[name] = self.ties.get(name, 0) + int(np.count_nonzero(size == largest))


def _first_largest(size: Floats, k: int, least: float) -> list[int]:
    """Positions, rising, of the k largest values above `least`; of equal ones those that come first."""
    above = np.flatnonzero(size > least)
    if len(above) > k:
        values = size[above]
        level = np.partition(values, -k)[-k]
        sure, equal = above[values > level], above[values == level]
        above = np.sort(np.concatenate([sure, equal[: k - len(sure)]]))
    return [int(i) for i in above]


def count_by(names: Sequence[str], of: Callable[[str], str]) -> dict[str, int]:
    """How many of some tensors' names (repeated for each coordinate) `of` gives each name."""
    found: dict[str, int] = {}
    for name in names:
        found[of(name)] = found.get(of(name), 0) + 1
    return found


def single_steps(coordinates: Sequence[Coordinate], dtypes: Mapping[str, str]) -> int:
    """How many coordinates moved by one spacing of their tensor's dtype or less.

    In 16 bits a weight of size w moves by about w/256 (bfloat16) or w/2048 (float16) or not at all: where most of the
    largest changes are single steps, they say where weights are large, not where the update is.
    """
    steps = (2.0 ** int(spacing_exponents(np.array([c.base], np.float32), dtypes[c.name])[0]) for c in coordinates)
    return sum(abs(c.update) <= step for c, step in zip(coordinates, steps, strict=True))


# Expectations


class Expected(NamedTuple):
    """A count's mean and the interval that holds it with a chance of CONFIDENCE or more, by its distribution."""

    mean: float
    lower: int
    upper: int

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return self._asdict()


def by_size(sizes: Mapping[str, int], k: int) -> dict[str, Expected]:
    """Of each kind among the top k, if |Δ| are exchangeable.

    Args:
        sizes: coordinates of each kind.
        k: at most as many as all of them.
    """
    total = sum(sizes.values())
    if total == 0:
        return dict.fromkeys(sizes, Expected(0.0, 0, 0))
    return {kind: _expected(k * n / total, stats.hypergeom(total, n, k), min(k, n)) for kind, n in sizes.items()}


def by_variance(
    sizes: Mapping[str, int], traces: Mapping[str, float], of: Callable[[str], str], k: int
) -> dict[str, Expected]:
    """Of each kind among the top k, if Δ are normal with the variance trace/size in each tensor.

    Args:
        sizes: coordinates of each tensor.
        traces: Σ of variances over each tensor's coordinates, in any unit; some positive.
        of: kind of a tensor.
        k: at most as many as there are coordinates in tensors of positive trace.
    """
    n = np.array([sizes[name] for name in traces], np.float64)
    deviation = np.sqrt(np.array(list(traces.values())) / np.maximum(n, 1))
    deviation /= deviation.max()
    active = deviation > 0

    def exceeding(level: float) -> Floats:
        found = np.zeros(len(n))
        found[active] = n[active] * special.erfc(level / (math.sqrt(2) * deviation[active]))
        return found

    everything = exceeding(0.0).sum() <= k
    counts = exceeding(0.0 if everything else optimize.brentq(lambda t: exceeding(t).sum() - k, 0.0, 40.0, xtol=1e-12))
    shares: dict[str, float] = {}
    for name, share in zip(traces, counts / counts.sum(), strict=True):
        shares[of(name)] = shares.get(of(name), 0.0) + float(share)
    return {kind: _expected(k * share, stats.binom(k, min(share, 1.0)), k) for kind, share in shares.items()}


def of_layers(sizes: Mapping[str, int], of: Callable[[str], str], layers: Sequence[str]) -> dict[str, Expected]:
    """Of how many layers a kind holds the largest coordinate, if |Δ| are exchangeable within a layer.

    Args:
        sizes: coordinates of each tensor.
        of: kind of a tensor.
        layers: those that changed.
    """
    within: dict[str, dict[str, int]] = {name: {} for name in layers}
    for name, n in sizes.items():
        if layer(name) in within:
            kinds = within[layer(name)]
            kinds[of(name)] = kinds.get(of(name), 0) + n
    found = {}
    for kind in {of(name): None for name in sizes}:
        chances = [kinds.get(kind, 0) / sum(kinds.values()) for kinds in within.values()]
        found[kind] = _of_chances(chances)
    return found


def _expected(mean: float, distribution: Any, most: int) -> Expected:
    """Of a count of at most `most`; SciPy's own quantiles search the whole population, which may be billions."""
    return _of_pmf(mean, distribution.pmf(np.arange(most + 1)))


def _of_chances(chances: Sequence[float]) -> Expected:
    """A number of independent events, of different chances each."""
    pmf: NDArray[np.float64] = np.ones(1)
    for p in chances:
        pmf = np.convolve(pmf, [1 - p, p])
    return _of_pmf(sum(chances), pmf)


def _of_pmf(mean: float, pmf: NDArray[np.float64]) -> Expected:
    below, tail = np.cumsum(pmf), (1 - CONFIDENCE) / 2
    return Expected(mean, int(np.searchsorted(below, tail)), int(np.searchsorted(below, 1 - tail - 1e-12)))


def layer_peaks(peaks: Mapping[str, Coordinate]) -> dict[str, Coordinate]:
    """The largest change of each layer that changed, from those of its tensors; the first of equal ones."""
    found: dict[str, Coordinate] = {}
    for name, peak in peaks.items():
        at = layer(name)
        if at not in found or abs(peak.update) > abs(found[at].update):
            found[at] = peak
    return found
