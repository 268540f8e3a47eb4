"""The proof of T5 goes through, no wrong constant gets through, and its exact variances agree with simulation."""

import numpy as np
import pytest
from proof_mutations import steps_without_constants, wrong_constants

from proofs import two_point
from proofs.step import ProofError, prove


def test_every_step_is_proved():
    proved = prove(two_point)
    assert {outcome.step.statement for outcome in proved} == {"T5"}


@pytest.mark.parametrize(("step", "name", "wrong"), wrong_constants(two_point))
def test_a_wrong_constant_fails(step, name, wrong):
    with pytest.raises(ProofError):
        step.run(**{name: wrong})


def test_every_step_claims_a_constant():
    assert steps_without_constants(two_point) == set()


@pytest.mark.parametrize("n", [2, 8])
def test_exact_variances_of_a_linear_objective(n):
    """One-point carries (N-1)/N² and two-point 1/N exactly, also for a handful of members."""
    rng = np.random.default_rng(12)
    runs, sigma, tau, c_pair, c_cross = 200_000, 0.5, 0.3, 0.6, 0.2
    gradient = np.array([0.8, -0.5, 0.3])
    signal = gradient @ gradient + gradient**2

    epsilon = rng.normal(size=(runs, n, 3))
    noise = tau * (c_cross**0.5 * rng.normal(size=(runs, 1)) + (1 - c_cross) ** 0.5 * rng.normal(size=(runs, n)))
    fitness = sigma * epsilon @ gradient + noise
    one = np.einsum("rn,rnd->rd", fitness - fitness.mean(1, keepdims=True), epsilon) / (sigma * n)
    _agrees(one, (n - 1) / n**2 * (signal + tau**2 * (1 - c_cross) / sigma**2))

    half = rng.normal(size=(runs, n // 2, 3))
    plus, minus = rng.normal(size=(2, runs, n // 2))
    own = (1 - c_pair) ** 0.5
    difference = 2 * sigma * half @ gradient + tau * own * (plus - minus)
    two = np.einsum("rn,rnd->rd", difference, half) / (sigma * n)
    _agrees(two, (2 * signal + tau**2 * (1 - c_pair) / sigma**2) / n)


def test_the_correction_can_be_as_large_as_one_over_root_d():
    """For D = (g·ε)(1 + (‖ε‖²-d)/√(2d)) the variance exceeds (V - C)/(σ²N) by √(2/d) of it, coordinates averaged."""
    rng = np.random.default_rng(13)
    d = 20_000
    radius_squared = rng.chisquare(d, size=4_000_000)
    # given ‖ε‖², (g·ε)² averages to ‖ε‖²/d
    square = radius_squared / d * (1 + (radius_squared - d) / (2 * d) ** 0.5) ** 2
    excess = np.mean(square * (radius_squared - d)) / np.mean(square) / d
    assert excess == pytest.approx((2 / d) ** 0.5, rel=0.05)
    assert excess > 100 / d


def _agrees(estimates: np.ndarray, variance: np.ndarray) -> None:
    """Each coordinate's sample variance is within 4 standard errors of the claim, and these tell N from N-1."""
    centred = estimates - estimates.mean(axis=0)
    standard_error = (centred**2).std(axis=0) / len(estimates) ** 0.5
    assert np.all(np.abs(estimates.var(axis=0) - variance) < 4 * standard_error)
    assert np.all(standard_error < 0.02 * variance)
