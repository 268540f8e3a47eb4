"""T5 on exact policies: variances of one- and two-point gradient estimates, and where one overtakes the other."""

from functools import partial

import numpy as np

from esth.check import Bracket, Check, judge_bracket, judge_identity
from esth.lemmas import two_point as lemma
from esth.noise import draw
from esth.policies import Autoregressive
from toy import families
from toy.study import (
    Data,
    Float,
    Settings,
    columns,
    gauss_hermite,
    mean,
    mean_variance,
    populations,
    zero_crossing,
)

TITLE = "T5 · Two-point estimation"
KINDS = {"one-point": "gaussian", "two-point": "antithetic"}
ESTIMATE = {"one-point": lemma.one_point_estimate, "two-point": lemma.two_point_estimate}

# Allowed relative errors, fixed beforehand.
EXACT_MEAN = 0.05  # an exact mean: what the interval can resolve
EXACT_VARIANCE = 0.03  # an exact variance: the same
CROSSING = 0.1  # the interval; the crossing itself is exact
LEADING = 0.1  # 1/N = 0.016, κ/d = 2/48 at most to leading order, and the interval
LINE = 0.15  # the same for a difference of two variances


def algebra(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """Antithetic ES is the two-point estimate, for any numbers; both estimate the smoothed gradient without bias."""
    n, sigma, checks = 16, 0.5, []
    fitness, epsilon = rng.standard_normal(n), draw("antithetic", rng, n, 3)
    one_sided = (fitness[:, None] * epsilon).sum(axis=0) / (n * sigma)
    two_point = lemma.two_point_estimate(fitness, epsilon, sigma)
    checks.append(judge_identity("T5", "(1/Nσ) Σ f ε over ± pairs, first coordinate", one_sided[0], two_point[0]))
    instance, (node, mass) = families.steep(rng), gauss_hermite(100)
    gradient = mass @ (instance.success(node[..., None], sigma)[:, 0] * node[:, 0]) / sigma
    for kind, noise in KINDS.items():

        def estimate(epsilon: Float, kind: str = kind) -> Float:
            return ESTIMATE[kind](rng.binomial(1, instance.success(epsilon, sigma)), epsilon, sigma)[:, 0]

        value, se = mean(populations(estimate, noise, rng, n, 1, most=16 * s.populations(n), precision=s.precision))
        what = f"gradient of the smoothed success, binary rewards, σ={sigma:g}: {kind}"
        checks.append(lemma.check(value, gradient, what=what, measured_se=se, tolerance=EXACT_MEAN))
    return checks, {}


def linear(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """Linear objective with correlated additive noise: variances over the whole range of σ, and the crossing in c."""
    n, d, tau, across = 32, 8, 0.3, 0.2
    gradient = rng.standard_normal(d) / np.sqrt(d)
    checks, data = [], {}

    def variance(kind: str, sigma: float, correlation: float, most: int) -> tuple[float, float]:
        """Measured variance of a coordinate, averaged over them, with its standard error."""
        measure = partial(noisy_linear, kind, rng, gradient, tau, sigma, correlation, across)
        return mean_variance(populations(measure, KINDS[kind], rng, n, d, most=most))

    def predicted(kind: str, sigma: float, correlation: float) -> float:
        two = kind == "two-point"
        return float(np.mean(lemma.predict_linear(gradient, tau**2, correlation, sigma, n, two_point=two)))

    for kind, correlation in (("one-point", across), ("two-point", 0.6)):
        rows, grid = [], s.sigmas()
        for k, sigma in enumerate(grid):
            judged = k in (0, len(grid) // 2, len(grid) - 1)
            value, se = variance(kind, sigma, correlation, (16 if judged else 1) * s.populations(n))
            expected = predicted(kind, sigma, correlation)
            rows.append((sigma, value, se, expected))
            if judged:
                what = f"variance of a coordinate, linear J, σ={sigma:.2g}: {kind}"
                checks.append(lemma.check(value, expected, what=what, measured_se=se, tolerance=EXACT_VARIANCE))
        data[kind] = columns(("sigma", "mean", "se", "predicted"), *np.transpose(rows))
    # Unpaired members have no c: the one-point variance is one number, the two-point one falls with c.
    sigma, c = 0.15, np.linspace(across, 1.0, 5)
    one, se = variance("one-point", sigma, across, 8 * s.populations(n))
    two = np.array([variance("two-point", sigma, x, 4 * s.populations(n)) for x in c])
    exact = [predicted("one-point", sigma, across) - predicted("two-point", sigma, x) for x in c]
    slope = np.polyfit(c, one - two[:, 0], 1)[0]
    error = np.hypot(se, np.sqrt(np.mean(two[:, 1] ** 2) / len(c))) / slope
    what = f"c at which two-point overtakes, c′={across:g}, σ={sigma:g}, linear J"
    crossing, expected = zero_crossing(c, one - two[:, 0]), zero_crossing(c, np.array(exact))
    checks.append(lemma.check(crossing, expected, what=what, measured_se=error, tolerance=CROSSING))
    return checks, data


def noisy_linear(
    kind: str,
    rng: np.random.Generator,
    gradient: Float,
    tau: float,
    sigma: float,
    within: float,
    across: float,
    epsilon: Float,
) -> Float:
    """Estimates [R, d] from f = J + τ·noise, correlated `within` a pair and `across` all members."""
    r, n, _ = epsilon.shape
    shared, paired, own = (rng.standard_normal((r, k)) for k in (1, n // 2, n))
    within = within if kind == "two-point" else across
    paired = np.repeat(paired, 2, axis=1)
    noise = np.sqrt(across) * shared + np.sqrt(within - across) * paired + np.sqrt(1 - within) * own
    return ESTIMATE[kind](sigma * epsilon @ gradient + tau * noise, epsilon, sigma)


def policy(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """Binary rewards of a batch, pairs sharing a random number with some probability: the crossing in C − C′.

    Variances come from one half of the populations, V, C and C′ from the other.
    """
    instance, n, sigma, rows, checks = families.covered(families.linear(rng, 48), 2), 64, 0.5, [], []

    def outcome(epsilon: Float, share: float, kind: str) -> Float:
        u = rng.random((*epsilon.shape[:1], 4, n))
        reuse = rng.random((*epsilon.shape[:1], 4, n // 2)) < share
        u[..., 1::2] = np.where(reuse, u[..., 0::2], u[..., 1::2])
        fitness = (u < instance.success(epsilon, sigma)).mean(axis=1)
        estimate = ESTIMATE[kind](fitness, epsilon, sigma)
        first, second = fitness[:, 0::2], fitness[:, 1::2]
        unlike = np.mean((first - second) ** 2, axis=1) / 2  # V − C, or V − C′ where no two members are paired
        return np.column_stack([estimate, unlike, fitness.var(axis=1, ddof=1)])

    for kind, share in [("one-point", 0.0), *(("two-point", x) for x in (0.0, 0.25, 0.5, 0.75, 1.0))]:
        statistic = partial(outcome, share=share, kind=kind)
        values = populations(statistic, KINDS[kind], rng, n, instance.dimension, most=2 * s.populations(n))
        here, there = np.array_split(values, 2)
        measured, se = mean_variance(here[:, :-2])
        unlike, unlike_se = mean(there[:, -2])
        rows.append((unlike, unlike_se, measured, se))
        if share in (0.0, 1.0):
            what = f"variance of a coordinate, binary rewards: {kind}, pairs share {share:.0%}"
            predicted, predicted_se = (float(lemma.predict(x, 0.0, sigma, n)) for x in (unlike, unlike_se))
            check = lemma.check(
                measured, predicted, what=what, measured_se=float(np.hypot(se, predicted_se)), tolerance=LEADING
            )
            checks.append(check)
    (one_unlike, _, one, one_se), *pairs = rows
    unlike, _, two, two_se = np.transpose(pairs)
    x, y = lemma.two_point_wins(one_unlike - unlike, 0.0), one - two
    line = np.polyfit(x, y, 1)
    slope_se = np.sqrt(np.mean(two_se**2) / np.sum((x - x.mean()) ** 2))
    what = "d(one-point − two-point variance)/d(C − C′), binary rewards"
    expected = float(lemma.predict(1.0, 0.0, sigma, n))
    checks.append(lemma.check(line[0], expected, what=what, measured_se=slope_se, tolerance=LINE))
    crossing, error = -line[1] / line[0], np.hypot(one_se, np.sqrt(np.mean(two_se**2) / len(x))) / line[0]
    allowed = Bracket(-LEADING * one_unlike, LEADING * one_unlike)
    what = "C − C′ at which two-point overtakes, binary rewards; 0 within 10 % of V − C′"
    checks.append(judge_bracket("T5", what, crossing, allowed, measured_se=error))
    names = ("wins", "difference", "se", "predicted")
    return checks, columns(names, x, y, np.hypot(one_se, two_se), x * expected)


def decoupling(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """Responses regenerated from the same random numbers part at the first differing token: c falls with length."""
    rows, sigma, lengths = [], 0.5, np.arange(1, 9)
    for length in lengths:
        instance = Autoregressive.bigram(3, int(length))
        theta = np.tile([1.0, 1.0, -2.0], 3)  # responses rarely end early
        accepted = rng.random((64, instance.n_outcomes)) < 0.5
        direction, seed = rng.standard_normal((s.members // 8, 9)), int(rng.integers(1 << 62))
        plus, minus = (
            instance.sample(np.random.default_rng(seed), theta + sign * sigma * direction, 1)[:, 0] for sign in (1, -1)
        )
        first, second = accepted[:, plus].astype(float), accepted[:, minus].astype(float)
        product = (first - first.mean(axis=1, keepdims=True)) * (second - second.mean(axis=1, keepdims=True))
        rows.append(mean(product.mean(axis=0) / np.mean(first.var(axis=1))))
    values, se = np.transpose(rows)
    slope = np.polyfit(lengths, values, 1)[0]
    slope_se = np.sqrt(np.sum(((lengths - lengths.mean()) * se) ** 2)) / np.sum((lengths - lengths.mean()) ** 2)
    what = "slope of the pair correlation c in the length of regenerated responses, per token"
    check = judge_bracket("T5", what, slope, Bracket(-1.0, 0.0), measured_se=slope_se, detail="below 0: pairs decouple")
    return [check], columns(("length", "correlation", "se"), lengths, values, se)


PARTS = (algebra, linear, policy, decoupling)
