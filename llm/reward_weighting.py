"""L3 on a checkpoint: the success that weighting members by fitness adds, beside what L3.5 predicts.

Two fitnesses of the members of one population:

    per prompt  the mean of `a` tries at the prompt; the gain on other tries of the same prompt
    batch       the mean over the train half of the prompts; the gain on the held-out half

Three sets of tries share no response: those that make the fitness, those on which the gain is measured, and those from
which it is predicted. For a batch fitness f the prediction β·ρ(f*,p)·√rel(f*)·sd(p) is β·Cov(f*,p)/sd(f): the
covariance of train and held-out success comes from the third set, sd(f) is that of the fitness in use. For a fitness
per prompt it is β·Var(p)/√(Var(p) + noise/a), by variance components of the third set. Other weights than the linear
tilt are given the β of the linear tilt of equal N_eff, √(N/N_eff − 1). Everything is averaged over random partitions.

The members are fixed, and so are their number and spread: standard errors are over prompts, for a batch over train and
held-out prompts together (`esth.estimators.resampling.jackknife`). Both populations of the folder are studied, i.i.d.
members and antithetic pairs: L3 holds in each population.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from esth import plots
from esth.check import Check, judge_identity
from esth.divergence import safe_log1m
from esth.estimators import advantage, variance
from esth.estimators.resampling import between_prompts, jackknife, partitions, standard_error
from esth.lemmas import reward_weighting as lemma
from esth.sample import Floats
from esth.weighting import (
    centered_ranks,
    effective_size,
    linear_tilt,
    price_gain,
    softmax_tilt,
    tilt_range,
    zscore,
)  # fmt: skip
from llm.judging import equal, needs, rewards
from llm.samples import Samples, sized, test, train

Data = dict[str, Any]
Weigh = Callable[[Floats], Floats]

TITLE = "L3 · Reward-weighting gain of a language model"

BETA = 0.5
"""The default of LLM runs, α = σ/2."""

RAW_BETA = 1.0
"""Of raw centred fitness, w = (1 + β(f − f̄))/N, in units of 1/reward."""

RAW = 0.2
"""Relative, for an exact expectation: what the intervals can resolve."""

ATTENUATED = 0.25
"""Relative: z-scores of N members leave terms of order 1/N, 0.12 at N = 8; other weights are not quite linear."""

STEEP = 0.25
"""Relative, for pass@K: (K−1)/2 times the gain over the failure, at a gain of some hundredths."""

MOST = 32
"""Largest K of pass@K."""

PARTITIONS = 64
"""Random partitions of the tries that are averaged."""

BETAS = (0.25, 0.5, 1.0, 2.0)
"""Sizes of the tilts whose N_eff and gain the figure shows."""

FITNESS_TRIES = (1, 2, 4)
"""Tries `a` of a fitness per prompt, as far as 3 are left: two for the variance, one for the gain."""


def linear(beta: float) -> Weigh:
    """The z-scored linear tilt (L3.2)."""
    return lambda f: np.asarray(linear_tilt(f, beta))


def softmax(beta: float) -> Weigh:
    """The softmax tilt of z-scored fitness (L3.3)."""
    return lambda f: np.asarray(softmax_tilt(zscore(f), beta))


def ranks(beta: float) -> Weigh:
    """The linear tilt of ranks."""
    return lambda f: np.asarray(linear_tilt(centered_ranks(f), beta))


def largest(f: Floats) -> Floats:
    """The linear tilt of the largest β without a negative weight (L3.2); uniform where the fitness has no spread."""
    beta = np.asarray(tilt_range(f)[1])
    beta = np.where(np.isfinite(beta), beta, 0.0)
    return np.asarray((1.0 + beta[..., None] * zscore(f)) / f.shape[-1])


KINDS: dict[str, Weigh] = {"linear": linear(BETA), "softmax": softmax(BETA), "ranks": ranks(BETA)}


def equal_beta(weights: Floats) -> Floats:
    """√(N/N_eff − 1): the β of the linear tilt of the same N_eff."""
    return np.sqrt(np.maximum(weights.shape[-1] / np.asarray(effective_size(weights)) - 1.0, 0.0))


def study(samples: Samples) -> tuple[list[Check], Data]:
    """All checks of L3 in both populations, and what the figure shows."""
    rng = np.random.default_rng(samples.settings.seed)
    checks, data = [], {}
    for name, sample in (("i.i.d.", samples.iid()), ("antithetic", samples.antithetic())):
        r = rewards(sample)
        told = f"{name}, N={r.shape[1]}"
        first = name == "i.i.d."
        own, per_prompt = by_prompt(r, rng, told)
        held, batch = by_batch(r, rng, told)
        checks += [*(identities(r) if first else []), *own, *held]
        data[told] = {"per prompt": per_prompt, "batch": batch}
    return checks, data


def identities(r: Floats) -> list[Check]:
    """L3.1, L3.2, L3.4 of observed rates: true of any numbers. Half a success and failure are added for L3.4 alone."""
    rates, n, m = r.mean(-1), r.shape[1], r.shape[2]
    fitness, p = train(rates).mean(0), test(rates)
    weights = linear_tilt(fitness, BETA)
    gain = float(np.mean(p @ weights - p.mean(-1)))
    top = float(tilt_range(fitness)[1])
    what = "p̄_w − p̄ of observed rates on held-out prompts, N·Cov(w, p)"
    detail = (
        f"batch fitness, linear tilt: {int(np.sum(weights < 0))} of {n} weights negative at β = {BETA:g}, none up to "
        f"β = {top:.3g}; N_eff = {float(effective_size(weights)):.3g}"
    )
    checks = [
        judge_identity("L3.1", what, gain, float(np.mean(price_gain(weights, p))), detail=detail),
        lemma.check_identity(fitness, p.mean(0), BETA),
    ]
    negative = np.any(linear_tilt(rates, BETA) < 0, axis=-1)
    what = f"share of prompts whose own linear tilt has a negative weight at β = {BETA:g}: no mixture there"
    checks.append(judge_identity("L3.2", what, float(negative.mean()), float(np.mean(tilt_range(rates)[1] < BETA))))
    shrunk, w = (p * m + 0.5) / (m + 1.0), KINDS["softmax"](fitness)
    fall = float(np.mean(n * (np.mean(safe_log1m(shrunk), axis=-1) - safe_log1m(shrunk) @ w)))
    what = f"fall of the log-failure of {n} responses allotted by softmax weights, held-out prompts, nats"
    checks.append(judge_identity("L3.4", what, fall, float(np.mean(lemma.allocation_gain(w, shrunk, n)))))
    return checks


@dataclass
class Gains:
    """Gain measured and predicted with standard errors, that of their difference, and the mean N_eff of the weights."""

    measured: float
    measured_se: float
    predicted: float
    predicted_se: float
    se: float
    effective: float

    def judge(self, what: str, tolerance: float, detail: str, n: int, unit: str) -> Check:
        check = equal("L3.5", what, self.measured, self.predicted, self.se, tolerance, detail)
        return sized(check, n, unit)


def by_prompt(r: Floats, rng: np.random.Generator, told: str) -> tuple[list[Check], Data]:
    """L3.5 with a fitness from tries of the prompt itself: raw (not attenuated), linear, softmax and rank weights."""
    x, _, m = r.shape
    if m < 4:
        return [needs("L3.5", f"gain of per-prompt fitness: {told}", "samples >= 4")], {"tries": []}
    checks: list[Check] = []
    data: Data = {"tries": [], **{kind: [] for kind in KINDS}}
    for a in [a for a in FITNESS_TRIES if a <= m - 3]:
        ahead = max(2, (m - a) // 2)
        own, held, other = partitions(r, (a, m - a - ahead, ahead), rng, PARTITIONS)
        fitness, p = own / a, held / (m - a - ahead)
        detail = (
            f"fitness of {a}, gain on {m - a - ahead}, predicted from {ahead} other tries of the prompt; over prompts"
        )
        if a == 1:
            raw = RAW_BETA * np.asarray(lemma.covariance(fitness, p))
            found = _over_prompts(raw, RAW_BETA * variance.between(other, ahead), np.array(np.nan))
            what = f"gain of raw centred per-prompt fitness, β·Var(p), β = {RAW_BETA:g}: {told}"
            checks.append(found.judge(what, RAW, detail, x, "prompts"))
        data["tries"].append(a)
        slope = variance.tilt_slope(other, ahead, a)
        for kind, weigh in KINDS.items():
            w = weigh(fitness)
            # β is that of the tilt, also on prompts where all members tie: L3.5 averages over ties as well.
            beta = equal_beta(w) if kind == "softmax" else BETA
            found = _over_prompts(np.asarray(price_gain(w, p)), beta * slope, np.asarray(effective_size(w)))
            data[kind].append(vars(found))
            if kind == "linear":
                what = f"gain of z-scored per-prompt fitness, β√rel·sd(p), a={a}: {told}"
                checks.append(found.judge(what, ATTENUATED, detail, x, "prompts"))
    return checks, data


def _over_prompts(measured: Floats, predicted: Floats, effective: Floats) -> Gains:
    """From values [partitions, X]."""
    values = [v.mean(0) for v in (measured, predicted, measured - predicted)]
    se = [float(standard_error(between_prompts(v))) for v in values]
    size = float(np.mean(effective)) if np.isfinite(effective).all() else 0.0
    return Gains(float(values[0].mean()), se[0], float(values[1].mean()), se[1], se[2], size)


def by_batch(r: Floats, rng: np.random.Generator, told: str) -> tuple[list[Check], Data]:
    """L3.5 with a fitness from the train prompts, gain on the held-out ones, and the gain of pass@K (L3.1)."""
    x, n, m = r.shape
    half = m // 2
    what = f"gain on held-out prompts, batch fitness: {told}"
    parts = [np.moveaxis(c, 0, 1) for c in partitions(r, (half, half), rng, PARTITIONS)]
    # [X, partitions, 2, N]: each half of the tries makes the weights in turn.
    rates = np.stack([np.stack(parts, axis=2), np.stack(parts[::-1], axis=2)], axis=3) / half
    learn, held = train(rates), test(rates)
    detail = (
        f"weights and gain from half of the tries, predicted from the other; {len(learn)} train, {len(held)} held-out "
        "prompts"
    )
    checks: list[Check] = []
    tilts = KINDS | {"largest": largest}
    for name, weigh in tilts.items():
        found = _held_out(weigh, learn, held)
        label = {"largest": "linear, largest β without negative weights"}.get(name, f"{name}, β = {BETA:g}")
        checks.append(
            found.judge(f"{what}; {label}", ATTENUATED, f"{detail}; N_eff {found.effective:.3g}", x, "prompts")
        )
    data: Data = {"betas": list(BETAS)}
    for name, kind in (("linear", linear), ("softmax", softmax), ("ranks", ranks)):
        data[name] = [vars(_held_out(kind(beta), learn, held)) for beta in BETAS]
    k = min(half, n, MOST)
    if k >= 2:
        checks.append(_coverage(r, k, rng, told))
    return checks, data


def _held_out(weigh: Weigh, learn: Floats, held: Floats) -> Gains:
    """Gain and prediction from rates [X, partitions, 2 orders, 2 parts, N]; part 0 makes weights and gain."""

    def gains(learn: Floats, held: Floats) -> Floats:
        own, other = np.moveaxis(learn.mean(0), -2, 0)
        p, there = np.moveaxis(held.mean(0), -2, 0)
        w, spread = weigh(own), np.asarray(lemma.spread(own))
        slope = np.asarray(lemma.covariance(other, there)) / np.where(spread > 0, spread, 1.0)
        predicted = equal_beta(w) * np.where(spread > 0, slope, 0.0)
        pair = np.stack([np.asarray(price_gain(w, p)), predicted]).mean((1, 2))
        return np.array([*pair, pair[0] - pair[1]])

    value, parts = gains(learn, held), jackknife(gains, learn, held)
    se = standard_error(*parts)
    size = float(np.mean(effective_size(weigh(learn.mean(0)[..., 0, :]))))
    return Gains(float(value[0]), float(se[0]), float(value[1]), float(se[1]), float(se[2]), size)


def _coverage(r: Floats, k: int, rng: np.random.Generator, told: str) -> Check:
    """L3.1 at K tries: gain of 1 − (1−p̄)ᴷ against K(1−p̄)^{K−1}(p̄_w − p̄), each from tries of its own."""
    m = r.shape[-1]
    weights = KINDS["softmax"](train(r).mean((0, 2)))
    held, rest = test(r), m - k
    for_gain, for_slope, for_price = partitions(held, (k, max(1, k - 1), rest - max(1, k - 1)), rng, PARTITIONS)
    gain = advantage.mixture(for_gain, k, k, weights) - advantage.mixture(for_gain, k, k)
    failure = 1.0 - advantage.mixture(for_slope, k - 1, k - 1)
    predicted = k * failure * np.asarray(price_gain(weights, for_price / (rest - k + 1)))
    values = [v.mean(0) for v in (gain, predicted)]
    se = standard_error(between_prompts(values[0] - values[1]))
    what = f"gain of pass@{k} of the softmax-weighted mixture over the uniform one, K(1−p̄)^(K−1)·gain: {told}"
    detail = "weights from train prompts, disjoint tries of held-out prompts; over held-out prompts"
    check = equal("L3.1", what, float(values[0].mean()), float(values[1].mean()), float(se), STEEP, detail)
    return sized(check, len(held), "held-out prompts")


def figure(title: str, data: Data) -> Any:
    """Gain against prediction for every weighting, attenuation against the tries of a fitness, gain against N_eff."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    (iid, one), (pairs, two) = data.items()
    for ax, key, letter in ((a, "batch", "a"), (b, "per prompt", "b")):
        points = [
            (kind, told, p)
            for told, part in ((iid, one), (pairs, two))
            for kind, p in part[key].items()
            if kind in KINDS
        ]
        ends = [0.0]
        for style, (kind, told, rows) in enumerate(points):
            x, y = [g["predicted"] for g in rows], [g["measured"] for g in rows]
            ends += [*x, *y]
            plots.measured(ax, x, y, [g["se"] for g in rows], style=style, name=f"{kind}; {told}", size=4)
        plots.predicted(ax, [min(ends), max(ends)], [min(ends), max(ends)], style=1, name="equal")
        title_ = (
            "batch fitness, β = ¼ … 2, held-out prompts" if key == "batch" else "per-prompt fitness of 1, 2, 4 tries"
        )
        plots.label(ax, f"({letter}) {title_}", "predicted gain of success", "measured gain; 99 % of the difference")
    for style, (told, part) in enumerate(((iid, one), (pairs, two))):
        rows = part["per prompt"]
        tries = np.array(rows["tries"])
        if len(tries):
            gains = rows["linear"]
            shift = 1.04 ** (2 * style - 1)
            plots.measured(
                c,
                tries * shift,
                [g["measured"] for g in gains],
                [g["measured_se"] for g in gains],
                style=style,
                name=told,
            )
            plots.predicted(c, tries * shift, [g["predicted"] for g in gains], style=style, name=f"β√rel·sd(p); {told}")
            plots.ticks(c, sorted({1, *FITNESS_TRIES}))
    plots.level(c, 0.0)
    plots.label(c, "(c) attenuation, linear tilt, β = ½", "tries of a member in its fitness", "gain of success")
    for style, kind in enumerate(KINDS):
        gains = one["batch"][kind]
        x = [g["effective"] for g in gains]
        plots.measured(d, x, [g["measured"] for g in gains], [g["measured_se"] for g in gains], style=style, name=kind)
        plots.predicted(d, x, [g["predicted"] for g in gains], style=style, name=f"predicted, {kind}")
    plots.level(d, 0.0)
    plots.label(d, f"(d) gain and its price, batch fitness; {iid}", "N_eff of the weights", "gain on held-out prompts")
    for ax in (a, b, c, d):
        plots.legend(ax)
    return fig
