"""Ratios and slopes of means: exact where there is no noise, and standard errors by simulation."""

import numpy as np
import pytest

from esth.errors import InputError
from esth.estimators.linearised import log_slope, ratio


def test_exact_values_without_noise():
    x = np.array([0.1, 1.0, 7.0])
    assert ratio([3.0, 6.0], [2.0, 4.0]) == (1.5, 0)
    slope = log_slope(x, np.outer(x**2, [1.0, 2.0, 5.0]))
    assert slope.value == pytest.approx(2, rel=1e-12) and slope.se == pytest.approx(0, abs=1e-12)


def test_least_squares_of_a_bent_line():
    x, y = np.array([1.0, 2.0, 5.0, 9.0]), np.array([1.0, 5.0, 20.0, 70.0])
    expected = np.polyfit(np.log(x), np.log(y), 1)[0]
    assert log_slope(x, np.stack([0.5 * y, 1.5 * y], axis=1)).value == pytest.approx(expected, rel=1e-12)


def test_standard_errors_are_the_spread_over_repetitions():
    rng = np.random.default_rng(0)
    x = np.array([0.2, 0.5, 1.0])
    prompt = rng.gamma(9, 1 / 9, (2000, 1, 40))  # shared by all x of a prompt: no error of slope or ratio
    values = prompt * rng.gamma(4, 1 / 4, (2000, 3, 40)) * x[:, None] ** 2
    slopes = [log_slope(x, v) for v in values]
    assert np.mean([s.value for s in slopes]) == pytest.approx(2, abs=0.02)
    assert np.std([s.value for s in slopes]) == pytest.approx(np.mean([s.se for s in slopes]), rel=0.06)
    shares = ratio(values[:, 2], values[:, 1])
    assert shares.value.mean() == pytest.approx(4, rel=0.03)
    assert shares.value.std() == pytest.approx(shares.se.mean(), rel=0.06)


@pytest.mark.parametrize(
    ("x", "values"),
    [([1.0], [[1.0, 2.0]]), ([1.0, 1.0], [[1.0, 2.0]] * 2), ([1.0, 2.0], [[0.0, 0.0], [1.0, 2.0]])],
)
def test_slopes_that_are_none(x, values):
    with pytest.raises(InputError, match="two different"):
        log_slope(x, values)


def test_a_ratio_to_nothing():
    with pytest.raises(InputError, match="not 0"):
        ratio([1.0, 2.0], [1.0, -1.0])
