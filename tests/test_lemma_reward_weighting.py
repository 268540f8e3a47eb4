"""L3 against rational arithmetic, complex-step derivatives, enumeration of noisy fitness, quadrature, and itself."""

import itertools
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from esth.check import Verdict
from esth.coverage import at_least_one, mean_success
from esth.divergence import safe_log1m
from esth.errors import InputError
from esth.lemmas import reward_weighting
from esth.lemmas.fisher_rate import predict as rate
from esth.lemmas.reward_weighting import (
    allocation_gain,
    binomial_noise,
    bracket,
    check,
    check_identity,
    correlation,
    covariance,
    coverage_gain,
    linear_fitness_loss,
    predict,
    predict_attenuated,
    predict_raw,
    reliability,
    softmax_slope,
    spread,
    weighting_price,
)
from esth.weighting import linear_tilt, price_gain, softmax_tilt, tilt_range
from tests.populations import approx, successes

thousand = settings(derandomize=True, deadline=None, max_examples=1000)
some = settings(derandomize=True, deadline=None, max_examples=300)


@st.composite
def fitness_and_success(draw, max_members=6):
    """(fitness [N], success [N]): unrelated, tied, or of one order; fitness of any scale."""
    n = draw(st.integers(1, max_members))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([1e-6, 1.0, 1e3]))
    fitness = rng.choice([rng.normal(size=n), rng.integers(0, 3, size=n).astype(float), rng.standard_cauchy(size=n)])
    success = rng.choice([rng.random(n), rng.random(n) ** 20, rng.integers(0, 2, size=n).astype(float)])
    return scale * fitness, success


# L3.1


@thousand
@given(successes(), st.integers(1, 16))
def test_the_gain_of_coverage_lies_in_its_bracket(population, k):
    p, weights = population
    gain, bounds = coverage_gain(weights, p, k), bracket(weights, p, k)
    assert bounds.lower <= gain + 1e-9 * abs(gain) + 4e-15 * k
    assert gain <= bounds.upper + 1e-9 * abs(gain) + 4e-15 * k
    price = price_gain(weights, p)
    if abs(gain) > 1e-12:
        assert np.sign(gain) == np.sign(price)
    if k == 1:
        assert bounds.lower == bounds.upper == approx(float(price), rel=1e-12)


@some
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=5).filter(
        lambda m: sum(c for _, c in m)
    )
)
def test_gain_and_bracket_in_fractions(pairs):
    """Successes in eighths, integer weights, K = 3: the slopes of 1 − (1−t)³ at the two means bound its difference."""
    p, w = [Fraction(a, 8) for a, _ in pairs], [Fraction(c, sum(c for _, c in pairs)) for _, c in pairs]
    mean, weighted = sum(p) / len(p), sum(a * b for a, b in zip(w, p, strict=True))
    assert weighted - mean == len(p) * (sum(a * b for a, b in zip(w, p, strict=True)) / len(p) - sum(p) / len(p) ** 2)
    gain = (1 - mean) ** 3 - (1 - weighted) ** 3
    slopes = sorted(3 * (1 - t) ** 2 * (weighted - mean) for t in (mean, weighted))
    assert slopes[0] <= gain <= slopes[1]
    weights, success = np.array(w, float), np.array(p, float)
    bounds = bracket(weights, success, 3)
    assert coverage_gain(weights, success, 3) == approx(float(gain), rel=1e-12, abs=1e-15)
    assert (bounds.lower, bounds.upper) == approx([float(s) for s in slopes], rel=1e-12, abs=1e-15)


def test_the_slopes_are_sharp():
    """A small gain meets both sides."""
    p, weights = np.array([0.3, 0.3 + 1e-5]), np.array([0.2, 0.8])
    bounds, gain = bracket(weights, p, 5), coverage_gain(weights, p, 5)
    assert bounds.lower == approx(gain, rel=1e-4) and bounds.upper == approx(gain, rel=1e-4)
    assert gain == approx(5 * 0.7**4 * 0.3e-5, rel=1e-4)


