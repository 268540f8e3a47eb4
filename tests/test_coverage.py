"""Coverage against enumeration of subsets, exact fractions, closed forms and 400-digit arithmetic."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esth import coverage
from esth.coverage import (
    at_least_one,
    log_failure_gap,
    mean_success,
    mixture_success,
    odds,
    pass_at_k,
    population_success,
    subset_success,
    subset_success_curve,
)
from esth.divergence import projected_js
from esth.errors import InputError
from tests.populations import (
    MP,
    PROBABILITIES,
    approx,
    cheap,
    close,
    costly,
    exact,
    exact_log_failure_gap,
    exact_weights,
    successes,
)

RNG = np.random.default_rng(22)


def enumerated_subset_success(p, k):
    """The mean over all k-subsets of 1 − Π(1 − p), in fractions."""
    failures = [1 - Fraction(float(x)) for x in p]
    subsets = list(itertools.combinations(failures, k))
    return 1 - sum(math.prod(s, start=Fraction(1)) for s in subsets) / len(subsets)


# One policy


@cheap
@given(PROBABILITIES, st.sampled_from([0, 0.5, 1, 2, 7, 1024]))
def test_at_least_one_keeps_its_digits(p, k):
    reference = -MP.expm1(k * MP.log1p(-exact(p))) if p < 1 else MP.mpf(k > 0)
    assert close(at_least_one(p, k), reference, 1e-13, 1e-320)


def test_at_least_one_broadcasts():
    value = at_least_one([[0.1], [0.5]], np.array([0, 1, 2]))
    np.testing.assert_allclose(value, [[0, 0.1, 0.19], [0, 0.5, 0.75]], rtol=1e-15)
    assert at_least_one(1, 0) == 0.0
    assert at_least_one(np.float32(0.25), 2) == approx(1 - 0.75**2, rel=1e-6)
    for k in (-1, np.nan, [1, -2]):
        with pytest.raises(InputError, match="tries"):
            at_least_one(0.5, k)


def test_odds():
    assert odds([0.0, 0.5, 0.75, 1.0]).tolist() == [0.0, 1.0, 3.0, np.inf]
    assert odds(1e-300) == 1e-300
    assert odds(1 - 2**-53) == 2.0**53 - 1


# Populations


@cheap
@given(successes())
def test_population_success_is_one_minus_the_product(population):
    p, weights = population
    n = len(p)
    product = MP.mpf(1)
    for w, x in zip(exact_weights(weights, n), p, strict=True):
        product *= (1 - exact(x)) ** (n * w) if w > 0 else 1
    assert close(population_success(p, weights), 1 - product, 1e-12, 1e-305)
    plain = MP.mpf(1)
    for x in p:
        plain *= 1 - exact(x)
    assert close(population_success(p), 1 - plain, 1e-13, 1e-320)


@cheap
@given(successes())
def test_mixture_success_is_that_of_the_mean(population):
    p, weights = population
    n = len(p)
    mean = MP.fsum(w * exact(x) for w, x in zip(exact_weights(weights, n), p, strict=True))
    assert close(mean_success(p, weights), mean, 1e-14, 1e-305)
    assert np.min(p) <= mean_success(p, weights) <= np.max(p)
    for k in (0, 1, 5):
        # Where p̄ is near 1 its rounding is amplified in (1 − p̄)ᵏ, but not in 1 − (1 − p̄)ᵏ.
        assert close(mixture_success(p, k, weights), 1 - (1 - mean) ** k, 1e-13, 1e-305)
    assert mixture_success(p, weights=weights) == mixture_success(p, n, weights)


@cheap
@given(successes())
def test_a_population_covers_at_least_its_mixture(population):
    """L2.1, and the exact difference of L2.2 from the gap: P_pop − P_mix = (1−p̄)ᴺ(1 − e^{−NG})."""
    p, weights = population
    n = len(p)
    difference = population_success(p, weights) - mixture_success(p, weights=weights)
    assert difference >= -1e-15
    exact_form = (1 - mean_success(p, weights)) ** n * -np.expm1(-n * log_failure_gap(p, weights))
    assert difference == approx(exact_form, rel=1e-9, abs=1e-14)


def test_populations_at_the_edges():
    assert population_success([0.0, 0.0]) == 0.0
    assert population_success([0.0, 1.0]) == 1.0
    assert population_success([1.0, 0.5], [0.0, 1.0]) == 0.75
    assert population_success([1e-300, 1e-300]) == approx(2e-300, rel=1e-14)
    assert population_success([1]) == mixture_success([1]) == 1.0
    assert mixture_success([0.1] * 3, 1) == 0.1
    assert population_success([[0.5, 0.5], [0.1, 0.2]]).tolist() == approx([0.75, 0.28], rel=1e-14)
    assert population_success(np.zeros((0, 3))).shape == mixture_success(np.zeros((0, 3))).shape == (0,)
    assert population_success([0.5, 1.0], [1.0, 1e-310]) == population_success([0.5, 1.0]) == 1.0


@pytest.mark.parametrize(
    "function", [population_success, mean_success, mixture_success, log_failure_gap, subset_success_curve]
)
def test_a_population_needs_members_and_probabilities(function):
    for p in (np.zeros((2, 0)), 0.5):
        with pytest.raises(InputError, match="N >= 1"):
            function(p)
    for p in ([0.5, 1.1], [np.nan], [-0.1]):
        with pytest.raises(InputError, match=r"\[0, 1\]"):
            function(p)


# Subsets


@pytest.mark.parametrize("n", range(1, 9))
def test_subset_success_is_the_mean_over_subsets(n):
    for p in (RNG.random(n), RNG.random(n) ** 30, RNG.integers(0, 2, size=n), np.full(n, 1e-300), np.ones(n)):
        curve = subset_success_curve(p)
        assert curve.shape == (n + 1,)
        for k in range(n + 1):
            expected = enumerated_subset_success(p, k)
            assert float(curve[k]) == approx(float(expected), rel=1e-13)
            assert subset_success(p, k) == approx(float(expected), rel=1e-13)


def test_subset_success_of_a_thousand_members():
    """N = 1024, K = 512, where C(N, K) ~ 1e306, against e_K in integers of 2⁻¹⁶."""
    n, k, bits = 1024, 512, 16
    failures = RNG.integers(0, 1 << bits, size=n)
    failures[: n // 4] = 1 << bits
    elementary = [1] + [0] * k
    for f in failures:
        for j in range(k, 0, -1):
            elementary[j] += int(f) * elementary[j - 1]
    expected = 1 - Fraction(elementary[k], math.comb(n, k) << (bits * k))
    value = subset_success(1 - failures / (1 << bits), k)
    assert value == approx(float(expected), rel=1e-12)
    # The same with successes so rare that the subset's are, too.
    rare = 1e-9 * RNG.random(n)
    assert subset_success(rare, k) == approx(k * rare.mean(), rel=1e-6)


def test_subset_success_of_equal_members_is_that_of_one_policy():
    np.testing.assert_allclose(subset_success_curve(np.full(300, 0.01)), at_least_one(0.01, np.arange(301)), rtol=1e-12)


@cheap
@given(successes())
def test_subset_success_is_monotone_concave_and_between_mixture_and_population(population):
    """L2.6 (Maclaurin): k distinct members cover at least k draws of the mixture; each further one adds less."""
    p, _ = population
    curve = subset_success_curve(p)
    n = len(p)
    assert curve[0] == 0.0 and np.all((curve >= 0) & (curve <= 1))
    assert curve[1] == approx(mean_success(p), rel=1e-13, abs=1e-320)
    assert curve[n] == approx(population_success(p), rel=1e-13, abs=1e-300)
    assert np.all(np.diff(curve) >= -1e-15)
    assert np.all(np.diff(curve, 2) <= 1e-15)
    assert np.all(curve >= mixture_success(p, np.arange(n + 1)) * (1 - 1e-13) - 1e-320)
    assert subset_success_curve(p, 1).tolist() == curve[:2].tolist()


def test_subset_success_batches_and_its_limits():
    p = RNG.random((2, 3, 5))
    curves = subset_success_curve(p, 4)
    assert curves.shape == (2, 3, 5)
    np.testing.assert_allclose(curves[1, 2], subset_success_curve(p[1, 2], 4), rtol=1e-15)
    assert subset_success(p, 0).shape == (2, 3)
    assert subset_success_curve(np.zeros((0, 3))).shape == (0, 4)
    for k in (-1, 6):
        with pytest.raises(InputError, match=r"0\.\.5"):
            subset_success(p, k)


# The gap of log-failures


@costly
@given(successes())
def test_log_failure_gap_is_its_definition(population):
    p, weights = population
    assert close(log_failure_gap(p, weights), exact_log_failure_gap(p, weights), 1e-12, 1e-290)


@pytest.mark.parametrize("center", [1e-150, 1e-20, 1e-12, 1e-5, 0.3, 0.5, 0.9999, 1 - 1e-10])
@pytest.mark.parametrize("spread", [0.5, 1e-4, 1e-8, 1e-12, 1e-15])
def test_log_failure_gap_of_tiny_spreads(center, spread):
    p = center * (1 - spread * np.array([0.0, 0.2, 0.7, 1.0]))
    for weights in (None, [0.1, 0.2, 0.3, 0.4]):
        assert close(log_failure_gap(p, weights), exact_log_failure_gap(p, weights), 1e-12, 1e-320)


def test_log_failure_gap_next_to_certainty():
    p = 1 - 2.0**-53 * np.array([1.0, 2.0, 5.0])
    assert close(log_failure_gap(p), exact_log_failure_gap(p), 1e-14)
    p, weights = [0.0, 1 - 2.0**-53], [1e-9, 1 - 1e-9]
    assert close(log_failure_gap(p, weights), exact_log_failure_gap(p, weights), 1e-13)


@pytest.mark.parametrize(
    ("p", "weights", "gap"),
    [
        ([1.0, 1.0], None, 0.0),
        ([1.0, 0.5], None, np.inf),
        ([1.0, 0.5], [1.0, 0.0], 0.0),
        ([1.0, 0.5], [0.0, 1.0], 0.0),
        ([1.0, 0.0], [1.0, 1e-310], np.inf),
        ([0.5, 1.0], [1.0, 1e-310], np.inf),
        ([0.3], None, 0.0),
        ([0.1, 0.1, 0.1], None, 0.0),
        ([0, 0], None, 0.0),
    ],
)
def test_log_failure_gap_at_the_edges(p, weights, gap):
    assert log_failure_gap(p, weights) == gap


@cheap
@given(successes())
def test_log_failure_gap_lies_within_the_odds_bracket(population):
    """L2.3, at every spread: the two are computed apart, to the last digits."""
    p, weights = population
    present = p[weights > 0]
    gap, diversity = log_failure_gap(p, weights), projected_js(p, weights)
    assert gap >= 0
    low, high = odds(present.min()), odds(present.max())
    if diversity > 1e-290:  # below, members of weight 1e-310 have been neglected
        assert low * diversity <= gap * (1 + 1e-12)
        assert gap <= (high * diversity if high < np.inf else np.inf) * (1 + 1e-12)


# pass@k


@pytest.mark.parametrize("n", range(1, 21))
def test_pass_at_k_is_the_closed_form(n):
    for k in range(1, n + 1):
        expected = [1 - math.comb(n - c, k) / math.comb(n, k) for c in range(n + 1)]
        np.testing.assert_allclose(pass_at_k(n, np.arange(n + 1), k), expected, rtol=1e-12, atol=0)


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    for n, c in [(5, 2), (6, 0), (6, 6), (7, 3)]:
        draws = [1] * c + [0] * (n - c)
        for k in range(1, n + 1):
            hits = [any(s) for s in itertools.combinations(draws, k)]
            assert pass_at_k(n, c, k) == approx(np.mean(hits), rel=1e-14)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_pass_at_k_is_unbiased(p):
    """Its mean over binomial c is 1 − (1−p)ᵏ, for every k <= n."""
    n = 12
    c = np.arange(n + 1)
    pmf = np.array([math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in c])
    for k in range(1, n + 1):
        assert pmf @ pass_at_k(n, c, k) == approx(at_least_one(p, k), rel=1e-12)


def test_pass_at_k_of_many_draws():
    assert pass_at_k(10**6, 1, 1000) == approx(1e-3, rel=1e-12)
    assert pass_at_k(10**5, 50000, 5000) == 1.0
    assert pass_at_k([[10], [20]], [0, 3, 10], 4).shape == (2, 3)


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [(4, 2, 5), (4, 2, 0), (4, 5, 2), (4, -1, 2), (4, np.nan, 2), (np.nan, 1, 2), ([4, 1], 1, 2)],
)
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(InputError):
        pass_at_k(n, c, k)


# Kinds of array


def test_float32_and_torch_give_the_same_numbers():
    p = RNG.random((4, 6))
    single, double = torch.tensor(p, dtype=torch.float32), torch.tensor(p)
    for function in (population_success, mixture_success, mean_success, log_failure_gap, subset_success_curve, odds):
        expected = function(p)
        np.testing.assert_allclose(function(double).numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(function(single).numpy(), expected, rtol=2e-4)
        assert function(single).dtype == torch.float32
        assert function(p.astype(np.float32)).dtype == np.float32
    assert float(pass_at_k(torch.tensor(5), torch.tensor(2), 2)) == approx(0.7, rel=1e-14)
    leaf = double.clone().requires_grad_()
    for function in (population_success, mixture_success, log_failure_gap, subset_success_curve):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x).sum(), (leaf,))


# Wrong constants are noticed

MUTANTS = {
    "log p for log(1 − p)": ("safe_log1m", np.log),
    "times without the power": ("times", lambda a, b: np.asarray(b) + 0 * np.asarray(a)),
    "gap a per cent too large": ("exponential_remainder", lambda u: 1.01 * (np.expm1(u) - u)),
    "gap that cancels": ("exponential_remainder", lambda u: np.expm1(u) - u),
    "successes for failures in the gap": (
        "bernoulli_log_ratios",
        lambda p, w: (np.zeros_like(p), np.log(p / np.mean(p))),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(coverage, attribute, mutant)
    with pytest.raises(AssertionError):
        test_at_least_one_broadcasts()
        test_log_failure_gap_of_tiny_spreads(0.3, 0.5)
        test_log_failure_gap_of_tiny_spreads(0.3, 1e-8)


@pytest.mark.parametrize("absent", [0.0, 1e-300, 0.4])
def test_members_of_weight_zero_do_not_blur_certainty(absent):
    """Weights whose sum rounds below 1 over members that always succeed: the mixture succeeds with 1 exactly."""
    weights = np.array([0.13768815, 0.0, 0.86231185])
    weights[2] = 1.0 - weights[0] - 1e-16
    p = np.array([1.0, absent, 1.0])
    assert float(mean_success(p, weights)) == 1.0
    assert float(projected_js(p, weights)) == 0.0
    assert float(log_failure_gap(p, weights)) == 0.0
