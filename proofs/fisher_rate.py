"""Fisher-rate diversity: statements L1.1 to L1.4 of `docs/theory.md`.

Member i of N has parameters θ + σ ε_i and speaks with weight w_i; JS_w is the weighted mean of KL(π_i ‖
π̄_w). L1.1: E[JS_w] = (σ²/2)(1 - Σw²) tr(FΣ) + O(σ⁴). L1.2: its variance over Gaussian populations. L1.3: for
softmax policies, with q = softmax of the mean logits, u_i = z_i - z̄ of span s_i and ψ(s) = (exp(s)(s-1) +
1)/s², Σ w Var_q(u) ψ(-s) - log(1 + χ²(π̄‖q)) <= JS_w <= Σ w min{Var_q(u) ψ(s), s²/8}. L1.4: the same along a
sequence.
"""

from collections.abc import Sequence
from itertools import combinations, product

import sympy as sp

from proofs.averages import Average, expected_product_of_sums
from proofs.intervals import certified_positive
from proofs.moments import Law, expectation, gaussian, rademacher, symmetric
from proofs.series import polynomial, taylor
from proofs.step import Constant, coefficient, identity, limit, nonnegative, positive, step

HALF, QUARTER, EIGHTH = sp.Rational(1, 2), sp.Rational(1, 4), sp.Rational(1, 8)

sigma, t, s = sp.symbols("sigma t s", positive=True)
N = sp.Symbol("N", positive=True, integer=True)
kappa = sp.Symbol("kappa", positive=True)  # fourth moment of the noise
S2, S3, S4 = sp.symbols("S2 S3 S4", positive=True)  # sums of the second, third, fourth powers of the weights
p = sp.Symbol("p", positive=True)  # probability of the first of two categories
odds = sp.Symbol("o", positive=True)  # p/(1-p): every p in (0, 1) is o/(1+o) for one o > 0


def probabilities(name: str, n: int) -> list[sp.Expr]:
    """n probabilities that sum to 1, the last one written as the rest."""
    first = list(sp.symbols(f"{name}1:{n}", positive=True))
    return [*first, 1 - sum(first)]


def uniform(n: int) -> list[sp.Expr]:
    return [sp.Rational(1, n)] * n


def softmax_js(weights: Sequence, q: Sequence, u: Sequence[Sequence]) -> sp.Expr:
    """JS_w of the members q exp(σu_i)/Z_i, by definition, with u_i[y] the logit change of member i."""
    log_ratio = []  # log π_i(y)/q(y)
    for row in u:
        normalizer = sp.Add(*(q_y * sp.exp(sigma * u_y) for q_y, u_y in zip(q, row, strict=True)))
        log_ratio.append([sigma * u_y - sp.log(normalizer) for u_y in row])
    total = sp.S.Zero
    for y, q_y in enumerate(q):
        column = [row[y] for row in log_ratio]
        mixture = sp.log(sp.Add(*(w * sp.exp(c) for w, c in zip(weights, column, strict=True))))
        total += sp.Add(*(w * q_y * sp.exp(c) * (c - mixture) for w, c in zip(weights, column, strict=True)))
    return total


def variance(q: Sequence, u: Sequence) -> sp.Expr:
    """Var_q(u), centred."""
    mean = sp.Add(*(q_y * u_y for q_y, u_y in zip(q, u, strict=True)))
    return sp.Add(*(q_y * (u_y - mean) ** 2 for q_y, u_y in zip(q, u, strict=True)))


def js(weights: Sequence, members: Sequence[Sequence]) -> sp.Expr:
    """JS_w by definition, of exact numbers; 0 log 0 = 0."""
    total = sp.S.Zero
    for column in zip(*members, strict=True):
        spoken = [(w, x) for w, x in zip(weights, column, strict=True) if x != 0]
        mixture = sp.Add(*(w * x for w, x in spoken))
        total += sp.Add(*(w * x * (sp.log(x) - sp.log(mixture)) for w, x in spoken))
    return total


# L1.1: the rate


def gap(convex: sp.Expr, x: sp.Symbol, member: sp.Expr, average: Average, order: int) -> sp.Expr:
    """Coefficient of σ^order of average(f(member)) - f(average(member)), for `convex` = f(x)."""
    of_members = average(taylor(convex.subs(x, member), sigma, order)[order])
    return of_members - taylor(convex.subs(x, average(member)), sigma, order)[order]


@step("L1.1", "Divergence as a Jensen gap", scope="symbolic N, any V", method="identity")
def jensen_gap(one: Constant = 1) -> None:
    """With π_i = q r_i at a category, its share of JS_w is q [average(r log r) - R log R], R the average of
    r."""
    q, r, log_r, R = sp.symbols("q r l R", positive=True)
    average = Average(r, log_r, known={r: R})
    share = average(q * r * ((sp.log(q) + log_r) - (sp.log(q) + sp.log(R))))
    identity(share, q * (average(r * log_r) - one * R * sp.log(R)))


@step("L1.1", "Second order of the divergence", scope="symbolic N, any V, any smooth policy", method="series")
def second_order(half: Constant = HALF) -> None:
    """If r_i = 1 + σ a_i + σ² b_i + ..., the Jensen gap is (σ²/2)(average of a² - average² of a) to second
    order; orders 0 and 1 vanish and b drops out. The weights may depend on the noise."""
    a, b, r = sp.symbols("a b r", real=True)
    average = Average(a, b)
    member = 1 + sigma * a + sigma**2 * b
    orders = [gap(r * sp.log(r), r, member, average, k) for k in range(3)]
    identity(orders[0], 0)
    identity(orders[1], 0)
    identity(orders[2], half * (average(a**2) - average(a) ** 2))


@step("L1.1", "The rate of one population", scope="symbolic N, any V; d = 1..3", method="identity")
def one_population(one: Constant = 1) -> None:
    """a_i(y) = ∇log π(y)·ε_i, and averaged over y ~ q the spread of a is that of the noise in the Fisher
    metric: JS_w = (σ²/2) average of (ε-ε̄)ᵀF(ε-ε̄) + O(σ³), for any weights.

    Both sides are bilinear, so a pair of coordinates shows it; d = 3 holds every kind of pair.
    """
    log_policy = sp.Function("l")
    change = sp.diff(sp.exp(log_policy(sigma) - log_policy(0)), sigma).subs(sigma, 0).doit()
    identity(change, sp.diff(log_policy(sigma), sigma).subs(sigma, 0))

    for d in (1, 2, 3):
        score = sp.symbols(f"s1:{d + 1}", real=True)
        noise = sp.symbols(f"e1:{d + 1}", real=True)
        over_categories, over_members = Average(*score), Average(*noise)
        a = sp.Add(*(s_k * e_k for s_k, e_k in zip(score, noise, strict=True)))
        spread = over_categories(over_members(a**2) - over_members(a) ** 2)
        fisher = sp.Matrix(d, d, lambda k, m, score=score, f=over_categories: f(score[k] * score[m]))
        centred = sp.Matrix([e_k - over_members(e_k) for e_k in noise])
        identity(spread, one * over_members((centred.T * fisher * centred)[0]))


