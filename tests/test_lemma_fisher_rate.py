"""L1 against quadrature over the noise, enumeration of sequences, 400-digit arithmetic, and itself."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from esth.check import Verdict
from esth.divergence import js, log_mixture, log_softmax, project, projected_js, weight_entropy
from esth.errors import InputError
from esth.estimators.js import log_posterior, position_terms
from esth.fisher import categorical_fisher, projected_fisher
from esth.lemmas import fisher_rate
from esth.lemmas.fisher_rate import (
    bracket,
    check,
    check_bracket,
    check_sigma,
    check_variance,
    diversity_factor,
    predict,
    predict_population,
    predict_quadratic,
    predict_two_categories,
    predict_variance,
    psi,
    relative_spread,
)
from tests.populations import MP, approx, exact, exact_js, populations, weight_vectors

thousand = settings(derandomize=True, deadline=None, max_examples=1000)
some = settings(derandomize=True, deadline=None, max_examples=200)

LOGITS = np.array([0.3, -0.6, 0.9])
WEIGHTS = [np.array([0.5, 0.5]), np.array([0.8, 0.2]), np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.0, 0.4])]


def gauss_hermite(dimensions, nodes):
    """Points [K, dimensions] and probabilities [K] whose mean is that of standard normal noise."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.array(list(itertools.product(x, repeat=dimensions)))
    return points, np.prod(np.array(list(itertools.product(w / np.sum(w), repeat=dimensions))), axis=-1)


def rademacher(dimensions):
    points = np.array(list(itertools.product((-1.0, 1.0), repeat=dimensions)))
    return points, np.full(len(points), 1.0 / len(points))


def product_noise(dimensions, nodes):
    """Products of two standard normal numbers, the entries of rank-one noise: variance 1, kurtosis 9."""
    points, mass = gauss_hermite(2 * dimensions, nodes)
    return points[:, :dimensions] * points[:, dimensions:], mass


def binary(points):
    """log-probabilities [..., N, 2] of two categories with log-odds [..., N]."""
    return log_softmax(np.stack([points, np.zeros_like(points)], axis=-1))


def mean_js(noise, mass, sigma, weights, log_odds=0.4):
    """E[JS] of two categories by a sum over the noise."""
    return mass @ js(binary(log_odds + sigma * noise), np.broadcast_to(weights, noise.shape))


# L1.1


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("family", ["gaussian", "rademacher", "low-rank"])
def test_the_rate_of_two_categories_and_its_next_order(family, weights):
    """E[JS] summed over the noise: σ² with the predicted constant, then σ⁴, then only σ⁶ is left."""
    n = len(weights)
    noise, kurtosis = {
        "gaussian": (gauss_hermite(n, 12), 3.0),
        "rademacher": (rademacher(n), 1.0),
        "low-rank": (product_noise(n, 6), 9.0),
    }[family]
    p = float(expit(0.4))
    rate = [mean_js(*noise, s, weights) / predict(p * (1 - p), s, weights) - 1 for s in (0.04, 0.02)]
    assert rate[1] == pytest.approx(0, abs=2e-3) and rate[0] / rate[1] == pytest.approx(4, rel=0.05)
    two = [mean_js(*noise, s, weights) - predict_two_categories(p, s, weights, kurtosis=kurtosis) for s in (0.08, 0.04)]
    assert two[0] / two[1] == pytest.approx(64, rel=0.15)


