"""A study: several methods, several seeds, one table: what was gained, at matched what, beside random drift.

`run_study` makes the runs (those that are there already stay), `results` reads them into JSON types, `tables` and
`figure` show these. Nothing here knows a world: the toy world's evaluations are exact, the others' are samples.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from esth import plots
from esth._files import check_folder, write_text
from esth.check import rich_safe, signed
from esth.diversity.sampling import versions
from esth.errors import InputError, require
from esth.training.compare import (
    DRAWS,
    GAINS,
    MARGIN,
    Arm,
    Effect,
    Stop,
    Trajectory,
    common_updates,
    effects,
    learned,
    matched,
    pass_at_1,
    random_drift,
    run_arm,
)
from esth.training.config import to_json
from esth.training.differences import differences
from esth.training.evaluation import Evaluation

MATCHED = ("updates", "responses", *GAINS)
SHOWN = ("pass@1", "pass@16", "pass@32", "greedy", "entropy")

Watch = Callable[[str, int, dict[str, Any]], None]


def study_options(parser: Any, arguments: Sequence[str], seeds: int, out: Path = Path("results/training")) -> Any:
    """The options of a study's command: how many seeds, where runs and results are, with these defaults.

    Raises:
        InputError: fewer than 2 seeds.
        MissingExtra: no matplotlib, which would be noticed after the runs.
    """
    parser.add_argument("--seeds", type=int, default=seeds, help="runs of each method, at least 2")
    parser.add_argument("--runs", type=Path, default=Path("esth-training"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=out, help="folder of the results")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        raise InputError(f"seeds must be at least 2, for an interval, not {options.seeds}")
    require("matplotlib", "plot")
    check_folder(options.out)  # now, not after the runs
    return options


def run_study(arms: Sequence[Arm], seeds: Sequence[int], folder: Path, watch: Watch) -> dict[str, list[Trajectory]]:
    """All arms with all seeds, seed after seed, so that what is there when it stops can be compared."""
    found: dict[str, list[Trajectory]] = {arm.name: [] for arm in arms}
    for number, seed in enumerate(seeds):
        for arm in arms:
            if arm.seeds is None or number < arm.seeds:
                found[arm.name].append(run_arm(arm, seed, folder, watch))
    return found


def results(arms: Sequence[Arm], runs: dict[str, list[Trajectory]], ks: Sequence[int], compared: Sequence[str]) -> Any:
    """Everything the tables and the figure show, as JSON types.

    Args:
        compared: the arms of the comparison at matched updates, responses and gain; the others stand for themselves.
    """
    drifts = {name: [_drift(t) for t in trajectories] for name, trajectories in runs.items()}
    ends = {name: [t.end for t in trajectories] for name, trajectories in runs.items()}
    found: dict[str, Any] = {
        "versions": versions(),
        "margin": MARGIN,
        "draws": DRAWS,
        "arms": {arm.name: [_settings(to_json(config)) for config in arm.stages] for arm in arms},
        "curves": {name: _curve(trajectories, ks) for name, trajectories in runs.items()},
        "ends": {name: _row(stops, runs[name], ks, drifts[name]) for name, stops in ends.items()},
        "differences": differences(ends, ks, SHOWN),
        "matched": {},
        "learned": {},
    }
    for by in MATCHED:
        what, places = matched({name: runs[name] for name in compared}, by)
        rows = {}
        for name, stops in places.items():
            reached = [s for s in stops if s is not None]
            rows[name] = _row(reached, runs[name], ks, None) if len(reached) == len(stops) else None
        found["matched"][by] = {"what": what, "rows": rows, "differences": differences(places, ks, SHOWN)}
    for name, reached in ends.items():
        gains = effects(reached, [t.start for t in runs[name]], "held-out", ks, drifts[name])
        found["learned"][name] = learned(gains)
    return found


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ("seed", "init")}


def _drift(trajectory: Trajectory) -> list[list[Evaluation]]:
    return random_drift(trajectory.stages[-1], trajectory.end.point.drift)


def _row(
    stops: Sequence[Stop],
    trajectories: Sequence[Trajectory],
    ks: Sequence[int],
    drifts: list[list[list[Evaluation]]] | None,
) -> dict[str, Any]:
    """An arm at one place: what it took, and its effects on every evaluation set."""
    starts = [t.start for t in trajectories]
    sets = list(starts[0].sets)
    return {
        "seeds": len(stops),
        "updates": [round(s.updates, 1) for s in stops],
        "responses": [round(s.between(lambda p: p.spent.responses)) for s in stops],
        "tokens": [round(s.between(lambda p: p.spent.tokens)) for s in stops],
        "backward_passes": [round(s.between(lambda p: p.spent.backward_passes)) for s in stops],
        "seconds": [round(s.between(lambda p: p.seconds), 1) for s in stops],
        "peak_memory": [s.point.peak_memory for s in stops],
        "drift": [s.between(lambda p: p.drift) for s in stops],
        "pass@1 of each seed": [float(s.between(lambda p: pass_at_1(p.sets["held-out"]))) for s in stops],
        "effects": {name: _plain(effects(stops, starts, name, ks, drifts)) for name in sets},
    }


def _plain(found: dict[str, Effect]) -> dict[str, Any]:
    return {
        quantity: {f: None if x is None else x.rounded() for f, x in effect._asdict().items()}
        for quantity, effect in found.items()
    }


def _curve(trajectories: Sequence[Trajectory], ks: Sequence[int]) -> list[dict[str, Any]]:
    """The arm at every place that all its seeds have been evaluated at."""
    starts = [t.start for t in trajectories]
    return [
        {
            "updates": updates,
            "responses": float(np.mean([s.point.spent.responses for s in stops])),
            "drift": float(np.mean([s.point.drift for s in stops])),
            **{name: _plain(effects(stops, starts, name, ks)) for name in ("held-out", "train")},
        }
        for updates in common_updates(trajectories)
        for stops in [[t.at_updates(updates) for t in trajectories]]
    ]


# What is shown


class Said:
    """A line every half minute of which run is at which update."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, told: str, update: int, metrics: dict[str, Any]) -> None:
        if time.monotonic() - self.last > 30:
            self.last = time.monotonic()
            print(f"{told}: update {update}, reward {metrics['reward']:.3f}", file=sys.stderr, flush=True)


