"""L2 on a checkpoint: what a population covers, beside its mixture, the smoothed policy and the center.

Success probabilities of members are never known, only counts of tries; every coverage is a U-statistic of them, without
plug-in bias, up to K = the number of members (for the mixture also of tries).

    P_pop(K)       K distinct members of the i.i.d. population, one response each
    P_mix(K)       K draws of the mixture of these very members
    P_smoothed(K)  K draws of the smoothed policy, from fresh members: one of each antithetic pair has other directions
                   than the population, and pairs are independent of one another
    P_pair(K)      K/2 antithetic pairs, one response of each member
    P_center(K)    K draws of the center

L2.4 is predicted from one half of the tries (p̄, JSᵛ) and measured on the other half, of the same members: no response
serves both. L2.8 is predicted from fresh members, on the same prompts. JSᵛ comes from tries that JS does not use.

The population is fixed in L2.1–L2.7: intervals over prompts. In L2.8 members are the sampled unit: intervals over
prompts and members (`esth.estimators.resampling`).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from esth import plots
from esth.check import Bracket, Check, Verdict, as_vacuous, judge_equal
from esth.coverage import at_least_one, population_success, subset_success_curve
from esth.diversity.report import per_prompt
from esth.estimators import advantage, projected_js
from esth.estimators.linearised import ratio
from esth.estimators.pass_at_k import per_prompt as pass_at_k
from esth.estimators.resampling import Component, between_prompts, partition, shared_members, standard_error
from esth.lemmas import population_advantage as lemma
from esth.sample import Floats, PopulationSample
from llm.judging import between, equal, needs, rewards
from llm.samples import Samples, sized

Data = dict[str, Any]

TITLE = "L2 · Population advantage of a language model"

LEADING = 0.2
"""Relative, for L2.4: remainder and bias of its estimate are 1–5 % each at spreads of .07 to .23 (simulated)."""

SMALL_GAP = 0.3
"""K·G, the relative fall of the failure, up to which the leading order L2.4 claims anything."""

EXACT = 0.05
"""Relative, for L2.8, which has no remainder: what some ten members and some ten prompts can resolve."""

SHIFT = 0.25
"""Relative, for a difference to the center, which is itself small."""

MOST = 32
"""Largest K; the cost of a mixture grows as its square."""

JS_BIAS = 0.39
"""Nats: the mean of the estimate of JSᵛ from m tries is off by at most this over m (`esth.estimators.projected_js`)."""


@dataclass
class Tries:
    """Rewards of the i.i.d. members [X, N, m], of the pairs [X, 2P, m'], of the center beside each [X, m], [X, m']."""

    iid: Floats
    pairs: Floats
    center: Floats
    center_pairs: Floats

    @property
    def prompts(self) -> int:
        return len(self.iid)

    @property
    def n(self) -> int:
        return self.iid.shape[1]

    @property
    def m(self) -> int:
        return self.iid.shape[2]

    @property
    def n_pairs(self) -> int:
        return self.pairs.shape[1] // 2


def study(samples: Samples) -> tuple[list[Check], Data]:
    """All checks of L2, and what the figure shows."""
    iid, pairs = samples.iid(), samples.antithetic()
    tries = Tries(
        rewards(iid), rewards(pairs), iid.center_grid(iid.center.reward), pairs.center_grid(pairs.center.reward)
    )
    rng = np.random.default_rng(samples.settings.seed)
    checks, gaps = realised(tries, rng)
    more, diversity = projected(tries, iid, rng)
    last, coverage = fresh(tries, rng)
    return [*checks, *more, *last], {"gap": gaps, "diversity": diversity, **coverage}


def realised(tries: Tries, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L2.1–L2.4, L2.6, L2.7: this population against its own mixture; intervals over prompts."""
    counts, n, m, x = tries.iid.sum(-1), tries.n, tries.m, tries.prompts
    checks = [_bracket(counts / m), _margin(tries)]
    sizes = list(range(2, min(n, m, MOST) + 1))
    measured = np.stack([advantage.gap(counts, m, k) for k in sizes], axis=-1)
    fixed = between_prompts(measured)
    members = [shared_members(lambda t, k=k: advantage.gap(t, m, k), counts, rng).variance for k in sizes]
    for j in sorted({0, len(sizes) - 1}):
        k = sizes[j]
        what = f"P_pop({k}) − P_mix({k}), this population against its mixture"
        se = standard_error(fixed)[j]
        check = between("L2.1" if k == n else "L2.6", what, float(measured[:, j].mean()), Bracket(0.0, 1.0), se)
        checks.append(sized(check, x))
    predicted = _leading(tries.iid, rng)
    checks += [_against_leading(predicted[k], m, k) for k in sorted({2, 4, *list(predicted)[-1:]} & set(predicted))]
    if not predicted:
        checks.append(needs("L2.4", "P_pop(K) − P_mix(K)", "samples >= 4, two for the prediction and two for the gap"))
    both = Component(np.array(members), n - 1)
    data = {"k": sizes} | _columns(measured, fixed, both)
    ahead = [values[:, 1] for values in predicted.values()]
    data["predicted"] = [float(p.mean()) for p in ahead]
    data["predicted_se"] = [float(standard_error(between_prompts(p))) for p in ahead]
    return checks, data


