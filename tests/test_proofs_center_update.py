"""The proof of P4 goes through, no wrong constant gets through, and its sharp constant resists an attack."""

import numpy as np
import pytest
from proof_mutations import steps_without_constants, wrong_constants
from scipy.optimize import minimize

from proofs import center_update
from proofs.step import ProofError, prove

SHARP = 1 / (12 * 3**0.5)


def test_every_statement_is_proved():
    proved = prove(center_update)
    assert {outcome.step.statement for outcome in proved} == {f"P4.{k}" for k in range(1, 5)}


@pytest.mark.parametrize(("step", "name", "wrong"), wrong_constants(center_update))
def test_a_wrong_constant_fails(step, name, wrong):
    with pytest.raises(ProofError):
        step.run(**{name: wrong})


def test_every_step_claims_a_constant():
    assert steps_without_constants(center_update) == set()


def _remainder(logits: np.ndarray, u: np.ndarray, accepted: np.ndarray) -> float:
    """p(1) - p(0) - p'(0) along logits + t·u, over the squared span of u."""
    before, after = (np.exp(z - z.max()) for z in (logits, logits + u))
    before, after = before / before.sum(), after / after.sum()
    slope = before @ (accepted * u) - (before @ accepted) * (before @ u)
    return ((after - before) @ accepted - slope) / np.ptp(u) ** 2


def test_sharp_constant_against_random_policies():
    """P4.1 on policies of 2 to 6 categories at logit scales and spans over two decades."""
    rng = np.random.default_rng(8)
    for _ in range(5_000):
        size = rng.integers(2, 7)
        accepted = (rng.random(size) < 0.5).astype(float)
        logits, u = 10 ** rng.uniform(-1, 1, 2)[:, None] * rng.normal(size=(2, size))
        assert abs(_remainder(logits, u, accepted)) <= SHARP * (1 + 1e-9)


def test_sharp_constant_against_an_optimiser():
    """From random starts in five categories a local search climbs to the constant and never above it."""
    rng = np.random.default_rng(9)
    accepted = np.array([1.0, 1.0, 0.0, 0.0, 0.0])

    def objective(point: np.ndarray) -> float:
        logits, u = point.reshape(2, 5)
        return -_remainder(logits, 0.02 * u / np.ptp(u), accepted)

    best = max(-minimize(objective, rng.normal(size=10), method="Nelder-Mead").fun for _ in range(6))
    assert 0.99 * SHARP < best <= SHARP * (1 + 1e-9)


def test_lipschitz_constant_of_the_success():
    """P4.1: the largest eigenvalue of the Hessian in the logits, random policies of 3 categories."""
    rng = np.random.default_rng(10)
    largest = 0.0
    for _ in range(20_000):
        q = rng.dirichlet([0.5, 0.5, 0.2])
        # p = q_1, Hessian: q_1 [(e - q)(e - q)ᵀ - diag(q) + q qᵀ]
        a = np.array([1.0, 0.0, 0.0]) - q
        hessian = q[0] * (np.outer(a, a) - np.diag(q) + np.outer(q, q))
        largest = max(largest, np.abs(np.linalg.eigvalsh(hessian)).max())
    assert 0.98 / (3 * 3**0.5) < largest <= 1 / (3 * 3**0.5) + 1e-12


@pytest.mark.parametrize(("draw", "predicted"), [("normal", 1.0), ("rademacher", 0.75)])
def test_drift_of_linear_fitness_depends_on_the_noise(draw, predicted):
    """P4.4 at N = d = 2, gradient (1, 1), α = 1: as stated for Gaussian noise, otherwise for Rademacher."""
    rng = np.random.default_rng(11)
    shape = (100_000, 2, 2)
    epsilon = rng.normal(size=shape) if draw == "normal" else rng.choice([-1.0, 1.0], size=shape)
    centred = epsilon.sum(axis=-1) - epsilon.sum(axis=-1).mean(axis=1, keepdims=True)
    z = np.sign(centred)  # of two members, standardised
    square = ((z[..., None] * epsilon).mean(axis=1) ** 2).sum(axis=-1)
    assert square.mean() == pytest.approx(predicted, abs=4 * square.std() / len(square) ** 0.5)
