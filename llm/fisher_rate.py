"""L1 on a checkpoint: JS of a population against σ, beside what the center alone predicts.

Measured: `chain` of the members' own responses, populations of the same directions at every σ of the sweep. Predicted,
from responses of the center, never of a member: for these very members by the directional Fisher information along
their noise (finite differences of logits); for fresh members by tr F, from the same or from score gradients. Every σ
has response streams of its own: measurements at two σ are independent, and the prediction pools what the center said at
all σ within the rate's range. Guaranteed: the bracket L1.4. By parameter group: one group is perturbed at a time.

Standard errors are over prompts, paired by prompt; the population is fixed but where a row says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import stats

from esth import plots
from esth.check import Check, Verdict, Z, estimated, judge_equal, judge_identity
from esth.divergence import weight_entropy
from esth.diversity import DiversityConfig
from esth.diversity.report import effective_rank, per_prompt, report
from esth.diversity.sampling import Jobs, Spoken
from esth.errors import InputError
from esth.estimators import fisher_trace, intervals
from esth.estimators.intervals import Estimate
from esth.estimators.linearised import log_slope, ratio
from esth.lemmas import fisher_rate as lemma
from esth.models.engine import Engine, Response, Sampling
from esth.models.groups import by_group
from esth.models.workers import Workers
from esth.noise import Direction, Restricted, hashed, population
from esth.sample import Floats, PopulationSample
from esth.tasks.task import encode
from llm.samples import Arrays, Progress, Samples, Settings, sized

Data = dict[str, Any]

TITLE = "L1 · Fisher-rate diversity of a language model"

RESPONSES = 2
"""Of each member and of the center to each prompt: more prompts say more than more responses."""

RATE_TOLERANCE = 0.15
"""Relative; the remainder of L1.1 is some share of σ² tr F, which goes up to `SMALL_SIGNAL` = 0.3."""

SLOPE_TOLERANCE = 0.05
"""Relative; a remainder of 0.15 at the upper end alone tilts the line through a decade by 0.07."""

TRACE_TOLERANCE = 0.15
"""Two unbiased forms of one number have no remainder: this is what hundreds of responses and directions can resolve."""

GROUP_SIGNAL = 0.1
"""σ² tr F of the whole population at which the groups are perturbed: inside the range, and far above rounding."""

DIRECTIONS = 16
"""Directions of no member, along which the center's responses tell tr F and its effective rank by forward passes."""

INFORMS = 0.5
"""A bound informs where it is tighter than a factor of two."""


@dataclass
class Point:
    """The population at one σ, scored; per prompt [X] unless said, JS in nats, Fisher information for σ = 1."""

    sigma: float
    sample: PopulationSample

    @cached_property
    def js(self) -> Floats:
        return per_prompt(self.sample, self.sample.population.chain).value

    @cached_property
    def lower(self) -> Floats:
        return per_prompt(self.sample, self.sample.population.lower).value

    @cached_property
    def upper(self) -> Floats:
        return per_prompt(self.sample, self.sample.population.upper).value

    @cached_property
    def rate(self) -> Floats:
        """JS/σ² of these members, predicted."""
        return self.sample.center_grid(self.sample.center.rate).mean(1) / self.sigma**2

    @cached_property
    def forms(self) -> Floats:
        """[X, N] εᵢᵀFεᵢ."""
        return self.sample.center_grid(self.sample.center.forms).mean(1)


@dataclass
class Sweep:
    """All σ; those in the rate's range, `small`, are told by the center's responses at the smallest."""

    points: list[Point]

    @cached_property
    def small(self) -> list[Point]:
        trace = float(self.points[0].forms.mean())
        return [p for p in self.points if p.sigma**2 * trace <= lemma.SMALL_SIGNAL] or self.points[:1]

    @cached_property
    def rate(self) -> Floats:
        """[X] JS/σ² of these members, predicted from all responses of the center within the range."""
        return np.mean([p.rate for p in self.small], axis=0)

    @cached_property
    def forms(self) -> Floats:
        return np.mean([p.forms for p in self.small], axis=0)

    @cached_property
    def js_over_square(self) -> Floats:
        """[X] JS/σ², measured, mean over the range."""
        return np.mean([p.js / p.sigma**2 for p in self.small], axis=0)

    @property
    def trace(self) -> float:
        return float(self.forms.mean())

    @property
    def weights(self) -> Floats:
        return self.points[0].sample.weights