@pytest.mark.parametrize("weights", [[0.5, 0.5], [0.7, 0.3]])
def test_only_the_covariance_of_the_noise_enters_the_rate(weights):
    """Three categories, noise of a full covariance Σ = AAᵀ, made of signs: tr(FΣ), and tr(FᵛΣ) after a verifier."""
    mixing = np.array([[1.0, 0.4, 0.0], [-0.3, 0.8, 0.2], [0.1, 0.0, 0.5]])
    points, mass = rademacher(6)
    moves = points.reshape(-1, 2, 3) @ mixing.T
    weights, sigma = np.array(weights), 0.01
    log_p = log_softmax(LOGITS)
    covariance = mixing @ mixing.T
    members = log_softmax(LOGITS + sigma * moves)
    mean = mass @ js(members, np.broadcast_to(weights, (len(mass), 2)))
    assert mean == pytest.approx(predict(np.trace(categorical_fisher(log_p) @ covariance), sigma, weights), rel=1e-3)
    p = np.exp(log_p)
    gradient = p * (np.array([1.0, 0.0, 0.0]) - p[0])
    outcomes = project(members, np.array([0, 1, 1]), 2)
    mean = mass @ js(outcomes, np.broadcast_to(weights, (len(mass), 2)))
    assert mean == pytest.approx(
        predict(gradient @ covariance @ gradient / (p[0] * (1 - p[0])), sigma, weights), rel=1e-3
    )
    assert gradient @ covariance @ gradient / (p[0] * (1 - p[0])) == pytest.approx(
        np.trace(projected_fisher(p[0], gradient) @ covariance)
    )


@pytest.mark.parametrize("weights", [[0.25] * 4, [0.4, 0.1, 0.2, 0.3], [0.3, 0.3, 0.2, 0.2], [0.5, 0.0, 0.0, 0.5]])
def test_antithetic_pairs(weights):
    weights = np.array(weights)
    half, mass = gauss_hermite(2, 12)
    noise = np.stack([half, -half], axis=-1).reshape(len(half), 4)
    p = float(expit(0.4))
    expected = predict(p * (1 - p), 0.01, weights, antithetic=True)
    assert mean_js(noise, mass, 0.01, weights) == pytest.approx(expected, rel=1e-3)
    independent = diversity_factor(weights)
    assert diversity_factor(weights, antithetic=True) == pytest.approx(
        1 - (weights[0] - weights[1]) ** 2 - (weights[2] - weights[3]) ** 2
    )
    assert diversity_factor(weights, antithetic=True) >= independent


def test_diversity_factor_of_simple_weights():
    assert diversity_factor(np.full(5, 0.2)) == pytest.approx(0.8)
    assert diversity_factor(np.array([1.0, 0.0])) == 0
    assert diversity_factor(np.array([1.0])) == 0
    assert diversity_factor(np.full(6, 1 / 6), antithetic=True) == 1


@some
@given(st.integers(0, 2**32), weight_vectors(4))
def test_one_population_under_any_weights(seed, weights):
    """Fitness may have set the weights: the error is O(σ³), so the ratio differs from 1 by O(σ)."""
    rng = np.random.default_rng(seed)
    base, moves = rng.normal(size=5), rng.normal(size=(4, 5))
    deviations = []
    for sigma in (1e-2, 1e-3):
        measured = js(log_softmax(base + sigma * moves), weights)
        predicted = predict_population(log_softmax(base), sigma * moves, weights)
        matrix = predict_quadratic(categorical_fisher(log_softmax(base)), moves, sigma, weights)
        assert matrix == pytest.approx(predicted, rel=1e-9, abs=1e-20)
        deviations.append(abs(measured / predicted - 1) if predicted > 1e-12 else 0.0)
    assert deviations[0] < 0.05 and deviations[1] < 0.005


def test_the_predictions_are_batched_and_quadratic_in_sigma():
    weights = np.array([[0.5, 0.5], [0.9, 0.1]])
    batch = predict(np.array([1.0, 2.0]), np.array([0.1, 0.2]), weights)
    assert batch == approx([0.5 * 0.01 * 0.5, 0.5 * 0.04 * (1 - 0.82) * 2], rel=1e-14)
    assert predict(3.0, 0.0, weights[0]) == 0
    assert predict(1.0, 0.2, weights[0]) == approx(4 * predict(1.0, 0.1, weights[0]), rel=1e-14)
    p = predict_two_categories(np.array([0.0, 0.5, 1.0]), 0.1, np.full((3, 2), 0.5))
    assert p[0] == p[2] == 0 and p[1] < predict(0.25, 0.1, weights[0])


