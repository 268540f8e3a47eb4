"""Figures of a report, as SVG that is the same bytes for the same runs."""

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth import plots
from esth.analysis.report.runs import Arm, Experiment
from esth.analysis.report.tables import effects
from esth.errors import require
from esth.training.compare import Effect, common_updates

Float = NDArray[np.float64]

STYLES = len(plots.COLOURS)
"""Arms in one figure: each has a style of its own."""

UPDATE = {
    "reward": (("reward",), "mean reward", "reward"),
    "spread": (("spread", "reward_std", "reward_spread"), "spread of rewards (ES: members, GRPO: responses)", "sd"),
    "truncated": (("truncated",), "responses cut at the token limit", "share"),
    "entropy": (("entropy",), "entropy of the responses", "nats/token"),
}
"""Panels of updates: the names that a quantity has in metrics.jsonl, a title, a unit."""


def figures(experiment: Experiment) -> Iterator[tuple[str, str, str]]:
    """(caption, what is seen in words, SVG) of each figure; more arms than styles come in several."""
    for start in range(0, len(experiment.arms), STYLES):
        arms = experiment.arms[start : start + STYLES]
        names = ", ".join(arm.key for arm in arms)
        part = f": arms {arms[0].letter} to {arms[-1].letter}" if len(experiment.arms) > STYLES else ""
        yield (
            f"Held-out problems along training{part}. At each end: the interval of the gain over the start.",
            f"Lines of pass@1, pass@{experiment.tries[-1]}, greedy accuracy, entropy and drift against updates, and the"
            f" path of both gains, for {names}; the numbers are in the table Along training.",
            _along(experiment, arms),
        )
        if any(len(run.metrics) > 1 for arm in arms for chain in arm.chains for run in chain):
            yield (
                f"Update by update, mean over seeds{part}. Where a quantity was not measured its line is missing.",
                f"Lines of mean reward, spread of rewards, share of cut responses and entropy, by update, for {names}.",
                _updates(experiment, arms),
            )
        trained = [a for a in arms if all(t.end.updates > 0 for t in a.trajectories)]
        if trained:
            yield (
                f"Gain at the end on every evaluation set{part}, with its interval.",
                f"Points with intervals: gain in pass@1 and pass@{experiment.tries[-1]} of {names} on "
                f"{', '.join(experiment.sets)}; the numbers are in the tables of the ends.",
                _gains(experiment, trained),
            )


def _along(experiment: Experiment, arms: Sequence[Arm]) -> str:
    ks = experiment.tries
    wide = f"pass@{ks[-1]}"
    shown = {"pass@1": "", wide: "", "greedy": "", "entropy": " (nats/token)"}
    with _settings():
        fig, axes = plots.figure("", len(shown) + 2, columns=3, panel=(4.0, 3.1))
        for style, arm in enumerate(arms):
            x, drift, curve = _curve(arm, ks)
            for ax, quantity in zip(axes, shown, strict=False):
                y = [float(e[quantity].value.value) for e in curve]
                plots.predicted(ax, x, y, style=style, name=experiment.labels[arm.letter])
                _end(ax, x[-1], y[-1], curve[-1][quantity], style)
            plots.predicted(axes[-2], x, drift, style=style)
            plots.measured(axes[-2], x[-1:], drift[-1:], style=style)
            gains = np.array([[float(e[q].gain.value) for q in ("pass@1", wide)] for e in curve])
            plots.predicted(axes[-1], gains[:, 0], gains[:, 1], style=style)
            plots.measured(axes[-1], gains[-1:, 0], gains[-1:, 1], style=style)
        for ax, (quantity, unit) in zip(axes, shown.items(), strict=False):
            plots.label(ax, quantity, "updates", f"{quantity}{unit}")
        plots.label(axes[-2], "drift from the base", "updates", "‖θ − θ₀‖/‖θ₀‖")
        plots.level(axes[-1], 0.0)
        plots.level(axes[-1], 0.0, vertical=True)
        plots.label(axes[-1], "the trade: paths of training", "gain in pass@1", f"gain in {wide}")
        axes[-1].locator_params(axis="x", nbins=5)
        _legend(fig, axes[0])
        return _svg(fig)


def _curve(arm: Arm, ks: Sequence[int]) -> tuple[list[float], list[float], list[dict[str, Effect]]]:
    """Updates, drift and held-out effects at every center at which all seeds were evaluated."""
    x = common_updates(arm.trajectories)
    places = [[t.at_updates(updates) for t in arm.trajectories] for updates in x]
    starts = [t.start for t in arm.trajectories]
    drift = [float(np.mean([s.point.drift for s in stops])) for stops in places]
    return x, drift, [effects(stops, starts, "held-out", ks) for stops in places]