@thousand
@given(fitness_and_success(), st.integers(0, 2**32))
def test_the_price_identity_holds_for_signed_weights(population, seed):
    """p̄_w − p̄ = N·Cov(w, p), by NumPy's covariance; the covariance of the module is it, too."""
    _, p = population
    n = len(p)
    w = np.random.default_rng(seed).normal(size=n)
    w = w + (1 - w.sum()) / n
    by_numpy = np.cov(w, p, ddof=0)[0, 1]
    assert price_gain(w, p) == pytest.approx(n * by_numpy, rel=1e-9, abs=1e-13)
    assert price_gain(w, p) == pytest.approx(w @ p - p.mean(), rel=1e-9, abs=1e-13)
    assert covariance(w, p) == pytest.approx(by_numpy, rel=1e-9, abs=1e-13)
    weights = np.abs(w) / np.abs(w).sum()
    assert covariance(w, p, weights) == pytest.approx(np.cov(w, p, aweights=weights, ddof=0)[0, 1], rel=1e-9, abs=1e-13)


# L3.2


@thousand
@given(fitness_and_success(), st.sampled_from([-2.0, -0.1, 0.0, 1e-8, 0.5, 3.0]))
def test_the_gain_of_the_linear_tilt_is_beta_rho_sd(population, beta):
    fitness, p = population
    gain = price_gain(linear_tilt(fitness, beta), p)
    predicted = predict(beta, correlation(fitness, p), spread(p))
    assert gain == pytest.approx(predicted, rel=1e-7, abs=1e-13 * (1 + abs(beta)))
    if np.ptp(fitness) > 0 and np.ptp(p) > 0:
        assert correlation(fitness, p) == pytest.approx(np.corrcoef(fitness, p)[0, 1], rel=1e-6, abs=1e-7)
    else:
        assert correlation(fitness, p) == 0
    assert spread(p) == pytest.approx(np.std(p), rel=1e-9, abs=1e-15)
    assert check_identity(fitness, p, beta).verdict is Verdict.IDENTITY


def test_the_range_always_contains_one_over_the_root_of_n_minus_one():
    """One winner among N makes it sharp; in the LLM setting, β = ½ with 30 members, most populations lie outside."""
    rng = np.random.default_rng(0)
    for n in (2, 5, 30):
        low, high = tilt_range(rng.standard_cauchy(size=(500, n)))
        assert np.all(high >= (1 - 1e-12) / math.sqrt(n - 1)) and np.all(-low >= (1 - 1e-12) / math.sqrt(n - 1))
        low, high = tilt_range(-np.eye(n))
        assert high == approx([1 / math.sqrt(n - 1)] * n, rel=1e-12)
    _, high = tilt_range(rng.normal(size=(4000, 30)))
    assert 0.5 < np.mean(high < 0.5) < 0.7


# L3.3


@some
@given(fitness_and_success(), st.floats(-3, 3))
def test_the_slope_of_the_softmax_tilt_is_a_covariance(population, beta):
    """Against the complex-step derivative of p̄_w(β), exact to rounding."""
    fitness, p = population
    f = fitness / max(1.0, float(np.max(np.abs(fitness))))
    w = np.exp((beta + 1e-30j) * (f - f.max()))
    derivative = (w @ p / w.sum()).imag / 1e-30
    assert softmax_slope(f, p, beta) == pytest.approx(derivative, rel=1e-9, abs=1e-14)


@thousand
@given(fitness_and_success(), st.floats(-5, 5), st.floats(1e-6, 50))
def test_success_never_falls_with_beta_where_fitness_and_success_are_ordered_alike(population, beta, step):
    fitness, p = population
    f, q = np.sort(fitness / max(1.0, float(np.max(np.abs(fitness))))), np.sort(p)
    before, after = (mean_success(q, softmax_tilt(f, b)) for b in (beta, beta + step))
    assert after >= before * (1 - 1e-13)
    assert softmax_slope(f, q, beta) >= -1e-15


