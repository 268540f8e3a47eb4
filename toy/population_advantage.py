"""L2 on exact policies: the odds bracket, the rate of P_pop − P_mix, and which policy a population beats."""

from functools import partial

import numpy as np

from esth.check import Bracket, Check, as_identity, judge_bracket, judge_equal
from esth.coverage import (
    at_least_one,
    log_failure_gap,
    mean_success,
    mixture_success,
    odds,
    subset_success,
)  # fmt: skip
from esth.coverage import population_success as pop
from esth.divergence import js, projected_js
from esth.lemmas import population_advantage as lemma
from esth.noise import draw
from esth.policies import Categorical
from toy import families
from toy.families import Instance
from toy.study import (
    Data,
    Float,
    Settings,
    columns,
    gauss_hermite,
    mean,
    over_prompts,
    populations,
    power_law,
)  # fmt: skip

TITLE = "L2 · Population advantage"

# Allowed relative errors, fixed beforehand.
RATE = 0.05  # N σ²‖∇p‖²/(1−p)² <= 0.001: the remainder is some 0.1 %, the 99 % intervals half as wide
SLOPE = 0.01  # the same remainder over a decade
EXACT = 1e-4  # quadrature at the smallest σ
ANY_SIGMA = 0.02  # an exact statement: what the intervals can resolve


