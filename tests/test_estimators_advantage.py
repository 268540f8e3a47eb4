"""Unbiasedness of the coverage estimates, by summing over every possible outcome of the sampling."""

import itertools
import math

import numpy as np
import pytest

from esth.coverage import mixture_success, subset_success
from esth.errors import InputError
from esth.estimators import advantage

P = np.array([0.0, 0.15, 0.6, 1.0])


def expectation(estimate, p, m):
    """E of estimate(counts) over independent Binomial(m, p_j) counts, exactly."""
    total = 0.0
    for counts in itertools.product(range(m + 1), repeat=len(p)):
        mass = math.prod(math.comb(m, c) * q**c * (1 - q) ** (m - c) for c, q in zip(counts, p, strict=True))
        total += mass * float(estimate(np.array(counts)))
    return total


@pytest.mark.parametrize(("m", "k"), [(2, 1), (2, 2), (3, 3), (4, 2), (4, 4)])
def test_estimates_are_unbiased(m, k):
    assert expectation(lambda c: advantage.population(c, m, k), P, m) == pytest.approx(subset_success(P, k), abs=1e-13)
    assert expectation(lambda c: advantage.mixture(c, m, k), P, m) == pytest.approx(mixture_success(P, k), abs=1e-13)
    gap = subset_success(P, k) - mixture_success(P, k)
    assert expectation(lambda c: advantage.gap(c, m, k), P, m) == pytest.approx(gap, abs=1e-13)


def test_plug_in_mixture_would_be_biased():
    biased = expectation(lambda c: mixture_success(c / 3, 3), P, 3)
    assert abs(biased - mixture_success(P, 3)) > 0.005


@pytest.mark.parametrize("r", range(4))
def test_failure_powers_are_unbiased(r):
    for q in (0.0, 0.3, 1.0):
        value = expectation(lambda c: advantage.failure_powers(c, 3, 3)[0, r], [q], 3)
        assert value == pytest.approx((1 - q) ** r, abs=1e-14)


def test_weighted_mixture_is_unbiased_for_signed_weights():
    for w in ([0.5, 0.2, 0.3, 0.0], [0.6, 0.3, 0.25, -0.15]):
        value = expectation(lambda c, w=w: advantage.mixture(c, 3, 3, w), P, 3)
        assert value == pytest.approx(1 - (1 - np.dot(w, P)) ** 3, abs=1e-13)


def test_pairs_are_unbiased():
    """Pairs (0, .15) and (.6, 1): their failures, their means, and the exact form L2.8 at k = 2."""
    q = 1 - P
    failures = [q[0] * q[1], q[2] * q[3]]
    assert expectation(lambda c: advantage.pair_population(c, 2, 2), P, 2) == pytest.approx(1 - np.mean(failures))
    assert expectation(lambda c: advantage.pair_population(c, 2, 4), P, 2) == pytest.approx(1 - np.prod(failures))
    means = (P[0] + P[1]) / 2, (P[2] + P[3]) / 2
    smoothed = expectation(lambda c: subset_success(advantage.pair_means(c, 2), 2), P, 2)
    assert smoothed == pytest.approx(1 - (1 - means[0]) * (1 - means[1]))
    covariance = expectation(lambda c: advantage.pair_covariance(c, 2), P, 2)
    assert covariance == pytest.approx((P[0] * P[1] + P[2] * P[3]) / 2 - means[0] * means[1])
    assert np.mean(failures) == pytest.approx((1 - means[0]) * (1 - means[1]) + covariance)


def test_pair_covariance_is_unbiased_over_pairs():
    """Mean over draws of 3 pairs from 4 equally likely ones: the covariance of the four."""
    pairs = np.array([[0.1, 0.9], [0.3, 0.4], [0.8, 0.2], [0.5, 0.5]])
    drawn = [advantage.pair_covariance(pairs[list(i)].ravel(), 1) for i in itertools.product(range(4), repeat=3)]
    assert np.mean(drawn) == pytest.approx(np.mean(pairs[:, 0] * pairs[:, 1]) - pairs.mean() ** 2)


def test_odd_members_have_no_pairs():
    for call in (advantage.pair_means, advantage.pair_failures):
        with pytest.raises(InputError):
            call([0, 1, 1], 2)
    with pytest.raises(InputError):
        advantage.pair_population([0, 1], 2, 1)
    with pytest.raises(InputError):
        advantage.pair_covariance([0, 1], 2)


def test_many_tries_do_not_overflow():
    counts = np.full((2, 64), 40)
    value = advantage.mixture(counts, 170, 170)
    assert value == pytest.approx(1.0) and np.all(value <= 1)


@pytest.mark.parametrize(
    ("c", "m", "k"), [([0, 3], 2, 1), ([-1, 0], 2, 1), ([0, 1], 2, 3), ([0, 1], 200, 171), ([0, 1], 2, 0)]
)
def test_bad_counts_are_refused(c, m, k):
    with pytest.raises(InputError):
        advantage.mixture(c, m, k)
