"""How diverse is a population around a checkpoint? (docs/theory.md, L1 and L2)

    from esth.diversity import DiversityConfig, diversity
    report = diversity("demo", DiversityConfig(sigma=0.002, members=8))
    print(report["JS chain"])

`measure` needs a model and gives a `PopulationSample`; `report` needs only that.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from esth.diversity.compare import Comparison, compare
from esth.diversity.config import DiversityConfig
from esth.diversity.journal import Journal
from esth.diversity.report import Quantity, Report, report
from esth.diversity.sampling import Progress, quiet, sample_population
from esth.errors import InputError
from esth.sample import PopulationSample, check_output

__all__ = [
    "Comparison",
    "DiversityConfig",
    "Quantity",
    "Report",
    "compare",
    "diversity",
    "measure",
    "report",
    "sample_population",
]


def diversity(
    model: str,
    config: DiversityConfig | None = None,
    *,
    out: Path | None = None,
    progress: Progress = quiet,
    trust_remote_code: bool = False,
) -> Report:
    """Sample a population around a checkpoint and report its diversity; arguments as in `measure`."""
    return report(measure(model, config, out=out, progress=progress, trust_remote_code=trust_remote_code))


def measure(
    model: str,
    config: DiversityConfig | None = None,
    *,
    out: Path | None = None,
    progress: Progress = quiet,
    trust_remote_code: bool = False,
) -> PopulationSample:
    """Sample a population around a checkpoint.

    Args:
        model: a Hugging Face folder, a name on the hub, or "demo".
        config: the population, its prompts and its policy.
        out: folder for the sample, its report as report.json, and the journal from which an interrupted call goes on.
        progress: called as work is done.
        trust_remote_code: let transformers run Python code that comes with the checkpoint.

    Raises:
        InputError: see `sample_population`, `esth.models.checkpoint.load_checkpoint`, `esth.tasks.load_task`.
    """
    from esth.models import load_checkpoint, load_engine

    config = DiversityConfig() if config is None else config
    if out is not None:
        check_output(out / "sample")
    task = config.load_task()
    progress("loading the model", 0, 1, 0)
    checkpoint = load_checkpoint(model, trust_remote_code=trust_remote_code)
    engine = load_engine(checkpoint, dtype=config.dtype)
    progress("loading the model", 1, 1, 0)
    identity = {**asdict(config), "fingerprint": checkpoint.fingerprint}
    if out is not None and (out / "sample").exists():
        return _finished(out / "sample", identity)
    journal = Journal(None if out is None else out / "unfinished", identity)
    sample = sample_population(engine, task, config, progress, journal)
    if out is not None:
        sample.save(out / "sample")
        write_json(out / "report.json", report(sample).to_dict())
    journal.close()
    return sample


def _finished(folder: Path, identity: dict[str, Any]) -> PopulationSample:
    """The sample that the same settings have made before.

    Raises:
        InputError: it is one of other settings, which is not to be overwritten.
    """
    sample = PopulationSample.load(folder)
    # A token limit left to the task is stored as the number it became.
    other = [k for k, v in identity.items() if sample.settings.get(k) != v and not (k == "max_tokens" and v is None)]
    if other:
        raise InputError(f"{folder} holds a sample of other settings ({', '.join(other)}): name another output folder")
    return sample


def write_json(path: Path, content: object) -> None:
    """Write JSON whole or not at all."""
    half = path.with_name(f".{path.name}.half")
    half.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(half, path)
