"""Bounds of T5 for Rademacher noise, where ‖ε‖² = d and every expectation is a finite sum.

With ĝ = E ε f/σ the gradient of the smoothed objective, the variances of all coordinates sum to exactly

    two-point   d(V−C)/(σ²N) − 2‖ĝ‖²/N,
    one-point   dV/(σ²(N−1)) − (N−2)‖ĝ‖²/(N(N−1)),

and σ²‖ĝ‖² <= (V−C)/2 (Bessel's inequality for the odd part of f). This turns the ≈ of T5, "up to O(1/d)", into
bounds that hold at any σ, for any objective, and proves one half of "two-point wins iff C > C′".
"""

import itertools
from decimal import Decimal
from functools import cache

import numpy as np

from esth.attack import exact as ex
from esth.attack.bound import Bound, Exact, Float, Instances, Setting, Sides
from esth.attack.spaces import Cubes
from esth.lemmas.two_point import one_point_estimate, predict, two_point_estimate


@cache
def _corners(d: int) -> Float:
    """The 2^d corners of the cube, each after its opposite's mirror: corner i is minus corner 2^d − 1 − i."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=d)))


@cache
def _populations(d: int, n: int, paired: bool) -> tuple[tuple[int, ...], ...]:
    """Every population of n members as indices of corners; `paired`: members 2k and 2k+1 opposite."""
    last = 2**d - 1
    if not paired:
        return tuple(itertools.product(range(2**d), repeat=n))
    firsts = itertools.product(range(2**d), repeat=n // 2)
    return tuple(tuple(index for first in choice for index in (first, last - first)) for choice in firsts)


def _moments(x: Instances) -> tuple[Float, Float]:
    """V and C."""
    f = x["values"] - np.mean(x["values"], axis=-1, keepdims=True)
    return np.mean(f * f, axis=-1), np.mean(f * f[:, ::-1], axis=-1)


def _paired(setting: Setting, x: Instances) -> Float:
    return _total_variance(setting, x, paired=True)


def _single(setting: Setting, x: Instances) -> Float:
    return _total_variance(setting, x, paired=False)


def _total_variance(setting: Setting, x: Instances, *, paired: bool) -> Float:
    """Summed over coordinates, with every population equally likely."""
    index = np.array(_populations(setting["d"], setting["n"], paired))
    estimator = two_point_estimate if paired else one_point_estimate
    # At σ = 1: the estimate is proportional to 1/σ.
    estimates = estimator(x["values"][:, index], _corners(setting["d"])[index], 1.0)
    centred = estimates - np.mean(estimates, axis=1, keepdims=True)
    return np.sum(np.mean(centred * centred, axis=1), axis=-1) / x["sigma"] ** 2


def _rounding(setting: Setting, x: Instances) -> Float:
    return setting["d"] * np.max(x["values"] ** 2, axis=-1) / x["sigma"] ** 2


def correlation(setting: Setting, x: Instances) -> Sides:
    variance, covariance = x.once(_moments)
    return Sides(np.abs(covariance), variance, np.max(x["values"] ** 2, axis=-1))


def _paired_prediction(setting: Setting, x: Instances) -> Float:
    variance, covariance = x.once(_moments)
    # `predict` is for σ = 1 here: σ differs between instances.
    return np.maximum(predict(variance, covariance, 1.0, setting["n"]), 0.0) / x["sigma"] ** 2


def paired_upper(setting: Setting, x: Instances) -> Sides:
    total = x.once(_paired, setting)
    return Sides(total, setting["d"] * _paired_prediction(setting, x), _rounding(setting, x))


def paired_lower(setting: Setting, x: Instances) -> Sides:
    total = x.once(_paired, setting)
    return Sides((setting["d"] - 1) * _paired_prediction(setting, x), total, _rounding(setting, x))


def single_upper(setting: Setting, x: Instances) -> Sides:
    d, n, (variance, _) = setting["d"], setting["n"], _moments(x)
    upper = d * predict(variance, 0.0, 1.0, n - 1) / x["sigma"] ** 2
    return Sides(x.once(_single, setting), upper, _rounding(setting, x))


def single_lower(setting: Setting, x: Instances) -> Sides:
    d, n, (variance, _) = setting["d"], setting["n"], _moments(x)
    lower = (d - (n - 2) / n) * predict(variance, 0.0, 1.0, n - 1) / x["sigma"] ** 2
    return Sides(lower, _total_variance(setting, x, paired=False), _rounding(setting, x))


def paired_wins(setting: Setting, x: Instances) -> Sides:
    n, (_, covariance) = setting["n"], _moments(x)
    wins = covariance >= 0
    paired = n / (n - 1) * x.once(_paired, setting)
    single = x.once(_single, setting)
    return Sides(np.where(wins, paired, 0.0), np.where(wins, single, 0.0), _rounding(setting, x))


def _exact_moments(x: Exact) -> tuple[Decimal, Decimal]:
    f = x["values"]
    w = ex.uniform(len(f))
    return ex.moment(w, f, 2), ex.covariance(w, f, f[::-1])


def _exact_total(setting: Setting, x: Exact, *, paired: bool) -> Decimal:
    d, n, f = setting["d"], setting["n"], x["values"]
    corners = [[Decimal(int(c)) for c in row] for row in _corners(d)]
    estimates: list[list[Decimal]] = []
    for index in _populations(d, n, paired):
        mean = sum((f[i] for i in index), ex.ZERO) / n
        # Σ fᵢεᵢ/N of pairs is the two-point estimate; the mean baseline costs the one-point estimate one of its N.
        coefficients = [f[i] / n if paired else (f[i] - mean) / (n - 1) for i in index]
        estimates.append([ex.dot(coefficients, [corners[i][axis] for i in index]) for axis in range(d)])
    w = ex.uniform(len(estimates))
    return sum((ex.moment(w, column, 2) for column in zip(*estimates, strict=True)), ex.ZERO) / x["sigma"] ** 2


def exact_correlation(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    variance, covariance = _exact_moments(x)
    return abs(covariance), variance


def _exact_prediction(setting: Setting, x: Exact) -> Decimal:
    variance, covariance = _exact_moments(x)
    return (variance - covariance) / (x["sigma"] ** 2 * setting["n"])


def exact_paired_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    return _exact_total(setting, x, paired=True), setting["d"] * _exact_prediction(setting, x)


def exact_paired_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    return (setting["d"] - 1) * _exact_prediction(setting, x), _exact_total(setting, x, paired=True)


def exact_single_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    d, n, (variance, _) = setting["d"], setting["n"], _exact_moments(x)
    return _exact_total(setting, x, paired=False), d * variance / (x["sigma"] ** 2 * (n - 1))


def exact_single_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    d, n, (variance, _) = setting["d"], setting["n"], _exact_moments(x)
    lower = (d - Decimal(n - 2) / n) * variance / (x["sigma"] ** 2 * (n - 1))
    return lower, _exact_total(setting, x, paired=False)


def exact_paired_wins(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    n, (_, covariance) = setting["n"], _exact_moments(x)
    if covariance < 0:
        return ex.ZERO, ex.ZERO
    return Decimal(n) / (n - 1) * _exact_total(setting, x, paired=True), _exact_total(setting, x, paired=False)


_SPACE = Cubes()

BOUNDS = (
    Bound("correlation", "T5", "|C| <= V", _SPACE, correlation, exact_correlation, "larger"),
    Bound(
        "two-point upper", "T5", "Σ Var two-point <= d(V−C)/(σ²N)",
        _SPACE, paired_upper, exact_paired_upper, "larger",
    ),
    Bound(
        "two-point lower", "T5", "(d−1)(V−C)/(σ²N) <= Σ Var two-point",
        _SPACE, paired_lower, exact_paired_lower, "smaller",
    ),
    Bound(
        "one-point upper", "T5", "Σ Var one-point <= dV/(σ²(N−1))",
        _SPACE, single_upper, exact_single_upper, "larger",
    ),
    Bound(
        "one-point lower", "T5", "(d−(N−2)/N)V/(σ²(N−1)) <= Σ Var one-point",
        _SPACE, single_lower, exact_single_lower, "smaller",
    ),
    Bound(
        "two-point wins", "T5", "C >= 0: N/(N−1)·Σ Var two-point <= Σ Var one-point",
        _SPACE, paired_wins, exact_paired_wins, "smaller",
    ),
)  # fmt: skip
