"""Entropy, Kullback–Leibler and Jensen–Shannon divergences of discrete distributions, in nats.

Distributions are given by log-probabilities: categories on the last axis, members of a population on the axis before,
any batch axes in front; −inf is a probability of exactly 0. Every divergence is summed as q·φ(u) with
u = log p − log q and φ(u) = u·eᵘ − (eᵘ − 1) ≥ 0, not as p·u: the two sums are equal for normalised distributions, but
rounding in the normalisation enters the first only to second order, so divergences far below 1e-16 keep their digits.
"""

import math

from esth._array import Array, check_probability, check_weights, floating, namespace, safe_log
from esth.errors import InputError

# Elements worked on at a time: the few arrays of this size that one divergence needs stay in a core's cache.
BLOCK = 1 << 15
# Above this log-ratio eᵘ nears overflow. A mixture holds each member with its weight, so u <= −log w: only members of
# weight below e^-300 are touched, and their part of the sum is below the smallest number that matters.
MAX_LOG_RATIO = 300.0


def log_softmax(logits: Array) -> Array:
    """Log-probabilities [..., V] of the softmax of `logits` [..., V]; a logit of −inf is a forbidden category.

    Raises:
        InputError: a NaN or +inf logit, or a row without a finite one.
    """
    xp, logits = floating(logits)
    if logits.ndim == 0 or logits.shape[-1] < 1:
        raise InputError("logits need at least one category on the last axis")
    top = xp.max(logits, axis=-1, keepdims=True)
    if not bool(xp.all(xp.isfinite(top))):
        raise InputError("logits must be finite or -inf, with a finite one in each row (found NaN, +inf or none)")
    shifted = logits - top
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def entropy(log_p: Array) -> Array:
    """Shannon entropy −Σ p log p in nats: [..., V] -> [...]."""
    xp, log_p = floating(log_p)
    return 0.0 - xp.sum(xp.exp(log_p) * _finite(log_p), axis=-1)


def bernoulli(p: Array) -> Array:
    """Log-probabilities [..., 2] of (success, failure) for success probabilities `p` [...]."""
    p = check_probability(p)
    xp = namespace(p)
    return xp.stack([safe_log(p), safe_log1m(p)], axis=-1)


def safe_log1m(p: Array) -> Array:
    """log(1 − p), −inf at p = 1, precise for small p, without a warning."""
    xp = namespace(p)
    below = p < 1
    return xp.where(below, xp.log1p(-xp.where(below, p, 0.0)), -xp.inf)


def binary_entropy(p: Array) -> Array:
    """h(p) = −p log p − (1−p) log(1−p) in nats, 0 at p = 0 and 1; shape of `p`."""
    return entropy(bernoulli(p))


def weight_entropy(weights: Array) -> Array:
    """H(w) in nats of weights [..., N] -> [...]: the most a weighted population's JS can be."""
    _, weights = floating(weights)
    return entropy(safe_log(weights))


def kl(log_p: Array, log_q: Array) -> Array:
    """KL(p‖q) in nats: [..., V], [..., V] -> [...]; +inf where p > 0 = q."""
    xp, log_p, log_q = floating(log_p, log_q)
    log_p, log_q = xp.broadcast_arrays(log_p, log_q)
    impossible = xp.isinf(log_q) & ~xp.isinf(log_p)
    u = _finite(log_p) - xp.where(xp.isinf(log_q), _finite(log_p), log_q)
    p, q = xp.exp(log_p), xp.exp(log_q)
    # q·φ(u) overflows for large u, where p·u − p + q has nothing to cancel.
    small = xp.minimum(u, xp.ones_like(u))
    terms = xp.where(u < 1, q * _phi(small), p * u - p + q)
    return xp.where(xp.any(impossible, axis=-1), xp.inf, xp.sum(terms, axis=-1))


def log_mixture(log_p: Array, weights: Array | None = None) -> Array:
    """log Σ wᵢ πᵢ of members [..., N, V] under weights [..., N]: -> [..., V]."""
    xp, log_p = floating(log_p)
    log_w = safe_log(check_weights(weights, log_p[..., 0]))
    return _logsumexp(xp, log_p + log_w[..., None], axis=-2)


