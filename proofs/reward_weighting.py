"""Reward-weighting gain: statements L3.1 to L3.6 of `docs/theory.md`.

Weights w_i that depend on the fitness f_i move the mixture's success from the average p̄ to p̄_w = Σ w_i p_i, and
its coverage from 1 - (1-p̄)^K to 1 - (1-p̄_w)^K.
"""

from fractions import Fraction

import flint
import sympy as sp
from flint import arb

from proofs.averages import Average, expected_product_of_sums, expected_sample_variance
from proofs.intervals import certified_positive
from proofs.moments import expectation, gaussian
from proofs.step import holds, identity, limit, nonnegative, positive, step

HALF = sp.S.Half
REVERSAL = sp.Rational("0.450"), sp.Rational("0.491"), sp.Rational("0.450")

N = sp.Symbol("N", positive=True, integer=True)
f, p, w, z = sp.symbols("f p w z", real=True)  # fitness, success, weight and z-score of a member
beta = sp.Symbol("beta", real=True)


# L3.1


@step("L3.1", "Price identity", scope="symbolic N, any signed weights", method="identity")
def price(factor: sp.Expr = sp.S.One) -> None:
    """p̄_w - p̄ = factor·N Cov(w, p) for weights that sum to 1, of any sign."""
    average = Average(w, p, known={w: 1 / N})
    covariance = average((w - average(w)) * (p - average(p)))
    identity(N * average(w * p) - average(p), factor * N * covariance)


@step("L3.1", "The same member by member", scope="N = 2..5", method="identity")
def price_small(factor: sp.Expr = sp.S.One) -> None:
    """p̄_w - p̄ = factor·N Cov(w, p), the last weight being 1 minus the others."""
    for n in range(2, 6):
        weights = list(sp.symbols(f"w1:{n}", real=True))
        weights.append(1 - sp.Add(*weights))
        success = sp.symbols(f"p1:{n + 1}", real=True)
        mean = sp.Add(*success) / n
        gain = sp.Add(*(a * b for a, b in zip(weights, success, strict=True))) - mean
        terms = ((a - sp.Rational(1, n)) * (b - mean) for a, b in zip(weights, success, strict=True))
        identity(gain, factor * n * (sp.Add(*terms) / n), f"N = {n}")


@step("L3.1", "From success to coverage", scope="symbolic K", method="sign")
def coverage_bracket(lower: sp.Expr = sp.S.One, upper: sp.Expr = sp.S.One) -> None:
    """φ(t) = 1 - (1-t)^K is concave and increases, so for a <= b its gain φ(b) - φ(a) lies between
    lower·K(1-b)^{K-1}(b-a) and upper·K(1-a)^{K-1}(b-a), the tangents at b and at a; both are sharp as b -> a."""
    k = sp.Symbol("k", nonnegative=True, integer=True)
    tries = k + 1
    t = sp.Symbol("t")
    o = sp.Symbol("o", nonnegative=True)  # odds of t
    phi = 1 - (1 - t) ** tries
    slope, curvature = (sp.powsimp(sp.diff(phi, t, j).subs(t, o / (1 + o))) for j in (1, 2))
    for factor in (lower, upper):
        positive(slope, because=factor * tries * (1 + o) ** (-k))
    nonnegative(-curvature, because=k * tries * (1 + o) ** (1 - k))
    # Falling from 1-a to 1-b: the difference of K-th powers is (b-a) times K products of K-1 factors.
    low, step_up = sp.symbols("r d", nonnegative=True)
    for n in range(1, 7):
        high = low + step_up
        gain = high**n - low**n
        nonnegative(sp.expand(gain - lower * n * low ** (n - 1) * step_up), f"K = {n}, lower")
        nonnegative(sp.expand(upper * n * high ** (n - 1) * step_up - gain), f"K = {n}, upper")
        for tangent in (lower * n * low ** (n - 1), upper * n * high ** (n - 1)):
            identity((sp.cancel(gain / step_up) - tangent).subs(step_up, 0), 0, f"K = {n}, sharp")


# L3.2


