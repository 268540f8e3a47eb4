"""L3 on a checkpoint: the success that weighting members by fitness adds, beside what L3.5 predicts.

Two fitnesses of the members of one population:

    per prompt  the mean of `a` tries at the prompt; the gain on other tries of the same prompt
    batch       the mean over the train half of the prompts; the gain on the held-out half

Three sets of tries share no response: those that make the fitness, those on which the gain is measured, and those from
which it is predicted; for a batch the first two are different prompts' parts of one half of the tries. The prediction
β·ρ(f*,p)·√rel(f*)·sd(p) is β·Cov(f*,p)/√(Var(f*) + noise of the fitness), for a fitness per prompt, where f* = p,
β·Var(p)/√(Var(p) + noise/a): all of it by variance components of the third set. Other weights than the linear tilt are
given the β of the linear tilt of equal N_eff, √(N/N_eff − 1), by the weights that the third set would make. The tries
are parted once: averages over many partitions would give both sides the noise of all tries.

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
from esth.estimators.resampling import between_prompts, jackknife, partition, standard_error
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
        own, held, other = partition(r, (a, m - a - ahead, ahead), rng)
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
        differ = np.ptp(other, axis=-1) > 0
        for kind, weigh in KINDS.items():
            w = weigh(fitness)
            # One β, also for prompts where all members tie: L3.5 averages over ties as well.
            beta = float(equal_beta(weigh(other[differ] / ahead)).mean()) if differ.any() else 0.0
            found = _over_prompts(np.asarray(price_gain(w, p)), beta * slope, np.asarray(effective_size(w)))
            data[kind].append(vars(found))
            if kind == "linear":
                what = f"gain of z-scored per-prompt fitness, β√rel·sd(p), a={a}: {told}"
                checks.append(found.judge(what, ATTENUATED, detail, x, "prompts"))
    return checks, data


def _over_prompts(measured: Floats, predicted: Floats, effective: Floats) -> Gains:
    """From values [X]."""
    se = [float(standard_error(between_prompts(v))) for v in (measured, predicted, measured - predicted)]
    size = float(np.mean(effective)) if np.isfinite(effective).all() else 0.0
    return Gains(float(measured.mean()), se[0], float(predicted.mean()), se[1], se[2], size)


def by_batch(r: Floats, rng: np.random.Generator, told: str) -> tuple[list[Check], Data]:
    """L3.5 with a fitness from the train prompts, gain on the held-out ones, and the gain of pass@K (L3.1)."""
    x, n, m = r.shape
    what = f"gain on held-out prompts, batch fitness: {told}"
    data: Data = {"betas": list(BETAS), **{kind: [] for kind in KINDS}}
    if m < 3:
        return [needs("L3.5", what, "samples >= 3")], data
    halves = Halves.draw(r, rng)
    detail = (
        f"weights and gain from {halves.own} tries a member, predicted from the other {halves.other}; "
        f"{len(halves.learn)} train, {len(halves.held)} held-out prompts"
    )
    checks: list[Check] = []
    tilts = KINDS | {"largest": largest}
    for name, weigh in tilts.items():
        found = _held_out(weigh, halves)
        label = {"largest": "linear, largest β without negative weights"}.get(name, f"{name}, β = {BETA:g}")
        checks.append(
            found.judge(f"{what}; {label}", ATTENUATED, f"{detail}; N_eff {found.effective:.3g}", x, "prompts")
        )
    for name, kind in (("linear", linear), ("softmax", softmax), ("ranks", ranks)):
        data[name] = [vars(_held_out(kind(beta), halves)) for beta in BETAS]
    if m >= 4:
        checks.append(_coverage(r, min(max(2, m // 3), n, MOST), rng, told))
    return checks, data


@dataclass
class Halves:
    """Successes in two disjoint halves of the tries, one for weights and gain, the other for the prediction.

    learn [train prompts, 2, N] and held [held-out prompts, 2, N]: counts of `own` and of `other` tries.
    """

    learn: Floats
    held: Floats
    own: int
    other: int

    @classmethod
    def draw(cls, r: Floats, rng: np.random.Generator) -> "Halves":
        """From rewards [X, N, m], m >= 3."""
        own = r.shape[-1] // 2
        other = r.shape[-1] - own
        counts = np.stack(partition(r, (own, other), rng), axis=1)
        return cls(train(counts), test(counts), own, other)


def _held_out(weigh: Weigh, halves: Halves) -> Gains:
    """Gain of the weights that one half of the tries makes, and its prediction from the other half."""

    def gains(learn: Floats, held: Floats) -> Floats:
        w = weigh(learn[:, 0].mean(0) / halves.own)
        gain = float(price_gain(w, held[:, 0].mean(0) / halves.own))
        beta = float(equal_beta(weigh(learn[:, 1].mean(0) / halves.other)))
        predicted = beta * _slope(learn[:, 1], held[:, 1], halves.other, halves.own)
        return np.array([gain, predicted, gain - predicted])

    value, parts = gains(halves.learn, halves.held), jackknife(gains, halves.learn, halves.held)
    se = standard_error(*parts)
    size = float(effective_size(weigh(halves.learn[:, 0].mean(0))))
    return Gains(float(value[0]), float(se[0]), float(value[1]), float(se[1]), float(se[2]), size)


def _slope(learn: Floats, held: Floats, m: int, a: int) -> float:
    """ρ(f*,p)·√rel(f*)·sd(p) = Cov(f*,p)/√(Var(f*) + noise) of a batch fitness of `a` tries, from counts [X, N] of m.

    The noise of a mean over all members is taken off where the variance of observed rates is read as Var(f*).
    """
    fitness, p, n = learn.mean(0) / m, held.mean(0) / m, learn.shape[-1]
    single = float(variance.within(learn, m).mean()) / len(learn)
    square = float(np.var(fitness)) - (1.0 - 1.0 / n) * single / m + single / a
    return float(lemma.covariance(fitness, p)) / square**0.5 if square > 0 else 0.0


def _coverage(r: Floats, k: int, rng: np.random.Generator, told: str) -> Check:
    """L3.1 at K tries: gain of 1 − (1−p̄)ᴷ against K(1−p̄)^{K−1}(p̄_w − p̄), each from tries of its own; weights given."""
    half, rest = r.shape[-1] // 2, r.shape[-1] - r.shape[-1] // 2
    some = max(k - 1, rest // 2)
    weights, held = KINDS["softmax"](train(r).mean((0, 2))), test(r)
    for_gain, for_slope, for_price = partition(held, (half, some, rest - some), rng)
    gain = advantage.mixture(for_gain, half, k, weights) - advantage.mixture(for_gain, half, k)
    failure = 1.0 - advantage.mixture(for_slope, some, k - 1)
    predicted = k * failure * np.asarray(price_gain(weights, for_price / (rest - some)))
    se = standard_error(between_prompts(gain - predicted))
    what = f"gain of pass@{k} of the softmax-weighted mixture over the uniform one, K(1−p̄)^(K−1)·gain: {told}"
    detail = "weights from train prompts, disjoint tries of held-out prompts; over held-out prompts"
    check = equal("L3.1", what, float(gain.mean()), float(predicted.mean()), float(se), STEEP, detail)
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
