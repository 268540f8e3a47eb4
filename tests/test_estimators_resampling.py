"""Partitions of tries, and intervals whose coverage of the truth is counted where prompts and members are drawn."""

import numpy as np
import pytest
from scipy import stats

from esth.check import Z
from esth.coverage import subset_success
from esth.errors import InputError
from esth.estimators import resampling


def test_parts_are_disjoint_and_every_try_serves_every_part():
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2, size=(3, 4, 6)).astype(float)
    a, b, rest = resampling.partition(rewards, (2, 3, 1), rng)
    assert a.shape == (3, 4)
    assert np.all(a + b + rest == rewards.sum(-1))
    one_hot = np.zeros((20_000, 6))
    one_hot[:, 2] = 1.0
    assert resampling.partition(one_hot, (2, 3), rng)[1].mean() == pytest.approx(0.5, abs=0.02)


def test_parts_do_not_share_noise():
    """Counts of parts at one p are independent: averages over many partitions would be the same number."""
    rng = np.random.default_rng(6)
    rewards = rng.integers(0, 2, size=(4000, 6)).astype(float)
    a, b = resampling.partition(rewards, (3, 3), rng)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.06


def test_parts_that_do_not_fit_are_refused():
    for sizes in ((3, 4), (0, 2)):
        with pytest.raises(InputError):
            resampling.partition(np.zeros((2, 6)), sizes, np.random.default_rng(0))


def test_linear_statistic_has_the_variance_of_the_two_way_table():
    """y = prompt + member + interaction: s²_prompts/X + (member mean square − interaction mean square)/(XN)."""
    rng = np.random.default_rng(1)
    x, n = 7, 5
    y = rng.standard_normal((x, 1)) + np.array([[-3.0, -1.0, 0.0, 0.5, 3.5]]) + rng.standard_normal((x, n))
    rows, columns = y.mean(1, keepdims=True), y.mean(0, keepdims=True)
    residual = np.sum((y - rows - columns + y.mean()) ** 2) / ((x - 1) * (n - 1))
    shared = np.var(columns, ddof=1) / n - residual / (x * n)
    found = resampling.shared_members(lambda t: t.mean(-1), y, rng, 20_000)
    assert float(found.variance) == pytest.approx(shared, rel=0.04) and found.degrees == n - 1
    prompts = resampling.between_prompts(y.mean(1))
    assert float(prompts.variance) == pytest.approx(np.var(rows, ddof=1) / x)


@pytest.mark.parametrize(("x", "n", "k", "least"), [(10, 6, 6, 0.9), (24, 8, 3, 0.965)])
def test_interval_covers_the_mean_over_prompts_and_members(x, n, k, least):
    """E over prompts and members of the success of k members; without the members' part it would miss it often."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(40)
    mass = mass / mass.sum()
    level, member, own = 0.7, 0.8, 0.5

    def success(a, b, c):
        return 1 / (1 + np.exp(-(level * a + member * b + own * c)))

    smoothed = np.einsum("abc,b,c->a", success(*np.ix_(nodes, nodes, nodes)), mass, mass)
    truth = float(mass @ (1 - (1 - smoothed) ** k))
    rng = np.random.default_rng(2)
    covered, fixed, draws = [], [], 400
    for _ in range(draws):
        p = success(rng.standard_normal((x, 1)), rng.standard_normal((1, n)), rng.standard_normal((x, n)))
        rates = rng.binomial(3, p) / 3
        values = subset_success(rates, k)
        prompts = resampling.between_prompts(values)
        members = resampling.shared_members(lambda t: subset_success(t, k), rates, rng, 100)
        off = abs(values.mean() - truth)
        covered.append(off < Z * resampling.standard_error(prompts, members))
        fixed.append(off < Z * resampling.standard_error(prompts))
    assert least < np.mean(covered) <= 1.0
    assert np.mean(fixed) < np.mean(covered) - 0.03, "members matter here"


def test_standard_error_is_students():
    rng = np.random.default_rng(3)
    values = rng.standard_normal(6)
    se = resampling.standard_error(resampling.between_prompts(values))
    assert Z * se == pytest.approx(stats.t.isf(0.005, 5) * stats.sem(values))
    both = resampling.standard_error(resampling.between_prompts(values), resampling.between_prompts(values[::-1]))
    assert Z * both == pytest.approx(stats.t.isf(0.005, 10) * np.sqrt(2) * stats.sem(values))
    assert resampling.standard_error(resampling.Component(np.zeros(2), 3)) == pytest.approx([0.0, 0.0])


def test_jackknife_of_a_product_of_two_means():
    """Var(ab) ≈ a² Var(b̄) + b² Var(ā); each component is that of its own sample, exactly, as the product is linear."""
    rng = np.random.default_rng(4)
    a, b = 3.0 + rng.standard_normal(9), 5.0 + 2 * rng.standard_normal(14)
    first, second = resampling.jackknife(lambda x, y: x.mean() * y.mean(), a, b)
    assert first.variance == pytest.approx(b.mean() ** 2 * np.var(a, ddof=1) / 9)
    assert second.variance == pytest.approx(a.mean() ** 2 * np.var(b, ddof=1) / 14)
    assert (first.degrees, second.degrees) == (8, 13)


def test_too_little_is_refused():
    rng = np.random.default_rng(5)
    with pytest.raises(InputError):
        resampling.between_prompts(np.ones(1))
    with pytest.raises(InputError):
        resampling.shared_members(lambda t: t.mean(-1), np.ones((3, 1)), rng)
    with pytest.raises(InputError):
        resampling.jackknife(np.mean, np.ones(1))