@step("L3.2", "Gain of the z-scored linear tilt", scope="symbolic N", method="identity")
def linear_tilt_gain(factor: sp.Expr = sp.S.One) -> None:
    """For w_i = (1 + βz_i)/N, z the z-score of f, the gain p̄_w - p̄ is factor·β ρ(f,p) sd(p) exactly, and the
    weights sum to 1."""
    deviation = sp.Symbol("sd(f)", positive=True)
    spread = sp.Symbol("sd(p)", positive=True)
    average = Average(f, p, known={f**2: sp.Symbol("<f>", real=True) ** 2 + deviation**2})
    score = (f - average(f)) / deviation
    identity(average(score), 0)
    identity(average(score**2), 1)
    identity(average(1 + beta * score), 1, "the weights sum to 1")
    correlation = average((f - average(f)) * (p - average(p))) / (deviation * spread)
    identity(average((1 + beta * score) * p) - average(p), factor * beta * correlation * spread)


@step("L3.2", "The largest z-score", scope="symbolic N", method="identity")
def largest_score(bound: sp.Expr = sp.S.One) -> None:
    """|z_i| <= √(bound·(N-1)), so 1 + βz_i >= 0 for |β| <= 1/√(N-1): the variance of the other N-1 scores is
    N(N-1-z_i²)/(N-1)² and not negative. One member apart from N-1 equal ones attains it.

    In general w_i >= 0 for all i exactly if -1/max z <= β <= 1/max(-z), since 1 + βz is least at an extreme z.
    """
    outlier = sp.Symbol("z_1", real=True)
    other = Average(z, known={z: -outlier / (N - 1), z**2: (N - outlier**2) / (N - 1)})
    variance = other((z - other(z)) ** 2)
    identity(variance, N * (bound * (N - 1) - outlier**2) / (N - 1) ** 2)
    extreme, rest = sp.sqrt(bound * (N - 1)), -1 / sp.sqrt(N - 1)
    identity(extreme + (N - 1) * rest, 0, "the attained case is centred")
    identity(extreme**2 + (N - 1) * rest**2, N, "and has mean square 1")
    identity(1 - extreme / sp.sqrt(N - 1), 0, "at β = -1/√(N-1) its weight is 0")


@step("L3.2", "β = 1/2 at N = 30", scope="N = 30, normal fitness", method="Arb boxes")
def negative_weights(share: sp.Expr = HALF) -> None:
    """With normally distributed fitness a population of N = 30 has a negative weight at β = 1/2 (some z_i < -2)
    with probability above `share`.

    z/√N is then uniform on the unit sphere of the 29-dimensional space of centred vectors, which gives the laws of
    one and of two scores. By inclusion and exclusion the probability is at least the sum over members less the
    sum over pairs; the pairs' density falls with both scores, so sums over a grid's near corners bound it.
    This needs the law of the fitness: for uniform fitness simulation finds about 7 %.
    """
    n, dimension = 30, 29
    x = sp.Symbol("x", real=True)
    density = (1 - x**2) ** sp.Rational(dimension - 3, 2)
    total = sp.integrate(sp.expand(density), (x, -1, 1))
    norm = sp.sqrt(1 - sp.Rational(1, n))  # of a unit vector's projection on the centred vectors
    threshold = sp.Symbol("t", positive=True)
    tail = sp.integrate(sp.expand(density), (x, threshold, 1)) / total
    identity(tail.subs(threshold, 0), HALF, "the law of one score is symmetric")
    members = sp.expand(n * tail.subs(threshold, 2 / (sp.sqrt(n) * norm)))
    gram = sp.eye(2) - sp.ones(2, 2) / n
    inverse = sp.eye(2) + sp.ones(2, 2) / (n - 2)
    identity(gram * inverse, sp.eye(2), "the metric of two scores")
    pairs = sp.binomial(n, 2) * _corner_sum(n, gram.det())
    certified_positive(members - pairs - share, {}, what=f"probability - {share}")


def _corner_sum(n: int, determinant: sp.Expr) -> sp.Expr:
    """An upper bound, exact and rational, of P(z_1 > 2, z_2 > 2)."""
    cell = Fraction(1, 20)
    corners = [2 + cell * k for k in range(int(6 / cell))]
    bound = arb(0)
    with flint.ctx.workprec(96):
        for i, a in enumerate(corners):
            for b in corners[i:]:
                square = (a * a + b * b + (a + b) ** 2 / Fraction(n - 2)) / n
                if square >= 1:
                    break
                radius = arb(1) - arb(square.numerator) / square.denominator
                bound += radius ** (arb(n - 5) / 2) * (1 if a == b else 2)
        # density of the projection on a plane, per unit of area in the two scores
        bound *= arb(n - 3) / (2 * arb.pi()) / (n * (arb(int(determinant.p)) / int(determinant.q)).sqrt())
        bound *= arb(cell.numerator) ** 2 / cell.denominator**2
        mantissa, exponent = bound.upper().man_exp()
    return sp.Integer(int(mantissa)) * sp.Integer(2) ** int(exponent)