def js(log_p: Array, weights: Array | None = None) -> Array:
    """Weighted Jensen–Shannon divergence JS_w = Σ wᵢ KL(πᵢ‖π̄_w) in nats (docs/theory.md, Setting).

    Args:
        log_p: [..., N, V] log-probabilities of the members.
        weights: [..., N], uniform if None.

    Returns:
        [...], between 0 and H(w).

    Raises:
        InputError: weights that are no distribution over the members, or NaN log-probabilities.
    """
    xp, log_p = floating(log_p)
    if log_p.ndim < 2:
        raise InputError("log_p needs two axes: members, categories")
    weights = check_weights(weights, log_p[..., 0])
    batch, (n, v) = log_p.shape[:-2], log_p.shape[-2:]
    rows = log_p.reshape((-1, n, v))
    row_weights = xp.broadcast_to(weights, (*batch, n)).reshape((-1, n))
    block = max(1, BLOCK // (n * v))
    parts = [_js(xp, rows[i : i + block], row_weights[i : i + block]) for i in range(0, max(rows.shape[0], 1), block)]
    value = xp.concat(parts).reshape(batch)
    if bool(xp.any(xp.isnan(value))):
        raise InputError("log_p holds NaN or +inf")
    return value


def _js(xp: Array, log_p: Array, weights: Array) -> Array:
    """`js` of a block [B, N, V]: JS = Σ_y q Σᵢ wᵢ φ(log πᵢ − log q), q the mixture."""
    weighted = log_p + safe_log(weights)[..., None]
    log_q = _logsumexp(xp, weighted, axis=-2)
    reference = xp.where(xp.isinf(log_q), 0.0, log_q)
    u = xp.clip(log_p - reference[:, None, :], -1e300 if log_p.dtype == xp.float64 else -1e30, MAX_LOG_RATIO)
    return xp.sum(xp.exp(log_q) * xp.matmul(weights[:, None, :], _phi(u))[:, 0, :], axis=-1)


def projected_js(success: Array, weights: Array | None = None) -> Array:
    """Verifier-projected diversity JSᵛ_w = h(p̄_w) − Σ wᵢ h(pᵢ) in nats: success [..., N] -> [...]."""
    return js(bernoulli(success), weights)


def project(log_p: Array, outcome: Array, n_outcomes: int) -> Array:
    """Push categories forward to verifier outcomes: [..., V] and `outcome` [V] in 0…n−1 -> [..., n_outcomes]."""
    xp, log_p = floating(log_p)
    outcome = xp.asarray(outcome)
    if outcome.shape != (log_p.shape[-1],):
        raise InputError(f"outcome needs one entry for each of the {log_p.shape[-1]} categories")
    if bool(xp.any((outcome < 0) | (outcome >= n_outcomes))):
        raise InputError(f"outcomes must lie in 0..{n_outcomes - 1}")
    columns = [_logsumexp(xp, xp.where(outcome == k, log_p, -xp.inf), axis=-1) for k in range(n_outcomes)]
    return xp.stack(columns, axis=-1)


def chi_square(log_p: Array, log_q: Array) -> Array:
    """χ²(p‖q) = Σ (p − q)²/q: [..., V], [..., V] -> [...]; +inf where p > 0 = q or where it overflows."""
    order2 = renyi2(log_p, log_q)
    xp = namespace(order2)
    largest = math.log(xp.finfo(order2.dtype).max)
    return xp.where(order2 > largest, xp.inf, xp.expm1(xp.clip(order2, 0.0, largest)))


def renyi2(log_p: Array, log_q: Array) -> Array:
    """log(1 + χ²(p‖q)) = log Σ p²/q in nats, the Rényi divergence of order 2: [..., V], [..., V] -> [...]."""
    xp, log_p, log_q = floating(log_p, log_q)
    log_p, log_q = xp.broadcast_arrays(log_p, log_q)
    impossible = xp.isinf(log_q) & ~xp.isinf(log_p)
    u = _finite(log_p) - xp.where(xp.isinf(log_q), _finite(log_p), log_q)
    # Σ q (eᵘ − 1)² keeps the digits of close distributions, the log-sum-exp form those of distant ones.
    near = xp.log1p(xp.sum(xp.exp(log_q) * xp.expm1(xp.clip(u, -1.0, 1.0)) ** 2, axis=-1))
    far = _logsumexp(xp, xp.where(xp.isinf(log_p), -xp.inf, log_p + u), axis=-1)
    close = xp.all(xp.abs(u) <= 1, axis=-1)
    return xp.where(xp.any(impossible, axis=-1), xp.inf, xp.where(close, near, far))


def total_variation(log_p: Array, log_q: Array) -> Array:
    """½ Σ |p − q|: [..., V], [..., V] -> [...], between 0 and 1."""
    xp, log_p, log_q = floating(log_p, log_q)
    log_p, log_q = xp.broadcast_arrays(log_p, log_q)
    larger, gap = xp.maximum(log_p, log_q), -xp.abs(_finite(log_p) - _finite(log_q))
    return 0.0 - 0.5 * xp.sum(xp.exp(larger) * xp.expm1(gap), axis=-1)


def _finite(log_p: Array) -> Array:
    """−inf replaced by a finite number whose product with probability 0 is 0."""
    xp = namespace(log_p)
    return xp.where(xp.isinf(log_p), -1e30, log_p)


def _phi(u: Array) -> Array:
    """φ(u) = u·eᵘ − (eᵘ − 1) >= 0."""
    xp = namespace(u)
    growth = xp.expm1(u)
    return (1.0 + growth) * u - growth


def _logsumexp(xp: Array, a: Array, axis: int) -> Array:
    top = xp.max(a, axis=axis, keepdims=True)
    shift = xp.where(xp.isinf(top), 0.0, top)
    return safe_log(xp.sum(xp.exp(a - shift), axis=axis)) + xp.squeeze(shift, axis=axis)