def test_a_positive_covariance_can_reverse_at_large_beta():
    """The theory's numbers: .450, .491, .450 at β = 0, ½, 20."""
    f, p = np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.9, 0.45])
    values = [float(mean_success(p, softmax_tilt(f, beta))) for beta in (0.0, 0.5, 20.0)]
    assert [round(v, 3) for v in values] == [0.450, 0.491, 0.450]
    assert (
        softmax_slope(f, p, 0.0) == approx(float(np.cov(f, p, ddof=0)[0, 1]), rel=1e-12)
        and softmax_slope(f, p, 0.0) > 0
    )
    assert softmax_slope(f, p, 2.0) < 0
    best = max(np.linspace(0, 20, 2001), key=lambda beta: mean_success(p, softmax_tilt(f, beta)))
    assert 0.3 < best < 1.5 and abs(softmax_slope(f, p, best)) < 1e-3


# L3.4


@some
@given(successes(), st.integers(1, 100))
def test_allocation_lowers_the_log_failure(population, responses):
    p, weights = population
    p = np.minimum(p, 1 - 1e-12)
    even, allotted = (responses * np.sum(w * safe_log1m(p)) for w in (np.full(len(p), 1 / len(p)), weights))
    assert allocation_gain(weights, p, responses) == pytest.approx(even - allotted, rel=1e-9, abs=1e-10)


def test_allocation_to_the_better_member():
    p = np.array([0.5, 0.75])
    assert allocation_gain(np.array([0.0, 1.0]), p, 2) == approx(math.log(2), rel=1e-12)
    assert allocation_gain(np.array([0.5, 0.5]), p, 2) == pytest.approx(0, abs=1e-15)


# L3.5


def test_noise_of_m_responses_and_reliability():
    for m, p in itertools.product((1, 3, 10), (0.0, 0.2, 1.0)):
        assert binomial_noise(p, m) == approx(stats.binom(m, p).var() / m**2, rel=1e-12)
    assert reliability(0.03, 0.01) == approx(0.75, rel=1e-15)
    assert reliability(0.0, 0.0) == 0 and reliability(0.1, 0.0) == 1 and reliability(0.0, 0.1) == 0


@pytest.mark.parametrize("m", [1, 2])
def test_raw_fitness_is_not_attenuated(m):
    """E gain over every outcome of m responses from each of three members: β·Var(p), for any m."""
    p, beta = np.array([0.1, 0.4, 0.8]), 0.7
    expected = 0.0
    for counts in itertools.product(range(m + 1), repeat=3):
        fitness = np.array(counts) / m
        weights = (1 + beta * (fitness - fitness.mean())) / 3
        expected += np.prod(stats.binom.pmf(counts, m, p)) * price_gain(weights, p)
    assert expected == approx(float(predict_raw(beta, p)), rel=1e-12)
    assert predict_raw(beta, p) == approx(beta * float(np.var(p)), rel=1e-12)


def test_the_z_scored_gain_is_attenuated_by_the_root_of_the_reliability():
    """Many members: mean over 800 populations of 500, against the prediction, to within its error bars."""
    rng = np.random.default_rng(1)
    for m in (1, 4, 16):
        p = rng.beta(2, 3, size=(800, 500))
        fitness = rng.binomial(m, p) / m
        gains = price_gain(linear_tilt(fitness, 0.3), p)
        reliable = reliability(0.04, np.mean(p * (1 - p)) / m)  # Var of Beta(2, 3) is 1/25
        predicted = predict_attenuated(0.3, 0.2, reliable)
        error = np.std(gains) / math.sqrt(len(gains))
        assert error < 0.005 * predicted
        assert abs(np.mean(gains) - predicted) < 4 * error + 0.002 * predicted
        assert predicted < 0.95 * predict(0.3, 1.0, 0.2)
    assert predict_attenuated(0.3, 0.2, 1.0, rho=0.5) == approx(0.03, rel=1e-12)


# L3.6


def test_the_price_of_weights():
    assert weighting_price(np.full(4, 0.25)) == approx(0.75, rel=1e-15)
    assert weighting_price(np.array([1.0, 0.0])) == 0
    w = np.array([0.5, 0.3, 0.2])
    assert weighting_price(w) == approx(1 - 0.38, rel=1e-14)
    assert rate(2.0, 0.1, w) == approx(0.01 * float(weighting_price(w)), rel=1e-14)