@step("L1.1", "The same by expanding softmax policies", scope="N = 2..5, V = 2, 3, symbolic w", method="series")
def softmax_second_order(half: Constant = HALF) -> None:
    """JS_w of members with logits z + σu_i is 0 + 0·σ + (σ²/2) Σ w_i Var_q(u_i - ū)."""
    for n, v in product((2, 3, 4, 5), (2, 3)):
        w, q = probabilities("w", n), probabilities("q", v)
        u = [sp.symbols(f"u{i}_1:{v + 1}", real=True) for i in range(n)]
        mean = [sp.Add(*(w[i] * u[i][y] for i in range(n))) for y in range(v)]
        spread = sp.Add(*(w[i] * variance(q, [x - m for x, m in zip(u[i], mean, strict=True)]) for i in range(n)))
        orders = taylor(softmax_js(w, q, u), sigma, 2)
        for found, claimed in zip(orders, (0, 0, half * spread), strict=True):
            identity(found, claimed, f"N = {n}, V = {v}")


def symmetric_matrix(name: str, d: int) -> sp.Matrix:
    return sp.Matrix(d, d, lambda i, j: sp.Symbol(f"{name}{min(i, j)}{max(i, j)}", real=True))


def member_noise(index: int | str, covariance: sp.Matrix) -> tuple[sp.Matrix, Average]:
    """One member's noise, and E over it for any law at all of mean 0 and this covariance."""
    d = covariance.rows
    e = sp.symbols(f"e{index}_1:{d + 1}", real=True)
    known = {e[i] * e[j]: covariance[i, j] for i in range(d) for j in range(i, d)}
    return sp.Matrix(e), Average(*e, known=known | dict.fromkeys(e, 0))


@step("L1.1", "Independent noise, by induction over the members", scope="symbolic N; d = 1..3", method="identity")
def independent_noise(loss: Constant = 1) -> None:
    """A further member adds w² tr(FΣ) to E[ε̄ᵀFε̄], so E[ε̄ᵀFε̄] = Σw² tr(FΣ), while the average of E[εᵀFε]
    is tr(FΣ): the factor of the rate is 1 - Σw². Nothing but the noise's mean and covariance is used."""
    w = sp.Symbol("w", positive=True)
    for d in (1, 2, 3):
        F, covariance = symmetric_matrix("F", d), symmetric_matrix("C", d)
        e, expected = member_noise("", covariance)
        before = sp.Matrix(sp.symbols(f"S1:{d + 1}", real=True))
        after = before + w * e
        trace = (F * covariance).trace()
        identity(expected((e.T * F * e)[0]), trace)
        identity(expected((after.T * F * after)[0]), (before.T * F * before)[0] + loss * w**2 * trace)


@step("L1.1", "Antithetic noise, by induction over the pairs", scope="symbolic N; d = 1..3", method="identity")
def antithetic_noise(loss: Constant = 1) -> None:
    """A pair ±ε with weights w₊, w₋ adds (w₊-w₋)² tr(FΣ) to E[ε̄ᵀFε̄]: the factor is 1 - Σ(w₊-w₋)², which is
    1 if the weights are equal within pairs."""
    plus, minus = sp.symbols("w_plus w_minus", positive=True)
    for d in (1, 2, 3):
        F, covariance = symmetric_matrix("F", d), symmetric_matrix("C", d)
        e, expected = member_noise("", covariance)
        before = sp.Matrix(sp.symbols(f"S1:{d + 1}", real=True))
        after = before + plus * e - minus * e
        added = expected((after.T * F * after)[0]) - (before.T * F * before)[0]
        identity(added, loss * (plus - minus) ** 2 * (F * covariance).trace())
        identity(added.subs(minus, plus), 0)


@step("L1.1", "The rate, in full", scope="N = 2..5, antithetic N = 2, 4; d = 2", method="identity")
def rate(half: Constant = HALF) -> None:
    """E of ½ Σ w (ε-ε̄)ᵀF(ε-ε̄) is ½ (1 - Σw²) tr(FΣ) for i.i.d. members and ½ (1 - Σ(w₊-w₋)²) tr(FΣ) for
    antithetic ones: Gaussian, Rademacher and low-rank noise of one covariance share it."""
    F, covariance = symmetric_matrix("F", 2), symmetric_matrix("C", 2)
    for n in (2, 3, 4, 5):
        w = probabilities("w", n)
        e, laws = zip(*(member_noise(i, covariance) for i in range(n)), strict=True)
        found = _expected(HALF * _spread(w, e, F), laws)
        factor = 1 - sum(w_i**2 for w_i in w)
        identity(found, half * factor * (F * covariance).trace(), f"N = {n}")
    for pairs in (1, 2):
        w = probabilities("w", 2 * pairs)
        e, laws = zip(*(member_noise(i, covariance) for i in range(pairs)), strict=True)
        found = _expected(HALF * _spread(w, [x for e_k in e for x in (e_k, -e_k)], F), laws)
        factor = 1 - sum((w[2 * k] - w[2 * k + 1]) ** 2 for k in range(pairs))
        identity(found, half * factor * (F * covariance).trace(), f"antithetic, N = {2 * pairs}")


def _expected(form: sp.Expr, laws: Sequence[Average]) -> sp.Expr:
    for law in laws:
        form = law(polynomial(form))
    return form


def _spread(w: Sequence, e: Sequence[sp.Matrix], fisher: sp.Matrix) -> sp.Expr:
    """Σ w (ε-ε̄)ᵀF(ε-ε̄)."""
    mean = sum((w_i * e_i for w_i, e_i in zip(w, e, strict=True)), sp.zeros(*e[0].shape))
    forms = (w_i * ((e_i - mean).T * fisher * (e_i - mean))[0] for w_i, e_i in zip(w, e, strict=True))
    return polynomial(sp.Add(*forms))


