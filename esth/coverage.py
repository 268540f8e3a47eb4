"""Success of one policy, of a mixture and of a population under several tries; pass@k.

Members' success probabilities stand on the last axis. Everything is computed in log-failures log(1 − p), so that
successes of 1e-300 and of exactly 1 come out right.
"""

from esth._array import Array, check_probability, check_weights, floating, namespace, times
from esth.divergence import bernoulli_log_ratios, bernoulli_mixture, exponential_remainder, safe_log1m
from esth.errors import InputError


def odds(p: Array) -> Array:
    """p/(1 − p), +inf at 1; shape of `p`."""
    p = check_probability(p)
    xp = namespace(p)
    return xp.where(p < 1, p / xp.where(p < 1, 1.0 - p, 1.0), xp.inf)


def at_least_one(p: Array, k: Array | float) -> Array:
    """φ_k(p) = 1 − (1 − p)ᵏ: success of `k` >= 0 independent tries at `p`; broadcasts."""
    xp, p, k = floating(check_probability(p), k)
    if not bool(xp.all(k >= 0)):
        raise InputError("the number of tries k must not be negative")
    return 0.0 - xp.expm1(times(k, safe_log1m(p)))


def population_success(p: Array, weights: Array | None = None) -> Array:
    """P_pop = 1 − Π(1 − pᵢ): one response from each member; [..., N] -> [...].

    With weights, the stratified P_strat = 1 − Π(1 − pᵢ)^{N wᵢ} (L2.3).
    """
    p = check_probability(p)
    weights = check_weights(weights, p)
    xp = namespace(p)
    return 0.0 - xp.expm1(xp.sum(times(p.shape[-1] * weights, safe_log1m(p)), axis=-1))


def mean_success(p: Array, weights: Array | None = None) -> Array:
    """p̄_w = Σ wᵢ pᵢ, the success of the mixture policy; [..., N] -> [...]."""
    p = check_probability(p)
    return bernoulli_mixture(p, check_weights(weights, p))[0][..., 0]


def mixture_success(p: Array, k: Array | float | None = None, weights: Array | None = None) -> Array:
    """P_mix = 1 − (1 − p̄_w)ᵏ: `k` draws (default N) of the realised mixture; [..., N] -> [...]."""
    p = check_probability(p)
    return at_least_one(mean_success(p, weights), p.shape[-1] if k is None else k)


def subset_success_curve(p: Array, k_max: int | None = None) -> Array:
    """Success of a uniform k-subset of members, one response each, for k = 0…k_max: [..., N] -> [..., k_max + 1].

    1 − e_k(1 − p)/C(N, k) (L2.6), in O(N·k_max): the k-subset of the first n members holds member n with probability
    k/n, so S(n, k) = (1 − k/n) S(n−1, k) + (k/n)(pₙ + (1 − pₙ) S(n−1, k−1)). Every term lies in [0, 1]: nothing
    overflows and nothing cancels.

    Raises:
        InputError: k_max outside 0…N.
    """
    p = check_probability(p)
    xp = namespace(p)
    n_members = check_weights(None, p).shape[-1]
    k_max = n_members if k_max is None else k_max
    if not 0 <= k_max <= n_members:
        raise InputError(f"subset size k = {k_max} must lie in 0..{n_members}, the number of members")
    sizes = xp.arange(1, k_max + 1, dtype=p.dtype, device=p.device)
    curve = xp.zeros((*p.shape[:-1], k_max + 1), dtype=p.dtype, device=p.device)
    for n in range(1, n_members + 1):
        # Sizes above n do not exist yet; with the share held at 1 they hold numbers that size n = k overwrites.
        share = xp.clip(sizes / n, 0.0, 1.0)
        member = p[..., n - 1 : n]
        new = (1.0 - share) * curve[..., 1:] + share * (member + (1.0 - member) * curve[..., :-1])
        curve = xp.concat([curve[..., :1], new], axis=-1)
    return curve


def subset_success(p: Array, k: int) -> Array:
    """1 − e_k(1 − p)/C(N, k): a uniform k-subset of members, one response each (L2.6); [..., N] -> [...]."""
    return subset_success_curve(p, k)[..., k]


def log_failure_gap(p: Array, weights: Array | None = None) -> Array:
    """G_w = log(1 − p̄_w) − Σ wᵢ log(1 − pᵢ) >= 0 (L2.2): [..., N] -> [...].

    0 if every member (of positive weight) always succeeds, +inf if some but not all do.
    """
    p = check_probability(p)
    weights = check_weights(weights, p)
    xp = namespace(p)
    failure = bernoulli_mixture(p, weights)[1]
    u = bernoulli_log_ratios(p, weights)[1]
    # Σ w eᵘ = 1, so G = −Σ w u = Σ w (eᵘ − 1 − u): no term is negative, none cancels another.
    # Unless a member certainly succeeds, 1 − p̄ >= 1e-16 and u < 40.
    certain = p >= 1
    terms = xp.where(certain, xp.inf, exponential_remainder(xp.clip(u, -40.0, 40.0)))
    return xp.sum(times(weights, xp.where(failure > 0, terms, 0.0)), axis=-1)


def pass_at_k(n: Array, c: Array, k: int) -> Array:
    """Unbiased pass@k from `c` successes in `n` i.i.d. draws: 1 − C(n−c, k)/C(n, k) (Chen et al. 2021); broadcasts.

    Raises:
        InputError: k < 1, k > n, or c outside 0…n.
    """
    xp, n, c = floating(n, c)
    if k < 1 or bool(xp.any(n < k)):
        raise InputError(f"pass@k with k = {k} needs 1 <= k <= n, the number of draws (smallest n: {int(xp.min(n))})")
    if not bool(xp.all((c >= 0) & (c <= n))):
        raise InputError("successes c must lie in 0..n")
    # C(n−c, k)/C(n, k) = Π_{j<k} (1 − c/(n−j)), whose factors reach 0 where c > n − k.
    log_failure = sum(safe_log1m(xp.clip(c / (n - j), 0.0, 1.0)) for j in range(k))
    return 0.0 - xp.expm1(log_failure)
