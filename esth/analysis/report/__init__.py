"""One HTML file of runs of `esth train` and samples of `esth diversity`: `esth report RUN… --out report.html`.

    from pathlib import Path

    from esth.analysis.report import write_report

    write_report([Path("es"), Path("grpo")], Path("report.html"))

The file needs no network and no scripts: its style and figures lie in it. The same runs give the same bytes.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import esth
from esth._files import write_text
from esth.analysis.report import tables
from esth.analysis.report.figures import figures
from esth.analysis.report.runs import Experiment, Run, experiments, read_run, readable
from esth.analysis.report.tables import Table
from esth.errors import InputError, require

__all__ = ["html", "write_report"]


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        caption: under it.
        alt: what is seen, for those who do not see it.
        svg: base64.
    """

    caption: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Section:
    """A part of the report: an experiment, or a sampled population.

    Attributes:
        title: its heading.
        lead: a sentence.
        facts: names and values.
        notes: what is missing.
        parts: headings, each with tables and figures.
    """

    title: str
    lead: str
    facts: list[tuple[str, str]]
    notes: list[str]
    parts: list[tuple[str, list[Table | Figure]]]


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Write the report, whole or not at all.

    Raises:
        InputError: as `html`; `out` is a folder or does not end in .html; the disk refuses.
    """
    if out.suffix.lower() not in (".html", ".htm") or out.is_dir():
        raise InputError(f"--out {readable(out)} must be a file that ends in .html")
    write_text(out, html(folders))


def html(folders: Sequence[Path]) -> str:
    """The report as text.

    Args:
        folders: of runs of `esth train`, finished or not, and of `esth diversity`.

    Raises:
        InputError: nothing of these in a folder, the same run twice, a damaged file.
        MissingExtra: no jinja2 or matplotlib.
    """
    if not folders:
        raise InputError("name at least one folder of esth train or esth diversity")
    runs: list[Run] = []
    samples: list[tuple[Path, Path]] = []
    for path in folders:
        sample = _sample(path)
        if sample is not None:
            samples.append((path, sample))
        else:
            runs.append(_run(path))
    compared = experiments(runs)
    sections = [*_experiments(compared), *(_population(path, sample) for path, sample in samples)]
    missing = [f"{run.name} has no evaluation yet: it was stopped before its first." for run in runs if not run.points]
    jinja2 = require("jinja2", "plot")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    title = ", ".join([*(e.title for e in compared), *("diversity" for _ in samples[:1])]) or "runs"
    return str(template.render(title=f"esth: {title}", lead=_lead(runs, samples), missing=missing, sections=sections))


def _sample(path: Path) -> Path | None:
    """The folder of the sampled population that `esth diversity` left there, if it did."""
    return next((p for p in (path, path / "sample") if (p / "sample.json").is_file()), None)


def _run(path: Path) -> Run:
    if not (path / "config.json").is_file():
        raise InputError(
            f"{readable(path)} holds neither a run of esth train (config.json) nor one of esth diversity (sample.json)"
        )
    return read_run(path)


def _lead(runs: Sequence[Run], samples: Sequence[Any]) -> str:
    told = [f"{len(runs)} training run{'s' * (len(runs) != 1)}"] * bool(runs)
    told += [f"{len(samples)} sampled population{'s' * (len(samples) != 1)}"] * bool(samples)
    return (
        f"{' and '.join(told)}, reported by esth {esth.__version__}. Probabilities are shares; entropies are in nats."
    )


def _experiments(compared: Sequence[Experiment]) -> Iterator[Section]:
    titles: dict[str, int] = {}
    for experiment in compared:
        titles[experiment.title] = titles.get(experiment.title, 0) + 1
        again = titles[experiment.title]
        yield _experiment(experiment, experiment.title + (f" ({again})" if again > 1 else ""))


def _experiment(experiment: Experiment, title: str) -> Section:
    drawn = [Figure(caption, alt, base64.b64encode(svg.encode()).decode()) for caption, alt, svg in figures(experiment)]
    seeds = max(len(arm.chains) for arm in experiment.arms)
    ends = [tables.ends(experiment, name) for name in experiment.sets]
    parts: list[tuple[str, list[Table | Figure]]] = [
        ("Settings", [tables.settings(experiment, False), tables.settings(experiment, True), tables.runs(experiment)]),
        ("Cost", [tables.cost(experiment)]),
        ("What training did", [*drawn, *ends, tables.along(experiment)]),
        ("Beside random drift", [tables.control(experiment)]),
    ]
    if side_by_side := tables.matched(experiment):
        parts.append(("Arms at equal cost and equal gain", list(side_by_side)))
    arms = f"{len(experiment.arms)} arm{'s' * (len(experiment.arms) != 1)}"
    lead = f"{arms}, {'one seed each' if seeds == 1 else f'up to {seeds} seeds each'}."
    return Section(title, lead, tables.identity(experiment), tables.notes(experiment), parts)


def _population(path: Path, sample: Path) -> Section:
    from esth.diversity import report
    from esth.sample import PopulationSample

    found = report(PopulationSample.load(sample))
    facts = [("folder", readable(path)), ("population", tables.population(found))]
    return Section(
        f"Diversity of {found.settings['model']}", "", facts, [], [("What was measured", list(tables.diversity(found)))]
    )
