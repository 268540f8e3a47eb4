"""Variance components of success: unbiased by summing over every outcome; a tilt's slope against simulated gains."""

import itertools
import math

import numpy as np
import pytest

from esth.errors import InputError
from esth.estimators import variance
from esth.weighting import linear_tilt, price_gain

P = np.array([0.0, 0.15, 0.6, 1.0])


def expectation(estimate, p, m):
    """E of estimate(counts) over independent Binomial(m, p_j) counts, exactly."""
    total = 0.0
    for counts in itertools.product(range(m + 1), repeat=len(p)):
        mass = math.prod(math.comb(m, c) * q**c * (1 - q) ** (m - c) for c, q in zip(counts, p, strict=True))
        total += mass * float(estimate(np.array(counts)))
    return total


@pytest.mark.parametrize("m", [2, 3, 5])
def test_components_are_unbiased(m):
    assert expectation(lambda c: variance.within(c, m), P, m) == pytest.approx(np.mean(P * (1 - P)), abs=1e-13)
    assert expectation(lambda c: variance.between(c, m), P, m) == pytest.approx(np.var(P), abs=1e-13)
    assert expectation(lambda c: np.var(c / m), P, m) > np.var(P) + 0.01, "the plug-in is biased"


def test_components_add_up_to_the_variance_of_one_try():
    """p̄(1−p̄), where p̄² is estimated from products of different tries."""
    mean = P.mean()
    total = expectation(lambda c: variance.within(c, 3) + variance.between(c, 3), P, 3)
    assert total == pytest.approx(mean * (1 - mean), abs=1e-13)


@pytest.mark.parametrize(("n", "a", "m"), [(8, 1, 3), (8, 4, 2), (16, 2, 3)])
def test_slope_predicts_the_mean_gain_of_a_noisy_tilt(n, a, m):
    rng = np.random.default_rng(0)
    p = 1 / (1 + np.exp(-(rng.standard_normal((300, 1)) + 0.7 * rng.standard_normal((300, n)))))
    gains, slopes = [], []
    for _ in range(150):
        weights = linear_tilt(rng.binomial(a, p) / a, 0.5)
        gains.append(np.mean(price_gain(weights, p)))
        slopes.append(np.mean(variance.tilt_slope(rng.binomial(m, p), m, a)))
    assert 0.5 * np.mean(slopes) == pytest.approx(np.mean(gains), rel=0.06)


def test_slope_with_many_tries_and_one_prompt_is_the_formula():
    p, m, a = np.array([[0.2, 0.4, 0.5, 0.8]]), 10**6, 3
    expected = np.var(p) / np.sqrt(np.var(p) + np.mean(p * (1 - p)) / a)
    assert variance.tilt_slope(p * m, m, a) == pytest.approx([expected], rel=1e-4)


def test_alike_outcomes_have_no_slope():
    assert variance.tilt_slope([[0, 0, 0], [4, 4, 4]], 4, 2) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize(("c", "m"), [([0, 1], 1), ([0, 3], 2), ([-1, 0], 2)])
def test_bad_counts_are_refused(c, m):
    with pytest.raises(InputError):
        variance.between(c, m)
    with pytest.raises(InputError):
        variance.tilt_slope([[0, 1]], 2, 0)
