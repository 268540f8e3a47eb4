"""Verifier-projected JS population advantage: statements L2.1 to L2.8 of `docs/theory.md`.

Members with successes p_1 ... p_N; P_pop = 1 - Π(1-p_i) takes one response from each member and
P_mix = 1 - (1-m)^N takes N from their mixture, whose success is the average m. Both are governed by the gap
G = log(1-m) - average log(1-p_i), which is the Jensen gap of -log(1-p) as JSᵛ is that of -h.
"""

from itertools import combinations, product

import sympy as sp

from proofs.averages import Average, expected_sample_variance
from proofs.moments import expectation, symmetric
from proofs.series import taylor
from proofs.step import coefficient, holds, identity, limit, nonnegative, positive, step

HALF, QUARTER = sp.S.Half, sp.Rational(1, 4)
LOG_2 = sp.log(2)

p, m = sp.symbols("p m", positive=True)  # success of a member, average success
q = sp.Symbol("q", positive=True)  # failure, 1 - p
o = sp.Symbol("o", positive=True)  # odds
N = sp.Symbol("N", positive=True, integer=True)
G = sp.Symbol("G", nonnegative=True)


def entropy(success: sp.Expr) -> sp.Expr:
    """Bernoulli entropy h, in nats."""
    return -success * sp.log(success) - (1 - success) * sp.log(1 - success)


def odds(success: sp.Expr) -> sp.Expr:
    return success / (1 - success)


def at_odds(expression: sp.Expr, value: sp.Expr) -> sp.Expr:
    """`expression` in p, at the success with the odds `value`: every p in (0, 1) is value/(1 + value)."""
    return sp.simplify(expression.subs(p, value / (1 + value)))


def elementary(x: list[sp.Expr], k: int) -> sp.Expr:
    """e_k, the sum of the products of k of the entries."""
    return sp.Add(*(sp.Mul(*chosen) for chosen in combinations(x, k)))


# L2.1


@step("L2.1", "Jensen's inequality", scope="all N, all weights", method="identity")
def jensen() -> None:
    """A function f with f'' >= 0 is, on average over members, at least f of the average: its distance from the
    tangent at m is the integral of (x-t) f''(t) from m to x, and the tangent averages to f(m).

    The integrand has the sign of x-m, so the distance is >= 0 on both sides of m; if f'' > 0 it is 0 at x = m
    alone, which gives the case of equality.
    """
    f = sp.Function("f")
    t, x = sp.symbols("t x", real=True)
    primitive = (x - t) * f(t).diff(t) + f(t)
    identity(primitive.diff(t), (x - t) * f(t).diff(t, 2))
    at_x, at_m = primitive.subs(t, x).doit(), primitive.subs(t, m).doit()
    identity(at_x - at_m, f(x) - f(m) - (x - m) * f(m).diff(m))
    identity(Average(x, known={x: m})(f(m) + (x - m) * f(m).diff(m)), f(m))


@step("L2.1", "The failure's logarithm is strictly concave", scope="all N, all weights", method="sign")
def log_failure_is_concave(curvature: sp.Expr = sp.S.One) -> None:
    """The second derivative of -log(1-p) is curvature/(1-p)² > 0, so by Jensen G >= 0, and G = 0 only if all
    p_i are equal: P_pop >= P_mix."""
    second = sp.diff(-sp.log(1 - p), p, 2)
    identity(second, curvature / (1 - p) ** 2)
    positive(at_odds(second, o))


@step("L2.1", "The same by algebra", scope="N = 2..5", method="sign")
def arithmetic_geometric(ratio: sp.Expr = sp.S.One) -> None:
    """Π(1-p_i) <= ratio · (1-m)^N: ordered and written in the gaps between neighbours, the difference has no
    negative coefficient; it is 0 at equal entries, so no smaller ratio will do."""
    for n in range(2, 6):
        _maclaurin(n, n, ratio)


# L2.2