def write_study(found: dict[str, Any], out: Path, title: str, shown: Sequence[str]) -> None:
    """study.json, table.txt, training.png, and the tables on the terminal."""
    write_tables(found, tables(found, title), out)
    plots.save(figure(found, title, shown), out / "training.png")


def write_tables(found: dict[str, Any], shown: Sequence[Any], out: Path) -> None:
    """study.json, and tables both on the terminal and in table.txt."""
    from rich.console import Console

    write_text(out / "study.json", json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    console = Console(width=200, record=True)
    for table in shown:
        console.print(table)
    write_text(out / "table.txt", console.export_text())


def tables(found: dict[str, Any], title: str) -> list[Any]:
    """The ends beside random drift, and the arms at matched updates, responses and gain."""
    from rich.table import Table

    out = []
    ends = Table(title=f"{title}: ends, gain over the base on held-out problems [95 %]", title_justify="left")
    for column in ("arm", "seeds", "updates", "responses", "drift", *SHOWN, "learned"):
        ends.add_column(column, no_wrap=column == "arm")
    for name, row in found["ends"].items():
        gains = row["effects"]["held-out"]
        cells = [_signed(gains[q]["gain"]) for q in SHOWN if q in gains]
        ends.add_row(name, *_took(row), *cells, "yes" if found["learned"][name] else "no")
        cells = [_signed(gains[q]["beyond_drift"]) for q in SHOWN if q in gains]
        ends.add_row("  less random drift", "", "", "", "", *cells, "", style="dim")
    out.append(ends)
    for by, match in found["matched"].items():
        one = Table(title=rich_safe(f"{title}: matched {by}: {match['what']}"), title_justify="left")
        for column in ("arm", "seeds", "updates", "responses", "drift", *SHOWN):
            one.add_column(column, no_wrap=column == "arm")
        for name, row in match["rows"].items():
            if row is None:
                one.add_row(name, "not reached by all seeds")
                continue
            gains = row["effects"]["held-out"]
            one.add_row(name, *_took(row), *[_signed(gains[q]["gain"]) for q in SHOWN if q in gains])
        out.append(one)
    return out


def _took(row: dict[str, Any]) -> list[str]:
    updates, responses = np.mean(row["updates"]), np.mean(row["responses"])
    return [str(row["seeds"]), f"{updates:.0f}", f"{responses:,.0f}", f"{np.mean(row['drift']):.3g}"]


def _signed(interval: list[float] | None) -> str:
    if interval is None:
        return ""
    return rich_safe(signed(interval))


def told(interval: Sequence[float]) -> str:
    """A difference with its interval; in round brackets, as rich reads square ones."""
    return "{:+.3f} ({:+.3f} … {:+.3f})".format(*interval)


def figure(found: dict[str, Any], title: str, shown: Sequence[str]) -> Any:
    """pass@1, the largest pass@k, greedy accuracy and entropy along training, and gain in pass@1 against pass@k."""
    ks = [q for q in found["ends"][shown[0]]["effects"]["held-out"] if q.startswith("pass@")]
    wide = ks[-1]
    fig, axes = plots.figure(title, 6)
    for ax, quantity, unit in zip(
        axes, ("pass@1", wide, "greedy", "entropy"), ("", "", "", " (nats/token)"), strict=False
    ):
        for style, name in enumerate(shown):
            curve = found["curves"][name]
            x = [stop["updates"] for stop in curve]
            value = np.array([stop["held-out"][quantity]["value"] for stop in curve])
            gain = np.array([stop["held-out"][quantity]["gain"] for stop in curve])
            plots.predicted(ax, x, value[:, 0], style=style, name=name)
            end = value[-1, 0]
            ax.errorbar(
                [x[-1]], [end], yerr=[[gain[-1, 0] - gain[-1, 1]], [gain[-1, 2] - gain[-1, 0]]],
                fmt=plots.MARKERS[style], color=plots.COLOURS[style], markerfacecolor="white", capsize=2, markersize=5,
            )  # fmt: skip
        plots.label(ax, f"{quantity}, held out", "updates", f"{quantity}{unit}")
    _trade(axes[4], found, shown, wide)
    _against_drift(axes[5], found, shown)
    return fig


def _trade(ax: Any, found: dict[str, Any], shown: Sequence[str], wide: str) -> None:
    """Each arm's path in the plane of both gains."""
    for style, name in enumerate(shown):
        path = np.array([[stop["held-out"][q]["gain"][0] for q in ("pass@1", wide)] for stop in found["curves"][name]])
        plots.predicted(ax, path[:, 0], path[:, 1], style=style, name=name)
        plots.measured(ax, path[-1:, 0], path[-1:, 1], style=style)
    plots.level(ax, 0.0)
    plots.level(ax, 0.0, vertical=True)
    plots.label(ax, "the trade: paths of training", "gain in pass@1", f"gain in {wide}")
    plots.legend(ax)


def _against_drift(ax: Any, found: dict[str, Any], shown: Sequence[str]) -> None:
    """Gain at the end in every pass@k: training (filled) beside random drift of the same norm (hollow)."""
    names = [q for q in found["ends"][shown[0]]["effects"]["held-out"] if q.startswith("pass@")]
    for style, name in enumerate(shown):
        gains = found["ends"][name]["effects"]["held-out"]
        x = np.array([int(q.removeprefix("pass@")) for q in names]) * 1.06 ** (style - len(shown) / 2)
        gain = np.array([gains[q]["gain"] for q in names])
        beyond = np.array([gains[q]["beyond_drift"] for q in names])
        ax.errorbar(
            x, gain[:, 0], yerr=[gain[:, 0] - gain[:, 1], gain[:, 2] - gain[:, 0]], fmt=plots.MARKERS[style],
            color=plots.COLOURS[style], capsize=2, markersize=5, linewidth=1, label=name,
        )  # fmt: skip
        ax.plot(
            x, gain[:, 0] - beyond[:, 0], linestyle="none", marker=plots.MARKERS[style], markersize=5,
            markerfacecolor="white", color=plots.COLOURS[style],
        )  # fmt: skip
    plots.level(ax, 0.0, name="base")
    plots.label(ax, "ends; hollow: random drift of the same norm", "k", "gain in pass@k", log="x")
    plots.ticks(ax, [int(q.removeprefix("pass@")) for q in names])
