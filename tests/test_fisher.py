"""Fisher information against its definition E[s sᵀ], the curvature of KL, and 400-digit arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esth import fisher as fisher_module
from esth.divergence import kl, log_softmax
from esth.errors import InputError
from esth.fisher import (
    categorical_fisher,
    categorical_variance,
    effective_rank,
    fisher,
    outcome_fisher,
    projected_fisher,
    trace,
)
from tests.populations import approx, cheap, close, costly, exact, exact_distribution, populations

RNG = np.random.default_rng(21)
LOG_P = log_softmax(RNG.normal(size=(2, 5)))
JACOBIAN = RNG.normal(size=(2, 5, 3))


def scores(log_p, jacobian):
    """s = ∇ log π(y) = J_y − Σ π J, one row a category."""
    p = np.exp(log_p)
    return jacobian - p @ jacobian


def smallest_eigenvalue(matrix):
    return float(np.linalg.eigvalsh(matrix).min())


@st.composite
def policies(draw, d=3):
    """(log_p [V], jacobian [V, d]) of a softmax policy, also with categories of probability 0."""
    log_p = draw(populations(max_members=1))[0][0]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return log_p, rng.normal(size=(log_p.size, d)) * draw(st.sampled_from([1e-8, 1.0, 1e5]))


# Variance


@costly
@given(policies(), st.sampled_from([0.0, 1.0, 1e6]))
def test_categorical_variance_is_centred(policy, mean):
    log_p, jacobian = policy
    u = jacobian[:, 0] + mean
    p = exact_distribution(log_p)
    average = sum(pi * exact(x) for pi, x in zip(p, u, strict=True))
    variance = sum(pi * (exact(x) - average) ** 2 for pi, x in zip(p, u, strict=True))
    # Σp = 1 up to rounding, which moves the centre by mean·1e-16, and |log p| has an error of 1e-12 at most.
    shift = 1e-15 * (np.max(np.abs(u)) + 1)
    assert close(categorical_variance(log_p, u), variance, 1e-11, 1e-11 * float(variance) + shift**2)


def test_categorical_variance_batches():
    u = RNG.normal(size=(4, 2, 5))
    p = np.exp(LOG_P)
    expected = (p * u**2).sum(-1) - (p * u).sum(-1) ** 2
    np.testing.assert_allclose(categorical_variance(LOG_P, u), expected, rtol=1e-12)
    assert categorical_variance([0.0], [7.0]) == 0.0
    assert categorical_variance(np.log([0.5, 0.5]), [-1, 1]) == approx(1.0, rel=1e-15)


# The matrix


def test_categorical_fisher_is_the_covariance_of_the_outcome():
    for log_p in LOG_P:
        p = np.exp(log_p)
        expected = sum(
            pi * np.outer(e - p, e - p) for pi, e in zip(p, np.eye(5), strict=True)
        )  # E[(e_y − p)(e_y − p)ᵀ]
        np.testing.assert_allclose(categorical_fisher(log_p), expected, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(categorical_fisher(LOG_P), [categorical_fisher(row) for row in LOG_P], rtol=1e-15)
    assert categorical_fisher([0.0, -np.inf]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_fisher_is_the_mean_outer_product_of_the_scores():
    for log_p, jacobian in zip(LOG_P, JACOBIAN, strict=True):
        s = scores(log_p, jacobian)
        np.testing.assert_allclose(fisher(log_p, jacobian), np.einsum("y,yi,yj", np.exp(log_p), s, s), rtol=1e-12)
    np.testing.assert_allclose(fisher(LOG_P, JACOBIAN)[1], fisher(LOG_P[1], JACOBIAN[1]), rtol=1e-15)
    np.testing.assert_allclose(fisher(LOG_P[0], np.eye(5)), categorical_fisher(LOG_P[0]), rtol=1e-12, atol=1e-16)


@cheap
@given(policies())
def test_fisher_is_the_logit_fisher_pulled_back(policy):
    log_p, jacobian = policy
    matrix = fisher(log_p, jacobian)
    scale = np.max(np.abs(jacobian)) ** 2
    np.testing.assert_allclose(matrix, jacobian.T @ categorical_fisher(log_p) @ jacobian, rtol=0, atol=1e-14 * scale)
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-16 * scale)
    assert smallest_eigenvalue(matrix) >= -1e-14 * scale
    assert trace(matrix) == approx(np.linalg.eigvalsh(matrix).sum(), rel=1e-9, abs=1e-14 * scale)
    assert 0.0 <= effective_rank(matrix) <= 3 * (1 + 1e-12)


@cheap
@given(policies())
def test_directional_fisher_is_the_quadratic_form(policy):
    """εᵀFε = Var(J ε), and its mean over an orthonormal basis gives the trace (L1.4)."""
    log_p, jacobian = policy
    matrix = fisher(log_p, jacobian)
    epsilon = np.array([0.3, -1.0, 2.0])
    scale = np.max(np.abs(jacobian)) ** 2
    directional = categorical_variance(log_p, jacobian @ epsilon)
    assert directional == approx(epsilon @ matrix @ epsilon, rel=1e-10, abs=1e-13 * scale)
    total = sum(categorical_variance(log_p, column) for column in jacobian.T)
    assert total == approx(trace(matrix), rel=1e-12, abs=1e-14 * scale)


@pytest.mark.parametrize("seed", range(5))
def test_fisher_is_the_curvature_of_kl(seed):
    """KL(π_θ‖π_{θ+δ}) = ½δᵀFδ + O(|δ|³), the odd orders removed by the mean of ±δ."""
    rng = np.random.default_rng(seed)
    logits, jacobian, delta = rng.normal(size=6), rng.normal(size=(6, 3)), 1e-4 * rng.normal(size=3)
    log_p = log_softmax(logits)
    step = jacobian @ delta
    mean = 0.5 * (kl(log_p, log_softmax(logits + step)) + kl(log_p, log_softmax(logits - step)))
    assert mean == approx(0.5 * delta @ fisher(log_p, jacobian) @ delta, rel=1e-6)


def test_trace_of_batches():
    np.testing.assert_allclose(trace(np.arange(18.0).reshape(2, 3, 3)), [12.0, 39.0])
    assert trace([[1, 2], [3, 4]]) == 5.0


# Projected


@cheap
@given(policies(), st.randoms(use_true_random=False))
def test_a_verifier_sees_no_more_than_the_outcome_and_finer_ones_see_more(policy, random):
    """Fᵛ ⪯ F for two outcomes, with three in between: data processing of the Fisher information."""
    log_p, jacobian = policy
    p, s = np.exp(log_p), scores(log_p, jacobian)
    fine = np.array([random.randrange(3) for _ in p])
    coarse = fine == 0
    success = np.clip(p[coarse].sum(), 0.0, 1.0)
    outcome_p = np.array([p[fine == k].sum() for k in range(3)])
    gradients = np.array([p[fine == k] @ s[fine == k] for k in range(3)])
    projected = projected_fisher(success, p[coarse] @ s[coarse])
    between = outcome_fisher(outcome_p, gradients)
    full = fisher(log_p, jacobian)
    slack = -1e-11 * np.max(np.abs(jacobian)) ** 2
    assert smallest_eigenvalue(projected) >= slack
    assert smallest_eigenvalue(between - projected) >= slack
    assert smallest_eigenvalue(full - between) >= slack


def test_projected_fisher_is_the_rank_one_formula():
    p, gradient = 0.3, RNG.normal(size=4)
    np.testing.assert_allclose(projected_fisher(p, gradient), np.outer(gradient, gradient) / (p * (1 - p)), rtol=1e-14)
    batch = projected_fisher([0.3, 0.0, 1.0], np.ones((3, 2)))
    assert batch.shape == (3, 2, 2)
    assert batch[0, 0, 1] == approx(1 / 0.21, rel=1e-14)
    assert np.all(batch[1:] == 0.0)


def test_projected_fisher_of_two_categories_is_the_whole():
    log_p, jacobian = log_softmax([0.4, -0.7]), RNG.normal(size=(2, 3))
    p = float(np.exp(log_p[0]))
    gradient = p * scores(log_p, jacobian)[0]
    np.testing.assert_allclose(projected_fisher(p, gradient), fisher(log_p, jacobian), rtol=1e-13)


def test_projected_fisher_of_rare_success():
    """∇p = p·g: Fᵛ = p g gᵀ/(1−p), finite and with all digits however small p is."""
    g = np.array([1.0, -2.0])
    np.testing.assert_allclose(projected_fisher(1e-300, 1e-300 * g), 1e-300 * np.outer(g, g), rtol=1e-13)
    np.testing.assert_allclose(projected_fisher(1 - 2**-53, 2**-53 * g), 2**-53 * np.outer(g, g), rtol=1e-13)


def test_outcome_fisher_with_every_category_an_outcome_is_the_whole():
    log_p, jacobian = LOG_P[0], JACOBIAN[0]
    p = np.exp(log_p)
    np.testing.assert_allclose(
        outcome_fisher(p, p[:, None] * scores(log_p, jacobian)), fisher(log_p, jacobian), rtol=1e-12
    )


# Effective rank


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1.0, 1e200])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_effective_rank_of_a_projection_is_its_rank(scale, rank):
    basis = np.linalg.qr(RNG.normal(size=(5, rank)))[0]
    assert effective_rank(scale * basis @ basis.T) == approx(rank, rel=1e-12)


def test_effective_rank_of_eigenvalues():
    eigenvalues = np.array([4.0, 2.0, 1.0])
    assert effective_rank(np.diag(eigenvalues)) == approx(49 / 21, rel=1e-15)
    assert effective_rank(np.stack([np.zeros((3, 3)), np.eye(3)])).tolist() == approx([0.0, 3.0])


# Input


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="4 rows for 5 categories"):
        fisher(LOG_P[0], np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        projected_fisher(1.5, [1.0])


def test_torch_gives_the_same_numbers():
    log_p, jacobian = torch.tensor(LOG_P), torch.tensor(JACOBIAN)
    np.testing.assert_allclose(fisher(log_p, jacobian).numpy(), fisher(LOG_P, JACOBIAN), rtol=1e-13)
    np.testing.assert_allclose(categorical_fisher(log_p).numpy(), categorical_fisher(LOG_P), rtol=1e-13)
    assert categorical_fisher(log_p.float()).dtype == torch.float32
    np.testing.assert_allclose(effective_rank(fisher(log_p, jacobian)).numpy(), effective_rank(fisher(LOG_P, JACOBIAN)))
    np.testing.assert_allclose(
        projected_fisher(torch.tensor(0.3), torch.tensor([1.0, 2.0])).numpy(),
        projected_fisher(0.3, [1.0, 2.0]),
        rtol=1e-6,
    )
    assert torch.autograd.gradcheck(lambda j: trace(fisher(log_p, j)).sum(), (jacobian.requires_grad_(),))


# Wrong constants are noticed

MUTANTS = {
    "variance not centred": ("categorical_variance", lambda log_p, u: np.sum(np.exp(log_p) * u * u, axis=-1)),
    "projected without 1 − p": ("projected_fisher", lambda p, g: outcome_fisher([p], np.array([g]))),
    "trace twice": ("trace", lambda m: 2 * np.trace(m, axis1=-2, axis2=-1)),
    "rank of the trace": ("effective_rank", lambda m: np.trace(m) ** 2 / np.sum(m * m) * 1.001),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setitem(globals(), attribute, mutant)
    monkeypatch.setattr(fisher_module, attribute, mutant)
    with pytest.raises(AssertionError):
        test_categorical_variance_batches()
        test_projected_fisher_of_two_categories_is_the_whole()
        test_trace_of_batches()
        test_effective_rank_of_eigenvalues()
