"""`python -m llm.sparsity RUN [RUN ...] --out FOLDER`: how much of what training did can be taken back (claim C5).

RUNs are folders of `esth train`, of one arm, one a seed. Of each, the smallest updates are zeroed up to a share or
below a threshold, the model is rebuilt, and it answers the run's own held-out problems with the run's own random
numbers, as base and child do, anew: what a run kept may come from another machine or version. As many zeroed in random
order and largest first are the controls. `--pair BASE CHILD` does the same with any two models on a task (`--task`, and
what else `esth evaluate` has). Every evaluation is kept in `--work`: a command that was killed goes on. Written are
study.json, table.txt and sparsity.png.
"""

import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from jsonargparse import ArgumentParser
from rich.table import Table

from esth import plots
from esth._files import check_folder, hold, write_text
from esth.analysis.forgetting import HELD_OUT
from esth.analysis.pair import Family, open_family
from esth.analysis.sparsity import ORDERS, Changes, Scale, changes, cuts, histogram_edges, rebuild, scales
from esth.analysis.sparsity_curve import MARGIN, PAPER, Curves, Tried, no_loss_seen, within_margin
from esth.check import rich_safe, signed
from esth.cli import run as run_command
from esth.cli import spelled
from esth.diversity.sampling import versions
from esth.errors import InputError, require
from esth.estimators.intervals import Interval
from esth.models.checkpoint import fingerprint, read_tensors
from esth.noise import hashed
from esth.training.compare import Config
from esth.training.config import to_json
from esth.training.evaluate import EvaluationConfig, evaluate
from esth.training.evaluation import Evaluation
from esth.training.folder import RunFolder
from esth.training.run import make_world
from esth.training.study import write_tables

SHARES = (0.25, 0.5, 0.75, PAPER[0], 0.9, PAPER[1], 0.95, 0.99)
MULTIPLES = (0.5, 1.0, 2.0)
"""Of one ES step, in both of its readings (`esth.analysis.sparsity`)."""

Evaluate = Callable[[Path], Evaluation]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_command("llm.sparsity", _run, arguments)


def _run(arguments: list[str]) -> int:
    options = _parser().parse_args([spelled(a, EvaluationConfig) for a in arguments])
    require("matplotlib", "plot")
    told = EvaluationConfig(**{f.name: getattr(options, f.name) for f in _OFFERED})
    if bool(options.runs) == (options.pair is not None):
        raise InputError("name runs (folders of esth train), or two models with --pair BASE CHILD")
    if options.pair is not None:
        if told.task is None:
            raise InputError("--pair needs the task that both models are evaluated on: --task")
        base, child = options.pair
        subjects = [of_pair(base, child, told)]
    else:
        if told != EvaluationConfig():
            raise InputError("runs are evaluated as they were trained: options of an evaluation go with --pair")
        subjects = of_runs([Path(path) for path in options.runs])
    shares = {order: options.shares if order == "smallest" else options.control_shares for order in ORDERS}
    wrong = next((s for given in shares.values() for s in given if not 0 < s < 1), None)
    if wrong is not None:
        raise InputError(f"shares must lie between 0 and 1 (both ends are known), not {wrong:g}")
    wrong = next((m for m in options.multiples if not 0 < m < math.inf), None)
    if wrong is not None:
        raise InputError(f"multiples must be above 0, not {wrong:g}")
    check_folder(options.out)  # now, not after the evaluations
    hold(options.work / "lock", options)
    measured = [measure(s, shares, options.multiples, options.zeroing_seed, options.work) for s in subjects]
    command = shlex.join(["python", "-m", "llm.sparsity", *arguments])
    found = {"title": options.title or subjects[0].title, "command": command} | results(subjects, measured)
    write_tables(found, tables(found), options.out)
    plots.save(figure(found), options.out / "sparsity.png")
    return 0


_OFFERED = [f for f in fields(EvaluationConfig) if f.name not in ("k", "held_out")]


def _parser() -> Any:
    parser = ArgumentParser(prog="python -m llm.sparsity", description=__doc__, exit_on_error=False)
    add = parser.add_argument
    add("runs", nargs="*", default=[], help="folders of runs, one a seed")
    add("--pair", nargs=2, metavar=("BASE", "CHILD"), help="two models, in place of runs")
    add("--out", type=Path, required=True, help="folder of the results")
    add("--work", type=Path, default=Path("esth-sparsity"), help="folder of the evaluations: the same command goes on")
    add("--title", help="of the table and the figure")
    add("--shares", type=float, nargs="*", default=list(SHARES), help="of changed coordinates, smallest first")
    add("--control-shares", type=float, nargs="*", default=list(SHARES), help="in random order and largest first")
    add(
        "--multiples", type=float, nargs="*", default=list(MULTIPLES), help="of one ES step and sigma: thresholds tried"
    )
    add("--zeroing-seed", type=int, default=0, help="of the random order")
    parser.add_class_arguments(EvaluationConfig, skip={"k", "held_out"})
    return parser