def _bracket(rates: Floats) -> Check:
    """L2.3 of observed rates: true of any numbers."""
    value, bounds = lemma.advantage(rates), lemma.bracket(rates)
    nearest = int(np.argmin(bounds.margin(value) / np.where(value > 0, value, 1.0)))
    what = f"P_pop − P_mix of observed rates between its odds bounds, nearest to a bound of {len(rates)} prompts"
    return lemma.check(rates[nearest], what=what)


def _margin(tries: Tries) -> Check:
    """L2.7 of observed rates, with half a success and failure added: no logarithm is infinite. True of any numbers."""
    p = (tries.iid.sum(-1) + 0.5) / (tries.m + 1.0)
    draws = np.concatenate([tries.center, tries.center_pairs], axis=-1)
    center = (draws.sum(-1) + 0.5) / (draws.shape[-1] + 1.0)
    margin = lemma.center_margin(p, center)
    difference = population_success(p) - at_least_one(center, tries.n)
    agree = (margin > 0) == (difference > 0)
    agree |= np.abs(difference) < 1e-9  # the sign of rounding
    what = "share of prompts where P_pop − P_center of observed rates has the sign of G − log((1−p̄)/(1−p))"
    detail = f"the population is ahead of its center on {int(np.sum(margin > 0))} of {tries.prompts} prompts"
    check = judge_equal("L2.7", what, float(agree.mean()), 1.0, detail=detail)
    return replace(check, verdict=Verdict.IDENTITY) if check.verdict is Verdict.HOLDS else check


def _leading(iid: Floats, rng: np.random.Generator) -> dict[int, Floats]:
    """For each K: [X, 3] gap on one half of the tries, its prediction L2.4 from the other, P_mix of the first.

    No K with fewer than 4 tries.
    """
    n, m = iid.shape[1:]
    ahead = m // 2
    if ahead < 2:
        return {}
    here = m - ahead
    measured, other = partition(iid, (here, ahead), rng)
    mean, diversity = other.mean(-1) / ahead, projected_js.leading(other, ahead)

    def values(k: int) -> Floats:
        mixed = advantage.mixture(measured, here, k)
        return np.stack([advantage.gap(measured, here, k), lemma.predict(mean, diversity, n, k), mixed], axis=-1)

    return {k: values(k) for k in range(2, min(n, here, MOST) + 1)}


def _against_leading(values: Floats, m: int, k: int) -> Check:
    measured, predicted, mixed = values.T
    se = standard_error(between_prompts(measured - predicted))
    failure = 1.0 - float(mixed.mean())
    signal = float(predicted.mean()) / failure if failure > 0 else math.inf
    what = f"P_pop({k}) − P_mix({k}), from p̄ and JSᵛ: this population against its mixture"
    halves = f"measured on {m - m // 2} tries a member, predicted from the other {m // 2}"
    detail = f"{halves}; over prompts; K·G ≈ {signal:.2g}"
    check = equal("L2.4", what, float(measured.mean()), float(predicted.mean()), se, LEADING, detail)
    if signal > SMALL_GAP and check.verdict is not Verdict.VACUOUS:
        check = as_vacuous(check, f"beyond the leading order, which predicts up to K·G = {SMALL_GAP:g}")
    return sized(check, len(values))


