"""Estimates with standard errors, and confidence intervals of them.

Which interval for what, by the coverage that simulation gives it (docs/methods.md, tests/test_estimators_intervals.py):

    normal           an estimate with a standard error from many terms
    student          the mean of n >= 10 values of little skew, none heaped at a boundary
    skewed           the mean of n >= 20 skewed values (projected JS over prompts)
    bounded_mean     the mean of values in [0, 1], many of them at 0 or 1 (pass@k over prompts)
    wilson           one success probability; covers 95 % on average over p
    clopper_pearson  one success probability; covers at least 95 % at every p
    hoeffding        the mean of bounded values, guaranteed at any n; wide
    crossed          the mean over prompts and over training seeds, both of them samples
    bootstrap        a smooth statistic of n >= 20 values; not for values that are nearly all equal

Arrays: any leading axes; the values of one estimate are on the last axis. NumPy float64.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from esth.errors import InputError

Float = NDArray[np.float64]

PSEUDO = 0.1
"""Weight of the 0/1 value that `bounded_mean` adds, chosen by simulated coverage."""


class Estimate(NamedTuple):
    """An estimate and its standard error, floats or arrays of one shape."""

    value: Float
    se: Float


class Interval(NamedTuple):
    """An estimate and a two-sided confidence interval, floats or arrays of one shape."""

    value: Float
    lower: Float
    upper: Float

    def rounded(self) -> list[float]:
        """[value, lower, upper] with six decimals, as result files have it; of one estimate."""
        return [round(float(x), 6) for x in self]


def mean(values: ArrayLike) -> Estimate:
    """Mean of independent values [..., n] with its standard error s/√n (ddof = 1): -> [...].

    Raises:
        InputError: fewer than 2 values.
    """
    array = _values(values)
    return Estimate(array.mean(-1), array.std(-1, ddof=1) / math.sqrt(array.shape[-1]))


def normal(estimate: Estimate, confidence: float = 0.95) -> Interval:
    """value ± z·se."""
    z = stats.norm.isf(_tail(confidence))
    value, se = np.asarray(estimate.value, dtype=np.float64), np.asarray(estimate.se, dtype=np.float64)
    return Interval(value, value - z * se, value + z * se)


def student(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean of independent values [..., n]: -> [...]."""
    array = _values(values)
    value, se = mean(array)
    t = stats.t.isf(_tail(confidence), array.shape[-1] - 1)
    return Interval(value, value - t * se, value + t * se)


