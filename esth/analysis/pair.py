"""A base and its children as aligned tensors, read in slices: the memory needed does not grow with a tensor.

    family = open_family("demo", ["run"])
    for part in family.slices():
        print(part.name, part.start, abs(part.child - part.base).max())

Weights are compared as float32, whatever dtype each side stores. Slices are plain reads of the files: pages of a
mapped file would count as this process's memory.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from esth.errors import InputError
from esth.models.checkpoint import StoredTensor, find_folder, read_tensors
from esth.models.groups import kind
from esth.models.stored import TYPES, as_float32
from esth.noise import Float32
from esth.training.evaluate import run_of
from esth.training.run import last_center

SLICE = 1 << 20
"""Elements of a slice: 4 MiB a side in float32."""


@dataclass(frozen=True)
class Weights:
    """The stored weights of one model.

    Attributes:
        name: as the user gave it.
        folder: where its safetensors files lie.
        tensors: name -> where it lies, in order of the names, layer 2 before layer 10.
    """

    name: str
    folder: Path
    tensors: dict[str, StoredTensor] = field(repr=False)

    @classmethod
    def open(cls, model: str | os.PathLike[str]) -> "Weights":
        """Find a model's weights: neither a tokenizer nor transformers is needed.

        Args:
            model: a folder in Hugging Face format (one file, shards, or both); the folder of a run of `esth train`,
                whose last center is meant; "demo", "tiny-3", "tiny-4", or a name on the hub.

        Raises:
            InputError: nothing there, a run without a center, weights that are pickled, damaged, or of a dtype other
                than float32, float16 and bfloat16.
        """
        name = os.fspath(model)
        if name == "toy":
            raise InputError("the toy world stores no base: compare the runs of it with each other")
        run = run_of(name)
        folder = find_folder(name) if run is None else last_center(run)
        tensors = read_tensors(folder)
        for tensor, stored in tensors.items():
            if stored.dtype not in TYPES:
                raise InputError(
                    f"{name}: {tensor} is of type {stored.dtype}; accepted are {', '.join(TYPES)}: weights that are "
                    "quantised or packed have no coordinates to compare"
                )
            if stored.end - stored.begin != math.prod(stored.shape) * TYPES[stored.dtype].itemsize:
                raise InputError(f"{stored.file} is damaged: {tensor} of shape {stored.shape} has another size there")
        return cls(name, folder, {tensor: tensors[tensor] for tensor in sorted(tensors, key=in_order)})

    @property
    def model_type(self) -> str:
        """The architecture, as config.json has it."""
        try:
            return str(json.loads((self.folder / "config.json").read_text(encoding="utf-8"))["model_type"])
        except (OSError, ValueError, LookupError, TypeError):
            return "unknown"


class Slice(NamedTuple):
    """A stretch of one tensor, flat: positions start … start+n−1 on every side, float32 [n]."""

    name: str
    start: int
    base: Float32
    children: list[Float32]

    @property
    def child(self) -> Float32:
        """The first, or only, child's."""
        return self.children[0]