# L1.2


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("logits", [LOGITS, np.array([0.4, 0.0, -np.inf])], ids=["rank 2", "rank 1"])
def test_the_spread_of_js_over_populations(antithetic, logits):
    sigma, n, kept = 0.01, 2, np.isfinite(logits)
    logits = logits[kept]
    v = len(logits)
    half, mass = gauss_hermite(v if antithetic else 2 * v, 5)
    noise = np.stack([half, -half], axis=1) if antithetic else half.reshape(-1, n, v)
    values = js(log_softmax(logits + sigma * noise))
    mean = mass @ values
    variance = mass @ (values - mean) ** 2
    fisher = categorical_fisher(log_softmax(logits))
    assert variance == approx(predict_variance(fisher, sigma, n, antithetic=antithetic), rel=2e-3)
    if not antithetic:
        assert math.sqrt(variance) / mean == approx(relative_spread(fisher, n), rel=2e-3)


def test_the_spread_of_three_members():
    noise, mass = gauss_hermite(3, 8)
    values = js(binary(0.4 + 0.01 * noise))
    variance = mass @ (values - mass @ values) ** 2
    p = float(expit(0.4))
    assert variance == approx(predict_variance(np.array([[p * (1 - p)]]), 0.01, 3), rel=2e-3)
    assert relative_spread(np.eye(8), 5) == approx(math.sqrt(2 / (4 * 8)), rel=1e-12)


# L1.3


@thousand
@given(st.floats(-700, 650))
def test_psi_is_its_definition(s):
    exact_s = exact(s)
    # 400 digits are not enough for numbers whose square is below 1e-300.
    value = 0.5 + exact_s / 3 if abs(s) < 1e-100 else (MP.exp(exact_s) * (exact_s - 1) + 1) / exact_s**2
    assert float(psi(s)) == approx(float(value), rel=2e-14)


def test_psi_at_the_edges_and_as_an_integral():
    assert psi(0.0) == 0.5 and psi(1e4) == np.inf and psi(1e-300) == 0.5
    assert psi(-1e4) == approx(1e-8, rel=1e-12) and psi(-1e100) == approx(1e-200, rel=1e-12)
    x, w = np.polynomial.legendre.leggauss(40)
    t = (x + 1) / 2
    for s in (-20.0, -1.0, 0.3, 1.0, 5.0):
        assert psi(s) == approx(np.sum(w / 2 * t * np.exp(s * t)), rel=1e-12)


def contains(bounds, value, slack=1e-9, floor=1e-15):
    """Whether lower <= value <= upper up to rounding; the floor is that of sums of numbers of order 1."""
    allowed = slack * np.maximum(np.abs(value), 0) + floor
    return bool(np.all(bounds.lower <= value + allowed) & np.all(value <= bounds.upper + allowed))


@thousand
@given(populations())
def test_js_lies_in_its_bracket(population):
    log_p, weights = population
    bounds = bracket(log_p, weights)
    assert contains(bounds, js(log_p, weights))
    assert np.all(bounds.lower >= 0) and np.all(bounds.upper <= weight_entropy(weights) + 1e-15)


@some
@given(populations(forbidden=False))
def test_the_bracket_is_its_formula(population):
    assert_formula(*population)


