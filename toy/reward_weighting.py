"""L3 on exact policies: the gain of a tilt, its attenuation by noisy fitness, its reversal, its price in diversity."""

from collections.abc import Callable

import numpy as np

from esth.check import Bracket, Check, as_identity, judge_bracket, judge_equal, judge_identity
from esth.coverage import mean_success
from esth.divergence import safe_log1m
from esth.lemmas import reward_weighting as lemma
from esth.noise import draw
from esth.weighting import linear_tilt, price_gain, softmax_tilt, tilt_range, zscore
from toy import families
from toy.study import Data, Float, Settings, columns, mean, over_prompts, populations

TITLE = "L3 · Reward-weighting gain"
BETA = 0.5  # the default of LLM runs, α = σ/2

# Allowed relative errors, fixed beforehand.
ATTENUATED = 0.03  # N = 256: z-scores of finitely many members leave terms of order 1/N; small N get 1/N
EXACT_MEAN = 0.05  # an exact mean: what the interval can resolve
DIFFERENCE = 1e-6  # a central difference of step 1e-4 errs by about 1e-8
DIGITS = 1.2e-3  # the counterexample is stated with three digits
PRICE = 0.005  # weights tied to ε leave a remainder of relative order βσ, at the smallest σ far below this


def identities(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L3.1, L3.2, L3.4 with the batch as fitness, prompt by prompt: true of any members and any fitness."""
    instance, n = families.linear(rng), 30
    gains, predictions = [], []
    for sigma in s.sigmas():
        p = instance.success(draw("gaussian", rng, n, instance.dimension), sigma)
        fitness = p.mean(axis=0)
        gains += np.abs(price_gain(linear_tilt(fitness, BETA), p)).tolist()
        predictions += np.abs(lemma.predict(BETA, lemma.correlation(fitness, p), lemma.spread(p))).tolist()
    p = instance.success(draw("gaussian", rng, 64 * n, instance.dimension).reshape(64, n, -1), 1.0)
    weights = softmax_tilt(zscore(p.mean(axis=1, keepdims=True)), BETA)
    gain, bounds = lemma.coverage_gain(weights, p, n), lemma.bracket(weights, p, n)
    k = np.unravel_index(np.argmin(bounds.margin(gain)), gain.shape)
    what = f"gain of pass@{n} under a softmax tilt, nearest to a bound of {gain.size}"
    within = judge_bracket("L3.1", what, gain[k], Bracket(bounds.lower[k], bounds.upper[k]))
    one, w = p[0, 0], weights[0, 0]
    fall = n * (np.mean(safe_log1m(one)) - w @ safe_log1m(one))
    what = f"fall of the log-failure of {n} responses allotted by weight, nats"
    checks = [
        as_identity(within),
        lemma.check_identity(p[0].mean(axis=0), one, BETA),
        judge_identity("L3.4", what, fall, lemma.allocation_gain(w, one, n)),
    ]
    return checks, {"predicted": predictions, "gain": gains}


def negative_weights(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L3.2: how often the linear tilt has a negative weight, and is no mixture then."""
    fitness = rng.standard_normal((s.populations(30), 30))
    checks = []
    cases = [(BETA, Bracket(0.5, 1.0), "more than half"), (29**-0.5, Bracket(0.0, 0.0), "β <= 1/√(N−1)")]
    for beta, side, note in cases:
        share, se = mean((tilt_range(fitness)[1] < beta).astype(float))
        what = f"share of populations with a negative weight, N=30, β={beta:.3g}"
        checks.append(judge_bracket("L3.2", what, share, side, measured_se=se, detail=note))
    return checks, {}


def tilts(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L3.3: the softmax tilt rises with β for ordered fitness, and can reverse for other."""
    fitness, p, checks = np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.9, 0.45]), []
    for beta, stated in ((0.0, 0.450), (0.5, 0.491), (20.0, 0.450)):
        value = mean_success(p, softmax_tilt(fitness, beta))
        checks.append(judge_equal("L3.3", f"p̄_w of the reversing example, β={beta:g}", value, stated, tolerance=DIGITS))
    instance, betas = families.categorical(rng), np.linspace(0.0, 20.0, 81)
    members = instance.success(draw("gaussian", rng, 64 * 16, 8).reshape(64, 16, 8), 1.0)
    ordered = np.array([mean_success(members, softmax_tilt(zscore(members), beta)) for beta in betas])
    what = "least step of p̄_w as β grows, f ordered like p, 64 populations"
    checks.append(judge_bracket("L3.3", what, np.min(np.diff(ordered, axis=0)), Bracket(0.0, 1.0)))
    noisy = zscore(members + rng.standard_normal(members.shape))
    up, down = (mean_success(members, softmax_tilt(noisy, BETA + h)).mean() for h in (1e-4, -1e-4))
    slope = lemma.softmax_slope(noisy, members, BETA).mean()
    what = "d p̄_w/dβ by a central difference, noisy f"
    checks.append(judge_equal("L3.3", what, (up - down) / 2e-4, slope, tolerance=DIFFERENCE))
    reversing = [float(mean_success(p, softmax_tilt(fitness, beta))) for beta in betas]
    return checks, columns(("beta", "reversing", "ordered"), betas, reversing, ordered[:, 0])


def attenuation(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L3.5: fitness from m verified responses; z-scored, raw, and of a batch of prompts."""
    instance, batch, checks, data = families.categorical(rng), families.linear(rng), [], {}

    def gains(epsilon: Float) -> Float:
        p = instance.success(epsilon, 1.0)
        fitness = rng.binomial(m, p) / m
        reliable = lemma.reliability(lemma.covariance(p, p), lemma.binomial_noise(p, m).mean(axis=-1))
        raw = (1.0 + BETA * (fitness - fitness.mean(axis=-1, keepdims=True))) / n
        columns_ = price_gain(linear_tilt(fitness, BETA), p), price_gain(raw, p), lemma.predict_raw(BETA, p)
        return np.stack([*columns_, lemma.predict_attenuated(BETA, lemma.spread(p), reliable)], axis=1)

    def batch_gains(epsilon: Float) -> Float:
        p = batch.success(epsilon, 1.0)
        clean, noise = p.mean(axis=1, keepdims=True), lemma.binomial_noise(p, m).mean(axis=(1, 2)) / p.shape[1]
        fitness = (rng.binomial(m, p) / m).mean(axis=1, keepdims=True)
        reliable = lemma.reliability(lemma.covariance(clean, clean), noise[:, None])
        predicted = lemma.predict_attenuated(BETA, lemma.spread(p), reliable, lemma.correlation(clean, p))
        return np.stack([over_prompts(price_gain(linear_tilt(fitness, BETA), p)), over_prompts(predicted)], axis=1)

    def judge(what: str, gain: Float, predicted: Float, tolerance: float) -> Check:
        _, se = mean(gain - predicted)  # of the same populations, whose spread cancels
        return lemma.check(float(gain.mean()), float(predicted.mean()), gain_se=se, tolerance=tolerance, what=what)

    for n in (4, 32, 256):
        rows = []
        for m in (1, 4, 16, 64):
            gain, raw, raw_predicted, predicted = populations(gains, "gaussian", rng, n, 8, most=s.populations(n)).T
            value, se = mean(gain - predicted)
            rows.append((m, value / predicted.mean() + 1, se / predicted.mean(), raw.mean() / raw_predicted.mean()))
            if m == 4 and n != 32:
                tolerance = max(ATTENUATED, 1 / n)
                checks.append(judge(f"E gain of z-scored fitness, N={n}, m={m}", gain, predicted, tolerance))
                checks.append(judge(f"E gain of raw centred fitness, N={n}, m={m}", raw, raw_predicted, EXACT_MEAN))
        data[f"N = {n}"] = columns(("m", "ratio", "se", "raw"), *np.transpose(rows))
    m, n = 4, 256
    gain, predicted = populations(batch_gains, "gaussian", rng, n, batch.dimension, most=2 * s.populations(n)).T
    what = f"E gain of batch fitness, mean of 4 prompts, N={n}, m={m}"
    checks.append(judge(what, gain, predicted, ATTENUATED))
    return checks, data


def diversity_price(s: Settings, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L3.6: JS under weights over JS under none, same populations; what fitness-dependent weights cost or add."""
    instance, n = families.categorical(rng, 3), 16
    fisher, sigma = instance.fisher, s.sigma[0]
    gradient = np.linalg.eigh(fisher)[1][:, -1]
    betas, rows, checks = np.linspace(0.05, 1 / np.sqrt(n - 1), 3 if s.quick else 5), [], []
    fitness = {
        "independent": lambda e: rng.standard_normal(e.shape[:2]),
        "linear": lambda e: e @ gradient,
        "εᵀFε": lambda e: np.einsum("rni,ij,rnj->rn", e, fisher, e),
    }
    for beta in betas:
        row = [beta]
        for name, of in fitness.items():

            def both(epsilon: Float, of: Callable[[Float], Float] = of, beta: float = beta) -> Float:
                weights = linear_tilt(of(epsilon), beta)
                factor = lemma.weighting_price(weights)
                return np.stack([instance.js(epsilon, sigma, weights), instance.js(epsilon, sigma), factor], axis=1)

            weighted, uniform, factor = populations(both, "gaussian", rng, n, 3, most=8 * s.populations(n)).T
            ratio = weighted.mean() / uniform.mean()
            se = mean((weighted - ratio * uniform) / uniform.mean())[1]
            plain = factor.mean() / (1 - 1 / n)
            loss = lemma.linear_fitness_loss(beta, fisher, gradient, n) / (1 - 1 / n) if name == "linear" else 0.0
            row += [ratio, se, plain - loss]
        rows.append(row)
    for k, name in enumerate(("independent", "linear")):
        ratio, se, predicted = rows[-1][1 + 3 * k : 4 + 3 * k]
        what = f"E[JS_w] / E[JS], {name} fitness, β={betas[-1]:.3g}, N={n}"
        checks.append(lemma.check(ratio, predicted, gain_se=se, tolerance=PRICE, statement="L3.6", what=what))
    ratio, se, _ = rows[-1][7:]
    what = f"E[JS_w] / E[JS], fitness εᵀFε, β={betas[-1]:.3g}, N={n}"
    detail = "above 1: such weights raise diversity, which 1 − 1/N_eff does not tell"
    checks.append(judge_bracket("L3.6", what, ratio, Bracket(1.0, 2.0), measured_se=se, detail=detail))
    names = ("ratio", "se", "predicted")
    data = {name: columns(names, *np.array(rows).T[1 + 3 * k : 4 + 3 * k]) for k, name in enumerate(fitness)}
    return checks, {"beta": betas.tolist(), **data}


PARTS = (identities, negative_weights, tilts, attenuation, diversity_price)
