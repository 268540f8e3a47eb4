"""A comparison as tables on a terminal."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

from rich.console import Console
from rich.table import Table

from esth.analysis.compare import Comparison
from esth.analysis.drift import QUANTILES, SPACINGS, Tally
from esth.analysis.histogram import RESOLUTION
from esth.analysis.landing import CONFIDENCE, Expected
from esth.check import rich_safe

# Columns of the table of spacings, as the first octave of each: |Δ| = 0, below 1, [1, 2), [2, 4), [4, 16), …
_EDGES = (0, 1, 2, 3, 4, 6, 10, 18, len(SPACINGS))
_EDGE_NAMES = ("0", "(0, 1)", "[1, 2)", "[2, 4)", "[4, 16)", "[16, 2^8)", "[2^8, 2^16)", "[2^16, ∞)")


def show(found: Comparison, *, layers: bool = False, tensors: bool = False, console: Console | None = None) -> None:
    """Drift, quantiles, spacings, cosines, and where the largest changes lie."""
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=150)
    runs = short_names([child.name for child in found.family.children])
    console.print(
        f"[bold]{rich_safe(found.family.base.name)}[/]: {found.family.size:,} coordinates in "
        f"{len(found.family.shapes)} tensors; beside it {rich_safe(', '.join(runs))}"
    )
    for note in found.family.notes:
        console.print(f"[dim]{rich_safe(note)}[/]")
    console.print(_whole(found, runs))
    console.print(_drift("Relative distance ‖Δ‖/‖θ₀‖ by group (exact)", found.drift.by_group(), runs))
    console.print(_drift("By kind (exact)", found.drift.by_kind(), runs))
    if layers:
        console.print(_drift("By layer (exact)", found.drift.by_layer(), runs))
    if tensors:
        console.print(_drift("By tensor (exact)", found.drift.tensors, runs))
    console.print(_quantiles(found, runs))
    console.print(_spacings(found, runs))
    if len(runs) > 1:
        console.print(_cosines(found, runs))
    console.print(_top(found, runs))
    console.print(_kinds(found, runs))
    if any(found.peaks_by_kind(r) for r in range(len(runs))):
        console.print(_layers(found, runs))
    for r, run in enumerate(runs):
        console.print(_largest(found, r, run))


def short_names(names: Sequence[str]) -> list[str]:
    """What tells paths apart: their last parts, without those that all of them end in."""
    parts = [PurePath(name).parts or (name,) for name in names]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({p[-1] for p in parts}) == 1:
        parts = [p[:-1] for p in parts]
    for length in range(1, max(map(len, parts)) + 1):
        short = [str(PurePath(*p[-length:])) for p in parts]
        if len(set(short)) == len(short):
            return short
    return [f"{i + 1}: {name}" for i, name in enumerate(short)]


def _table(title: str, columns: Sequence[str], caption: str = "") -> Table:
    out = Table(title=rich_safe(title), caption=rich_safe(caption), title_justify="left", caption_justify="left")
    for i, column in enumerate(columns):
        out.add_column(rich_safe(column), justify="right" if i else "left", no_wrap=not i)
    return out


def _share(count: float, of: float) -> str:
    return f"{100 * count / of:.3g} %" if of else "–"


def _whole(found: Comparison, runs: Sequence[str]) -> Table:
    columns = (
        "",
        "‖Δ‖",
        "‖Δ‖/‖θ₀‖",
        "× the last's",
        "changed",
        "lost",
        "largest |Δ|",
        "dtype",
    )
    caption = "Lost: of the coordinates that changed, those whose change rounds to nothing in bfloat16."
    table = _table("The whole model (exact)", columns, caption)
    whole = found.drift.whole
    last = whole.relative(len(runs) - 1)
    for r, run in enumerate(runs):
        table.add_row(
            rich_safe(run),
            f"{whole.distance(r):.5g}",
            f"{whole.relative(r):.5g}",
            f"{whole.relative(r) / last:.4g}" if 0 < last < math.inf else "–",
            _share(whole.changed[r], whole.size),
            _share(whole.lost[r], whole.changed[r]),
            f"{found.drift.histogram(r).largest:.4g}",
            " ".join(sorted({t.dtype for t in found.family.children[r].tensors.values()})),
        )
    return table


def _drift(title: str, tallies: Mapping[str, Tally], runs: Sequence[str]) -> Table:
    """A row for each place and run: any number of runs fits."""
    table = _table(title, ("", "coordinates", "run", "relative", "changed", "lost"))
    for name, tally in tallies.items():
        for r, run in enumerate(runs):
            table.add_row(
                rich_safe(name) if r == 0 else "",
                f"{tally.size:,}" if r == 0 else "",
                rich_safe(run),
                f"{tally.relative(r):.4g}",
                _share(tally.changed[r], tally.size),
                _share(tally.lost[r], tally.changed[r]),
            )
    return table


def _quantiles(found: Comparison, runs: Sequence[str]) -> Table:
    table = _table(
        f"Quantiles of |Δ| over all coordinates (histogram: ±{RESOLUTION:.1%}; the largest exact)",
        ("", *(f"{q:g}" for q in QUANTILES), "largest"),
    )
    for r, run in enumerate(runs):
        histogram = found.drift.histogram(r)
        table.add_row(rich_safe(run), *(f"{histogram.quantile(q):.3g}" for q in QUANTILES), f"{histogram.largest:.4g}")
    return table


def _spacings(found: Comparison, runs: Sequence[str]) -> Table:
    table = _table(
        "Share of coordinates by |Δ| in spacings of the child's dtype at the base's value (exact)", ("", *_EDGE_NAMES)
    )
    for r, run in enumerate(runs):
        row = found.drift.whole.spacings[r]
        table.add_row(rich_safe(run), *(_share(row[a:b].sum(), row.sum()) for a, b in pairwise(_EDGES)))
    return table


def _cosines(found: Comparison, runs: Sequence[str]) -> Table:
    groups = found.drift.by_group()
    table = _table("Cosine between updates (exact)", ("", "whole model", *groups))
    tallies = [found.drift.whole, *groups.values()]
    for j in range(len(runs)):
        for i in range(j):
            values = [tally.cosine(i, j) for tally in tallies]
            table.add_row(rich_safe(f"{runs[i]}, {runs[j]}"), *("–" if math.isnan(v) else f"{v:.4g}" for v in values))
    return table


def _against(count: int, expected: Expected | None) -> str:
    """A count, and whether it lies above (▲) or below (▼) what is expected."""
    if expected is None:
        return f"{count}"
    mark = " ▲" if count > expected.upper else " ▼" if count < expected.lower else ""
    return f"{count}{mark}"


def _expected(expected: Expected | None) -> str:
    if expected is None:
        return ""
    mean = f"{expected.mean:.3g}" if expected.mean >= 0.01 or expected.mean == 0 else "<0.01"
    return f"{mean} [{expected.lower}, {expected.upper}]"


def _top(found: Comparison, runs: Sequence[str]) -> Table:
    fisher = found.traces is not None
    columns = ["", "of\ncoordinates", "of tr F", "expected\nby size", "expected\nby Fisher"]
    table = _table(
        f"The {found.largest[0].k} largest |Δ| by kind (counts exact)",
        [*(c for c in columns if fisher or "F" not in c), *runs],
        f"Expected: mean and {CONFIDENCE:.0%} interval; ▲ ▼ lie outside that by size. By size: all coordinates alike."
        + " By Fisher: normal, the variance that of each tensor's mean Fisher information." * fisher,
    )
    most = max(range(len(runs)), key=lambda r: len(found.largest[r].top))
    by_size, by_fisher = found.expected_by_size(most), found.expected_by_fisher(most)
    traces = {} if found.traces is None else found.traces.shares(found.label)
    for kind in found.labels:
        cells = [_share(found.sizes_by_kind[kind], found.family.size)]
        if fisher:
            cells.append(f"{float(traces[kind].value):.1%} ± {float(traces[kind].se):.1%}")
        cells.append(_expected(by_size[kind]))
        if fisher:
            cells.append(_expected((by_fisher or {}).get(kind)))
        counts = (found.top_by_kind(r).get(kind, 0) for r in range(len(runs)))
        cells += [_against(n, found.expected_by_size(r)[kind]) for r, n in enumerate(counts)]
        table.add_row(rich_safe(kind), *cells)
    return table


def _kinds(found: Comparison, runs: Sequence[str]) -> Table:
    """Share of ‖Δ‖² and the largest |Δ| of each kind, a row for each run."""
    table = _table("Share of ‖Δ‖² in each kind, and its largest |Δ| (exact)", ("", *map(rich_safe, found.labels)))
    shares = found.sizes_by_kind
    table.add_row("coordinates", *(_share(shares[kind], found.family.size) for kind in found.labels))
    for r, run in enumerate(runs):
        peaks = {kind: 0.0 for kind in found.labels}
        for name, peak in found.largest[r].peaks.items():
            peaks[found.label(name)] = max(peaks[found.label(name)], abs(peak.update))
        square = found.square_share(r)
        table.add_row(rich_safe(run), *(f"{square[kind]:.1%}\n{peaks[kind]:.3g}" for kind in found.labels))
    return table


def _layers(found: Comparison, runs: Sequence[str]) -> Table:
    """Of how many layers each kind holds the largest |Δ|, a row for each run under what is expected."""
    kinds = [k for k in found.labels if any(found.expected_peaks(r)[k].mean > 0 for r in range(len(runs)))]
    table = _table(
        "Layers by the kind that holds their largest |Δ| (counts exact; expected by size within the layer)",
        ("", *map(rich_safe, kinds)),
    )
    most = max(range(len(runs)), key=lambda r: len(found.layer_peaks(r)))
    table.add_row("expected", *(_expected(found.expected_peaks(most)[kind]) for kind in kinds))
    for r, run in enumerate(runs):
        counts = found.peaks_by_kind(r)
        table.add_row(rich_safe(run), *(_against(counts.get(kind, 0), found.expected_peaks(r)[kind]) for kind in kinds))
    return table


def _largest(found: Comparison, r: int, run: str) -> str:
    if not found.largest[r].top:
        return f"{rich_safe(run)}: no coordinate changed"
    first = found.largest[r].top[0]
    ties = ", ".join(f"{n} {kind}" for kind, n in found.ties_by_kind(r).items())
    place = rich_safe(f"{first.name}[{first.position}]")
    count, steps = len(found.largest[r].top), found.single_steps(r)
    return (
        f"{rich_safe(run)}: largest Δ = {first.update:.6g} at {place}; coordinates of that size: {ties}; "
        f"of the {count} largest, {steps} moved by one spacing of their dtype or less"
    )
