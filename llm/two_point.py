"""T5 on a checkpoint: V, C and C′ of antithetic evaluations, and the variances of both estimates that follow.

Three kinds of evaluation of a member θ ± σε on a prompt:

    scoring  mean log-probability of the reference answer: teacher-forced, no response noise
    own      reward of a response of its own: noise independent in a pair, C is due to the parameters alone
    shared   reward of a response drawn with the same uniform numbers in both members of a pair

By length: scoring the first L tokens of a fixed text, which is one response of the center; rewarding the first L tokens
of a response, which is what would have been drawn with so short a limit. Predictions (V − C)/(σ²N) and (V − C′)/(σ²N)
come from one half of the responses (scoring: of the pairs), the variances of the estimates themselves from the other,
on some coordinates of the very directions: two disjoint groups of pairs give two estimates. All are averages over
prompts, each its own objective; a whole batch's V and C are in the data. Standard errors: jackknife over prompts and
pairs.
"""

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth import plots
from esth.check import Bracket, Check, Verdict, Z, judge_bracket, number
from esth.estimators.gradient_variance import estimate_variances
from esth.estimators.intervals import Estimate
from esth.estimators.pair_covariance import (
    PairCovariance,
    correlation_slope,
    noise_covariance,
    pair_covariance,
    prompt_means,
    two_way_jackknife,
    unlike,
)
from esth.lemmas import two_point as lemma
from esth.models.engine import Engine, Response
from esth.models.workers import Workers
from esth.noise import Float32, Keyed, Member, population
from esth.sample import PopulationSample
from esth.tasks.task import encode
from llm.judging import as_columns, needs, rewards
from llm.samples import Arrays, Progress, Samples, sized

TITLE = "T5 · Two-point estimation"

KINDS = ("scoring", "own", "shared")
ESTIMATES = ("one-point", "two-point")
TWIN_SAMPLES = 2  # responses that pairs draw with shared numbers: one for the prediction, one for the measurement
COORDINATES = 1024  # of the directions: their number adds √(2/1024) = 4 % to an estimate's square
GROUPS = 6  # pairs of which two estimates can be made when one pair is left out
INFORMED = 3  # prompts that must show a variance at all: from fewer no error bar can be told
LENGTHS = 8  # lengths that are looked at, at most

# Allowed relative error, fixed beforehand: nothing but κ/d and the coordinates' share; what the intervals can resolve.
RESOLVED = 0.25

Float = NDArray[np.float64]
Lengths = NDArray[np.int64]
Kept = NDArray[np.intp]
Data = dict[str, Any]


def study(samples: Samples) -> tuple[list[Check], Data]:
    """Variances of both estimates for three kinds of evaluation; C, C′ and V by length."""
    s = samples.settings
    data: Data = {"pairs": s.pairs, "kinds": {}, "lengths": [], "alike": []}
    if s.pairs < 3:
        data |= {name: {"length": []} for name in KINDS}
        return [needs("T5", "covariances of pairs", "pairs >= 3, as one is left out at a time")], data
    own = samples.antithetic()
    y = rewards(own)  # before more is sampled: a task without answers ends here
    shared, iid = _twins(samples), samples.iid()
    texts = samples.arrays("teacher-forced", partial(_teacher_forced, samples=samples, center=iid))
    prefixes = samples.arrays("prefix-rewards", partial(_prefix_rewards, samples=samples, own=own, shared=shared))
    epsilon = samples.arrays("coordinates", partial(_coordinates, pairs=s.pairs, seed=s.stream(1)))["epsilon"]
    evaluations = {
        "scoring": _paired(_means(texts["reference"], texts["reference_lengths"])[-1]),
        "own": _paired(y),
        "shared": _paired(rewards(shared)),
    }
    checks: list[Check] = []
    for kind, outcomes in evaluations.items():
        found, shown = variances(kind, outcomes, epsilon, s.sigma)
        checks += found
        data["kinds"][kind] = shown
    lengths = prefixes["lengths"]
    data["lengths"] = lengths.tolist()
    text = _means(texts["text"], texts["text_lengths"], lengths)
    data["scoring"] = by_length([_paired(f) for f in text], lengths)
    cut = {kind: _paired_lengths(of.grid(prefixes[kind])) for kind, of in (("own", own), ("shared", shared))}
    data["own"] = by_length(cut["own"], lengths)
    found, data["shared"] = decoupling(cut["shared"], lengths)
    data["alike"] = _alike(shared, lengths)
    return [*checks, *found], data


