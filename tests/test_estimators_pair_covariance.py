"""V, C, C′ of pairs: unbiased by enumeration of every table, and against simulation with known components."""

import itertools
import math

import numpy as np
import pytest

from esth.errors import InputError
from esth.estimators import pair_covariance as pc
from esth.estimators.gradient_variance import estimate_variances

# Success of three kinds of prompt at +ε and −ε of two kinds of direction; rows are equally likely.
TABLE = np.array([[[0.1, 0.4], [0.5, 0.2]], [[0.9, 0.3], [0.6, 0.6]], [[0.0, 0.7], [1.0, 0.8]]])


def moments(table):
    """V, C, C′ of a deterministic evaluation of a random prompt: sums over the table, either sign being the first."""
    mean = table.mean()
    by_prompt = table.mean(axis=(1, 2))
    c = np.mean(table[..., 0] * table[..., 1]) - mean**2
    return np.mean(table**2) - mean**2, c, np.mean(by_prompt**2) - mean**2


def tables(x, k):
    """Every equally likely table of x prompts and k pairs, with either member of a pair first."""
    for rows in itertools.product(range(3), repeat=x):
        for columns in itertools.product(itertools.product(range(2), (1, -1)), repeat=k):
            yield np.stack([TABLE[list(rows), kind][:, ::sign] for kind, sign in columns], axis=1)


def value(estimate, table, monkeypatch):
    """The estimate alone: the jackknife would only cost time."""
    monkeypatch.setattr(pc, "two_way_jackknife", lambda s, x, k: pc.Estimate(v := s(np.arange(x), np.arange(k)), 0 * v))
    return estimate(table)


def test_covariances_are_unbiased(monkeypatch):
    v, c, across = moments(TABLE)
    expected = (v, c, across, v - across, v - c, c - across)
    found = [[e.value for e in value(pc.pair_covariance, t[..., None], monkeypatch)] for t in tables(3, 3)]
    assert np.mean(found, axis=0) == pytest.approx(expected, abs=1e-12)
    assert np.std(found, axis=0).min() > 1e-3, "each is random"
    assert abs(across) > 0.01 and abs(c - across) > 0.01 and abs(c) > 0.001


def test_unlike_is_unbiased_for_each_prompt():
    for table in TABLE:
        draws = [np.stack([table[i] for i in kinds])[None] for kinds in itertools.product(range(2), repeat=3)]
        one, two = np.mean([pc.unlike(d) for d in draws], axis=0)[:, 0]
        v = np.mean(table**2) - table.mean() ** 2
        assert one == pytest.approx(v, abs=1e-12)  # given the prompt C′ = 0
        assert two == pytest.approx(v - (np.mean(table[:, 0] * table[:, 1]) - table.mean() ** 2), abs=1e-12)


def test_parity_variances_are_unbiased(monkeypatch):
    success = TABLE.mean(axis=0)  # averaged over the kinds of prompt: [directions, 2]
    odd, even = 0.5 * (success[:, 0] - success[:, 1]), 0.5 * success.sum(axis=1)
    found = [[e.value for e in value(pc.parity_variances, t, monkeypatch)] for t in tables(3, 3)]
    assert np.mean(found, axis=0) == pytest.approx([np.mean(odd**2), np.var(even)], abs=1e-12)
    assert np.mean(odd**2) > 1e-3 and np.var(even) > 1e-3


def test_noise_covariance_is_unbiased(monkeypatch):
    """Two responses a member; a pair shares its random number with some probability: all 16 outcomes of one cell."""
    joint = {(1, 1): 0.3, (1, 0): 0.4, (0, 1): 0.1, (0, 0): 0.2}  # success .7 and .4
    total = np.zeros(2)
    for first, second in itertools.product(joint, repeat=2):
        cell = np.array([first, second], dtype=float).T  # [2, m]
        found = value(pc.noise_covariance, np.tile(cell, (3, 3, 1, 1)), monkeypatch)
        total += joint[first] * joint[second] * np.array([found.variance.value, found.within.value])
    assert total == pytest.approx([(0.7 * 0.3 + 0.4 * 0.6) / 2, 0.3 - 0.7 * 0.4], abs=1e-12)


def test_slope_is_that_of_the_correlations():
    rng = np.random.default_rng(5)
    y = (rng.random((4, 6, 5, 2, 3)) < 0.5).astype(float)
    y[0, :, :, 1] = y[0, :, :, 0]  # at the first length all is shared
    c = pc.noise_covariance(y).correlation.value
    assert c[0] == 1.0 and np.all(np.abs(c[1:]) < 0.6)
    assert pc.correlation_slope(y, [1, 2, 4, 8]).value == pytest.approx(np.polyfit([1, 2, 4, 8], c, 1)[0])


def simulate(rng, x, k, m, *, share):
    """Successes 0.4 + g_x ± o_xk + e_xk + …, and 0/1 rewards of m responses, a share of the pairs with one uniform."""
    g = rng.choice([-0.1, 0.2], (x, 1), p=[2 / 3, 1 / 3])
    o = 0.1 * rng.choice([-1, 1], (1, k)) + 0.05 * rng.choice([-1, 1], (x, k))
    e = 0.08 * rng.choice([-1, 1], (1, k))
    p = np.stack([0.4 + g + o + e, 0.4 + g - o + e], axis=2)
    u = rng.random((x, k, 2, m))
    u[:, :, 1] = np.where(rng.random((x, k, m)) < share, u[:, :, 0], u[:, :, 1])
    return (u < p[..., None]).astype(float), p


