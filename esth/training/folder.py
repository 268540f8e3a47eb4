"""A run's folder: all that a run leaves, written so that a process killed at any moment can be taken up again.

    config.json             the whole configuration (`esth train … --config` starts the same run again)
    identity.json           what it started from, and the versions of what its numbers depend on
    metrics.jsonl           a line an update
    updates.jsonl           ES: a line an update, its (seed, sign, coefficient) terms: rebuilds any center
    evaluations/000050.json the center after 50 updates: every prompt's counts, drift, and what was spent until then
    checkpoints/000050/     the center after 50 updates, and the state of an optimiser; the newest is kept

An update has happened when its line is whole: in updates.jsonl for ES, else when a checkpoint holds it.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from esth._files import hold, write_folder, write_text
from esth.errors import InputError
from esth.models.checkpoint import fingerprint, read_tensors
from esth.noise import Member
from esth.training.config import ESConfig, GRPOConfig, from_json, read_object, to_json
from esth.training.evaluation import Evaluation
from esth.training.worlds import Spent

RESUMABLE = ("updates", "evaluate_every", "save_every", "workers")
"""Fields that may differ when a run goes on: they change no update (but a linear learning rate sees `updates`)."""


@dataclass(frozen=True)
class Point:
    """An evaluated center.

    Attributes:
        update: how many updates it has had.
        drift: ‖θ − θ₀‖/‖θ₀‖.
        spent: by this run and those it starts from (`init`), until here.
        seconds: of updates, likewise.
        peak_memory: bytes of the process (of the accelerator, where there is one), the largest of the run so far.
        sets: evaluations by name.
    """

    update: int
    drift: float
    spent: Spent
    seconds: float
    peak_memory: int
    sets: dict[str, Evaluation]

    def to_json(self) -> dict[str, Any]:
        """JSON types."""
        plain = {name: getattr(self, name) for name in ("update", "drift", "seconds", "peak_memory")}
        return {**plain, "spent": asdict(self.spent), "sets": [e.to_dict() for e in self.sets.values()]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Point":
        """What `to_json` gave."""
        sets = [Evaluation.from_dict(e) for e in found["sets"]]
        plain = {name: found[name] for name in ("update", "drift", "seconds", "peak_memory")}
        return cls(**plain, spent=Spent(**found["spent"]), sets={e.name: e for e in sets})


class RunFolder:
    """The files of one run. Reading needs nothing; `begin` makes this process the one that writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config(self) -> ESConfig | GRPOConfig:
        """The run's configuration.

        Raises:
            InputError: no run there.
        """
        file = self.path / "config.json"
        if not file.is_file():
            raise InputError(f"{self.path} is no run: it has no config.json of esth train")
        found = read_object(file)
        if "method" not in found:
            raise InputError(f"{self.path} is no run: its config.json is not one of esth train (a model's folder?)")
        return from_json(found, where=str(file))

    @property
    def identity(self) -> dict[str, Any]:
        """What the run started from."""
        return read_object(self.path / "identity.json")

    def begin(self, config: ESConfig | GRPOConfig, identity: dict[str, Any]) -> None:
        """Take the folder for this run: make it, or go on with what is there.

        Raises:
            InputError: it holds another run (of another configuration, or that started from other weights or problems),
                something else, or another process is at work there.
        """
        if (self.path / "config.json").is_file():
            self._check_same(config)
        elif self.path.exists() and (not self.path.is_dir() or any(f.suffix != ".half" for f in self.path.iterdir())):
            raise InputError(f"{self.path} holds something else than a run: name another folder")
        else:
            write_text(self.path / "config.json", _pretty(to_json(config)))
        hold(self.path / "lock", self)
        mark = self.path / "identity.json"
        if not mark.is_file():
            write_text(mark, _pretty(identity))
        stored = self.identity
        other = sorted(
            k for k in identity.keys() | stored.keys() if identity.get(k) != stored.get(k) and k != "versions"
        )
        if other:
            since = " (or that run has gone on since)" if other[0] == "init" else ""
            raise InputError(
                f"{self.path} holds a run that started from another {other[0]}{since}: name another folder"
            )
        if self.config != config:
            write_text(self.path / "config.json", _pretty(to_json(config)))
        for name in ("metrics.jsonl", "updates.jsonl"):
            _cut_half_line(self.path / name)
        for half in self.path.glob("checkpoints/.*.half"):
            shutil.rmtree(half, ignore_errors=True)

    def _check_same(self, config: ESConfig | GRPOConfig) -> None:
        stored, new = to_json(self.config), to_json(config)
        other = [name for name in {**stored, **new} if stored.get(name) != new.get(name) and name not in RESUMABLE]
        if (
            "updates" not in other
            and stored["updates"] != new["updates"]
            and stored.get("lr_scheduler_type") == "linear"
        ):
            other.append("updates")
        if other:
            name = other[0]
            raise InputError(
                f"{self.path} holds a run of another configuration: {name} is {stored.get(name)!r} there and "
                f"{new.get(name)!r} here; name another folder"
            )
        done = max((line["update"] for line in self.metrics()), default=0)
        if new["updates"] < done:
            raise InputError(f"{self.path} has had {done} updates already: updates = {new['updates']} cannot undo them")

    # Lines

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return _lines(self.path / "metrics.jsonl")

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append a line; what was not measured (NaN) is null."""
        known = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in line.items()}
        _append(self.path / "metrics.jsonl", known)

    def keep_metrics(self, updates: int) -> None:
        """Forget lines of later updates: they will be written again."""
        lines = self.metrics()
        kept = [line for line in lines if line["update"] <= updates]
        if len(kept) < len(lines):
            write_text(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    def log(self) -> list[list[tuple[Member, float]]]:
        """The updates of ES: (member, coefficient) terms of each."""
        config = self.config
        assert isinstance(config, ESConfig)
        family, rank = config.family, config.rank
        return [
            [(Member(seed, sign, family, rank), coefficient) for seed, sign, coefficient in line["terms"]]
            for line in _lines(self.path / "updates.jsonl")
        ]

    def add_update(self, number: int, update: list[tuple[Member, float]]) -> None:
        """Append an update to the log: from here on it has happened."""
        terms = [[member.seed, member.sign, coefficient] for member, coefficient in update]
        _append(self.path / "updates.jsonl", {"update": number, "terms": terms})

    # Evaluations

    def has_point(self, update: int) -> bool:
        """Whether the center after `update` updates has been evaluated."""
        return self._point(update).is_file()

    def add_point(self, point: Point) -> None:
        """Keep an evaluation."""
        write_text(self._point(point.update), json.dumps(point.to_json()) + "\n")

    def points(self) -> list[Point]:
        """All evaluated centers, in their order.

        Raises:
            InputError: a damaged file.
        """
        files = sorted((self.path / "evaluations").glob("*.json"))
        try:
            return [Point.from_json(read_object(file)) for file in files]
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.path}/evaluations is damaged or from another version: {error}") from error

    def _point(self, update: int) -> Path:
        return self.path / "evaluations" / f"{update:06d}.json"

    # Checkpoints

    def checkpoints(self) -> list[int]:
        """Updates whose centers are kept."""
        return sorted(int(p.name) for p in self.path.glob("checkpoints/[0-9]*") if p.name.isdigit())

    def checkpoint(self, update: int) -> Path:
        """The folder of a kept center.

        Raises:
            InputError: it does not belong to this run.
        """
        folder = self.path / "checkpoints" / f"{update:06d}"
        found = read_object(folder / "run.json")
        if found.get("update") != update or found.get("log") != self.digest(update):
            raise InputError(f"{folder} does not belong to this run: its log of updates is another")
        if found.get("weights") != fingerprint(read_tensors(folder)):
            raise InputError(f"{folder} does not hold the weights that this run saved there")
        return folder

    def save(self, update: int, write: Callable[[Path], None]) -> None:
        """Let `write` fill a new folder, then keep it as the newest checkpoint and delete the older ones."""
        folder = self.path / "checkpoints" / f"{update:06d}"

        def fill(half: Path) -> None:
            write(half)
            told = {"update": update, "log": self.digest(update), "weights": fingerprint(read_tensors(half))}
            write_text(half / "run.json", json.dumps(told))
            if folder.exists():
                shutil.rmtree(folder)

        write_folder(folder, fill)
        for old in self.checkpoints():
            if old < update:
                shutil.rmtree(self.path / "checkpoints" / f"{old:06d}")

    def digest(self, update: int) -> str:
        """What a center after `update` updates is a function of: where the run started, its settings, its log."""
        settings = {k: v for k, v in to_json(self.config).items() if k not in RESUMABLE}
        start = {k: v for k, v in self.identity.items() if k != "versions"}
        told = [settings, start] if isinstance(self.config, ESConfig) else [settings, start, update]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
        log = self.path / "updates.jsonl"
        if log.is_file():
            with open(log, "rb") as stream:
                for _, line in zip(range(update), stream, strict=False):
                    digest.update(line)
        return digest.hexdigest()


def _append(file: Path, line: Mapping[str, Any]) -> None:
    try:
        with open(file, "ab") as stream:
            stream.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from error


def _lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one without its end was being written when the process was killed."""
    if not file.is_file():
        return []
    try:
        return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except ValueError as error:
        raise InputError(f"{file} is damaged: {error}") from error


def _cut_half_line(file: Path) -> None:
    if file.is_file():
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(file, whole)


def _pretty(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
