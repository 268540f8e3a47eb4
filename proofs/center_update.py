"""Center-update coverage: statements P4.1 to P4.4 of `docs/theory.md`.

The center moves by Δ = (α/N) Σ z_i ε_i, the mean of the population under the linear tilt β = α/σ less σε̄. How far
its success moves with the mixture's is a matter of the curvature of p along the way; for a categorical policy
that is bounded by the squared span of the logit change, with a constant that is derived here and sharp.
"""

from itertools import combinations_with_replacement

import sympy as sp

from proofs.averages import Average, expected_sample_variance
from proofs.moments import expectation, rademacher
from proofs.step import coefficient, identity, nonnegative, positive, step

HALF = sp.S.Half

N, d = sp.symbols("N d", positive=True, integer=True)
z, epsilon = sp.symbols("z epsilon", real=True)  # score and one noise coordinate of a member
alpha, sigma = sp.symbols("alpha sigma", positive=True)
SCORES = {z: 0, z**2: 1}  # Σz = 0 and Σz² = N, for sd(f) > 0

CURVATURE = 1 / (6 * sp.sqrt(3))  # the largest |p''| along a line of logits, over the direction's span squared
REMAINDER = 1 / (12 * sp.sqrt(3))  # the largest |R|, over the same
LIPSCHITZ = 1 / (3 * sp.sqrt(3))  # of ∇p, as a function of the logits in the Euclidean norm


# The update


@step("P4.1", "The update is the tilt's mean", scope="symbolic N", method="identity")
def update_is_tilted_mean(factor: sp.Expr = sp.S.One) -> None:
    """For w_i = (1 + βz_i)/N and β = factor·α/σ, Σ w_i θ_i = θ + Δ + σε̄."""
    theta = sp.Symbol("theta", real=True)
    average = Average(z, epsilon, known=SCORES)
    beta = factor * alpha / sigma
    update = alpha * average(z * epsilon)
    identity(average((1 + beta * z) * (theta + sigma * epsilon)), theta + update + sigma * average(epsilon))


@step("P4.1", "Where center and mixture part", scope="symbolic N", method="identity")
def transfer_identity(factor: sp.Expr = sp.S.One) -> None:
    """With p_i = p + σ∇p·ε_i + R_i and p_{θ+Δ} = p + ∇p·Δ + r, the center's gain less the mixture's is r -
    factor·β·(average of z_i R_i): the linear parts cancel."""
    p, slope = sp.symbols("p g", real=True)  # g·ε stands for ∇p·ε_i
    remainder, center_remainder = sp.symbols("R r", real=True)
    average = Average(z, epsilon, remainder, known=SCORES)
    beta = alpha / sigma
    success = p + sigma * slope * epsilon + remainder
    mixture_gain = average((1 + beta * z) * success) - average(success)
    center_gain = slope * alpha * average(z * epsilon) + center_remainder
    identity(center_gain - mixture_gain, center_remainder - factor * beta * average(z * remainder))


@step("P4.1", "Transfer bound", scope="symbolic N", method="identity")
def transfer_bound(factor: sp.Expr = sp.S.One) -> None:
    """|average of z_i R_i| <= factor·sd(R), as the average of z is 0 and of z² is 1: Var(R) less the square is
    itself an average of squares. So the two gains differ by at most factor·β sd(R) + |r|; R = z attains it."""
    remainder = sp.Symbol("R", real=True)
    average = Average(z, remainder, known=SCORES)
    covariance, mean = sp.symbols("c mu", real=True)
    known = {z * remainder: covariance, remainder: mean}
    residual = Average(z, remainder, known=SCORES | known)((remainder - mean - covariance * z) ** 2)
    variance = Average(z, remainder, known=SCORES | known)((remainder - mean) ** 2)
    identity(factor**2 * variance - covariance**2, residual)
    nonnegative((remainder - mean - covariance * z) ** 2, "the average is over squares")
    identity(average(z * z) ** 2, factor**2 * average(z**2), "R = z")


# The remainder


@step("P4.1", "Taylor's remainder", scope="any smooth p, any d", method="identity")
def taylor_remainder(half: sp.Expr = HALF) -> None:
    """Along t -> θ + tv, R is the integral of (1-t) p''(t) over [0, 1]; so |R| <= half·max|p''|, and <=
    half·L‖v‖² for an L-Lipschitz gradient. A quadratic attains it."""
    t = sp.Symbol("t", real=True)
    path = sp.Function("p")
    primitive = (1 - t) * path(t).diff(t) + path(t)
    identity(primitive.diff(t), (1 - t) * path(t).diff(t, 2))
    start, end = primitive.subs(t, 0).doit(), primitive.subs(t, 1).doit()
    identity(end - start, path(1) - path(0) - path(t).diff(t).subs(t, 0))
    identity(sp.integrate(1 - t, (t, 0, 1)), half)
    curvature, length = sp.symbols("L v", positive=True)
    quadratic = curvature * (length * t) ** 2 / 2
    identity(quadratic.subs(t, 1), half * curvature * length**2)


