"""L1 · Fisher-rate diversity: perturbing parameters makes policies diverse at a rate set by the Fisher information.

L1.1  Noise symmetric with covariance Σ and finite fourth moment, weights independent of it, smooth π of full support:
      E[JS_w] = (σ²/2)(1 − Σwᵢ²) tr(FΣ) + O(σ⁴); antithetic pairs: 1 − Σ_pairs(w₊ − w₋)² in place of 1 − Σwᵢ²; the same
      for JSᵛ with Fᵛ. Any weights, one population: JS_w = (σ²/2) Σ wᵢ(εᵢ − ε̄_w)ᵀF(εᵢ − ε̄_w) + O(σ³).
L1.2  Gaussian, covariance I, uniform weights: Var[JS] = σ⁴(N−1)/(2N²) tr F² + o(σ⁴); antithetic σ⁴ tr F²/N.
L1.3  Any σ, any weights, softmax policies with finite logits zᵢ; z̄ = Σwᵢzᵢ, q = softmax(z̄), uᵢ = zᵢ − z̄, sᵢ = span uᵢ:
      Σwᵢ Var_q(uᵢ)ψ(−sᵢ) − log(1+χ²(π̄_w‖q)) <= JS_w <= Σwᵢ min{Var_q(uᵢ)ψ(sᵢ), sᵢ²/8}.
L1.4  The same for each prefix of a sequence with posterior weights; the brackets add up along the sequence
      (esth/estimators/js.py), as Fisher informations do.

Arrays: members at axis −2, categories at axis −1, weights [..., N]. JS in nats.
"""

import math

from esth._array import Array, check_probability, check_weights, floating
from esth.check import Bracket, Check, as_vacuous, judge_bracket, judge_equal
from esth.divergence import log_mixture, log_softmax, renyi2, total_variation, weight_entropy
from esth.errors import InputError
from esth.fisher import categorical_variance, effective_rank

SMALL_SIGNAL = 0.3
"""σ² tr F up to which the rate L1.1 is taken to predict; the remainder is a share of this order."""


def diversity_factor(weights: Array, *, antithetic: bool = False) -> Array:
    """1 − Σwᵢ², or 1 − Σ_pairs(w₊ − w₋)² with members 2k and 2k+1 a pair (L1.1); [..., N] -> [...]."""
    xp, weights = floating(weights)
    weights = check_weights(weights, weights)
    if antithetic:
        if weights.shape[-1] % 2:
            raise InputError(f"antithetic members come in pairs: N = {weights.shape[-1]} is odd")
        weights = weights[..., 0::2] - weights[..., 1::2]
    return 1.0 - xp.sum(weights * weights, axis=-1)


def predict(fisher_trace: Array, sigma: Array, weights: Array, *, antithetic: bool = False) -> Array:
    """Leading order of E[JS_w], (σ²/2)·`diversity_factor`·tr(FΣ), in nats (L1.1).

    Args:
        fisher_trace: tr(FΣ), with F for JS and Fᵛ for JSᵛ.
        sigma: noise scale, >= 0.
        weights: [..., N], independent of the noise.
    """
    _, sigma, fisher_trace = floating(check_sigma(sigma), fisher_trace)
    return 0.5 * sigma**2 * diversity_factor(weights, antithetic=antithetic) * fisher_trace


def predict_population(log_p: Array, displacement: Array, weights: Array | None = None) -> Array:
    """Leading order of one population's JS_w, ½ Σ wᵢ Var_p(uᵢ − ū_w), in nats, error O(σ³) (L1.1, any weights).

    Args:
        log_p: [..., V] the center's log-probabilities.
        displacement: [..., N, V] first-order changes of the members' logits, uᵢ = σ J εᵢ.
        weights: [..., N], also fitness-dependent ones.
    """
    xp, log_p, displacement = floating(log_p, displacement)
    weights = check_weights(weights, displacement[..., 0])
    centred = displacement - xp.sum(weights[..., None] * displacement, axis=-2, keepdims=True)
    return 0.5 * xp.sum(weights * categorical_variance(log_p[..., None, :], centred), axis=-1)