def projected(tries: Tries, iid: PopulationSample, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """Data processing, and the share of JS that reaches the verifier (L2.5): this population, over prompts."""
    what = f"JS − JSᵛ − {JS_BIAS:g}/m, nats, of this population"
    if iid.scored == 0:
        return [needs("L2.5", what, "scored >= 1")], {"js": [], "projected": [], "success": []}
    scored = iid.first(iid.scored)
    js = per_prompt(scored, scored.population.chain).value
    left = tries.iid[..., iid.scored :]
    disjoint = left.shape[-1] >= 2
    used = left if disjoint else tries.iid
    counts, m = used.sum(-1), used.shape[-1]
    reached = projected_js.estimate(counts, m)
    difference = js - reached
    share = ratio(reached, js)
    p_value = float(projected_js.permutation_test(counts, m, rng, pooled=True))
    source = f"the {m} unscored tries" if disjoint else "all tries, the scored ones too"
    detail = (
        f"share JSᵛ/JS = {float(share.value):.2g} ± {float(share.se):.1g}; JSᵛ = {reached.mean():.3g} from {source}, "
        f"too low by at most {JS_BIAS:g}/m = {JS_BIAS / m:.2g}; p = {p_value:.2g} against equal members"
    )
    check = _less_than_all(difference, m, what, detail, Bracket(0.0, math.log(tries.n)))
    if not disjoint:
        check = as_vacuous(check, "not judged: JS and JSᵛ share responses")
    data = {"js": js.tolist(), "projected": reached.tolist(), "success": tries.iid.mean((1, 2)).tolist()}
    data |= {"share": float(share.value), "share_se": float(share.se)}
    return [sized(check, tries.prompts)], data


def _less_than_all(difference: Floats, m: int, what: str, detail: str, bracket: Bracket) -> Check:
    """JS − JSᵛ >= 0 of estimates [X] whose JSᵛ, from m tries, may be too low or too high by JS_BIAS/m in the mean."""
    mean, bias, se = float(difference.mean()), JS_BIAS / m, float(standard_error(between_prompts(difference)))
    check = between("L2.5", what, mean - bias, bracket, se, detail)
    if check.verdict is Verdict.VIOLATED and between("L2.5", what, mean + bias, bracket, se).verdict != check.verdict:
        return as_vacuous(check, "within what JSᵛ may be off by")
    return check


@dataclass
class Curve:
    """Success at K tries prompt by prompt, [X, len(k)], and what shared members add to the variance of its mean."""

    k: list[int]
    values: Floats
    shared: Component

    def at(self, k: int) -> tuple[Floats, Component]:
        """Values [X] and component at K = k."""
        index = self.k.index(k)
        return self.values[:, index], Component(self.shared.variance[index], self.shared.degrees)

    def columns(self, less: "Curve | None" = None) -> Data:
        """Means with standard errors, of these members and of fresh ones; `less` a curve that has no members."""
        k = [k for k in self.k if less is None or k in less.k]
        index = [self.k.index(i) for i in k]
        values = self.values[:, index] - (0.0 if less is None else less.values[:, [less.k.index(i) for i in k]])
        shared = Component(self.shared.variance[index], self.shared.degrees)
        return {"k": k} | _columns(values, between_prompts(values), shared)


def curves(tries: Tries, rng: np.random.Generator) -> dict[str, Curve]:
    """The five coverages of the module's docstring, at every K that can be estimated."""
    counts, m, most = tries.iid.sum(-1), tries.m, min(tries.n, MOST)
    of_pairs, m_pairs = tries.pairs.sum(-1), tries.pairs.shape[-1]
    solved = 1.0 - advantage.pair_failures(of_pairs, m_pairs)
    pairs = _subsets(solved, min(most // 2, tries.n_pairs), rng)
    mixed = list(range(1, min(most, m) + 1))
    by_members = [shared_members(lambda t, k=k: advantage.mixture(t, m, k), counts, rng).variance for k in mixed]
    draws = np.concatenate([tries.center, tries.center_pairs], axis=-1)
    center = list(range(1, min(most, draws.shape[-1]) + 1))
    return {
        "population": _subsets(counts / m, most, rng),
        "mixture": Curve(
            mixed,
            np.stack([advantage.mixture(counts, m, k) for k in mixed], axis=-1),
            Component(np.array(by_members), tries.n - 1),
        ),
        "smoothed": _subsets(advantage.pair_means(of_pairs, m_pairs), min(most, tries.n_pairs), rng),
        "pairs": Curve([2 * k for k in pairs.k], pairs.values, pairs.shared),
        "center": Curve(
            center,
            np.stack([pass_at_k(draws.shape[-1], draws.sum(-1), k) for k in center], axis=-1),
            Component(np.zeros(len(center)), 1),
        ),
    }


def _subsets(rates: Floats, most: int, rng: np.random.Generator) -> Curve:
    """Success of K = 1 … most distinct members, or pairs."""
    shared = shared_members(lambda t: subset_success_curve(t, most)[..., 1:], rates, rng)
    return Curve(list(range(1, most + 1)), np.asarray(subset_success_curve(rates, most)[..., 1:]), shared)


def fresh(tries: Tries, rng: np.random.Generator) -> tuple[list[Check], Data]:
    """L2.8, and the curves over K: members are the sampled unit, intervals over prompts and members."""
    all_curves = curves(tries, rng)
    center = all_curves["center"]
    data = {
        "curves": {name: curve.columns() for name, curve in all_curves.items()},
        "to center": {name: curve.columns(center) for name, curve in all_curves.items() if name != "center"},
    }
    most = all_curves["smoothed"].k[-1]
    checks = [_smoothed(tries, all_curves, k) for k in sorted({2, most})]
    least = min(most, tries.m, tries.pairs.shape[-1])
    checks += [_to_center(tries, all_curves, k) for k in sorted({1, least})]
    return [*checks, _pairs(tries, *all_curves["population"].at(2), rng)], data


def _smoothed(tries: Tries, found: dict[str, Curve], k: int) -> Check:
    """L2.8: K i.i.d. members against K draws of the smoothed policy, exactly equal on average at any σ."""
    measured, by_members = found["population"].at(k)
    predicted, by_fresh = found["smoothed"].at(k)
    se = standard_error(between_prompts(measured - predicted), by_members, by_fresh)
    what = f"P_pop({k}) of i.i.d. members, against {k} draws of the smoothed policy"
    detail = "predicted from fresh members; over prompts and members"
    check = equal("L2.8", what, float(measured.mean()), float(predicted.mean()), se, EXACT, detail)
    return sized(check, tries.prompts, _unit(tries))


def _to_center(tries: Tries, found: dict[str, Curve], k: int) -> Check:
    """L2.8: the smoothed policy, hence an i.i.d. population, against K draws of the center, ahead or behind."""
    (population, by_members), (smoothed, by_fresh) = found["population"].at(k), found["smoothed"].at(k)
    measured = population - pass_at_k(tries.m, tries.center.sum(-1), k)
    predicted = smoothed - pass_at_k(tries.pairs.shape[-1], tries.center_pairs.sum(-1), k)
    se = standard_error(between_prompts(measured - predicted), by_members, by_fresh)
    alone = float(standard_error(between_prompts(measured), by_members))
    what = f"P_pop({k}) − P_center({k}), i.i.d. members against the center"
    if k == 1:
        what = "p_σ − p, smoothed policy against the center"
    detail = (
        "predicted from fresh members and other draws of the center; over prompts and members; "
        f"itself {measured.mean():.2g} ± {alone:.1g}"
    )
    check = equal("L2.8", what, float(measured.mean()), float(predicted.mean()), se, SHIFT, detail)
    return sized(check, tries.prompts, _unit(tries))


def _unit(tries: Tries) -> str:
    return f"prompts, with fresh members every {tries.prompts},"


def _pairs(tries: Tries, two: Floats, by_members: Component, rng: np.random.Generator) -> Check:
    """L2.8 of a pair: half of the pairs against two smoothed draws less the covariance of the other half."""
    what = "P_pop(2) of an antithetic pair, against 2 smoothed draws − Cov(p(ε), p(−ε))"
    if tries.n_pairs < 4:
        return needs("L2.8", what, "pairs >= 4")
    by_pair = tries.pairs.sum(-1).reshape(tries.prompts, tries.n_pairs, 2)
    here, there = by_pair[:, 0::2], by_pair[:, 1::2]
    m = tries.pairs.shape[-1]

    def success(t: Floats) -> Floats:
        return advantage.pair_population(t.reshape((*t.shape[:-2], -1)), m, 2)

    def covariance(t: Floats) -> Floats:
        return advantage.pair_covariance(t.reshape((*t.shape[:-2], -1)), m)

    measured, within = success(here), covariance(there)
    predicted = two - within
    parts = shared_members(success, here, rng), shared_members(covariance, there, rng)
    se = standard_error(between_prompts(measured - predicted), by_members, *parts)
    cov_se = standard_error(between_prompts(within), parts[1])
    detail = (
        f"covariance {within.mean():.2g} ± {cov_se:.1g} of the other half of the pairs, smoothed draws of the i.i.d. "
        "members; over prompts and members"
    )
    check = equal("L2.8", what, float(measured.mean()), float(predicted.mean()), se, EXACT, detail)
    return sized(check, tries.prompts, _unit(tries))


def _columns(values: Floats, prompts: Component, shared: Component) -> Data:
    """Means of values [X, K]; standard errors with these members, and with fresh ones."""
    return {
        "value": np.asarray(values.mean(0)).tolist(),
        "prompts_se": np.asarray(standard_error(prompts)).tolist(),
        "se": np.asarray(standard_error(prompts, shared)).tolist(),
    }


def figure(title: str, data: Data) -> Any:
    """Coverage against K, the gap and its prediction, JSᵛ under JS, and the differences to the center."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    names = {
        "population": "P_pop, i.i.d. members",
        "mixture": "P_mix, their mixture",
        "smoothed": "smoothed policy (fresh members)",
        "pairs": "antithetic pairs",
        "center": "P_center",
    }
    for style, (name, told) in enumerate(names.items()):
        points = data["curves"][name]
        shift = 0.09 * (style - 2)
        plots.measured(a, np.array(points["k"]) + shift, points["value"], points["se"], style=style, name=told, size=4)
        if name in data["to center"]:
            off = data["to center"][name]
            plots.measured(d, np.array(off["k"]) + shift, off["value"], off["se"], style=style, name=told, size=4)
    plots.label(a, "(a) coverage; 99 % over prompts and members", "tries K", "success, share of prompts")
    a.set_ylim(-0.02, 1.05)
    plots.level(d, 0.0)
    plots.label(d, "(d) against the center; 99 % over prompts and members", "tries K", "success − P_center(K)")
    gap = data["gap"]
    plots.measured(b, gap["k"], gap["value"], gap["prompts_se"], name="measured, all tries")
    known = gap["k"][: len(gap["predicted"])]
    if known:
        plots.predicted(b, known, gap["predicted"], style=1, name="L2.4 from p̄ and JSᵛ of the other half of the tries")
        half = plots.Z * np.array(gap["predicted_se"])
        ends = np.array(gap["predicted"]) - half, np.array(gap["predicted"]) + half
        plots.band(b, known, *ends, name="its 99 % interval")
    plots.level(b, 0.0)
    plots.label(b, "(b) advantage over the mixture; 99 % over prompts", "tries K", "P_pop(K) − P_mix(K)")
    diversity = data["diversity"]
    plots.measured(c, diversity["js"], diversity["projected"], name="one prompt, JSᵛ estimated without bias")
    top = max([1e-6, *diversity["js"], *diversity["projected"]])
    plots.predicted(c, [0.0, top], [0.0, top], style=1, name="JSᵛ = JS, the largest possible")
    plots.level(c, 0.0)
    plots.label(c, "(c) the part of diversity that reaches the verifier", "JS (nats)", "JSᵛ (nats)")
    for ax in (a, b, c, d):
        plots.legend(ax)
    return fig
