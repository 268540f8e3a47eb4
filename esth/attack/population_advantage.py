"""Bounds of L2: the population against its mixture, the odds bracket, subsets of members, more responses a member."""

from decimal import Decimal

import numpy as np

from esth.attack import exact as ex
from esth.attack.bound import EPS, Bound, Exact, Float, Instances, Setting, Sides
from esth.attack.spaces import Successes
from esth.coverage import (
    at_least_one,
    log_failure_gap,
    mean_success,
    mixture_success,
    odds,
    population_success,
    subset_success,
)
from esth.lemmas.population_advantage import (
    advantage,
    bracket,
    gap_bracket,
    member_subset_success,
    mixture_members_success,
    pooled_subset_success,
    smoothed_population_success,
)

# The population against its mixture


def sign(setting: Setting, x: Instances) -> Sides:
    p = x["success"]
    return Sides(mixture_success(p), population_success(p), 1e-2)


def weighted_sign(setting: Setting, x: Instances) -> Sides:
    p, w = x["success"], x["weights"]
    return Sides(mixture_success(p, weights=w), population_success(p, w), 1e-2)


def exact_form(setting: Setting, x: Instances) -> Sides:
    p, w = x["success"], x["weights"]
    return Sides(population_success(p, w) - mixture_success(p, weights=w), advantage(p, w), 1.0)


def _equal_members(x: Instances) -> Float:
    """What G and JSᵛ of equal members come to in float64: squares of rounded differences from their mean."""
    p = np.clip(x["success"], 0.0, 1.0 - EPS)
    return EPS * np.max(odds(p), axis=-1) ** 2


def gap_lower(setting: Setting, x: Instances) -> Sides:
    p, w = x["success"], x["weights"]
    return Sides(gap_bracket(p, w).lower, log_failure_gap(p, w), _equal_members(x))


def gap_upper(setting: Setting, x: Instances) -> Sides:
    p, w = x["success"], x["weights"]
    return Sides(log_failure_gap(p, w), gap_bracket(p, w).upper, _equal_members(x))


def advantage_lower(setting: Setting, x: Instances) -> Sides:
    p, w = x["success"], x["weights"]
    return Sides(bracket(p, w).lower, advantage(p, w), _equal_members(x))


def advantage_upper(setting: Setting, x: Instances) -> Sides:
    p, w = x["success"], x["weights"]
    return Sides(advantage(p, w), bracket(p, w).upper, _equal_members(x))


