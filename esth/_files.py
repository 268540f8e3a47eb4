"""Files and folders written whole or not at all, and files that one process holds."""

import fcntl
import os
import shutil
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from esth.errors import InputError


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a new file, then put it in the place of `path`; its folder is made if need be.

    Raises:
        InputError: the disk refuses; nothing is left behind. Or `path` is a device, a pipe or a folder, which a file
            must not replace.
    """
    path = path.resolve()  # the target of a link, not the link
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is there and is no file")
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


def write_folder(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make and fill a new folder, then put it in the place of `path`, where nothing (or nothing yet) is.

    Raises:
        InputError: the disk refuses; nothing is left behind.
    """
    half = path.with_name(f".{path.name}.half")
    try:
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        write(half)
        os.replace(half, path)
    except BaseException as error:
        shutil.rmtree(half, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def write_text(path: Path, text: str) -> None:
    """`write_whole` of a text in UTF-8."""
    write_whole(path, lambda stream: stream.write(text.encode()))


def check_folder(path: Path) -> None:
    """Raise InputError unless `path` is a folder that can be written to, or one can be made there; nothing is made."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir():
        raise InputError(f"{path} cannot be a folder: {there} is a file")
    if not os.access(there, os.W_OK):
        raise InputError(f"{path} cannot be written: no permission in {there}")


def hold(file: Path, holder: object) -> bytes:
    """Lock a file while `holder` lives, and return what is in it; the lock ends with the process at the latest.

    File and folder are made if need be. This process must not open it again: to close it anywhere gives the lock away.

    Raises:
        InputError: another process holds it, or it cannot be opened.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        weakref.finalize(holder, os.close, lock)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.read(lock, os.fstat(lock).st_size)
    except BlockingIOError as error:
        raise InputError(f"{file.parent}: another process is at work there") from error
    except OSError as error:
        raise InputError(f"cannot write to {file.parent}: {error.strerror or error}") from error
