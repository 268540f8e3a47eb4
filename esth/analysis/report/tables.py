"""What a report says of an experiment, as tables of text: nothing here knows HTML."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth.analysis.over_seeds import difference_of, mean_of
from esth.analysis.report.runs import SETTINGS, Arm, Experiment, Run, shown
from esth.check import number
from esth.diversity.report import Report
from esth.estimators.intervals import Interval
from esth.training import compare
from esth.training.compare import MARGIN, Effect, Stop, common_updates, kept_drift, learned, values_of
from esth.training.evaluation import CONFIDENCE, Evaluation
from esth.training.folder import Point
from esth.training.study import MATCHED
from esth.training.worlds import Spent

Float = NDArray[np.float64]

UNITS = {"entropy": "nats/token", "length": "tokens", "truncated": "share of responses"}
UNBOUNDED = ("entropy", "length")
WIDTH = f"{CONFIDENCE:.0%}".replace("%", " %")

ONE_SEED = (
    f"Intervals: {WIDTH}, over problems, for this one run: another seed of training would end elsewhere. Of shares: "
    "Wilson's with a design effect; of entropy and length: Student's."
)
SEEDS = f"Intervals: {WIDTH}, for other seeds of training and other problems (crossed random effects)."
GAIN = "The second line of a cell is the gain over the start, paired by problem."


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what it shows.
        head: names of the columns, the first of the row names.
        rows: lines of text in each cell; the first cell names the row.
        notes: what has to be known to read it, such as which interval is which.
        folded: whether a reader has to open it.
    """

    caption: str
    head: list[str]
    rows: list[list[list[str]]]
    notes: list[str]
    folded: bool = False


# Numbers


def measures(ks: Sequence[int]) -> dict[str, Callable[[Evaluation], Float]]:
    """Values a problem [P] whose mean is the quantity."""
    return {**compare.quantities(ks), "truncated": lambda e: e.truncated / e.responses}


def effects(
    stops: Sequence[Stop], starts: Sequence[Point], name: str, ks: Sequence[int], drifts: Any = None
) -> dict[str, Effect]:
    """Every quantity of an arm at a place of each of its S seeds, and its paired gain, with intervals.

    One seed: as `Evaluation` has them, over problems. Several: `crossed`, over seeds and problems.

    Args:
        drifts: of each seed, evaluations of draws of random drift, if they are there.
    """
    found = {}
    for quantity, of in measures(ks).items():
        here, base, drawn = values_of(stops, starts, name, of, drifts)
        bounded = quantity not in UNBOUNDED
        alike = (here == here[0]).all()  # a start that all seeds have in common is one
        value = mean_of(here[:1] if alike else here, bounded)
        beyond = None if drawn is None else difference_of(here, drawn, bounded)
        found[quantity] = Effect(value, difference_of(here, base, bounded), beyond)
    return found


def interval(found: Interval, sign: str = "") -> str:
    """0.358 [0.320, 0.398]"""
    value, lower, upper = (f"{float(x):{sign}.3f}".replace("-", "−") for x in found)
    return f"{value} [{lower}, {upper}]"


def _cells(found: dict[str, Effect], gains: bool) -> list[list[str]]:
    return [[interval(e.value), *([interval(e.gain, "+")] if gains else [])] for e in found.values()]


def _heads(found: Sequence[str]) -> list[str]:
    return [f"{q}, {UNITS[q]}" if q in UNITS else q for q in found]


def _over(arms: Sequence[Arm]) -> list[str]:
    """Which interval is which, of rows of these arms."""
    many = [a.letter for a in arms if len(a.chains) > 1]
    one = [a.letter for a in arms if len(a.chains) == 1]
    if not many or not one:
        return [SEEDS if many else ONE_SEED]
    return [f"{', '.join(many)}: {SEEDS}", f"{', '.join(one)}: {ONE_SEED}"]


def _mean(values: Sequence[float], form: str = ",.0f") -> str:
    return format(float(np.mean(values)), form)


# Of an experiment


