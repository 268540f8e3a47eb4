"""P4 on exact policies: what of the population's gain the updated center keeps, its books, and drift against signal."""

from functools import partial

import numpy as np

from esth.check import Bracket, Check, Z, as_identity, judge_bracket, judge_equal, judge_identity, number
from esth.coverage import at_least_one
from esth.lemmas import center_update as lemma
from esth.lemmas.reward_weighting import correlation, spread
from esth.noise import draw
from esth.weighting import linear_tilt, price_gain, zscore
from toy import families
from toy.families import Instance
from toy.study import (
    Data,
    Float,
    Settings,
    columns,
    gauss_hermite,
    mean,
    mean_variance,
    over_prompts,
    populations,
    power_law,
    zero_crossing,
)

TITLE = "P4 · Center-update coverage"
BETA = 0.5  # the default of LLM runs, α = σ/2

# Allowed relative errors, fixed beforehand.
LEADING = 0.01  # the smallest σ: a remainder of relative order σ
SPREAD = 0.03  # the same; the interval is about as wide
SLOPE = 0.03  # the same remainders over a decade
EXACT = 1e-4  # quadrature at the smallest σ
EXACT_MEAN = 0.03  # an exact mean: what the interval can resolve
DRIFT = 0.1  # α² tr F/N is about 0.003, and the interval
CROSSING = 0.15  # z-scores shrink the signal by 3/(4N), α² tr F/N is 0.03 at most, and the interval


def step(instance: Instance, epsilon: Float, sigma: float) -> dict[str, Float]:
    """One update of each population [R, N, d], fitness the mean success over the X prompts: arrays [R, X]."""
    r, n, d = epsilon.shape
    center, gradient = np.reshape(instance.p, -1), np.reshape(instance.gradient, (-1, d))
    p = instance.success(epsilon, sigma).reshape(r, -1, n)
    fitness = p.mean(axis=1, keepdims=True)
    delta = lemma.center_step(zscore(fitness[:, 0]), epsilon, BETA * sigma)
    updated = instance.policy.success(instance.theta + delta, instance.accepted).reshape(r, -1)
    remainder = lemma.remainder(p, center[:, None], gradient[:, None], sigma * epsilon[:, None])
    own = lemma.remainder(updated, center, gradient, delta[:, None])
    return {
        "members": p,
        "updated": updated,
        "change": updated - center,
        "gain": price_gain(linear_tilt(fitness, BETA), p),
        "leading": lemma.predict(BETA, correlation(fitness, p), spread(p)),
        "remainder": remainder,
        "bound": lemma.transfer_bound(remainder, own, BETA),
    }