@step("P4.1", "Curvature along a line of logits", scope="any finite number of categories", method="identity")
def curvature_is_third_cumulant(factor: sp.Expr = sp.S.One) -> None:
    """For π_t ∝ π_0 exp(t u) and the accepted set A, p''(t) = factor·E_t[(1_A - p)(u - ū)²]."""
    t = sp.Symbol("t", real=True)
    mass, accepted = sp.Function("M")(t), sp.Function("M_A")(t)  # Σπ_0 exp(tu), over all y and over A
    u, inside = sp.symbols("u 1_A", real=True)
    known = {inside**a * u**k: (accepted if a else mass).diff(t, k) / mass for a in (0, 1) for k in (0, 1, 2)}
    expected = Average(inside, u, known=known)
    p, mean = expected(inside), expected(u)
    identity(p, accepted / mass)
    identity(sp.diff(p, t, 2), factor * expected((inside - p) * (u - mean) ** 2))


@step("P4.1", "Within and between", scope="any finite number of categories", method="identity")
def curvature_within_between(factor: sp.Expr = sp.S.One) -> None:
    """E[(1_A - p)(u - ū)²] = pq(v_A - v_B + factor·(q-p)(m_A - m_B)²), with q = 1-p and the means and variances of u
    given A and given its complement B."""
    p, mean_a, mean_b = sp.symbols("p m_A m_B", real=True)
    var_a, var_b = sp.symbols("v_A v_B", nonnegative=True)
    q = 1 - p
    mean = p * mean_a + q * mean_b
    given_a = var_a + (mean_a - mean) ** 2
    given_b = var_b + (mean_b - mean) ** 2
    curvature = p * (1 - p) * given_a + q * (0 - p) * given_b
    identity(curvature, p * q * (var_a - var_b + factor * (q - p) * (mean_a - mean_b) ** 2))


@step("P4.1", "Variance within a span", scope="any law on [0, 1]", method="identity")
def bounded_variance(factor: sp.Expr = sp.S.One) -> None:
    """A law on [0, 1] with mean m has variance at most factor·m(1-m): what is missing is E[u(1-u)] >= 0, and two
    points 0 and 1 leave nothing missing. u is scaled and shifted so that its span is [0, 1]."""
    u, m = sp.Symbol("u", real=True), sp.Symbol("m", real=True)
    expected = Average(u, known={u: m})
    variance = expected((u - m) ** 2)
    identity(factor * m * (1 - m) - variance, expected(u * (1 - u)))
    low = sp.Symbol("a", nonnegative=True)
    inside = low / (1 + low)
    nonnegative(inside * (1 - inside))
    identity((u * (1 - u)).subs(u, 0) + (u * (1 - u)).subs(u, 1), 0, "two points")


