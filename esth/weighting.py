"""From fitness to member weights: z-scores, ranks, linear and softmax tilts, and the gain they buy.

Fitness and weights have members on the last axis. A tilt is a weight vector; the ES update is the linear tilt with
β = α/σ (P4).
"""

import numpy as np

from esth._array import Array, check_weights, floating, namespace
from esth.divergence import log_softmax
from esth.errors import InputError


def uniform(n: int, like: Array | None = None) -> Array:
    """Weights 1/N of `n` members, [n]; float64, or of the kind, dtype and device of `like`."""
    if n < 1:
        raise InputError(f"a population needs at least one member (N >= 1), not {n}")
    if like is None:
        return np.full(n, 1.0 / n)
    xp, like = floating(like)
    return xp.full((n,), 1.0 / n, dtype=like.dtype, device=like.device)


def zscore(fitness: Array) -> Array:
    """zᵢ = (fᵢ − f̄)/sd(f), population sd; all 0 where the fitness has no spread; [..., N] -> [..., N].

    No small constant is added to sd(f): it would shrink the update by an amount that depends on the reward's scale.
    Spread is told by max − min, since the rounded mean of equal numbers can differ from them.
    """
    xp, f = floating(_finite_fitness(fitness))
    lowest = xp.min(f, axis=-1, keepdims=True)
    width = xp.max(f, axis=-1, keepdims=True) - lowest
    flat = width == 0
    unit = (f - lowest) / xp.where(flat, 1.0, width)
    centred = unit - xp.mean(unit, axis=-1, keepdims=True)
    deviation = xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True))
    return xp.where(flat, 0.0, centred / xp.where(flat, 1.0, deviation))


def centered_ranks(fitness: Array) -> Array:
    """Ranks scaled to [−½, ½], ties sharing their mean rank; all 0 for one member; [..., N] -> [..., N]."""
    xp, f = floating(_finite_fitness(fitness))
    n = f.shape[-1]
    below = f[..., None, :] < f[..., :, None]
    above = f[..., None, :] > f[..., :, None]
    balance = xp.sum(below, axis=-1, dtype=f.dtype) - xp.sum(above, axis=-1, dtype=f.dtype)
    return balance / (2.0 * max(n - 1, 1))


def linear_tilt(fitness: Array, beta: float) -> Array:
    """wᵢ = (1 + β zᵢ)/N with z-scored fitness; sums to 1, non-negative only for β in `tilt_range` (L3.2)."""
    z = zscore(fitness)
    return (1.0 + _finite_beta(beta) * z) / z.shape[-1]


def tilt_range(fitness: Array) -> tuple[Array, Array]:
    """(−1/max z, 1/max(−z)): the β for which the linear tilt has no negative weight; (−inf, inf) without spread.

    |β| <= 1/√(N−1) always lies inside, since |z| <= √(N−1) (L3.2).
    """
    z = zscore(fitness)
    xp = namespace(z)
    top, bottom = xp.max(z, axis=-1), xp.max(-z, axis=-1)
    spread = top > 0
    low = xp.where(spread, -1.0 / xp.where(spread, top, 1.0), -xp.inf)
    high = xp.where(spread, 1.0 / xp.where(spread, bottom, 1.0), xp.inf)
    return low, high


def softmax_tilt(fitness: Array, beta: float) -> Array:
    """w ∝ e^{βf} (L3.3); [..., N] -> [..., N]."""
    xp, f = floating(_finite_fitness(fitness))
    return xp.exp(log_softmax(_finite_beta(beta) * (f - xp.max(f, axis=-1, keepdims=True))))


def price_gain(weights: Array, p: Array) -> Array:
    """p̄_w − p̄ = N·Cov(w, p), the Price identity, for any signed weights that sum to 1 (L3.1); [..., N] -> [...]."""
    xp, p = floating(p)
    weights = check_weights(weights, p, signed=True)
    centred = p - xp.mean(p, axis=-1, keepdims=True)
    return xp.sum((weights - 1.0 / p.shape[-1]) * centred, axis=-1)


def effective_size(weights: Array) -> Array:
    """N_eff = 1/Σwᵢ², between 1 and N for non-negative weights; [..., N] -> [...]."""
    xp, weights = floating(weights)
    weights = check_weights(weights, weights, signed=True)
    return 1.0 / xp.sum(weights * weights, axis=-1)


def _finite_beta(beta: float) -> float:
    xp, value = floating(beta)
    if not bool(xp.all(xp.isfinite(value))):
        raise InputError(f"beta must be a finite number, not {beta}")
    return beta


def _finite_fitness(fitness: Array) -> Array:
    xp, f = floating(fitness)
    if f.ndim == 0 or f.shape[-1] < 1:
        raise InputError("fitness needs at least one member on the last axis")
    if not bool(xp.all(xp.isfinite(f))):
        raise InputError("fitness must be finite (found NaN or infinity)")
    return f
