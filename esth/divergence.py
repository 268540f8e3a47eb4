"""Entropy, Kullback–Leibler and Jensen–Shannon divergences of discrete distributions, in nats.

Distributions are given by log-probabilities: categories on the last axis, members of a population on the axis before,
any batch axes in front; −inf is a probability of exactly 0. Every divergence is summed as q·φ(u) with
u = log p − log q and φ(u) = u·eᵘ − (eᵘ − 1) ≥ 0, not as p·u: the two sums are equal for normalised distributions, but
rounding in the normalisation enters the first only to second order, so divergences far below 1e-16 keep their digits.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from esth._array import Array, check_probability, check_weights, floating, is_torch, namespace, safe_log
from esth.errors import InputError

# Elements worked on at a time: the few arrays of this size that one divergence needs stay in a core's cache.
BLOCK = 1 << 15
# Below this divergence most log-ratios are so small that u·eᵘ − (eᵘ − 1) cancels: a series takes its place.
CLOSE = 1e-4


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
    if is_torch(logits):
        # The same numbers in one pass: a language model's vocabulary does not fit the cache.
        return logits.log_softmax(-1)
    shifted = logits - top
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def entropy(log_p: Array) -> Array:
    """Shannon entropy −Σ p log p in nats: [..., V] -> [...]."""
    xp, log_p = floating(log_p)
    return 0.0 - xp.sum(xp.exp(log_p) * _finite(_checked(log_p)), axis=-1)


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
    xp, log_p, log_q, u, impossible = _compare(log_p, log_q)
    p, q = xp.exp(log_p), xp.exp(log_q)
    # q·φ(u) overflows for large u, where p·u − p + q has nothing to cancel.
    small = xp.minimum(u, xp.ones_like(u))
    terms = xp.where(u < 1, q * _phi(small, _phi_direct(small)), p * u - p + q)
    return xp.where(xp.any(impossible, axis=-1), xp.inf, xp.sum(terms, axis=-1))


def log_mixture(log_p: Array, weights: Array | None = None) -> Array:
    """log Σ wᵢ πᵢ of members [..., N, V] under weights [..., N]: -> [..., V]."""
    xp, log_p = floating(log_p)
    log_w = safe_log(check_weights(weights, _checked(log_p)[..., 0]))
    return xp.clip(_logsumexp(xp, log_p + log_w[..., None], axis=-2), None, 0.0)


def js(log_p: Array, weights: Array | None = None, *, log_pbar: Array | None = None) -> Array:
    """Weighted Jensen–Shannon divergence JS_w = Σ wᵢ KL(πᵢ‖π̄_w) in nats (docs/theory.md, Setting).

    Args:
        log_p: [..., N, V] log-probabilities of the members.
        weights: [..., N], uniform if None.
        log_pbar: [..., V] the `log_mixture` of the members, if the caller has it.

    Returns:
        [...], between 0 and H(w).

    Raises:
        InputError: weights that are no distribution over the members, or NaN log-probabilities.
    """
    xp, log_p = floating(log_p)
    if log_p.ndim < 2 or log_p.shape[-1] < 1:
        raise InputError("log_p needs two axes, members and categories, with at least one category")
    weights = check_weights(weights, log_p[..., 0])
    n, v = log_p.shape[-2:]
    batch = np.broadcast_shapes(log_p.shape[:-2], weights.shape[:-1])
    rows = xp.broadcast_to(log_p, (*batch, n, v)).reshape((-1, n, v))
    row_weights = xp.broadcast_to(weights, (*batch, n)).reshape((-1, n))
    mixtures = None if log_pbar is None else xp.broadcast_to(log_pbar, (*batch, v)).reshape((-1, v))
    size = max(1, BLOCK // (n * v))
    blocks = [slice(start, start + size) for start in range(0, max(rows.shape[0], 1), size)]
    parts = [_js(xp, rows[b], row_weights[b], None if mixtures is None else mixtures[b]) for b in blocks]
    value = xp.concat(parts).reshape(batch)
    if not bool(xp.all(xp.isfinite(value))):
        raise InputError("log_p holds NaN or +inf")
    return value


def _js(xp: Array, log_p: Array, weights: Array, log_q: Array | None) -> Array:
    """`js` of a block [B, N, V]."""
    if log_q is None:
        log_q = _logsumexp(xp, log_p + safe_log(weights)[..., None], axis=-2)
    reference = xp.where(xp.isinf(log_q), 0.0, log_q)
    return _mean_phi(xp.exp(log_q), log_p - reference[:, None, :], weights)


def _mean_phi(q: Array, u: Array, weights: Array) -> Array:
    """JS = Σ_y q Σᵢ wᵢ φ(uᵢ), uᵢ = log πᵢ − log q the log-ratios to the mixture q: [..., V], [..., N, V], [..., N]."""
    xp = namespace(u)
    # A mixture holds each member with its weight, so u <= −log w: the upper clip, which keeps eᵘ from overflowing,
    # touches only members of weight below 1e-300 (1e-34 in float32), whose part of the sum does not matter.
    limits = xp.finfo(u.dtype)
    u = xp.clip(u, limits.min, math.log(limits.max) - 10.0)

    def total(phi: Array) -> Array:
        return xp.sum(q * xp.matmul(weights[..., None, :], phi)[..., 0, :], axis=-1)

    direct = _phi_direct(u)
    value = total(direct)
    close = value < CLOSE
    return xp.where(close, total(_phi(u, direct)), value) if bool(xp.any(close)) else value


def projected_js(success: Array, weights: Array | None = None) -> Array:
    """Verifier-projected diversity JSᵛ_w = h(p̄_w) − Σ wᵢ h(pᵢ) in nats: success [..., N] -> [...].

    Computed from differences of the successes, not from `bernoulli`: successes that differ in their last digits only
    keep these digits.
    """
    p = check_probability(success)
    weights = check_weights(weights, p)
    xp = namespace(p)
    q = xp.concat(bernoulli_mixture(p, weights), axis=-1)
    return _mean_phi(q, xp.stack(bernoulli_log_ratios(p, weights), axis=-1), weights)


def bernoulli_mixture(p: Array, weights: Array) -> tuple[Array, Array]:
    """p̄_w and 1 − p̄_w, summed apart so that both keep their digits near 0: [..., N], [..., N] -> two of [..., 1]."""
    xp = namespace(p)

    def average(x: Array) -> Array:
        mean = xp.sum(weights * x, axis=-1, keepdims=True)
        # A convex combination lies within its members; rounding must not carry it past them, nor past 1. Members of
        # weight 0 do not count: where all others are certain, so is the mixture.
        low = xp.min(xp.where(weights > 0, x, xp.inf), axis=-1, keepdims=True)
        high = xp.max(xp.where(weights > 0, x, -xp.inf), axis=-1, keepdims=True)
        return xp.clip(mean, low, high)

    return average(p), average(1.0 - p)


def bernoulli_log_ratios(p: Array, weights: Array) -> tuple[Array, Array]:
    """log pᵢ/p̄_w and log (1−pᵢ)/(1−p̄_w) to the last digits: [..., N], [..., N] -> two of [..., N]."""
    xp = namespace(p)
    mean, failure = bernoulli_mixture(p, weights)
    # Nearly equal members differ by less than the mean was rounded; the mean of the differences undoes the rounding.
    difference = p - mean
    difference = difference - xp.sum(weights * difference, axis=-1, keepdims=True)

    def log_ratio(a: Array, b: Array, gap: Array) -> Array:
        near = xp.abs(gap) < 0.5 * b
        ratio = xp.log1p(xp.where(near, gap, 0.0) / xp.where(near, b, 1.0))
        return xp.where(near, ratio, safe_log(a) - xp.where(b > 0, safe_log(b), 0.0))

    return log_ratio(p, mean, difference), log_ratio(1.0 - p, failure, -difference)


def project(log_p: Array, outcome: Array, n_outcomes: int) -> Array:
    """Push categories forward to verifier outcomes: [..., V] and `outcome` [V] in 0…n−1 -> [..., n_outcomes]."""
    xp, log_p = floating(_checked(log_p))
    outcome = xp.asarray(outcome)
    if outcome.shape != (log_p.shape[-1],):
        raise InputError(f"outcome needs one entry for each of the {log_p.shape[-1]} categories")
    if bool(xp.any((outcome < 0) | (outcome >= n_outcomes))):
        raise InputError(f"outcomes must lie in 0..{n_outcomes - 1}")
    columns = [_logsumexp(xp, xp.where(outcome == k, log_p, -xp.inf), axis=-1) for k in range(n_outcomes)]
    return xp.clip(xp.stack(columns, axis=-1), None, 0.0)


def chi_square(log_p: Array, log_q: Array) -> Array:
    """χ²(p‖q) = Σ (p − q)²/q: [..., V], [..., V] -> [...]; +inf where p > 0 = q or where it overflows."""
    log_value = _log_chi_square(log_p, log_q)
    xp = namespace(log_value)
    largest = math.log(xp.finfo(log_value.dtype).max) * (1.0 - 1e-6)  # rounded up, its exponential overflows in float32
    return xp.where(log_value > largest, xp.inf, xp.exp(xp.clip(log_value, None, largest)))


def renyi2(log_p: Array, log_q: Array) -> Array:
    """log(1 + χ²(p‖q)) = log Σ p²/q in nats, the Rényi divergence of order 2: [..., V], [..., V] -> [...]."""
    log_value = _log_chi_square(log_p, log_q)
    xp = namespace(log_value)
    return xp.logaddexp(xp.zeros_like(log_value), log_value)


def _log_chi_square(log_p: Array, log_q: Array) -> Array:
    """log Σ q (eᵘ − 1)²: no normalisation enters, and neither close nor distant distributions lose digits."""
    xp, log_p, log_q, u, impossible = _compare(log_p, log_q)
    log_growth = xp.clip(u, 0.0, None) + safe_log(-xp.expm1(-xp.abs(u)))
    return xp.where(xp.any(impossible, axis=-1), xp.inf, _logsumexp(xp, log_q + 2.0 * log_growth, axis=-1))


def total_variation(log_p: Array, log_q: Array) -> Array:
    """½ Σ |p − q|: [..., V], [..., V] -> [...], between 0 and 1."""
    xp, log_p, log_q = floating(_checked(log_p), _checked(log_q))
    larger, gap = xp.maximum(log_p, log_q), -xp.abs(_finite(log_p) - _finite(log_q))
    return 0.0 - 0.5 * xp.sum(xp.exp(larger) * xp.expm1(gap), axis=-1)


def _finite(log_p: Array) -> Array:
    """−inf replaced by a finite number whose product with probability 0 is 0."""
    xp = namespace(log_p)
    return xp.clip(log_p, -1e30, None)


def _checked(log_p: Array) -> Array:
    xp, log_p = floating(log_p)
    if log_p.ndim == 0 or (0 not in log_p.shape and not bool(xp.max(log_p) < xp.inf)):
        raise InputError("log-probabilities need an axis of categories and no NaN or +inf")
    return log_p


def _compare(log_p: Array, log_q: Array) -> tuple[Any, Array, Array, Array, Array]:
    """`(xp, log_p, log_q, u, impossible)`: u = log p − log q, finite, and where p > 0 = q."""
    xp, log_p, log_q = floating(_checked(log_p), _checked(log_q))
    log_p, log_q = xp.broadcast_arrays(log_p, log_q)
    u = _finite(log_p) - xp.where(xp.isinf(log_q), _finite(log_p), log_q)
    return xp, log_p, log_q, u, xp.isinf(log_q) & ~xp.isinf(log_p)


def _phi_direct(u: Array) -> Array:
    """φ(u) = u·eᵘ − (eᵘ − 1) >= 0, which cancels near 0."""
    growth = namespace(u).expm1(u)
    return (1.0 + growth) * u - growth


def _phi(u: Array, direct: Array) -> Array:
    """φ(u) to its last digits, given `_phi_direct(u)`."""
    return _with_series(u, direct, [(k + 1) / math.factorial(k + 2) for k in range(6)])


def exponential_remainder(u: Array) -> Array:
    """eᵘ − 1 − u >= 0, to its last digits."""
    return _with_series(u, namespace(u).expm1(u) - u, [1 / math.factorial(k + 2) for k in range(6)])


def _with_series(u: Array, direct: Array, coefficients: Sequence[float]) -> Array:
    """`direct`, but u²·Σ cₖ uᵏ near 0."""
    xp = namespace(u)
    near = xp.abs(u) < 0.01
    small = xp.where(near, u, 0.0)
    *rest, series = coefficients
    for c in reversed(rest):
        series = series * small + c
    return xp.where(near, small * small * series, direct)


def _logsumexp(xp: Array, a: Array, axis: int) -> Array:
    top = xp.max(a, axis=axis, keepdims=True)
    shift = xp.where(xp.isinf(top), 0.0, top)
    return safe_log(xp.sum(xp.exp(a - shift), axis=axis)) + xp.squeeze(shift, axis=axis)
