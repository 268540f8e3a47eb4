"""Two-point (antithetic) estimation: the statements of T5 of `docs/theory.md`.

The gradient of the smoothed objective from N evaluations: one-point with the mean as baseline,
(1/(σN)) Σ (f_i - f̄) ε_i, or two-point from N/2 pairs, (1/(σN)) Σ (f_+ - f_-) ε. V is the variance of an evaluation, C
the covariance within a pair, C′ that of two members who are not a pair.
"""

import sympy as sp

from proofs.averages import Average, expected_product_of_sums
from proofs.moments import expectation
from proofs.step import identity, limit, nonnegative, positive, step

HALF = sp.S.Half

N = sp.Symbol("N", positive=True, integer=True)
d = sp.Symbol("d", positive=True, integer=True)
sigma, tau = sp.symbols("sigma tau", positive=True)
epsilon = sp.Symbol("epsilon", real=True)  # the coordinate of the noise that is estimated along
plus, minus = sp.symbols("f_+ f_-", real=True)
V, C, C_unpaired = sp.symbols("V C C'", real=True)


# Algebra


@step("T5", "Antithetic ES is two-point", scope="symbolic N (even), any fitness", method="identity")
def antithetic_is_two_point(half: sp.Expr = HALF) -> None:
    """Over members ε, -ε in pairs the ES estimate (average of f ε/σ) is half the pairs' average of (f_+ - f_-)ε/σ, and
    no baseline changes it."""
    baseline = sp.Symbol("b", real=True)
    pairs = Average(plus, minus, epsilon)
    es = pairs(((plus - baseline) * epsilon + (minus - baseline) * (-epsilon)) / 2) / sigma
    identity(es, half * pairs((plus - minus) * epsilon) / sigma)
    # f̄ itself, and the division of a z-score by sd(f), are a baseline and a factor common to all members.
    identity(pairs((epsilon - epsilon) / 2), 0, "ε̄ = 0")


@step("T5", "Unbiased for the smoothed objective", scope="polynomials of degree <= 6", method="identity")
def smoothed_gradient(factor: sp.Expr = sp.S.One) -> None:
    """E[f(θ+σε) ε] = factor·σ dJ_σ/dθ for Gaussian ε, J_σ(θ) = E f(θ+σε): Stein's identity, power by power."""
    theta, x = sp.symbols("theta x")
    for degree in range(7):
        value = sp.expand((theta + sigma * x) ** degree)
        smoothed = expectation(value, [x])
        identity(expectation(sp.expand(value * x), [x]), factor * sigma * sp.diff(smoothed, theta), f"degree {degree}")


# Two-point


@step("T5", "Variance of the two-point estimate", scope="symbolic N, any σ, any fitness", method="identity")
def two_point_variance(half: sp.Expr = HALF) -> None:
    """N/2 independent pairs with difference D = f_+ - f_-: the variance along a coordinate is half·Var(D ε)/(σ²N), and
    E D² = 2(V - C) as f_+ and f_- are of one law."""
    difference = sp.Symbol("D", real=True)
    pair = Average(difference, epsilon)
    product = difference * epsilon
    square = expected_product_of_sums(N / 2, pair, product, product) / (sigma * N) ** 2
    mean = expected_product_of_sums(N / 2, pair, product) / (sigma * N)
    identity(square - mean**2, half * (pair(product**2) - pair(product) ** 2) / (sigma**2 * N))
    level = sp.Symbol("J", real=True)
    moments = {plus**2: V + level**2, minus**2: V + level**2, plus * minus: C + level**2}
    identity(Average(plus, minus, known=moments)((plus - minus) ** 2), 2 * (V - C))