def assert_formula(log_p, weights):
    """Every piece of the bracket from its definition in 400 digits."""
    n, v = log_p.shape
    z = [[exact(x) for x in row] for row in log_p]
    total = MP.fsum(exact(w) for w in weights)
    w = [exact(x) / total for x in weights]
    zbar = [MP.fsum(w[i] * z[i][y] for i in range(n)) for y in range(v)]
    q = [MP.exp(x - max(zbar)) for x in zbar]
    q = [x / MP.fsum(q) for x in q]
    u = [[z[i][y] - zbar[y] for y in range(v)] for i in range(n)]
    span = [max(row) - min(row) for row in u]
    mean = [MP.fsum(a * b for a, b in zip(q, row, strict=True)) for row in u]
    variance = [MP.fsum(a * (b - m) ** 2 for a, b in zip(q, row, strict=True)) for row, m in zip(u, mean, strict=True)]

    def exact_psi(s):
        return MP.mpf(1) / 2 if s == 0 else (MP.exp(s) * (s - 1) + 1) / s**2

    # ψ overflows above 699, where the bracket takes span²/8.
    parts = [min(v_i * exact_psi(s), s**2 / 8) if s < 699 else s**2 / 8 for v_i, s in zip(variance, span, strict=True)]
    upper = MP.fsum(a * b for a, b in zip(w, parts, strict=True) if a > 0)
    ceiling = -MP.fsum(x * MP.log(x) for x in w if x > 0)
    value = exact_js(log_p, weights)
    bounds = bracket(log_p, weights)
    assert float(bounds.upper) == approx(float(min(upper, ceiling)), rel=1e-7, abs=1e-15)
    p = [[MP.exp(x) for x in row] for row in z]
    p = [[x / MP.fsum(row) for x in row] for row in p]
    pbar = [MP.fsum(w[i] * p[i][y] for i in range(n)) for y in range(v)]
    chi = MP.fsum((a - b) ** 2 / b for a, b in zip(pbar, q, strict=True))
    compensation = MP.fsum(w[i] * variance[i] * exact_psi(-span[i]) for i in range(n)) - MP.log1p(chi)
    pinsker = MP.fsum(w[i] * MP.fsum(abs(a - b) for a, b in zip(p[i], pbar, strict=True)) ** 2 / 2 for i in range(n))
    lower = max(compensation, pinsker)
    assert float(bounds.lower) == approx(float(lower), rel=1e-6, abs=1e-15)
    assert lower <= value * (1 + MP.mpf(10) ** -300) + MP.mpf(10) ** -300
    assert value <= min(upper, ceiling) + MP.mpf(10) ** -300


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2])
def test_both_sides_meet_at_small_spread(scale):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=6) + scale * rng.normal(size=(3, 6))
    bounds, value = bracket(logits), js(log_softmax(logits))
    assert bounds.lower <= value <= bounds.upper
    assert float(bounds.lower / value) > 1 - 4 * scale and float(value / bounds.upper) > 1 - 4 * scale


def test_each_constant_is_sharp():
    """Instances at which one per cent less would be false."""
    tiny = np.array([[1e-4, 0.0], [-1e-4, 0.0]])  # two equal categories: Var = s²/4, JS = s²/8 = Pinsker
    value, s = float(js(log_softmax(tiny))), 1e-4
    assert value == approx(s**2 / 8, rel=1e-6)
    assert bracket(tiny).lower == approx(value, rel=1e-6) and bracket(tiny).upper == approx(value, rel=1e-6)
    # A rare category: KL(π‖q) = Var_q(u)ψ(s) at any s; the second member, of almost all weight, is q itself.
    for s in (3.0, -3.0):
        weights = np.array([1e-9, 1 - 1e-9])
        logits = np.array([[-30.0 + s, 0.0], [-30.0, 0.0]])
        assert js(log_softmax(logits), weights) == approx(1e-9 * math.exp(-30) * s**2 * float(psi(s)), rel=1e-6)