# L3.3


@step("L3.3", "Slope of the softmax tilt", scope="symbolic N", method="identity")
def softmax_slope(factor: sp.Expr = sp.S.One) -> None:
    """For w ∝ exp(βf), dp̄_w/dβ = factor·Cov_w(f, p)."""
    i = sp.Symbol("i", integer=True)
    fitness, success = sp.IndexedBase("f", real=True), sp.IndexedBase("p", real=True)

    def total(value: sp.Expr) -> sp.Expr:
        return sp.Sum(value * sp.exp(beta * fitness[i]), (i, 1, N))

    mass = total(sp.Integer(1))
    slope = sp.diff(total(success[i]) / mass, beta)
    joint = total(fitness[i] * success[i]) / mass
    covariance = joint - total(fitness[i]) / mass * (total(success[i]) / mass)
    identity(slope, factor * covariance)


@step("L3.3", "Similarly ordered fitness never loses", scope="symbolic N, any weights", method="identity")
def similar_order(half: sp.Expr = HALF) -> None:
    """Cov_w(f, p) = half·ΣΣ w_i w_j (f_i-f_j)(p_i-p_j), of which no term is negative if f and p are ordered
    alike: p̄_w does not decrease in β."""
    other_f, other_p = sp.symbols("f_j p_j", real=True)
    first = Average(f, p)
    moments = {monomial.subs({f: other_f, p: other_p}): first(monomial) for monomial in (f, p, f * p)}
    second = Average(other_f, other_p, known=moments)
    double = second(first(sp.expand((f - other_f) * (p - other_p))))
    identity(first((f - first(f)) * (p - first(p))), half * double)
    more_f, more_p = sp.symbols("a b", nonnegative=True)
    for sign in (1, -1):
        pair = (f - other_f) * (p - other_p)
        nonnegative(pair.subs({f: other_f + sign * more_f, p: other_p + sign * more_p}), "a pair ordered alike")


@step("L3.3", "Reversal at large β", scope="N = 3", method="Arb boxes")
def reversal(start: sp.Expr = REVERSAL[0], middle: sp.Expr = REVERSAL[1], end: sp.Expr = REVERSAL[2]) -> None:
    """f = (0, 1, 3) and p = (0, .9, .45) have Cov(f, p) > 0, yet p̄_w is start, middle, end (to three decimals) at
    β = 0, .5 and 20: it rises and falls again."""
    fitness, success = (0, 1, 3), (sp.S.Zero, sp.Rational(9, 10), sp.Rational(45, 100))

    def mixture(tilt: sp.Expr) -> sp.Expr:
        mass = [sp.exp(tilt * value) for value in fitness]
        return sp.Add(*(a * b for a, b in zip(mass, success, strict=True))) / sp.Add(*mass)

    joint = sp.Add(*(a * b for a, b in zip(fitness, success, strict=True))) / 3
    positive(joint - sp.Rational(sum(fitness), 3) * (sp.Add(*success) / 3), "Cov at β = 0")
    half_unit = sp.Rational(5, 10000)
    for tilt, claimed in ((0, start), (HALF, middle), (20, end)):
        for sign in (1, -1):
            rounding = half_unit - sign * (mixture(sp.sympify(tilt)) - claimed)
            certified_positive(rounding, {}, what=f"p̄_w at β = {tilt} rounds to {claimed}")
    certified_positive(mixture(HALF) - mixture(sp.Integer(20)), {}, what="fall after the rise")


# L3.4


@step("L3.4", "Allocation of responses", scope="symbolic N, any weights", method="identity")
def allocation(factor: sp.Expr = sp.S.One) -> None:
    """M responses allotted as M w_i lower the log-failure Σ m_i log(1-p_i) of an even allotment by
    factor·M Cov(Nw, -log(1-p))."""
    responses, loss = sp.symbols("M ell", positive=True)  # ell = -log(1-p) of a member
    average = Average(w, loss, known={w: 1 / N})
    even, weighted = -responses * average(loss), -responses * N * average(w * loss)
    covariance = average((N * w - average(N * w)) * (loss - average(loss)))
    identity(even - weighted, factor * responses * covariance)


