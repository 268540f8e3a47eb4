"""Tilts and ranks against SciPy, the Price identity and exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from esth import weighting
from esth.coverage import mean_success
from esth.errors import InputError
from esth.weighting import (
    centered_ranks,
    effective_size,
    linear_tilt,
    price_gain,
    softmax_tilt,
    tilt_range,
    uniform,
    zscore,
)
from tests.populations import approx, cheap, costly, weight_vectors

RNG = np.random.default_rng(23)
FITNESS = RNG.normal(size=7)


@st.composite
def fitnesses(draw, max_members=12):
    """Fitness [N]: continuous, with many ties, about a large mean, tiny, or all equal."""
    n = draw(st.integers(1, max_members))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "binary", "ties", "offset", "tiny", "equal"]))
    return {
        "normal": rng.normal(size=n),
        "binary": rng.integers(0, 2, size=n).astype(float),
        "ties": np.round(rng.normal(size=n), 1),
        "offset": 1e6 + rng.normal(size=n),
        "tiny": 1e-300 * rng.normal(size=n),
        "equal": np.full(n, rng.normal()),
    }[kind]


# z-scores


def test_zscore_is_scipys():
    np.testing.assert_allclose(zscore(FITNESS), scipy.stats.zscore(FITNESS), rtol=1e-13)
    batch = RNG.normal(size=(2, 3, 7))
    np.testing.assert_allclose(zscore(batch), scipy.stats.zscore(batch, axis=-1), rtol=1e-12)


@pytest.mark.parametrize("fitness", [[0.1] * 3, [0.1] * 7, [1e300] * 5, [0.0], [7], [-1 / 3] * 10, np.zeros((2, 3))])
def test_equal_fitness_has_no_spread(fitness):
    """[.1, .1, .1] has a rounded mean that differs from .1: a z-score that divides by its deviation is ±1.4."""
    assert np.all(zscore(fitness) == 0.0)
    assert np.all(linear_tilt(fitness, 5.0) == 1 / np.shape(fitness)[-1])
    assert np.all(tilt_range(fitness)[0] == -np.inf) and np.all(tilt_range(fitness)[1] == np.inf)


@cheap
@given(fitnesses())
def test_zscores_have_mean_zero_and_deviation_one(fitness):
    z = zscore(fitness)
    assert abs(z.mean()) <= 1e-14
    if np.ptp(fitness) == 0:
        assert np.all(z == 0)
    else:
        assert np.mean(z * z) == approx(1.0, rel=1e-13)
        assert np.max(np.abs(z)) <= np.sqrt(len(z) - 1) * (1 + 1e-14)
        assert np.all(np.diff(z[np.argsort(fitness, kind="stable")]) >= 0)


@cheap
@given(fitnesses(), st.sampled_from([1e-12, 0.25, 3.0, 1e12]), st.sampled_from([-8.0, 0.0, 1.0]))
def test_zscores_do_not_depend_on_the_scale_of_the_fitness(fitness, scale, shift):
    if np.ptp(fitness) > 1e-3:
        changed = scale * (np.round(fitness * 1024) / 1024 + shift)
        np.testing.assert_allclose(zscore(changed), zscore(np.round(fitness * 1024)), atol=1e-9)


def test_zscores_of_neighbouring_numbers():
    step = np.spacing(0.1)
    np.testing.assert_allclose(zscore([0.1, 0.1, 0.1 + step]), zscore([0, 0, 1]), rtol=1e-13)
    np.testing.assert_allclose(zscore([0.0, 5e-324, 0.0, 0.0]), zscore([0, 1, 0, 0]), rtol=1e-13)


# Ranks


@cheap
@given(fitnesses())
def test_centered_ranks_are_scipys_mean_ranks(fitness):
    n = len(fitness)
    ranks = scipy.stats.rankdata(fitness)
    np.testing.assert_allclose(centered_ranks(fitness), (ranks - 1) / max(n - 1, 1) - 0.5 * (n > 1), atol=1e-15)


def test_centered_ranks_of_batches():
    assert centered_ranks([[3, 1, 2], [5, 5, 0]]).tolist() == [[0.5, -0.5, 0.0], [0.25, 0.25, -0.5]]
    assert centered_ranks([4.0]).tolist() == [0.0]
    assert centered_ranks(np.array([1, 2], np.float32)).dtype == np.float32


# Linear tilt


@cheap
@given(fitnesses(), st.floats(-3, 3))
def test_linear_tilt_sums_to_one_and_is_non_negative_within_its_range(fitness, beta):
    weights = linear_tilt(fitness, beta)
    low, high = tilt_range(fitness)
    assert low < 0 < high
    assert weights.sum() == approx(1.0, rel=1e-13)
    if low <= beta <= high:
        assert np.all(weights >= 0)
    elif beta < low * (1 + 1e-12) or beta > high * (1 + 1e-12):
        assert np.any(weights < 0)


@cheap
@given(fitnesses())
def test_the_ends_of_the_range_are_exact(fitness):
    """At either end one weight is 0; a millionth further it is negative. β = 1/√(N−1) always lies inside (L3.2)."""
    n, (low, high) = len(fitness), tilt_range(fitness)
    if np.ptp(fitness) == 0:
        assert (low, high) == (-np.inf, np.inf)
        return
    for end in (low, high):
        assert 0 <= np.min(linear_tilt(fitness, end)) <= 1e-15
        assert np.min(linear_tilt(fitness, end * (1 + 1e-6))) < 0
    assert max(low, -high) <= -1 / np.sqrt(n - 1) * (1 - 1e-12)


def test_the_range_of_one_winner_is_the_smallest():
    """f = (1, 0, …, 0): z = (√(N−1), −1/√(N−1), …), where β = −1/√(N−1) is the end itself."""
    n = 10
    low, high = tilt_range(np.eye(n)[0])
    assert low == approx(-1 / 3, rel=1e-14)
    assert high == approx(3.0, rel=1e-14)


def test_half_is_too_large_a_beta_for_thirty_members():
    """L3.2: at N = 30 and α = σ/2 more than half of Gaussian populations have a negative weight."""
    _, high = tilt_range(RNG.normal(size=(4000, 30)))
    assert np.mean(high < 0.5) > 0.5


# Softmax tilt


@pytest.mark.parametrize("beta", [-3.0, 0.0, 0.7, 20.0])
def test_softmax_tilt_is_scipys(beta):
    np.testing.assert_allclose(softmax_tilt(FITNESS, beta), scipy.special.softmax(beta * FITNESS), rtol=1e-12)


def test_softmax_tilt_at_extreme_beta():
    fitness = [0.3, 0.7, 0.7, -2.0]
    assert softmax_tilt(fitness, 1e9).tolist() == [0.0, 0.5, 0.5, 0.0]
    assert softmax_tilt(fitness, -1e9).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert softmax_tilt([1e8, 1e8 + 1], 1.0) == approx(scipy.special.softmax([0.0, 1.0]), rel=1e-14)
    assert softmax_tilt([5], 2.0).tolist() == [1.0]


def test_softmax_tilt_keeps_small_differences_about_a_large_mean():
    """β·f has lost them, β·(f − max f) has not."""
    fitness = 2.0**20 + 2.0**-30 * np.arange(3)
    np.testing.assert_allclose(softmax_tilt(fitness, 0.7 * 2.0**30), scipy.special.softmax([0.0, 0.7, 1.4]), rtol=1e-13)


def test_softmax_tilt_can_reverse():
    """L3.3: Cov(f, p) > 0, and still a large β takes the gain back."""
    fitness, p = np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.9, 0.45])
    values = [mean_success(p, softmax_tilt(fitness, beta)) for beta in (0.0, 0.5, 20.0)]
    assert values == approx([0.450, 0.491, 0.450], abs=5e-4)


# What weights buy


@cheap
@given(fitnesses(), st.floats(-5, 5), st.integers(0, 2**32))
def test_price_identity(fitness, beta, seed):
    """L3.1 with signed weights, and L3.2: gain = β·ρ·sd(p)."""
    p = np.random.default_rng(seed).random(len(fitness))
    weights = linear_tilt(fitness, beta)
    gain = price_gain(weights, p)
    assert gain == approx(np.dot(weights, p) - p.mean(), abs=1e-13)
    assert gain == approx(len(p) * np.cov(weights, p, ddof=0)[0, 1] if len(p) > 1 else 0.0, abs=1e-13)
    correlation = np.mean(zscore(fitness) * zscore(p))
    assert gain == approx(beta * correlation * np.std(p), abs=1e-13)


@costly
@given(st.integers(1, 6).flatmap(weight_vectors), st.integers(0, 2**32))
def test_price_gain_in_fractions(weights, seed):
    n = len(weights)
    p = np.random.default_rng(seed).random(n)
    w, q = [Fraction(x) for x in weights], [Fraction(x) for x in p]
    # Weights sum to 1 up to rounding; N·Cov does not see it.
    covariance = sum((a - sum(w) / n) * (b - sum(q) / n) for a, b in zip(w, q, strict=True))
    assert price_gain(weights, p) == approx(float(covariance), rel=1e-13, abs=1e-16)


def test_price_gain_of_tiny_differences():
    p = 0.5 + 1e-12 * np.arange(4)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    exact = sum((Fraction(w) - Fraction(1, 4)) * Fraction(x) for w, x in zip(weights, p, strict=True))
    assert price_gain(weights, p) == approx(float(exact), rel=1e-4)
    assert price_gain(uniform(4), p) == 0.0


def test_effective_size():
    assert effective_size(uniform(8)) == approx(8.0, rel=1e-15)
    assert effective_size([0.0, 1.0]) == 1.0
    assert effective_size([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]).tolist() == approx([2.0, 8 / 3], rel=1e-15)
    assert effective_size([1.0, 1e-310]) == 1.0
    with pytest.raises(InputError, match="sum to 1"):
        effective_size([1.0, 1.0])


@cheap
@given(st.integers(1, 9).flatmap(weight_vectors))
def test_effective_size_lies_between_one_and_n(weights):
    assert 1 - 1e-14 <= effective_size(weights) <= len(weights) * (1 + 1e-14)


def test_uniform():
    assert uniform(4).tolist() == [0.25] * 4 and uniform(4).dtype == np.float64
    assert uniform(1).tolist() == [1.0]
    like = torch.zeros(3, dtype=torch.float32)
    assert uniform(2, like).dtype == torch.float32
    for n in (0, -1):
        with pytest.raises(InputError, match="N >= 1"):
            uniform(n)


# Input


@pytest.mark.parametrize("fitness", [[np.nan, 1.0], [np.inf, 0.0], [], 1.0, np.zeros((3, 0))])
@pytest.mark.parametrize(
    "function", [zscore, centered_ranks, tilt_range, lambda f: linear_tilt(f, 1.0), lambda f: softmax_tilt(f, 1.0)]
)
def test_fitness_must_be_finite_numbers_of_members(function, fitness):
    with pytest.raises(InputError, match="fitness"):
        function(fitness)


@pytest.mark.parametrize("beta", [np.nan, np.inf, np.array([[1.0], [np.nan]])])
@pytest.mark.parametrize("function", [linear_tilt, softmax_tilt])
def test_beta_must_be_finite(function, beta):
    with pytest.raises(InputError, match="beta"):
        function(FITNESS, beta)


def test_torch_and_float32_give_the_same_numbers():
    tensor = torch.tensor(FITNESS)
    p = RNG.random(7)
    for function in (zscore, centered_ranks, lambda f: linear_tilt(f, 0.3), lambda f: softmax_tilt(f, 0.3)):
        np.testing.assert_allclose(function(tensor).numpy(), function(FITNESS), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(function(tensor.float()).numpy(), function(FITNESS), atol=1e-5)
        assert function(tensor.float()).dtype == torch.float32
        assert function(FITNESS.astype(np.float32)).dtype == np.float32
    weights = linear_tilt(tensor, 0.3)
    assert float(price_gain(weights, torch.tensor(p))) == approx(price_gain(weights.numpy(), p), rel=1e-12)
    assert float(tilt_range(tensor)[1]) == approx(float(tilt_range(FITNESS)[1]), rel=1e-13)
    assert np.all(zscore(torch.zeros((0, 3))).numpy() == 0)


# Wrong constants are noticed

MUTANTS = {
    "a small constant in the deviation": ("zscore", lambda f: (f - np.mean(f)) / (np.std(f) + 1e-8)),
    "sample deviation": ("zscore", lambda f: (f - np.mean(f)) / np.std(f, ddof=1)),
    "ranks from 0 to 1": ("centered_ranks", lambda f: scipy.stats.rankdata(f, axis=-1) / np.shape(f)[-1]),
    "softmax at 0.99 beta": ("softmax_tilt", lambda f, beta: scipy.special.softmax(0.99 * beta * np.asarray(f))),
    "mean for sum": ("price_gain", lambda w, p: np.mean((w - 1 / len(p)) * p)),
    "range with its ends exchanged": ("tilt_range", lambda f: (-1 / np.max(-zscore(f)), 1 / np.max(zscore(f)))),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(weighting, attribute, mutant)
    monkeypatch.setitem(globals(), attribute, mutant)
    with pytest.raises(AssertionError):
        test_zscore_is_scipys()
        test_centered_ranks_of_batches()
        test_softmax_tilt_is_scipys(0.7)
        test_price_gain_of_tiny_differences()
        test_the_range_of_one_winner_is_the_smallest()