@step("L1.1", "Odd orders have mean zero", scope="symbolic N, any V", method="series")
def odd_orders(odd: Constant = -1) -> None:
    """Turning all ε into -ε turns the sign of order 3 and keeps that of orders 2 and 4: symmetric noise
    leaves no σ³, and the remainder of the mean is O(σ⁴).

    The remainder needs no more than a fourth moment. Where σ|ε_i| <= r for all i (a symmetric event, r so
    small that π keeps its support), Taylor's theorem bounds it by a multiple of σ⁴ Σ|ε_i|⁴. Elsewhere x = σ
    max|ε_i|/r is above 1, JS <= log N <= x⁴ log N, and the leading term is a multiple of x² <= x⁴.
    """
    a, b, c, d, r, x = sp.symbols("a b c d r x", real=True)
    average = Average(a, b, c, d)

    def order(k: int, sign: int) -> sp.Expr:
        # a and c are of odd degree in the noise, b and d of even degree.
        member = 1 + sign * sigma * a + sigma**2 * b + sign * sigma**3 * c + sigma**4 * d
        return gap(r * sp.log(r), r, member, average, k)

    for k in (1, 2, 3, 4):
        identity(order(k, -1), odd**k * order(k, 1), f"order {k}")
    beyond = sp.Symbol("y", positive=True)  # x = 1 + y
    for power in (0, 2):
        positive((x**4 - x**power).subs(x, 1 + beyond))


@step("L1.1", "The verifier's rate", scope="symbolic N, any number of outcomes", method="series")
def projected_rate(half: Constant = HALF) -> None:
    """Outcomes k have success ρ_k + σ g_k: the same rate with Fᵛ = Σ_k ∇ρ_k∇ρ_kᵀ/ρ_k, and for two outcomes
    h(average p_i) - average h(p_i) = (σ²/2)(average g² - average² g)/(p(1-p)) + O(σ³)."""
    g, c, x, rho = sp.symbols("g c x rho", positive=True)
    average = Average(g, c)
    spread = average(g**2) - average(g) ** 2
    identity(gap(x * sp.log(x), x, rho + sigma * g + sigma**2 * c, average, 2), half * spread / rho)

    negative_entropy = x * sp.log(x) + (1 - x) * sp.log(1 - x)
    two = [gap(negative_entropy, x, p + sigma * g + sigma**2 * c, average, k) for k in range(3)]
    identity(two[0], 0)
    identity(two[1], 0)
    identity(two[2], half * spread / (p * (1 - p)))
    identity(1 / p + 1 / (1 - p), 1 / (p * (1 - p)), "Fᵛ of two outcomes, whose gradients are opposite")


@step("L1.1", "Fᵛ ⪯ F", scope="any V; explicitly blocks of 2..4 categories", method="sign")
def projected_fisher_is_smaller(one: Constant = 1) -> None:
    """Within an outcome of probability ρ, E[a²; k] - (∇ρ·ε)²/ρ is ρ times the conditional variance of the
    score, for n categories Σ_{y<y'} q q' (a-a')²/ρ >= 0."""
    a, m = sp.symbols("a m", real=True)
    within = Average(a, known={a: m})
    identity(within(a**2) - one * m**2, within((a - m) ** 2))
    for n in (2, 3, 4):
        q, score = sp.symbols(f"q1:{n + 1}", positive=True), sp.symbols(f"a1:{n + 1}", real=True)
        squares = sp.Add(*(x * y**2 for x, y in zip(q, score, strict=True)))
        gradient = sp.Add(*(x * y for x, y in zip(q, score, strict=True)))
        pairs = (q[i] * q[j] * (score[i] - score[j]) ** 2 for i, j in combinations(range(n), 2))
        nonnegative(squares - one * gradient**2 / sum(q), because=sp.Add(*pairs) / sum(q))


def cumulants(moments: Sequence) -> list[sp.Expr]:
    """The first four cumulants from moments 0..4; entry 0 unused."""
    _, m1, m2, m3, m4 = moments
    return [
        sp.S.Zero,
        m1,
        m2 - m1**2,
        m3 - 3 * m2 * m1 + 2 * m1**3,
        m4 - 4 * m3 * m1 - 3 * m2**2 + 12 * m2 * m1**2 - 6 * m1**4,
    ]


def moments(cumulant: Sequence) -> list[sp.Expr]:
    """Moments 0..4 from the first four cumulants."""
    _, k1, k2, k3, k4 = cumulant
    return [
        sp.S.One,
        k1,
        k2 + k1**2,
        k3 + 3 * k2 * k1 + k1**3,
        k4 + 4 * k3 * k1 + 3 * k2**2 + 6 * k2 * k1**2 + k1**4,
    ]


@step("L1.1", "Cumulants of a weighted sum", scope="symbolic N, by induction", method="identity")
def cumulants_add(one: Constant = 1) -> None:
    """Cumulants 1 to 4 of S + wX, with X independent of S, are those of S plus w^k those of X: the mean of N
    i.i.d. members with weights w has cumulants Σw^k times a member's."""
    w, S, X = sp.symbols("w S X", real=True)
    of_sum, of_member = Average(S), Average(X)
    both = [of_member(of_sum((S + w * X) ** k)) for k in range(5)]
    sums, member = (cumulants([f(x**k) for k in range(5)]) for f, x in ((of_sum, S), (of_member, X)))
    for k in range(1, 5):
        identity(cumulants(both)[k], sums[k] + one * w**k * member[k], f"cumulant {k}")
        identity(moments(cumulants(both))[k], both[k], f"moment {k} back from the cumulants")


def fourth_order(v: sp.Expr, S2: sp.Expr, S3: sp.Expr, S4: sp.Expr, excess: sp.Expr) -> sp.Expr:
    """Coefficient of σ⁴ in E[JS_w] of a two-category policy with p(1-p) = v, log odds perturbed by unit noise
    of fourth moment 3 + excess; S_k = Σw^k."""
    normal = 1 - 2 * S2 + 2 * S3 - S2**2 - v * (7 - 12 * S2 + 8 * S3 - 3 * S2**2)
    beyond = 3 - 7 * S2 + 6 * S3 - 2 * S4 - v * (18 - 36 * S2 + 24 * S3 - 6 * S4)
    return v * (normal / 4 + excess * beyond / 24)