# L3.5


@step("L3.5", "Noise of m responses", scope="symbolic m", method="identity")
def response_noise(factor: sp.Expr = sp.S.One) -> None:
    """The mean of m responses, each right with probability p, has variance factor·p(1-p)/m."""
    m = sp.Symbol("m", positive=True, integer=True)
    right = sp.Symbol("v")
    success = sp.Symbol("p", positive=True)
    expected = Average(right, known={right: success, right**2: success})  # v² = v
    second = expected_product_of_sums(m, expected, right, right) / m**2
    identity(second - success**2, factor * success * (1 - success) / m)


@step("L3.5", "Attenuation", scope="the law of a member (N -> ∞)", method="identity")
def attenuation(power: sp.Expr = HALF) -> None:
    """f = p + e with E[e|p] = 0 has ρ(f, p) = reliability^power, reliability = Var p/(Var p + E e²); a batch
    fitness f = f* + e, e independent of the rest, has ρ(f, p_x) = ρ(f*, p_x)·reliability(f*)^power."""
    clean, noise, success = sp.symbols("f* e p", real=True)
    variance, noise_variance = sp.symbols("Var(f*) Var(e)", positive=True)
    spread = sp.Symbol("Var(p_x)", positive=True)
    centred = {clean: 0, success: 0, noise: 0, noise * clean: 0, noise * success: 0}
    squares = {clean**2: variance, noise**2: noise_variance, success**2: spread}
    expected = Average(clean, noise, success, known=centred | squares)
    reliability = variance / (variance + noise_variance)
    observed = expected((clean + noise) * clean) / sp.sqrt(expected((clean + noise) ** 2) * variance)
    identity(observed, reliability**power)
    true = expected(clean * success) / sp.sqrt(variance * spread)
    seen = expected((clean + noise) * success) / sp.sqrt(expected((clean + noise) ** 2) * spread)
    identity(seen, true * reliability**power)


@step("L3.5", "The fitness variance of a finite population", scope="symbolic N", method="identity")
def finite_reliability(share: sp.Expr = sp.S.One) -> None:
    """Given the members' p_i, the population variance of f averages to Var(p) + (1 - share/N)·average noise
    variance: the attenuation is approximate in a finite population."""
    noise_variance = sp.Symbol("<Var(e|p)>", positive=True)
    # Given the p_i, the errors are independent of mean 0: E e_i e_j = 0 for i != j.
    average = Average(p)
    variance_of_p = average(p**2) - average(p) ** 2
    mean_square = average(p**2) + noise_variance
    square_of_mean = average(p) ** 2 + noise_variance / N
    identity(mean_square - square_of_mean, variance_of_p + (1 - share / N) * noise_variance)
    for n in range(2, 6):
        success, errors = sp.symbols(f"p1:{n + 1}"), sp.symbols(f"e1:{n + 1}")
        scale = sp.symbols(f"s1:{n + 1}", positive=True)
        fitness = [a + b * c for a, b, c in zip(success, errors, scale, strict=True)]
        found = expectation(_variance(fitness), errors, gaussian)
        mean_noise = sp.Add(*(c**2 for c in scale)) / n
        identity(found, _variance(list(success)) + (1 - share / n) * mean_noise, f"N = {n}")


def _variance(values: list[sp.Expr]) -> sp.Expr:
    n = len(values)
    return sp.Add(*(value**2 for value in values)) / n - (sp.Add(*values) / n) ** 2


@step("L3.5", "Raw fitness is not attenuated", scope="symbolic N", method="identity")
def raw_fitness(factor: sp.Expr = sp.S.One) -> None:
    """Raw centred weights w_i = (1 + β(f_i - f̄))/N with f = p + e, E[e_i|p] = 0, gain factor·β Var(p) in
    expectation, whatever the noise."""
    noise, fitness = sp.symbols("e f", real=True)
    # E over the noise given p is linear: a term with e_i to the first power vanishes.
    average = Average(noise, p, known={noise: 0, noise * p: 0})
    fitness = p + noise
    gain = average((1 + beta * (fitness - average(fitness))) * p) - average(p)
    identity(gain, factor * beta * average((p - average(p)) ** 2))


# L3.6


