"""Runs of `esth train` put in order for a report: what is one arm, what can be compared, what came after what.

Seeds of equal settings are one arm. A run that starts from the end of another one in the report is its next stage.
Arms are compared only where they began from the same weights, on the same problems, with the same decoding.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from esth.errors import InputError
from esth.training.compare import Trajectory
from esth.training.config import CONFIGS, ESConfig, GRPOConfig, to_json
from esth.training.evaluation import TRIES, Evaluation
from esth.training.folder import RESUMABLE, Point, RunFolder

ANY = {"seed", "init", "method", *RESUMABLE} - {"updates"}
"""Settings that may differ between the runs of one arm."""

SETTINGS = [
    name for name in dict.fromkeys(f.name for kind in CONFIGS.values() for f in fields(kind)) if name not in ANY
]
"""The others, of either method."""


@dataclass(frozen=True)
class Run:
    """One run's folder, read once.

    Attributes:
        folder: as it was named.
        config: its settings.
        identity: what it started from; empty where it was killed before that was written.
        points: evaluated centers.
        metrics: a line an update.
    """

    folder: RunFolder
    config: ESConfig | GRPOConfig
    identity: dict[str, Any]
    points: list[Point]
    metrics: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The folder, as text that can be written."""
        return readable(self.folder.path)

    @property
    def begun_from(self) -> str:
        """Weights, problems and decoding, as one key: two runs that share it can be compared; of further tasks those
        that both were evaluated on."""
        told = {k: v for k, v in self.identity.items() if k not in ("model", "init", "versions", "evaluated")}
        told |= {k: v for k, v in self.identity.get("evaluated", {}).items() if k in ("train", "held-out")}
        return json.dumps([told, self.config.temperature, self.config.max_tokens], sort_keys=True)

    @property
    def settings(self) -> str:
        """What runs of one arm have in common, as one key."""
        return json.dumps([self.config.method, {k: v for k, v in to_json(self.config).items() if k not in ANY}])


@dataclass(frozen=True)
class Arm:
    """Runs of equal settings: S seeds, each of one stage or several.

    Attributes:
        letter: names it in every table and figure.
        chains: of each seed, its runs, one from the end of the one before.
    """

    letter: str
    chains: list[list[Run]]

    @property
    def method(self) -> str:
        """ES, GRPO, or what came after what."""
        return ", then ".join(run.config.method.upper() for run in self.chains[0])

    @property
    def stages(self) -> list[Run]:
        """The runs of its first seed."""
        return self.chains[0]

    @property
    def key(self) -> str:
        """What it is called in tables."""
        return f"{self.letter} {self.method}"

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """One a seed."""
        return [Trajectory([run.folder for run in chain]) for chain in self.chains]

    def setting(self, name: str) -> str | None:
        """The value of a setting, of each stage that has it where they differ; None if none has it."""
        values = [shown(getattr(run.config, name)) for run in self.stages if hasattr(run.config, name)]
        return " → ".join(dict.fromkeys(values)) or None

    @property
    def goes_on(self) -> bool:
        """Whether it starts from the end of a run that is not in the report: its base is its own start."""
        return self.stages[0].identity.get("init") is not None