@some
@given(populations(forbidden=False), st.integers(0, 2**32))
def test_the_bracket_does_not_depend_on_names_shifts_and_idle_members(population, seed):
    log_p, weights = population
    n, v = log_p.shape
    rng = np.random.default_rng(seed)
    reference = bracket(log_p, weights)

    def same(other, rel=1e-6):
        assert other.lower == approx(reference.lower, rel=rel, abs=1e-15)
        assert other.upper == approx(reference.upper, rel=rel, abs=1e-15)

    members, categories = rng.permutation(n), rng.permutation(v)
    same(bracket(log_p[members][:, categories], weights[members]))
    same(bracket(log_p + rng.choice([-1.0, 0.5, 2.0], size=(n, 1)), weights))
    idle = np.concatenate([log_p, np.full((1, v), -np.inf) if v > 1 else np.zeros((1, 1))])
    if v > 1:
        idle[-1, 0] = 0.0
    same(bracket(idle, np.append(weights, 0.0)))
    # A member split into two equal ones: only H(w) sees it.
    split = np.concatenate([log_p, log_p[:1]])
    shared = np.concatenate([[0.3 * weights[0]], weights[1:], [0.7 * weights[0]]])
    both = bracket(split, shared)
    assert both.lower == approx(reference.lower, rel=1e-6, abs=1e-15)
    assert both.upper >= reference.upper * (1 - 1e-6) - 1e-15
    assert js(split, shared) == approx(js(log_p, weights), rel=1e-6, abs=1e-15)


@thousand
@given(populations(), st.integers(2, 4), st.randoms(use_true_random=False))
def test_merging_outcomes_lowers_js_so_the_upper_side_holds_for_the_verifier_too(population, outcomes, random):
    log_p, weights = population
    outcome = np.array([random.randrange(outcomes) for _ in range(log_p.shape[1])])
    merged = js(project(log_p, outcome, outcomes), weights)
    assert merged <= js(log_p, weights) * (1 + 1e-9) + 1e-15
    assert merged <= bracket(log_p, weights).upper * (1 + 1e-9) + 1e-15


def test_temperatures_zero_and_infinity():
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [4.0, 0.0, 1.0]])
    weights = np.array([0.5, 0.3, 0.2])
    cold, hot = logits * 1e4, logits * 1e-7
    argmax = -0.7 * math.log(0.7) - 0.3 * math.log(0.3)
    assert js(log_softmax(cold), weights) == approx(argmax, rel=1e-12)
    assert contains(bracket(cold, weights), argmax) and bracket(cold, weights).upper == approx(weight_entropy(weights))
    assert bracket(hot, weights).upper < 1e-13 and bracket(hot, weights).lower > 0


def test_extremes_give_finite_brackets_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = bracket(np.array([[1e4, -1e4], [-1e4, 1e4]]))
        assert (
            far.upper == approx(math.log(2))
            and far.lower == approx(0.5)
            and js(log_softmax([[1e4, -1e4], [-1e4, 1e4]]))
        )
        for alone in (bracket(np.array([[1.0, -5.0]])), bracket(np.zeros((3, 1))), bracket(np.full((2, 4), 7.0))):
            assert abs(alone.lower) < 1e-30 and abs(alone.upper) < 1e-30
        restricted = bracket(np.array([[0.0, -np.inf], [-np.inf, 0.0]]), np.array([0.9, 0.1]))
        assert restricted.upper == approx(weight_entropy(np.array([0.9, 0.1])))
        assert restricted.lower == approx(2 * (0.9 * 0.01 + 0.1 * 0.81))
        rare = np.array([[0.0, math.log(1e-300)], [0.0, 0.0]])
        assert contains(bracket(rare), js(log_softmax(rare)))


def test_batches_and_torch_are_the_same():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(3, 2, 4, 5)) * np.array([1e-3, 1.0, 30.0])[:, None, None, None]
    weights = rng.dirichlet(np.ones(4), size=(3, 2))
    batch = bracket(logits, weights)
    for index in np.ndindex(3, 2):
        one = bracket(logits[index], weights[index])
        assert one.lower == approx(batch.lower[index], rel=1e-12) and one.upper == approx(batch.upper[index], rel=1e-12)
    tensors = bracket(torch.asarray(logits), torch.asarray(weights))
    assert np.asarray(tensors.lower) == approx(batch.lower, rel=1e-9)
    assert np.asarray(tensors.upper) == approx(batch.upper, rel=1e-9)
    p = torch.tensor([0.2, 0.7], dtype=torch.float64)
    w = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    assert np.asarray(predict_two_categories(p, 0.3, w)) == approx(
        predict_two_categories(p.numpy(), 0.3, w.numpy()), rel=1e-12
    )
    assert float(psi(torch.tensor(2.0, dtype=torch.float64))) == approx(float(psi(2.0)), rel=1e-15)


