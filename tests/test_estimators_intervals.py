"""Intervals: their coverage, by exact sums over the binomial or by simulation, and their values against libraries."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from esth.errors import InputError
from esth.estimators import intervals
from esth.estimators.intervals import Estimate


def covered(interval, truth):
    return np.mean((interval.lower <= truth) & (truth <= interval.upper))


def exact_coverage(method, n, p):
    """Coverage at success probability p, summed over the counts."""
    c = np.arange(n + 1)
    interval = method(c, n)
    inside = (interval.lower <= p) & (p <= interval.upper)
    return stats.binom.pmf(c, n, p) @ inside


@pytest.mark.parametrize("n", [1, 5, 30, 200])
def test_binomial_intervals_agree_with_scipy(n):
    for c in range(0, n + 1, max(1, n // 5)):
        for method, name in ((intervals.wilson, "wilson"), (intervals.clopper_pearson, "exact")):
            for confidence in (0.9, 0.95, 0.999):
                reference = stats.binomtest(c, n).proportion_ci(confidence, method=name)
                value, lower, upper = method(c, n, confidence)
                assert value == c / n
                assert lower == pytest.approx(reference.low, abs=1e-12)
                assert upper == pytest.approx(reference.high, abs=1e-12)


def test_wilson_covers_on_average_and_clopper_pearson_everywhere():
    p = np.linspace(0.0005, 0.9995, 1000)
    for n in (10, 30, 100):
        wilson = [exact_coverage(intervals.wilson, n, q) for q in p]
        exact = [exact_coverage(intervals.clopper_pearson, n, q) for q in p]
        assert 0.945 < np.mean(wilson) < 0.965
        assert min(exact) >= 0.95
    assert exact_coverage(intervals.wilson, 30, 0.0) == exact_coverage(intervals.wilson, 30, 1.0) == 1.0


def test_student_and_normal_cover_gaussian_means():
    rng = np.random.default_rng(0)
    draws = 2.0 + 3.0 * rng.standard_normal((20_000, 6))
    assert covered(intervals.student(draws), 2.0) == pytest.approx(0.95, abs=0.006)
    assert covered(intervals.normal(intervals.mean(draws)), 2.0) < 0.91
    reference = stats.t.interval(0.9, 5, loc=draws[0].mean(), scale=stats.sem(draws[0]))
    assert np.allclose(intervals.student(draws[0], 0.9)[1:], reference)
    assert covered(intervals.normal(Estimate(2.0 + draws[:, 0] - 2.0, np.full(20_000, 3.0))), 2.0) == pytest.approx(
        0.95, abs=0.006
    )


@pytest.mark.parametrize(("shape", "n"), [(0.5, 20), (1.0, 20), (1.0, 50), (4.0, 20)])
def test_skewed_covers_gamma_means_better_than_student(shape, n):
    """Gamma values, skewness 2/√shape: Student's interval ends too low; the corrected one misses on both sides."""
    draws = np.random.default_rng(0).gamma(shape, size=(8000, n))
    corrected, student = intervals.skewed(draws), intervals.student(draws)
    assert abs(covered(corrected, shape) - 0.95) < abs(covered(student, shape) - 0.95)
    assert 0.93 - 0.03 * (shape < 1) < covered(corrected, shape) < 0.97
    assert np.mean(corrected.upper < shape) < 0.7 * np.mean(student.upper < shape)


def test_skewed_ends_where_halls_polynomial_takes_the_quantiles():
    """T + γ(T²/3 + 1/6)/√n + γ²T³/(27n), Hall's transformation, is ±t at the studentised ends."""
    values = np.random.default_rng(3).gamma(1.0, size=15)
    value, lower, upper = intervals.skewed(values)
    gamma = stats.skew(values, bias=False) / math.sqrt(15)
    for end, quantile in ((lower, 0.975), (upper, 0.025)):
        t = (value - end) / stats.sem(values)
        assert t + gamma * (t**2 / 3 + 1 / 6) + gamma**2 * t**3 / 27 == pytest.approx(stats.t.ppf(quantile, 14))


def test_skewed_is_student_without_skewness():
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])
    assert np.allclose(intervals.skewed(values), intervals.student(values))
    tilted = values + np.array([0, 0, 0, 0, 1e-5])
    assert np.allclose(intervals.skewed(tilted), intervals.student(tilted), atol=1e-4)
    assert intervals.skewed(np.full((2, 5), 0.3)).upper == pytest.approx(0.3)


def test_skewed_is_equivariant():
    values = np.random.default_rng(0).exponential(size=25)
    value, lower, upper = intervals.skewed(values)
    assert np.allclose(intervals.skewed(5.0 - 2.0 * values), (5 - 2 * value, 5 - 2 * upper, 5 - 2 * lower))
    assert value - lower < upper - value


def test_bounded_mean_is_wilson_for_successes():
    """0/1 values are worth their number; only Student's quantile in place of the normal one differs."""
    values = np.array([[1.0] * 7 + [0.0] * 33, [1.0] * 40])
    t_confidence = 1 - 2 * stats.norm.sf(stats.t.isf(0.025, 39))
    assert np.allclose(intervals.bounded_mean(values), intervals.wilson([7, 40], 40, t_confidence))