@dataclass(frozen=True)
class Experiment:
    """Arms that can be compared."""

    arms: list[Arm]

    @property
    def title(self) -> str:
        """Model and task."""
        config = self.arms[0].stages[0].config
        task = config.task + (f" {config.difficulty}" if config.difficulty else "")
        return config.model if config.world == "toy" else f"{config.model}, {task}"

    @property
    def labels(self) -> dict[str, str]:
        """Of each arm's letter: its method, and up to three settings in which it differs from the arm of that method
        which has most in common with the others."""
        found = {}
        for arm in self.arms:
            alike = [a for a in self.arms if a.method == arm.method]
            usual = min(alike, key=lambda a: sum(len(_differences(a, b)) for b in alike))
            differs = _differences(arm, usual)
            told = [f"{n} {arm.setting(n)}" for n in differs[:3]] + ["…"] * (len(differs) > 3)
            found[arm.letter] = ", ".join([arm.key, *told])
        return found

    @property
    def runs(self) -> Iterator[Run]:
        """All runs."""
        return (run for arm in self.arms for chain in arm.chains for run in chain)

    @property
    def sets(self) -> list[str]:
        """Evaluation sets that every evaluated center has: held-out, problems trained on, further tasks."""
        shared = set.intersection(*(set(p.sets) for run in self.runs for p in run.points))
        order = ("held-out", "train", *self.arms[0].stages[0].points[0].sets)
        return [name for name in dict.fromkeys(order) if name in shared]

    @property
    def tries(self) -> list[int]:
        """The k of pass@k that every evaluation has: 1, 16 and 32, and the number of responses where it is below 16."""
        sizes = [e.samples for e in self.evaluations if e.samples > 0]
        least = min(sizes, default=max(TRIES))
        return sorted({1, *(k for k in TRIES if k <= least), *([least] if least < 16 else [])})

    @property
    def evaluations(self) -> Iterator[Evaluation]:
        """All evaluations."""
        return (e for run in self.runs for p in run.points for e in p.sets.values())


def _differences(a: Arm, b: Arm) -> list[str]:
    return [name for name in SETTINGS if a.setting(name) != b.setting(name)]


def readable(path: Path) -> str:
    """A path as text in UTF-8, whatever bytes it has."""
    return str(path).encode("utf-8", "replace").decode()


def shown(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_run(path: Path) -> Run:
    """A run's folder.

    Raises:
        InputError: no run there, a damaged file.
    """
    folder = RunFolder(path)
    config = folder.config
    identity = folder.identity if (path / "identity.json").is_file() else {}
    points, metrics = folder.points(), folder.metrics()
    if any(not isinstance(line, dict) or not isinstance(line.get("update"), int) for line in metrics):
        raise InputError(f"{path}/metrics.jsonl is damaged: a line has no update")
    if any("held-out" not in p.sets for p in points):
        raise InputError(f"{path}/evaluations is damaged: an evaluation has no held-out problems")
    return Run(folder, config, identity, points, metrics)


def experiments(runs: Sequence[Run]) -> list[Experiment]:
    """Evaluated runs as arms, those that can be compared together, in the order in which they were named.

    Raises:
        InputError: a run twice (also a copy of it), since it would count as two seeds.
    """
    chains = _chains([run for run in runs if run.points])
    arms: dict[tuple[str, ...], list[list[Run]]] = {}
    for chain in chains:
        foreign = str(chain[0].identity.get("init") is not None)
        arms.setdefault((chain[0].begun_from, foreign, *(run.settings for run in chain)), []).append(chain)
    for members in arms.values():
        seeds: dict[tuple[int, ...], str] = {}
        for chain in members:
            seed = tuple(run.config.seed for run in chain)
            if seed in seeds:
                raise InputError(f"{seeds[seed]} and {chain[-1].name} are the same run (settings, start and seed)")
            seeds[seed] = chain[-1].name
    found: dict[str, list[Arm]] = {}
    for number, ((begun_from, *_), members) in enumerate(arms.items()):
        found.setdefault(begun_from, []).append(Arm(_letter(number), members))
    return [Experiment(arms) for arms in found.values()]


def _chains(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs as stages of one another: each that no other goes on from the end of, with all before it."""
    before: dict[int, Run] = {}
    for run in runs:
        init = run.identity.get("init")
        if init is not None:
            earlier = (r for r in runs if r is not run and r.folder.digest(r.points[-1].update) == init)
            if (found := next(earlier, None)) is not None:
                before[id(run)] = found
    continued = {id(run) for run in before.values()}

    def chain(run: Run) -> list[Run]:
        return [*(chain(before[id(run)]) if id(run) in before else []), run]

    return [chain(run) for run in runs if id(run) not in continued]


def _letter(number: int) -> str:
    """A … Z, AA, AB, …"""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)