# L1.4


def tree(seed, n=3, v=3, scale=1.0):
    """log-probabilities of the first token [N, V] and of the second after each first one [N, V, V]."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(1 + v, v))
    log_p = log_softmax(base + scale * rng.normal(size=(n, 1 + v, v)))
    return log_p[:, 0], log_p[:, 1:]


def prefix_sums(first, second, weights, value):
    """value at the empty prefix plus its mean over first tokens drawn from the mixture."""
    scores = first.T
    root = value(first, log_posterior(np.zeros(len(weights)), weights))
    after = value(np.moveaxis(second, 0, 1), log_posterior(scores, np.broadcast_to(weights, scores.shape)))
    return root + np.sum(np.exp(log_mixture(first, weights)) * after)


@some
@given(st.integers(0, 2**32), weight_vectors(3), st.sampled_from([1e-5, 1e-2, 1.0, 30.0]))
def test_brackets_and_js_add_up_along_a_sequence(seed, weights, scale):
    first, second = tree(seed, scale=scale)
    sequences = (first[:, :, None] + second).reshape(3, -1)
    value = js(sequences, weights)
    parts = {
        name: prefix_sums(
            first, second, weights, lambda z, posterior, name=name: getattr(position_terms(z, posterior), name)
        )
        for name in ("chain", "lower", "upper")
    }
    assert parts["chain"] == pytest.approx(value, rel=1e-7, abs=1e-14)
    assert parts["lower"] <= value * (1 + 1e-7) + 1e-14
    assert value <= parts["upper"] * (1 + 1e-7) + 1e-14
    if scale == 1e-5:
        assert parts["lower"] == pytest.approx(parts["upper"], rel=1e-3)


def test_with_prior_weights_the_sum_over_prefixes_is_no_bound():
    """The first token tells who speaks, the second repeats what each would say: it adds nothing, yet has JS log 2."""
    log_p = np.log(np.array([[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]]))
    first, second = log_p, np.repeat(log_p[:, None], 2, axis=1)
    weights = np.array([0.5, 0.5])
    value = js((first[:, :, None] + second).reshape(2, -1), weights)
    assert value == approx(math.log(2), rel=1e-6)
    with_prior = js(log_p, weights) + np.mean(js(np.moveaxis(second, 0, 1), np.full((2, 2), 0.5)))
    assert with_prior == approx(2 * math.log(2), rel=1e-6)
    lower = 2 * bracket(log_p, weights).lower
    assert lower > 1.4 * value
    right = prefix_sums(first, second, weights, lambda z, posterior: position_terms(z, posterior).lower)
    assert right <= value


def test_data_processing_is_not_token_by_token():
    """Equal first tokens, opposite second ones: the verdict on the whole says more than the first token."""
    first = np.log(np.full((2, 2), 0.5))
    second = np.log(np.array([[[1 - 1e-12, 1e-12]] * 2, [[1e-12, 1 - 1e-12]] * 2]))
    weights = np.array([0.5, 0.5])
    about_verdict = projected_js(np.exp(second[:, :, 0]) @ np.array([0.5, 0.5]), weights)  # accepted: second token 0
    assert js(first, weights) == 0 and about_verdict == approx(math.log(2), rel=1e-9)
    assert about_verdict <= js((first[:, :, None] + second).reshape(2, -1), weights) * (1 + 1e-12)


# Checks and errors


def test_checks():
    noise, mass = gauss_hermite(2, 12)
    p, weights = float(expit(0.4)), np.array([0.5, 0.5])
    value, predicted = float(mean_js(noise, mass, 0.05, weights)), float(predict(p * (1 - p), 0.05, weights))
    assert check(value, predicted, tolerance=0.01).verdict is Verdict.HOLDS
    assert check(value, 1.02 * predicted, tolerance=0.01).verdict is Verdict.VIOLATED
    assert check(value, predicted, js_se=0.1 * value, tolerance=0.01).verdict is Verdict.UNDECIDED
    logits = np.array([[0.1, 0.0], [0.0, 0.1]])
    inside = check_bracket(float(js(log_softmax(logits))), bracket(logits), 2)
    assert inside.verdict is Verdict.HOLDS and inside.statement == "L1.3" and "JS/upper 1" in inside.detail
    assert check_bracket(0.1, bracket(logits), 2, sequence=True).verdict is Verdict.VIOLATED
    assert check_bracket(0.1, bracket(logits), 2, sequence=True).statement == "L1.4"
    vacuous = fisher_rate.Bracket(-0.3, math.log(2))
    assert check_bracket(0.4, vacuous, 2).verdict is Verdict.VACUOUS
    assert check_variance(1.0, 1.05, variance_se=0.01).verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict(1.0, -0.1, np.array([1.0])), "sigma"),
        (lambda: check_sigma(math.nan), "sigma"),
        (lambda: check_sigma(math.inf), "sigma"),
        (lambda: predict_two_categories(1.5, 0.1, np.array([1.0])), r"\[0, 1\]"),
        (lambda: diversity_factor(np.full(3, 1 / 3), antithetic=True), "N = 3 is odd"),
        (lambda: diversity_factor(np.array([0.7, 0.7])), "sum to 1"),
        (lambda: diversity_factor(np.array([1.5, -0.5])), "negative"),
        (lambda: bracket(np.zeros((2, 3)), np.array([0.5, 0.6])), "sum to 1"),
        (lambda: bracket(np.array([[0.0, np.nan], [0.0, 0.0]])), "NaN"),
        (lambda: bracket(np.zeros((2, 3)), np.full(3, 1 / 3)), "2 members"),
        (lambda: relative_spread(np.eye(2), 1), "N >= 2"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


MUTANTS = {
    "psi 1 % too small": ("psi", lambda s: 0.99 * psi(s)),
    "psi of a smaller span": ("psi", lambda s: psi(0.99 * s)),
    "variance 1 % too large": ("categorical_variance", lambda p, u: 1.01 * fisher_rate_variance(p, u)),
    "no compensation": ("renyi2", lambda p, q: np.zeros(np.shape(p)[:-1])),
    "distance for its half": ("total_variation", lambda p, q: 2 * fisher_rate_distance(p, q)),
    "rate 1 % too large": ("diversity_factor", lambda w, antithetic=False: 1.01 * factor(w, antithetic=antithetic)),
    "entropy 1 % too small": ("weight_entropy", lambda w: 0.99 * weight_entropy(w)),
}
fisher_rate_variance, fisher_rate_distance, factor = (
    fisher_rate.categorical_variance,
    fisher_rate.total_variation,
    fisher_rate.diversity_factor,
)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(fisher_rate, attribute, mutant)
    rng = np.random.default_rng(3)
    with pytest.raises(AssertionError):
        for scale in (0.01, 1.0, 3.0):
            assert_formula(log_softmax(rng.normal(size=4) + scale * rng.normal(size=(3, 4))), np.array([0.5, 0.3, 0.2]))
        test_each_constant_is_sharp()
        test_temperatures_zero_and_infinity()
        test_the_predictions_are_batched_and_quadratic_in_sigma()


def test_upper_bracket_survives_a_variance_that_underflows():
    """Var_q is 0 in float64 while ψ is not: their product must not win the minimum."""
    logits = np.array([[49.08166348, -932.35613032]] * 3 + [[379.36412085, 326.88094678]])
    value, bounds = js(log_softmax(logits)), fisher_rate.bracket(logits)
    assert 0 < value < bounds.upper and bounds.lower <= value


def test_psi_far_out():
    assert float(fisher_rate.psi(-1e200)) == 0.0
    assert float(fisher_rate.psi(-1e10)) == pytest.approx(1e-20, rel=1e-12, abs=0)