def study(samples: Samples) -> tuple[list[Check], Data]:
    """Checks, and what the figure shows."""
    s = samples.settings
    if s.temperature == 0:
        raise InputError("fisher_rate needs temperature > 0: L1 is about policies of full support")
    sweep = Sweep([Point(float(x), _population(samples, k, f"rate-{k}", x)) for k, x in enumerate(s.sweep())])
    gradients = None
    if s.engine == "transformers":
        gradients = [_gradients(samples, k, point.sample) for k, point in enumerate(sweep.small)]
    data = _curve(sweep)
    checks = [sized(check, len(sweep.rate)) for check in (*_rate(sweep), *_slope(sweep), *_bracket(sweep))]
    checks += _trace(sweep, _directions(samples, len(sweep.small) - 1, sweep.small[-1]), gradients, s.engine)
    if gradients is not None:
        along = np.mean([g.sum(-1) for g in gradients], axis=0)
        data["predicted"]["gradients, fresh members"] = _fresh(float(along.mean()), sweep.weights)
    if s.groups:
        found, data["groups"] = _groups(samples, sweep, gradients)
        checks += found
    return [estimated(check) for check in checks], data


# Samples


def _config(s: Settings, k: int, sigma: float) -> DiversityConfig:
    """Responses at the k-th σ have streams of their own; members and prompts are the same at every σ."""
    return s.population(
        sigma=float(sigma), members=s.rate_members, prompts=s.rate_prompts, samples=RESPONSES, scored=RESPONSES,
        seed=hashed("fisher_rate", s.seed, k, bits=32),
    )  # fmt: skip


def _population(
    samples: Samples, k: int, name: str, sigma: float, parameters: Sequence[str] | None = None
) -> PopulationSample:
    s = samples.settings
    members = population(s.stream(0), s.rate_members)
    directions: list[Direction] = list(members)
    if parameters is not None:
        directions = [Restricted(member, frozenset(parameters)) for member in members]
    task = s.population(prompts=s.rate_prompts).load_task
    sample = samples.population(name, _config(s, k, sigma), task, directions)
    if not per_prompt(sample, sample.population.chain).value.mean() > 0:
        raise InputError(f"{name}: JS is 0 at sigma = {sigma:g}: these members do not differ")
    return sample


@dataclass
class Center:
    """What the center said at the k-th σ, for a model to look at again."""

    config: DiversityConfig
    sampling: Sampling
    prompts: list[list[int]]
    said: Spoken

    @classmethod
    def of(cls, samples: Samples, workers: Workers, k: int, sample: PopulationSample) -> "Center":
        s, center = samples.settings, sample.center
        task = s.population(prompts=s.rate_prompts).load_task()
        config = _config(s, k, sample.settings["sigma"])
        responses = [Response(tuple(t), bool(cut)) for t, cut in zip(center.tokens, center.truncated, strict=True)]
        said = Spoken(center.prompt.tolist(), center.member.tolist(), center.sample.tolist(), responses)
        prompts = [encode(workers.checkpoint.tokenizer, problem) for problem in task.problems]
        return cls(config, config.sampling(task.max_tokens), prompts, said)


def _gradients(samples: Samples, k: int, sample: PopulationSample) -> Floats:
    """[X, P] mean over the center's responses of ‖∇ log π(y)‖², parameter by parameter."""

    def make(workers: Workers, progress: Progress) -> Arrays:
        from esth.models.gradients import squared_norms

        center = Center.of(samples, workers, k, sample)

        def of_prompt(engine: Engine, x: int) -> Floats:
            engine.restore()
            said = [r for r, y in zip(center.said.response, center.said.prompt, strict=True) if y == x]
            return squared_norms(engine, [center.prompts[x]], [said], center.sampling)

        found: dict[int, Floats] = {}
        for x, norms in workers.map(of_prompt, range(len(center.prompts))):
            found[x] = norms
            progress("gradients", len(found), len(center.prompts), 0)
        return {"norms": np.stack([found[x] for x in range(len(center.prompts))])}

    return np.asarray(samples.arrays(f"rate-gradients-{k}", make)["norms"], dtype=np.float64).mean(1)