def skewed(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Interval of the mean of independent skewed values [..., n] by Hall's (1992) cubic transformation: -> [...].

    With few values of positive skew the mean and s are small together, and Student's interval ends too low. Hall's
    monotone transformation takes the first-order effect of the sample skewness out of the studentised mean; Student's
    quantiles stand in for the normal ones.

    Raises:
        InputError: fewer than 3 values.
    """
    array = _values(values)
    n = array.shape[-1]
    if n < 3:
        raise InputError("a skewness needs at least 3 values")
    value, se = mean(array)
    alike = np.ptp(array, axis=-1, keepdims=True) == 0
    skewness = stats.skew(np.where(alike, np.arange(n), array), axis=-1, bias=False)
    t = stats.t.isf(_tail(confidence), n - 1)

    def untransformed(x: float) -> Float:
        # Its limit at skewness 0 is x; the closed form divides by the skewness.
        small = np.abs(skewness) < 1e-6
        gamma = np.where(small, 1.0, skewness) / math.sqrt(n)
        return np.where(small, x, 3.0 / gamma * (np.cbrt(1.0 + gamma * (x - gamma / 6.0)) - 1.0))

    return Interval(value, value - se * untransformed(t), value - se * untransformed(-t))


def crossed(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of values [S, X] of S seeds on the same X prompts, for other seeds and other prompts: -> scalar.

    Two random effects and their interaction: the variance of the mean is s²(seed means)/S + s²(prompt means)/X less the
    interaction's share in both, MS/(SX), and at least the larger of the two. Student's quantile at Satterthwaite's
    degrees of freedom: with few seeds that differ much it is that of S − 1. Simulated coverage of 95 % intervals, 60
    prompts: 93–96 % with 5 or 10 seeds; 91–96 % with 3 and 87–97 % with 2, low where seeds differ more than prompts.

    Raises:
        InputError: fewer than 2 seeds or 2 prompts.
    """
    array = _values(values)
    if array.ndim != 2 or array.shape[0] < 2:
        raise InputError(f"values must be [at least 2 seeds, prompts], not {list(array.shape)}")
    n_seeds, n_prompts = array.shape
    by_seed, by_prompt = array.mean(1), array.mean(0)
    parts = by_seed.var(ddof=1) / n_seeds, by_prompt.var(ddof=1) / n_prompts
    both = interaction(array) / array.size
    variance = max(sum(parts) - both, *parts)
    spread = parts[0] ** 2 / (n_seeds - 1) + parts[1] ** 2 / (n_prompts - 1)
    freedom = max(sum(parts) ** 2 / spread, n_seeds - 1) if spread > 0 else n_seeds - 1
    half = stats.t.isf(_tail(confidence), freedom) * math.sqrt(variance)
    return Interval(array.mean(), array.mean() - half, array.mean() + half)


def interaction(table: Float) -> float:
    """Mean square of what neither row nor column explains: [S, X], at least 2 of both -> scalar."""
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    return float(np.sum(rest**2) / ((table.shape[0] - 1) * (table.shape[1] - 1)))


def wilson(successes: ArrayLike, n: ArrayLike, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a success probability from `successes` in `n` tries; broadcasts.

    `n` may be fractional: an effective number of tries.
    """
    return _score_interval(successes, n, stats.norm.isf(_tail(confidence)))


def _score_interval(successes: ArrayLike, n: ArrayLike, z: float) -> Interval:
    """Wilson's interval of `z` standard errors."""
    c, n = _counts(successes, n)
    value, shrunk = c / n, (c + 0.5 * z * z) / (n + z * z)
    half = z / (n + z * z) * np.sqrt(c * (1.0 - value) + 0.25 * z * z)
    # At c = 0 and c = n the bound is exact; rounding must not move it off 0 or 1.
    return Interval(value, np.where(c == 0, 0.0, shrunk - half), np.where(c == n, 1.0, shrunk + half))


def clopper_pearson(successes: ArrayLike, n: ArrayLike, confidence: float = 0.95) -> Interval:
    """Exact interval of a success probability: covers at least `confidence` at every p; broadcasts."""
    c, n = _counts(successes, n)
    tail = _tail(confidence)
    # The parameters at the ends are replaced: there the bound is 0 or 1 by definition.
    lower = np.where(c > 0, special.betaincinv(np.where(c > 0, c, 1.0), n - c + 1.0, tail), 0.0)
    upper = np.where(c < n, special.betainccinv(c + 1.0, np.where(c < n, n - c, 1.0), tail), 1.0)
    return Interval(c / n, lower, upper)


def bounded_mean(values: ArrayLike, confidence: float = 0.95, *, pseudo: float = PSEUDO) -> Interval:
    """Mean of independent values in [0, 1], [..., n] -> [...]: Wilson's interval with a design effect.

    A variable in [0, 1] of mean μ has a variance of at most μ(1−μ), that of a success. The measured share r of that
    bound says how many tries the n values are worth, n/r, and Student's quantile that s² is itself estimated. For 0/1
    values r = 1 and this is Wilson's interval; for values well inside (0, 1) it is close to Student's. A share `pseudo`
    of one 0/1 value is added to both sides of r, so that values that are all alike, of which s² tells nothing, are
    worth n tries at the boundary. Simulated coverage of means of pass@1 and pass@16 over 30 to 300 prompts of
    Beta-distributed difficulty: 93.8–97.8 %, up to 100 % where the mean lies within 0.002 of 0 or 1 (Student's and the
    bootstrap's: down to 19 %); over 10 prompts 95.9–99 %.

    Raises:
        InputError: fewer than 2 values, or one outside [0, 1].
    """
    array = _values(values)
    if not np.all((array >= 0) & (array <= 1)):
        raise InputError("bounded_mean needs values in [0, 1]")
    n = array.shape[-1]
    value = array.mean(-1)
    bound, spread = n * value * (1.0 - value), n * array.var(-1)
    worth = n * (bound + pseudo) / (spread + pseudo)
    interval = _score_interval(value * worth, worth, stats.t.isf(_tail(confidence), n - 1))
    return Interval(value, interval.lower, interval.upper)


def hoeffding(value: ArrayLike, n: ArrayLike, low: float, high: float, confidence: float = 0.95) -> Interval:
    """Guaranteed interval of the mean of n independent values in [low, high], cut to that range; broadcasts.

    For Σ wᵢ meanᵢ of m values in each of N strata, n is m/Σwᵢ² (`stratified_size`).
    """
    if not low < high:
        raise InputError(f"hoeffding needs low < high, not [{low}, {high}]")
    mean_value, size = np.asarray(value, dtype=np.float64), np.asarray(n, dtype=np.float64)
    half = (high - low) * np.sqrt(-np.log(_tail(confidence)) / (2.0 * size))
    return Interval(mean_value, np.maximum(mean_value - half, low), np.minimum(mean_value + half, high))


def stratified_size(m: int, weights: ArrayLike) -> Float:
    """m/Σwᵢ²: the number of equal draws that Σ wᵢ meanᵢ with m draws a stratum is worth; weights [..., N] -> [...]."""
    w = np.asarray(weights, dtype=np.float64)
    return m / np.sum(w * w, axis=-1)


def bootstrap(
    values: ArrayLike, rng: np.random.Generator, confidence: float = 0.95, *, resamples: int = 2000
) -> Interval:
    """Bias-corrected and accelerated bootstrap of the mean of n independent values [n] (`scipy.stats.bootstrap`).

    Values that are all equal give the point interval at their mean: use `bounded_mean` where that can happen.
    """
    array = _values(values)
    if array.ndim != 1:
        raise InputError("bootstrap takes one axis of values")
    value = array.mean()
    if np.ptp(array) == 0:
        return Interval(value, value, value)
    result = stats.bootstrap(
        (array,), np.mean, confidence_level=confidence, n_resamples=resamples, method="BCa", rng=rng, vectorized=True
    )
    return Interval(value, *result.confidence_interval)


def _tail(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence} must lie in (0, 1)")
    return 0.5 * (1.0 - confidence)


def _values(values: ArrayLike) -> Float:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] < 2:
        raise InputError("a standard error needs at least 2 values on the last axis")
    if not np.all(np.isfinite(array)):
        raise InputError("values must be finite numbers")
    return array


def _counts(successes: ArrayLike, n: ArrayLike) -> tuple[Float, Float]:
    c, tries = np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64)
    if not np.all(tries > 0) or not np.all((c >= 0) & (c <= tries)):
        raise InputError("successes must lie in 0..n, with n > 0 tries")
    return np.broadcast_arrays(c, tries)[0] + 0.0, np.broadcast_arrays(c, tries)[1] + 0.0
