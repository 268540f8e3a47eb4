"""Sizes of noisy estimates: what noise adds is taken off, and the errors cover."""

import numpy as np
import pytest

from esth.check import Z
from esth.estimators.intervals import Estimate
from esth.estimators.size import magnitude, root


@pytest.mark.parametrize("x", [0.0, 0.5, -1.0, 3.0])
def test_squared_magnitudes_are_right_on_average(x):
    estimates = x + np.random.default_rng(0).standard_normal(20_000)
    found = magnitude(Estimate(estimates, np.ones_like(estimates)))
    kept = np.where(estimates**2 > 1, estimates**2 - 1, 0.0)
    assert found.value**2 == pytest.approx(kept)
    assert np.mean(found.value) < np.mean(np.abs(estimates))
    if abs(x) == 3:
        assert np.mean(found.value) == pytest.approx(3.0, abs=0.2)
    assert np.mean(np.abs(found.value - abs(x)) <= Z * found.se) > 0.985


@pytest.mark.parametrize("v", [0.0, 0.3, 1.0, 20.0])
def test_roots_cover(v):
    estimates = v + np.random.default_rng(0).standard_normal(20_000)
    found = root(Estimate(estimates, np.ones_like(estimates)))
    covered = np.mean(np.abs(found.value - np.sqrt(v)) <= Z * found.se)
    assert covered > 0.985


def test_root_of_a_sure_variance_is_linearised():
    found = root(Estimate(np.array(4.0), np.array(1e-3)))
    assert found.value == 2.0 and found.se == pytest.approx(1e-3 / 4, rel=1e-3)


def test_a_negative_variance_is_none():
    found = root(Estimate(np.array(-1.0), np.array(0.1)))
    assert found.value == 0.0 and found.se == 0.0