def odds_bracket(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L2.3 at every σ: the population nearest to a bound; G/JSᵛ between the odds, and its limit."""
    checks, data = [], {}
    for n, instance in zip((16, 2, 256), families.families(rng), strict=True):
        instance, found = families.covered(instance, n), []
        epsilon = draw("gaussian", rng, 128 * n, instance.dimension).reshape(-1, n, instance.dimension)
        for sigma in s.sigmas():
            p = instance.success(epsilon, sigma).reshape(-1, n)
            gap = log_failure_gap(p) / projected_js(p)
            found.append(p)
            if instance.name == "categorical":
                ratios = np.stack([gap, odds(p.min(axis=1)), odds(p.max(axis=1))]) / odds(mean_success(p))
                for name, value in zip(("gap", "lower", "upper"), np.median(ratios, axis=1), strict=True):
                    data.setdefault(name, []).append(float(value))
        p = np.concatenate(found)
        value = lemma.advantage(p)
        nearest = np.argmin(lemma.bracket(p).margin(value) / np.where(value > 0, value, 1.0))
        what = f"P_pop − P_mix between its odds bounds: {instance.name}, N={n}, nearest to a bound of {len(p)}"
        checks.append(lemma.check(p[nearest], what=what))
    return checks, {"sigma": s.sigmas().tolist(), **data}


def exact(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """The limit of G/JSᵛ (L2.3) and the rate of the advantage (L2.4) without sampling: one direction, N = 3."""
    line, (node, mass) = families.one_direction(rng), gauss_hermite(16, 3)
    p = line.success(node[..., None], s.sigma[0])
    limit = mass @ log_failure_gap(p) / (mass @ projected_js(p))
    constant = mass @ lemma.advantage(p) / s.sigma[0] ** 2
    predicted = lemma.predict_rate(line.p, np.sum(line.gradient**2), 1.0, 3)
    what = "E[P_pop − P_mix]/σ²: gaussian, N=3, quadrature"
    return [
        judge_equal("L2.3", "E[G]/E[JSᵛ] for σ → 0: gaussian, N=3, quadrature", limit, odds(line.p), tolerance=EXACT),
        lemma.check_prediction(constant, predicted, tolerance=EXACT, what=what),
    ], {}


def rate(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L2.4 from the center, and population by population from p̄ and JSᵛ; i.i.d. and antithetic, N from 2 to 256."""
    from_center, from_diversity, slopes, data = [], [], [], {}
    for i, noise in enumerate(("gaussian", "antithetic")):
        fits = []
        for j, instance in enumerate(families.families(rng)):
            n = (2, 16, 256)[(i + j) % 3]
            instance = families.covered(instance, n)
            p, square = instance.p, np.sum(instance.gradient**2, axis=-1)
            sigmas = s.small_sigmas(max(instance.rate, float(np.max(n * square / (1 - p) ** 2))))
            values = populations(
                partial(_advantages, instance=instance, sigmas=sigmas), noise, rng, n, instance.dimension,
                most=8 * s.populations(n), precision=2 * s.precision,
            )  # fmt: skip
            constant, se = mean((values[..., 0] / sigmas**2).mean(axis=1))
            predicted = float(np.mean(lemma.predict_rate(p, square, 1.0, n, antithetic=noise == "antithetic")))
            name = f"{noise}, {instance.name}, N={n}"
            what = f"E[P_pop − P_mix]/σ²: {name}"
            check = lemma.check_prediction(constant, predicted, measured_se=se, tolerance=RATE, what=what)
            from_center.append(check)
            advantage, by_diversity = values[:, -1].mean(axis=0)
            what = f"mean P_pop − P_mix, from p̄ and JSᵛ of the same populations: {name}"
            from_diversity.append(lemma.check_prediction(advantage, by_diversity, tolerance=RATE, what=what))
            fits.append(power_law(sigmas, values[..., 0]))
            points = np.transpose([mean(column) for column in values[..., 0].T])
            data[name] = columns(("sigma", "mean", "se", "predicted"), sigmas, *points, predicted * sigmas**2)
        slope, error = np.mean([f[0] for f in fits]), np.linalg.norm([f[1] for f in fits]) / len(fits)
        what = f"log-log slope of E[P_pop − P_mix] in σ: {noise}"
        slopes.append(judge_equal("L2.4", what, slope, 2.0, measured_se=error, tolerance=SLOPE))
    return [*from_center, *slopes, *from_diversity], data


def _advantages(epsilon: Float, instance: Instance, sigmas: Float) -> Float:
    """P_pop − P_mix, and the same from p̄ and JSᵛ, at each σ under one noise: [R, N, d] -> [R, S, 2]."""
    out = np.empty((len(epsilon), len(sigmas), 2))
    for k, sigma in enumerate(sigmas):
        p = instance.success(epsilon, sigma)
        out[:, k, 0] = over_prompts(lemma.advantage(p))
        out[:, k, 1] = over_prompts(lemma.predict(mean_success(p), projected_js(p), p.shape[-1]))
    return out


def no_help(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L2.5: signs swap the mass of two rejected categories, so members differ and their successes do not. L2.6."""
    policy = Categorical(4, np.array([[0.0], [1.0], [-1.0], [0.0]]), [0.3, 0.0, 0.0, -0.5])
    instance = Instance("swap", policy, np.zeros(1), np.array([1, 0, 0, 0]))
    epsilon = np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    p, diversity = instance.success(epsilon, 2.0), float(js(instance.log_p(epsilon, 2.0)))
    checks = [
        judge_bracket("L2.5", "JS, nats, of members with equal successes", diversity, Bracket(0.1, np.log(4))),
        judge_equal("L2.5", "P_pop with JSᵛ = 0, against P_mix", pop(p), mixture_success(p)),
    ]
    subsets = families.categorical(rng).success(draw("gaussian", rng, 12, 8), 1.0)
    excess = [float(subset_success(subsets, k) - at_least_one(mean_success(subsets), k)) for k in range(1, 13)]
    what = "success of K of 12 members − that of K mixture draws, least over K"
    checks.append(as_identity(judge_bracket("L2.6", what, min(excess), Bracket(0.0, 1.0))))
    pair, draws = lemma.member_subset_success([0.0, 1.0], 2, 1), mixture_success([0.0, 1.0], 2)
    what = "1 member of p = (0, 1) with 2 responses − 2 mixture draws"
    below = judge_bracket("L2.6", what, pair - draws, Bracket(-1.0, -1e-9), detail="K < N members can lose")
    return [*checks, as_identity(below)], {}


def smoothed(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L2.8: the population against N draws of the smoothed policy, of its mixture and of its center, at any σ."""
    checks, data, n = [], {}, 4
    node, mass = gauss_hermite(400)
    for shape, sign in (("convex", 1), ("concave", -1)):
        instance = families.curved(rng, sign)
        center, rows = float(at_least_one(instance.p, n)), []
        for sigma in [*s.sigmas()[s.sigmas() > 0.05], 1.0]:
            p, mirror = (instance.success(x[..., None], sigma)[:, 0] for x in (node, -node))
            p_smoothed = mass @ p
            covariance = mass @ ((p - p_smoothed) * (mirror - p_smoothed))
            iid, pairs = (
                populations(lambda e: instance.success(e, sigma), noise, rng, n, 1, most=s.populations(n))  # noqa: B023
                for noise in ("gaussian", "antithetic")
            )
            value, paired, mixed = (mean(f(x)) for f, x in [(pop, iid), (pop, pairs), (mixture_success, iid)])
            by_smoothed = float(lemma.smoothed_population_success(p_smoothed, n))
            by_pairs = float(lemma.smoothed_pair_success(p_smoothed, covariance, n))
            rows.append((sigma, *value, *paired, *mixed, by_smoothed, by_pairs, center))
        names = ("sigma", "iid", "iid_se", "pairs", "pairs_se", "mixture", "mixture_se", "smoothed", "paired", "center")
        data[shape] = columns(names, *np.transpose(rows[:-1]))

        name = f"σ=1, N={n}, {shape} success"
        for kind, (measured, se), predicted in [("i.i.d.", value, by_smoothed), ("antithetic", paired, by_pairs)]:
            what = f"E[P_pop]: {kind}, {name}"
            check = lemma.check_prediction(
                measured, predicted, measured_se=se, tolerance=ANY_SIGMA, statement="L2.8", what=what
            )
            checks.append(check)
        side = Bracket(0.0, 1.0) if sign > 0 else Bracket(-1.0, 0.0)
        what, detail = f"E[P_pop] − P_center: i.i.d., {name}", f"p={float(instance.p):.3g}, p_σ={p_smoothed:.3g}"
        checks.append(judge_bracket("L2.8", what, value[0] - center, side, measured_se=value[1], detail=detail))
        several, se = mean(pop(at_least_one(iid, 4)))
        above = Bracket(0.0, float(lemma.smoothed_population_success(p_smoothed, 4 * n)))
        what = f"E[P_pop], 4 responses a member, below 4N smoothed draws: {name}"
        checks.append(judge_bracket("L2.8", what, several, above, measured_se=se))
        low = s.sigma[0]
        shift = mass @ (instance.success(node[..., None], low)[:, 0] - instance.p)
        predicted = lemma.smoothed_shift(instance.hessian[0, 0], low)
        what = f"p_σ − p: {shape} success, σ={low:g}, quadrature"
        checks.append(judge_equal("L2.8", what, shift, predicted, tolerance=EXACT))
    return checks, data


PARTS = (odds_bracket, exact, rate, no_help, smoothed)