def predict_quadratic(fisher: Array, epsilon: Array, sigma: float, weights: Array | None = None) -> Array:
    """The same from the matrix: (σ²/2) Σ wᵢ(εᵢ−ε̄_w)ᵀF(εᵢ−ε̄_w); fisher [..., d, d], epsilon [..., N, d] -> [...]."""
    xp, fisher, epsilon = floating(fisher, epsilon)
    weights = check_weights(weights, epsilon[..., 0])
    centred = epsilon - xp.sum(weights[..., None] * epsilon, axis=-2, keepdims=True)
    forms = xp.sum(xp.matmul(centred, fisher) * centred, axis=-1)
    return 0.5 * sigma**2 * xp.sum(weights * forms, axis=-1)


def predict_two_categories(p: Array, sigma: Array, weights: Array, *, kurtosis: float = 3.0) -> Array:
    """E[JS_w] of two categories up to and with the σ⁴ term, unit noise on the log-odds, in nats (L1.1).

    With v = p(1−p) and S_k = Σwᵢᵏ: (σ²/2)(1−S₂)v + σ⁴(v/4)[1−2S₂+2S₃−S₂² − v(7−12S₂+8S₃−3S₂²)] for Gaussian noise;
    symmetric noise of another kurtosis κ adds σ⁴(κ−3)(v/24)[3−7S₂+6S₃−2S₄ − v(18−36S₂+24S₃−6S₄)]. The fourth-order
    term is positive for small v and negative at p = ½: the rate itself is a bound on neither side.

    Args:
        p: probability of one of the two categories at the center.
        weights: [..., N].
        kurtosis: E ε⁴ of the noise; 3 for Gaussian, 1 for Rademacher.
    """
    xp, p, sigma, weights = floating(check_probability(p), check_sigma(sigma), weights)
    s2, s3, s4 = (xp.sum(check_weights(weights, weights) ** k, axis=-1) for k in (2, 3, 4))
    v = p * (1.0 - p)
    gaussian = v / 4.0 * (1 - 2 * s2 + 2 * s3 - s2**2 - v * (7 - 12 * s2 + 8 * s3 - 3 * s2**2))
    other = v / 24.0 * (3 - 7 * s2 + 6 * s3 - 2 * s4 - v * (18 - 36 * s2 + 24 * s3 - 6 * s4))
    return 0.5 * sigma**2 * (1 - s2) * v + sigma**4 * (gaussian + (kurtosis - 3.0) * other)


def predict_variance(fisher: Array, sigma: float, n: int, *, antithetic: bool = False) -> Array:
    """Leading order of Var[JS], nats²: σ⁴(N−1)/(2N²)·tr F², antithetic σ⁴·tr F²/N (L1.2; Gaussian noise only)."""
    xp, fisher = floating(fisher)
    constant = 1.0 / n if antithetic else (n - 1) / (2.0 * n**2)
    return sigma**4 * constant * xp.sum(fisher * fisher, axis=(-2, -1))


def relative_spread(fisher: Array, n: int) -> Array:
    """sd(JS)/E[JS] = √(2/((N−1) r_eff)) at leading order, i.i.d. Gaussian members, N >= 2 (L1.2)."""
    if n < 2:
        raise InputError(f"the spread of JS needs N >= 2 members, not {n}")
    xp, fisher = floating(fisher)
    return xp.sqrt(2.0 / ((n - 1) * effective_rank(fisher)))


def psi(s: Array) -> Array:
    """ψ(s) = (eˢ(s−1) + 1)/s² = ∫₀¹ t eˢᵗ dt, ψ(0) = ½, +inf where it overflows (L1.3); any shape."""
    xp, s = floating(s)
    near = xp.abs(s) < 1.0
    small = xp.where(near, s, 0.0)
    # Σ sᵏ/(k!(k+2)): the closed form loses every digit near 0.
    series = sum(small**k / (math.factorial(k) * (k + 2)) for k in range(20))
    largest = math.log(xp.finfo(s.dtype).max) - 10.0
    large = xp.where(near, 1.0, xp.clip(s, -xp.inf, largest))
    closed = (xp.exp(large) * (large - 1.0) + 1.0) / large / large
    return xp.where(near, series, xp.where(s > largest, xp.inf, closed))


