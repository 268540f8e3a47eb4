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