@step("L1.1", "Fourth order for two categories", scope="symbolic N and w, any symmetric noise", method="series")
def two_categories(scale: Constant = 4, seven: Constant = 7, five: Constant = 5) -> None:
    """Orders 2 and 4 of E[JS_w] = E[h(p̄) - average h(p_i)]. With v = p(1-p), uniform w and Gaussian noise
    order 4 is v(N-1)[(N-1) - (7N - 5)v]/(4N²): positive for rare categories, negative near p =
    ½. Order 2 does not see the noise's fourth moment, order 4 does: Gaussian and Rademacher noise part there.

    E of a power of p̄ - p comes from its cumulants, which are Σw^k times a member's. A logit ⟨x, θ⟩ sees the
    noise ⟨x, ε⟩, so in d dimensions σ is replaced by σ|x|.
    """
    epsilon = sp.Symbol("epsilon", real=True)
    law, v = symmetric(kappa), p * (1 - p)
    success = p * sp.exp(sigma * epsilon) / (1 - p + p * sp.exp(sigma * epsilon))
    change = sp.Add(*(c * sigma**k for k, c in enumerate(taylor(success, sigma, 4)) if k))
    member = [expectation(_order_four(change**k), [epsilon], law) for k in range(5)]
    of_member = cumulants(member)
    of_mixture = [sp.S.Zero, of_member[1], S2 * of_member[2], S3 * of_member[3], S4 * of_member[4]]
    mixture = moments(of_mixture)

    entropy = -p * sp.log(p) - (1 - p) * sp.log(1 - p)
    mean = sp.Add(*(sp.diff(entropy, p, k) / sp.factorial(k) * (mixture[k] - member[k]) for k in range(1, 5)))
    orders = taylor(mean, sigma, 4)
    for k, claimed in enumerate((0, 0, (1 - S2) * v / 2, 0, fourth_order(v, S2, S3, S4, kappa - 3))):
        identity(orders[k], claimed, f"order {k}")

    equal_weights = {S2: 1 / N, S3: 1 / N**2, S4: 1 / N**3}
    closed = v * (N - 1) * ((N - 1) - (seven * N - five) * v) / (scale * N**2)
    identity(fourth_order(v, S2, S3, S4, 0).subs(equal_weights), closed)
    # Per unit of excess kurtosis; Rademacher noise has excess -2.
    parting = v * (N - 1) * ((3 * N**2 - 4 * N + 2) - 6 * (3 * N**2 - 3 * N + 1) * v) / (24 * N**3)
    identity(sp.diff(fourth_order(v, S2, S3, S4, kappa - 3), kappa).subs(equal_weights), parting)
    # At p = ½ and N = n + 1 members order 4 falls strictly with the fourth moment.
    positive(-parting.subs({p: HALF, N: N + 1}))


def _order_four(expression: sp.Expr) -> sp.Expr:
    return sp.Add(*(c * sigma**k for k, c in enumerate(taylor(expression, sigma, 4))))


@step("L1.1", "Fourth order by direct expansion", scope="N = 2..5; N = 2, 3 with symbolic w", method="series")
def two_categories_directly(scale: Constant = 4) -> None:
    """The same coefficients from JS itself, expanded in σ with one symbol a member and averaged term by
    term."""
    v = p * (1 - p)
    cases: list[tuple[list, Law, sp.Expr]] = [(uniform(n), gaussian, sp.S.Zero) for n in (2, 3, 4, 5)]
    cases += [(probabilities("w", n), symmetric(kappa), kappa - 3) for n in (2, 3)]
    cases += [(uniform(2), rademacher, sp.Integer(-2))]
    for w, law, excess in cases:
        noise = sp.symbols(f"e1:{len(w) + 1}", real=True)
        orders = taylor(softmax_js(w, (p, 1 - p), [(e, 0) for e in noise]), sigma, 4)
        squares, cubes, fourths = (sp.Add(*(w_i**k for w_i in w)) for k in (2, 3, 4))
        claimed = 4 * fourth_order(v, squares, cubes, fourths, excess) / scale
        identity(expectation(orders[4], noise, law), claimed, f"N = {len(w)}")
        identity(expectation(orders[3], noise, law), 0, f"N = {len(w)}, order 3")


# L1.2: the spread


@step("L1.2", "Variance of a Gaussian quadratic form", scope="any dimension; explicitly 1..4", method="identity")
def quadratic_form_variance(two: Constant = 2) -> None:
    """Var[xᵀAx] = 2 tr A² for standard normal x: along an eigenvector Var[λx²] = 2λ², and independent
    variances add; written out for every symmetric A up to 4 by 4."""
    for n in (1, 2, 3, 4):
        A, x = symmetric_matrix("F", n), sp.symbols(f"x1:{n + 1}", real=True)
        form = sp.expand((sp.Matrix([x]) * A * sp.Matrix(x))[0])
        identity(expectation(form**2, x) - expectation(form, x) ** 2, two * (A * A).trace(), f"dimension {n}")


@step("L1.2", "Spread of an i.i.d. population", scope="symbolic N, any d", method="identity")
def independent_spread(half: Constant = HALF) -> None:
    """To leading order JS = (σ²/2) xᵀ(M⊗F)x, with all noise stacked in x and M = (I - 11ᵀ/N)/N, so that
    Var[JS] = σ⁴/4 · 2 tr M² tr F² = σ⁴ (N-1)/(2N²) tr F².

    The rest of JS is σ³ times a variable that is odd in the noise, hence uncorrelated with the leading one,
    and O(σ⁴) beyond; JS <= log N and Gaussian tails make that o(σ⁴) in the variance.
    """
    on_diagonal, off_diagonal = (1 - 1 / N) / N, -1 / N**2
    trace_square = N * on_diagonal**2 + N * (N - 1) * off_diagonal**2
    identity(sp.Rational(1, 4) * 2 * trace_square, half * (N - 1) / N**2)
    for n in (2, 3, 4, 5):
        M = (sp.eye(n) - sp.ones(n, n) / n) / n
        identity((M * M).trace(), trace_square.subs(N, n), f"tr M², N = {n}")
    for n, d in ((2, 2), (3, 2), (2, 3)):
        M, F = sp.Matrix(n, n, lambda i, j: sp.Symbol(f"M{min(i, j)}{max(i, j)}")), symmetric_matrix("F", d)
        square = sp.kronecker_product(M, F) ** 2
        identity(square.trace(), (M * M).trace() * (F * F).trace(), "tr (M⊗F)²")


@step("L1.2", "Spread of antithetic pairs", scope="symbolic N, any d", method="identity")
def antithetic_spread(one: Constant = 1) -> None:
    """ε̄ = 0 and a pair shares its value, so M = (2/N) I over the N/2 pairs: Var[JS] = σ⁴ tr F²/N."""
    identity(sp.Rational(1, 4) * 2 * (N / 2) * (2 / N) ** 2, one / N)


