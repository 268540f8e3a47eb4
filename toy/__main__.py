"""`python -m toy [LEMMA ...]`: measure the lemmas on exact policies and compare them with what the theory says.

A LEMMA is a module's name (`fisher_rate`) or its number (`L1`); by default all five are studied. Prints the table of
checks; writes a JSON file and a figure a lemma. The same seed gives the same numbers.
Exit status: 0 no check is violated, 1 one is, 2 bad usage.
"""

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import scipy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import esth
from esth import plots
from esth.check import Check, Verdict, table
from esth.errors import InputError, require
from esth.lemmas import LEMMAS
from toy import figures
from toy.study import Settings

NUMBERS = dict(zip(("L1", "L2", "L3", "P4", "T5"), LEMMAS, strict=True))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"toy: {message}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = _Parser(prog="python -m toy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lemma", nargs="*", help=f"one of {', '.join(LEMMAS)}, or {', '.join(NUMBERS)}")
    parser.add_argument("--quick", action="store_true", help="smaller samples, under 20 s in all")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of every random number (default %(default)s)")
    parser.add_argument(
        "--sigma", type=float, nargs=2, metavar=("LOW", "HIGH"), default=Settings.sigma,
        help="range of the noise scale (default 0.001 10)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("results/toy"), help="folder of the results (%(default)s)")
    options = parser.parse_args(arguments)
    names = [NUMBERS.get(name.upper(), name) for name in options.lemma] or list(LEMMAS)
    for name in names:
        if name not in LEMMAS:
            parser.error(f"unknown lemma {name!r}: accepted are {', '.join(LEMMAS)}")
    try:
        settings = Settings(options.seed, tuple(options.sigma), options.quick)
        require("matplotlib", "plot")
        options.out.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError) as error:
        parser.error(str(error))

    checks = _run(list(dict.fromkeys(names)), settings, options.out)
    console = _wide(Console(highlight=False))
    console.print(table(checks, f"Checks on exact policies, seed {settings.seed}"))
    counts = Counter(check.verdict for check in checks)
    console.print(", ".join(f"{counts[v]} {v}" for v in Verdict if counts[v]), f"· figures and JSON in {options.out}")
    return int(counts[Verdict.VIOLATED] > 0)


def _run(names: list[str], settings: Settings, out: Path) -> list[Check]:
    studies = {name: importlib.import_module(f"toy.{name}") for name in names}
    checks: list[Check] = []
    with Progress(
        TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    ) as progress:  # fmt: skip
        bar = progress.add_task("", total=sum(len(study.PARTS) for study in studies.values()))
        for name, study in studies.items():
            start, found, data = time.perf_counter(), [], {}
            for index, part in enumerate(study.PARTS):
                progress.update(bar, description=f"{name} · {part.__name__.replace('_', ' ')}")
                part_checks, data[part.__name__] = part(settings, generator(settings, name, index))
                found += part_checks
                progress.advance(bar)
            _write(name, study, settings, found, data, time.perf_counter() - start, out)
            checks += found
    return checks


def generator(settings: Settings, lemma: str, part: int) -> np.random.Generator:
    """The generator of one part: what it draws does not depend on which others run."""
    return np.random.default_rng([settings.seed, LEMMAS.index(lemma), part])


def _write(
    name: str,
    study: ModuleType,
    settings: Settings,
    checks: list[Check],
    data: dict[str, Any],
    seconds: float,
    out: Path,
) -> None:
    """NAME.json and NAME.png, each replaced atomically."""
    record = {
        "lemma": name,
        "settings": asdict(settings),
        "versions": {
            "esth": esth.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "wall_time_seconds": round(seconds, 3),
        "checks": [check.to_dict() for check in checks],
        "data": data,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=out, suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, out / f"{name}.json")
    plots.save(getattr(figures, name)(study.TITLE, data), out / f"{name}.png")


def _wide(console: Console) -> Console:
    """A console wide enough for the table where the output is no terminal."""
    if not console.is_terminal:
        console.width = max(console.width, 180)
    return console


if __name__ == "__main__":
    raise SystemExit(main())
