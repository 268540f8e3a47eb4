"""How diverse is a population around a checkpoint? (docs/theory.md, L1 and L2)

    from esth.diversity import DiversityConfig, diversity
    report = diversity("demo", DiversityConfig(sigma=0.002, members=8))
    print(report["JS chain"])

`measure` needs a model and gives a `PopulationSample`; `report` needs only that.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esth._files import write_text
from esth.diversity.compare import Comparison, compare
from esth.diversity.config import DiversityConfig
from esth.diversity.journal import Journal
from esth.diversity.report import Quantity, Report, report
from esth.diversity.sampling import Progress, identify, quiet, sample_population
from esth.errors import InputError
from esth.noise import Direction
from esth.sample import PopulationSample, check_output

if TYPE_CHECKING:
    from esth.models.workers import Workers
    from esth.tasks.task import Task

__all__ = [
    "Comparison",
    "DiversityConfig",
    "Quantity",
    "Report",
    "compare",
    "diversity",
    "measure",
    "report",
    "sample_into",
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
    from esth.models.workers import load_workers

    config = DiversityConfig() if config is None else config
    if out is not None:
        check_output(out / "sample")
    task = config.load_task()
    progress("loading the model", 0, 1, 0)
    with load_workers(
        model, config.engine, workers=config.workers, trust_remote_code=trust_remote_code, dtype=config.dtype
    ) as workers:
        progress("loading the model", 1, 1, 0)
        sample = sample_into(out / "sample" if out is not None else None, workers, task, config, progress)
    if out is not None:
        write_json(out / "report.json", report(sample).to_dict())
    return sample


def sample_into(
    folder: Path | None,
    workers: "Workers",
    task: "Task",
    config: DiversityConfig,
    progress: Progress = quiet,
    directions: Sequence[Direction] | None = None,
) -> PopulationSample:
    """`sample_population`, kept in `folder` (unless None): taken from there if it is done, gone on with if begun.

    Raises:
        InputError: the folder holds something else, or a sample of other settings.
    """
    if folder is None:
        return sample_population(workers, task, config, progress, None, directions)
    identity = identify(workers.checkpoint, task, config, directions)
    check_output(folder)
    if folder.exists() and any(folder.iterdir()):
        return _finished(folder, identity)
    journal = Journal(folder.with_name(f"{folder.name}-unfinished"), identity)
    sample = sample_population(workers, task, config, progress, journal, directions)
    sample.save(folder)
    journal.close()
    return sample


def _finished(folder: Path, identity: dict[str, Any]) -> PopulationSample:
    """The sample that the same settings have made before.

    Raises:
        InputError: it is one of other settings, which is not to be overwritten.
    """
    sample = PopulationSample.load(folder)
    other = [name for name, value in identity.items() if sample.settings.get(name) != value]
    if other:
        raise InputError(f"{folder} holds a sample of other settings ({', '.join(other)}): name another output folder")
    return sample


def write_json(path: Path, content: object) -> None:
    """Write JSON whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
