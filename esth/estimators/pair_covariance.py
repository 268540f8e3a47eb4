"""Covariances of evaluations within antithetic pairs and between them, and the even and odd parts of success.

y[x, k, ±, j] is the outcome of response j of member θ ± σεₖ to prompt x; every member sees the same prompts. An
evaluation is one y, on a prompt that all members share. With g the mean over members, o the odd and e the even part of
a member's success in its direction, and response noise of variance ν (κ between the two of a pair, 0 unless they share
their random numbers)

    y = g_x ± o_xk + e_xk + noise,   V = C′ + O + E + ν,   C = C′ + E − O + κ,   C′ = Var g,

so T5's two-point estimate wins, C > C′, where the even part and shared noise vary more than the odd part. All are
U-statistics: products of different pairs, or of different prompts, have no noise in common, and nothing is plugged in.
Standard errors: two-way jackknife, prompts and pairs both being samples. O(X·K) evaluations of an O(size of y) sum.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esth.errors import InputError
from esth.estimators.intervals import Estimate, Float

Kept = NDArray[np.intp]


class PairCovariance(NamedTuple):
    """V, C, C′, and the differences that T5 is about: `one_point` = V − C′, `two_point` = V − C, `wins` = C − C′."""

    variance: Estimate
    within: Estimate
    across: Estimate
    one_point: Estimate
    two_point: Estimate
    wins: Estimate


def pair_covariance(y: ArrayLike, *, shared: bool = False) -> PairCovariance:
    """V, C, C′ of single evaluations: y [X, K, 2, m] -> floats.

    Args:
        y: outcomes; m = 1 for a fitness without response noise.
        shared: response j of both members of a pair is drawn with the same random numbers, so C is that of equal j.

    Raises:
        InputError: fewer than 3 prompts or pairs (the jackknife leaves one out), values that are not finite.
    """
    values = _values(y, 4, 3, 3)
    values = values - values.mean()  # every statistic is of differences: smaller numbers round less

    members = values.mean(axis=3)
    squares = np.mean(values**2, axis=(2, 3))
    products = np.mean(values[:, :, 0] * values[:, :, 1], axis=2) if shared else members[:, :, 0] * members[:, :, 1]
    pairs = members.mean(axis=2)

    def statistic(x: Kept, k: Kept) -> Float:
        square, product, pair = (table[np.ix_(x, k)] for table in (squares, products, pairs))
        v, c, across, base = square.mean(), product.mean(), _between_pairs(pair).mean(), _mean_square(pair)
        return np.array([v - base, c - base, across - base, v - across, v - c, c - across])

    value, se = two_way_jackknife(statistic, *values.shape[:2])
    return PairCovariance(*(Estimate(v, s) for v, s in zip(value, se, strict=True)))


def unlike(f: ArrayLike) -> tuple[Float, Float]:
    """(V − C′, V − C) of each prompt: evaluations [X, K, 2] -> [X], [X].

    ½E(f_i − f_j)² of members of different pairs, and of the two of a pair. For the fitness of a whole batch give its
    mean over the prompts as the only one.
    """
    values = _values(f, 3, 1, 2)
    values = values - values.mean(axis=(1, 2), keepdims=True)
    across = np.mean(values**2, axis=(1, 2)) - _between_pairs(values.mean(axis=2))
    return across, 0.5 * np.mean((values[:, :, 0] - values[:, :, 1]) ** 2, axis=1)


class NoiseCovariance(NamedTuple):
    """ν, κ and κ/ν, the correlation c of the noise in T5's last form; 0 where there is no noise."""

    variance: Estimate
    within: Estimate
    correlation: Estimate


def noise_covariance(y: ArrayLike) -> NoiseCovariance:
    """Of responses that share random numbers within a pair (same j): y [..., X, K, 2, m] -> [...].

    Raises:
        InputError: as `pair_covariance`, or m < 2.
    """
    noise = _NoiseMoments(y)
    value, se = two_way_jackknife(noise, *noise.table)
    return NoiseCovariance(*(Estimate(v, s) for v, s in zip(value, se, strict=True)))


def correlation_slope(y: ArrayLike, at: ArrayLike) -> Estimate:
    """Least-squares slope of κ/ν in `at` [L], of responses y [L, X, K, 2, m] cut at L lengths: -> floats.

    Raises:
        InputError: as `noise_covariance`, or fewer than two different values of `at`.
    """
    noise, lengths = _NoiseMoments(y), np.asarray(at, dtype=np.float64)
    centred = lengths - lengths.mean()
    if not np.any(centred):
        raise InputError("a slope needs two different lengths")
    weights = centred / np.sum(centred**2)
    return two_way_jackknife(lambda x, k: np.asarray(weights @ noise(x, k)[2]), *noise.table)


class _NoiseMoments:
    """ν, κ and κ/ν of the rows and columns that are kept, stacked: [3, ...]."""

    def __init__(self, y: ArrayLike) -> None:
        values = _values(y, 4, 3, 3)
        m = values.shape[-1]
        if m < 2:
            raise InputError("response noise shows only between responses: m >= 2 are needed")
        centred = values - values.mean(axis=-1, keepdims=True)
        self.square = np.sum(centred**2, axis=(-2, -1)) / (2 * (m - 1))
        self.product = np.sum(centred[..., 0, :] * centred[..., 1, :], axis=-1) / (m - 1)
        self.table = values.shape[-4:-2]

    def __call__(self, x: Kept, k: Kept) -> Float:
        rows, columns = np.ix_(x, k)
        noise, covariance = (a[..., rows, columns].mean(axis=(-2, -1)) for a in (self.square, self.product))
        return np.stack([noise, covariance, covariance / np.where(noise > 0, noise, 1.0)])


