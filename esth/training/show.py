"""A run on a terminal: a bar while it trains, a table of its start and end when it is over."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from esth.training.folder import RunFolder
from esth.training.run import Watch

LINE_SECONDS = 30.0
"""Where there is no terminal, a line at most this often."""


@contextmanager
def watching(updates: int) -> Iterator[Watch]:
    """Reward, entropy, tokens/s and time left: a bar on a terminal's standard error, lines elsewhere."""
    console = Console(stderr=True)
    with _bar(console, updates) if console.is_terminal else _lines(updates) as watch:
        yield watch


@contextmanager
def _bar(console: Console, updates: int) -> Iterator[Watch]:
    columns = (TextColumn("{task.fields[said]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(compact=True), console=console, transient=True) as bars:
        task = bars.add_task("", total=updates, said="starting")

        def watch(update: int, metrics: dict[str, Any]) -> None:
            bars.update(task, completed=update, said=said(metrics))

        yield watch


@contextmanager
def _lines(updates: int) -> Iterator[Watch]:
    last = start = time.monotonic()
    first: int | None = None

    def watch(update: int, metrics: dict[str, Any]) -> None:
        nonlocal last, first
        first = update - 1 if first is None else first
        now = time.monotonic()
        if now - last >= LINE_SECONDS or update == updates:
            left = (now - start) / (update - first) * (updates - update)
            print(f"{update}/{updates} {said(metrics)}, {left / 60:.0f} min left", file=sys.stderr, flush=True)
            last = now

    yield watch


def said(metrics: dict[str, Any]) -> str:
    """What people watch, of one update."""
    entropy = metrics.get("entropy")
    known = entropy is not None and not math.isnan(entropy)
    return (
        f"reward {metrics['reward']:.3f}"
        + (f", entropy {entropy:.3f}" if known else "")
        + f", {metrics['tokens'] / max(metrics['seconds'], 1e-9):,.0f} tokens/s"
        + (f" ({metrics['note']})" if "note" in metrics else "")
    )


def show_run(run: RunFolder, console: Console | None = None) -> None:
    """The run's end beside its start, on the same prompts, and what it cost."""
    from esth.training.evaluation import table

    console = console or _console()
    start, *_, end = [*run.points()[:1], *run.points()]
    console.print(table(list(end.sets.values()), list(start.sets.values()), against="the start's"))
    zero = sum("note" in line for line in run.metrics())
    if zero > 0:
        console.print(
            f"{zero} of {len(run.metrics())} updates were zero: all members earned the same (a larger sigma?)"
        )
    spent = end.spent
    console.print(
        f"{end.update} updates · relative drift {end.drift:.3g} · "
        f"{spent.responses:,} responses, {spent.tokens:,} tokens, "
        f"{spent.forward_passes:,} forward and {spent.backward_passes:,} backward passes · {end.seconds:,.0f} s · "
        f"peak memory {end.peak_memory / 2**30:.2f} GiB"
    )


def _console() -> Console:
    """The terminal; where there is none lines are long enough not to break the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=150)