def test_the_loss_of_linear_fitness():
    """E Σwᵢ(εᵢ−ε̄_w)ᵀF(εᵢ−ε̄_w) of three Gaussian members by quadrature: fitness costs more than its weights do."""
    x, mass = np.polynomial.hermite_e.hermegauss(6)
    points = np.array(list(itertools.product(x, repeat=6))).reshape(-1, 3, 2)
    probability = np.prod(np.array(list(itertools.product(mass / mass.sum(), repeat=6))), axis=-1)
    fisher, gradient, beta, n = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([1.0, 0.0]), 0.6, 3
    weights = (1 + beta * reward_weighting.zscore(points @ gradient)) / n
    centred = points - np.sum(weights[..., None] * points, axis=1, keepdims=True)
    forms = np.einsum("kni,ij,knj,kn->k", centred, fisher, centred, weights)
    # Members of equal fitness have z = 0, not ±√…: nodes on the diagonal are no Gaussian event.
    distinct = np.ptp(points @ gradient, axis=1) > 0
    share = probability @ forms / np.trace(fisher)
    tied = probability[~distinct] @ forms[~distinct] / np.trace(fisher)
    expected = 1 - (1 + beta**2) / n - linear_fitness_loss(beta, fisher, gradient, n)
    # On the tied nodes the weights are uniform: E of the form there is known, too.
    correction = probability[~distinct].sum() * beta**2 / n * fisher[1, 1] / np.trace(fisher)
    assert share == approx(float(expected + correction), rel=1e-9) and tied > 0
    assert linear_fitness_loss(beta, fisher, 7 * gradient, n) == approx(0.36 / 3 * 2 / 3, rel=1e-12)
    assert linear_fitness_loss(beta, fisher, gradient, 2) == 0
    assert linear_fitness_loss(beta, fisher, np.zeros(2), n) == 0


def test_fitness_can_raise_diversity():
    """Fitness like ‖ε‖² puts weight on what is far from the center."""
    rng = np.random.default_rng(0)
    epsilon = rng.normal(size=(20_000, 8, 3))
    weights = (1 + 0.3 * reward_weighting.zscore(np.sum(epsilon**2, axis=-1))) / 8
    centred = epsilon - np.sum(weights[..., None] * epsilon, axis=1, keepdims=True)
    share = np.mean(np.sum(weights * np.sum(centred**2, axis=-1), axis=-1)) / 3
    assert share > 1 - 1 / 8 > 1 - (1 + 0.09) / 8


# Batches, extremes, checks, errors


def test_batches_and_torch_are_the_same():
    rng = np.random.default_rng(3)
    f, p, w = rng.normal(size=(3, 2, 4)), rng.random((3, 2, 4)), rng.dirichlet(np.ones(4), size=(3, 2))
    functions = (
        lambda f, p, w: bracket(w, p, 3).lower,
        lambda f, p, w: coverage_gain(w, p, 3),
        lambda f, p, w: covariance(f, p, w),
        lambda f, p, w: correlation(f, p),
        lambda f, p, w: softmax_slope(f, p, 0.7),
        lambda f, p, w: allocation_gain(w, p, 5),
        lambda f, p, w: weighting_price(w),
        lambda f, p, w: reliability(covariance(p, p), w[..., 0]),
    )
    for function in functions:
        batch = function(f, p, w)
        assert batch.shape == (3, 2) and function(f[2, 1], p[2, 1], w[2, 1]) == approx(batch[2, 1], rel=1e-11)
        assert np.asarray(function(*(torch.asarray(a) for a in (f, p, w)))) == approx(batch, rel=1e-10)


@some
@given(successes(), st.integers(0, 2**32), st.integers(1, 8))
def test_the_order_of_the_members_does_not_matter(population, seed, k):
    p, weights = population
    order = np.random.default_rng(seed).permutation(len(p))
    bounds, other = bracket(weights, p, k), bracket(weights[order], p[order], k)
    assert other.lower == pytest.approx(bounds.lower, rel=1e-9, abs=1e-14)
    assert other.upper == pytest.approx(bounds.upper, rel=1e-9, abs=1e-14)


