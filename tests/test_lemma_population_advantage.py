"""L2 against rational arithmetic, quadrature over the noise, enumeration of members, and itself."""

import itertools
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from esth.check import Verdict
from esth.coverage import (
    at_least_one,
    log_failure_gap,
    mean_success,
    mixture_success,
    population_success,
    subset_success,
)
from esth.divergence import js, log_softmax, project, projected_js
from esth.errors import InputError
from esth.lemmas import population_advantage
from esth.lemmas.population_advantage import (
    advantage,
    bracket,
    center_margin,
    check,
    check_prediction,
    gap_bracket,
    member_subset_success,
    mixture_members_success,
    pooled_subset_success,
    predict,
    predict_rate,
    smoothed_pair_success,
    smoothed_population_success,
    smoothed_shift,
)
from tests.populations import PROBABILITIES, approx, successes

thousand = settings(derandomize=True, deadline=None, max_examples=1000)
some = settings(derandomize=True, deadline=None, max_examples=300)

members = st.lists(PROBABILITIES, min_size=1, max_size=5).map(np.array)


def product(factors):
    return math.prod(factors, start=Fraction(1))


def exact_covered(p, counts=None):
    """1 − Π(1−pᵢ)^{cᵢ} as a fraction."""
    counts = [1] * len(p) if counts is None else counts
    return 1 - product((1 - Fraction(float(x))) ** c for x, c in zip(p, counts, strict=True))


def exact_mixture(p, k, counts=None):
    """1 − (1 − p̄)ᵏ as a fraction, p̄ under weights proportional to `counts`."""
    counts = [1] * len(p) if counts is None else counts
    mean = sum(c * Fraction(float(x)) for x, c in zip(p, counts, strict=True)) / sum(counts)
    return 1 - (1 - mean) ** k


def close(value, fraction, rel=1e-9, floor=1e-15):
    """Agreement up to rounding, and exactly in sign where the fraction is not tiny."""
    return abs(float(value) - float(fraction)) <= rel * abs(float(fraction)) + floor


# L2.1, L2.2


@thousand
@given(members)
def test_the_advantage_is_the_difference_of_the_two_successes(p):
    """In rational arithmetic, where the difference does not cancel."""
    difference = exact_covered(p) - exact_mixture(p, len(p))
    assert difference >= 0
    assert (difference == 0) == (len(set(p.tolist())) == 1 or sum(p == 1) == len(p))
    value = advantage(p)
    assert value >= 0
    # 1 − p is rounded once: relative to the failure of the mixture.
    assert close(value, difference, floor=1e-300 if np.max(p) < 0.5 else 1e-15)


@some
@given(
    st.lists(st.tuples(PROBABILITIES, st.integers(0, 3)), min_size=1, max_size=4).filter(lambda m: sum(c for _, c in m))
)
def test_stratified_members_count_with_their_weights(pairs):
    """Weights c/Σc as multiplicities: P_strat^(N·w) is the population of Σc members to the power N/Σc."""
    p, counts = np.array([x for x, _ in pairs]), np.array([c for _, c in pairs])
    repeated = np.repeat(p, counts)
    weights = counts / counts.sum()
    share = len(p) / len(repeated)
    failure = (
        float(1 - exact_covered(p, counts.tolist())) ** share
        - float(1 - exact_mixture(p, len(repeated), counts.tolist())) ** share
    )
    assert advantage(p, weights) == pytest.approx(-failure, rel=1e-6, abs=1e-12)
    assert log_failure_gap(p, weights) == approx(float(log_failure_gap(repeated)), rel=1e-9, abs=1e-15)


def test_tiny_successes_keep_their_advantage():
    """p = x(1, 3): P_pop − P_mix = (p̄² − p₁p₂) = x² to leading order, far below the rounding of either success."""
    for x in (1e-5, 1e-20, 1e-100):
        p = np.array([x, 3 * x])
        assert advantage(p) == approx(float(exact_covered(p) - exact_mixture(p, 2)), rel=1e-9)
        assert advantage(p) == approx(x**2, rel=1e-4)
        assert contains(bracket(p), advantage(p))