def identity(experiment: Experiment) -> list[tuple[str, str]]:
    """What it began from: names and values."""
    first = experiment.arms[0].stages[0]
    told: dict[str, Any] = {k: v for k, v in first.identity.items() if k not in ("versions", "init", "evaluated")}
    rows = [(name.replace("_", " "), shown(value)) for name, value in told.items()]
    names = {"weights": "weights, SHA-256", "fingerprint": "weights and problems, digest"}
    rows = [(names.get(name, name), value) for name, value in rows]
    evaluated = [f"{name}: {_size(first.points[0].sets[name])}" for name in experiment.sets]
    config = first.config
    rows += [("evaluated", "; ".join(evaluated)), ("temperature", shown(config.temperature))]
    if config.max_tokens is not None:
        rows.append(("longest response", f"{config.max_tokens} tokens"))
    versions: dict[str, dict[str, None]] = {}
    for run in experiment.runs:
        for package, version in run.identity.get("versions", {}).items():
            versions.setdefault(package, {})[str(version)] = None
    rows.append(("versions", ", ".join(f"{package} {' and '.join(found)}" for package, found in versions.items())))
    return rows


def _size(e: Evaluation) -> str:
    return f"{len(e.ids)} problems, " + (f"{e.samples} responses each" if e.samples else "exact")


def notes(experiment: Experiment) -> list[str]:
    """What a reader has to know before the tables: what is missing, what is not comparable."""
    found = []
    for run in experiment.runs:
        made = len(run.metrics)
        if made < run.config.updates:
            found.append(f"{run.name} is not finished: {made} of {run.config.updates} updates.")
        if len(run.points) == 1:
            found.append(f"{run.name} has one evaluation only, after {run.points[0].update} updates: no gain yet.")
        zero = sum("note" in line for line in run.metrics)
        if zero:
            found.append(f"{run.name}: {zero} of {made} updates were zero, since all members earned the same.")
    for arm in experiment.arms:
        if arm.goes_on:
            found.append(
                f"{arm.key} goes on from runs that are not in this report, or not from their ends: gains are over its "
                "own start; cost and drift count from the base."
            )
    return found


def runs(experiment: Experiment) -> Table:
    """Every run: seed, folder, how far it is."""
    rows = [
        [[run.name], [arm.key], [str(stage + 1)], [str(run.config.seed)], [_far(run)], [_evaluated(run)]]
        for arm in experiment.arms
        for chain in arm.chains
        for stage, run in enumerate(chain)
    ]
    return Table("Runs", ["folder", "arm", "stage", "seed", "updates", "evaluated"], rows, [], len(rows) > 8)


def _far(run: Run) -> str:
    made = len(run.metrics)
    return f"{made}" if made >= run.config.updates else f"{made} of {run.config.updates}: not finished"


def _evaluated(run: Run) -> str:
    return f"{len(run.points)} times, last after {run.points[-1].update}"


def settings(experiment: Experiment, every: bool) -> Table:
    """Settings side by side: all, or those that differ between arms or from the method's default."""
    arms = experiment.arms
    names = [n for n in SETTINGS if every or _tells(arms, n)]
    rows = [[[n], *([arm.setting(n) or ""] for arm in arms)] for n in names]
    caption = "All settings" if every else "Settings that differ between arms or from the default"
    notes = ["An empty cell: the method has no such setting. Stages of an arm are joined by →."] if not every else []
    return Table(caption, ["setting", *(arm.key for arm in arms)], rows, notes, folded=every)


def _tells(arms: Sequence[Arm], name: str) -> bool:
    values = {v for arm in arms if (v := arm.setting(name)) is not None}
    defaults = {f.name: f.default for arm in arms for run in arm.stages for f in fields(run.config)}
    return len(values) > 1 or any(v != shown(defaults[name]) for v in values)