@step("T5", "Two-point variance per coordinate", scope="symbolic N and d, any σ", method="identity")
def two_point_per_coordinate(factor: sp.Expr = sp.S.One) -> None:
    """Averaged over the d coordinates the two-point variance is exactly [(V - C)(1 + κ/d) - factor·2σ²‖∇J_σ‖²/d]/(σ²N),
    with κ = E[D²(‖ε‖² - d)]/E D²."""
    # Σ_k E(Dε_k)² = E D²‖ε‖², and Σ_k (E Dε_k)² = ‖2σ∇J_σ‖².
    kappa, slope = sp.symbols("kappa g", real=True)
    squared, excess = sp.symbols("D^2 excess")  # D² and ‖ε‖² - d
    expected = Average(squared, excess, known={squared: 2 * (V - C), squared * excess: kappa * 2 * (V - C)})
    one_sided = {plus * epsilon: sigma * slope, minus * epsilon: -sigma * slope}
    mean_product = Average(plus, minus, epsilon, known=one_sided)((plus - minus) * epsilon)
    total = expected(squared * (d + excess)) - mean_product**2
    claimed = ((V - C) * (1 + kappa / d) - factor * 2 * sigma**2 * slope**2 / d) / (sigma**2 * N)
    identity(HALF * total / (sigma**2 * N * d), claimed)


@step("T5", "When the correction is O(1/d)", scope="symbolic d, D of odd degree <= 5", method="identity")
def correction_of_few_directions(doubled: int = 2) -> None:
    """If D depends on a fixed number of directions of ε, κ does not grow with d: a direction that D ignores adds E D² ·
    E(ε² - 1) = 0. For D a Hermite polynomial of degree n in one direction κ = doubled·n, so 2 for a linear J."""
    x, unseen, value = sp.symbols("x y D")
    identity(expectation(value**2 * (unseen**2 - 1), [unseen]), 0, "an ignored direction")
    for degree in (1, 3, 5):
        hermite = sp.hermite_prob_poly(degree, x)
        kappa = expectation(sp.expand(hermite**2 * (x**2 - 1)), [x]) / expectation(sp.expand(hermite**2), [x])
        identity(kappa, doubled * degree, f"degree {degree}")


@step("T5", "When it is not", scope="symbolic d", method="identity")
def correction_of_the_norm(doubled: int = 2) -> None:
    """κ/d can be of order 1/√d: |κ| <= √(2d·E D⁴)/E D² in general, and D = (g·ε)(1 + c(‖ε‖² - d)/√(2d)), which feels
    the whole norm, has √d·κ/d -> √2·doubled·c/(1 + c²)."""
    x, c = sp.Symbol("r"), sp.Symbol("c", positive=True)  # r = ‖ε‖²

    def expected(polynomial: sp.Expr) -> sp.Expr:
        # E r^k = d (d+2) ... (d+2k-2)
        powers = sp.Poly(sp.expand(polynomial), x).terms()
        return sp.Add(*(weight * sp.Mul(*(d + 2 * j for j in range(k))) for (k,), weight in powers))

    for size in range(1, 4):
        noise = sp.symbols(f"epsilon1:{size + 1}")
        norm = sp.expand(sp.Add(*(e**2 for e in noise)) ** 2)
        identity(expectation(norm, noise), expected(x**2).subs(d, size), f"the law of r, d = {size}")
    identity(expected((x - d) ** 2), 2 * d, "Cauchy and Schwarz: Var ‖ε‖²")
    # E[(g·ε)² h(r)] = ‖g‖² E[r h(r)]/d, the same in every direction
    shape = (1 + c * (x - d) / sp.sqrt(2 * d)) ** 2
    kappa = sp.cancel(expected(x * shape * (x - d)) / expected(x * shape))
    limit(sp.simplify(kappa / sp.sqrt(d)), d, sp.oo, sp.sqrt(2) * doubled * c / (1 + c**2))


# One-point


@step("T5", "Variance of the one-point estimate", scope="symbolic N, any σ, any fitness", method="identity")
def one_point_variance(missing: int = 2) -> None:
    """With the mean as baseline the variance along a coordinate is (N-1)/(σ²N³) · [(N-1) E u²ε² + E u² -
    (N-missing)(E uε)²], u = f - E f independent between members: (E u²ε² - (E uε)²)/(σ²N) to leading order in 1/N. A
    part that all members share cancels, so E u² = V - C′."""
    u, shared = sp.symbols("u b", real=True)
    member = Average(u, epsilon, known={u: 0, epsilon: 0, epsilon**2: 1})
    product = u * epsilon
    both = expected_product_of_sums(N, member, product, product)
    mixed = expected_product_of_sums(N, member, product, u, epsilon)
    means = expected_product_of_sums(N, member, u, u, epsilon, epsilon)
    first = expected_product_of_sums(N, member, product) / N - expected_product_of_sums(N, member, u, epsilon) / N**2
    variance = both / N**2 - 2 * mixed / N**3 + means / N**4 - first**2
    bracket = (N - 1) * member(product**2) + member(u**2) - (N - missing) * member(product) ** 2
    identity(variance, (N - 1) / N**3 * bracket)
    limit(sp.expand(N * variance), N, sp.oo, member(product**2) - member(product) ** 2, "leading order")

    crowd = Average(u, epsilon)
    centred = crowd((u + shared - crowd(u + shared)) * epsilon)
    identity(centred, crowd((u - crowd(u)) * epsilon), "a shared part cancels")
    other = sp.Symbol("u_j", real=True)
    two = Average(u, other, shared, known={u: 0, other: 0, shared: 0, u * other: 0, u * shared: 0, other * shared: 0})
    identity(two((u + shared) ** 2) - two((u + shared) * (other + shared)), two(u**2), "V - C′")


