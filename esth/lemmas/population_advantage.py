"""L2 · Verifier-projected JS population advantage: one response from each member beats as many from their mixture.

P_pop = 1 − Π(1−pᵢ), P_mix = 1 − (1−p̄)ᴺ, P_center = 1 − (1−p)ᴺ (esth/coverage.py); uniform weights unless said.

L2.1  P_pop >= P_mix, with equality iff all pᵢ are equal.
L2.2  With G = log(1−p̄) − (1/N)Σ log(1−pᵢ) >= 0: P_pop − P_mix = (1−p̄)ᴺ(1 − e^{−NG}).
L2.3  odds(p_min)·JSᵛ <= G <= odds(p_max)·JSᵛ, so
      N odds(p_min) JSᵛ (1−P_pop) <= P_pop − P_mix <= N odds(p_max) JSᵛ (1−P_mix); with weights P_strat for P_pop and
      the extrema over their support.
L2.4  N·G small: P_pop − P_mix ≈ N(1−p̄)^{N−1} p̄·JSᵛ; with L1 its mean is (σ²/2)(N−1)(1−p)^{N−2}‖∇p‖² (antithetic:
      N for N−1).
L2.5  JS may be large with JSᵛ = 0; then P_pop = P_mix.
L2.6  Uniform K-subset of members, one response each: 1 − e_K(1−p)/C(N,K) >= 1 − (1−p̄)ᴷ (`coverage.subset_success`).
L2.7  P_pop > P_center iff G > log((1−p̄)/(1−p)).
L2.8  i.i.d. members: E[P_pop] = 1 − (1−p_σ)ᴺ at any σ; antithetic pairs: 1 − [(1−p_σ)² + Cov(p(ε),p(−ε))]^{N/2}.

Success probabilities and weights: members on the last axis, [..., N] -> [...].
"""

from esth._array import Array, check_probability, check_weights, floating, namespace, safe_log, times
from esth.check import Bracket, Check, as_identity, judge_bracket, judge_equal
from esth.coverage import (
    at_least_one,
    log_failure_gap,
    mean_success,
    odds,
    subset_success,
)
from esth.divergence import bernoulli_mixture, projected_js, safe_log1m
from esth.errors import InputError


def advantage(p: Array, weights: Array | None = None) -> Array:
    """P_pop − P_mix (P_strat − P_mix with weights), exactly: (1−p̄)ᴺ(1 − e^{−NG}) (L2.2).

    The difference of the two successes, without the cancellation that subtracting them would suffer.
    """
    p = check_probability(p)
    xp = namespace(p)
    return _mixture_failure(p, weights) * -xp.expm1(-p.shape[-1] * log_failure_gap(p, weights))


def gap_bracket(p: Array, weights: Array | None = None) -> Bracket:
    """odds(p_min)·JSᵛ <= G <= odds(p_max)·JSᵛ, extrema over the support of the weights (L2.3)."""
    diversity = projected_js(p, weights)
    low, high = _extreme_odds(p, weights)
    return Bracket(times(low, diversity), times(high, diversity))


def bracket(p: Array, weights: Array | None = None) -> Bracket:
    """Bounds of P_pop − P_mix for any spread of the successes (L2.3); the upper one at most 1 − P_mix."""
    p = check_probability(p)
    xp = namespace(p)
    gap = gap_bracket(p, weights)
    n = p.shape[-1]
    failure_mix = _mixture_failure(p, weights)
    failure_pop = failure_mix * xp.exp(-n * log_failure_gap(p, weights))
    return Bracket(times(n * gap.lower, failure_pop), xp.minimum(times(n * gap.upper, failure_mix), failure_mix))


def _mixture_failure(p: Array, weights: Array | None) -> Array:
    """(1−p̄_w)ᴺ, with the digits that 1 − P_mix, or 1 − p̄_w near 1, would lose."""
    xp = namespace(p)
    failure = bernoulli_mixture(p, check_weights(weights, p))[1][..., 0]
    return xp.exp(p.shape[-1] * safe_log(failure))


def _extreme_odds(p: Array, weights: Array | None) -> tuple[Array, Array]:
    p = check_probability(p)
    xp = namespace(p)
    present = check_weights(weights, p) > 0
    low = xp.min(xp.where(present, p, 1.0), axis=-1)
    high = xp.max(xp.where(present, p, 0.0), axis=-1)
    return odds(low), odds(high)


def predict(mean: Array, projected: Array, n: int, k: int | None = None) -> Array:
    """N(1−p̄)^{N−1} p̄·JSᵛ, the leading order of P_pop − P_mix for N·G << 1 (L2.4).

    For a uniform K-subset of the members against K draws of the mixture it is K(K−1)/(N−1)·(1−p̄)^{K−1} p̄·JSᵛ: distinct
    members have Cov = −Var(p)/(N−1), there are K(K−1)/2 pairs, and JSᵛ ≈ Var(p)/(2p̄(1−p̄)). K = N gives the form above.

    Args:
        mean: p̄, success of the mixture.
        projected: JSᵛ in nats.
        n: members N >= 2.
        k: tries K <= N; N if None.
    """
    k = n if k is None else k
    if n < 2 or not 1 <= k <= n:
        raise InputError(f"a population advantage needs N >= 2 members and 1 <= K <= N tries, not N = {n}, K = {k}")
    xp, mean, projected = floating(mean, projected)
    return k * (k - 1) / (n - 1) * xp.exp(times(k - 1, safe_log1m(mean))) * mean * projected