def cost(experiment: Experiment) -> Table:
    """What each arm took until its end."""
    rows = []
    for arm in experiment.arms:
        ends = [t.end for t in arm.trajectories]
        points = [s.point for s in ends]
        spent = [p.spent for p in points]
        rows.append(
            [
                [experiment.labels[arm.letter]],
                [str(len(ends))],
                [_mean([s.updates for s in ends])],
                *([_mean([getattr(s, f.name) for s in spent])] for f in fields(spent[0])),
                [_mean([p.seconds for p in points])],
                [f"{max(p.peak_memory for p in points) / 2**30:.2f}"],
                [_mean([p.drift for p in points], ".3g")],
            ]
        )
    passes = [f.name.replace("_", " ") for f in fields(Spent)]
    head = ["arm", "seeds", "updates", *passes, "seconds", "peak memory, GiB", "drift"]
    return Table(
        "What it cost, until the last evaluated center",
        head,
        rows,
        [
            "Means over seeds; of memory the largest. A pass is one response generated or scored. Seconds are those of "
            "updates, on whatever machine ran them. Memory is that of the process, or of the accelerator where there "
            "is one. Drift is ‖θ − θ₀‖/‖θ₀‖, θ₀ the base."
        ],
    )


def ends(experiment: Experiment, name: str) -> Table:
    """Every arm's last evaluated center on one evaluation set, and the base."""
    ks, rows = experiment.tries, []
    own = [arm for arm in experiment.arms if arm.goes_on]
    common = next((arm for arm in experiment.arms if not arm.goes_on), None)
    for arm, label in [*([(common, "base")] if common else []), *((a, f"start of {a.key}") for a in own)]:
        first = [t.stops[0] for t in arm.trajectories]
        rows.append([[label], *_cells(effects(first, [s.point for s in first], name, ks), gains=False)])
    quantities = list(measures(ks))
    for arm in experiment.arms:
        stops, starts = [t.end for t in arm.trajectories], [t.start for t in arm.trajectories]
        moved = all(s.updates > 0 for s in stops)
        found = effects(stops, starts, name, ks)
        rows.append([[experiment.labels[arm.letter]], *(_cells(found, gains=True) if moved else _none(quantities))])
    what = {"held-out": "Held-out problems", "train": "Problems trained on"}.get(name, f"{name}: not trained on")
    return Table(f"{what}, at the end", ["arm", *_heads(quantities)], rows, [GAIN, *_over(experiment.arms)])


def _none(quantities: Sequence[str]) -> list[list[str]]:
    return [["not evaluated after its start"], *([""] for _ in quantities[1:])]


def along(experiment: Experiment, name: str = "held-out") -> Table:
    """Every arm at every update at which all its seeds were evaluated."""
    ks, rows = experiment.tries, []
    for arm in experiment.arms:
        starts = [t.start for t in arm.trajectories]
        for updates in common_updates(arm.trajectories):
            stops = [t.at_updates(updates) for t in arm.trajectories]
            points = [s.point for s in stops]
            took = [
                [f"{updates:g}"],
                [_mean([p.spent.responses for p in points])],
                [_mean([p.drift for p in points], ".3g")],
            ]
            rows.append([[arm.key], *took, *_cells(effects(stops, starts, name, ks), gains=updates > 0)])
    head = ["arm", "updates", "responses", "drift", *_heads(list(measures(ks)))]
    return Table(f"Along training, {name}", head, rows, [GAIN, *_over(experiment.arms)], folded=True)


def matched(experiment: Experiment) -> list[Table]:
    """Arms side by side at equal updates, responses and gains; nothing where there is one arm."""
    arms = [a for a in experiment.arms if all(t.end.updates > 0 for t in a.trajectories) and not a.goes_on]
    if len(arms) < 2:
        return []
    found, ks = [], experiment.tries
    for by in MATCHED:
        what, places = compare.matched({a.letter: a.trajectories for a in arms}, by)
        rows = []
        for arm in arms:
            stops = [s for s in places[arm.letter] if s is not None]
            label = [experiment.labels[arm.letter]]
            if len(stops) < len(arm.trajectories):
                rows.append([label, ["not reached by every seed"], *([""] for _ in range(2 + len(measures(ks))))])
                continue
            gains = effects(stops, [t.start for t in arm.trajectories], "held-out", ks)
            rows.append(
                [
                    label,
                    [_mean([s.updates for s in stops], ".0f")],
                    [_mean([s.between(lambda p: p.spent.responses) for s in stops])],
                    [_mean([s.between(lambda p: p.drift) for s in stops], ".3g")],
                    *([interval(e.gain, "+")] for e in gains.values()),
                ]
            )
        head = ["arm", "updates", "responses", "drift", *(f"gain in {q}" for q in _heads(list(measures(ks))))]
        notes = [HOW[by], f"Gains over the start, held-out problems. {' '.join(_over(arms))}"]
        if by in compare.GAINS and what.endswith("+0.000"):
            notes.insert(0, f"No arm gains {MARGIN:g}: the places are where arms started.")
        found.append(Table(f"At equal {by}: {what}", head, rows, notes))
    return found