# What is studied


@dataclass(frozen=True)
class Subject:
    """A base and a child, and how models are evaluated beside them.

    Attributes:
        name, title: of the child, of the arm.
        family: the weights.
        identity: what an evaluation is a function of, beside the model.
        scales: what thresholds are measured in.
        opened: gives the evaluation of a folder, until it is left.
    """

    name: str
    title: str
    family: Family
    identity: list[Any]
    scales: list[Scale]
    opened: Callable[[], Any]

    @cached_property
    def weights(self) -> list[str]:
        """Fingerprints of the base and of the child: all weights are read for them, once."""
        return [fingerprint(read_tensors(side.folder)) for side in (self.family.base, *self.family.children)]

    def folder(self, work: Path) -> Path:
        """Where its evaluations are kept: another model or another setting has another folder."""
        return work / f"{hashed(json.dumps([*self.weights, *self.identity], sort_keys=True)):016x}"


def of_runs(paths: Sequence[Path]) -> list[Subject]:
    """The runs of one arm.

    Raises:
        InputError: no run, one of the toy world, runs of several arms, one seed twice.
    """
    runs = [RunFolder(path) for path in paths]
    arms = [replace(run.config, seed=0, init=None) for run in runs]
    other = next((run for run, arm in zip(runs, arms, strict=True) if arm != arms[0]), None)
    if other is not None:
        raise InputError(f"{other.path} is a run of another configuration than {runs[0].path}: one arm at a time")
    if len({run.config.seed for run in runs}) < len(runs):
        raise InputError("runs of one arm need seeds of their own: one seed is there twice")
    return [of_run(run) for run in runs]


def of_run(run: RunFolder) -> Subject:
    """A run's last center beside where it started, on its own held-out problems.

    Raises:
        InputError: a run of the toy world, without a center or held-out problems, whose base has other weights now.
    """
    config = run.config
    if config.world == "toy":
        raise InputError(f"{run.path} is a run of the toy world: its 12 parameters are no model's")
    family = open_family(config.init or config.model, [run.path])
    if not all(HELD_OUT in point.sets for point in run.points()):
        raise InputError(f"{run.path} has no held-out problems: there is nothing to judge a rebuilt model by")
    subject = Subject(
        str(run.path),
        f"{config.model}, {config.method.upper()}",
        family,
        [to_json(config), HELD_OUT],
        scales(run, run.checkpoints()[-1]),
        lambda: _in_world(config),
    )
    if config.init is None and subject.weights[0] != run.identity.get("weights"):
        raise InputError(f"{run.path} began from other weights than {config.model} has now")
    return subject


@contextmanager
def _in_world(config: Config) -> Iterator[Evaluate]:
    """The run's own evaluation: its problems, its random numbers, its engine."""
    world = make_world(replace(config, init=None))
    evaluated = cast(Any, world).evaluated
    for name in set(evaluated) - {HELD_OUT}:
        del evaluated[name]

    def evaluate_folder(folder: Path) -> Evaluation:
        world.load(folder)
        (found,) = world.evaluate(config.evaluation_samples, hashed("evaluation", config.evaluation_samples))
        return found

    try:
        yield evaluate_folder
    finally:
        world.close()


def of_pair(base: str, child: str, config: EvaluationConfig) -> Subject:
    """Any base and child on a task.

    Raises:
        InputError: models that cannot be found or do not fit each other, whatever is wrong with the task.
    """
    config.tasks()

    @contextmanager
    def opened() -> Iterator[Evaluate]:
        yield lambda folder: evaluate(str(folder), config).model[0]

    settings = {f.name: getattr(config, f.name) for f in _OFFERED}
    return Subject(child, f"{base} and {child}", open_family(base, [child]), [settings], [], opened)


# Rebuilt and evaluated


class Measured(NamedTuple):
    """One subject's numbers.

    Attributes:
        changes: of its update.
        thresholds: name, size, and the share that random drift would leave below.
        scale: one step, if it is known.
        base, child: evaluations.
        tried: (order, cut, share zeroed, share of ‖Δ‖² kept, evaluation).
    """

    changes: Changes
    thresholds: list[tuple[str, float, float | None]]
    scale: Scale | None
    base: Evaluation
    child: Evaluation
    tried: list[tuple[str, str, float, float, Evaluation]]


