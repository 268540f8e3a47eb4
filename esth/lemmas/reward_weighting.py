"""L3 · Reward-weighting gain: weighting members by fitness adds success, by the covariance of weight and success.

L3.1  Any signed weights with Σw = 1: p̄_w − p̄ = N·Cov(w, p) (Price). For w >= 0 the gain of 1 − (1−p̄)ᴷ lies between
      K(1−b)^{K−1}(p̄_w − p̄) and K(1−a)^{K−1}(p̄_w − p̄), a <= b the two of p̄, p̄_w.
L3.2  wᵢ = (1 + βzᵢ)/N: gain = β·ρ(f,p)·sd(p), exactly.
L3.3  w ∝ e^{βf}: d p̄_w/dβ = Cov_w(f, p); non-decreasing for similarly ordered f and p, otherwise it can reverse.
L3.4  w >= 0, pᵢ < 1, M responses allotted as M·wᵢ: the log-failure falls by M·Cov(N w, −log(1−p)).
L3.5  Noisy fitness f = p + noise: ρ is attenuated by √reliability, reliability = Var(p)/(Var(p) + E noise variance).
L3.6  w independent of ε: the factor of L1.1 becomes 1 − 1/N_eff; linear fitness loses β²(1−2/N)ĝᵀFĝ/tr F more.

Fitness, weights and successes: members on the last axis, [..., N] -> [...]. Statistics use 1/N.
"""

from esth._array import Array, check_probability, check_weights, floating, namespace
from esth.check import Bracket, Check, judge_equal, judge_identity
from esth.coverage import at_least_one, mean_success
from esth.divergence import safe_log1m
from esth.errors import InputError
from esth.weighting import effective_size, linear_tilt, price_gain, softmax_tilt, zscore


def covariance(a: Array, b: Array, weights: Array | None = None) -> Array:
    """Cov_w(a, b) over members: [..., N], [..., N] -> [...]."""
    xp, a, b = floating(a, b)
    w = check_weights(weights, a)
    a = a - xp.sum(w * a, axis=-1, keepdims=True)
    b = b - xp.sum(w * b, axis=-1, keepdims=True)
    return xp.sum(w * a * b, axis=-1)


def correlation(fitness: Array, p: Array) -> Array:
    """ρ(f, p) over members, 0 where either has no spread: [..., N], [..., N] -> [...]."""
    zf, zp = zscore(fitness), zscore(p)
    return namespace(zf).mean(zf * zp, axis=-1)


def spread(p: Array) -> Array:
    """sd(p) over members: [..., N] -> [...]."""
    xp, p = floating(p)
    # In units of the largest: the square of a success below 1e-154 is 0.
    scale = xp.max(xp.abs(p), axis=-1, keepdims=True)
    unit = p / xp.where(scale > 0, scale, 1.0)
    return scale[..., 0] * xp.sqrt(covariance(unit, unit))


def predict(beta: Array, rho: Array, deviation: Array) -> Array:
    """β·ρ(f,p)·sd(p), the gain p̄_w − p̄ of the linear tilt (L3.2)."""
    _, beta, rho, deviation = floating(beta, rho, deviation)
    return beta * rho * deviation


def coverage_gain(weights: Array, p: Array, k: int) -> Array:
    """[1 − (1−p̄_w)ᵏ] − [1 − (1−p̄)ᵏ] for weights >= 0 (L3.1)."""
    return at_least_one(mean_success(p, weights), k) - at_least_one(mean_success(p), k)


def bracket(weights: Array, p: Array, k: int) -> Bracket:
    """Bounds of `coverage_gain` from the Price gain p̄_w − p̄ alone (L3.1); weights >= 0."""
    if k < 1:
        raise InputError(f"coverage needs k >= 1 tries, not {k}")
    p = check_probability(p)
    xp = namespace(p)
    mean, weighted = mean_success(p), mean_success(p, weights)
    gain = price_gain(weights, p)
    shallow = k * (1.0 - xp.maximum(mean, weighted)) ** (k - 1) * gain
    steep = k * (1.0 - xp.minimum(mean, weighted)) ** (k - 1) * gain
    return Bracket(xp.minimum(shallow, steep), xp.maximum(shallow, steep))