def _directions(samples: Samples, k: int, point: Point) -> Floats:
    """[X, DIRECTIONS] εᵀFε along fresh directions, from the center's responses at the k-th σ."""

    def make(workers: Workers, progress: Progress) -> Arrays:
        center = Center.of(samples, workers, k, point.sample)
        directions = population(hashed("directions", samples.settings.seed, bits=32), DIRECTIONS)

        def along(engine: Engine, d: int) -> Floats:
            config = replace(center.config, members=1)
            jobs = Jobs(center.prompts, [directions[d]], config, center.sampling)
            return np.asarray(jobs.center_block(engine, center.said)["forms"])

        found: dict[int, Floats] = {}
        for d, forms in workers.map(along, range(DIRECTIONS)):
            found[d] = forms
            progress("directions", len(found), DIRECTIONS, 0)
        return {"forms": np.concatenate([found[d] for d in range(DIRECTIONS)], axis=1)}

    return point.sample.center_grid(samples.arrays(f"rate-directions-{k}", make)["forms"]).mean(1)


def _parameters(samples: Samples) -> dict[str, int]:
    """Names and sizes of what is perturbed, in the order of the gradients' columns."""

    def make(workers: Workers, progress: Progress) -> Arrays:
        def look(engine: Engine, _: int) -> dict[str, Any]:
            held = getattr(engine, "parameters", None) or engine.checkpoint.tensors
            return {"names": np.array(list(held)), "sizes": np.array([math.prod(p.shape) for p in held.values()])}

        return dict(next(iter(workers.map(look, [0])))[1])

    found = samples.arrays("rate-parameters", make)
    return {str(name): int(size) for name, size in zip(found["names"], found["sizes"], strict=True)}


# Checks


def _rate(sweep: Sweep) -> list[Check]:
    """L1.1 for these members, at every σ and over the range."""
    predicted, ceiling = sweep.rate, float(weight_entropy(sweep.weights))
    checks = []
    for point in sweep.points:
        signal = point.sigma**2 * sweep.trace
        rate = point.sigma**2 * predicted
        detail = f"σ² tr F = {signal:.2g}, {point.js.mean() / ceiling:.2g} of log N; center's directional Fisher"
        checks.append(
            lemma.check(
                float(point.js.mean()), float(rate.mean()), js_se=_error(point.js - rate), tolerance=RATE_TOLERANCE,
                signal=signal, what=f"JS of this population, nats: σ = {point.sigma:.2g}", detail=detail,
            )
        )  # fmt: skip
    top = sweep.small[-1].sigma
    checks.append(
        lemma.check(
            float(sweep.js_over_square.mean()), float(predicted.mean()), tolerance=RATE_TOLERANCE,
            js_se=_error(sweep.js_over_square - predicted), signal=top**2 * sweep.trace,
            what=f"JS/σ² of this population, nats: σ up to {top:.2g}",
            detail=f"mean over {len(sweep.small)} σ; center's directional Fisher",
        )
    )  # fmt: skip
    return checks


def _slope(sweep: Sweep) -> list[Check]:
    small = sweep.small
    if len(small) < 2:
        return []
    slope = log_slope([p.sigma for p in small], np.stack([p.js for p in small]))
    what = f"log-log slope of JS in σ, from {small[0].sigma:.2g} to {small[-1].sigma:.2g}"
    se = _widened(float(slope.se), len(sweep.rate))
    return [judge_equal("L1.1", what, float(slope.value), 2.0, measured_se=se, tolerance=SLOPE_TOLERANCE)]