def predict_rate(p: Array, gradient_square: Array, sigma: Array, n: int, *, antithetic: bool = False) -> Array:
    """(σ²/2)(N−1)(1−p)^{N−2}‖∇p‖², the leading order of E[P_pop − P_mix] (L2.4; antithetic: N for N−1)."""
    if n < 2:
        raise InputError(f"a population advantage needs N >= 2 members, not {n}")
    xp, p, gradient_square, sigma = floating(p, gradient_square, sigma)
    failures = xp.exp(times(n - 2, safe_log1m(p)))
    return 0.5 * sigma**2 * (n if antithetic else n - 1) * failures * gradient_square


def pooled_subset_success(p: Array, m: int, k: int) -> Array:
    """Success of a uniform k-subset of the pooled N·m responses, m from each member (L2.6); >= 1 − (1−p̄)ᵏ."""
    p = check_probability(p)
    xp = namespace(p)
    return subset_success(xp.concat([p] * m, axis=-1), k)


def member_subset_success(p: Array, m: int, k: int) -> Array:
    """Success of a uniform k-subset of members with m responses each (L2.6).

    At least that of k mixture-drawn members with m responses each; for k < N *not* always that of m·k mixture draws.
    """
    return subset_success(at_least_one(p, m), k)


def mixture_members_success(p: Array, m: int, k: int) -> Array:
    """Success of k members drawn from the mixture with replacement, m responses each: 1 − (mean (1−pᵢ)ᵐ)ᵏ (L2.6)."""
    return at_least_one(mean_success(at_least_one(p, m)), k)


def center_margin(p: Array, center: Array) -> Array:
    """G − log((1−p̄)/(1−p)): positive iff the population beats N draws of its center, P_pop > P_center (L2.7).

    Equals (1/N)·log((1−P_center)/(1−P_pop)); computed as mean log(1−p) − mean log(1−pᵢ).
    """
    p = check_probability(p)
    xp = namespace(p)
    failures = xp.mean(safe_log1m(p), axis=-1)
    center_failure = safe_log1m(floating(p, check_probability(center))[2])
    both = xp.isinf(failures) & xp.isinf(center_failure)
    return xp.where(both, 0.0, xp.where(both, 0.0, center_failure) - xp.where(both, 0.0, failures))


def smoothed_population_success(p_smoothed: Array, n: int) -> Array:
    """E[P_pop] of i.i.d. members, exactly 1 − (1−p_σ)ᴺ at any σ (L2.8): N draws of the smoothed policy."""
    return at_least_one(p_smoothed, n)


def smoothed_pair_success(p_smoothed: Array, covariance: Array, n: int) -> Array:
    """E[P_pop] of antithetic pairs: 1 − [(1−p_σ)² + Cov(p(ε), p(−ε))]^{N/2} (L2.8)."""
    if n % 2:
        raise InputError(f"antithetic members come in pairs: N = {n} is odd")
    xp, p, covariance = floating(check_probability(p_smoothed), covariance)
    pair = xp.clip((1.0 - p) ** 2 + covariance, 0.0, 1.0)
    return 1.0 - pair ** (n / 2)


def smoothed_shift(hessian_trace: Array, sigma: Array) -> Array:
    """p_σ − p = (σ²/2) tr ∇²p + O(σ⁴), of either sign (L2.8)."""
    _, hessian_trace, sigma = floating(hessian_trace, sigma)
    return 0.5 * sigma**2 * hessian_trace


def check(p: Array, weights: Array | None = None, *, what: str = "P_pop − P_mix") -> Check:
    """One population's exact advantage against its bracket (L2.3): true of any numbers, so at best an identity."""
    value, bounds = advantage(p, weights), bracket(p, weights)
    low, high = bounds.tightness(value)
    detail = f"lower/value {float(low):.2g}, value/upper {float(high):.2g}"
    return as_identity(judge_bracket("L2.3", what, value, bounds, detail=detail))


def check_prediction(
    measured: float,
    predicted: float,
    *,
    measured_se: float = 0.0,
    predicted_se: float = 0.0,
    tolerance: float = 0.1,
    statement: str = "L2.4",
    what: str = "P_pop - P_mix",
    detail: str = "",
) -> Check:
    """Compare a measured advantage or coverage with a prediction from other samples, the center or the rate."""
    return judge_equal(
        statement, what, measured, predicted,
        measured_se=measured_se, predicted_se=predicted_se, tolerance=tolerance, detail=detail,
    )  # fmt: skip