G, O_ALL, O_OWN, E = 0.02, 0.01, 0.0025, 0.0064
"""Variances of g, of o averaged over prompts, of its other part, and of e, of `simulate`."""


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_simulated_rewards_and_their_standard_errors(share):
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(120):
        y, _ = simulate(rng, 10, 5, 3, share=share)
        found = pc.pair_covariance(y, shared=share > 0)
        odd, even = pc.parity_variances(y.mean(axis=-1))
        noise = pc.noise_covariance(y)
        rows.append([(float(e.value), float(e.se)) for e in (*found, odd, even, noise.variance, noise.within)])
    values, se = np.transpose(rows, (2, 1, 0))
    p = simulate(np.random.default_rng(2), 4000, 400, 1, share=0.0)[1]
    nu = np.mean(p * (1 - p))
    # E[min(p₊, p₋) − p₊p₋] for one shared uniform.
    kappa = share * np.mean(p.min(axis=2) - p[:, :, 0] * p[:, :, 1])
    v = G + O_ALL + O_OWN + E + nu
    c = G + E - O_ALL - O_OWN + kappa
    expected = np.array([v, c, G, v - G, v - c, c - G, O_ALL, E, nu, kappa])
    error = np.std(values, axis=1, ddof=1) / math.sqrt(120)
    assert np.all(np.abs(values.mean(axis=1) - expected) < 4 * error + 1e-3 * nu)
    ratio = np.sqrt(np.mean(se**2, axis=1)) / np.std(values, axis=1, ddof=1)
    assert np.all((ratio > 0.8) & (ratio < 1.5)), ratio


def test_a_table_of_means_has_the_error_of_its_two_factors():
    """Rows, columns and cells of variance 1: the mean's variance is 1/X + 1/K + 1/(XK), and one-way errors miss it."""
    rng, x, k = np.random.default_rng(3), 5, 8
    squares = []
    for _ in range(400):
        h = rng.standard_normal((x, 1)) + rng.standard_normal((1, k)) + rng.standard_normal((x, k))
        squares.append(pc.two_way_jackknife(lambda i, j, h=h: np.mean(h[np.ix_(i, j)]), x, k).se ** 2)
    assert np.mean(squares) == pytest.approx(1 / x + 1 / k + 1 / (x * k), rel=0.1)


def test_a_single_row_is_fixed():
    h = np.arange(6.0)[None] ** 2
    found = pc.two_way_jackknife(lambda i, j: np.mean(h[np.ix_(i, j)]), 1, 6)
    assert found.se == pytest.approx(h.std(ddof=1) / math.sqrt(6))


@pytest.mark.parametrize("groups", [(3, 3), (2, 4)])
def test_estimates_vary_as_t5_says(groups):
    """The measured variances of both estimates against V − C′ and V − C of a quadratic objective, any group sizes."""
    rng, d, k, sigma, n = np.random.default_rng(4), 4000, 6, 0.2, 10
    gradient, one, two = np.zeros(d), [], []
    gradient[:3] = [0.6, -0.3, 0.2]
    for _ in range(300):
        epsilon = rng.standard_normal((k, d))
        along = epsilon @ gradient
        shared = 0.5 * rng.standard_normal((k, 1))
        f = np.stack([along + along**2, -along + along**2], axis=1) + shared + 0.3 * rng.standard_normal((k, 2))
        a, b = estimate_variances(f[None], epsilon[:, 10:], sigma, n, np.arange(k) >= groups[0])
        one.append(a[0]), two.append(b[0])
    linear = float(gradient @ gradient)
    even = 2 * linear**2 + 0.25  # Var (g·ε)² and what a pair shares
    v, c = linear + even + 0.09, even - linear
    for found, expected in ((one, v / (sigma**2 * (n - 1))), (two, (v - c) / (sigma**2 * n))):
        error = np.std(found, ddof=1) / math.sqrt(len(found))
        assert error < 0.06 * expected and abs(np.mean(found) - expected) < 4 * error


@pytest.mark.parametrize(
    ("estimate", "shape"),
    [
        (pc.pair_covariance, (2, 3, 2, 1)),
        (pc.pair_covariance, (3, 2, 2, 1)),
        (pc.pair_covariance, (3, 3, 3, 1)),
        (pc.parity_variances, (3, 2, 2)),
        (pc.noise_covariance, (3, 3, 2, 1)),
        (lambda y: estimate_variances(y, np.ones((3, 5)), 1.0, 6, [0, 0, 1]), (2, 3, 2)),
        (lambda y: pc.correlation_slope(y, [3, 3]), (2, 3, 3, 2, 2)),
    ],
)
def test_too_few_are_refused(estimate, shape):
    with pytest.raises(InputError):
        estimate(np.zeros(shape))


def test_nan_is_refused():
    with pytest.raises(InputError, match="finite"):
        pc.pair_covariance(np.full((3, 3, 2, 1), np.nan))
