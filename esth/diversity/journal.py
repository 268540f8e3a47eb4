"""What of a long sampling is done, so that Ctrl-C or a killed process costs one step and not the whole."""

import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esth._files import hold, write_text, write_whole
from esth.errors import InputError

if TYPE_CHECKING:
    from esth.models.engine import Response

Arrays = dict[str, NDArray[Any]]


class Journal:
    """Named groups of arrays in a folder, each written whole or not at all; in memory alone if the folder is None.

    Args:
        folder: where they lie.
        identity: JSON types that say what the work is; a folder of other work is refused, and one that another process
            works in.
    """

    def __init__(self, folder: Path | None, identity: dict[str, Any] | None = None) -> None:
        self.folder = folder
        if folder is None:
            return
        mark, text = folder / "identity.json", json.dumps(identity, sort_keys=True)
        if not mark.is_file():
            write_text(mark, text)
        found = hold(mark, self).decode(errors="replace")
        if found != text:
            raise InputError(f"{folder} holds unfinished work of other settings: delete it or name another folder")

    def get(self, name: str) -> Arrays | None:
        """The group `name`, None if it is not there."""
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                return {key: stored[key] for key in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile):  # damaged: done again
            return None

    def put(self, name: str, arrays: Arrays) -> Arrays:
        """Keep a group and return it."""
        path = self._path(name)
        if path is not None:
            write_whole(path, lambda stream: np.savez(stream, allow_pickle=False, **arrays))
        return arrays

    def responses(self, name: str, prompts: int) -> list[list["Response"]] | None:
        """Responses kept under `name`, [prompt][sample]."""
        from esth.models.engine import Response

        stored = self.get(name)
        if stored is None:
            return None
        ends = np.cumsum(stored["lengths"])
        tokens = np.split(stored["tokens"], ends[:-1])
        flat = [
            Response(tuple(int(x) for x in t), bool(cut)) for t, cut in zip(tokens, stored["truncated"], strict=True)
        ]
        each = len(flat) // prompts
        return [flat[x * each : (x + 1) * each] for x in range(prompts)]

    def keep_responses(self, name: str, grid: Sequence[Sequence["Response"]]) -> list[list["Response"]]:
        """Keep responses, the same number for each prompt, and return them."""
        flat = [r for row in grid for r in row]
        self.put(
            name,
            {
                "tokens": np.array([t for r in flat for t in r.tokens], dtype=np.int64),
                "lengths": np.array([len(r.tokens) for r in flat], dtype=np.int64),
                "truncated": np.array([r.truncated for r in flat], dtype=np.bool_),
            },
        )
        return [list(row) for row in grid]

    def close(self) -> None:
        """The work is done and saved elsewhere: forget the journal."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.npz"