def test_nearly_certain_successes_keep_their_advantage():
    """Far below the rounding of a success: failures x(1, 3) of two members and their copies, up to that of p̄."""
    for x, copies in ((1e-9, 1), (1e-9, 4), (1e-12, 2)):
        p = np.tile(1 - x * np.array([1.0, 3.0]), copies)
        difference = exact_covered(p) - exact_mixture(p, len(p))
        assert advantage(p) == approx(float(difference), rel=1e-15 / x)
        assert contains(bracket(p), float(difference), rel=1e-15 / x)


# L2.3


def contains(bounds, value, rel=1e-9, floor=0.0):
    return bounds.lower <= value * (1 + rel) + floor and value <= bounds.upper * (1 + rel) + floor


@thousand
@given(successes())
def test_gap_and_advantage_lie_in_their_odds_brackets(population):
    p, weights = population
    gap, bounds = log_failure_gap(p, weights), gap_bracket(p, weights)
    assert bounds.lower <= gap * (1 + 1e-9) + 1e-14
    assert gap <= bounds.upper * (1 + 1e-9) + 1e-14
    assert bounds.lower >= 0
    assert contains(bracket(p, weights), advantage(p, weights), floor=1e-14)
    assert bracket(p, weights).upper <= 1 - mixture_success(p, weights=weights) + 1e-15


def test_the_odds_are_those_of_members_that_count():
    p = np.array([0.2, 0.4, 0.9, 0.0])
    weights = np.array([0.5, 0.5, 0.0, 0.0])
    diversity = projected_js(p[:2])
    bounds = gap_bracket(p, weights)
    assert bounds.lower == approx(0.25 * float(diversity), rel=1e-12)
    assert bounds.upper == approx(0.4 / 0.6 * float(diversity), rel=1e-12)
    assert bracket(p[:2]).lower == approx(2 * 0.25 * float(diversity) * 0.8 * 0.6, rel=1e-12)
    assert bracket(p[:2]).upper == approx(2 * 0.4 / 0.6 * float(diversity) * 0.7**2, rel=1e-12)


@pytest.mark.parametrize("x", [1e-6, 0.1, 0.5, 0.9])
def test_the_odds_are_sharp(x):
    """At small spread the two sides meet: no constant can be 1 % better."""
    p = x * np.array([1.0, 1 + 1e-4])
    gap, bounds = log_failure_gap(p), gap_bracket(p)
    assert bounds.lower <= gap <= bounds.upper
    assert bounds.lower > 0.998 * gap and gap > 0.998 * bounds.upper
    tight = bracket(p)
    assert tight.lower > 0.998 * advantage(p) and advantage(p) > 0.998 * tight.upper


def test_brackets_at_the_edges():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certain = gap_bracket(np.array([0.5, 1.0]))
        assert certain.upper == np.inf and np.isfinite(certain.lower)
        assert log_failure_gap(np.array([0.5, 1.0])) == np.inf
        assert advantage(np.array([0.5, 1.0])) == approx(0.25**2, rel=1e-12)
        assert bracket(np.array([0.5, 1.0])).upper == approx(0.25**2, rel=1e-12)
        for same in ([1.0, 1.0], [0.0, 0.0], [0.3], [1e-300, 1e-300]):
            p = np.array(same)
            assert advantage(p) == 0 and bracket(p).lower == 0 and bracket(p).upper == 0
        rare = np.array([1e-300, 0.0])
        assert advantage(rare) == 0 and bracket(rare).upper >= 0
        assert advantage(np.array([0.0, 1.0])) == approx(0.25, rel=1e-12)


# L2.4


@pytest.mark.parametrize("p", [[0.2, 0.21, 0.195], [0.6, 0.61], [0.03, 0.0301, 0.0299, 0.03005]])
def test_the_leading_order(p):
    """The error is of the relative order of the spread, so it falls tenfold with a tenfold smaller one."""
    errors = []
    for shrink in (1.0, 0.1):
        q = np.mean(p) + shrink * (np.array(p) - np.mean(p))
        errors.append(abs(predict(np.mean(q), projected_js(q), len(q)) / advantage(q) - 1))
        for k in range(1, len(q) + 1):
            subset = subset_success(q, k) - mixture_success(q, k)
            assert predict(np.mean(q), projected_js(q), len(q), k) == pytest.approx(subset, rel=0.1, abs=1e-12)
    assert errors[0] < 0.1 and errors[1] < 0.15 * errors[0]


