"""T5 · Two-point (antithetic) estimation: antithetic ES is two-point zeroth-order optimisation.

(1/(Nσ)) Σ fᵢεᵢ over pairs ±ε is (2/N) Σ_pairs (f₊ − f₋)/(2σ)·ε, algebraically. At equal evaluations N, with V = Var f,
C = Cov(f₊, f₋) within a pair and C′ = Cov(f_i, f_j) of unpaired members:

averaged over coordinates, one-point with mean baseline ≈ (V − C′)/(σ²N), two-point ≈ (V − C)/(σ²N), so that two-point
wins iff C > C′. The relative correction is κ/d, κ = E[D²(‖ε‖²−d)]/E D² for the difference D that is squared: O(1/d)
where D depends on few directions (linear J: κ = 2), and never more than √(2 E D⁴/d)/E D² in size.
Small σ, linear J, noise variance τ² with correlations c, c′, Gaussian directions, exactly:
one-point [‖∇J‖² + (∂_kJ)² + τ²(1−c′)/σ²]/(N−1), two-point [2(‖∇J‖² + (∂_kJ)²) + τ²(1−c)/σ²]/N.
"""

from esth._array import Array, floating
from esth.check import Check, judge_equal
from esth.errors import InputError


def one_point_estimate(fitness: Array, epsilon: Array, sigma: float) -> Array:
    """Gradient estimate (1/((N−1)σ)) Σ (fᵢ − f̄) εᵢ of the smoothed objective: [..., N], [..., N, d] -> [..., d].

    Divided by N−1: subtracting the mean of the same members shrinks the estimate by (N−1)/N, which this undoes.
    """
    xp, fitness, epsilon = floating(fitness, epsilon)
    n = fitness.shape[-1]
    if n < 2:
        raise InputError(f"a mean baseline needs N >= 2 members, not {n}")
    centred = fitness - xp.mean(fitness, axis=-1, keepdims=True)
    return xp.sum(centred[..., None] * epsilon, axis=-2) / ((n - 1) * sigma)


def two_point_estimate(fitness: Array, epsilon: Array, sigma: float) -> Array:
    """Gradient estimate (2/N) Σ_pairs (f₊ − f₋)/(2σ)·ε₊: [..., N], [..., N, d] -> [..., d].

    Members 2k and 2k+1 are a pair.
    """
    xp, fitness, epsilon = floating(fitness, epsilon)
    n = fitness.shape[-1]
    if n % 2:
        raise InputError(f"antithetic members come in pairs: N = {n} is odd")
    difference = fitness[..., 0::2] - fitness[..., 1::2]
    return xp.sum(difference[..., None] * epsilon[..., 0::2, :], axis=-2) / (n * sigma)


def predict(variance: Array, covariance: Array, sigma: float, n: int) -> Array:
    """(V − C)/(σ²N), variance of either estimate averaged over coordinates, up to κ/d (above) and 1/N of it.

    `covariance` is C, within a pair, for the two-point estimate, and C′, of unpaired members, for the one-point one.
    """
    _, variance, covariance = floating(variance, covariance)
    return (variance - covariance) / (sigma**2 * n)


def predict_linear(
    gradient: Array, noise_variance: float, correlation: float, sigma: float, n: int, *, two_point: bool
) -> Array:
    """Variance of each coordinate for a linear objective with additive noise, Gaussian directions (T5): [d] -> [d].

    Exact for `one_point_estimate` and `two_point_estimate`: the baseline costs one of the N evaluations.
    """
    xp, gradient = floating(gradient)
    signal = xp.sum(gradient * gradient, axis=-1, keepdims=True) + gradient * gradient
    noise = noise_variance * (1.0 - correlation) / sigma**2
    return (2.0 * signal + noise) / n if two_point else (signal + noise) / (n - 1)


def two_point_wins(within: Array, across: Array) -> Array:
    """C − C′: positive iff two-point estimation has the smaller variance at equal evaluations."""
    _, within, across = floating(within, across)
    return within - across


def check(
    measured: float,
    predicted: float,
    *,
    what: str,
    measured_se: float = 0.0,
    tolerance: float = 0.1,
    detail: str = "",
) -> Check:
    """Compare the measured variance of an estimate's coordinate with its prediction."""
    return judge_equal("T5", what, measured, predicted, measured_se=measured_se, tolerance=tolerance, detail=detail)
