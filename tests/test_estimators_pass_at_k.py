"""pass@k against enumeration of subsets, its unbiasedness, and the coverage of its intervals."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from esth import coverage
from esth.errors import InputError
from esth.estimators import pass_at_k as estimator


def test_every_count_up_to_20_against_the_closed_form():
    """1 − C(n−c, k)/C(n, k) in exact integers, for all c <= n <= 20 and k <= n."""
    for n in range(1, 21):
        c = np.arange(n + 1)
        for k in range(1, n + 1):
            exact = [1 - math.comb(n - s, k) / math.comb(n, k) for s in range(n + 1)]
            assert np.allclose(estimator.per_prompt(n, c, k), exact, rtol=1e-12, atol=1e-15)


def test_subsets_enumerated():
    """The share of k-subsets of the n tries that hold a success, counted one by one."""
    for n, k in ((4, 1), (6, 3), (8, 5), (9, 9)):
        for c in range(n + 1):
            tries = [1] * c + [0] * (n - c)
            share = np.mean([any(s) for s in itertools.combinations(tries, k)])
            assert estimator.per_prompt([n], [c], k)[0] == pytest.approx(share)


@pytest.mark.parametrize("p", [0.0, 0.01, 0.3, 0.9, 1.0])
def test_unbiased_by_enumeration_of_the_counts(p):
    for n, k in ((1, 1), (5, 2), (16, 16), (20, 7)):
        c = np.arange(n + 1)
        mean = stats.binom.pmf(c, n, p) @ estimator.per_prompt(n, c, k)
        assert mean == pytest.approx(coverage.at_least_one(p, k), abs=1e-13)


def test_pooled_members_estimate_the_subset_success():
    """Counts of 1 try each of N members: pass@k of the pool is the success of a uniform k-subset (L2.6), not P_mix."""
    p = np.array([0.1, 0.5, 0.9])
    mean = 0.0
    for outcome in itertools.product((0, 1), repeat=3):
        chance = np.prod(np.where(outcome, p, 1 - p))
        mean += chance * estimator.per_prompt([3], [sum(outcome)], 2)[0]
    assert mean == pytest.approx(coverage.subset_success(p, 2), rel=1e-12)
    assert mean > coverage.mixture_success(p, 2) + 0.03


def covered(interval, truth):
    return np.mean((interval.lower <= truth) & (truth <= interval.upper))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "prompts", "n", "k"),
    [(1, 1, 30, 16, 1), (0.3, 0.3, 30, 32, 16), (0.2, 2, 30, 16, 1), (0.2, 2, 100, 32, 16), (2, 0.2, 100, 16, 1),
     (5, 5, 30, 16, 1), (0.3, 0.3, 10, 16, 1), (1, 1, 100, 1, 1)],
)  # fmt: skip
def test_interval_covers(a, b, prompts, n, k):
    """93–97 % of 95 % intervals over prompts of Beta(a, b) difficulty hold the mean pass@k of the task."""
    rng = np.random.default_rng(0)
    counts = rng.binomial(n, rng.beta(a, b, size=(6000, prompts)))
    nodes, weights = np.polynomial.legendre.leggauss(2000)
    u = 0.5 * (nodes + 1)
    truth = 0.5 * weights @ coverage.at_least_one(stats.beta.ppf(u, a, b), k)
    assert 0.93 <= covered(estimator.pass_at_k(n, counts, k), truth) <= 0.97


def test_interval_does_not_collapse_where_all_prompts_agree():
    """30 prompts all solved at every try: Wilson's one-sided end, not a point."""
    interval = estimator.pass_at_k(16, np.full(30, 16), 4)
    assert interval.value == interval.upper == 1.0
    assert 0.85 < interval.lower < 0.9
    nothing = estimator.pass_at_k(16, np.zeros(30), 4)
    assert nothing.value == nothing.lower == 0.0 and nothing.upper == pytest.approx(1 - interval.lower)


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "prompts", "k"), [(0.0, 30, 1), (0.5, 30, 4), (1.0, 100, 1)])
def test_paired_difference_covers_and_is_narrower(gain, prompts, k):
    """Log-odds of the second policy shifted by `gain` on the same prompts; unequal numbers of tries."""
    rng, sizes = np.random.default_rng(1), (4000, prompts)
    log_odds = 1.5 * rng.standard_normal(sizes)
    p = 1 / (1 + np.exp(-log_odds))
    q = 1 / (1 + np.exp(-(log_odds + gain)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    base, shifted = (coverage.at_least_one(1 / (1 + np.exp(-(1.5 * nodes + g))), k) for g in (0.0, gain))
    truth = weights @ (shifted - base) / weights.sum()
    c_a, c_b = rng.binomial(8, q), rng.binomial(12, p)
    interval = estimator.difference(8, c_a, 12, c_b, k)
    assert 0.93 <= covered(interval, truth) <= 0.97
    one = estimator.pass_at_k(8, c_a, k)
    assert np.mean(interval.upper - interval.lower) < np.mean(one.upper - one.lower)
    backwards = estimator.difference(12, c_b, 8, c_a, k)
    assert np.allclose(backwards.lower, -interval.upper) and np.allclose(backwards.value, -interval.value)


BAD = {
    "k = 5": lambda: estimator.pass_at_k(4, [1, 2], 5),
    "k = 0": lambda: estimator.pass_at_k(4, [1, 2], 0),
    "lie in 0..n": lambda: estimator.pass_at_k(4, [1, 5], 2),
    "whole numbers": lambda: estimator.pass_at_k(4, [1, 1.5], 2),
    "prompt axis": lambda: estimator.pass_at_k(4, 2, 2),
    "at least 2 values": lambda: estimator.pass_at_k(4, [2], 2),
    "paired prompts": lambda: estimator.difference(4, [1, 2], 4, [1, 2, 3], 2),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(message):
    with pytest.raises(InputError, match=message) as error:
        BAD[message]()
    assert "\n" not in str(error.value)
