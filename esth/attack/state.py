"""What an interrupted attack has done so far: one JSON file, replaced atomically."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import esth
from esth.attack.search import Candidate, Finding, closest
from esth.errors import InputError

ROOMS = ("attack", "estimators", "lemmas")
"""Folders of the library that an attack runs."""


def fingerprint() -> str:
    """Of the library's source: a result is a function of the code, too."""
    root = Path(esth.__file__).parent
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(root.glob("*.py")) + sorted(p for room in ROOMS for p in (root / room).glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass
class State:
    """Progress of an attack.

    Attributes:
        job: everything the result is a function of.
        batches: random batches done in each space, counted from the first.
        starts: the closest instances of each bound so far.
        findings: bounds whose local search is done.
    """

    job: dict[str, Any]
    batches: dict[str, int] = field(default_factory=dict)
    starts: dict[str, list[Candidate]] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)

    def add(self, space: str, batches: int, found: dict[str, list[Candidate]]) -> None:
        """Take in the next `batches` of a space."""
        self.batches[space] = self.batches.get(space, 0) + batches
        for name, candidates in found.items():
            self.starts[name] = closest([*self.starts.get(name, []), *candidates])

    def save(self, folder: Path | None) -> None:
        """Replace the file in `folder`; a reader or a crash sees the old state or the new, never half of one."""
        if folder is None:
            return
        content = {
            "job": self.job,
            "batches": self.batches,
            "starts": {name: [c.to_dict() for c in candidates] for name, candidates in self.starts.items()},
            "findings": {name: finding.to_dict() for name, finding in self.findings.items()},
        }
        path = state_file(folder, self.job)
        part = path.with_suffix(".part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


def state_file(folder: Path, job: dict[str, Any]) -> Path:
    """Named so that attacks on several lemmas, or of several sizes, share a folder."""
    return folder / f"{job['lemma']}-{job['instances']}-seed{job['seed']}.json"


def load(folder: Path | None, job: dict[str, Any]) -> State:
    """The state of `job` stored in `folder`; a new one where there is none, or one of other code or constants.

    Raises:
        InputError: the file is no state of an attack.
    """
    if folder is None or not state_file(folder, job).exists():
        return State(job)
    path = state_file(folder, job)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["job"] != job:
            return State(job)
        return State(
            job,
            dict(stored["batches"]),
            {name: [Candidate.from_dict(c) for c in candidates] for name, candidates in stored["starts"].items()},
            {name: Finding.from_dict(finding) for name, finding in stored["findings"].items()},
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path} is not the state of an attack: delete it or give another folder") from error