def _trace(sweep: Sweep, forms: Floats, gradients: list[Floats] | None, engine: str) -> list[Check]:
    """tr F in two forms on the same responses of the center, and JS of fresh members from the gradients' form."""
    what = "tr F, nats: gradients against directions"
    if gradients is None:
        value, se = fisher_trace.from_directions(forms)
        detail = f"the {engine} engine has no gradients: the directional form alone"
        return [Check("L1.4", what, Verdict.VACUOUS, float(value), float(se), detail=detail)]
    norms = np.mean([g.sum(-1) for g in gradients], axis=0)
    trace = float(norms.mean())
    checks = [_against_directions(what, gradients[-1].sum(-1)[:, None], forms, "fresh directions")]
    n = len(sweep.weights)
    predicted = np.asarray(_fresh(norms, sweep.weights))
    rank = effective_rank(forms.mean(0))
    spread = math.sqrt(2.0 / ((n - 1) * rank))
    paired = _error(sweep.js_over_square - predicted)
    top = sweep.small[-1].sigma
    between = spread * float(predicted.mean())
    fresh = lemma.check(
        float(sweep.js_over_square.mean()), float(predicted.mean()), tolerance=RATE_TOLERANCE,
        js_se=math.hypot(paired, between), signal=top**2 * trace,
        what=f"E[JS]/σ² of fresh members, nats: σ up to {top:.2g}",
        detail=f"(1 − 1/N)/2 · tr F by gradients; error {paired:.2g} over prompts, and a spread of {spread:.1%} "
        f"between populations (L1.2, r_eff ≈ {rank:.2g} from {DIRECTIONS} directions)",
    )  # fmt: skip
    return [*checks, _sized(fresh, (paired, len(norms), "prompts"), (between, n, "members"))]


def _sized(check: Check, *parts: tuple[float, int, str]) -> Check:
    """`sized` by the unit, of (error, how many, unit), that most of the standard error comes from."""
    _, n, unit = max(parts)
    return sized(check, n, unit)


def _against_directions(what: str, norms: Floats, forms: Floats, responses: str) -> Check:
    """Squared gradient norms [X, 1] against forms [X, N] of the same responses: prompts and directions are sampled."""
    detail = f"same responses of the center, {responses}; errors over prompts and {forms.shape[1]} directions"
    return _equal_traces(what, norms - forms, float(forms.mean()), detail)


def _equal_traces(what: str, difference: Floats, predicted: float, detail: str) -> Check:
    """That a difference [X, N] of two forms of a trace has mean 0: prompts and directions are sampled, and crossed."""
    x, n = difference.shape
    se = float(fisher_trace.from_directions(difference).se)
    over_prompts = float(intervals.mean(difference.mean(1)).se)
    check = judge_equal(
        "L1.4", what, predicted + float(difference.mean()), predicted,
        measured_se=_widened(se, x), tolerance=TRACE_TOLERANCE, detail=detail,
    )  # fmt: skip
    return _sized(check, (over_prompts, x, "prompts"), (math.sqrt(max(0.0, se**2 - over_prompts**2)), n, "directions"))


def _bracket(sweep: Sweep) -> list[Check]:
    """L1.4 at every σ, and the two estimators against each other: the rows of the report."""
    checks = []
    for point in sweep.points:
        rows = [c for c in report(point.sample).checks if c.statement == "L1.4"]
        for row in rows:
            detail = row.detail
            if row.lower is not None:
                sides = [side for side, yes in zip(("below", "above"), _informs(point), strict=True) if yes]
                detail += f"; informs from {' and '.join(sides)}" if sides else "; does not inform"
            checks.append(replace(row, what=f"{row.what}: σ = {point.sigma:.2g}", detail=detail))
    return sorted(checks, key=lambda c: c.lower is None)


def _tightness(point: Point) -> tuple[Estimate, Estimate]:
    """lower/JS and JS/upper."""
    return ratio(point.lower, point.js), ratio(point.js, point.upper)


def _informs(point: Point) -> tuple[bool, bool]:
    """Whether the bounds below and above say something; above log N none does, however near JS is to it."""
    below, above = (float(t.value) >= INFORMS for t in _tightness(point))
    return below, above and float(point.upper.mean()) < float(weight_entropy(point.sample.weights))