@step("L2.2", "The advantage from the gap, exactly", scope="symbolic N", method="identity")
def exact_advantage(exponent: sp.Expr = sp.S.One) -> None:
    """P_pop - P_mix = (1-m)^N (1 - exp(-exponent N G)); as G grows without bound (a member always succeeds) it
    tends to (1-m)^N."""
    mean_log = sp.Symbol("<log(1-p)>", real=True)
    log_mean = sp.Symbol("log(1-m)", real=True)
    pop, mix = 1 - sp.exp(N * mean_log), 1 - sp.exp(N * log_mean)
    identity(pop - mix, sp.exp(N * log_mean) * (1 - sp.exp(-exponent * N * (log_mean - mean_log))))
    limit(1 - sp.exp(-exponent * N * G), G, sp.oo, 1)
    for n in range(2, 6):
        failures = sp.symbols(f"q1:{n + 1}", positive=True)
        identity(sp.exp(n * sp.Add(*map(sp.log, failures)) / n), sp.Mul(*failures), "Π from the mean logarithm")


# L2.3


@step("L2.3", "The ratio of second derivatives is the odds", scope="0 < p < 1", method="identity")
def odds_ratio(factor: sp.Expr = sp.S.One) -> None:
    """(-log(1-p))'' = factor · odds(p) · (-h(p))'', and the odds increase with p."""
    identity(sp.diff(-sp.log(1 - p), p, 2), factor * odds(p) * sp.diff(-entropy(p), p, 2))
    positive(at_odds(sp.diff(odds(p), p), o))


@step("L2.3", "Two convex functions", scope="all N, all weights", method="sign")
def convex_combinations(lower: sp.Expr = sp.S.One, upper: sp.Expr = sp.S.One) -> None:
    """-log(1-p) + lower·odds(a)·h(p) is convex on p >= a, and -log(1-p) + upper·odds(b)·h(p) concave on p <= b;
    both second derivatives touch 0, at a and at b, so neither constant can be better.

    Jensen for the two, with a = p_min and b = p_max over the support of the weights, is
    lower·odds(p_min)·JSᵛ <= G <= upper·odds(p_max)·JSᵛ. The endpoints p = 0 and p = 1 follow by continuity,
    with 0·∞ = 0.
    """
    t = sp.Symbol("t", nonnegative=True)
    log_failure, neg_entropy = (sp.diff(f, p, 2) for f in (-sp.log(1 - p), -entropy(p)))
    above = at_odds(log_failure, o + t) - lower * o * at_odds(neg_entropy, o + t)
    below = upper * (o + t) * at_odds(neg_entropy, o) - at_odds(log_failure, o)
    for side in (above, below):
        identity(side.subs(t, 0), 0, "contact")
        nonnegative(side)
    log_p, h_p = sp.symbols("ell h", real=True)
    average = Average(log_p, h_p)
    gap_of_combination = average(-log_p + lower * o * h_p) - (-sp.log(1 - m) + lower * o * entropy(m))
    projected_js, gap = entropy(m) - average(h_p), sp.log(1 - m) - average(log_p)
    identity(gap_of_combination, gap - lower * o * projected_js, "the Jensen gap is G - odds·JSᵛ")


@step("L2.3", "From the gap to the advantage", scope="symbolic N", method="sign")
def advantage_bracket(lower: sp.Expr = sp.S.One, upper: sp.Expr = sp.S.One) -> None:
    """lower·N G (1-P_pop) <= P_pop - P_mix <= upper·N G (1-P_mix), because x e^{-x} <= 1 - e^{-x} <= x for
    x >= 0; both become equalities as x -> 0."""
    x = sp.Symbol("x", nonnegative=True)
    gain = 1 - sp.exp(-x)
    identity((upper * x - gain).subs(x, 0), 0)
    nonnegative(sp.diff(upper * x - gain, x).subs(x, sp.log(1 + x)), "x - (1 - e^{-x}) increases")
    identity((gain - lower * x * sp.exp(-x)).subs(x, 0), 0)
    nonnegative(sp.diff(gain - lower * x * sp.exp(-x), x), "1 - e^{-x} - x e^{-x} increases")
    limit(gain / (upper * x), x, 0, 1)
    limit(lower * x * sp.exp(-x) / gain, x, 0, 1)
    fail_mix = sp.Symbol("1-P_mix", positive=True)
    fail_pop = fail_mix * sp.exp(-N * G)
    identity(lower * N * G * fail_pop, fail_mix * (lower * x * sp.exp(-x)).subs(x, N * G))
    identity(fail_mix - fail_pop, fail_mix * gain.subs(x, N * G))