def exact_sign(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p = x["success"]
    w = ex.uniform(len(p))
    return ex.at_least_one(ex.dot(w, p), len(p)), ex.stratified(w, p)


def exact_weighted_sign(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, w = x["success"], ex.normalised(x["weights"])
    return ex.at_least_one(ex.dot(w, p), len(p)), ex.stratified(w, p)


def _exact_advantage(x: Exact) -> Decimal:
    mix, strat = exact_weighted_sign({}, x)
    return strat - mix


def exact_exact_form(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, w = x["success"], ex.normalised(x["weights"])
    mix, strat = exact_weighted_sign(setting, x)
    return strat - mix, (1 - mix) * (1 - (-len(p) * ex.log_failure_gap(w, p)).exp())


def _exact_bracket(x: Exact) -> tuple[Decimal, Decimal, Decimal]:
    """odds(p_min)·JSᵛ, G, odds(p_max)·JSᵛ."""
    p, w = x["success"], ex.normalised(x["weights"])
    there = [a for a, b in zip(p, w, strict=True) if b > 0]
    diversity = ex.projected_js(w, p)
    low, high = ex.odds(min(there)), ex.odds(max(there))
    return ex.times(low, diversity), ex.log_failure_gap(w, p), ex.times(high, diversity)


def exact_gap_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    low, gap, _ = _exact_bracket(x)
    return low, gap


def exact_gap_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    _, gap, high = _exact_bracket(x)
    return gap, high


def exact_advantage_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    _, strat = exact_weighted_sign(setting, x)
    return ex.times(len(x["success"]) * _exact_bracket(x)[0], 1 - strat), _exact_advantage(x)


def exact_advantage_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    mix, _ = exact_weighted_sign(setting, x)
    return _exact_advantage(x), min(ex.times(len(x["success"]) * _exact_bracket(x)[2], 1 - mix), 1 - mix)


# Fewer tries than members, more responses than one


def maclaurin(setting: Setting, x: Instances) -> Sides:
    p, k = x["success"], setting["k"]
    return Sides(mixture_success(p, k), subset_success(p, k), 1e-2)


def pooled(setting: Setting, x: Instances) -> Sides:
    p, m, k = x["success"], setting["m"], setting["k"]
    return Sides(mixture_success(p, k * m), pooled_subset_success(p, m, k * m), 1e-2)


def everyone(setting: Setting, x: Instances) -> Sides:
    p, m, n = x["success"], setting["m"], setting["n"]
    return Sides(mixture_success(p, n * m), member_subset_success(p, m, n), 1e-2)


def mixture_members(setting: Setting, x: Instances) -> Sides:
    p, m, k = x["success"], setting["m"], setting["k"]
    return Sides(mixture_members_success(p, m, k), member_subset_success(p, m, k), 1e-2)


def smoothed(setting: Setting, x: Instances) -> Sides:
    """`success` under `weights` is the distribution of one member's success over the noise."""
    p, w, m, n = x["success"], x["weights"], setting["m"], setting["n"]
    # Independent members: each fails all its m responses with probability E(1−p)ᵐ.
    population = at_least_one(mean_success(at_least_one(p, m), w), n)
    return Sides(population, smoothed_population_success(mean_success(p, w), n * m), 1e-2)


def exact_maclaurin(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, k = x["success"], setting["k"]
    return ex.at_least_one(ex.dot(ex.uniform(len(p)), p), k), ex.subset_success(p, k)


def exact_pooled(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, m, k = x["success"], setting["m"], setting["k"]
    return ex.at_least_one(ex.dot(ex.uniform(len(p)), p), k * m), ex.subset_success(p * m, k * m)


def exact_everyone(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, m = x["success"], setting["m"]
    return ex.at_least_one(ex.dot(ex.uniform(len(p)), p), len(p) * m), ex.stratified(ex.uniform(len(p) * m), p * m)


def exact_mixture_members(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    k, tried = setting["k"], [ex.at_least_one(p, setting["m"]) for p in x["success"]]
    return ex.at_least_one(ex.dot(ex.uniform(len(tried)), tried), k), ex.subset_success(tried, k)


def exact_smoothed(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, w, m, n = x["success"], ex.normalised(x["weights"]), setting["m"], setting["n"]
    tried = ex.dot(w, [ex.at_least_one(q, m) for q in p])
    return ex.at_least_one(tried, n), ex.at_least_one(ex.dot(w, p), n * m)


_SPACE = Successes()

BOUNDS = (
    Bound("sign", "L2.1", "P_mix <= P_pop", _SPACE, sign, exact_sign, "smaller"),
    Bound("weighted sign", "L2.1", "P_mix <= P_strat", _SPACE, weighted_sign, exact_weighted_sign, "smaller"),
    Bound("exact form", "L2.2", "P_strat − P_mix = (1−p̄)ᴺ(1−e^{−NG})", _SPACE, exact_form, exact_exact_form, "smaller"),
    Bound("gap lower", "L2.3", "odds(p_min)·JSᵛ <= G", _SPACE, gap_lower, exact_gap_lower, "smaller"),
    Bound("gap upper", "L2.3", "G <= odds(p_max)·JSᵛ", _SPACE, gap_upper, exact_gap_upper, "larger"),
    Bound(
        "advantage lower", "L2.3", "N·odds(p_min)·JSᵛ·(1−P_pop) <= P_pop − P_mix",
        _SPACE, advantage_lower, exact_advantage_lower, "smaller",
    ),
    Bound(
        "advantage upper", "L2.3", "P_pop − P_mix <= min(N·odds(p_max)·JSᵛ, 1)·(1−P_mix)",
        _SPACE, advantage_upper, exact_advantage_upper, "larger",
    ),
    Bound("Maclaurin", "L2.6", "1 − (1−p̄)ᴷ <= K-subset of members", _SPACE, maclaurin, exact_maclaurin, "smaller"),
    Bound("pooled", "L2.6", "1 − (1−p̄)ᴷ <= K-subset of pooled responses", _SPACE, pooled, exact_pooled, "smaller"),
    Bound("all members", "L2.6", "1 − (1−p̄)^{Nm} <= N members, m each", _SPACE, everyone, exact_everyone, "smaller"),
    Bound(
        "mixture members", "L2.6", "K members of the mixture <= K-subset, m each",
        _SPACE, mixture_members, exact_mixture_members, "smaller",
    ),
    Bound("smoothed", "L2.8", "E P_pop (m each) <= 1 − (1−p_σ)^{Nm}", _SPACE, smoothed, exact_smoothed, "larger"),
)  # fmt: skip
