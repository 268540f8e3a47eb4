"""The claims as tables on a terminal, and as Markdown in full and in short."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from esth.analysis.claims.claim import SEEDS, Row, Verdict
from esth.analysis.claims.cost import GPU, MODEL
from esth.analysis.claims.statements import CLAIMS
from esth.check import rich_safe

STYLES = {Verdict.SEEN: "green", Verdict.CONTRARY: "bold red", Verdict.UNDECIDED: "yellow", Verdict.NOT_RUN: "dim"}

MODELS = ("toy", "tiny-3", "demo")
"""Columns of the short table; "tiny-3 and …" belongs to tiny-3."""

EXPLAINED = (
    "A verdict is a rule's, fixed in code (`esth/analysis/claims`): *seen* if the whole 95 % interval of every judged "
    "figure lies where the claim puts it, *contrary* if that of one lies elsewhere, else *undecided*. Undecided is "
    "also what compares ES where ES did not learn (held-out pass@1 up by less than the margin of the studies, or not "
    f"above the base and random drift), and what has fewer than {SEEDS} seeds. Gains are of held-out problems over the "
    "base; intervals are for other seeds and other problems; differences are paired."
)


def tables(found: Sequence[Row]) -> list[Any]:
    """A rich table a claim, a row a scale and reading, and where the rows come from."""
    from rich.table import Table

    sources = list(dict.fromkeys(row.source for row in found if row.source))
    out: list[Any] = []
    for claim, rows in _by_claim(found):
        one = Table(title=rich_safe(f"{claim}  {CLAIMS[claim]}"), title_justify="left", title_style="bold", expand=True)
        for column, share in (("scale", 5), ("read", 11), ("figures [95 %]", 22), ("verdict", 9)):
            one.add_column(rich_safe(column), ratio=share)
        one.add_column("from", width=4)
        for row in rows:
            cells = [_scale(row), "\n".join(filter(None, (row.reading, row.arms))), "\n".join(_figures(row))]
            place = "" if row.source is None else str(sources.index(row.source) + 1)
            one.add_row(*map(rich_safe, cells), f"[{STYLES[row.verdict]}]{rich_safe(row.told)}[/]", place)
        out.append(one)
    return [*out, rich_safe("\n".join(f"{i} {source}" for i, source in enumerate(sources, 1)))]


def _scale(row: Row) -> str:
    return row.scale if row.scale == row.model else f"{row.scale}: {row.model}"


def _figures(row: Row) -> list[str]:
    """Figures, then seeds and notes; of what was not run the commands and their cost."""
    if row.verdict is Verdict.NOT_RUN:
        return [*row.command.split("; "), row.cost]
    seeds = [] if row.seeds is None else [f"{row.seeds} seed{'s' * (row.seeds != 1)}"]
    notes = "; ".join([*seeds, *row.notes])
    return [*(part.told() for part in row.parts), *([notes] if notes else [])]


def _by_claim(found: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    for claim, rows in groupby(found, key=lambda row: row.claim):
        yield claim, list(rows)


# Markdown


def markdown(found: Sequence[Row]) -> str:
    """Every claim with a table of its rows."""
    lines = ["# The paper's claims", "", "Written by `esth claims --markdown` from the results.", "", EXPLAINED]
    for claim, rows in _by_claim(found):
        lines += ["", f"## {claim}", "", CLAIMS[claim], "", "| scale | read | figures [95 %] | verdict | from |"]
        lines += ["|---|---|---|---|---|", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    figures = _figures(row)
    if row.verdict is Verdict.NOT_RUN:
        figures = [*(f"`{command}`" for command in figures[:-1]), figures[-1]]
    verdict = f"**{row.verdict}**{f': {row.why}' if row.why else ''}"
    read = "<br>".join(filter(None, (row.reading, row.arms)))
    cells = (_scale(row), read, "<br>".join(figures), verdict, f"`{row.source}`" if row.source else "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def short(found: Sequence[Row]) -> str:
    """A line a claim: verdicts on each model, of the study's first ES arm."""
    lines = [f"| | claim | {' | '.join(MODELS)} |", "|---|---|" + "---|" * len(MODELS)]
    for claim, rows in _by_claim(found):
        cells = [_cell([r for r in rows if r.main and r.model.split(" ")[0] == model]) for model in MODELS]
        lines.append(f"| {claim} | {CLAIMS[claim]} | {' | '.join(cells)} |")
    name = MODEL.rpartition("/")[2]
    lines += [
        "",
        "–: nothing there to measure. ES has sampled fitness; with greedy fitness, every figure with its interval, and "
        f"what the runs at the paper's size ({name}, not run) would cost on one {GPU}: "
        "[docs/claims.md](docs/claims.md), from `esth claims`.",
    ]
    return "\n".join(lines) + "\n"


def _cell(rows: list[Row]) -> str:
    """Verdicts with the readings that have them."""
    told = list(dict.fromkeys(row.told for row in rows))
    if len(told) < 2:
        return told[0] if told else "–"
    return "; ".join(f"{what} ({', '.join(r.reading for r in rows if r.told == what)})" for what in told)
