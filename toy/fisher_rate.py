"""L1 on exact policies: the rate of E[JS] in σ, its spread, the bracket, and where JS saturates."""

from dataclasses import replace
from functools import partial

import numpy as np

from esth.check import Bracket, Check, Verdict, judge_bracket, judge_equal
from esth.divergence import js, projected_js, weight_entropy
from esth.fisher import categorical_variance, trace
from esth.lemmas import fisher_rate as lemma
from esth.noise import FAMILIES, draw
from esth.policies import Autoregressive
from esth.weighting import softmax_tilt, uniform, zscore
from toy import families
from toy.study import (
    SMALL,
    Data,
    Float,
    Settings,
    all_signs,
    columns,
    gauss_hermite,
    mean,
    mean_variance,
    over_prompts,
    populations,
    power_law,
)  # fmt: skip

TITLE = "L1 · Fisher-rate diversity"

# Allowed relative errors, fixed beforehand.
RATES = {"JS": 0.03, "JSᵛ": 0.05}  # σ² tr F <= 0.001, so a remainder of some 0.1 %; 99 % intervals of half this size
SLOPE = 0.01  # a remainder of 1 % at the upper end alone tilts a decade by 0.004
POWER = 0.03  # slopes of remainders, which have remainders of their own up to σ² tr F = 0.01
EXACT = 1e-4  # quadrature or enumeration where σ² tr F is about 1e-6: the remainder alone
VARIANCE = 0.1  # σ² tr F = 0.001, so it is the error of a variance from 10⁴ populations or more
SATURATED = 0.02  # logits of standard deviation 100: the two top ones lie within 1 in a few of 100 members