def bracket(logits: Array, weights: Array | None = None, *, log_pbar: Array | None = None) -> Bracket:
    """Bounds of JS_w in nats at any σ and any weights (L1.3), made as tight as the trivial bounds allow.

    The lower side is at least ½Σwᵢ‖πᵢ − π̄_w‖₁² (Pinsker), the upper side at most H(w). Where a member of positive
    weight has a logit of −inf (top-k, top-p), L1.3 does not apply and these two are the bracket.

    Args:
        logits: [..., N, V] (log-probabilities will do: the bracket does not change when a row is shifted).
        weights: [..., N], uniform if None.
        log_pbar: [..., V] the `log_mixture` of the members, if the caller has it.
    """
    xp, logits = floating(logits)
    weights = check_weights(weights, logits[..., 0])
    log_p = log_softmax(logits)
    log_pbar = log_mixture(log_p, weights) if log_pbar is None else log_pbar
    present = weights > 0
    finite = xp.isfinite(xp.min(logits, axis=-1))
    applies = xp.all(finite | ~present, axis=-1)

    # A language model's vocabulary is passed over as seldom as can be: members are masked only where one must be.
    masked = not bool(xp.all(finite & present))
    z = xp.where(present[..., None] & xp.isfinite(logits), logits, 0.0) if masked else logits
    zbar = xp.matmul(weights[..., None, :], z)[..., 0, :]
    log_q = log_softmax(zbar)
    u = z - zbar[..., None, :]
    u = xp.where(present[..., None], u, 0.0) if masked else u
    span = xp.max(u, axis=-1) - xp.min(u, axis=-1)
    variance = categorical_variance(log_q[..., None, :], u)

    compensation = xp.sum(weights * variance * psi(-span), axis=-1) - xp.where(
        applies, renyi2(xp.where(applies[..., None], log_pbar, log_q), log_q), 0.0
    )
    pinsker = 2.0 * xp.sum(weights * total_variation(log_p, log_pbar[..., None, :]) ** 2, axis=-1)
    lower = xp.where(applies, xp.maximum(compensation, pinsker), pinsker)

    growth = psi(span)
    # A variance that underflowed must not win against span²/8 where ψ is large, or itself overflows.
    lost = xp.isinf(growth) | ((variance < xp.finfo(variance.dtype).smallest_normal) & (span > 1.0))
    self_concordant = xp.where(lost, xp.inf, variance * xp.where(lost, 1.0, growth))
    divergence = xp.sum(weights * xp.minimum(self_concordant, span**2 / 8.0), axis=-1)
    ceiling = weight_entropy(weights)
    upper = xp.where(applies, xp.minimum(divergence, ceiling), ceiling)
    return Bracket(lower, upper)


def check(
    js: float,
    predicted: float,
    *,
    js_se: float = 0.0,
    predicted_se: float = 0.0,
    tolerance: float = 0.1,
    signal: float = 0.0,
    what: str = "E[JS], nats",
    detail: str = "",
) -> Check:
    """Compare a JS (nats) with the rate L1.1; `tolerance` is the relative size allowed to the O(σ⁴) remainder.

    `signal` is σ² tr F. Beyond `SMALL_SIGNAL` the leading order claims nothing and the check is vacuous.
    """
    judged = judge_equal(
        "L1.1", what, js, predicted,
        measured_se=js_se, predicted_se=predicted_se, tolerance=tolerance, detail=detail,
    )  # fmt: skip
    return as_vacuous(judged) if signal > SMALL_SIGNAL else judged


def check_bracket(
    js: float,
    bounds: Bracket,
    n: int,
    *,
    js_se: float = 0.0,
    bracket_se: float = 0.0,
    sequence: bool = False,
    what: str = "JS, nats",
) -> Check:
    """Compare a JS (nats) of `n` members with its bracket L1.3 (L1.4 for sequences); says how tight it is."""
    low, high = bounds.tightness(js)
    return judge_bracket(
        "L1.4" if sequence else "L1.3", what, js, bounds,
        measured_se=js_se, bracket_se=bracket_se, floor=0.0, ceiling=math.log(n) * (1 - 1e-12),
        detail=f"lower/JS {float(low):.2g}, JS/upper {float(high):.2g}",
    )  # fmt: skip


def check_variance(
    variance: float,
    predicted: float,
    *,
    variance_se: float,
    tolerance: float = 0.1,
    what: str = "Var[JS], nats²",
) -> Check:
    """Compare Var[JS] over populations (nats²) with L1.2."""
    return judge_equal("L1.2", what, variance, predicted, measured_se=variance_se, tolerance=tolerance)


def check_sigma(sigma: Array) -> Array:
    """`sigma` as given.

    Raises:
        InputError: negative, NaN or infinite.
    """
    xp, value = floating(sigma)
    if not bool(xp.all((value >= 0) & xp.isfinite(value))):
        raise InputError(f"sigma must be a finite number >= 0, not {sigma}")
    return value
