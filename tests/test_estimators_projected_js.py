"""Projected JS from counts: exact bias by enumeration of tables, coverage of intervals, level and power of the test."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from esth.divergence import binary_entropy
from esth.divergence import projected_js as exact
from esth.errors import InputError
from esth.estimators import projected_js as estimator


def every_table(p, m):
    """All tables of counts [R, N] and their probabilities."""
    tables = np.array(list(itertools.product(range(m + 1), repeat=len(p))))
    return tables, np.prod(stats.binom.pmf(tables, m, p), axis=-1)


@pytest.mark.parametrize("m", [2, 3, 5])
@pytest.mark.parametrize("p", [(0.2, 0.7, 0.4), (0.0, 1.0, 0.5), (0.001, 0.02, 0.3), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("weights", [None, (0.5, 0.3, 0.2), (0.6, 0.0, 0.4)])
def test_mean_of_the_estimate_is_the_js_of_the_truncated_entropy(m, p, weights):
    """Summed over every table; the truncated entropy written out with its two power series."""
    p, w = np.array(p), np.full(3, 1 / 3) if weights is None else np.array(weights)
    tables, chance = every_table(p, m)
    mean = chance @ estimator.estimate(tables, m, weights)

    def truncated(q):
        return sum(q * (1 - q) ** k / k + (1 - q) * q**k / k for k in range(1, m))

    assert mean == pytest.approx(truncated(w @ p) - w @ truncated(p), abs=1e-13)
    assert mean == pytest.approx(estimator.expected(p, m, weights), abs=1e-13)


@pytest.mark.parametrize("q", [0.0, 0.001, 0.02, 0.3, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("m", [2, 4, 7])
def test_equal_members_are_estimated_as_zero(q, m):
    """In both regimes, where the plug-in's bias ranges from 0 to far above the constant correction 1/(4m)."""
    tables, chance = every_table(np.full(3, q), m)
    assert chance @ estimator.estimate(tables, m) == pytest.approx(0.0, abs=1e-14)
    bias = chance @ estimator.plug_in(tables, m)
    constant = (1 - 1 / 3) / (2 * m)
    assert bias >= 0
    if q in (0.0, 0.001, 1.0):
        assert bias < 0.1 * constant
    if q == 0.5:
        assert bias > constant


@pytest.mark.parametrize("m", [2, 3, 5, 8, 16, 64])
def test_truncation_error_is_within_its_bound(m):
    p = np.linspace(0, 1, 4001)
    rest = binary_entropy(p) - estimator.truncated_entropy(p, m)
    assert np.all(rest >= -1e-14)
    assert m * rest.max() < (0.3 if m >= 5 else 0.39)
    assert m * rest.max() > 0.28


def test_estimate_converges_to_the_projected_js():
    """Exactly in m for p well inside (0, 1), and within a few hundredths of a nat at m = 8 for extreme spreads."""
    inside = np.array([0.3, 0.5, 0.6])
    assert estimator.expected(inside, 64) == pytest.approx(exact(inside), abs=1e-9)
    for p in ((0.0, 1.0), (0.02, 0.98), (0.3, 0.02, 0.02, 0.02), (0.5, 0.0, 0.0, 0.0)):
        assert abs(estimator.expected(np.array(p), 8) - exact(np.array(p))) < 0.04
        assert abs(estimator.expected(np.array(p), 400) - exact(np.array(p))) < 0.004


def test_error_is_below_that_of_the_plug_in_where_members_are_alike():
    rng = np.random.default_rng(0)
    for p, m in ((np.linspace(0.4, 0.6, 8), 8), (np.full(8, 0.02), 4), (np.linspace(0.02, 0.18, 8), 16)):
        counts = rng.binomial(m, p, size=(4000, 8))
        errors = [np.mean((f(counts, m) - exact(p)) ** 2) for f in (estimator.estimate, estimator.plug_in)]
        assert errors[0] < 0.6 * errors[1]


@given(
    m=st.integers(2, 40),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    raw=st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
)
def test_symmetries_and_merging(m, shares, raw):
    """Failures for successes, members relabelled, a member of weight 0 added: the same estimate."""
    c = np.round(np.array(shares) * m)
    w = np.array(raw[: len(c)])
    w = w / w.sum()
    value = estimator.estimate(c, m, w)
    assert np.isfinite(value)
    assert estimator.estimate(m - c, m, w) == pytest.approx(value, abs=1e-10)
    assert estimator.estimate(c[::-1], m, w[::-1]) == pytest.approx(value, abs=1e-10)
    assert estimator.estimate(np.append(c, 1.0), m, np.append(w, 0.0)) == pytest.approx(value, abs=1e-10)


