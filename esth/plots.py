"""Figures of measurements over predictions: points with intervals, lines, shaded brackets; readable in grey.

Built on matplotlib's object interface: no global state, no display needed. A style is an integer: series of one style
belong together, and each style has its own colour, marker and dash pattern, so that none is told by colour alone.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esth.check import Z
from esth.errors import require

COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#aa4499", "#7f7f7f", "#56b4e9", "#8c510a")
MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)), (0, (3, 1, 1, 1)))


def figure(title: str, n_panels: int, *, columns: int = 2, panel: tuple[float, float] = (5.2, 3.7)) -> tuple[Any, Any]:
    """A figure of `n_panels` panels in rows of `columns`, each `panel` inches: (matplotlib Figure, list of Axes)."""
    rows = -(-n_panels // columns)
    size = (panel[0] * min(columns, n_panels), panel[1] * rows)
    fig = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    fig.suptitle(title, fontsize=11)
    axes = [fig.add_subplot(rows, columns, i + 1) for i in range(n_panels)]
    for ax in axes:
        ax.tick_params(labelsize=8, which="both")
        ax.grid(True, which="major", linewidth=0.4, color="#dddddd")
        ax.set_axisbelow(True)
    return fig, axes


def label(ax: Any, title: str, x: str, y: str, *, log: str = "") -> None:
    """Title and axis labels (with units) of a panel; `log` names the logarithmic axes: "", "x", "y" or "xy"."""
    ax.set_title(title, fontsize=9.5, loc="left")
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    if "x" in log:
        ax.set_xscale("log")
    if "y" in log:
        ax.set_yscale("log")


def measured(
    ax: Any, x: ArrayLike, y: ArrayLike, se: ArrayLike | None = None, *, style: int = 0, name: str = "", size: float = 5
) -> None:
    """Points with 99 % intervals of `se`, their standard errors (None: exact)."""
    half = None if se is None else Z * np.asarray(se)
    ax.errorbar(
        x, y, yerr=half, fmt=MARKERS[style], color=COLOURS[style], markersize=size, capsize=2, linewidth=1,
        markerfacecolor="white", markeredgewidth=1.1, label=name or None, zorder=3,
    )  # fmt: skip


def interval(ax: Any, x: ArrayLike, values: ArrayLike, *, style: int = 0, name: str = "") -> None:
    """Points with intervals of their own: values [n, 3], each (value, lower, upper)."""
    value, lower, upper = np.asarray(values, dtype=np.float64).T
    ax.errorbar(
        x, value, yerr=[value - lower, upper - value], fmt=MARKERS[style], color=COLOURS[style], markersize=5,
        capsize=2, linewidth=1, markerfacecolor="white", markeredgewidth=1.1, label=name or None, zorder=3,
    )  # fmt: skip


def predicted(ax: Any, x: ArrayLike, y: ArrayLike, *, style: int = 0, name: str = "") -> None:
    """A line of predicted values."""
    ax.plot(x, y, linestyle=DASHES[style], color=COLOURS[style], linewidth=1.3, label=name or None, zorder=2)


def band(ax: Any, x: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, name: str = "") -> None:
    """The shaded area between two guaranteed bounds."""
    ax.fill_between(x, lower, upper, color="#cccccc", alpha=0.6, linewidth=0, label=name or None, zorder=1)


def level(ax: Any, y: float, *, name: str = "", vertical: bool = False) -> None:
    """A thin reference line at height `y`, or at the abscissa `y` if `vertical`."""
    draw = ax.axvline if vertical else ax.axhline
    draw(y, color="#666666", linewidth=0.9, linestyle=(0, (2, 2)), label=name or None, zorder=1)


def ticks(ax: Any, values: ArrayLike) -> None:
    """Put the ticks of the horizontal axis at `values`, written as plain numbers also on a logarithmic axis."""
    ax.set_xticks(values, labels=[f"{value:g}" for value in np.asarray(values)])
    ax.set_xticks([], minor=True)


def legend(ax: Any, *, place: str = "best", columns: int = 1) -> None:
    """A legend of the named series, marker and line of one name shown once."""
    ax.legend(fontsize=7.5, loc=place, ncols=columns, framealpha=0.9, handlelength=2.6, borderpad=0.4)


def save(fig: Any, path: Path, *, dpi: int = 150) -> None:
    """Write the figure in the format of `path`'s ending; the file is replaced atomically and bears no date."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    try:
        fig.savefig(temporary, dpi=dpi, metadata={"Software": None} if path.suffix == ".png" else None)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
