"""T5 against enumeration of every population on a cube, quadrature of Gaussian noise, and itself."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esth.check import Verdict
from esth.errors import InputError
from esth.lemmas import two_point
from esth.lemmas.two_point import (
    check,
    one_point_estimate,
    predict,
    predict_linear,
    two_point_estimate,
    two_point_wins,
)
from tests.populations import approx

thousand = settings(derandomize=True, deadline=None, max_examples=1000)


@st.composite
def cubes(draw):
    """An objective on {−1, 1}^d, where Rademacher noise is uniform: values [2^d], corner i opposite to −1−i."""
    d = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.normal(size=2**d)
    part = draw(st.sampled_from(["any", "odd", "even"]))
    if part != "any":
        values = values + (-1 if part == "odd" else 1) * values[::-1]
    return d, values * draw(st.sampled_from([1e-3, 1.0, 1e3]))


def corners(d):
    return np.array(list(itertools.product((-1.0, 1.0), repeat=d)))


def pairs(d, n):
    """Indices of the corners of all populations of n/2 antithetic pairs: [populations, n]."""
    first = np.array(list(itertools.product(range(2**d), repeat=n // 2)))
    return np.stack([first, 2**d - 1 - first], axis=-1).reshape(len(first), n)


def independent(d, n):
    return np.array(list(itertools.product(range(2**d), repeat=n)))


def mean_and_total_variance(estimates):
    """Mean [d] over equally likely populations, and the variances summed over the coordinates."""
    mean = estimates.mean(axis=0)
    return mean, float(np.mean(np.sum((estimates - mean) ** 2, axis=-1)))


def moments(values):
    """V = Var f, C = Cov(f₊, f₋), and σ∇ of the smoothed objective, E fε."""
    centred = values - values.mean()
    d = int(math.log2(len(values)))
    return float(np.mean(centred**2)), float(np.mean(centred * centred[::-1])), corners(d).T @ centred / len(values)


# The estimates


def test_two_point_estimation_is_antithetic_es():
    """(2/N)Σ_pairs (f₊−f₋)/(2σ)·ε and (1/(Nσ))Σ fᵢεᵢ are one number."""
    rng = np.random.default_rng(0)
    half, fitness, sigma = rng.normal(size=(7, 3, 4)), rng.normal(size=(7, 6)), 0.2
    noise = np.stack([half, -half], axis=2).reshape(7, 6, 4)
    es = np.sum(fitness[..., None] * noise, axis=1) / (6 * sigma)
    assert two_point_estimate(fitness, noise, sigma) == approx(es, rel=1e-9, abs=1e-13)
    difference = sum((fitness[:, 2 * k] - fitness[:, 2 * k + 1])[:, None] / (2 * sigma) * half[:, k] for k in range(3))
    assert two_point_estimate(fitness, noise, sigma) == approx(difference * 2 / 6, rel=1e-9, abs=1e-13)


@thousand
@given(cubes(), st.sampled_from([0.1, 2.0]))
def test_both_estimates_are_unbiased_for_the_smoothed_gradient(cube, sigma):
    d, values = cube
    gradient = moments(values)[2] / sigma
    scale = np.max(np.abs(values)) / sigma
    for index, estimate in ((pairs(d, 2), two_point_estimate), (independent(d, 2), one_point_estimate)):
        mean, _ = mean_and_total_variance(estimate(values[index], corners(d)[index], sigma))
        assert mean == pytest.approx(gradient, rel=1e-9, abs=1e-13 * scale)


def test_a_baseline_changes_nothing_but_the_variance():
    rng = np.random.default_rng(1)
    fitness, noise = rng.normal(size=5), rng.normal(size=(5, 2))
    plain = one_point_estimate(fitness, noise, 0.1)
    assert one_point_estimate(fitness + 1e3, noise, 0.1) == approx(plain, rel=1e-9, abs=1e-11)
    # Leaving the member out of its own baseline is the same estimate.
    others = np.array([np.mean(np.delete(fitness, i)) for i in range(5)])
    assert plain == approx(np.sum((fitness - others)[:, None] * noise, axis=0) / (5 * 0.1), rel=1e-10)
    assert one_point_estimate(fitness, noise, 0.2) == approx(plain / 2, rel=1e-12)


# Their variances at any σ


@thousand
@given(cubes(), st.sampled_from([0.1, 2.0]))
def test_the_variance_on_a_cube(cube, sigma):
    """Rademacher noise has ‖ε‖² = d, so the sums over the coordinates are exact at any σ:

    two-point d(V−C)/(σ²N) − 2‖ĝ‖²/N, one-point dV/(σ²(N−1)) − (N−2)‖ĝ‖²/(N(N−1)). The prediction is d·(V−C)/(σ²N):
    right up to a share 1/d, and with 1/N for the baseline.
    """
    d, values = cube
    variance, covariance, move = moments(values)
    square = move @ move / sigma**2
    floor = 1e-12 * d * np.max(values**2) / sigma**2
    for n in (2, 4) if d < 3 else (2,):
        index = pairs(d, n)
        _, total = mean_and_total_variance(two_point_estimate(values[index], corners(d)[index], sigma))
        predicted = d * predict(variance, covariance, sigma, n)
        assert total == pytest.approx(predicted - 2 * square / n, rel=1e-9, abs=floor)
        assert (1 - 1 / d) * predicted - floor <= total <= predicted + floor
    for n in (2, 3) if d < 3 else (2,):
        index = independent(d, n)
        _, total = mean_and_total_variance(one_point_estimate(values[index], corners(d)[index], sigma))
        predicted = d * predict(variance, 0.0, sigma, n)
        assert total == pytest.approx(n / (n - 1) * predicted - (n - 2) / (n * (n - 1)) * square, rel=1e-9, abs=floor)


@thousand
@given(cubes())
def test_two_point_wins_where_the_pair_is_positively_correlated(cube):
    """C >= 0 = C′: its variance is smaller."""
    d, values = cube
    variance, covariance, _ = moments(values)
    index, other = pairs(d, 2), independent(d, 2)
    _, paired = mean_and_total_variance(two_point_estimate(values[index], corners(d)[index], 1.0))
    _, single = mean_and_total_variance(one_point_estimate(values[other], corners(d)[other], 1.0))
    if covariance >= 0:
        assert two_point_wins(covariance, 0.0) >= 0
        assert paired <= single / 2 * (1 + 1e-9) + 1e-12 * variance
    assert abs(covariance) <= variance * (1 + 1e-12)


def test_two_point_loses_on_odd_objectives_of_many_directions():
    """f = ε₁ε₂ε₃ is odd, C = −V: at N evaluations two-point has 2·(N−1)/N of the one-point variance."""
    points = corners(3)
    values = np.prod(points, axis=-1)
    assert moments(values)[:2] == approx((1.0, -1.0), rel=1e-12)
    rng = np.random.default_rng(0)
    half = rng.integers(8, size=(100_000, 4))
    index = np.stack([half, 7 - half], axis=-1).reshape(-1, 8)
    _, paired = mean_and_total_variance(two_point_estimate(values[index], points[index], 1.0))
    index = rng.integers(8, size=(100_000, 8))
    _, single = mean_and_total_variance(one_point_estimate(values[index], points[index], 1.0))
    assert two_point_wins(-1.0, 0.0) == -1
    assert paired / single == pytest.approx(2 * 7 / 8, rel=0.02)
    assert paired == pytest.approx(3 * predict(1.0, -1.0, 1.0, 8), rel=0.02)


def test_what_all_members_share_costs_the_one_point_estimate_nothing():
    """A common offset of variance τ² (a shared batch) raises V and C′ alike, and V − C′ is what counts."""
    d, values, offset = 2, np.array([0.3, -1.0, 0.8, 0.4]), 3.0
    variance, _, _ = moments(values)
    index = independent(d, 2)
    shifted = np.concatenate([values[index] + offset, values[index] - offset])
    noise = np.concatenate([corners(d)[index]] * 2)
    alone = mean_and_total_variance(one_point_estimate(values[index], corners(d)[index], 0.5))[1]
    assert mean_and_total_variance(one_point_estimate(shifted, noise, 0.5))[1] == approx(alone, rel=1e-12)
    assert predict(variance + offset**2, offset**2, 0.5, 2) == approx(float(predict(variance, 0.0, 0.5, 2)), rel=1e-12)


# Linear objectives, Gaussian directions


@pytest.mark.parametrize(("within", "across"), [(0.0, 0.0), (0.6, 0.3), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_linear_objectives_with_correlated_noise(dimensions, within, across):
    """Variances of each coordinate by quadrature over ε and all signs of the noise of f; exact for polynomials."""
    gradient, sigma, deviation, n = np.array([0.8, -0.5])[:dimensions], 0.3, 0.2, 2
    x, mass = np.polynomial.hermite_e.hermegauss(4)

    def average(points, values):
        weights = np.prod(np.array(list(itertools.product(mass / mass.sum(), repeat=points))), axis=-1)
        weights = np.repeat(weights, 8) / 8
        mean = weights @ values
        return weights @ (values - mean) ** 2

    def noisy(shared, correlation):
        """f of two members with noise √c·shared + √(1−c)·own, over its eight signs."""
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
        own = deviation * (math.sqrt(correlation) * signs[:, :1] + math.sqrt(1 - correlation) * signs[:, 1:])
        return (shared[:, None, :] + own).reshape(-1, n)

    grid = np.array(list(itertools.product(x, repeat=dimensions)))
    noise = np.stack([grid, -grid], axis=1)
    estimates = two_point_estimate(noisy(sigma * noise @ gradient, within), np.repeat(noise, 8, axis=0), sigma)
    predicted = predict_linear(gradient, deviation**2, within, sigma, n, two_point=True)
    assert average(dimensions, estimates) == approx(predicted, rel=1e-10)

    noise = np.array(list(itertools.product(x, repeat=n * dimensions))).reshape(-1, n, dimensions)
    estimates = one_point_estimate(noisy(sigma * noise @ gradient, across), np.repeat(noise, 8, axis=0), sigma)
    predicted = predict_linear(gradient, deviation**2, across, sigma, n, two_point=False)
    assert average(n * dimensions, estimates) == approx(predicted, rel=1e-10)


def test_the_baseline_costs_one_evaluation():
    """Three members, one direction: (‖g‖² + g² + τ²/σ²)/2."""
    x, mass = np.polynomial.hermite_e.hermegauss(4)
    noise = np.array(list(itertools.product(x, repeat=3)))[..., None]
    weights = np.prod(np.array(list(itertools.product(mass / mass.sum(), repeat=3))), axis=-1)
    values = one_point_estimate(0.5 * 0.8 * noise[..., 0], noise, 0.5)[:, 0]
    variance = weights @ (values - weights @ values) ** 2
    assert variance == approx(float(predict_linear(np.array([0.8]), 0.0, 0.0, 0.5, 3, two_point=False)[0]), rel=1e-10)
    assert variance == approx(2 * 0.64 / 2, rel=1e-10)


def test_the_crossover_of_linear_objectives():
    """Noise that the pair shares makes two-point win; without it, twice the signal makes it lose."""
    gradient = np.array([1.0, 0.5])
    for shared, wins in ((0.0, False), (0.95, True)):
        paired = predict_linear(gradient, 1.0, shared, 0.5, 30, two_point=True)
        single = predict_linear(gradient, 1.0, 0.0, 0.5, 30, two_point=False)
        assert np.all((paired < single) == wins)


# Batches, extremes, checks, errors


def test_batches_and_torch_are_the_same():
    rng = np.random.default_rng(2)
    fitness, noise = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 2, 4, 5))
    noise[..., 1::2, :] = -noise[..., 0::2, :]
    for estimate in (one_point_estimate, two_point_estimate):
        batch = estimate(fitness, noise, 0.3)
        assert batch.shape == (3, 2, 5) and estimate(fitness[1, 1], noise[1, 1], 0.3) == approx(batch[1, 1], rel=1e-12)
        assert np.asarray(estimate(torch.asarray(fitness), torch.asarray(noise), 0.3)) == approx(batch, rel=1e-11)
    gradient = torch.tensor([0.3, 0.4], dtype=torch.float64)
    linear = predict_linear(gradient, 0.1, 0.5, 0.2, 4, two_point=True)
    assert np.asarray(linear) == approx(predict_linear(gradient.numpy(), 0.1, 0.5, 0.2, 4, two_point=True), rel=1e-12)
    assert predict(np.array([2.0, 3.0]), 1.0, 0.5, 4) == approx([1.0, 2.0], rel=1e-15)


def test_equal_fitness_gives_no_estimate_and_extremes_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noise = np.random.default_rng(0).normal(size=(4, 3))
        noise[1::2] = -noise[0::2]
        for estimate in (one_point_estimate, two_point_estimate):
            assert estimate(np.full(4, 7.0), noise, 0.1).tolist() == [0.0] * 3
            assert np.all(np.isfinite(estimate(np.array([1e300, 0.0, -1e300, 1.0]), noise, 0.1)))
            assert np.all(np.isfinite(estimate(np.array([1e-300, 0.0, 1e-300, 0.0]), noise, 1e-3)))
        assert predict(0.0, 0.0, 0.1, 2) == 0


@thousand
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_the_order_of_pairs_and_members_does_not_matter(seed, half):
    rng = np.random.default_rng(seed)
    fitness, noise = rng.normal(size=2 * half), rng.normal(size=(2 * half, 3))
    noise[1::2] = -noise[0::2]
    order = rng.permutation(half)
    swapped = np.stack([2 * order, 2 * order + 1], axis=-1)
    swapped = np.where(rng.random((half, 1)) < 0.5, swapped, swapped[:, ::-1]).ravel()
    paired = two_point_estimate(fitness, noise, 0.3)
    assert two_point_estimate(fitness[swapped], noise[swapped], 0.3) == approx(paired, rel=1e-9, abs=1e-12)
    any_order = rng.permutation(2 * half)
    single = one_point_estimate(fitness, noise, 0.3)
    assert one_point_estimate(fitness[any_order], noise[any_order], 0.3) == approx(single, rel=1e-9, abs=1e-12)


def test_checks():
    assert check(1.05, 1.0, what="variance").verdict is Verdict.HOLDS
    assert check(1.05, 1.0, what="variance", tolerance=0.01).verdict is Verdict.VIOLATED
    assert check(1.05, 1.0, what="variance", measured_se=0.5).verdict is Verdict.UNDECIDED
    assert check(1.0, 1.0, what="variance").statement == "T5"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_point_estimate(np.zeros(1), np.zeros((1, 2)), 0.1), "N >= 2"),
        (lambda: two_point_estimate(np.zeros(3), np.zeros((3, 2)), 0.1), "N = 3 is odd"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


PREDICT, LINEAR, ONE, TWO = predict, predict_linear, one_point_estimate, two_point_estimate
MUTANTS = {
    "prediction 1 % too large": ("predict", lambda v, c, s, n: 1.01 * PREDICT(v, c, s, n)),
    "covariance added": ("predict", lambda v, c, s, n: PREDICT(v, -c, s, n)),
    "linear prediction by N": ("predict_linear", lambda *a, **k: LINEAR(*a, **k) * (1 if k["two_point"] else 1 / 2)),
    "linear prediction 1 % too large": ("predict_linear", lambda *a, **k: 1.01 * LINEAR(*a, **k)),
    "one-point divided by N": ("one_point_estimate", lambda f, e, s: ONE(f, e, s) * (f.shape[-1] - 1) / f.shape[-1]),
    "two-point 1 % too small": ("two_point_estimate", lambda f, e, s: 0.99 * TWO(f, e, s)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(two_point, attribute, mutant)
    monkeypatch.setitem(globals(), attribute, mutant)
    with pytest.raises(AssertionError):
        test_two_point_estimation_is_antithetic_es()
        test_a_baseline_changes_nothing_but_the_variance()
        test_linear_objectives_with_correlated_noise(2, 0.6, 0.3)
        test_two_point_loses_on_odd_objectives_of_many_directions()
        assert predict(3.0, 1.0, 0.5, 4) == approx(2.0, rel=1e-12)