# L2.4


@step("L2.4", "The paper's proportionality", scope="symbolic N", method="series")
def leading_order(factor: sp.Expr = sp.S.One) -> None:
    """With p_i = m + t·δ_i and t -> 0, P_pop - P_mix = factor·N (1-m)^{N-1} m · JSᵛ in the order t²: G is t²
    V/(2(1-m)²), JSᵛ is t² V/(2m(1-m)), V the average of δ²."""
    t, delta, variance = sp.Symbol("t"), sp.Symbol("delta"), sp.Symbol("V", positive=True)
    average = Average(delta, known={delta: 0, delta**2: variance})
    gap = [average(c) for c in taylor(-sp.log(1 - m - t * delta), t, 2)]
    projected_js = [average(c) for c in taylor(-entropy(m + t * delta), t, 2)]
    for first in (gap[1], projected_js[1]):
        identity(first, 0)
    identity(gap[2], variance / (2 * (1 - m) ** 2))
    identity(projected_js[2], variance / (2 * m * (1 - m)))
    coefficient(1 - sp.exp(-N * G), G, 1, N)
    advantage = (1 - m) ** N * N * gap[2]
    claimed = factor * N * (1 - m) ** (N - 1) * m * projected_js[2]
    identity(*(side.subs(m, 1 - q) for side in (advantage, claimed)))


@step("L2.4", "Its expectation over the noise", scope="symbolic N, any noise of covariance I", method="identity")
def expected_leading_order(half: sp.Expr = HALF) -> None:
    """With p_i = p + σ∇p·ε_i the leading order averages to half·σ²(N-1)(1-p)^{N-2}‖∇p‖² for i.i.d. members and
    half·σ² N (1-p)^{N-2}‖∇p‖² for antithetic pairs; it is N(1-p)^{N-1} p times the rate of JSᵛ that L1.1 gives."""
    x = sp.Symbol("x")  # ∇p·ε / ‖∇p‖, of mean 0 and variance 1
    sigma, slope = sp.symbols("sigma g", positive=True)
    spread = expected_sample_variance(N, Average(x, known={x: 0, x**2: 1}), x)
    identity(spread, (N - 1) / N, "i.i.d. spread")
    paired = Average(x, known={x**2: 1})
    antithetic = paired((x**2 + (-x) ** 2) / 2) - paired((x - x) / 2) ** 2
    for variance, members in ((spread, N - 1), (antithetic, N)):
        gap = (sigma * slope) ** 2 * variance / (2 * q**2)
        claimed = half * sigma**2 * members * q ** (N - 2) * slope**2
        identity(q**N * N * gap, claimed)
        fisher = slope**2 / (q * (1 - q))
        identity(N * q ** (N - 1) * (1 - q) * sigma**2 / 2 * variance * fisher, claimed, "through L1.1")