def parity_variances(f: ArrayLike) -> tuple[Estimate, Estimate]:
    """(odd, even): variance over directions of the two parts of success averaged over prompts: [X, K, 2] -> floats.

    To leading order σ²‖∇p‖² and Var R of P4.1, for p the expected success on a prompt. Products of different prompts
    only: response noise, and what directions do to single prompts, drop out.

    Raises:
        InputError: as `pair_covariance`.
    """
    values = _values(f, 3, 3, 3)
    odd, even = 0.5 * (values[:, :, 0] - values[:, :, 1]), 0.5 * (values[:, :, 0] + values[:, :, 1])

    def statistic(x: Kept, k: Kept) -> Float:
        o, e = odd[np.ix_(x, k)], even[np.ix_(x, k)]
        e = e - e.mean(axis=1, keepdims=True)
        # Which member of a pair is the first is arbitrary: the odd part has mean 0.
        return np.array([np.mean(_between_prompts(o)), np.sum(_between_prompts(e)) / (len(k) - 1)])

    value, se = two_way_jackknife(statistic, *values.shape[:2])
    return Estimate(value[0], se[0]), Estimate(value[1], se[1])


def two_way_jackknife(statistic: Callable[[Kept, Kept], Float], prompts: int, pairs: int) -> Estimate:
    """A statistic of a table whose rows and columns are both samples, with its standard error.

    Leaving out rows, and columns, each count what single cells add: the interaction of the pseudo-values
    XK·T − (X−1)K·T₍₋ₓ₎ − X(K−1)·T₍₋ₖ₎ + (X−1)(K−1)·T₍₋ₓ,₋ₖ₎, which are the cells where T is their mean, is taken off
    once. Never less than either one-way error. A single row (or column) is taken as fixed.

    Args:
        statistic: (rows kept, columns kept) -> [...].
        prompts: rows X.
        pairs: columns K.
    """
    x, k = np.arange(prompts), np.arange(pairs)
    value = np.asarray(statistic(x, k), dtype=np.float64)
    zero = np.zeros((1, *value.shape))
    by_row = np.stack([statistic(np.delete(x, i), k) for i in x]) if prompts > 1 else None
    by_column = np.stack([statistic(x, np.delete(k, j)) for j in k]) if pairs > 1 else None
    rows, columns = (
        (len(t) - 1) ** 2 / len(t) * np.var(t, axis=0, ddof=1) if t is not None else zero[0]
        for t in (by_row, by_column)
    )
    variance = rows + columns
    if by_row is not None and by_column is not None:
        both = np.stack([[statistic(np.delete(x, i), np.delete(k, j)) for j in k] for i in x])
        n, m = prompts, pairs
        cells = n * m * value - (n - 1) * m * by_row[:, None] - n * (m - 1) * by_column[None] + (n - 1) * (m - 1) * both
        cells = cells - cells.mean(axis=0) - cells.mean(axis=1, keepdims=True) + cells.mean(axis=(0, 1))
        interaction = np.sum(cells**2, axis=(0, 1)) / ((n - 1) * (m - 1) * n * m)
        variance = np.maximum(variance - interaction, np.maximum(rows, columns))
    return Estimate(value, np.sqrt(variance))


def prompt_means(values: Callable[[Kept], Float], prompts: int, pairs: int) -> Estimate:
    """`two_way_jackknife` of a mean over prompts of values that the pairs kept make of each prompt: -> [X, ...]."""
    known: dict[bytes, Float] = {}

    def statistic(x: Kept, k: Kept) -> Float:
        if k.tobytes() not in known:
            known[k.tobytes()] = values(k)
        return np.asarray(known[k.tobytes()][x].mean(axis=0))

    return two_way_jackknife(statistic, prompts, pairs)


def _between_pairs(pair: Float) -> Float:
    """Mean product of different pairs on one prompt: [X, K] -> [X]."""
    k = pair.shape[1]
    return (pair.sum(axis=1) ** 2 - np.sum(pair**2, axis=1)) / (k * (k - 1))


def _between_prompts(part: Float) -> Float:
    """Mean product of different prompts under one pair: [X, K] -> [K]."""
    n = part.shape[0]
    return (part.sum(axis=0) ** 2 - np.sum(part**2, axis=0)) / (n * (n - 1))


def _mean_square(pair: Float) -> Float:
    """(E y)², the mean product of different pairs on different prompts: [X, K] -> scalar."""
    n, k = pair.shape
    rows, columns = np.sum(pair.sum(axis=1) ** 2), np.sum(pair.sum(axis=0) ** 2)
    return (pair.sum() ** 2 - rows - columns + np.sum(pair**2)) / (n * (n - 1) * k * (k - 1))


def _values(values: ArrayLike, axes: int, prompts: int, pairs: int) -> Float:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < axes or array.shape[array.ndim - axes + 2] != 2:
        raise InputError(f"values of pairs have axes [prompts, pairs, 2, …], not shape {array.shape}")
    x, k = array.shape[array.ndim - axes : array.ndim - axes + 2]
    if x < prompts or k < pairs:
        raise InputError(f"covariances of pairs need {prompts} prompts and {pairs} pairs, not {x} and {k}")
    if not np.all(np.isfinite(array)):
        raise InputError("values must be finite numbers")
    return array