@step("L3.6", "Effective size of the tilt", scope="symbolic N", method="identity")
def effective_size(factor: sp.Expr = sp.S.One) -> None:
    """1/N_eff = Σ w_i² = (1 + factor·β²)/N for the z-scored linear tilt."""
    average = Average(z, known={z: 0, z**2: 1})
    identity(N * average(((1 + beta * z) / N) ** 2), (1 + factor * beta**2) / N)


@step("L3.6", "Price of linear fitness", scope="symbolic N, Gaussian noise, any d", method="identity")
def linear_fitness_price(loss: sp.Expr = sp.S.One, correction: int = 2) -> None:
    """For f = ĝ·ε the rate's Σ w_i (ε_i-ε̄_w)ᵀF(ε_i-ε̄_w) averages to tr F · [1 - 1/N_eff - loss·β²(1 - correction/N)
    ĝᵀFĝ/tr F]: what linear fitness loses beyond independent weights is β²ĝᵀFĝ/tr F up to a factor 1 - 2/N.

    Along ĝ the coordinate is x = x̄ + s z, whose weighted variance is s²(1 + β<z³> - β²); E s² = (N-1)/N, and s²<z³>
    averages to 0 because the noise is symmetric. Across ĝ Gaussian noise is independent of x, hence of the weights,
    and L1.1 gives the factor 1 - Σw²; the cross term has mean 0.
    """
    trace, along = sp.symbols("tr(F) gFg", positive=True)
    skewness = sp.Symbol("<z**3>", real=True)
    average = Average(z, known={z: 0, z**2: 1})
    weight = 1 + beta * z
    along_variance = average(weight * z**2) - average(weight * z) ** 2
    identity(along_variance, 1 + beta * skewness - beta**2)
    x = sp.Symbol("x")
    scale = expected_sample_variance(N, Average(x, known={x: 0, x**2: 1}), x)
    sum_of_squares = (1 + beta**2) / N
    # y across: E[y_i y_j] = δ_ij, given the weights. Its weighted variance is Σ w (1 - w).
    across_variance = average(weight * (1 - weight / N))
    identity(across_variance, 1 - sum_of_squares)
    total = along * scale * along_variance.subs(skewness, 0) + (trace - along) * across_variance
    claimed = trace * (1 - sum_of_squares) - loss * beta**2 * (1 - correction / N) * along
    identity(total, claimed)


@step("L3.6", "Fitness that raises diversity", scope="N = 3, d = 1; d = 1..3 on average", method="identity")
def squared_norm_fitness(factor: sp.Expr = sp.S.One) -> None:
    """For f = ‖ε‖² the weighted spread grows: members (-a, 0, a) have Σ w ε² = (2/3)(1 + factor·β/√2) a² and ε̄_w = 0,
    and for Gaussian noise E[z εᵀFε] = factor·√(2/d) tr F > 0."""
    a = sp.Symbol("a", positive=True)
    members, fitness = (-a, sp.S.Zero, a), (a**2, sp.S.Zero, a**2)
    mean = sp.Add(*fitness) / 3
    deviation = sp.sqrt(sp.Add(*((value - mean) ** 2 for value in fitness)) / 3)
    weights = [(1 + beta * (value - mean) / deviation) / 3 for value in fitness]
    identity(sp.Add(*(u * e for u, e in zip(weights, members, strict=True))), 0, "ε̄_w")
    spread = sp.Add(*(u * e**2 for u, e in zip(weights, members, strict=True)))
    identity(spread, sp.Rational(2, 3) * (1 + factor * beta / sp.sqrt(2)) * a**2)
    limit(spread / a**2, beta, 0, sp.Rational(2, 3))
    for d in range(1, 4):
        noise = sp.symbols(f"epsilon1:{d + 1}")
        fisher = sp.Matrix(d, d, lambda i, j: sp.Symbol(f"F_{min(i, j)}{max(i, j)}"))
        norm = sp.Add(*(e**2 for e in noise))
        quadratic = (sp.Matrix([noise]) * fisher * sp.Matrix(noise))[0]
        variance = expectation(sp.expand(norm**2), noise) - expectation(norm, noise) ** 2
        tilt = expectation(sp.expand((norm - d) * quadratic), noise) / sp.sqrt(variance)
        identity(tilt, factor * sp.sqrt(sp.Rational(2, d)) * fisher.trace(), f"d = {d}")
    holds(sp.sqrt(2).is_positive, "the sign of the tilt")