def test_the_proportionality_of_the_leading_order():
    assert predict(0.25, 0.01, 3) == approx(3 * 0.75**2 * 0.25 * 0.01, rel=1e-13)
    assert predict(0.25, 0.01, 3, 1) == 0
    assert predict(0.25, 0.01, 5, 2) == approx(2 / 4 * 0.75 * 0.25 * 0.01, rel=1e-13)
    assert predict(1.0, 0.0, 4) == 0 and predict(1e-300, 0.5, 4) == approx(4 * 1e-300 * 0.5, rel=1e-13)


def gauss_hermite(dimensions, nodes=20):
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.array(list(itertools.product(x, repeat=dimensions)))
    return points, np.prod(np.array(list(itertools.product(w / np.sum(w), repeat=dimensions))), axis=-1)


@pytest.mark.parametrize(("n", "antithetic"), [(2, False), (3, False), (2, True), (4, True)])
def test_the_rate_over_populations(n, antithetic):
    sigma, odds = 0.02, 0.4
    half, mass = gauss_hermite(n // 2 if antithetic else n, 12)
    noise = np.stack([half, -half], axis=-1).reshape(len(half), n) if antithetic else half
    mean = mass @ advantage(expit(odds + sigma * noise))
    p = float(expit(odds))
    assert mean == approx(float(predict_rate(p, (p * (1 - p)) ** 2, sigma, n, antithetic=antithetic)), rel=3e-3)


# L2.5


def test_diversity_that_the_verifier_does_not_see_does_not_help():
    """Three members each sure of an answer of its own, all three right (or all wrong)."""
    log_p = log_softmax(np.where(np.eye(3, 4) > 0, 0.0, -np.inf))
    assert js(log_p) == approx(math.log(3), rel=1e-12)
    for outcome, success in (([0, 0, 0, 1], 1.0), ([1, 1, 1, 0], 0.0)):
        p = np.exp(project(log_p, np.array(outcome), 2))[:, 0]
        assert p.tolist() == [success] * 3 and projected_js(p) == 0
        assert population_success(p) == mixture_success(p) == success and advantage(p) == 0


# L2.6


def exact_subset(p, k):
    """Mean over k-subsets of 1 − Π(1−p)."""
    subsets = list(itertools.combinations([Fraction(float(x)) for x in p], k))
    return 1 - sum((product(1 - x for x in subset) for subset in subsets), Fraction(0)) / len(subsets)


@some
@given(members, st.integers(1, 3), st.data())
def test_subsets_of_members_and_of_pooled_responses_cover_at_least_the_mixture(p, m, data):
    n = len(p)
    k = data.draw(st.integers(1, n))
    assert close(subset_success(p, k), exact_subset(p, k), floor=1e-300 if np.max(p) < 0.5 else 1e-15)
    assert exact_subset(p, k) >= exact_mixture(p, k)
    pooled = data.draw(st.integers(1, min(n * m, 5)))
    assert close(pooled_subset_success(p, m, pooled), exact_subset(np.repeat(p, m), pooled))
    assert exact_subset(np.repeat(p, m), pooled) >= exact_mixture(p, pooled)
    # All members, m responses each, against N·m draws of the mixture.
    assert close(member_subset_success(p, m, n), exact_covered(p, [m] * n))
    assert exact_covered(p, [m] * n) >= exact_mixture(p, n * m)
    # Whole members against members of the mixture.
    failures = [(1 - Fraction(float(x))) ** m for x in p]
    drawn = 1 - (sum(failures, Fraction(0)) / n) ** k
    whole = 1 - sum((product(s) for s in itertools.combinations(failures, k)), Fraction(0)) / math.comb(n, k)
    assert whole >= drawn
    assert close(mixture_members_success(p, m, k), drawn) and close(member_subset_success(p, m, k), whole)


def test_whole_members_can_cover_less_than_as_many_draws_of_the_mixture():
    """p = (0, 1), one member, two responses: ½, against ¾ of two draws."""
    p = np.array([0.0, 1.0])
    assert member_subset_success(p, 2, 1) == 0.5 < 0.75 == mixture_success(p, 2)
    assert mixture_members_success(p, 2, 1) == 0.5
    assert pooled_subset_success(p, 2, 2) == approx(1 - 1 / 6, rel=1e-12)


# L2.7


@thousand
@given(members, PROBABILITIES)
def test_the_margin_over_the_center_has_the_sign_of_the_difference(p, center):
    margin = center_margin(p, center)
    difference = exact_covered(p) - exact_mixture(np.full(len(p), center), len(p))
    if abs(margin) > 1e-12:
        assert (margin > 0) == (difference > 0)
    if np.max(p) < 1 and center < 1:
        mean = float(np.mean(p))
        gap = float(log_failure_gap(p))
        assert margin == pytest.approx(gap - (math.log1p(-mean) - math.log1p(-center)), rel=1e-9, abs=1e-12)


def test_a_population_can_cover_less_than_its_center():
    """Center .5; the members' mean falls to .3, and diversity does not make up for it."""
    p = np.array([0.1, 0.5])
    assert population_success(p) == approx(0.55, rel=1e-12) and at_least_one(0.5, 2) == 0.75
    assert center_margin(p, 0.5) == approx(0.5 * math.log(0.25 / 0.45), rel=1e-12)
    assert advantage(p) > 0
    assert center_margin(np.array([1.0, 0.2]), 1.0) == 0 and center_margin(np.array([1.0, 0.2]), 0.9) == np.inf


# L2.8


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_independent_members_cover_as_much_as_the_smoothed_policy(sigma, n):
    """At any σ, exactly; with m responses a member at most as much as N·m draws of it."""
    points, mass = gauss_hermite(n)
    p = expit(0.4 + sigma * points)
    one, weight = gauss_hermite(1)
    smoothed = weight @ expit(0.4 + sigma * one[:, 0])
    assert mass @ population_success(p) == approx(float(smoothed_population_success(smoothed, n)), rel=1e-12)
    for m in (2, 3):
        assert mass @ population_success(at_least_one(p, m)) < smoothed_population_success(smoothed, n * m)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("n", [2, 4])
def test_antithetic_members_gain_by_negative_covariance(sigma, n):
    half, mass = gauss_hermite(n // 2)
    noise = np.stack([half, -half], axis=-1).reshape(len(half), n)
    one, weight = gauss_hermite(1)
    plus, minus = expit(0.4 + sigma * one[:, 0]), expit(0.4 - sigma * one[:, 0])
    smoothed = weight @ plus
    covariance = weight @ ((plus - smoothed) * (minus - smoothed))
    mean = mass @ population_success(expit(0.4 + sigma * noise))
    assert mean == approx(float(smoothed_pair_success(smoothed, covariance, n)), rel=1e-12)
    assert covariance < 0 and mean > smoothed_population_success(smoothed, n)


def test_the_shift_of_the_smoothed_policy():
    """p_σ − p = (σ²/2)p″ + O(σ⁴), of either sign."""
    one, weight = gauss_hermite(1)
    for odds in (-1.5, 1.5):
        p = float(expit(odds))
        curvature = p * (1 - p) * (1 - 2 * p)
        errors = []
        for sigma in (0.2, 0.1):
            shift = weight @ expit(odds + sigma * one[:, 0]) - p
            errors.append(shift - smoothed_shift(curvature, sigma))
            assert np.sign(shift) == np.sign(smoothed_shift(curvature, sigma)) == np.sign(-odds)
        assert errors[0] / errors[1] == pytest.approx(16, rel=0.1)


# Batches, checks, errors


def test_batches_and_torch_are_the_same():
    rng = np.random.default_rng(0)
    p, weights = rng.random((3, 2, 4)), rng.dirichlet(np.ones(4), size=(3, 2))
    tensors = torch.asarray(p), torch.asarray(weights)
    for function in (advantage, lambda p, w: bracket(p, w).lower, lambda p, w: gap_bracket(p, w).upper):
        batch = function(p, weights)
        assert batch.shape == (3, 2)
        assert function(p[1, 0], weights[1, 0]) == approx(batch[1, 0], rel=1e-12)
        assert np.asarray(function(*tensors)) == approx(batch, rel=1e-10)
    for function in (
        lambda p: pooled_subset_success(p, 2, 3), lambda p: member_subset_success(p, 2, 3),
        lambda p: mixture_members_success(p, 2, 3), lambda p: center_margin(p, 0.3),
        lambda p: predict(mean_success(p), projected_js(p), 4), lambda p: predict_rate(p[..., 0], 1.0, 0.1, 4),
    ):  # fmt: skip
        batch = function(p)
        assert batch.shape == (3, 2) and function(p[1, 0]) == approx(batch[1, 0], rel=1e-12)
        assert np.asarray(function(tensors[0])) == approx(batch, rel=1e-10)


@some
@given(successes(), st.integers(0, 2**32))
def test_names_do_not_matter_and_equal_members_may_be_merged(population, seed):
    p, weights = population
    order = np.random.default_rng(seed).permutation(len(p))
    bounds, other = gap_bracket(p, weights), gap_bracket(p[order], weights[order])
    assert other.lower == approx(bounds.lower, rel=1e-7, abs=1e-14)
    assert other.upper == approx(bounds.upper, rel=1e-7, abs=1e-14)
    split = gap_bracket(np.append(p, p[0]), np.append([0.25 * weights[0], *weights[1:]], 0.75 * weights[0]))
    assert split.lower == approx(bounds.lower, rel=1e-7, abs=1e-14)
    assert split.upper == approx(bounds.upper, rel=1e-7, abs=1e-14)


def test_checks():
    judged = check(np.array([0.2, 0.5]))
    assert judged.verdict is Verdict.IDENTITY and judged.statement == "L2.3"
    assert judged.lower < judged.measured < judged.upper
    p = np.array([0.2, 0.21])
    close_to = check_prediction(float(advantage(p)), float(predict(np.mean(p), projected_js(p), 2)), tolerance=0.05)
    assert close_to.verdict is Verdict.HOLDS and close_to.statement == "L2.4"
    assert check_prediction(1.0, 1.02, tolerance=0.01).verdict is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: advantage(np.array([0.5, 1.1])), r"\[0, 1\]"),
        (lambda: advantage(np.array([0.5, np.nan])), r"\[0, 1\]"),
        (lambda: advantage(np.array([0.5, 0.2]), np.array([0.5, 0.6])), "sum to 1"),
        (lambda: gap_bracket(np.array([0.5, 0.2]), np.array([1.5, -0.5])), "negative"),
        (lambda: bracket(np.array([])), "at least one member"),
        (lambda: predict(0.5, 0.1, 1), "N >= 2"),
        (lambda: predict(0.5, 0.1, 3, 4), "K <= N"),
        (lambda: predict_rate(0.5, 0.1, 0.1, 1), "N >= 2"),
        (lambda: pooled_subset_success(np.array([0.5, 0.2]), 2, 5), r"0\.\.4"),
        (lambda: smoothed_pair_success(0.5, 0.0, 3), "N = 3 is odd"),
        (lambda: smoothed_pair_success(1.5, 0.0, 2), r"\[0, 1\]"),
        (lambda: center_margin(np.array([0.5]), -0.1), r"\[0, 1\]"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


GAP, JS, ODDS = (population_advantage.log_failure_gap, population_advantage.projected_js, population_advantage.odds)
FAILURE = population_advantage._mixture_failure
MUTANTS = {
    "gap 1 % too large": ("log_failure_gap", lambda p, w=None: 1.01 * GAP(p, w)),
    "gap 1 % too small": ("log_failure_gap", lambda p, w=None: 0.99 * GAP(p, w)),
    "diversity 1 % too large": ("projected_js", lambda p, w=None: 1.01 * JS(p, w)),
    "odds 1 % too small": ("odds", lambda p: 0.99 * ODDS(p)),
    "extrema of all members": ("check_weights", lambda w, p: np.full_like(p, 1 / p.shape[-1])),
    "failure of the mixture 1 % too large": ("_mixture_failure", lambda p, w: 1.01 * FAILURE(p, w)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(population_advantage, attribute, mutant)
    with pytest.raises(AssertionError):
        test_tiny_successes_keep_their_advantage()
        test_the_odds_are_those_of_members_that_count()
        test_the_odds_are_sharp(0.5)


def test_advantage_of_nearly_certain_members():
    """1 − p̄ = 2e-9 and failures 1e-9 and 3e-9: (2² − 1·3)·1e-18."""
    p = 1.0 - 1e-9 * np.array([1.0, 3.0])
    failures = 1.0 - p  # as float64 holds them
    expected = failures.mean() ** 2 - failures.prod()
    assert float(population_advantage.advantage(p)) == pytest.approx(expected, rel=1e-9, abs=0)