def measure(
    subject: Subject, shares: dict[str, list[float]], multiples: Sequence[float], seed: int, work: Path
) -> Measured:
    """Rebuild and evaluate every model that `work` does not have yet."""
    told = sorted({*MULTIPLES, *multiples})
    thresholds = [
        (f"{m:g} {scale.name}", m * scale.size, scale.drift_below(m * scale.size))
        for scale in subject.scales
        for m in told
    ]
    update = changes(subject.family, [size for _, size, _ in thresholds])
    wanted = [
        (order, f"{share:g}", round(share * update.changed)) for order, given in shares.items() for share in given
    ]
    tried_too = {f"{m:g} {scale.name}" for scale in subject.scales for m in multiples}
    wanted += [("smallest", t[0], n) for t, n in zip(thresholds, update.below, strict=True) if t[0] in tried_too]
    kept = _Kept(subject, work, seed)
    kept.fill(wanted)
    tried = []
    for order, cut, count in wanted:
        found = kept.read(order, count)
        share = count / update.changed if update.changed else 0.0
        left = found["squares"] / update.squares if update.squares else 0.0
        tried.append((order, cut, share, left, Evaluation.from_dict(found["evaluation"])))
    scale = subject.scales[0] if subject.scales else None
    return Measured(update, thresholds, scale, kept.side("base"), kept.side("child"), tried)