@dataclass(frozen=True)
class Family:
    """A base and its children whose tensors have the same names and shapes.

    Attributes:
        base, children: without what they store twice (`notes` says so).
        notes: what was done to align them, in words.
    """

    base: Weights
    children: list[Weights]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor, in order."""
        return {name: tensor.shape for name, tensor in self.base.tensors.items()}

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def bytes(self) -> int:
        """That `slices` reads in all."""
        return sum(t.end - t.begin for w in (self.base, *self.children) for t in w.tensors.values())

    def stored_bytes(self, part: Slice) -> int:
        """What a slice takes in the files of all sides."""
        sides = (self.base, *self.children)
        return len(part.base) * sum(TYPES[side.tensors[part.name].dtype].itemsize for side in sides)

    def slices(self, count: int = SLICE, names: Sequence[str] | None = None) -> Iterator[Slice]:
        """All coordinates once, tensor by tensor in order, at most `count` at a time.

        Args:
            names: of the tensors wanted, all of them if None.

        Raises:
            InputError: a weight that is not finite, a file that was cut since it was opened.
        """
        with ExitStack() as stack:
            sides = [_Reader(weights, stack) for weights in (self.base, *self.children)]
            for name in self.shapes if names is None else names:
                size = math.prod(self.shapes[name])
                for start in range(0, size, count):
                    base, *children = [side.read(name, start, min(count, size - start)) for side in sides]
                    yield Slice(name, start, base, children)


def open_family(base: str | os.PathLike[str], children: Sequence[str | os.PathLike[str]]) -> Family:
    """Open and align a base and one child or more (`Weights.open`).

    A head that is the embedding to the bit is one tensor with it, whether a side stores it once or twice. Where any
    side has a head of its own it is a tensor of its own, and a side that stores none lacks it.

    Raises:
        InputError: what `Weights.open` says; a tensor that is on one side only, or of another shape there.
    """
    return align(Weights.open(base), [Weights.open(child) for child in children])


def align(base: Weights, children: Sequence[Weights]) -> Family:
    """The family of weights that are open already, see `open_family`."""
    notes: list[str] = []
    base, *children = _untie([base, *children], notes)
    for child in children:
        _check_same_tensors(base, child)
        dtypes = {(base.tensors[name].dtype, tensor.dtype) for name, tensor in child.tensors.items()}
        if any(here != there and there != "F32" for here, there in dtypes):  # float32 holds every 16-bit number
            notes.append(
                f"{child.name} stores {_dtypes(child)} and {base.name} {_dtypes(base)}: what its weights changed by "
                "being stored so is part of the update"
            )
    return Family(base, list(children), notes)


def in_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by their parts, numbers by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _dtypes(weights: Weights) -> str:
    return " and ".join(sorted({tensor.dtype for tensor in weights.tensors.values()}))


def _check_same_tensors(base: Weights, child: Weights) -> None:
    """Raise InputError with the first tensor, in order, that one side lacks or has in another shape."""
    for name in sorted(base.tensors.keys() | child.tensors.keys(), key=in_order):
        one, other = base.tensors.get(name), child.tensors.get(name)
        if one is not None and other is not None and one.shape == other.shape:
            continue
        kinds = "" if base.model_type == child.model_type else f" (a {base.model_type} and a {child.model_type} model)"
        if one is None or other is None:
            has, lacks = (base, child) if other is None else (child, base)
            raise InputError(f"{lacks.name} has no tensor {name}, which {has.name} has{kinds}: they must have the same")
        raise InputError(
            f"{name} is {list(one.shape)} in {base.name} and {list(other.shape)} in {child.name}{kinds}: "
            "base and child must have equal shapes"
        )


# Tied embedding and head


def _untie(sides: list[Weights], notes: list[str]) -> list[Weights]:
    """The sides with one name for an embedding that is the head too, if it is so on all of them."""
    found = [(_only(side, "token"), _only(side, "head")) for side in sides]
    if all(head is None for _, head in found):
        return sides
    twice = [token is not None and head is not None for token, head in found]
    tied = [
        not both or _equal(side, token, head)  # type: ignore[arg-type]
        for side, (token, head), both in zip(sides, found, twice, strict=True)
    ]
    if not all(tied):
        return sides
    name = next((token for token, _ in found if token is not None), None)
    if name is None:  # stored as the head on every side
        return sides
    aligned = []
    for side, (token, head), both in zip(sides, found, twice, strict=True):
        if both:
            notes.append(f"{side.name}: {head} equals {token} to the bit: they are one tensor")
            side = _replaced(side, {n: t for n, t in side.tensors.items() if n != head})
        elif token is None and head is not None:
            notes.append(f"{side.name}: {head} is its embedding too: it is {name} here")
            side = _replaced(side, {name if n == head else n: t for n, t in side.tensors.items()})
        aligned.append(side)
    return aligned


def _replaced(side: Weights, tensors: Mapping[str, StoredTensor]) -> Weights:
    return Weights(side.name, side.folder, {name: tensors[name] for name in sorted(tensors, key=in_order)})


def _only(side: Weights, wanted: str) -> str | None:
    """The name of the one weight of a kind, if there is one and no more."""
    found = [name for name in side.tensors if name.endswith("weight") and kind(name) == wanted]
    return found[0] if len(found) == 1 else None


def _equal(side: Weights, one: str, other: str) -> bool:
    """Whether two tensors of a side hold the same numbers."""
    a, b = side.tensors[one], side.tensors[other]
    if a.shape != b.shape:
        return False
    size = math.prod(a.shape)
    with ExitStack() as stack:
        reader = _Reader(side, stack)
        return all(
            np.array_equal(reader.read(one, start, n), reader.read(other, start, n))
            for start in range(0, size, SLICE)
            for n in (min(SLICE, size - start),)
        )


class _Reader:
    """Reads slices of one side; its files stay open until `stack` closes."""

    def __init__(self, weights: Weights, stack: ExitStack) -> None:
        self.weights = weights
        self.files = {file: os.open(file, os.O_RDONLY) for file in {t.file for t in weights.tensors.values()}}
        for descriptor in self.files.values():
            stack.callback(os.close, descriptor)

    def read(self, name: str, start: int, count: int) -> Float32:
        """Positions start … start+count−1 of a tensor, flat."""
        tensor = self.weights.tensors[name]
        kind = TYPES[tensor.dtype]
        bits = np.empty(count, kind)
        left, at = bits.data.cast("B"), tensor.begin + start * kind.itemsize
        while left:  # a read may stop short: Linux gives 2 GiB at most
            got = os.preadv(self.files[tensor.file], [left], at)
            if got == 0:
                raise InputError(f"{tensor.file} is truncated: {name} ends before its size")
            left, at = left[got:], at + got
        values = as_float32(bits) if tensor.dtype != "F32" else bits.astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise InputError(
                f"{self.weights.name}: {name} holds {values[bad]} at position {start + bad}: weights must be finite"
            )
        return values