def rate(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L1.1: every noise and policy family, N from 2 to 256, random weights; JSᵛ on the same populations."""
    constants: dict[str, list[Check]] = {"JS": [], "JSᵛ": []}
    slopes = []
    for i, noise in enumerate(FAMILIES):
        fits = []
        for j, instance in enumerate(families.families(rng)):
            n = (2, 16, 256)[(i + j) % 3]
            weights, sigmas = rng.dirichlet(np.ones(n)), s.small_sigmas(instance.rate)
            measure = partial(_diversities, instance=instance, sigmas=sigmas, weights=weights)
            most = 8 * s.populations(n)
            precision = np.array([s.precision, 2 * s.precision])
            values = populations(measure, noise, rng, n, instance.dimension, most=most, precision=precision)
            for k, (name, fisher) in enumerate([("JS", instance.fisher), ("JSᵛ", instance.projected_fisher)]):
                predicted = lemma.predict(trace(fisher), 1.0, weights, antithetic=noise == "antithetic")
                constant, se = mean((values[..., k] / sigmas**2).mean(axis=1))
                what = f"E[{name}]/σ², nats: {noise}, {instance.name}, N={n}"
                constants[name].append(lemma.check(constant, predicted, js_se=se, tolerance=RATES[name], what=what))
            fits.append(power_law(sigmas, values[..., 0]))
        slope, error = np.mean([f[0] for f in fits]), np.linalg.norm([f[1] for f in fits]) / len(fits)
        what = f"log-log slope of E[JS] in σ: {noise}"
        slopes.append(judge_equal("L1.1", what, slope, 2.0, measured_se=error, tolerance=SLOPE))
    return [*constants["JS"], *slopes, *constants["JSᵛ"]], {}


def _diversities(epsilon: Float, instance: families.Instance, sigmas: Float, weights: Float) -> Float:
    """JS and JSᵛ at each σ under one noise: [R, N, d] -> [R, S, 2]."""
    out = np.empty((len(epsilon), len(sigmas), 2))
    for k, sigma in enumerate(sigmas):
        log_p = instance.log_p(epsilon, sigma)
        out[:, k, 0] = over_prompts(js(log_p, weights))
        out[:, k, 1] = over_prompts(projected_js(instance.accept(log_p), weights))
    return out


def exact(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L1.1 without sampling: one direction by Gauss–Hermite quadrature, Rademacher noise by enumeration."""
    line, wide = families.one_direction(rng), families.categorical(rng, 4)
    three, mass = gauss_hermite(16, 3)
    two, pair_mass = gauss_hermite(40, 2)
    pairs = np.stack([two[:, 0], -two[:, 0], two[:, 1], -two[:, 1]], axis=1)
    signs = all_signs(8).reshape(-1, 2, 4)
    cases = [
        ("gaussian, N=3, quadrature", line, three[..., None], mass),
        ("antithetic, N=4, quadrature", line, pairs[..., None], pair_mass),
        ("rademacher, N=2, enumerated", wide, signs, np.full(len(signs), 1 / len(signs))),
    ]
    checks, low = [], s.sigma[0]
    for name, instance, epsilon, probability in cases:
        weights = rng.dirichlet(np.ones(epsilon.shape[1]))
        constant = probability @ instance.js(epsilon, low, weights) / low**2
        predicted = lemma.predict(instance.rate, 1.0, weights, antithetic=name.startswith("antithetic"))
        checks.append(lemma.check(constant, predicted, tolerance=EXACT, what=f"E[JS]/σ², nats: {name}"))
    sigmas = np.geomspace(0.02, 0.1, 5) / np.sqrt(line.rate)
    value = np.array([mass @ line.js(three[..., None], sigma) for sigma in sigmas])
    slope, _ = power_law(sigmas, (value - lemma.predict(line.rate, sigmas, uniform(3)))[None])
    what = "log-log slope of E[JS] − rate in σ: gaussian, N=3, quadrature"
    return [*checks, judge_equal("L1.1", what, slope, 4.0, tolerance=POWER)], {}


def one_population(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L1.1, last form: weights that depend on the fitness, population by population, error O(σ³)."""
    instance, n = families.categorical(rng), 8
    sigmas = s.small_sigmas(instance.rate)

    def square_error(epsilon: Float) -> Float:
        out = []
        for sigma in sigmas:
            weights = softmax_tilt(zscore(instance.success(epsilon, sigma)), 1.0)
            predicted = lemma.predict_quadratic(instance.fisher, epsilon, sigma, weights)
            out.append((instance.js(epsilon, sigma, weights) - predicted) ** 2)
        return np.stack(out, axis=1)

    errors = populations(square_error, "gaussian", rng, n, instance.dimension, most=s.populations(n))
    slope, se = power_law(sigmas, errors)
    what = "log-log slope in σ of one population's rms error, fitness weights"
    return [judge_equal("L1.1", what, slope / 2, 3.0, measured_se=se / 2, tolerance=POWER)], {}


def spread(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L1.2: Var[JS] over populations, i.i.d. and antithetic; under Rademacher noise it is another."""
    instance = families.categorical(rng)
    sigma = float(np.sqrt(SMALL / instance.rate))
    checks, rows, d = [], [], instance.dimension
    gaussian = [("gaussian", n) for n in (2, 4, 16, 64, 256)]
    for noise, n in [*gaussian, ("antithetic", 16), ("rademacher", 16)]:
        values = populations(lambda e: instance.js(e, sigma), noise, rng, n, d, most=8 * s.populations(n))
        (variance, se), level = mean_variance(values), values.mean()
        predicted = lemma.predict_variance(instance.fisher, sigma, n, antithetic=noise == "antithetic")
        if noise == "rademacher":
            below = judge_bracket(
                "L1.2", f"Var[JS] / its Gaussian value: {noise}, N={n}", variance / predicted, Bracket(0.0, 1.0),
                measured_se=se / predicted, detail="L1.2 is Gaussian only: bounded noise spreads less",
            )  # fmt: skip
            checks.append(below)
        elif n <= 16:
            what = f"Var[JS], nats²: {noise}, N={n}"
            checks.append(lemma.check_variance(variance, predicted, variance_se=se, tolerance=VARIANCE, what=what))
        if noise == "gaussian":
            relative = lemma.relative_spread(instance.fisher, n)
            rows.append((n, variance**0.5 / level, se / (2 * variance**0.5 * level), relative))
    return checks, columns(("n", "measured", "se", "predicted"), *np.transpose(rows))


def curve(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """E[JS] over the whole range of σ for four noise families, and its saturation."""
    instance, n = families.categorical(rng), 4
    sigmas, data = s.sigmas(), {"sigma": s.sigmas().tolist(), "trace": instance.rate, "n": n}
    for noise in FAMILIES:
        epsilon = draw(noise, rng, n * s.populations(n, 4096), instance.dimension).reshape(-1, n, instance.dimension)
        data[noise] = columns(("mean", "se"), *np.transpose([mean(instance.js(epsilon, x)) for x in sigmas]))
    far = families.categorical(rng, 64, scale=100 / s.sigma[1])
    epsilon = draw("gaussian", rng, 8 * s.populations(8, 2048), 64).reshape(-1, 8, 64)
    log_p = far.log_p(epsilon, s.sigma[1])
    share = np.mean(np.argmax(log_p, axis=-1)[..., None] == np.arange(64), axis=1)
    value, se = mean(js(log_p) - weight_entropy(share))
    limit = weight_entropy(share).mean()
    what = f"E[JS], nats, σ={s.sigma[1]:g}: gaussian, categorical, V=64, N=8"
    detail = f"predicted: each member on its top category; log N = {np.log(8):.4g}"
    return [lemma.check(value + limit, limit, js_se=se, tolerance=SATURATED, what=what, detail=detail)], data


def tightness(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L1.3 and L1.4 at every σ: the population nearest to a bound, and how tight the bounds are on average."""
    n, checks, data = 8, [], {"sigma": s.sigmas().tolist()}
    for instance in (families.categorical(rng), families.autoregressive(rng)):
        sequence, rows = instance.name == "autoregressive", []
        weights = rng.dirichlet(np.ones(n))
        epsilon = draw("gaussian", rng, 512 * n, instance.dimension).reshape(-1, n, instance.dimension)
        for sigma in s.sigmas():
            value = instance.js(epsilon, sigma, weights)
            bounds = _bracket(instance, epsilon, sigma, weights)
            low, high = (float(np.mean(t)) for t in bounds.tightness(value))
            rows.append((low, high, value.mean()))
            k = np.argmin(bounds.margin(value) / value)
            check = lemma.check_bracket(value[k], Bracket(bounds.lower[k], bounds.upper[k]), n, sequence=sequence)
            what = f"JS, nats: {instance.name}, σ={sigma:.2g}, nearest to a bound of {len(value)}"
            check = replace(check, what=what, detail=f"mean lower/JS {low:.2g}, mean JS/upper {high:.2g}")
            if len(rows) % 4 == 1 or check.verdict is Verdict.VIOLATED:
                checks.append(check)
        data[instance.name] = columns(("low", "high", "js"), *np.transpose(rows))
    return [*checks, _directional(instance, epsilon[0, 0])], data


def _bracket(instance: families.Instance, epsilon: Float, sigma: float, weights: Float) -> Bracket:
    """L1.3; for sequences L1.4: at each prefix with the posterior weights, averaged over the mixture's prefixes."""
    if not isinstance(instance.policy, Autoregressive):
        return lemma.bracket(instance.log_p(epsilon, sigma), weights)
    thetas = instance.theta + sigma * epsilon
    joint = np.exp(np.swapaxes(instance.policy.prefix_log_p(thetas), -1, -2)) * weights
    reach = joint.sum(axis=-1)
    at_prefix = lemma.bracket(instance.policy.next_token.population_log_p(thetas), joint / reach[..., None])
    upper = np.sum(reach * at_prefix.upper, axis=-1)
    return Bracket(np.sum(reach * at_prefix.lower, axis=-1), np.minimum(upper, weight_entropy(weights)))


def _directional(instance: families.Instance, epsilon: Float) -> Check:
    """L1.4: εᵀFε from the enumerated sequences' scores, and summed over prefixes from derivatives of logits alone."""
    policy, theta = instance.policy, instance.theta
    forms = categorical_variance(policy.next_token.log_p(theta), policy.next_token.jacobian(theta) @ epsilon)
    forward = np.exp(policy.prefix_log_p(theta)) @ forms
    return judge_equal("L1.4", "εᵀFε: autoregressive", epsilon @ instance.fisher @ epsilon, forward)


PARTS = (rate, exact, one_population, spread, curve, tightness)
