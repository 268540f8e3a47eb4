"""Fisher information of categorical policies: full, projected on a verifier, along a direction.

The Fisher information F = E[s sᵀ], s = ∇ log π, is the metric behind L1: KL(π_θ‖π_{θ+δ}) = ½ δᵀFδ + O(|δ|³). For a
softmax it is the covariance of the logits' derivative, so F = Jᵀ(diag p − p pᵀ)J with J = d logits/dθ.
"""

from esth._array import Array, check_probability, floating
from esth.errors import InputError


def categorical_variance(log_p: Array, u: Array) -> Array:
    """Var_p(u) of a function `u` [..., V] on the categories under `log_p` [..., V]: -> [...].

    With u = J·ε, the derivative of the logits along ε, this is the directional Fisher information εᵀFε (L1.4).
    Centred before it is squared: E[u²] − E[u]² would lose every digit for a small spread about a large mean.
    """
    xp, log_p, u = floating(log_p, u)
    p = xp.exp(log_p)
    centred = u - xp.sum(p * u, axis=-1, keepdims=True)
    return xp.sum(p * centred * centred, axis=-1)


def categorical_fisher(log_p: Array) -> Array:
    """Fisher matrix diag(p) − p pᵀ in the logits: [..., V] -> [..., V, V]."""
    xp, log_p = floating(log_p)
    p = xp.exp(log_p)
    identity = xp.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    return p[..., :, None] * identity - p[..., :, None] * p[..., None, :]


def fisher(log_p: Array, jacobian: Array) -> Array:
    """F = Jᵀ(diag p − p pᵀ)J in the parameters: log_p [..., V], jacobian d logits/dθ [..., V, d] -> [..., d, d]."""
    xp, log_p, jacobian = floating(log_p, jacobian)
    if jacobian.shape[-2] != log_p.shape[-1]:
        raise InputError(f"jacobian has {jacobian.shape[-2]} rows for {log_p.shape[-1]} categories")
    p = xp.exp(log_p)[..., None]
    centred = jacobian - xp.sum(p * jacobian, axis=-2, keepdims=True)
    return xp.matmul(xp.matrix_transpose(centred), p * centred)


def trace(matrix: Array) -> Array:
    """tr F: [..., d, d] -> [...]."""
    xp, matrix = floating(matrix)
    return xp.linalg.trace(matrix)


def effective_rank(matrix: Array) -> Array:
    """r_eff = (tr F)²/tr F², between 1 and d (0 for F = 0): [..., d, d] -> [...] (L1.2)."""
    xp, matrix = floating(matrix)
    total = trace(matrix)
    # Scaled by the trace first: F² would underflow for successes of 1e-200.
    scaled = matrix / xp.where(total > 0, total, 1.0)[..., None, None]
    square = xp.sum(scaled * scaled, axis=(-2, -1))
    return xp.where(total > 0, 1.0 / xp.where(total > 0, square, 1.0), 0.0)


def projected_fisher(success: Array, gradient: Array) -> Array:
    """Fᵛ = ∇p ∇pᵀ/(p(1−p)), 0 at p ∈ {0, 1}: success [...], gradient [..., d] -> [..., d, d]; Fᵛ ⪯ F."""
    xp, success, gradient = floating(check_probability(success), gradient)
    inside = ((success > 0) & (success < 1))[..., None]
    outcomes = xp.stack([success, 1.0 - success], axis=-1)
    gradient = xp.where(inside, gradient, 0.0)
    return outcome_fisher(outcomes, xp.stack([gradient, -gradient], axis=-2))


def outcome_fisher(outcome_p: Array, gradients: Array) -> Array:
    """Σ_k ∇p_k ∇p_kᵀ/p_k over verifier outcomes: outcome_p [..., k], gradients [..., k, d] -> [..., d, d]."""
    xp, outcome_p, gradients = floating(outcome_p, gradients)
    possible = outcome_p > 0
    scaled = xp.where(possible[..., None], gradients / xp.where(possible, outcome_p, 1.0)[..., None], 0.0)
    return xp.matmul(xp.matrix_transpose(scaled), gradients)
