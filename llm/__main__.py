"""`python -m llm [LEMMA ...] --model PATH --task NAME`: the lemmas measured on a real checkpoint.

A LEMMA is a module's name (`fisher_rate`) or its number (`L1`); by default all five are studied. Prints the table of
checks, writes a JSON file and a figure a lemma, and keeps the samples: `--from FOLDER` computes everything again with
no model. An interrupted run goes on where it stopped.
Exit status: 0 no check is violated, 1 one is, 2 bad usage.
"""

import importlib
import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from rich.console import Console

from esth import plots
from esth.check import Check, Verdict, table
from esth.cli import progress_bars, refuse_beside_from, run, spelled
from esth.diversity import write_json
from esth.diversity.sampling import versions
from esth.errors import InputError, require
from esth.lemmas import LEMMAS
from llm.samples import Samples, Settings

NUMBERS = dict(zip(("L1", "L2", "L3", "P4", "T5"), LEMMAS, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run("llm", _run, arguments)


def _run(arguments: list[str]) -> int:
    arguments = [spelled(a, Settings) for a in arguments]
    options = _parser().parse_args(arguments)
    names = [NUMBERS.get(name.upper(), name) for name in options.lemma or LEMMAS]
    for name in names:
        if name not in LEMMAS:
            raise InputError(f"unknown lemma {name!r}: accepted are {', '.join(LEMMAS)}, or {', '.join(NUMBERS)}")
    if (options.model is None) == (options.source is None):
        raise InputError(
            "name a model (--model PATH, a hub name, or demo), or a folder of saved samples (--from FOLDER)"
        )
    require("matplotlib", "plot")
    if options.source is not None:
        refuse_beside_from(arguments, {"--from", "--out"})
        folder, settings = options.source, None
    else:
        settings = Settings(**{f.name: getattr(options, f.name) for f in fields(Settings)})
        folder = options.keep or Path("esth-llm") / f"{Path(options.model).name}-{Path(settings.task).name}"
    console = Console()
    if not console.is_terminal:
        console.width = 180
    counts: Counter[Verdict] = Counter()
    with progress_bars() as progress, Samples(folder, options.model, settings, progress) as samples:
        for name in dict.fromkeys(names):
            checks = study(name, samples, options.out or folder, arguments)
            console.print(
                table(checks, f"{name}: {samples.name}, {samples.settings.task}, seed {samples.settings.seed}")
            )
            counts.update(check.verdict for check in checks)
    told = ", ".join(f"{counts[v]} {v}" for v in Verdict if counts[v])
    console.print(f"{told} · figures and JSON in {options.out or folder}, samples in {folder}")
    return int(counts[Verdict.VIOLATED] > 0)


def study(name: str, samples: Samples, out: Path, arguments: Sequence[str]) -> list[Check]:
    """One lemma's checks; writes NAME.json and NAME.png into `out`, each replaced atomically."""
    module = importlib.import_module(f"llm.{name}")
    samples.seconds.clear()
    checks, data = module.study(samples)
    record = {
        "lemma": name,
        "command": " ".join(("python -m llm", *arguments)),
        "model": samples.name,
        "settings": samples.record(),
        "versions": versions(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seconds": {name: round(taken, 1) for name, taken in samples.seconds.items()},
        "checks": [check.to_dict() for check in checks],
        "data": data,
    }
    out.mkdir(parents=True, exist_ok=True)
    json.dumps(record, allow_nan=False)  # a NaN is a fault of the study: nothing is written
    write_json(out / f"{name}.json", record)
    plots.save(module.figure(module.TITLE, data), out / f"{name}.png")
    return list(checks)


def _parser() -> Any:
    parser = ArgumentParser(prog="python -m llm", description=__doc__, exit_on_error=False)
    add = parser.add_argument
    add("lemma", nargs="*", default=[], help=f"one of {', '.join(LEMMAS)}, or {', '.join(NUMBERS)}; all five if none")
    add("--model", help='a Hugging Face folder, a hub name, or "demo"')
    add("--from", dest="source", type=Path, metavar="FOLDER", help="saved samples to compute from, without a model")
    add("--keep", type=Path, metavar="FOLDER", help="folder for the samples (esth-llm/MODEL-TASK)")
    add("--out", type=Path, help="folder for JSON and figures (that of the samples)")
    parser.add_class_arguments(Settings)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