@step("P4.1", "The sharp curvature", scope="any finite number of categories, any A", method="sign")
def sharp_curvature(curvature: sp.Expr = CURVATURE) -> None:
    """|p''| <= curvature·span(u)², curvature = 1/(6√3); two categories with p = (1 - 1/√3)/2 attain it.

    With span 1, v_A <= a(1-a) and v_B >= 0, p'' <= pq[a(1-a) + (q-p)(a-b)²] for the conditional means a, b in
    [0, 1]. The reflection u -> 1-u keeps it and lets a >= 1/2; exchanging A and B changes the sign of p'' and
    covers -p''. Three cases: q < p, where the second term is <= 0; p <= 1/4, where a = 1 and b = 0 are best; and
    1/4 <= p <= 1/2, where a = 1/(4p) is.
    """
    p, a, b = sp.symbols("p a b", nonnegative=True)
    q = 1 - p
    bound = p * q * (a * (1 - a) + (q - p) * (a - b) ** 2)
    identity(bound, bound.subs({a: 1 - a, b: 1 - b}, simultaneous=True), "reflection")

    identity(sp.Rational(1, 16) - p * q * a * (1 - a), (1 - 4 * p * q * 4 * a * (1 - a)) / 16)
    for value in (p, a):
        identity(1 - 4 * value * (1 - value), (1 - 2 * value) ** 2, "x(1-x) <= 1/4")
    positive(curvature - sp.Rational(1, 16), "q < p")

    # q >= p and a >= 1/2: (a-b)² <= a² as 0 <= b <= 1 <= 2a, by (a-b)² = a² - b(2a-b).
    identity(a**2 - (a - b) ** 2, b * (2 * a - b))
    c, r = sp.symbols("c r", nonnegative=True)
    nonnegative((b * (2 * a - b)).subs(b, 2 * a / (1 + c)), "b <= 2a")
    best_b = p * q * (a - 2 * p * a**2)
    identity(bound.subs(b, 0), best_b, "b = 0")

    # p = 1/(4(1+r)) <= 1/4 and a = 1/(1+c) <= 1: a = 1 is best.
    small = {p: 1 / (4 * (1 + r)), a: 1 / (1 + c)}
    nonnegative(((1 - 2 * p) - (a - 2 * p * a**2)).subs(small), "p <= 1/4: a = 1")
    x = sp.Symbol("x", nonnegative=True)  # x = 1 - 2p
    extreme = (p * q * (1 - 2 * p)).subs(p, (1 - x) / 2)
    nonnegative(
        curvature - extreme,
        "p <= 1/4",
        because=(x - 1 / sp.sqrt(3)) ** 2 * (x + 2 / sp.sqrt(3)) / 4,
    )

    large = sp.Symbol("p", positive=True)
    completed = 1 / (8 * large) - a + 2 * large * a**2
    nonnegative(completed, "p >= 1/4: a = 1/(4p)", because=2 * large * (a - 1 / (4 * large)) ** 2)
    identity(large * (1 - large) / (8 * large), (1 - large) / 8)
    positive(curvature - (1 - sp.Rational(1, 4)) / 8, "p >= 1/4, where (1-p)/8 falls")

    attained = (1 - 1 / sp.sqrt(3)) / 2
    identity(bound.subs({p: attained, a: 1, b: 0}), curvature, "attained")


@step("P4.1", "The remainder of a categorical policy", scope="any finite number of categories", method="series")
def categorical_remainder(bound: sp.Expr = REMAINDER) -> None:
    """|R| <= bound·span(logit change)², bound = 1/(12√3) = 0.0481, better than 1/8; a logistic p from (1 -
    1/√3)/2 attains it in the limit span -> 0, so no smaller constant holds for every span."""
    identity(HALF * CURVATURE, bound, "Taylor's half of the sharp curvature")
    positive(sp.Rational(1, 8) - bound)
    span = sp.Symbol("s", positive=True)
    start = (1 - 1 / sp.sqrt(3)) / 2
    logistic = start * sp.exp(span) / (start * sp.exp(span) + 1 - start)
    coefficient(logistic, span, 1, start * (1 - start))
    remainder = logistic - start - start * (1 - start) * span
    coefficient(remainder, span, 2, bound, "R over span²")


@step("P4.1", "Lipschitz constant in logit space", scope="any finite number of categories", method="identity")
def logit_lipschitz(norm: sp.Expr = LIPSCHITZ) -> None:
    """The Hessian of p in the logits has operator norm at most norm = 1/(3√3) = 0.192, below 1/2: span(u)² <=
    2‖u‖². Two categories attain it."""
    identity(2 * CURVATURE, norm)
    positive(HALF - norm)
    high, low = sp.symbols("u_max u_min", real=True)
    identity(2 * (high**2 + low**2) - (high - low) ** 2, (high + low) ** 2)
    logits = sp.symbols("l_1 l_2", real=True)
    success = sp.exp(logits[0]) / (sp.exp(logits[0]) + sp.exp(logits[1]))
    hessian = sp.hessian(success, logits).subs({logits[0]: sp.log((1 - 1 / sp.sqrt(3)) / 2)})
    hessian = hessian.subs({logits[1]: sp.log((1 + 1 / sp.sqrt(3)) / 2)})
    direction = sp.Matrix([1, -1]) / sp.sqrt(2)
    identity((direction.T * hessian * direction)[0], norm, "two categories")