class _Kept:
    """A subject's evaluations, each a file."""

    def __init__(self, subject: Subject, work: Path, seed: int) -> None:
        self.subject, self.seed, self.folder = subject, seed, subject.folder(work)

    def side(self, name: str) -> Evaluation:
        """Of the base, or of the unchanged child."""
        return Evaluation.from_dict(json.loads(self._side(name).read_text()))

    def read(self, order: str, count: int) -> dict[str, Any]:
        """What was found with so many coordinates zeroed."""
        return dict(json.loads(self._file(order, count).read_text()))

    def fill(self, wanted: Sequence[tuple[str, str, int]]) -> None:
        """Evaluate what is not there; the models are made one after another, and none is kept."""
        family = self.subject.family
        sides = {"base": family.base.folder, "child": family.children[0].folder}
        sides = {n: f for n, f in sides.items() if not self._side(n).is_file()}
        missing = {o: sorted({n for p, _, n in wanted if p == o and not self._file(o, n).is_file()}) for o in ORDERS}
        total, start, done = len(sides) + sum(map(len, missing.values())), time.monotonic(), 0
        if total == 0:
            return

        def said(what: str, evaluation: Evaluation) -> None:
            nonlocal done
            done += 1
            left = (time.monotonic() - start) / done * (total - done) / 60
            success = evaluation.per_prompt(1).mean()
            print(
                f"{self.subject.name}: {what}: pass@1 {success:.3f}, {done}/{total}, {left:.0f} min left",
                file=sys.stderr,
                flush=True,
            )

        with self.subject.opened() as evaluate_folder, tempfile.TemporaryDirectory() as scratch:
            for name, folder in sides.items():
                evaluation = evaluate_folder(folder)
                write_text(self._side(name), json.dumps(evaluation.to_dict()) + "\n")
                said(name, evaluation)
            for order, counts in missing.items():
                for cut in cuts(family, order, counts, self.seed) if counts else []:
                    with tempfile.TemporaryDirectory(dir=scratch) as place:
                        rebuilt = rebuild(family, cut, Path(place) / "model")
                        evaluation = evaluate_folder(Path(place) / "model")
                    found = {"zeroed": rebuilt.zeroed, "squares": rebuilt.squares, "evaluation": evaluation.to_dict()}
                    write_text(self._file(order, cut.zeroed), json.dumps(found) + "\n")
                    said(f"{order} first, {cut.zeroed:,} zeroed" if order != "random" else f"{cut.zeroed:,} at random",
                         evaluation)  # fmt: skip

    def _side(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _file(self, order: str, count: int) -> Path:
        return self.folder / f"{order}-{self.seed}-{count}.json"


# What is reported


def results(subjects: Sequence[Subject], measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything the tables and the figure show, as JSON types.

    Raises:
        InputError: runs that were evaluated on different problems.
    """
    cut = [m.tried for m in measured]
    tried = [
        Tried(
            order, name, [t[i][2] for t in cut], [t[i][3] for t in cut], [t[i][4] for t in cut]
        )
        for i, (order, name, *_) in enumerate(cut[0])
    ]  # fmt: skip
    curves = Curves([m.base for m in measured], [m.child for m in measured], tried)
    base = measured[0].base
    return {
        "versions": versions(),
        "evaluated": {"set": base.name, "problems": len(base.ids), "samples": base.samples, "seeds": len(measured)},
        "models": [
            {
                "name": s.name,
                "base": s.weights[0],
                "child": s.weights[1],
                "size": m.changes.size,
                "changed": m.changes.changed,
                "distance": math.sqrt(m.changes.squares),
                "notes": s.family.notes,
            }
            for s, m in zip(subjects, measured, strict=True)
        ],
        "thresholds": _thresholds(measured),
        "histogram": _histogram(measured),
        **curves.to_dict(),
    }


def _thresholds(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """For each threshold its size, and the shares of changed coordinates below it: measured, and of random drift."""
    return [
        {
            "name": measured[0].thresholds[i][0],
            "size": [m.thresholds[i][1] for m in measured],
            "share": [round(m.changes.below[i] / max(1, m.changes.changed), 6) for m in measured],
            "drift": [m.thresholds[i][2] for m in measured],
        }
        for i in range(len(measured[0].thresholds))
    ]


def _histogram(measured: Sequence[Measured]) -> dict[str, Any]:
    """Share of changed coordinates, mean over seeds, with |Δ| between neighbouring edges: as far as there are any."""
    counts = np.mean([m.changes.histogram / max(1, m.changes.changed) for m in measured], axis=0)
    there = np.flatnonzero(counts)
    first, last = (int(there[0]), int(there[-1])) if len(there) else (0, 0)
    edges = histogram_edges()[first : last + 2].astype(np.float64)
    found: dict[str, Any] = {"edges": edges.tolist(), "share": [round(float(c), 9) for c in counts[first : last + 1]]}
    if all(m.scale is not None and m.scale.drift is not None for m in measured):
        below = np.array([[m.scale.drift_below(edge) for edge in edges] for m in measured if m.scale], dtype=np.float64)
        found["drift"] = [round(float(share), 9) for share in np.diff(below.mean(axis=0))]
    return found


def tables(found: dict[str, Any]) -> list[Any]:
    """Thresholds; what is left of success by order and share; the readings and the verdict."""
    e = found["evaluated"]
    over = (
        f"{e['seeds']} seeds and {e['problems']} problems" if e["seeds"] > 1 else f"{e['problems']} problems, one seed"
    )
    out = []
    if found["thresholds"]:
        one = Table(title=rich_safe(f"{found['title']}: changed coordinates below a threshold"), title_justify="left")
        for column in ("threshold", "size", "share of |Δ| below", "by random drift alone (P4.4)"):
            one.add_column(column)
        for row in found["thresholds"]:
            drift = "" if row["drift"][0] is None else f"{np.mean(row['drift']):.4f}"
            one.add_row(row["name"], f"{np.mean(row['size']):.4g}", f"{np.mean(row['share']):.4f}", drift)
        out.append(one)
    quantities = list(found["child"])
    title = f"{found['title']}: {e['samples']} responses, less the unchanged child [95 %, {over}]"
    curve = Table(title=rich_safe(title), title_justify="left")
    first = ("zeroed", "", "share", "‖Δ‖² left", "by ‖Δ‖²")
    for column in (*first, *quantities, "no loss seen", f"within {MARGIN:g}"):
        curve.add_column(column, no_wrap=True)
    curve.caption = "by ‖Δ‖²: what pass@1 should lose to first order, the gain times the share of ‖Δ‖² that is zeroed"
    curve.caption_justify = "left"
    here = [f"{found['child'][q]['value'][0]:.3f}" for q in quantities]
    curve.add_row("nothing", "the child", "0", "1", "0", *here)
    for row in found["rows"]:
        loss = _interval(row["effects"]["pass@1"]["less child"])
        cells = [
            row["order"], row["cut"], f"{np.mean(row['share']):.4f}", f"{np.mean(row['kept']):.3f}",
            f"{row['expected']:+.3f}",
            *(signed(row["effects"][q]["less child"]) for q in quantities),
            *("yes" if passes(loss) else "no" for passes in (no_loss_seen, within_margin)),
        ]  # fmt: skip
        curve.add_row(*map(rich_safe, cells))
    # The base less the child is the gain, turned round.
    gains = {q: found["child"][q]["gain"] for q in quantities}
    turned = [signed([-x for x in (gain[0], gain[2], gain[1])]) for gain in gains.values()]
    curve.add_row("everything", "the base", "1", "0", f"{-gains['pass@1'][0]:+.3f}", *map(rich_safe, turned))
    out.append(curve)
    read = Table(title=rich_safe(f"{found['title']}: the largest share that can be zeroed"), title_justify="left")
    for column in ("zeroed", "no loss seen", f"a loss of {MARGIN:g} excluded"):
        read.add_column(column)
    for order, row in found["largest"].items():
        read.add_row(f"{order} first" if order != "random" else order, *(f"{share:.4f}" for share in row.values()))
    learned = "learned" if found["learned"] else "not established"
    read.caption = rich_safe(f"the run's own gain: {learned}; C5, {PAPER[0]:.1%} to {PAPER[1]:.1%}: {found['verdict']}")
    read.caption_justify = "left"
    return [*out, read]


def _interval(found: Sequence[float]) -> Interval:
    return Interval(*(np.array(x) for x in found))


def figure(found: dict[str, Any]) -> Any:
    """pass@1 and @16 against the share zeroed, pass@1 against what is left of ‖Δ‖², and how large the changes are."""
    wide = next(q for q in ("pass@16", "greedy") if q in found["child"])
    fig, axes = plots.figure(found["title"], 4)
    for ax, quantity in zip(axes, ("pass@1", wide), strict=False):
        _curves(ax, found, quantity, "share", "share of changed coordinates zeroed")
    plots.level(axes[0], -MARGIN, name=f"a loss of {MARGIN:g}")
    for ax in axes[:2]:
        plots.legend(ax)
    _curves(axes[2], found, "pass@1", "kept", "share of ‖Δ‖² that is left")
    gain = found["child"]["pass@1"]["gain"][0]
    plots.predicted(axes[2], [0, 1], [-gain, 0], style=3, name="first order: gain × share of ‖Δ‖²")
    plots.legend(axes[2])
    _sizes(axes[3], found)
    return fig


def _curves(ax: Any, found: dict[str, Any], quantity: str, against: str, x: str) -> None:
    """A quantity less the unchanged child's, paired, in three orders; the base's with its interval as a band."""
    value, lower, upper = found["child"][quantity]["gain"]
    plots.level(ax, 0.0)
    plots.band(ax, [-0.02, 1.02], [-upper] * 2, [-lower] * 2, name="the base")
    plots.level(ax, -value)
    ends = {"share": (0.0, 1.0), "kept": (1.0, 0.0)}[against]
    for style, order in enumerate(ORDERS):
        rows = sorted((r for r in found["rows"] if r["order"] == order), key=lambda r: float(np.mean(r["share"])))
        at = [float(np.mean(r[against])) for r in rows]
        less = np.array([r["effects"][quantity]["less child"] for r in rows]).reshape(-1, 3)
        if against == "share":
            plots.predicted(ax, [ends[0], *at, ends[1]], [0.0, *less[:, 0], -value], style=style)
        name = f"{order} zeroed" if order == "random" else f"{order} zeroed first"
        plots.interval(ax, np.array(at) + 0.006 * (style - 1), less, style=style, name=name)
    plots.label(ax, f"{quantity}, held out, 95 %", x, f"{quantity} less the unchanged child's")


def _sizes(ax: Any, found: dict[str, Any]) -> None:
    """How |Δ| is distributed, in units of one step, beside random drift of as many steps."""
    steps = {t["name"]: t for t in found["thresholds"]}
    unit = float(np.mean(steps["1 step"]["size"])) if "1 step" in steps else 1.0
    edges, share = np.array(found["histogram"]["edges"]), np.array(found["histogram"]["share"])
    octaves = np.log2(
        np.where(edges[1:] > edges[:-1], edges[1:], np.inf) / np.where(edges[:-1] > 0, edges[:-1], np.nan)
    )
    ax.stairs(np.nan_to_num(share / octaves), edges / unit, color=plots.COLOURS[0], label="measured")
    drift = found["histogram"].get("drift")
    if drift is not None:
        middle = np.sqrt(edges[1:] * edges[:-1]) / unit
        plots.predicted(ax, middle, np.array(drift) / octaves, style=1, name="random drift alone (P4.4)")
    for name, place in (("1 step", "one step"), ("1 sigma", "sigma")):
        if name in steps:
            at = float(np.mean(steps[name]["size"])) / unit
            plots.level(ax, at, vertical=True)
            ax.annotate(f" {place}", (at, 0.97), xycoords=("data", "axes fraction"), fontsize=7.5, va="top")
    x = "|Δ| / one step" if unit != 1.0 else "|Δ|"
    plots.label(ax, "sizes of the changes", x, "share of changed coordinates an octave", log="x")
    seen = edges[:-1][np.cumsum(share) > 1e-3]
    if len(seen):
        ax.set_xlim(seen[0] / unit, edges[-1] / unit)
    plots.legend(ax, place="upper left")


if __name__ == "__main__":
    sys.exit(main())
