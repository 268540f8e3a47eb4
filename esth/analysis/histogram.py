"""Quantiles of magnitudes that are seen once and not kept: counts in bins as fine as their values, at any size.

A bin is the top 19 bits of a float64: 128 bins between powers of two, each at most 1/128 of its lower edge wide. A
quantile is told by the middle of its bin, within 1/256 (0.4 %) of the order statistic it stands for; zeros are counted
apart and the largest value is kept exactly. Counts of different slices add.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

RESOLUTION = 1 / 256
"""Largest relative error of a quantile."""

_SHIFT = 45  # 52 − 7: seven bits of the significand stay
# Differences of float32 numbers are 0 or between these powers of two.
_FIRST, _END = (int(np.float64(2.0**e).view(np.int64)) >> _SHIFT for e in (-149, 129))


@dataclass
class Histogram:
    """Magnitudes of differences of weights, counted.

    Attributes:
        zeros: values that are exactly 0.
        counts: of the others, by bin.
        largest: the largest value, exactly; 0 if there is none.
    """

    zeros: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_END - _FIRST, np.int64), repr=False)
    largest: float = 0.0

    @property
    def size(self) -> int:
        """How many values were counted."""
        return self.zeros + int(self.counts.sum())

    def add(self, magnitudes: NDArray[np.float64]) -> None:
        """Count values: float64 [n], each 0 or in [2⁻¹⁴⁹, 2¹²⁹)."""
        bins = (magnitudes.view(np.int64) >> _SHIFT) - _FIRST
        np.maximum(bins, -1, out=bins)
        found = np.bincount(bins + 1, minlength=len(self.counts) + 1)
        self.zeros += int(found[0])
        self.counts += found[1:]
        self.largest = max(self.largest, float(magnitudes.max(initial=0.0)))

    def __add__(self, other: "Histogram") -> "Histogram":
        """Of the values of both."""
        return Histogram(self.zeros + other.zeros, self.counts + other.counts, max(self.largest, other.largest))

    def bracket(self, q: float) -> tuple[float, float]:
        """Two numbers between which the smallest value lies that a share `q` of all values does not exceed.

        NaN if there are no values; (0, 0) where that value is 0.
        """
        if self.size == 0:
            return math.nan, math.nan
        rank = max(1, math.ceil(q * self.size))
        if rank <= self.zeros:
            return 0.0, 0.0
        b = int(np.searchsorted(self.zeros + np.cumsum(self.counts), rank))
        lower, upper = (np.array([b, b + 1]) + _FIRST << _SHIFT).view(np.float64)
        return float(lower), min(float(upper), self.largest)

    def quantile(self, q: float) -> float:
        """The middle of `bracket`: within RESOLUTION of the order statistic; the largest value exactly at q = 1."""
        lower, upper = self.bracket(q)
        return self.largest if q >= 1 else (lower + upper) / 2