@step("P4.1", "Spread of the remainder", scope="d = 1..3; any d by rotation", method="identity")
def remainder_spread(half: sp.Expr = HALF) -> None:
    """For Gaussian noise R = (σ²/2) εᵀHε + O(σ³) has variance half·σ⁴ tr(H²): sd(R) ≈ σ²‖∇²p‖_F/√2, and the mean
    σ² tr(H)/2. Rademacher noise leaves the diagonal of H out of the variance.

    A symmetric H is diagonal in some orthonormal frame, in which Gaussian noise looks the same: the coordinates
    add their variances, for every d.
    """
    for size in range(1, 4):
        noise = sp.symbols(f"epsilon1:{size + 1}")
        hessian = sp.Matrix(size, size, lambda i, j: sp.Symbol(f"H_{min(i, j)}{max(i, j)}"))
        remainder = sp.expand(sigma**2 / 2 * (sp.Matrix([noise]) * hessian * sp.Matrix(noise))[0])
        mean = expectation(remainder, noise)
        identity(mean, sigma**2 * hessian.trace() / 2, f"d = {size}, mean")
        variance = expectation(sp.expand(remainder**2), noise) - mean**2
        identity(variance, half * sigma**4 * (hessian**2).trace(), f"d = {size}, variance")
        off_diagonal = (hessian**2).trace() - sum(hessian[k, k] ** 2 for k in range(size))
        flat = expectation(sp.expand(remainder**2), noise, rademacher) - mean**2
        identity(flat, half * sigma**4 * off_diagonal, f"d = {size}, Rademacher")


# Survival and bookkeeping


@step("P4.2", "Survival", scope="symbolic K", method="sign")
def survival(factor: sp.Expr = sp.S.One) -> None:
    """p_{θ+Δ} >= max(0, p + βρ sd(p) - R) and φ_K(t) = 1-(1-t)^K increases on [0, 1] (its slope is factor·K
    (1-t)^{K-1}), so pass@K rises by at least φ_K at the right-hand side less φ_K(p), for every K."""
    tries, odds = sp.symbols("K o", positive=True)
    t = sp.Symbol("t")
    slope = sp.diff(1 - (1 - t) ** tries, t).subs(t, odds / (1 + odds))
    positive(slope, because=factor * tries * (1 + odds) ** (1 - tries))
    # The rise itself, for p_{θ+Δ} = p + e: the failure falls from (r + e)^K to r^K.
    rest, rise = sp.symbols("r e", positive=True)
    for k in range(1, 6):
        positive(sp.expand((rest + rise) ** k - rest**k), f"K = {k}")


@step("P4.3", "Bookkeeping", scope="symbolic N", method="identity")
def bookkeeping(root: sp.Expr = sp.S.One) -> None:
    """On a prompt P_pop - P_center is the mixture part (1-p)^N - (1-m)^N plus the stratification part (1-m)^N (1 -
    exp(-NG)) of L2.2; and a center covers P_pop exactly if p_{θ+Δ} >= 1 - Π(1-p_i)^{root/N}."""
    miss, miss_mixture = sp.symbols("1-p 1-m", positive=True)
    mean_log = sp.Symbol("<log(1-p_i)>", real=True)
    gap = sp.log(miss_mixture) - mean_log
    population = miss**N - sp.exp(N * mean_log)
    mixture, stratification = miss**N - miss_mixture**N, miss_mixture**N * (1 - sp.exp(-root * N * gap))
    identity(population, mixture + stratification)
    failure = sp.Symbol("F", positive=True)  # Π(1-p_i)
    threshold = 1 - failure ** (root / N)
    identity(1 - (1 - threshold) ** N, 1 - failure)
    # beyond the threshold, 1-p = (1-threshold)/(1+o) with o >= 0, the center covers at least P_pop
    extra = sp.Symbol("o", nonnegative=True)
    for n in range(1, 6):
        covered = 1 - ((1 - threshold) / (1 + extra)) ** n
        more = sp.expand((1 + extra) ** n) - 1
        identity(covered - (1 - (1 - threshold) ** n), (1 - threshold) ** n * more / (1 + extra) ** n)
        nonnegative(more, f"N = {n}")


# Drift against signal


@step("P4.4", "Drift of independent scores", scope="symbolic N and d", method="identity")
def independent_drift(factor: sp.Expr = sp.S.One) -> None:
    """z independent of ε, noise of covariance I: E‖Δ‖² = factor·α² d/N exactly. Member by member E(S + z_i ε_i)² = E S²
    + z_i², so E(Σ z_i ε_i)² = Σ z_i² = N in each of the d coordinates."""
    so_far = sp.Symbol("S", real=True)
    added = Average(epsilon, known={epsilon: 0, epsilon**2: 1})((so_far + z * epsilon) ** 2)
    identity(added, so_far**2 + z**2)
    sum_of_squares = N * Average(z, known=SCORES)(z**2)
    identity((alpha / N) ** 2 * d * sum_of_squares, factor * alpha**2 * d / N)