@step("T5", "One-point variance per coordinate", scope="symbolic N and d, any σ", method="identity")
def one_point_per_coordinate(factor: sp.Expr = sp.S.One) -> None:
    """Averaged over coordinates, with κ′ = E[u²(‖ε‖² - d)]/E u², the one-point variance is to leading order in 1/N
    [(V - C′)(1 + κ′/d) - factor·σ²‖∇J_σ‖²/d]/(σ²N)."""
    kappa, slope = sp.symbols("kappa' g", real=True)
    spread = V - C_unpaired
    # The step before, summed over the coordinates: Σ E u²ε_k² = E u²‖ε‖² and Σ (E uε_k)² = σ²‖∇J_σ‖².
    total = (N - 1) * spread * (d + kappa) + d * spread - (N - 2) * sigma**2 * slope**2
    leading = sp.limit((N - 1) / (sigma**2 * N**3 * d) * total * N, N, sp.oo)
    identity(leading, (spread * (1 + kappa / d) - factor * sigma**2 * slope**2 / d) / sigma**2)


# Small sigma


@step("T5", "Two-point, linear objective", scope="symbolic N, any d by rotation", method="identity")
def two_point_linear(signal: int = 2, noise: sp.Expr = sp.S.One) -> None:
    """J linear, evaluation noise of variance τ² and correlation c in a pair, Gaussian ε: the variance is exactly
    [signal·(‖∇J‖² + (∂_kJ)²) + noise·τ²(1-c)/σ²]/N.

    ∇J lies in the plane of the coordinate k and one direction across it, so two coordinates of ε are enough.
    """
    c, along, across = sp.symbols("c g_k g_perp", real=True)
    x, y, eta_plus, eta_minus = sp.symbols("x y eta_+ eta_-", real=True)
    fitness_plus = sigma * (along * x + across * y) + eta_plus
    fitness_minus = -sigma * (along * x + across * y) + eta_minus

    evaluation = Average(
        eta_plus,
        eta_minus,
        known={eta_plus: 0, eta_minus: 0, eta_plus**2: tau**2, eta_minus**2: tau**2, eta_plus * eta_minus: c * tau**2},
    )

    def expected(polynomial: sp.Expr) -> sp.Expr:
        return expectation(evaluation(sp.expand(polynomial)), [x, y])

    product = (fitness_plus - fitness_minus) * x
    square = expected_product_of_sums(N / 2, expected, product, product) / (sigma * N) ** 2
    mean = expected_product_of_sums(N / 2, expected, product) / (sigma * N)
    identity(mean, along, "unbiased")
    norm_squared = along**2 + across**2
    claimed = (signal * (norm_squared + along**2) + noise * tau**2 * (1 - c) / sigma**2) / N
    identity(square - mean**2, claimed)
    variance, covariance = expected(fitness_plus**2), expected(fitness_plus * fitness_minus)
    identity((variance - covariance) / sigma**2, claimed.subs(along, 0) * N + 2 * along**2, "V - C")