def twin(member: Member) -> Keyed:
    """A member whose responses are drawn with the same uniform numbers as those of the other one of its pair."""
    return Keyed(member, ("pair", member.seed))


def _pairs(samples: Samples) -> list[Member]:
    """The members of `Samples.antithetic`."""
    return population(samples.settings.stream(1), 2 * samples.settings.pairs, "antithetic")


def _twins(samples: Samples) -> PopulationSample:
    s = samples.settings
    config = s.population(family="antithetic", members=2 * s.pairs, samples=TWIN_SAMPLES, scored=0, seed=s.stream(3))
    return samples.population("twins", config, lambda: samples.task, [twin(m) for m in _pairs(samples)])


def _paired(values: Float) -> Float:
    """[X, 2K, m] (or [X, 2K]) -> [X, K, 2, m]."""
    x, n = values.shape[:2]
    return values.reshape(x, n // 2, 2, -1)


def _paired_lengths(values: Float) -> list[Float]:
    """[X, 2K, m, L] -> L times [X, K, 2, m]."""
    return [_paired(values[..., i]) for i in range(values.shape[-1])]


def variances(kind: str, y: Float, epsilon: Float, sigma: float) -> tuple[list[Check], Data]:
    """T5: both estimates' variances against (V − C′)/(σ²N) and (V − C)/(σ²N), and which is the smaller.

    Args:
        kind: scoring, own or shared.
        y: [X, K, 2, m] evaluations of a member on a prompt.
        epsilon: [K, d] coordinates of the directions.
        sigma: of the population.
    """
    x, k = y.shape[:2]
    n = 2 * k
    if not np.isfinite(y).all() or np.ptp(y) == 0:
        detail = f"all {y.size} evaluations are {y.flat[0]:g}" if np.isfinite(y).all() else "a score is −∞"
        return [Check("T5", f"variance of the evaluations: {kind}", Verdict.VACUOUS, 0.0, detail=detail)], {}
    covariance = pair_covariance(y, shared=kind == "shared")
    batch = two_way_jackknife(lambda _, j: np.concatenate(unlike(y.mean(axis=(0, 3))[None, j])), 1, k)
    data: Data = {
        "n": n,
        "single": {name: as_columns(e) for name, e in covariance._asdict().items()},
        "batch": {name: as_columns(Estimate(*(v[i] for v in batch))) for i, name in enumerate(ESTIMATES)},
    }
    first, second, columns = _halves(y)
    informed = min(_varied(first), _varied(second))
    if len(columns) < GROUPS or informed < INFORMED:
        few = f"two estimates of three pairs each need {k // len(columns) * GROUPS} pairs"
        rare = f"evaluations differ on {informed} prompts only, in one half"
        detail = few if len(columns) < GROUPS else rare
        what, value = f"variance of a coordinate: {kind}", float(covariance.variance.value)
        return [Check("T5", what, Verdict.VACUOUS, value, detail=detail)], data
    noise = epsilon[columns]

    def by_prompt(pairs: Kept) -> Float:
        """Measured (one-point, two-point), predicted (the same), their differences, and one-point less two-point."""
        measured = np.stack(estimate_variances(second[:, pairs], noise[pairs], sigma, n, pairs % 2), axis=1)
        unpaired, paired = unlike(first[:, pairs])
        # The mean baseline costs one of the N evaluations.
        predicted = np.stack([lemma.predict(unpaired, 0.0, sigma, n - 1), lemma.predict(paired, 0.0, sigma, n)], axis=1)
        wins = (-np.diff(v, axis=1) for v in (measured, predicted))
        return np.concatenate([measured, predicted, measured - predicted, *wins], axis=1)

    result = prompt_means(by_prompt, x, len(columns))
    estimates = [Estimate(*pair) for pair in np.transpose(result).tolist()]
    checks = []
    for name, measured, predicted, deviation in zip(ESTIMATES, *(estimates[i : i + 2] for i in (0, 2, 4)), strict=True):
        mine = f"C′ = {_told(covariance.across)}" if name == "one-point" else f"C = {_told(covariance.within)}"
        check = lemma.check(
            measured.value, predicted.value, what=f"variance of a coordinate, N={n}: {name}, {kind}",
            measured_se=deviation.se, tolerance=RESOLVED,
            detail=f"± of the deviation, paired by prompt; V = {_told(covariance.variance)}, {mine} a response",
        )  # fmt: skip
        checks.append(sized(check, x))
        data[name] = {"measured": as_columns(measured), "predicted": as_columns(predicted)}
    return [*checks, sized(_winner(kind, estimates[6], estimates[7], covariance), x)], data


def _halves(y: Float) -> tuple[Float, Float, NDArray[np.intp]]:
    """Evaluations for the prediction and for the measurement [X, J, 2], and the pairs of the latter [J].

    Different responses of the same members; without response noise different pairs.
    """
    k, m = y.shape[1], y.shape[3]
    if m > 1:
        j = m // 2
        return y[..., 0 : 2 * j : 2].mean(axis=-1), y[..., 1 : 2 * j : 2].mean(axis=-1), np.arange(k)
    j = k // 2
    return y[:, 0 : 2 * j : 2, :, 0], y[:, 1 : 2 * j : 2, :, 0], np.arange(1, 2 * j, 2)


def _varied(f: Float) -> int:
    """Prompts on which evaluations [X, ...] differ."""
    return int(np.count_nonzero(np.ptp(f.reshape(len(f), -1), axis=1)))


def _winner(kind: str, measured: Estimate, predicted: Estimate, covariance: PairCovariance) -> Check:
    """Which estimate has the smaller variance: the sign of C − C′ from one half, the variances from the other."""
    two_point = predicted.value > 0
    clear = abs(predicted.value) > Z * predicted.se
    judged = measured if clear else predicted
    detail = f"the other half predicts the {ESTIMATES[int(two_point)]} one to be smaller"
    detail += "" if clear else ", not clearly: its prediction is what is judged"
    detail += f"; C − C′ = {_told(covariance.wins)} a response, of all"
    bracket = Bracket(0.0, math.inf) if two_point else Bracket(-math.inf, 0.0)
    what = f"one-point − two-point variance: {kind}"
    return judge_bracket("T5", what, float(judged.value), bracket, measured_se=float(judged.se), detail=detail)


def by_length(evaluations: list[Float], lengths: Lengths) -> Data:
    """V, C and C′ of evaluations [X, K, 2, m] of responses cut at each length, left out where all are alike."""
    varied = [np.isfinite(y).all() and np.ptp(y) > 0 for y in evaluations]
    rows = [(int(n), pair_covariance(y)) for n, y, v in zip(lengths, evaluations, varied, strict=True) if v]
    names = ("variance", "within", "across", "wins")
    return {
        "length": [n for n, _ in rows],
        **{name: as_columns(_stack([getattr(c, name) for _, c in rows])) for name in names},
    }


def decoupling(evaluations: list[Float], lengths: Lengths) -> tuple[list[Check], Data]:
    """Responses drawn with shared numbers part at the first token that differs: c of their noise by length."""
    kept = [i for i, y in enumerate(evaluations) if np.sum(np.ptp(y, axis=-1).any(axis=(1, 2))) >= INFORMED]
    what = "slope of the correlation c of reward noise under shared numbers, per token"
    if len(kept) < 2:
        detail = f"the responses of a member differ in reward on {INFORMED} prompts at fewer than two lengths"
        return [Check("T5", what, Verdict.VACUOUS, 0.0, detail=detail)], {"length": []}
    y, at = np.stack([evaluations[i] for i in kept]), lengths[kept]
    slope, correlation = correlation_slope(y, at), noise_covariance(y).correlation
    first, last = (_told(Estimate(correlation.value[i], correlation.se[i])) for i in (0, -1))
    check = judge_bracket(
        "T5", what, float(slope.value), Bracket(-1.0, 0.0), measured_se=float(slope.se),
        detail=f"c = {first} at {at[0]} tokens, {last} at {at[-1]}; unpaired members share no numbers: c′ = 0",
    )  # fmt: skip
    return [sized(check, y.shape[1])], {"length": [int(n) for n in at], "correlation": as_columns(correlation)}


def _alike(sample: PopulationSample, lengths: Lengths) -> list[float]:
    """Share of pairs whose responses, drawn with shared numbers, agree in their first L tokens."""
    p = sample.population
    tokens = dict(zip(zip(p.prompt, p.member, p.sample, strict=True), p.tokens, strict=True))
    pairs = [(tokens[x, i, j], tokens[x, i + 1, j]) for x, i, j in tokens if i % 2 == 0]
    return [float(np.mean([a[:n] == b[:n] for a, b in pairs])) for n in lengths]


def _means(scores: Float, ends: Float, lengths: Lengths | None = None) -> Float:
    """Mean log-probability of the first L tokens, for each L (all tokens if None): [2K, X, T] -> [L, X, 2K]."""
    total = np.cumsum(scores, axis=-1)
    wanted = ends[None] if lengths is None else np.minimum(np.asarray(lengths)[:, None], ends)  # [L, X]
    prompts = np.arange(scores.shape[1])
    return np.stack([(total[:, prompts, w - 1] / w).T for w in wanted])


def _lengths(limit: int) -> Lengths:
    return np.unique(np.geomspace(1, limit, LENGTHS).round().astype(np.int64))


def _teacher_forced(workers: Workers, progress: Progress, *, samples: Samples, center: PopulationSample) -> Arrays:
    """Token log-probabilities [2K, X, T] of the reference answers and of one response of the center to each prompt."""
    tokenizer, stops = workers.checkpoint.tokenizer, workers.checkpoint.stop_tokens
    stop = tokenizer.eos_token_id if tokenizer.eos_token_id in stops else min(stops, default=None)
    end = [] if stop is None else [stop]
    sampling = samples.settings.population().sampling(samples.task.max_tokens)
    problems = samples.task.problems
    prompts = [encode(tokenizer, p) for p in problems]
    references = [list(tokenizer(p.answer, add_special_tokens=False)["input_ids"]) + end for p in problems]
    first = center.center.pick(center.center.sample == 0)
    texts = [t for _, t in sorted(zip(first.prompt, first.tokens, strict=True))]
    said = [[Response(tuple(t), False) for t in pair] for pair in zip(references, texts, strict=True)]
    sigma, members = samples.settings.sigma, _pairs(samples)

    def scores(engine: Engine, member: Member) -> list[list[Float]]:
        engine.set_member(member, sigma)
        return engine.score(prompts, said, sampling)

    found: dict[int, list[list[Float]]] = {}
    for i, rows in workers.map(scores, members):
        found[i] = rows
        progress("teacher-forced scores", len(found), len(members), sum(len(t) for row in rows for t in row))
    workers.restore()
    out: Arrays = {}
    for which, name in enumerate(("reference", "text")):
        ends = np.array([len(row[which]) for row in found[0]])
        padded = np.zeros((len(members), len(prompts), ends.max()))
        for i, rows in found.items():
            for x, row in enumerate(rows):
                padded[i, x, : ends[x]] = row[which]
        out |= {name: padded, f"{name}_lengths": ends}
    return out


def _prefix_rewards(
    workers: Workers, progress: Progress, *, samples: Samples, own: PopulationSample, shared: PopulationSample
) -> Arrays:
    """Rewards of the first L tokens of every response, in the order of the samples' rows: [R, L]."""
    task, decode = samples.task, workers.checkpoint.decode
    lengths = _lengths(int(own.settings["max_tokens"]))
    out: Arrays = {"lengths": lengths}
    for name, sample in (("own", own), ("shared", shared)):
        rows = zip(sample.population.tokens, sample.population.prompt, strict=True)
        out[name] = np.array([[float(task.verify(decode(t[:n]), task.problems[x])) for n in lengths] for t, x in rows])
        progress("rewards by length", 1 + (name == "shared"), 2, 0)
    return out


def _coordinates(workers: Workers, progress: Progress, *, pairs: int, seed: int) -> Arrays:
    """Coordinates of the pairs' directions, [K, d], from the checkpoint's smallest parameters."""
    members = population(seed, 2 * pairs, "antithetic")[0::2]
    parts: list[Float32] = []
    for name, tensor in sorted(
        workers.checkpoint.tensors.items(), key=lambda item: (math.prod(item[1].shape), item[0])
    ):
        room = COORDINATES - sum(part.shape[1] for part in parts)
        if room == 0:
            break
        count = min(room, math.prod(tensor.shape))
        parts.append(np.stack([m.noise(name, tensor.shape, 0, count) for m in members]))
    return {"epsilon": np.concatenate(parts, axis=1).astype(np.float64)}


def _stack(estimates: list[Estimate]) -> Estimate:
    return Estimate(*(np.array([e[i] for e in estimates], dtype=np.float64) for i in range(2)))


def _told(estimate: Estimate) -> str:
    return number(float(estimate.value), float(estimate.se))


def figure(title: str, data: Data) -> Any:
    """C, C′ and V by length, the noise's correlation by length, and both estimates' variances."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    for ax, name in ((a, "scoring"), (b, "own")):
        points = data[name]
        for style, (key, meaning) in enumerate(
            (("variance", "V"), ("within", "C, in a pair"), ("across", "C′, unpaired"))
        ):
            if points["length"]:
                x = np.array(points["length"]) * 1.05 ** (style - 1)
                plots.measured(ax, x, points[key]["value"], points[key]["se"], style=style, name=meaning)
        plots.level(ax, 0.0)
    plots.label(a, "(a) teacher-forced log-probability a token", "tokens scored", "covariance (nats²)", log="x")
    plots.label(b, "(b) regenerated rewards, numbers of their own", "longest response (tokens)", "covariance", log="x")
    plots.predicted(c, data["lengths"], data["alike"], style=1, name="responses alike so far, share")
    if data["shared"]["length"]:
        points = data["shared"]["correlation"]
        plots.measured(c, data["shared"]["length"], points["value"], points["se"], name="c of the reward noise")
    plots.level(c, 0.0, name="c′, and c with numbers of their own")
    plots.label(c, "(c) pairs with shared random numbers", "longest response (tokens)", "correlation, share", log="x")
    for ax in (a, b, c):
        plots.ticks(ax, data["lengths"])
    shown = [kind for kind, found in data["kinds"].items() if "one-point" in found]
    for style, name in enumerate(ESTIMATES):
        points = [data["kinds"][kind][name] for kind in shown]
        left = np.arange(len(shown)) + 0.24 * style - 0.18
        for source, shift in (("measured", 0.0), ("predicted", 0.1)):
            values, errors = ([p[source][key] for p in points] for key in ("value", "se"))
            marker = 2 * style + (source == "predicted")
            plots.measured(d, left + shift, values, errors, style=marker, name=f"{name}, {source}")
    d.set_xticks(np.arange(len(shown)), labels=shown)
    n = 2 * data["pairs"]
    plots.label(d, f"(d) estimates, N = {n}, averaged over prompts", "evaluation", "variance of a coordinate", log="y")
    for ax in (a, b, c, d):
        if ax.get_legend_handles_labels()[0]:
            plots.legend(ax)
    return fig