@step("L2.4", "The same from the definitions", scope="N = 2..5, antithetic N = 2, 4", method="series")
def expected_advantage_small(half: sp.Expr = HALF) -> None:
    """E[P_pop - P_mix] has the σ² coefficient half·(N-1)(1-p)^{N-2}‖∇p‖², with N for N-1 in antithetic pairs; the
    curvature of p does not enter it."""
    s, slope, curve, kurtosis = sp.symbols("sigma g c kappa", positive=True)
    for n in range(2, 6):
        noise = list(sp.symbols(f"epsilon1:{n + 1}"))
        _small_population(noise, noise, s, slope, curve, kurtosis, half * (n - 1))
        if n % 2 == 0:
            signed = [sign * e for e in noise[: n // 2] for sign in (1, -1)]
            _small_population(signed, noise[: n // 2], s, slope, curve, kurtosis, half * n)


def _small_population(members: list, noise: list, s: sp.Symbol, slope, curve, kurtosis, claimed) -> None:
    n = len(members)
    success = [p + slope * s * e + curve * (s * e) ** 2 / 2 for e in members]
    advantage = (1 - sp.Add(*success) / n) ** n - sp.Mul(*(1 - p_i for p_i in success))
    zeroth, first, second = taylor(advantage, s, 2)
    identity(zeroth, 0)
    identity(expectation(first, noise, symmetric(kurtosis)), 0)
    claimed_coefficient = claimed * (1 - p) ** (n - 2) * slope**2
    identity(expectation(second, noise, symmetric(kurtosis)), claimed_coefficient, f"N = {n}")


@step("L2.4", "For a subset of the members", scope="symbolic N and K; summed for N = 2..5, all K", method="series")
def subset_leading_order(factor: sp.Expr = sp.S.One) -> None:
    """With p_i = m + t·δ_i a uniform K-subset covers factor·K(K-1)/(N-1) (1-m)^{K-1} m · JSᵛ more than K draws of the
    mixture, in the order t²: each of its K(K-1)/2 pairs of distinct members has Cov(δ_i, δ_j) = -V/(N-1)."""
    variance, k = sp.symbols("V K", positive=True)
    # Σ_{i≠j} δ_i δ_j = (Σδ)² - Σδ² over N(N-1) ordered pairs
    delta = sp.Symbol("delta")
    average = Average(delta, known={delta: 0, delta**2: variance})
    pair = ((N * average(delta)) ** 2 - N * average(delta**2)) / (N * (N - 1))
    projected_js = variance / (2 * (1 - q) * q)
    gain = -(k * (k - 1) / 2) * q ** (k - 2) * pair
    identity(gain, factor * k * (k - 1) / (N - 1) * q ** (k - 1) * (1 - q) * projected_js)
    t = sp.Symbol("t")
    for n in range(2, 6):
        deltas = list(sp.symbols(f"delta1:{n}"))
        deltas.append(-sp.Add(*deltas))
        spread = sp.Add(*(value**2 for value in deltas)) / n
        for tries in range(1, n + 1):
            covered = q**tries - elementary([q - t * value for value in deltas], tries) / sp.binomial(n, tries)
            claimed = factor * sp.Rational(tries * (tries - 1), 2 * (n - 1)) * q ** (tries - 2) * spread
            identity(sp.Poly(sp.expand(covered), t).coeff_monomial(t**2), claimed, f"N = {n}, K = {tries}")


# L2.5


@step("L2.5", "Diversity that does not help", scope="N = 2, V = 3", method="identity")
def unseen_diversity(nats: sp.Expr = LOG_2) -> None:
    """Members (s, r, 0) and (s, 0, r), of which the verifier accepts the first category: JS = r · nats > 0, but
    JSᵛ = 0 and P_pop = P_mix."""
    s = o / (1 + o)
    members = [(s, 1 - s, 0), (s, 0, 1 - s)]
    mixture = [sum(column) / 2 for column in zip(*members, strict=True)]
    js = sum(a * sp.log(a / b) for row in members for a, b in zip(row, mixture, strict=True) if a != 0) / 2
    identity(js, (1 - s) * nats)
    positive(js)
    identity(entropy(mixture[0]) - sum(entropy(row[0]) for row in members) / 2, 0)
    identity((1 - mixture[0]) ** 2 - sp.Mul(*(1 - row[0] for row in members)), 0)


# L2.6


@step("L2.6", "Averaging two entries raises e_K", scope="symbolic N and K", method="identity")
def smoothing(quarter: sp.Expr = QUARTER) -> None:
    """Replacing two entries x, y by their average raises e_K by quarter·(x-y)² e_{K-2}(others) >= 0.

    Maclaurin's e_K <= C(N,K) (average)^K follows for every N and K: among the nonnegative vectors of a given sum
    that maximise e_K (a compact set) the one of least Σx² has equal entries, or averaging two unequal ones
    would lower Σx² and leave e_K maximal.
    """
    t = sp.Symbol("t")
    x, y, two_less, one_less, others = sp.symbols("x y q_0 q_1 q_2", nonnegative=True)
    # The generating function Π(1 + t x_i), whose coefficient of t^K is e_K, from the others' three terms that
    # reach the order K.
    generating = (1 + t * x) * (1 + t * y) * (two_less + one_less * t + others * t**2)
    e_k = sp.Poly(generating, t).coeff_monomial(t**2)
    middle = (x + y) / 2
    raised = e_k.subs({x: middle, y: middle}, simultaneous=True) - e_k
    identity(raised, quarter * (x - y) ** 2 * two_less)
    square_drop = x**2 + y**2 - 2 * middle**2
    identity(square_drop, (x - y) ** 2 / 2, "Σx² falls")
    for n in range(3, 6):
        entries = list(sp.symbols(f"x1:{n + 1}"))
        for k in range(2, n + 1):
            rest = [elementary(entries[2:], j) for j in (k, k - 1, k - 2)]
            known = rest[0] + (entries[0] + entries[1]) * rest[1] + entries[0] * entries[1] * rest[2]
            identity(elementary(entries, k), known, "the generating function")


@step("L2.6", "Maclaurin by algebra", scope="N = 2..5, all K", method="sign")
def maclaurin(ratio: sp.Expr = sp.S.One) -> None:
    """e_K(1-p_1, ...)/C(N,K) <= ratio·(1-m)^K: a uniform subset of K members, one response each, covers at least
    what K draws of the mixture cover."""
    for n in range(2, 6):
        for k in range(1, n + 1):
            _maclaurin(n, k, ratio)


def _maclaurin(n: int, k: int, ratio: sp.Expr) -> None:
    """ratio·(average)^k - e_k/C(n,k) >= 0 for entries 0 <= x_1 <= x_2 ..., which lose no generality."""
    gaps = sp.symbols(f"gap1:{n + 1}", nonnegative=True)
    entries = [sp.Add(*gaps[: i + 1]) for i in range(n)]
    difference = ratio * (sp.Add(*entries) / n) ** k - elementary(entries, k) / sp.binomial(n, k)
    difference = sp.expand(difference)
    nonnegative(difference, f"Maclaurin, N = {n}, K = {k}")
    identity(difference.subs({gap: 0 for gap in gaps[1:]}), 0, "equal entries")


@step("L2.6", "m responses a member", scope="pooled Nm <= 6; K = N for N = 2..5", method="sign")
def several_responses(ratio: sp.Expr = sp.S.One) -> None:
    """With m responses from each member: a uniform K-subset of the pooled Nm responses fails with probability at
    most ratio·(1-m)^K, and all of them (K = N members) with at most ratio·(1-m)^{Nm}.

    Both are Maclaurin for the Nm pooled entries, of which every member holds m equal ones.
    """
    low, gap = sp.symbols("x gap", nonnegative=True)
    for members, responses in ((2, 2), (2, 3), (3, 2)):
        values = [low + gap * k for k in range(members)]
        pooled = [value for value in values for _ in range(responses)]
        average = sp.Add(*pooled) / len(pooled)
        for k in range(1, len(pooled) + 1):
            failing = elementary(pooled, k) / sp.binomial(len(pooled), k)
            nonnegative(sp.expand(ratio * average**k - failing), f"pooled N = {members}, m = {responses}, K = {k}")
    for n in range(2, 6):
        gaps = sp.symbols(f"gap1:{n + 1}", nonnegative=True)
        entries = [sp.Add(*gaps[: i + 1]) for i in range(n)]
        difference = sp.expand(ratio * (sp.Add(*entries) / n) ** n - sp.Mul(*entries))
        nonnegative(difference, "one response")
        identity(difference.subs({g: 0 for g in gaps[1:]}), 0, "equal members")
    # The m-th power keeps the order of nonnegative numbers.
    base, power = sp.symbols("x m", positive=True)
    positive(sp.diff(base**power, base), "x^m increases")


@step("L2.6", "What m responses do not give", scope="N = 2, K = 1, m = 2", method="exact decision")
def several_responses_limits(subset: sp.Expr = HALF, draws: sp.Expr = 3 * QUARTER, variant: sp.Expr = HALF) -> None:
    """p = (0, 1): one member with two responses succeeds with probability subset = 1/2, two mixture draws with
    draws = 3/4. Against K mixture-drawn members with m responses each (variant = 1/2 here) the order is right:
    that is Maclaurin for the entries (1-p_i)^m."""
    successes, responses, k = (0, 1), 2, 1
    failures = [sp.Integer(1 - p_i) ** responses for p_i in successes]
    identity(1 - elementary(failures, k) / sp.binomial(2, k), subset)
    average = sp.Rational(sum(successes), 2)
    identity(1 - (1 - average) ** (responses * k), draws)
    holds(subset < draws, "a subset of members with m responses each can cover less than m·K mixture draws")
    identity(1 - (sp.Add(*failures) / 2) ** k, variant)
    holds(subset >= variant, "the variant that is true")
    gaps = sp.symbols("gap1:4", nonnegative=True)
    entries = [sp.Add(*gaps[: i + 1]) ** 2 for i in range(3)]
    for k in (1, 2, 3):
        difference = (sp.Add(*entries) / 3) ** k - elementary(entries, k) / sp.binomial(3, k)
        nonnegative(sp.expand(difference), f"N = 3, m = 2, K = {k}")


# L2.7


@step("L2.7", "Against the center", scope="symbolic N", method="sign")
def against_center(threshold: sp.Expr = sp.S.One) -> None:
    """P_pop - P_center has the sign of G - threshold·log((1-m)/(1-p)); it is negative for N = 2, p = 1/2 and
    p_1 = p_2 = 1/4, whose G is 0."""
    log_mean, log_center = sp.symbols("log(1-m) log(1-p)", real=True)
    excess = G - threshold * (log_mean - log_center)
    difference = sp.exp(N * log_center) - sp.exp(N * (log_mean - G))
    identity(difference, sp.exp(N * log_center) * (1 - sp.exp(-N * excess)))
    x = sp.Symbol("x", real=True)
    identity((1 - sp.exp(-N * x)).subs(x, 0), 0)
    positive(sp.diff(1 - sp.exp(-N * x), x), "1 - e^{-Nx} increases through 0")
    holds((1 - (1 - QUARTER) ** 2) - (1 - HALF**2) < 0, "P_pop < P_center")


# L2.8


@step("L2.8", "On average a population is N draws of the smoothed policy", scope="symbolic N", method="identity")
def smoothed_draws(exponent: sp.Expr = sp.S.One) -> None:
    """E[P_pop] = 1 - (1-p_σ)^{exponent·N} for i.i.d. members: each further member, independent of the others,
    multiplies the expected failure by 1-p_σ."""
    smoothed, failure_so_far = sp.symbols("p_sigma F", positive=True)
    one_more = Average(p, known={p: smoothed})(failure_so_far * (1 - p))
    identity(one_more, (1 - smoothed) * failure_so_far, "one more member")
    y, n = sp.Function("y"), sp.Symbol("n", integer=True)
    factor = sp.cancel(one_more / failure_so_far)
    expected_failure = sp.rsolve(y(n + 1) - factor * y(n), y(n), {y(0): 1})
    identity(expected_failure.subs(n, N), (1 - smoothed) ** (exponent * N))


@step("L2.8", "The same by enumeration", scope="N = 2..5, three kinds of member", method="identity")
def smoothed_draws_small(exponent: sp.Expr = sp.S.One) -> None:
    """E[P_pop] = 1 - (1-p_σ)^{exponent·N}, summed over every population of N members drawn from three kinds."""
    chance = [*sp.symbols("c_1 c_2", positive=True)]
    chance.append(1 - sp.Add(*chance))
    success = sp.symbols("p1:4", positive=True)
    smoothed = sp.Add(*(c * p_i for c, p_i in zip(chance, success, strict=True)))
    for n in range(2, 6):
        expected_failure = sp.Add(
            *(
                sp.Mul(*(chance[kind] * (1 - success[kind]) for kind in population))
                for population in product(range(3), repeat=n)
            )
        )
        identity(expected_failure, (1 - smoothed) ** (exponent * n), f"N = {n}")


@step("L2.8", "Against the center, on average", scope="symbolic N", method="sign")
def smoothed_against_center() -> None:
    """E[P_pop] > P_center exactly if p_σ > p: 1 - (1-t)^N increases strictly in t on (0, 1)."""
    rate = sp.diff(1 - (1 - p) ** N, p)
    positive(rate.subs(p, o / (1 + o)), because=N * (1 + o) ** (1 - N))


@step("L2.8", "Several responses a member", scope="symbolic m >= 2; equality at m = 1", method="sign")
def smoothed_several_responses(curvature: sp.Expr = sp.S.One) -> None:
    """With m responses a member E[P_pop] <= 1 - (1-p_σ)^{Nm}: x^m has the second derivative curvature·m(m-1)
    x^{m-2} >= 0, so E[(1-p)^m] >= (1-p_σ)^m by Jensen."""
    x = sp.Symbol("x", positive=True)
    extra = sp.Symbol("k", nonnegative=True, integer=True)
    responses = extra + 2
    second = sp.diff(x**responses, x, 2)
    nonnegative(second, because=curvature * responses * (responses - 1) * x ** (responses - 2))


@step("L2.8", "Antithetic pairs", scope="symbolic N (even)", method="identity")
def antithetic_pairs(share: sp.Expr = sp.S.One) -> None:
    """E[P_pop] = 1 - [(1-p_σ)² + share·Cov(p(ε), p(-ε))]^{N/2} for antithetic pairs; with p(±ε) = 1/2 ± x it is 1 -
    (1/4 - E x²)^{N/2}, above 1 - (1/2)^N: a gain over independent members."""
    plus, minus, smoothed = sp.symbols("p_+ p_- p_sigma", positive=True)
    expected = Average(plus, minus, known={plus: smoothed, minus: smoothed})
    covariance = expected(plus * minus) - smoothed**2
    pair = expected((1 - plus) * (1 - minus))
    identity(pair, (1 - smoothed) ** 2 + share * covariance)
    pairs, so_far = sp.Symbol("n", integer=True), sp.Symbol("F", positive=True)
    y, fails = sp.Function("y"), sp.Symbol("pair", positive=True)
    identity(sp.rsolve(y(pairs + 1) - fails * y(pairs), y(pairs), {y(0): 1}).subs(pairs, N / 2), fails ** (N / 2))
    identity(Average(plus, minus, known={plus * minus: 0})(so_far), so_far, "other pairs are independent")
    x, variance = sp.symbols("x v", positive=True)
    odd = Average(x, known={x: 0, x**2: variance})
    identity(odd((HALF + x) * (HALF - x)), QUARTER - variance)
    nonnegative(QUARTER - odd((HALF + x) * (HALF - x)), "the pair fails less often")


@step("L2.8", "The smoothed success", scope="d = 1..3, any symmetric noise of covariance I", method="series")
def smoothed_success(half: sp.Expr = HALF) -> None:
    """p_σ - p = half·σ² tr ∇²p + O(σ⁴): the orders σ and σ³ vanish by symmetry. Either sign: a logistic p has p'' =
    p(1-p)(1-2p)."""
    s, kurtosis = sp.Symbol("sigma"), sp.Symbol("kappa", positive=True)
    for d in range(1, 4):
        noise = sp.symbols(f"epsilon1:{d + 1}")
        jets = [
            _derivative(powers) * sp.Mul(*((s * e) ** k / sp.factorial(k) for e, k in zip(noise, powers, strict=True)))
            for powers in product(range(4), repeat=d)
            if 0 < sum(powers) < 4
        ]
        found = sp.Poly(expectation(sp.Add(*jets), noise, symmetric(kurtosis)), s)
        trace = sp.Add(*(_derivative(tuple(2 * (j == k) for j in range(d))) for k in range(d)))
        for order, claimed in ((1, 0), (2, half * trace), (3, 0)):
            identity(found.coeff_monomial(s**order), claimed, f"d = {d}, order {order}")
    x = sp.Symbol("x", real=True)
    logistic = 1 / (1 + sp.exp(-x))
    curve = sp.diff(logistic, x, 2)
    identity(curve, logistic * (1 - logistic) * (1 - 2 * logistic))
    positive(curve.subs(x, -sp.log(2)), "p = 1/3")
    positive(-curve.subs(x, sp.log(2)), "p = 2/3")


def _derivative(powers: tuple[int, ...]) -> sp.Symbol:
    """The partial derivative of p at the center, of these orders in the coordinates."""
    return sp.Symbol("D" + "".join(f"_{power}" for power in powers))
