"""Sizes from signed and squared estimates: |x| and √v without the share that noise adds.

The absolute value of a noisy estimate is too large on average, and a variance estimated without bias can be negative.
Values and standard errors: floats or arrays of one shape.
"""

import numpy as np

from esth.check import Z
from esth.estimators.intervals import Estimate


def magnitude(estimate: Estimate) -> Estimate:
    """|x| ≈ √max(0, x̂² − se²), since E x̂² = x² + se²; the error reaches to the far end of x̂'s interval."""
    value, se = np.abs(np.asarray(estimate.value, dtype=np.float64)), np.asarray(estimate.se, dtype=np.float64)
    size = np.sqrt(np.maximum(value**2 - se**2, 0.0))
    return Estimate(size, se + (value - size) / Z)


def root(estimate: Estimate) -> Estimate:
    """√max(0, v) for an unbiased estimate of v >= 0; the error is the larger half of the interval's image, over Z."""
    value, half = np.asarray(estimate.value, dtype=np.float64), Z * np.asarray(estimate.se, dtype=np.float64)
    middle, low, high = (np.sqrt(np.maximum(v, 0.0)) for v in (value, value - half, value + half))
    return Estimate(middle, np.maximum(middle - low, high - middle) / Z)