@step("P4.4", "Drift of linear fitness", scope="symbolic N >= 2 and d, Gaussian noise", method="identity")
def linear_drift(missing: int = 2) -> None:
    """Noiseless linear fitness, Gaussian noise: E‖Δ‖² = α²(d + N - missing)/N exactly. Along the gradient Δ is α times
    the population's sd of ε, whose square averages to (N-1)/N; across it z is independent of ε.

    Rademacher noise has another value: for N = 2 and d = 2 with gradient (1, 1) it is 3α²/4, not α².
    """
    x = sp.Symbol("x", real=True)  # ε along the gradient: x = x̄ + s z
    deviation = sp.Symbol("s", positive=True)
    average = Average(z, known=SCORES)
    mean = sp.Symbol("xbar", real=True)
    identity(alpha * average(z * (mean + deviation * z)), alpha * deviation, "along")
    variance = expected_sample_variance(N, Average(x, known={x: 0, x**2: 1}), x)
    identity(variance, (N - 1) / N)
    identity(alpha**2 * variance + alpha**2 * (d - 1) / N, alpha**2 * (d + N - missing) / N)

    corners = [(i, j) for i in (-1, 1) for j in (-1, 1)]
    pairs = [(e, f) for e in corners for f in corners if sum(e) != sum(f)]  # equal fitness: z = 0
    norms = [sp.Rational((e[0] - f[0]) ** 2 + (e[1] - f[1]) ** 2, 4) for e, f in pairs]
    identity(sp.Add(*norms) / 16, sp.Rational(3, 4), "Rademacher, N = d = 2")


@step("P4.4", "What the random part costs", scope="symbolic N; d = 1..3", method="identity")
def random_part(half: sp.Expr = HALF) -> None:
    """z independent of ε: the second-order change E[ΔᵀHΔ]/2 of C_K is half·α² tr(H)/N; the first-order one has mean
    0."""
    for size in range(1, 4):
        hessian = sp.Matrix(size, size, lambda i, j: sp.Symbol(f"H_{min(i, j)}{max(i, j)}"))
        # Δ has mean 0 and covariance (α²/N) I, by the step before, coordinate by coordinate.
        moments = {}
        delta = sp.symbols(f"Delta1:{size + 1}", real=True)
        for j, k in combinations_with_replacement(range(size), 2):
            moments[delta[j] * delta[k]] = _covariance(j == k)
        expected = Average(*delta, known=moments | {delta[k]: _mean_update() for k in range(size)})
        quadratic = sp.expand((sp.Matrix([delta]) * hessian * sp.Matrix(delta))[0])
        identity(expected(quadratic) / 2, half * alpha**2 * hessian.trace() / N, f"d = {size}")
        identity(expected(sp.Add(*delta)), 0, f"d = {size}, mean")


def _mean_update() -> sp.Expr:
    """E Δ_k for given scores: the noise is replaced by its mean."""
    return alpha * Average(epsilon, known={epsilon: 0})(z * epsilon)


def _covariance(same: bool) -> sp.Expr:
    """E Δ_j Δ_k for given scores: only i = i' contributes, Σ z_i² E[ε_ij ε_ik] (α/N)²."""
    other = sp.Symbol("epsilon_k", real=True)
    noise = Average(epsilon, other, known={epsilon**2: 1, epsilon * other: 0})
    one_member = noise(epsilon**2 if same else epsilon * other)
    return (alpha / N) ** 2 * N * Average(z, known=SCORES)(z**2 * one_member)


@step("P4.4", "The population that signal needs", scope="symbolic N", method="sign")
def needed_population(half: sp.Expr = HALF) -> None:
    """∇C·Δ = αρ s exactly, s the population's sd of ∇C·ε (E s² = (1-1/N)‖∇C‖²) and ρ its correlation with
    fitness: it exceeds the random part exactly for N > half·α|tr H|/(ρ s)."""
    x, score = sp.symbols("x z", real=True)
    deviation, correlation = sp.symbols("s rho", positive=True)
    known = SCORES | {x * z: correlation * deviation}
    signal = alpha * Average(x, score, known=known)(x * score)
    identity(signal, alpha * correlation * deviation)
    curvature, excess = sp.symbols("T delta", positive=True)
    enough = half * alpha * curvature / (correlation * deviation)
    identity(signal - alpha**2 * curvature / (2 * enough), 0, "at the threshold")
    positive(signal - alpha**2 * curvature / (2 * (enough + excess)), "above it")
    unit = sp.Symbol("y")  # ∇C·ε / ‖∇C‖
    spread = expected_sample_variance(N, Average(unit, known={unit: 0, unit**2: 1}), unit)
    identity(spread, 1 - 1 / N, "E s²")
