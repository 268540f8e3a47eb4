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
    console = Console() if console is None else console
    s = report.settings
    console.print(
        f"[bold]{rich_safe(str(s['model']))}[/] · {s['members']} members, {s['family']}, sigma {s['sigma']:g} · "
        f"{s['prompts']} prompts of {rich_safe(str(s['task']))} × {s['samples']} responses a member · "
        f"temperature {s['temperature']:g}, at most {s['max_tokens']} tokens · {s['dtype']} · seed {s['seed']}"
    )
    console.print(_table("Quantities", list(report.quantities.values())))
    console.print(
        f"[dim]Intervals: {CONFIDENCE:.0%} over prompts of this task, for this population; the last column says how made.[/]"
    )
    console.print(table(report.checks))


def show_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Paired differences second − first."""
    console = Console() if console is None else console
    title = f"{rich_safe(comparison.second)} − {rich_safe(comparison.first)}"
    console.print(_table(title, comparison.quantities))


def show_plan(plan: Plan, console: Console | None = None) -> None:
    """What a sample would cost and how precise it would be."""
    console = Console() if console is None else console
    for line in plan.lines():
        console.print(rich_safe(line))


def _table(title: str, quantities: list[Quantity]) -> Table:
    out = Table(title=title, title_justify="left")
    for column in ("quantity", "value", f"{CONFIDENCE:.0%} interval", "unit", "", "note"):
        out.add_column(column, justify="right" if column == "value" else "left")
    for q in quantities:
        exact = q.lower == q.upper or math.isnan(q.lower)
        interval = "" if exact else f"[{q.lower:.4g}, {q.upper:.4g}]"
        out.add_row(q.name, f"{q.value:.4g}", rich_safe(interval), q.unit, q.kind, rich_safe(q.note))
    return out