def test_one_member_has_no_diversity_on_average_and_batches_are_loops():
    assert np.allclose(estimator.estimate(np.arange(6.0)[:, None], 5), 0, atol=1e-15)
    counts = np.random.default_rng(0).integers(0, 10, size=(2, 3, 4))
    batch = estimator.estimate(counts, 9)
    assert batch.shape == (2, 3)
    assert batch[1, 2] == pytest.approx(estimator.estimate(counts[1, 2], 9))


def test_large_numbers_of_tries_do_not_overflow():
    counts = np.random.default_rng(0).binomial(1000, [0.2, 0.4])
    assert estimator.estimate(counts, 1000) == pytest.approx(exact(np.array([0.2, 0.4])), abs=0.01)


POPULATIONS = {
    "two groups": np.repeat([0.3, 0.7], 4),
    "linear": np.linspace(0.28, 0.72, 8),
    "near 0": np.linspace(0.03, 0.17, 8),
    "extreme": np.repeat([0.02, 0.98], 4),
    "one stands out": np.array([0.5, 0, 0, 0, 0, 0, 0, 0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_interval_covers_one_prompt(name):
    """300 tables of 8 × 8 tries: 95–98 % (docstring's table) up to the error of the simulation, 1.2 %."""
    p, m, rng = POPULATIONS[name], 8, np.random.default_rng(0)
    intervals = [estimator.interval(rng.binomial(m, p), m, rng, tables=200) for _ in range(300)]
    share = np.mean([i.lower <= exact(p) <= i.upper for i in intervals])
    assert 0.93 <= share <= (1.0 if name in ("extreme", "near 0") else 0.985)


@pytest.mark.slow
def test_interval_at_the_boundary_is_one_sided():
    """Equal members: JSᵛ = 0 is excluded in 2.5 % of the tables, up to the error of the simulation, or in fewer."""
    rng, m = np.random.default_rng(1), 8
    for q in (0.02, 0.4):
        intervals = [estimator.interval(rng.binomial(m, np.full(8, q)), m, rng, tables=200) for _ in range(250)]
        assert np.mean([i.lower > 0 for i in intervals]) <= 0.025 + 2.6 * np.sqrt(0.025 * 0.975 / 250)
        assert min(i.upper for i in intervals) > 0


def test_interval_of_one_table():
    rng = np.random.default_rng(0)
    nothing = estimator.interval(np.zeros(8), 8, rng)
    assert nothing.value == nothing.lower == 0 and 0.02 < nothing.upper < 0.2
    split = estimator.interval(np.repeat([0.0, 8.0], 4), 8, rng)
    assert split.lower > 0.3 and split.upper == pytest.approx(np.log(2), abs=1e-3)
    narrow = estimator.interval(np.repeat([100, 200], 4), 400, rng)
    assert narrow.lower < exact(np.repeat([0.25, 0.5], 4)) < narrow.upper < 3 * narrow.lower
    lone = estimator.interval([3], 8, rng)
    assert lone.lower == lone.upper == 0 and abs(lone.value) < 1e-15
    even = estimator.interval(np.full(8, 4), 8, rng)
    assert even.value < 0 == even.lower and even.upper > 0.002
    a, b = (estimator.interval(np.arange(8), 8, np.random.default_rng(3)) for _ in range(2))
    assert a == b
    wide = estimator.interval(np.arange(8), 8, np.random.default_rng(3), confidence=0.99)
    assert wide.lower <= a.lower and wide.upper >= a.upper


def test_interval_follows_the_weights():
    """All weight on two equal members: the others' differences do not count."""
    counts, w = np.array([20, 20, 0, 40]), np.array([0.5, 0.5, 0.0, 0.0])
    interval = estimator.interval(counts, 40, np.random.default_rng(0), w)
    assert interval.lower == 0 and interval.upper < 0.05
    assert estimator.interval(counts, 40, np.random.default_rng(0)).lower > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_interval_over_prompts_covers(spread):
    """Prompts of uniform difficulty, members' log-odds spread about them; the mean of `expected` over the task."""
    rng, m, sizes = np.random.default_rng(0), 8, (600, 40, 8)

    def success(n_prompts):
        q = rng.random((*n_prompts, 1))
        return 1 / (1 + (1 / q - 1) * np.exp(spread * rng.standard_normal((*n_prompts, 8))))

    truth = estimator.expected(success((100_000,)), m).mean()
    counts = rng.binomial(m, success(sizes[:2]))
    interval = estimator.over_prompts(counts, m)
    assert interval.value.shape == (600,)
    assert 0.92 <= np.mean((interval.lower <= truth) & (truth <= interval.upper)) <= 0.98


def test_permutation_test_keeps_its_level():
    """Equal members, at p = 0.02 too: P(p-value <= level) is at most the level, and near it where counts vary."""
    rng, m = np.random.default_rng(0), 8
    for q in (0.02, 0.4):
        p_values = estimator.permutation_test(rng.binomial(m, q, size=(2000, 6)), m, rng, permutations=199)
        for level in (0.05, 0.2):
            assert np.mean(p_values <= level) <= level + 2.6 * np.sqrt(level * (1 - level) / 2000)
        if q == 0.4:
            assert np.mean(p_values <= 0.2) > 0.15
    assert estimator.permutation_test(np.zeros(5), m, rng) == 1.0


def test_permutation_test_matches_the_exact_null():
    """All tables of the observed total, weighted by the multivariate hypergeometric."""
    c, m = np.array([4, 1, 0]), 4
    tables = np.array([t for t in itertools.product(range(m + 1), repeat=3) if sum(t) == 5])
    chance = np.array([np.prod([stats.binom.pmf(x, m, 0.5) for x in t]) for t in tables])
    extreme = estimator.plug_in(tables, m) >= estimator.plug_in(c, m) - 1e-12
    p_value = chance[extreme].sum() / chance.sum()
    simulated = estimator.permutation_test(c, m, np.random.default_rng(0), permutations=40_000)
    assert simulated == pytest.approx(p_value, abs=4 * np.sqrt(p_value / 40_000))


def test_pooling_prompts_gives_power():
    rng, m = np.random.default_rng(0), 8
    p = np.linspace(0.35, 0.65, 6)
    counts = rng.binomial(m, p, size=(30, 6))
    single = estimator.permutation_test(counts, m, rng, permutations=499)
    pooled = estimator.permutation_test(counts, m, rng, pooled=True, permutations=499)
    assert np.median(single) > 0.05 and pooled < 0.01
    null = [
        estimator.permutation_test(rng.binomial(m, 0.4, size=(10, 6)), m, rng, pooled=True, permutations=99)
        for _ in range(300)
    ]
    assert np.mean(np.array(null) <= 0.1) < 0.1 + 2.6 * np.sqrt(0.09 / 300)


BAD = {
    "2 <= m": lambda: estimator.estimate([1, 0], 1),
    "whole numbers in 0..4": lambda: estimator.estimate([1, 5], 4),
    "whole numbers": lambda: estimator.plug_in([1, 0.5], 4),
    "weights must sum": lambda: estimator.estimate([1, 2], 4, [0.5, 0.6]),
    "member axis": lambda: estimator.estimate(3, 4),
    "one prompt": lambda: estimator.interval([[1, 2]], 4, np.random.default_rng(0)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(message):
    with pytest.raises(InputError, match=message) as error:
        BAD[message]()
    assert "\n" not in str(error.value)


def test_truncated_curvature_is_the_second_derivative():
    p, h = np.linspace(0.03, 0.97, 9), 1e-4
    for m in (2, 3, 7):
        middle = estimator.truncated_entropy(p, m)
        outer = estimator.truncated_entropy(p + h, m) + estimator.truncated_entropy(p - h, m)
        assert estimator.truncated_curvature(p, m) == pytest.approx((2 * middle - outer) / h**2, rel=1e-5)


@pytest.mark.parametrize("m", [2, 4])
def test_leading_order_has_the_curvature_of_the_entropy(m):
    """Many members of small spread, so that p̄ is known: the mean is JSᵛ, where that of `estimate` is not."""
    rng = np.random.default_rng(m)
    p = np.linspace(0.1, 0.3, 40)
    counts = rng.binomial(m, p, size=(4000, 40))
    truth = float(exact(p))
    corrected, plain = estimator.leading(counts, m), estimator.estimate(counts, m)
    error = 4 * plain.std() / 4000**0.5 + 0.03 * truth
    assert abs(corrected.mean() - truth) < error
    assert abs(plain.mean() - truth * 0.16 * float(estimator.truncated_curvature(0.2, m))) < error
    assert estimator.leading([[0, 0], [m, m]], m) == pytest.approx([0.0, 0.0])


def test_truncated_entropy_of_two_tries_is_flatter():
    assert estimator.truncated_curvature(0.2, 2) == pytest.approx(4.0)