def _groups(samples: Samples, sweep: Sweep, gradients: list[Floats] | None) -> tuple[list[Check], Data]:
    """tr F and JS of each group of parameters, perturbed alone, and that the parts are the whole."""
    inside = [k for k, p in enumerate(sweep.points) if p.sigma**2 * sweep.points[0].forms.mean() <= GROUP_SIGNAL]
    k = max(inside, default=0)
    whole, sizes = sweep.points[k], _parameters(samples)
    names, groups = list(sizes), by_group(sizes)
    columns = {g: [names.index(name) for name in members] for g, members in groups.items()}
    parts = {
        g: Point(whole.sigma, _population(samples, k, f"rate-{k}-{g}", whole.sigma, members))
        for g, members in groups.items()
    }
    norms = None if gradients is None else gradients[k]
    checks = []
    if norms is not None:
        for g, part in parts.items():
            what = f"tr F of {g}, nats: gradients against directions"
            checks.append(_against_directions(what, norms[:, columns[g]].sum(-1)[:, None], part.forms, "one σ"))
    for g, part in parts.items():
        rate = part.sigma**2 * part.rate
        alone = lemma.check(
            float(part.js.mean()), float(rate.mean()), js_se=_error(part.js - rate), tolerance=RATE_TOLERANCE,
            signal=part.sigma**2 * float(part.forms.mean()), what=f"JS of {g} alone, nats: σ = {part.sigma:.2g}",
            detail="center's directional Fisher along this group's noise",
        )  # fmt: skip
        checks.append(sized(alone, len(rate)))
    total = np.sum([part.forms for part in parts.values()], axis=0)
    what, detail = "tr F, nats: sum over groups, directions", "what lies between two groups has mean 0 over the noise"
    checks.append(_equal_traces(what, total - whole.forms, float(whole.forms.mean()), detail))
    if norms is not None:
        by_parameter = norms.mean(0)
        summed = sum(float(by_parameter[c].sum()) for c in columns.values())
        checks.append(
            judge_identity("L1.4", "tr F, nats: sum over groups, gradients", summed, float(by_parameter.sum()))
        )
    shares = {
        "JS": _shares({g: part.js for g, part in parts.items()}),
        "tr F, directions": _shares({g: part.forms.mean(1) for g, part in parts.items()}),
    }
    if norms is not None:
        shares["tr F, gradients"] = _shares({g: norms[:, c].sum(-1) for g, c in columns.items()})
    count = sum(sizes.values())
    return checks, {
        "names": list(groups),
        "tied": "head" not in groups,
        "sigma": whole.sigma,
        "parameters": {g: sum(sizes[name] for name in members) / count for g, members in groups.items()},
        "shares": shares,
    }


def _shares(values: dict[str, Floats]) -> Data:
    total = np.sum(list(values.values()), axis=0)
    found = {g: ratio(v, total) for g, v in values.items()}
    return {g: {"share": float(e.value), "se": float(e.se)} for g, e in found.items()}


def _fresh(trace: Any, weights: Floats) -> Any:
    """E[JS]/σ² of members drawn anew."""
    return lemma.predict(trace, 1.0, weights)


def _error(values: Floats) -> float:
    return _widened(float(intervals.mean(values).se), len(values))


def _widened(se: float, prompts: int) -> float:
    """Of few prompts: so much more that the 99 % interval of a check is Student's."""
    return se * float(stats.t.isf(0.005, prompts - 1)) / Z


# The figure


def _curve(sweep: Sweep) -> Data:
    """JS, its ratio to the rate and the bracket at every σ, with standard errors over prompts."""
    points = sweep.points
    ratios = [ratio(p.js, p.sigma**2 * sweep.rate) for p in points]
    tightness = [_tightness(p) for p in points]
    informs = {
        side: _up_to([p.sigma for p in points], [_informs(p)[i] for p in points])
        for i, side in enumerate(("below", "above"))
    }
    return {
        "sigma": [p.sigma for p in points],
        "signal": [p.sigma**2 * sweep.trace for p in points],
        "range": len(sweep.small),
        "log_n": float(weight_entropy(sweep.weights)),
        "js": _columns([intervals.mean(p.js) for p in points]),
        "ratio": _columns(ratios),
        "lower": [float(p.lower.mean()) for p in points],
        "upper": [min(float(p.upper.mean()), float(weight_entropy(sweep.weights))) for p in points],
        "below": _columns([t[0] for t in tightness]),
        "above": _columns([t[1] for t in tightness]),
        "informs": informs,
        "predicted": {
            "directions, these members": float(sweep.rate.mean()),
            "directions, fresh members": float(_fresh(sweep.trace, sweep.weights)),
        },
    }