def _end(ax: Any, x: float, y: float, effect: Effect, style: int) -> None:
    """The end of a line, with the interval of its gain."""
    below, above = effect.gain.value - effect.gain.lower, effect.gain.upper - effect.gain.value
    ax.errorbar(
        [x], [y], yerr=[[max(0.0, float(below))], [max(0.0, float(above))]], fmt=plots.MARKERS[style],
        color=plots.COLOURS[style], markerfacecolor="white", capsize=2, markersize=5, linewidth=1,
    )  # fmt: skip


def _updates(experiment: Experiment, arms: Sequence[Arm]) -> str:
    with _settings():
        fig, axes = plots.figure("", len(UPDATE), columns=2, panel=(5.2, 3.0))
        for ax, (names, title, unit) in zip(axes, UPDATE.values(), strict=True):
            for style, arm in enumerate(arms):
                values = _per_update(arm, names)
                plots.predicted(
                    ax, np.arange(1, len(values) + 1), values, style=style, name=experiment.labels[arm.letter]
                )
            plots.label(ax, title, "updates", unit)
        _legend(fig, axes[0])
        return _svg(fig)


def _per_update(arm: Arm, names: Sequence[str]) -> Float:
    """A quantity of each update, mean over the seeds that have had it and measured it; NaN where none has."""
    lines = [[line for run in chain for line in run.metrics] for chain in arm.chains]
    values = np.full((len(lines), max(map(len, lines))), np.nan)
    for row, of_seed in zip(values, lines, strict=True):
        found = [next((line[n] for n in names if isinstance(line.get(n), int | float)), math.nan) for line in of_seed]
        row[: len(found)] = found
    known = np.isfinite(values)
    return np.asarray(
        np.divide(
            np.where(known, values, 0.0).sum(0), known.sum(0), out=np.full(values.shape[1], np.nan), where=known.any(0)
        )
    )


def _gains(experiment: Experiment, arms: Sequence[Arm]) -> str:
    """A row an arm, a marker an evaluation set."""
    ks, sets = experiment.tries, experiment.sets
    quantities = list(dict.fromkeys(("pass@1", f"pass@{ks[-1]}")))
    with _settings():
        fig, axes = plots.figure("", len(quantities), columns=2, panel=(5.2, 1.2 + 0.3 * len(arms) * len(sets)))
        for row, arm in enumerate(arms):
            stops, starts = [t.end for t in arm.trajectories], [t.start for t in arm.trajectories]
            for number, name in enumerate(sets):
                found = effects(stops, starts, name, ks)
                y = row + (number - 0.5 * (len(sets) - 1)) * 0.7 / len(sets)
                for ax, quantity in zip(axes, quantities, strict=True):
                    value, lower, upper = (float(v) for v in found[quantity].gain)
                    style = number % STYLES
                    ax.errorbar(
                        [value], [y], xerr=[[max(0.0, value - lower)], [max(0.0, upper - value)]], capsize=2,
                        fmt=plots.MARKERS[style], color=plots.COLOURS[style], markerfacecolor="white", markersize=5,
                        linewidth=1, label=name if row == 0 else None,
                    )  # fmt: skip
        for ax, quantity in zip(axes, quantities, strict=True):
            plots.level(ax, 0.0, vertical=True)
            plots.label(ax, f"gain in {quantity}", f"gain in {quantity}", "")
            ax.set_yticks(range(len(arms)), labels=[arm.key if ax is axes[0] else arm.letter for arm in arms])
            ax.set_ylim(len(arms) - 0.5, -0.5)
        _legend(fig, axes[0])
        return _svg(fig)


def _legend(fig: Any, ax: Any) -> None:
    """Below all panels, where it covers nothing."""
    handles, labels = ax.get_legend_handles_labels()
    longest = max(map(len, labels))
    fig.legend(
        handles, labels, loc="outside lower center", fontsize=8, frameon=False, handlelength=2.8,
        ncols=max(1, min(len(labels), int(150 / (longest + 8)))),
    )  # fmt: skip


def _settings() -> Any:
    """Ids in the SVG are hashes of a fixed salt."""
    return require("matplotlib", "plot").rc_context({"svg.hashsalt": "esth", "svg.fonttype": "path"})


def _svg(fig: Any) -> str:
    stream = io.StringIO()
    fig.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()