def test_extremes_are_finite_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for p in ([0.0, 1.0], [1e-300, 0.0], [1.0, 1.0], [0.5]):
            p = np.array(p)
            weights = np.eye(len(p))[0]
            bounds = bracket(weights, p, 4)
            assert np.isfinite(bounds.lower) and np.isfinite(bounds.upper)
            assert bounds.lower <= coverage_gain(weights, p, 4) <= bounds.upper
        assert bracket(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 4).upper == 4 * 0.5**3 * 0.5
        assert bracket(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 4).lower == 0
        assert correlation(np.array([1e300, -1e300]), np.array([0.2, 0.1])) == approx(1.0)
        assert mean_success(np.array([0.3, 0.4]), softmax_tilt(np.array([0.0, 1.0]), 1e4)) == 0.4
        assert at_least_one(0.0, 3) == 0


def test_checks():
    assert check(0.10, 0.105, tolerance=0.1).verdict is Verdict.HOLDS
    assert check(0.10, 0.105, tolerance=0.01, statement="L3.6").verdict is Verdict.VIOLATED
    assert check(0.10, 0.105, gain_se=0.05).verdict is Verdict.UNDECIDED
    assert check(0.1, 0.1).statement == "L3.5"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bracket(np.array([0.6, 0.6]), np.array([0.1, 0.2]), 2), "sum to 1"),
        (lambda: bracket(np.array([1.5, -0.5]), np.array([0.1, 0.2]), 2), "negative"),
        (lambda: bracket(np.array([0.5, 0.5]), np.array([0.1, 1.2]), 2), r"\[0, 1\]"),
        (lambda: bracket(np.array([0.5, 0.5]), np.array([0.1, 0.2]), 0), "k >= 1"),
        (lambda: coverage_gain(np.array([1.0]), np.array([0.1, 0.2]), 2), "2 members"),
        (lambda: correlation(np.array([0.1, np.nan]), np.array([0.1, 0.2])), "finite"),
        (lambda: softmax_slope(np.array([0.1, np.inf]), np.array([0.1, 0.2]), 1.0), "finite"),
        (lambda: allocation_gain(np.array([0.5, 0.5]), np.array([0.1, 1.0]), 2), "below 1"),
        (lambda: binomial_noise(np.array([-0.1]), 2), r"\[0, 1\]"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


PRICE, COVARIANCE, ODDS, SIZE = price_gain, covariance, at_least_one, reward_weighting.effective_size
MUTANTS = {
    "price 1 % too large": ("price_gain", lambda w, p: 1.01 * PRICE(w, p)),
    "covariance with N − 1": ("covariance", lambda a, b, w=None: COVARIANCE(a, b, w) * a.shape[-1] / (a.shape[-1] - 1)),
    "coverage of one try more": ("at_least_one", lambda p, k: ODDS(p, k + 1)),
    "effective size 1 % too large": ("effective_size", lambda w: 1.01 * SIZE(w)),
    "log-failure 1 % too large": ("safe_log1m", lambda p: 1.01 * safe_log1m(p)),
    "correlation 1 % too large": ("correlation", lambda f, p: 1.01 * correlation(f, p)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(reward_weighting, attribute, mutant)
    with pytest.raises(AssertionError):
        p, weights = np.array([0.3, 0.5, 0.4]), np.array([0.2, 0.7, 0.1])
        assert bracket(weights, p, 3).lower <= coverage_gain(weights, p, 3) <= bracket(weights, p, 3).upper
        test_the_slopes_are_sharp()
        test_allocation_to_the_better_member()
        test_the_price_of_weights()
        assert reward_weighting.predict_raw(1.0, p) == approx(float(np.var(p)), rel=1e-9)
        assert check_identity(np.array([1.0, 2.0, 4.0]), p, 0.5).verdict is Verdict.IDENTITY


def test_tiny_successes_keep_their_spread():
    assert float(reward_weighting.spread([5e-243, 2e-220])) == pytest.approx(1e-220, rel=1e-12, abs=0)


def test_raw_gain_takes_tensors():
    p = torch.tensor([0.1, 0.3, 0.8], dtype=torch.float64)
    assert float(reward_weighting.predict_raw(0.3, p)) == pytest.approx(0.3 * np.var([0.1, 0.3, 0.8]), rel=1e-12)