@pytest.mark.parametrize(
    ("distribution", "n"), [(stats.beta(0.3, 0.3), 30), (stats.beta(2, 2), 30), (stats.beta(0.5, 5), 50)]
)
def test_bounded_mean_covers(distribution, n):
    values = distribution.rvs(size=(8000, n), random_state=np.random.default_rng(0))
    assert 0.93 < covered(intervals.bounded_mean(values), distribution.mean()) < 0.97


def test_hoeffding_covers_at_any_weights():
    """Guaranteed, so above 95 %: two-point values of the largest variance, unequal strata."""
    rng, weights, m = np.random.default_rng(0), np.array([0.6, 0.3, 0.1]), 5
    draws = rng.integers(0, 2, size=(20_000, 3, m)) * 2.0
    value = draws.mean(-1) @ weights
    size = intervals.stratified_size(m, weights)
    assert size == pytest.approx(m / 0.46)
    interval = intervals.hoeffding(value, size, 0.0, 2.0)
    assert covered(interval, 1.0) >= 0.95
    assert np.all(interval.lower >= 0) and np.all(interval.upper <= 2)
    assert 1.0 - intervals.hoeffding(1.0, 50, 0.0, 2.0).lower == pytest.approx(2 * math.sqrt(math.log(40) / 100))


def test_bootstrap_agrees_with_the_normal_interval_for_many_values():
    values = np.random.default_rng(0).exponential(size=400)
    value, lower, upper = intervals.bootstrap(values, np.random.default_rng(1))
    assert value == values.mean()
    assert upper - lower == pytest.approx(2 * 1.96 * stats.sem(values), rel=0.1)
    assert upper - value > value - lower
    again = intervals.bootstrap(values, np.random.default_rng(1))
    assert (again.lower, again.upper) == (lower, upper)
    assert intervals.bootstrap(np.ones(5), np.random.default_rng(0)) == (1.0, 1.0, 1.0)


@given(n=st.integers(1, 10**6), share=st.floats(0, 1), confidence=st.floats(0.5, 0.9999))
def test_binomial_intervals_hold_their_estimate(n, share, confidence):
    c = round(share * n)
    for method in (intervals.wilson, intervals.clopper_pearson):
        value, lower, upper = method(c, n, confidence)
        assert 0 <= lower <= value <= upper <= 1
        mirrored = method(n - c, n, confidence)
        assert lower == pytest.approx(1 - mirrored.upper, abs=1e-9)


BAD = {
    "confidence": lambda: intervals.wilson(1, 2, 1.0),
    "successes must lie": lambda: intervals.clopper_pearson(3, 2),
    "at least 2 values": lambda: intervals.student([1.0]),
    "at least 3 values": lambda: intervals.skewed([1.0, 2.0]),
    "finite numbers": lambda: intervals.student([1.0, np.nan]),
    r"values in \[0, 1\]": lambda: intervals.bounded_mean([0.5, 1.5]),
    "low < high": lambda: intervals.hoeffding(0.5, 10, 1.0, 0.0),
    "one axis": lambda: intervals.bootstrap(np.ones((2, 2)), np.random.default_rng(0)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(message):
    with pytest.raises(InputError, match=message) as error:
        BAD[message]()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.0, 0.0, 1.0], [0.5, 0.5]])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_bounded_mean_of_very_few_values(values, confidence):
    """Student's t of two values is far beyond any normal quantile that float64 can tell from infinity."""
    value, lower, upper = intervals.bounded_mean(values, confidence)
    assert 0 <= lower <= value <= upper <= 1


def test_crossed_covers_the_mean_over_seeds_and_prompts() -> None:
    rng = np.random.default_rng(5)
    for seeds, low in ((3, 0.9), (8, 0.925)):
        for seed_sd, prompt_sd, rest_sd in ((0, 0.1, 0.1), (0.02, 0.1, 0.1), (0.05, 0.1, 0.1), (0.02, 0.02, 0.2)):
            hits = 0
            for _ in range(500):
                effects = seed_sd * rng.standard_normal((seeds, 1)) + prompt_sd * rng.standard_normal(50)
                found = intervals.crossed(effects + rest_sd * rng.standard_normal((seeds, 50)))
                hits += found.lower <= 0 <= found.upper
            assert low - 0.03 < hits / 500 < 0.995, (seeds, seed_sd, prompt_sd, rest_sd, hits)


def test_crossed_of_seeds_that_agree_is_students_over_prompts() -> None:
    """Equal rows: no seed effect, no interaction, so the prompts alone count."""
    rows = np.tile(np.random.default_rng(0).random(40), (4, 1))
    assert np.allclose(intervals.crossed(rows), intervals.student(rows[0]))
    constant = np.full((3, 10), 0.25)
    assert tuple(intervals.crossed(constant)) == (0.25, 0.25, 0.25)
    with pytest.raises(InputError, match="at least 2 seeds"):
        intervals.crossed(rows[:1])
