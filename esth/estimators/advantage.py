"""Coverage of a population, of its mixture and of its center from verified samples, without plug-in bias.

The plug-in (1 − c/m)ʳ overestimates the failure of r tries. C(m−c, r)/C(m, r) is unbiased for (1−p)ʳ, r <= m; members
are sampled independently, so products over them stay unbiased. What P_pop and P_mix are: docs/theory.md, L2.

Counts c of successes in m tries of each member: [..., N] on the last axis; any leading axes (prompts).
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esth._array import check_weights
from esth.coverage import subset_success
from esth.errors import InputError

Float = NDArray[np.float64]


def failure_powers(c: ArrayLike, m: int, k: int) -> Float:
    """Unbiased estimates of (1−p)ʳ for r = 0…k, C(m−c, r)/C(m, r): counts [...] -> [..., k + 1].

    Raises:
        InputError: counts outside 0…m, or k > m.
    """
    counts = _counts(c, m, k)
    powers = [np.ones_like(counts)]
    for r in range(k):
        powers.append(powers[-1] * np.maximum(m - counts - r, 0.0) / (m - r))
    return np.stack(powers, axis=-1)


def population(c: ArrayLike, m: int, k: int) -> Float:
    """Unbiased success of a uniform k-subset of members, one response each (L2.6): [..., N] -> [...].

    The quantity is linear in each member's success, so the plug-in is unbiased.
    """
    return np.asarray(subset_success(_counts(c, m, 1) / m, k))


def mixture(c: ArrayLike, m: int, k: int, weights: ArrayLike | None = None) -> Float:
    """Unbiased estimate of 1 − (1−p̄_w)ᵏ, k draws of the realised mixture (uniform if no weights): [..., N] -> [...].

    (1−p̄_w)ᵏ = k!·Σ_{r₁+…+r_N=k} Π (wⱼ(1−pⱼ))^{rⱼ}/rⱼ!: the coefficient of xᵏ in a product of N polynomials, whose
    coefficients `failure_powers` estimates without bias. For w >= 0 all terms are positive: nothing cancels. O(N·k²).
    Weights must not depend on the tries counted here.

    Raises:
        InputError: k > m (no unbiased estimate exists), k > 170 (k! overflows), or counts outside 0…m.
    """
    if not 1 <= k <= min(m, 170):
        raise InputError(f"an unbiased estimate of k mixture draws needs 1 <= k <= m <= 170, not k = {k}, m = {m}")
    powers = failure_powers(c, m, k)
    n = powers.shape[-2]
    w = np.asarray(check_weights(weights, powers[..., 0], signed=True))
    powers = powers * np.stack([w**r / math.factorial(r) for r in range(k + 1)], axis=-1)
    product = np.zeros((*powers.shape[:-2], k + 1))
    product[..., 0] = 1.0
    for j in range(n):
        member = powers[..., j, :]
        product = np.stack([np.sum(product[..., : r + 1] * member[..., r::-1], axis=-1) for r in range(k + 1)], axis=-1)
    return 1.0 - math.factorial(k) * product[..., k]


def gap(c: ArrayLike, m: int, k: int) -> Float:
    """Unbiased estimate of P_pop − P_mix at k tries; single estimates may be negative: [..., N] -> [...]."""
    return population(c, m, k) - mixture(c, m, k)


def pair_failures(c: ArrayLike, m: int) -> Float:
    """Unbiased (1−p(ε))(1−p(−ε)) of antithetic pairs, members 2k and 2k+1: [..., N] -> [..., N/2]."""
    q = 1.0 - _pairs(c, m) / m
    return np.asarray(q[..., 0] * q[..., 1])


def pair_means(c: ArrayLike, m: int) -> Float:
    """(p(ε) + p(−ε))/2 of antithetic pairs: [..., N] -> [..., N/2].

    One a pair, they are independent with mean p_σ: `subset_success` of k of them is without bias 1 − (1−p_σ)ᵏ, k draws
    of the smoothed policy, as that of k i.i.d. members is (L2.8).
    """
    return np.asarray(_pairs(c, m).mean(-1) / m)


def pair_population(c: ArrayLike, m: int, k: int) -> Float:
    """Unbiased success of k/2 pairs drawn uniformly, one response of each member: [..., N] -> [...].

    Over populations its mean is 1 − [(1−p_σ)² + Cov(p(ε), p(−ε))]^{k/2} (L2.8).
    """
    if k % 2:
        raise InputError(f"antithetic members come in pairs: k = {k} is odd")
    return np.asarray(subset_success(1.0 - pair_failures(c, m), k // 2))


def pair_covariance(c: ArrayLike, m: int) -> Float:
    """Unbiased Cov(p(ε), p(−ε)) over ε, from products within pairs and of different pairs: [..., N] -> [...]."""
    means = pair_means(c, m)
    pairs = means.shape[-1]
    if pairs < 2:
        raise InputError("a covariance needs at least 2 pairs")
    p = _pairs(c, m) / m
    different = (means.sum(-1) ** 2 - (means**2).sum(-1)) / (pairs * (pairs - 1))
    return np.asarray((p[..., 0] * p[..., 1]).mean(-1) - different)


def _pairs(c: ArrayLike, m: int) -> Float:
    counts = _counts(c, m, 1)
    if counts.shape[-1] % 2:
        raise InputError(f"antithetic members come in pairs: their number must be even, not {counts.shape[-1]}")
    return counts.reshape((*counts.shape[:-1], -1, 2))


def _counts(c: ArrayLike, m: int, k: int) -> Float:
    counts = np.asarray(c, dtype=np.float64)
    if m < 1 or not np.all((counts >= 0) & (counts <= m)):
        raise InputError(f"successes must lie in 0..{m}, the number of tries")
    if k > m:
        raise InputError(f"(1 − p)^{k} has no unbiased estimate from {m} tries")
    return counts