def _up_to(sigma: Sequence[float], informs: Sequence[bool]) -> float | None:
    """The σ up to which a bound informs without a gap."""
    last = next((k for k, yes in enumerate(informs) if not yes), len(informs))
    return sigma[last - 1] if last > 0 else None


def _columns(estimates: Sequence[Estimate]) -> Data:
    return {"value": [float(e.value) for e in estimates], "se": [float(e.se) for e in estimates]}


def figure(title: str, data: Data) -> Any:
    """JS against σ, over its rate, tightness of the bracket, and shares of the parameter groups."""
    groups = data.get("groups")
    fig, axes = plots.figure(title, 4 if groups else 3)
    a, b, c = axes[:3]
    sigma, signal = np.array(data["sigma"]), np.array(data["signal"])
    plots.band(a, sigma, np.maximum(data["lower"], 1e-12), data["upper"], name="bracket L1.4")
    plots.measured(a, sigma, data["js"]["value"], data["js"]["se"], name="JS, chain")
    for style, (name, constant) in enumerate(data["predicted"].items(), start=1):
        line = constant * sigma**2
        shown = line < 4 * data["log_n"]
        plots.predicted(a, sigma[shown], line[shown], style=style, name=name)
    plots.level(a, data["log_n"], name="log N")
    a.set_ylim(
        bottom=0.3 * min(min(data["js"]["value"]), data["predicted"]["directions, these members"] * sigma[0] ** 2)
    )
    plots.label(a, "(a) diversity of a population", "σ", "JS (nats a response)", log="xy")
    plots.measured(b, signal, data["ratio"]["value"], data["ratio"]["se"], name="JS / rate")
    plots.level(b, 1.0, name="rate of these members")
    plots.level(b, lemma.SMALL_SIGNAL, vertical=True, name="range of the rate (left of it)")
    plots.label(b, "(b) the same over its rate", "σ² tr F (nats)", "JS / rate", log="x")
    b.set_ylim(bottom=0)
    for style, (side, name) in enumerate((("below", "lower / JS"), ("above", "JS / upper"))):
        plots.measured(
            c, sigma * 1.04 ** (2 * style - 1), data[side]["value"], data[side]["se"], style=style, name=name
        )
    plots.level(c, INFORMS, name="a factor of two")
    if data["informs"]["above"] is not None:
        name = f"upper bound informs up to σ = {data['informs']['above']:.2g}"
        plots.level(c, data["informs"]["above"], vertical=True, name=name)
    c.set_ylim(0, 1.1)
    plots.label(c, "(c) tightness of the bracket", "σ", "tightness (1: tight)", log="x")
    if groups:
        _group_panel(axes[3], groups)
    for ax in axes:
        plots.legend(ax)
    return fig


def _group_panel(ax: Any, groups: Data) -> None:
    names = groups["names"]
    at = np.arange(len(names))
    plots.measured(ax, at - 0.24, [groups["parameters"][g] for g in names], style=5, name="parameters")
    for style, (name, found) in enumerate(groups["shares"].items()):
        value, se = ([found[g][key] for g in names] for key in ("share", "se"))
        plots.measured(ax, at - 0.08 + 0.16 * style, value, se, style=style, name=name)
    labels = ["embeddings\n(also head)" if g == "embeddings" and groups["tied"] else g for g in names]
    plots.label(ax, f"(d) shares of parameter groups, σ = {groups['sigma']:.2g}", "", "share of the sum", log="y")
    ax.set_xticks(at, labels=labels)