def softmax_slope(fitness: Array, p: Array, beta: float) -> Array:
    """d p̄_w/dβ = Cov_w(f, p) under w ∝ e^{βf} (L3.3)."""
    return covariance(fitness, p, softmax_tilt(fitness, beta))


def allocation_gain(weights: Array, p: Array, responses: float) -> Array:
    """Fall of the log-failure when `responses` are allotted as M·wᵢ, not evenly: M·Cov(Nw, −log(1−p)) (L3.4), nats.

    Raises:
        InputError: a success of exactly 1, at which the log-failure is −inf.
    """
    p = check_probability(p)
    xp = namespace(p)
    if bool(xp.any(p >= 1)):
        raise InputError("allocation needs successes below 1")
    return responses * price_gain(check_weights(weights, p), -safe_log1m(p))


def binomial_noise(p: Array, m: int) -> Array:
    """Noise variance p(1−p)/m of a fitness that is the mean of m verified responses (L3.5)."""
    p = check_probability(p)
    return p * (1.0 - p) / m


def reliability(variance: Array, noise_variance: Array) -> Array:
    """Var(p)/(Var(p) + E noise variance), 0 where both vanish (L3.5)."""
    xp, variance, noise_variance = floating(variance, noise_variance)
    total = variance + noise_variance
    return variance / xp.where(total > 0, total, 1.0)


def predict_attenuated(beta: Array, deviation: Array, reliable: Array, rho: Array = 1.0) -> Array:
    """E gain of the linear tilt under noisy fitness, ≈ β·ρ(f*,p)·√reliability·sd(p) (L3.5).

    f* is the fitness without noise; ρ(f*,p) = 1 where the fitness is the success itself plus noise. Approximate for
    few members or many ties.
    """
    xp, reliable = floating(reliable)
    return predict(beta, rho * xp.sqrt(reliable), deviation)


def predict_raw(beta: Array, p: Array) -> Array:
    """E gain of raw centred fitness, w = (1 + β(f − f̄))/N: β·Var(p), not attenuated by noise (L3.5)."""
    _, beta, p = floating(beta, p)
    return beta * covariance(p, p)


def weighting_price(weights: Array) -> Array:
    """1 − 1/N_eff, the factor in L1.1 under weights independent of the noise (L3.6): [..., N] -> [...]."""
    return 1.0 - 1.0 / effective_size(weights)


def linear_fitness_loss(beta: float, fisher: Array, gradient: Array, n: int) -> Array:
    """β²(1 − 2/N)·ĝᵀFĝ/tr F: what the linear tilt loses of diversity beyond `weighting_price` when f = g·ε (L3.6).

    E Σwᵢ(εᵢ−ε̄_w)ᵀF(εᵢ−ε̄_w)/tr F is the factor 1 − (1+β²)/N of weights independent of the noise less this, exactly for
    Gaussian noise. fisher [..., d, d], gradient g [..., d] (any length) -> [...].
    """
    xp, fisher, gradient = floating(fisher, gradient)
    square = xp.sum(gradient * gradient, axis=-1)
    form = xp.sum(xp.matmul(fisher, gradient[..., None])[..., 0] * gradient, axis=-1)
    total = xp.linalg.trace(fisher) * square
    return beta**2 * (1.0 - 2.0 / n) * form / xp.where(total > 0, total, 1.0)


def check_identity(fitness: Array, p: Array, beta: float) -> Check:
    """The linear tilt's gain on the very members that set the weights (L3.2): an identity."""
    gain = price_gain(linear_tilt(fitness, beta), p)
    return judge_identity(
        "L3.2", "gain = beta rho sd(p)", float(gain), float(predict(beta, correlation(fitness, p), spread(p)))
    )


def check(
    gain: float,
    predicted: float,
    *,
    gain_se: float = 0.0,
    predicted_se: float = 0.0,
    tolerance: float = 0.1,
    statement: str = "L3.5",
    what: str = "gain of success",
    detail: str = "",
) -> Check:
    """Compare a gain measured on held-out responses with its prediction from the others."""
    return judge_equal(
        statement, what, gain, predicted,
        measured_se=gain_se, predicted_se=predicted_se, tolerance=tolerance, detail=detail,
    )  # fmt: skip
