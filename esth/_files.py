"""Files written whole or not at all."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from esth.errors import InputError


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a new file, then put it in the place of `path`; its folder is made if need be.

    Raises:
        InputError: the disk refuses; nothing is left behind.
    """
    half = path.with_name(f".{path.name}.half")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(half, "wb") as stream:
            write(stream)
        os.replace(half, path)
    except BaseException as error:
        with suppress(OSError):
            half.unlink()
        if isinstance(error, OSError):
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def write_text(path: Path, text: str) -> None:
    """`write_whole` of a text in UTF-8."""
    write_whole(path, lambda stream: stream.write(text.encode()))