@step(
    "L1.2", "Both by direct expansion", scope="N = 2..5 (d = 1), N = 2, 3 (d = 2); pairs N = 2, 4, 6", method="identity"
)
def spread_directly(half: Constant = HALF, one: Constant = 1) -> None:
    """Var of ½ average (ε-ε̄)ᵀF(ε-ε̄), from the moments of each noise component."""
    for n, d in ((2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (3, 2)):
        F = symmetric_matrix("F", d)
        noise = [sp.Matrix(sp.symbols(f"e{i}_1:{d + 1}", real=True)) for i in range(n)]
        found = _variance(HALF * _spread(uniform(n), noise, F), noise)
        identity(found, half * sp.Rational(n - 1, n**2) * (F * F).trace(), f"N = {n}, d = {d}")
    for n, d in ((2, 1), (4, 1), (6, 1), (2, 2), (4, 2)):
        F = symmetric_matrix("F", d)
        noise = [sp.Matrix(sp.symbols(f"e{i}_1:{d + 1}", real=True)) for i in range(n // 2)]
        found = _variance(HALF * _spread(uniform(n), [x for e in noise for x in (e, -e)], F), noise)
        identity(found, one / n * (F * F).trace(), f"pairs, N = {n}, d = {d}")


def _variance(form: sp.Expr, noise: Sequence[sp.Matrix], law: Law = gaussian) -> sp.Expr:
    components = [x for e in noise for x in e]
    return expectation(polynomial(form**2), components, law) - expectation(form, components, law) ** 2


@step("L1.2", "Relative spread", scope="symbolic N", method="identity")
def relative_spread(two: Constant = 2) -> None:
    """Var[JS]/E[JS]² = 2/((N-1) r_eff) with the effective rank r_eff = (tr F)²/tr F²."""
    trace, trace_square = sp.symbols("trF trF2", positive=True)
    mean = sigma**2 / 2 * (1 - 1 / N) * trace
    spread = sigma**4 * (N - 1) / (2 * N**2) * trace_square
    identity(spread / mean**2, two / ((N - 1) * (trace**2 / trace_square)))


@step("L1.2", "The spread is not distribution-free", scope="symbolic N, d = 1", method="identity")
def spread_depends_on_law(three: Constant = 3, scale: Constant = 4) -> None:
    """With fourth moment κ, Var[JS] = σ⁴F²(N-1)((N-1)κ - (N-3))/(4N³): the stated one at κ = 3 alone.
    Rademacher pairs in one dimension have no spread at all."""
    x, F = sp.Symbol("x", real=True), sp.Symbol("F", positive=True)

    def sums(*summands: sp.Expr) -> sp.Expr:
        return expected_product_of_sums(N, lambda f: expectation(f, [x], symmetric(kappa)), *summands)

    # First and second moment of N times the population variance, Σx² - (Σx)²/N.
    first = sums(x**2) - sums(x, x) / N
    second = sums(x**2, x**2) - 2 * sums(x**2, x, x) / N + sums(x, x, x, x) / N**2
    found = F**2 / 4 * (second - first**2) / N**2
    identity(found, F**2 * (N - 1) * ((N - 1) * kappa - (N - three)) / (scale * N**3))
    identity(found.subs(kappa, 3), F**2 * (N - 1) / (2 * N**2))
    # With N = n + 1 members, n >= 1, the spread grows strictly with the fourth moment.
    positive(sp.diff(found, kappa).subs(N, N + 1))
    e = sp.Matrix([sp.Symbol("e1", real=True)])
    pair = HALF * _spread(uniform(2), [e, -e], sp.Matrix([[F]]))
    identity(_variance(pair, [e], rademacher), 0)


# L1.3: the bracket

psi = (sp.exp(s) * (s - 1) + 1) / s**2


@step("L1.3", "Logarithm under its tangent", scope="all t > 0", method="sign")
def logarithm_under_tangent(slope: Constant = 1) -> None:
    """log t <= t - 1, with equality at t = 1 alone: the difference is 0 there, falls before and rises
    after."""
    x = sp.Symbol("x", positive=True)
    difference = slope * (t - 1) - sp.log(t)
    identity(difference.subs(t, 1), 0)
    positive(sp.diff(difference, t).subs(t, 1 + x))
    positive(-sp.diff(difference, t).subs(t, 1 / (1 + x)))


@step("L1.3", "Divergence along an exponential path", scope="any V", method="identity")
def exponential_path(one: Constant = 1) -> None:
    """q_t ∝ q exp(tu), A(t) = log E_q exp(tu): A'' and A''' are the variance and third cumulant of u under
    q_t, KL(q_t‖q) = tA' - A, and its derivative is tA''; so KL(π‖q) is the integral of t Var_{q_t}(u) over
    [0, 1]."""
    Z = sp.Function("Z")
    u, x = sp.symbols("u x", real=True)
    for k in (1, 2, 3):
        identity(sp.diff(sp.exp(x * u), x, k), u**k * sp.exp(x * u), "Z^(k)/Z is the k-th moment under q_t")
    A = sp.log(Z(x))
    m1, m2, m3 = (sp.diff(Z(x), x, k) / Z(x) for k in (1, 2, 3))
    under = Average(u, known={u: m1, u**2: m2, u**3: m3})
    identity(sp.diff(A, x), m1)
    identity(sp.diff(A, x, 2), one * under((u - m1) ** 2))
    identity(sp.diff(A, x, 3), under((u - m1) ** 3))
    identity(under(x * u - A), x * sp.diff(A, x) - A, "KL: log q_t/q = tu - A")
    identity(sp.diff(x * sp.diff(A, x) - A, x), x * sp.diff(A, x, 2))


@step("L1.3", "Generalized self-concordance", scope="any V", method="sign")
def self_concordance(bound: Constant = 1) -> None:
    """|third cumulant| <= span · variance, and no smaller multiple will do: with u in [0, s] its mean m is
    there too, so (s ∓ (u-m))(u-m)² >= 0 for each category; a rare category attains the bound in the limit."""
    # Every point of (0, s) is s x/(1+x) for one x > 0; the ends are its limits.
    x, y = sp.symbols("x y", positive=True)
    u, m = s * x / (1 + x), s * y / (1 + y)
    for sign in (1, -1):
        nonnegative((bound * s - sign * (u - m)) * (u - m) ** 2, f"sign {sign}")

    def central(k: int) -> sp.Expr:
        return p * (s - p * s) ** k + (1 - p) * (-p * s) ** k

    limit(central(3) / (s * central(2)), p, 0, bound, "a category of probability p -> 0")


@step("L1.3", "Growth of the variance", scope="any V", method="sign")
def variance_growth(speed: Constant = 1) -> None:
    """By Grönwall Var_q(u) exp(-ts) <= Var_{q_t}(u) <= Var_q(u) exp(ts): A'' exp(∓ts) has derivative
    (A''' ∓ sA'') exp(∓ts), of the sign that self-concordance gives it."""
    curvature = sp.Function("v")  # A''
    x = sp.Symbol("x", real=True)
    v, third = curvature(x), sp.diff(curvature(x), x)
    for sign in (1, -1):
        damped = sp.diff(v * sp.exp(-sign * speed * x * s), x)
        identity(damped, (third - sign * speed * s * v) * sp.exp(-sign * speed * x * s))
    # A''' = (1 - 2/(1+y)) sA'' stands for any A''' in [-sA'', sA''].
    y, a = sp.symbols("y a", positive=True)
    within = (y - 1) / (y + 1) * s * a
    nonnegative(speed * s * a - within)
    nonnegative(within + speed * s * a)
    limit(within, y, sp.oo, speed * s * a, "a third cumulant that needs this speed")


@step("L1.3", "The function psi", scope="all s", method="identity")
def psi_integral(half: Constant = HALF) -> None:
    """ψ(s) is the integral of t exp(ts) over [0, 1], on both sides of 0, and ψ(0) = ½. So
    Var_q(u) ψ(-s) <= KL(π‖q) <= Var_q(u) ψ(s)."""
    x, a = sp.symbols("x a", positive=True)
    for sign in (1, -1):
        identity(sp.integrate(a * x * sp.exp(sign * x * s), (x, 0, 1)), a * psi.subs(s, sign * s))
        coefficient(psi.subs(s, sign * s), s, 0, half)


@step("L1.3", "Psi cannot be improved", scope="V = 2", method="limit")
def psi_is_sharp(one: Constant = 1) -> None:
    """For a category of probability p -> 0 whose logit moves by ±s, KL/Var tends to ψ(±s): no other
    function of the span gives a tighter bound."""
    for sign in (1, -1):
        limit(_two_point_kl(sign * s) / (p * (1 - p) * s**2), p, 0, one * psi.subs(s, sign * s))


def _two_point_kl(u: sp.Expr) -> sp.Expr:
    """KL(π‖q) for q = (p, 1-p) and logits moved by (u, 0)."""
    normalizer = 1 - p + p * sp.exp(u)
    return p * sp.exp(u) / normalizer * u - sp.log(normalizer)


@step("L1.3", "Two categories, by intervals", scope="V = 2, rare down to 1/64, |u| in [1/2, 2]", method="Arb boxes")
def two_categories_by_intervals(lower: Constant = 1, upper: Constant = 1) -> None:
    """Var ψ(-s) < KL < Var ψ(s) on the whole box, in ball arithmetic and without the argument above."""
    spread = p * (1 - p) * s**2
    above = upper * spread * psi - _two_point_kl(s)
    below = _two_point_kl(-s) - lower * spread * psi.subs(s, -s)
    for side, rarest in ((above, 128), (below, 64)):
        certified_positive(side, {p: (sp.Rational(1, rarest), sp.Rational(15, 16)), s: (HALF, 2)})


@step("L1.3", "The bound by the span alone", scope="any V", method="sign")
def span_bound(quarter: Constant = QUARTER, eighth: Constant = EIGHTH) -> None:
    """Var_{q_t}(u) <= m(s-m) <= s²/4 (Bhatia-Davis, Popoviciu), hence KL(π‖q) <= s²/8; two equal categories
    attain the first, and the second as s -> 0."""
    u, m = sp.symbols("u m", real=True)
    x = sp.Symbol("x", positive=True)
    under = Average(u, known={u: m})
    identity(m * (s - m) - under((u - m) ** 2), under(u * (s - u)))
    nonnegative((u * (s - u)).subs(u, s * x / (1 + x)))
    nonnegative(quarter * s**2 - m * (s - m), because=(m - s / 2) ** 2)
    identity(variance((HALF, HALF), (s, 0)), quarter * s**2)
    identity(sp.integrate(quarter * s**2 * x, (x, 0, 1)), eighth * s**2)
    coefficient(_two_point_kl(s).subs(p, HALF), s, 2, eighth)


@step("L1.3", "Compensation", scope="symbolic N, any V, any q", method="identity")
def compensation(one: Constant = 1) -> None:
    """Σ w KL(π_i‖q) = JS_w + KL(π̄‖q), category by category; as KL(π̄‖q) >= 0, bounds of the KL(π_i‖q) bound
    JS_w from above, and from below less an upper bound of KL(π̄‖q)."""
    pi, log_pi, mixture, q, ratio = sp.symbols("pi l m q r", positive=True)
    average = Average(pi, log_pi, known={pi: mixture})
    to_q = average(pi * (log_pi - sp.log(q)))
    to_mixture = average(pi * (log_pi - sp.log(mixture)))
    identity(to_q, to_mixture + one * mixture * (sp.log(mixture) - sp.log(q)))
    # With the ratio r = q/π̄: KL = -E log r >= E(1 - r), and E r = Σ q = 1 under π̄.
    under_mixture = Average(ratio, known={ratio: 1})
    identity(under_mixture(1 - ratio), 0, "KL >= 0")


@step("L1.3", "Divergence from the chi-square", scope="any V", method="identity")
def chi_square_bound(one: Constant = 1) -> None:
    """KL(π̄‖q) <= log(1 + χ²(π̄‖q)): log x <= log X + (x/X - 1) for the ratio x = π̄/q and its mean X =
    1 + χ² under π̄. q restricted to a subset attains it, so no smaller factor will do."""
    x, X = sp.symbols("x X", positive=True)
    under_q = Average(x, known={x: 1, x**2: X})
    identity(X, 1 + one * under_q((x - 1) ** 2), "χ² = Σ (π̄-q)²/q; the mean of x under π̄ is that of x² under q")
    identity(Average(x, known={x: X})(x / X - 1), 0)
    # The ratio is 1/p on a set of probability p and 0 off it; there KL = log(1/p).
    restricted = p * (1 / p - 1) ** 2 + (1 - p) * (0 - 1) ** 2
    identity(1 / p, 1 + one * restricted, "equality")


@step(
    "L1.3",
    "The bracket, by intervals",
    scope="N = V = 2, equal w, q in [1/8, 7/8], logits 1 to 3 apart",
    method="Arb boxes",
)
def bracket_by_intervals() -> None:
    """Σ w Var_q(u) ψ(-s) - log(1 + χ²) < JS_w < Σ w Var_q(u) ψ(s) on the whole box, again without the
    argument."""
    w, q = uniform(2), (p, 1 - p)
    members = [(x / (x + 1 - p), (1 - p) / (x + 1 - p)) for x in (p * sp.exp(s), p * sp.exp(-s))]
    mixture = [sum(column) / 2 for column in zip(*members, strict=True)]
    spread = p * (1 - p) * s**2
    chi_square = sum((m - q_y) ** 2 / q_y for m, q_y in zip(mixture, q, strict=True))
    diversity = js(w, members)
    box = {p: (EIGHTH, 1 - EIGHTH), s: (HALF, sp.Rational(3, 2))}
    certified_positive(spread * psi - diversity, box, what="upper side")
    certified_positive(diversity - spread * psi.subs(s, -s) + sp.log(1 + chi_square), box, what="lower side")


@step("L1.3", "Pinsker", scope="symbolic N, any V", method="sign")
def pinsker(half: Constant = HALF) -> None:
    """½ Σ w ‖π_i - π̄‖₁² <= JS_w. On the set where π_i > π̄, of probabilities a and b, ‖π_i - π̄‖₁ = 2(a-b),
    and KL(π_i‖π̄) >= KL(a‖b) (data processing, below); KL(a‖b) - ½ (2(a-b))² is 0 at b = a and has the sign
    of b-a as its slope in b. Near a = b = ½ nothing is lost."""
    a, b = sp.symbols("a b", positive=True)
    x = sp.Symbol("x", real=True)
    divergence = a * sp.log(a / b) + (1 - a) * sp.log((1 - a) / (1 - b))
    difference = divergence - half * (2 * (a - b)) ** 2
    identity(difference.subs(b, a), 0)
    steepness = (1 - 2 * b) ** 2 / (b * (1 - b))
    identity(sp.diff(difference, b), (b - a) * steepness)
    nonnegative(steepness.subs(b, odds / (1 + odds)))
    coefficient(divergence.subs({a: HALF + x, b: HALF}), x, 2, half * 4)


@step("L1.3", "The entropy of the weights", scope="N = 2..5; log N symbolic N", method="sign")
def weight_entropy_bound(share: Constant = 1) -> None:
    """π̄ >= w_i π_i, so KL(π_i‖π̄) <= -log w_i and JS_w <= H(w) <= log N, with equality for members on
    disjoint sets of categories."""
    for n in (2, 3, 4, 5):
        w, pi = sp.symbols(f"w1:{n + 1}", positive=True), sp.symbols(f"pi1:{n + 1}", positive=True)
        mixture = sp.Add(*(x * y for x, y in zip(w, pi, strict=True)))
        for i in range(n):
            positive(mixture - share * w[i] * pi[i], f"N = {n}")
        weights = probabilities("w", n)
        disjoint = js(weights, sp.eye(n).tolist())
        entropy = -sp.Add(*(x * (sp.log(share) + sp.log(x)) for x in weights))
        identity(disjoint, entropy, f"disjoint members, N = {n}")
    # log N - H(w) = -E log r with r = 1/(N w), and under w the mean of r is Σ 1/N = 1.
    r = sp.Symbol("r", positive=True)
    identity(Average(r, known={r: 1})(1 - r), 0)


@step("L1.3", "Data processing", scope="symbolic N, any V, any number of outcomes", method="identity")
def data_processing(one: Constant = 1) -> None:
    """Merging categories lowers every KL(π_i‖π̄), so JSᵛ_w <= JS_w: with A = Σa, B = Σb over an outcome,
    Σ a log(a/b) - A log(A/B) >= Σ a (1 - Ab/(Ba)) = 0 (log-sum inequality)."""
    a, b, A, B = sp.symbols("a b A B", positive=True)
    total = Average(a, b, known={a: A, b: B})  # over the categories of one outcome; no constant terms occur
    tangent = sp.expand(a * (1 - one * (A * b) / (B * a)))
    identity(-sp.log(A * b / (B * a)), sp.log(a / b) - sp.log(A / B), "what the tangent is put to")
    identity(total(tangent), 0)


# L1.4: sequences


def prefixes(length: int) -> list[tuple[int, ...]]:
    """All binary prefixes that a further token follows, shortest first."""
    return [y for n in range(length) for y in product((0, 1), repeat=n)]


class Tree:
    """N autoregressive members over two tokens, with a symbol for each member's probability of token 1 at
    each prefix, and symbolic weights."""

    def __init__(self, n: int, length: int) -> None:
        self.weights, self.length = probabilities("w", n), length
        self.first = [
            {y: sp.Symbol(f"c{i}_{''.join(map(str, y))}", positive=True) for y in prefixes(length)} for i in range(n)
        ]

    def conditional(self, i: int, y: tuple[int, ...], token: int) -> sp.Expr:
        return self.first[i][y] if token else 1 - self.first[i][y]

    def probability(self, i: int, y: tuple[int, ...]) -> sp.Expr:
        """π_i of the prefix y."""
        return sp.Mul(*(self.conditional(i, y[:k], token) for k, token in enumerate(y)))

    def log_probability(self, i: int, y: tuple[int, ...]) -> sp.Expr:
        return sp.Add(*(sp.log(self.conditional(i, y[:k], token)) for k, token in enumerate(y)))

    def mixture(self, y: tuple[int, ...]) -> sp.Expr:
        """π̄ of the prefix y."""
        return sp.expand(sp.Add(*(w * self.probability(i, y) for i, w in enumerate(self.weights))))

    def posterior(self, i: int, y: tuple[int, ...]) -> sp.Expr:
        """The probability that member i speaks, given that it has said y."""
        return self.weights[i] * self.probability(i, y) / self.mixture(y)


@step("L1.4", "Chain rule, one token more", scope="symbolic N, any V, any T by induction", method="identity")
def one_token_more(one: Constant = 1) -> None:
    """With P the probability of a prefix under a member, M its average and c that of the next token, the JS
    of the longer prefixes is that of the shorter ones plus M times the next token's JS under the weights w_i
    P_i/M."""
    P, c, log_P, log_c = sp.symbols("P c lP lc", positive=True)
    M, log_M, log_longer = sp.symbols("M lM lM'", positive=True)  # log_longer: log of the average of P c
    average = Average(P, c, log_P, log_c, known={P: M})
    longer = average(P * c * ((log_P + log_c) - log_longer))
    shorter = average(P * c * (log_P - log_M))
    posterior = average(M * (P / M) * c * (log_c - (log_longer - log_M)))
    identity(longer, shorter + one * posterior)
    identity(average(P / M), 1, "posterior weights sum to 1")
    identity(M * average((P / M) * c), average(P * c), "the posterior mixture is the mixture's conditional")
    over_tokens = Average(c, known={c: 1})  # a sum over the tokens, which has no constant term
    identity(over_tokens(P * c * (log_P - log_M)), P * (log_P - log_M), "the shorter ones' JS")


@step(
    "L1.4",
    "Chain rule, written out",
    scope="binary tokens; N = 2 with T = 2, 3, N = 3 with T = 2, symbolic policies",
    method="identity",
)
def chain_rule(one: Constant = 1) -> None:
    """The JS of sequences is Σ_t E over y<t ~ π̄ of the JS of the next token under the posterior weights
    w(y<t) ∝ w_i π_i(y<t). So brackets of the prefixes' JS average to a bracket of the sequence JS."""
    for n, length in ((2, 2), (3, 2), (2, 3)):
        tree = Tree(n, length)
        whole = sp.S.Zero
        for y in product((0, 1), repeat=length):
            log_mixture = sp.log(tree.mixture(y))
            for i, w in enumerate(tree.weights):
                whole += w * tree.probability(i, y) * (tree.log_probability(i, y) - log_mixture)
        by_prefix = sp.S.Zero
        for y in prefixes(length):
            for token in (0, 1):
                conditional = [tree.conditional(i, y, token) for i in range(n)]
                mixture = sp.Add(*(tree.posterior(i, y) * c for i, c in enumerate(conditional)))
                identity(mixture, tree.mixture((*y, token)) / tree.mixture(y), "posterior mixture")
                log_mixture = sp.log(tree.mixture((*y, token))) - sp.log(tree.mixture(y))
                for i, c in enumerate(conditional):
                    # π̄(y<t) times the posterior weight is w_i π_i(y<t).
                    by_prefix += tree.weights[i] * tree.probability(i, y) * c * (sp.log(c) - log_mixture)
        identity(whole, one * by_prefix, f"N = {n}, T = {length}")


@step("L1.4", "Prior weights are biased", scope="a counterexample, N = 2, T = 2", method="sign")
def prior_weights_are_biased(one: Constant = 1) -> None:
    """With prior in place of posterior weights the sum over prefixes misses the sequence JS: two members that
    give token 1 the probabilities ¼ and ¾ at every step get twice the first token's JS, which is log 2 -
    h(3/8) too much."""
    token = [(sp.Rational(1, 4), sp.Rational(3, 4)), (sp.Rational(3, 4), sp.Rational(1, 4))]
    pairs = [[x * y for x in row for y in row] for row in token]
    excess = 2 * js(uniform(2), token) - js(uniform(2), pairs)
    rare = 3 * EIGHTH  # the mixture's probability of two different tokens
    entropy = -rare * sp.log(rare) - (1 - rare) * sp.log(1 - rare)
    identity(excess, one * (sp.log(2) - entropy))
    positive(excess)


@step("L1.4", "Data processing is not token by token", scope="a counterexample, N = 2, T = 2", method="identity")
def not_token_by_token(bits: Constant = 1) -> None:
    """The first token is a fair coin for both members, the second repeats it or flips it, and the verifier
    asks which: I(I;v) = log 2 while I(I;Y_1) = 0. Against all tokens to come, I(I;Y) = log 2, it holds."""
    w, coin = uniform(2), (HALF, HALF)
    repeats, flips = (HALF, 0, 0, HALF), (0, HALF, HALF, 0)
    identity(js(w, (coin, coin)), 0)
    identity(js(w, ((1, 0), (0, 1))), bits * sp.log(2), "verdicts")
    identity(js(w, (repeats, flips)), bits * sp.log(2), "sequences")


@step("L1.4", "Directional Fisher information", scope="V = 2..4, d = 2", method="identity")
def directional_fisher(one: Constant = 1) -> None:
    """F = Jᵀ(diag q - qqᵀ)J for logits of Jacobian J, and εᵀFε = Var_q(Jε): only forward derivatives are
    needed."""
    for v in (2, 3, 4):
        q = probabilities("q", v)
        J = sp.Matrix(v, 2, lambda i, j: sp.Symbol(f"J{i}{j}", real=True))
        noise = sp.Matrix(sp.symbols("e1:3", real=True))
        mean = sp.Matrix([q]) * J
        scores = [J[y, :] - mean for y in range(v)]  # the gradient of log q_y = z_y - log Σ exp z
        identity(sum((q[y] * scores[y] for y in range(v)), sp.zeros(1, 2)), sp.zeros(1, 2), "mean score")
        fisher = sum((q[y] * scores[y].T * scores[y] for y in range(v)), sp.zeros(2, 2))
        identity(fisher, J.T * (sp.diag(*q) - sp.Matrix(q) * sp.Matrix([q])) * J, f"V = {v}")
        identity((noise.T * fisher * noise)[0], one * variance(q, list(J * noise)), f"V = {v}")


@step(
    "L1.4",
    "Fisher information of a sequence",
    scope="any V, any T by induction; binary tokens written out, T = 1..3",
    method="identity",
)
def sequence_fisher(one: Constant = 1) -> None:
    """E[(Σ_t score)²] = Σ_t E over y<t of Var(J_t ε): scores of different tokens are uncorrelated, as a score
    has mean zero given its prefix."""
    score_so_far, next_score = sp.symbols("S s", real=True)
    given_prefix = Average(next_score, known={next_score: 0})
    longer = given_prefix((score_so_far + next_score) ** 2)
    identity(longer, score_so_far**2 + one * given_prefix(next_score**2), "one token more")

    for length in (1, 2, 3):
        tree = Tree(1, length)
        slope = {y: sp.Symbol(f"u_{''.join(map(str, y))}", real=True) for y in prefixes(length)}

        def score(y: tuple[int, ...], token: int, tree: Tree = tree, slope: dict = slope) -> sp.Expr:
            # d log π(token|y) when the logit of token 1 moves by slope.
            return slope[y] * (token - tree.first[0][y])

        whole = sp.Add(
            *(
                tree.probability(0, y) * sp.Add(*(score(y[:k], token) for k, token in enumerate(y))) ** 2
                for y in product((0, 1), repeat=length)
            )
        )
        by_prefix = sp.Add(
            *(
                tree.probability(0, y) * variance((1 - tree.first[0][y], tree.first[0][y]), (0, slope[y]))
                for y in prefixes(length)
            )
        )
        identity(whole, one * by_prefix, f"T = {length}")
        for y in prefixes(length):
            identity(sum(tree.conditional(0, y, token) * score(y, token) for token in (0, 1)), 0)