@step("T5", "One-point, linear objective", scope="symbolic N (and N = 2, 3 summed), any d", method="identity")
def one_point_linear(signal: sp.Expr = sp.S.One, noise: sp.Expr = sp.S.One) -> None:
    """J linear, evaluation noise of variance τ² and correlation c′ between members, Gaussian ε: the variance is
    exactly (N-1)/N² · [signal·(‖∇J‖² + (∂_kJ)²) + noise·τ²(1-c′)/σ²]; divided by N-1 in place of N the estimate is
    unbiased, and its variance the bracket/(N-1)."""
    c, along, across = sp.symbols("c' g_k g_perp", real=True)
    x, y, own = sp.symbols("x y eta", real=True)  # the part of the evaluation noise that is not shared
    evaluation = Average(own, known={own: 0, own**2: tau**2 * (1 - c)})

    def expected(polynomial: sp.Expr) -> sp.Expr:
        return expectation(evaluation(sp.expand(polynomial)), [x, y])

    u = sigma * (along * x + across * y) + own
    product = expected(u * x)
    bracket = (N - 1) * expected(u**2 * x**2) + expected(u**2) - (N - 2) * product**2
    norm_squared = along**2 + across**2
    per_member = signal * (norm_squared + along**2) + noise * tau**2 * (1 - c) / sigma**2
    identity((N - 1) / (sigma**2 * N**3) * bracket, (N - 1) / N**2 * per_member)
    pairs = expected_product_of_sums(N, expected, u * x) / N - expected_product_of_sums(N, expected, u, x) / N**2
    identity(N / (N - 1) * pairs / sigma, along, "unbiased with N-1")
    identity((N / (N - 1)) ** 2 * (N - 1) / N**3 * bracket / sigma**2, per_member / (N - 1), "its variance")
    for n in (2, 3):
        identity(_one_point_by_sum(n, along, across, c), (sp.Integer(n) - 1) / n**2 * per_member, f"N = {n}")


def _one_point_by_sum(n: int, along: sp.Symbol, across: sp.Symbol, c: sp.Symbol) -> sp.Expr:
    """The variance member by member, with evaluation noise τ(√c′ · shared + √(1-c′) · own)."""
    x, y, own = (sp.symbols(f"{name}1:{n + 1}") for name in ("x", "y", "eta"))
    shared, a, b = sp.symbols("eta_0 a b", real=True)
    fitness = [sigma * (along * x[i] + across * y[i]) + tau * (a * shared + b * own[i]) for i in range(n)]
    mean_fitness = sp.Add(*fitness) / n
    estimate = sp.expand(sp.Add(*((fitness[i] - mean_fitness) * x[i] for i in range(n))) / (sigma * n))
    normal = [*x, *y, *own, shared]
    variance = expectation(sp.expand(estimate**2), normal) - expectation(estimate, normal) ** 2
    return sp.expand(variance).subs({a: sp.sqrt(c), b: sp.sqrt(1 - c)})


# Which one wins


@step("T5", "Two-point wins exactly if C > C′", scope="leading order in 1/N and 1/d", method="sign")
def crossover(factor: sp.Expr = sp.S.One) -> None:
    """One-point less two-point variance is factor·(C - C′)/(σ²N); for a linear J it is [τ²(c - c′) - σ²(‖∇J‖² +
    (∂_kJ)²)]/(σ²N), so shared randomness must outweigh the signal that a pair counts twice."""
    lead = sp.Symbol("e", positive=True)
    one, two = (V - C_unpaired) / (sigma**2 * N), (V - C) / (sigma**2 * N)
    identity(one - two, factor * (C - C_unpaired) / (sigma**2 * N))
    positive((one - two).subs(C, C_unpaired + lead), "C > C′")
    positive((two - one).subs(C_unpaired, C + lead), "C < C′")
    c, c_unpaired, slope, along = sp.symbols("c c' g g_k", real=True)
    strength = slope**2 + along**2
    one_linear = (strength + tau**2 * (1 - c_unpaired) / sigma**2) / N
    two_linear = (2 * strength + tau**2 * (1 - c) / sigma**2) / N
    difference = (tau**2 * (c - c_unpaired) - sigma**2 * strength) / (sigma**2 * N)
    identity(one_linear - two_linear, factor * difference)
    nonnegative((-difference).subs(c, c_unpaired), "without shared randomness two-point does not win")
    covariances = {C: c * tau**2 - sigma**2 * slope**2, C_unpaired: c_unpaired * tau**2}
    identity((one - two).subs(covariances), difference.subs(along, 0), "C - C′ of a linear J, per coordinate")