def transfer(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """P4.1 at every σ: the error under its bound (true of any numbers); to leading order the gain transfers whole."""
    n, checks, data = 32, [], {}
    for instance in families.families(rng):
        epsilon = draw("gaussian", rng, 64 * n, instance.dimension).reshape(64, n, -1)
        rows, nearest = [], (-1.0, 0.0, 0.0, 0.0)
        for sigma in s.sigmas():
            out = step(instance, epsilon, sigma)
            error = out["change"] - out["gain"]
            ratio = np.abs(error) / out["bound"]
            k = np.unravel_index(np.argmax(ratio), ratio.shape)
            nearest = max(nearest, (float(ratio[k]), out["change"][k], out["gain"][k], out["bound"][k]))
            rms = [np.sqrt(np.mean(x**2)) for x in (out["gain"], error, out["bound"])]
            rows.append((*rms, BETA * np.mean(lemma.typical_remainder(instance.hessian, sigma))))
        what = f"[p(θ⁺) − p] − [p̄_w − p̄], nearest to its bound of {64 * len(s.sigmas())} updates: {instance.name}"
        checks.append(lemma.check(*nearest[1:], what=what, detail=f"|error| = {nearest[0]:.3g} of the bound"))
        data[instance.name] = columns(("gain", "error", "bound", "typical"), *np.transpose(rows))

        sigmas = s.small_sigmas(instance.rate)
        epsilon = draw("gaussian", rng, 512 * n, instance.dimension).reshape(512, n, -1)
        outs = [step(instance, epsilon, sigma) for sigma in sigmas]
        square_errors = np.stack([over_prompts((out["change"] - out["gain"]) ** 2) for out in outs], axis=1)
        slope, se = power_law(sigmas, square_errors)
        what = f"log-log slope of the rms transfer error in σ: {instance.name}"
        checks.append(judge_equal("P4.1", what, slope / 2, 2.0, measured_se=se / 2, tolerance=SLOPE))
    low = step(instance, draw("gaussian", rng, 256 * n, instance.dimension).reshape(256, n, -1), s.sigma[0])
    change, leading = over_prompts(low["change"]), over_prompts(low["leading"])
    what, se = f"E[p(θ⁺) − p], σ={s.sigma[0]:g}: {instance.name}", mean(change - leading)[1]
    check = lemma.check_prediction(
        change.mean(), leading.mean(), statement="P4.1", what=what, measured_se=se, tolerance=LEADING
    )
    return [*checks, check], {"sigma": s.sigmas().tolist(), **data}


def remainders(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """P4.1: |R| under its two bounds where the logits are affine in θ; its typical size, far below σ²dL/2."""
    bounds, sizes, few = [], [], s.members // 16
    for instance in families.families(rng):
        d, hessian, affine = instance.dimension, instance.hessian, instance.name != "autoregressive"
        if affine:
            ratios = partial(_largest_ratios, instance=instance, sigmas=s.sigmas())
            largest = populations(ratios, "gaussian", rng, 1, d, most=few).max(axis=0)
            for name, value in zip(("span²/(12√3)", "‖logit change‖²/(6√3)"), largest, strict=True):
                what = f"largest |R| / ({name}): {instance.name}, {few} members at every σ"
                bounds.append(judge_bracket("P4.1", what, value, Bracket(0.0, 1.0)))
        sigma = s.sigma[0]
        scaled = partial(_remainders, instance=instance, sigma=sigma)
        values = populations(scaled, "gaussian", rng, 1, d, most=4 * s.members) / sigma**2
        variance, se = mean_variance(values)
        predicted = np.sqrt(np.mean(lemma.typical_remainder(hessian, 1.0) ** 2))
        crude = lemma.lipschitz_remainder(lemma.LOGIT_LIPSCHITZ, np.ones(d))
        detail = f"σ²dL/2 would be {crude / predicted:.2g} times as much" if affine else ""
        check = lemma.check_prediction(
            np.sqrt(variance), predicted, statement="P4.1", what=f"sd(R)/σ²: {instance.name}, d={d}",
            measured_se=se / (2 * np.sqrt(variance)), tolerance=SPREAD, detail=detail,
        )  # fmt: skip
        sizes.append(check)
    return [*bounds, *sizes], {}


def _remainders(epsilon: Float, instance: Instance, sigma: float) -> Float:
    """R of single members: noise [R, 1, d] -> [R, X]."""
    center, gradient = np.reshape(instance.p, -1), np.reshape(instance.gradient, (-1, instance.dimension))
    p = instance.success(epsilon, sigma).reshape(len(epsilon), -1)
    return lemma.remainder(p, center, gradient, sigma * epsilon)


def _largest_ratios(epsilon: Float, instance: Instance, sigmas: Float) -> Float:
    """Largest |R|/bound over σ and prompts, by the span of the logit change and by its length: [R, 1, d] -> [R, 2]."""
    out = []
    for sigma in sigmas:
        r = np.abs(_remainders(epsilon, instance, sigma))
        move = instance.policy.logits(instance.theta + sigma * epsilon[:, 0]) - instance.policy.logits(instance.theta)
        move = move.reshape(*r.shape, -1)
        out.append([r / lemma.softmax_remainder(move), r / lemma.lipschitz_remainder(lemma.LOGIT_LIPSCHITZ, move)])
    return np.max(out, axis=(0, 3)).T


def books(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """P4.2 and P4.3: what the center keeps of the population's coverage at K = N, and where that came from."""
    instance, n, rows, checks = families.linear(rng), 16, [], []
    least, share = np.inf, []
    for sigma in s.sigmas()[s.sigmas() > 0.01]:
        epsilon = draw("gaussian", rng, n * s.populations(n, 1024), instance.dimension).reshape(-1, n, 12)
        out = step(instance, epsilon, sigma)
        book = lemma.bookkeeping(instance.p, out["updated"], out["members"])
        parts = (book.updated, book.population, book.mixture, book.stratification)
        rows.append((sigma, *(x for part in parts for x in mean(over_prompts(part)))))
        share.append(float(np.mean(out["gain"] > out["bound"])))
        for k in (1, 4, n, 256):
            promised = lemma.survival_gain(instance.p, out["gain"], out["bound"], k)
            risen = at_least_one(out["updated"], k) - at_least_one(instance.p, k)
            least = min(least, float(np.min((risen - promised)[out["gain"] > out["bound"]], initial=np.inf)))
    sigma, *values = max(rows, key=lambda row: row[1])
    kept, whole, *split = (number(*pair) for pair in np.reshape(values, (4, 2)))
    # A ratio only where its denominator is clearly positive.
    ratio = f", {values[0] / values[2]:.2g} of it" if values[2] > Z * values[3] else ""
    difference = float(np.max(np.abs(book.population - book.mixture - book.stratification)))
    names = ("updated", "population", "mixture", "stratification")
    data = columns(("sigma", *(x for name in names for x in (name, f"{name}_se"))), *np.transpose(rows))
    what = "rise of pass@K − the promised one, least over K, σ, prompts with signal > R"
    detail = f"signal > R on {min(share):.0%} to {max(share):.0%} of prompts and populations, by σ"
    checks.append(as_identity(judge_bracket("P4.2", what, least, Bracket(0.0, 1.0), detail=detail)))
    detail = f"σ={sigma:.2g}: center {kept}{ratio}; population {whole} = mixture {split[0]} + stratification {split[1]}"
    checks.append(judge_identity("P4.3", "gain of C_N: population − its two parts", difference, 0.0, detail=detail))
    return checks, data


def step_length(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """P4.4: E‖Δ‖² under fitness that does not depend on the noise, and under linear fitness."""
    alpha, n, d, checks = 0.1, 16, 12, []
    unit = np.eye(d)[0]
    for noise, linear in (("gaussian", False), ("rademacher", False), ("gaussian", True)):

        def square(epsilon: Float, linear: bool = linear) -> Float:
            fitness = epsilon @ unit if linear else rng.standard_normal(epsilon.shape[:2])
            return np.sum(lemma.center_step(zscore(fitness), epsilon, alpha) ** 2, axis=-1)

        length, se = mean(populations(square, noise, rng, n, d, most=8 * s.populations(n), precision=s.precision))
        predicted = lemma.step_square(alpha, d, n, linear=linear)
        what = f"E‖Δ‖², {'linear' if linear else 'random'} fitness: {noise}, N={n}, d={d}"
        check = lemma.check_prediction(
            length, predicted, statement="P4.4", what=what, measured_se=se, tolerance=EXACT_MEAN
        )
        checks.append(check)
    return checks, {}


def drift(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """P4.4: change of C_K by the random part of the step, of either sign."""
    checks, n, data = [], 16, {}
    node, mass = gauss_hermite(40)
    for shape, sign, k in (("convex", 1, 1), ("concave", -1, 1), ("concave", -1, 8)):
        instance, alpha = families.curved(rng, sign), s.sigma[0]
        # Given z with Σz² = N, Δ is exactly normal of variance α²/N: one integral.
        moved = instance.success(alpha / np.sqrt(n) * node[..., None], 1.0)[:, 0]
        change = mass @ (at_least_one(moved, k) - at_least_one(instance.p, k))
        predicted = lemma.drift(alpha, np.trace(_coverage(instance, k)[1]), n)
        what = f"E[C_{k}(θ⁺)] − C_{k}(θ), random fitness: {shape} success, N={n}, quadrature"
        checks.append(lemma.check_prediction(change, predicted, statement="P4.4", what=what, tolerance=EXACT))
    instance = _two_signed(rng)
    for k in (1, 8):
        trace, rows = np.trace(_coverage(instance, k)[1]), []
        for alpha in (0.2, 0.05, 0.5, 2.0) if s.quick else (0.2, 0.05, 0.1, 0.5, 1.0, 2.0):

            def change(epsilon: Float, alpha: float = alpha, k: int = k) -> Float:
                return _symmetrised_change(instance, epsilon, rng.standard_normal(epsilon.shape[:2]), 0.0, alpha, k)

            most = (1 if rows else 4) * s.populations(n)
            values = populations(change, "gaussian", rng, n, instance.dimension, most=most)
            rows.append((alpha, *mean(values), lemma.drift(alpha, trace, n)))
        data[f"K = {k}"] = columns(("alpha", "mean", "se", "predicted"), *np.transpose(sorted(rows)))
        alpha, value, se, predicted = rows[0]
        what = f"E[C_{k}(θ⁺)] − C_{k}(θ), random fitness: linear, N={n}, α={alpha:g}"
        check = lemma.check_prediction(value, predicted, statement="P4.4", what=what, measured_se=se, tolerance=DRIFT)
        checks.append(check)
    return checks, data


def _two_signed(rng: np.random.Generator) -> Instance:
    """Prompts on which drift clearly raises C_1 and clearly lowers C_8."""
    while True:
        instance = families.linear(rng)
        first, eighth = (np.trace(h) / np.linalg.norm(h) for h in (_coverage(instance, k)[1] for k in (1, 8)))
        if first > 0.7 and eighth < -0.7:
            return instance


def needed(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """P4.4: fitness of correlation ρ to the gradient; coverage falls below N = α|tr H|/(2ρ‖∇C_K‖), rises above."""
    alpha, k, sizes = 0.5, 8, np.array([8, 16, 32, 64, 128])
    instance = _two_signed(rng)
    gradient, hessian = _coverage(instance, k)
    trace, norm = np.trace(hessian), np.linalg.norm(gradient)
    rho = float(alpha * -trace / (2 * norm * 24))  # the crossing is put at N = 24
    batches = []
    for n in sizes:

        def change(epsilon: Float) -> Float:
            noise = rng.standard_normal(epsilon.shape[:2])
            along = epsilon @ (gradient / norm)
            return _symmetrised_change(instance, epsilon, np.sqrt(1 - rho**2) * noise, rho * along, alpha, k)

        values = populations(change, "gaussian", rng, n, instance.dimension, most=4 * s.populations(n))
        batches.append([part.mean() for part in np.array_split(values, 16)])
    crossing, se = mean(np.array([1 / zero_crossing(1 / sizes, y) for y in np.transpose(batches)]))
    predicted = lemma.members_needed(alpha, trace, rho, norm)
    what = f"members N at which C_{k} stops falling: linear, ρ={rho:.2g}, α={alpha:g}"
    check = lemma.check_prediction(crossing, predicted, statement="P4.4", what=what, measured_se=se, tolerance=CROSSING)
    points = np.transpose([mean(np.array(row)) for row in batches])
    grid = np.geomspace(sizes[0], sizes[-1], 41)
    line = alpha * rho * norm + lemma.drift(alpha, trace, grid)
    data = columns(("n", "mean", "se", "line_n", "line"), sizes, *points, grid, line)
    return [check], {**data, "crossing": float(predicted)}


def _coverage(instance: Instance, k: int) -> tuple[Float, Float]:
    """∇C_K [d] and ∇²C_K [d, d]: φ′(p)∇p and φ′(p)∇²p + φ″(p)∇p∇pᵀ, averaged over the prompts."""
    p, d = np.reshape(instance.p, -1), instance.dimension
    gradient, hessian = instance.gradient.reshape(-1, d), instance.hessian.reshape(-1, d, d)
    first = k * (1 - p) ** (k - 1)
    second = -k * (k - 1) * (1 - p) ** max(k - 2, 0)
    outer = gradient[:, :, None] * gradient[:, None, :]
    whole = first[:, None, None] * hessian + second[:, None, None] * outer
    return (first[:, None] * gradient).mean(axis=0), whole.mean(axis=0)


def _symmetrised_change(
    instance: Instance, epsilon: Float, free: Float, tied: Float | float, alpha: float, k: int
) -> Float:
    """C_K(θ⁺) − C_K(θ) under the fitness free + tied, averaged over ε and −ε: the same law, and ∇C·Δ cancels.

    `free` does not depend on ε, `tied` changes sign with it: [R, N] each.
    """
    changes = []
    for sign in (1, -1):
        delta = lemma.center_step(zscore(free + sign * tied), sign * epsilon, alpha)
        moved = instance.policy.success(instance.theta + delta, instance.accepted)
        changes.append(over_prompts(at_least_one(moved, k) - at_least_one(instance.p, k)))
    return np.mean(changes, axis=0)


PARTS = (transfer, remainders, books, step_length, drift, needed)