_GAIN = f"Where each run first reaches the gain that all seeds reach in every arm which gains {MARGIN:g}; interpolated."
HOW = {
    "updates": "The last evaluated center of each run until then. Equal updates favour the method that moves less.",
    "responses": "Interpolated between evaluated centers. Equal responses favour the method that learns from fewer.",
    "pass@1": _GAIN,
    "greedy": _GAIN,
}


def control(experiment: Experiment) -> Table:
    """Every arm's end less random drift of the same norm, where that has been made; whether it has learned."""
    ks, rows = experiment.tries, []
    for arm in experiment.arms:
        drifts = [kept_drift(t.stages[-1], t.end.point.drift) for t in arm.trajectories]
        label = [experiment.labels[arm.letter]]
        if any(d is None for d in drifts):
            rows.append([label, ["cannot be said: no random drift beside it"], *([""] for _ in measures(ks))])
            continue
        stops, starts = [t.end for t in arm.trajectories], [t.start for t in arm.trajectories]
        found = effects(stops, starts, "held-out", ks, drifts)
        cells = [[interval(e.beyond_drift, "+")] for e in found.values() if e.beyond_drift is not None]
        rows.append([label, ["yes" if learned(found) else "no"], *cells])
    return Table(
        "The end less random drift of the same length, held-out problems",
        ["arm", "has learned", *_heads(list(measures(ks)))],
        rows,
        [
            f"Has learned: held-out pass@1 rises by {MARGIN:g} or more, its interval above the base and above random "
            "drift. Drift is made by the studies (python -m toy.training, llm.training), not by esth train alone.",
            *_over(experiment.arms),
        ],
    )


# Of a sampled population


def diversity(found: Report) -> list[Table]:
    """Quantities and checks of `esth diversity`."""
    quantities = [
        [[q.name], [q.unit], [_number(q.value, q.lower, q.upper)], [q.kind], [q.note]]
        for q in found.quantities.values()
    ]
    checks = [
        [
            [c.statement],
            [c.what],
            [number(c.measured, c.measured_se)],
            ["" if c.predicted is None else number(c.predicted, c.predicted_se)],
            ["" if c.lower is None or c.upper is None else f"[{c.lower:.4g}, {c.upper:.4g}]"],
            [str(c.verdict)],
            [_note(c.samples_factor, c.detail)],
        ]
        for c in found.checks
    ]
    return [
        Table(
            "Quantities",
            ["quantity", "unit", "value", "kind", "how"],
            quantities,
            [f"Intervals: {WIDTH}, over prompts of this task, for this population of members."],
        ),
        Table(
            "Checks",
            ["statement", "quantity", "measured", "predicted", "bracket", "verdict", "note"],
            checks,
            ["± is one standard error; verdicts go by the 99 % interval of the deviation."],
        ),
    ]


def _number(value: float, lower: float, upper: float) -> str:
    exact = lower == upper or math.isnan(lower)
    return (f"{value:.4g}" if exact else f"{value:.4g} [{lower:.3g}, {upper:.3g}]").replace("-", "−")


def _note(factor: float | None, detail: str) -> str:
    return "; ".join(filter(None, (f"needs {factor:.3g}× the samples" if factor is not None else "", detail)))


def population(found: Report) -> str:
    """A sampled population in a line."""
    s = found.settings
    return (
        f"{s['members']} members, {s['family']}, sigma {s['sigma']:g}; {s['prompts']} prompts of {s['task']} × "
        f"{s['samples']} responses a member; temperature {s['temperature']:g}, at most {s['max_tokens']} tokens; "
        f"{s['dtype']}, seed {s['seed']}"
    )
