"""Records of a data file, each knowing where it stands, so that an error can say so."""

import csv
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from esth.errors import InputError, require

SUFFIXES = (".jsonl", ".parquet", ".csv", ".tsv")


class Record:
    """Named fields of one line or row."""

    def __init__(self, where: str, number: int, fields: dict[str, Any]) -> None:
        self.where, self.number, self.fields = where, number, fields

    def get(self, *names: str) -> Any:
        """The first field of these names that is there.

        Raises:
            InputError: none of them is there, or it is null; the message names file, line and field.
        """
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        wanted = " or ".join(repr(name) for name in names)
        self.reject(f"no field {wanted}; it has {', '.join(map(str, self.fields)) or 'none'}")

    def text(self, *names: str) -> str:
        """A field that must be a text and not blank."""
        value = self.get(*names)
        if not isinstance(value, str) or not value.strip():
            self.reject(f"field {names[0]!r} is {_short(value)}, not a text")
        return value.strip()

    def answer(self, *names: str) -> str:
        """A field that is a text or a number, spelled as a text; 145.0 becomes 145."""
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not _finite(value):
            self.reject(f"field {names[0]!r} is {_short(value)}, neither a text nor a number")
        if isinstance(value, str):
            return self.text(*names)
        return repr(int(value)) if value == int(value) else repr(value)

    def index(self, limit: int, *names: str) -> int:
        """A field that is a whole number from 0 to limit − 1."""
        value = self.get(*names)
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < limit:
            self.reject(f"field {names[0]!r} is {_short(value)}, not a whole number from 0 to {limit - 1}")
        return number

    def texts(self, *names: str) -> tuple[str, ...]:
        """A field that is a list of texts."""
        value = self.get(*names)
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(x, str) for x in value):
            self.reject(f"field {names[0]!r} is {_short(value)}, not a list of texts")
        return tuple(x.strip() for x in value)

    def reject(self, fault: str) -> NoReturn:
        """Raise InputError that says where the record is and what is wrong with it."""
        raise InputError(f"{self.where}: {fault}")


HUB = "hub:"
"""Before OWNER/NAME/FILE: a file of a data set on the Hugging Face hub."""


def local_file(path: str | os.PathLike[str]) -> Path:
    """The file a path or a hub address names; from the hub it is fetched once, into the hub's own cache.

    Raises:
        InputError: an address that is not hub:OWNER/NAME/FILE, or a file that the hub does not give.
    """
    name = os.fspath(path)
    if not name.startswith(HUB):
        return Path(name)
    owner, _, rest = name.removeprefix(HUB).partition("/")
    data_set, _, file = rest.partition("/")
    if not (owner and data_set and file):
        raise InputError(f"{name}: a data set's file on the hub is named hub:OWNER/NAME/FILE")
    hub = require("huggingface_hub", "llm")
    try:
        return Path(hub.hf_hub_download(f"{owner}/{data_set}", file, repo_type="dataset"))
    except Exception as error:  # network, authorisation, unknown name, disk: all of them one line for the user
        raise InputError(f"{name}: the hub does not give it: {_short(error)}") from error


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """All records of a JSONL, Parquet, CSV or TSV file, by its suffix.

    Raises:
        InputError: the file is missing, empty, of another kind, or broken; the message names the line.
    """
    path = local_file(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: unknown kind of file; accepted are {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise InputError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")
    reader = {".jsonl": _jsonl, ".parquet": _parquet}.get(path.suffix.lower(), _table)
    try:
        records = list(reader(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or _short(error)}") from error
    if not records:
        raise InputError(f"{path}: holds no records")
    return records


def _jsonl(path: Path) -> Iterator[Record]:
    for where, number, line in _lines(path):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except RecursionError:
            raise InputError(f"{where}: bad JSON: nested too deeply") from None
        except ValueError as error:
            raise InputError(f"{where}: bad JSON: {_short(error)}") from None
        if not isinstance(fields, dict):
            raise InputError(f"{where}: a JSON object with named fields was expected, not {_short(fields)}")
        yield Record(where, number, fields)


def _table(path: Path) -> Iterator[Record]:
    lines = (line for _, _, line in _lines(path))
    tabs = path.suffix.lower() == ".tsv"
    # Tab-separated benchmark files quote nothing, so a quotation mark in them is a character like any other.
    reader = csv.DictReader(lines, dialect="excel-tab" if tabs else "excel", quoting=csv.QUOTE_NONE if tabs else 0)
    try:
        for fields in reader:
            if None in fields:
                raise InputError(f"{path} line {reader.line_num}: more columns than the header names")
            yield Record(f"{path} line {reader.line_num}", reader.line_num, fields)
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num}: {error}") from None


def _parquet(path: Path) -> Iterator[Record]:
    require("pyarrow", "llm")
    parquet = require("pyarrow.parquet", "llm")
    try:
        rows = parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's own errors derive from these
        raise InputError(f"{path}: not a readable Parquet file: {_short(error)}") from None
    for number, fields in enumerate(rows, start=1):
        yield Record(f"{path} row {number}", number, fields)


def _lines(path: Path) -> Iterator[tuple[str, int, str]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path} line {number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: not UTF-8 at byte {error.start + 1} of the line") from None
            yield where, number, line


def _finite(value: str | int | float) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _short(value: object) -> str:
    text = " ".join(str(value).split()) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
