"""Bounds of L3: the gain bracket, the range of the linear tilt, monotone softmax tilts, the price of weighting."""

from decimal import Decimal

import numpy as np

from esth.attack import exact as ex
from esth.attack.bound import Bound, Exact, Instances, Setting, Sides
from esth.attack.spaces import Tilted
from esth.coverage import mean_success
from esth.divergence import log_softmax
from esth.lemmas.reward_weighting import bracket, coverage_gain, spread, weighting_price
from esth.weighting import effective_size, price_gain, tilt_range, zscore


def gain_lower(setting: Setting, x: Instances) -> Sides:
    p, w, k = x["success"], x["weights"], setting["k"]
    return Sides(bracket(w, p, k).lower, coverage_gain(w, p, k), float(k))


def gain_upper(setting: Setting, x: Instances) -> Sides:
    p, w, k = x["success"], x["weights"], setting["k"]
    return Sides(coverage_gain(w, p, k), bracket(w, p, k).upper, float(k))


def range_upper(setting: Setting, x: Instances) -> Sides:
    high = tilt_range(x["fitness"])[1]
    return Sides(np.full(len(high), 1.0 / np.sqrt(max(setting["n"] - 1, 1))), high)


def range_lower(setting: Setting, x: Instances) -> Sides:
    low = tilt_range(x["fitness"])[0]
    return Sides(np.full(len(low), 1.0 / np.sqrt(max(setting["n"] - 1, 1))), -low)


def tilt_gain(setting: Setting, x: Instances) -> Sides:
    """Gain per β of the linear tilt, signed weights allowed: ρ(f,p)·sd(p) <= sd(p)."""
    z, p, n = zscore(x["fitness"]), x["success"], setting["n"]
    # The square of a spread below 1e-150 underflows.
    return Sides(np.abs(price_gain((1.0 + z) / n, p)), spread(p), np.max(p, axis=-1) + 1e-138)


def monotone(setting: Setting, x: Instances) -> Sides:
    """p̄_w at the smaller and at the larger β, for fitness and success in the same order."""
    f, p = np.sort(x["fitness"], axis=-1), np.sort(x["success"], axis=-1)
    low, high = (mean_success(p, np.exp(log_softmax(beta[:, None] * f))) for beta in x["beta"].T)
    # Weights carry the rounding of their exponents.
    return Sides(low, high, np.max(np.abs(x["beta"]), axis=-1) * np.max(np.abs(f), axis=-1) * high)


def price(setting: Setting, x: Instances) -> Sides:
    w = x["weights"]
    return Sides(weighting_price(w), np.full(len(w), 1.0 - 1.0 / setting["n"]), 1.0)


def members(setting: Setting, x: Instances) -> Sides:
    w = x["weights"]
    return Sides(np.ones(len(w)), effective_size(w))


def _exact_gain(setting: Setting, x: Exact) -> tuple[Decimal, Decimal, Decimal]:
    """Lower side, gain at k tries and upper side of L3.1."""
    p, k = x["success"], setting["k"]
    mean, weighted = ex.dot(ex.uniform(len(p)), p), ex.dot(ex.normalised(x["weights"]), p)
    gain = ex.at_least_one(weighted, k) - ex.at_least_one(mean, k)
    slopes = [k * ex.power(1 - q, Decimal(k - 1)) * (weighted - mean) for q in (mean, weighted)]
    return min(slopes), gain, max(slopes)


def exact_gain_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    lower, gain, _ = _exact_gain(setting, x)
    return lower, gain


def exact_gain_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    _, gain, upper = _exact_gain(setting, x)
    return gain, upper


def _exact_range(setting: Setting, z: list[Decimal]) -> tuple[Decimal, Decimal]:
    """1/√(N−1) and the largest β with 1 + βz >= 0."""
    least = min(z)
    return 1 / Decimal(max(setting["n"] - 1, 1)).sqrt(), (ex.INFINITY if least >= 0 else -1 / least)


def exact_range_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    return _exact_range(setting, ex.zscore(x["fitness"]))


def exact_range_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    return _exact_range(setting, [-z for z in ex.zscore(x["fitness"])])


def exact_tilt_gain(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    z, p = ex.zscore(x["fitness"]), x["success"]
    w = ex.uniform(len(p))
    return abs(ex.covariance(w, z, p)), ex.moment(w, p, 2).sqrt()


def exact_monotone(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    f, p = sorted(x["fitness"]), sorted(x["success"])
    low, high = (ex.dot(ex.softmax([beta * value for value in f]), p) for beta in x["beta"])
    return low, high


def exact_price(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    w = ex.normalised(x["weights"])
    return 1 - ex.dot(w, w), 1 - ex.ONE / len(w)


def exact_members(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    w = ex.normalised(x["weights"])
    return ex.ONE, 1 / ex.dot(w, w)


_SPACE = Tilted()

BOUNDS = (
    Bound("gain lower", "L3.1", "K(1−b)^{K−1}(p̄_w − p̄) <= gain at K", _SPACE, gain_lower, exact_gain_lower, "smaller"),
    Bound("gain upper", "L3.1", "gain at K <= K(1−a)^{K−1}(p̄_w − p̄)", _SPACE, gain_upper, exact_gain_upper, "larger"),
    Bound("range upper", "L3.2", "1/√(N−1) <= 1/max(−z)", _SPACE, range_upper, exact_range_upper, "smaller"),
    Bound("range lower", "L3.2", "1/√(N−1) <= 1/max z", _SPACE, range_lower, exact_range_lower, "smaller"),
    Bound("tilt gain", "L3.2", "|gain of the linear tilt| <= |β|·sd(p)", _SPACE, tilt_gain, exact_tilt_gain, "larger"),
    Bound("monotone", "L3.3", "f, p ordered alike: p̄_w(β) <= p̄_w(β′)", _SPACE, monotone, exact_monotone, "smaller"),
    Bound("price", "L3.6", "1 − 1/N_eff <= 1 − 1/N", _SPACE, price, exact_price, "larger"),
    Bound("members", "L3.6", "1 <= N_eff", _SPACE, members, exact_members, "smaller"),
)
