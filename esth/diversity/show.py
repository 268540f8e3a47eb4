"""Reports as tables on a terminal."""

import math

from rich.console import Console
from rich.table import Table

from esth.check import rich_safe, table
from esth.diversity.compare import Comparison
from esth.diversity.plan import Plan
from esth.diversity.report import CONFIDENCE, Quantity, Report


def show_report(report: Report, console: Console | None = None) -> None:
    """Settings in a line, quantities with intervals, checks."""
    console = console or _console()
    s = report.settings
    console.print(
        f"[bold]{rich_safe(str(s['model']))}[/] · {s['members']} members, {s['family']}, sigma {s['sigma']:g} · "
        f"{s['prompts']} prompts of {rich_safe(str(s['task']))} × {s['samples']} responses a member · "
        f"temperature {s['temperature']:g}, at most {s['max_tokens']} tokens · {s['dtype']} · seed {s['seed']}"
    )
    console.print(_table("Quantities", list(report.quantities.values())))
    console.print(f"[dim]Intervals: {CONFIDENCE:.0%}, over prompts of this task, for this population of members.[/]")
    console.print(table(report.checks))


def show_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Paired differences second − first."""
    console = console or _console()
    title = f"{rich_safe(comparison.second)} − {rich_safe(comparison.first)}"
    console.print(_table(title, comparison.quantities))


def show_plan(plan: Plan, console: Console | None = None) -> None:
    """What a sample would cost and how precise it would be."""
    console = console or _console()
    for line in plan.lines():
        console.print(rich_safe(line))


def _table(title: str, quantities: list[Quantity]) -> Table:
    out = Table(title=title, title_justify="left")
    out.add_column("quantity", no_wrap=True)
    out.add_column("unit")
    out.add_column(f"value [{CONFIDENCE:.0%}]".replace("[", r"\["), no_wrap=True)
    out.add_column("")
    out.add_column("note")
    for q in quantities:
        exact = q.lower == q.upper or math.isnan(q.lower)
        interval = "" if exact else f" [{q.lower:.3g}, {q.upper:.3g}]"
        out.add_row(q.name, q.unit, rich_safe(f"{q.value:.4g}{interval}"), q.kind, rich_safe(q.note))
    return out


def _console() -> Console:
    """The terminal; where there is none (a pipe, a file) lines are long enough not to break the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=150)
