"""Weights as they lie on disk: what a center becomes, or is drawn toward; never a second copy of all of them."""

import mmap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError
from esth.models.checkpoint import fingerprint, load_checkpoint, read_tensors
from esth.noise import Float32

if TYPE_CHECKING:
    import torch

    from esth.models.checkpoint import Checkpoint

Arrays = Mapping[str, NDArray[Any]]
"""Weights by name in the shapes of their parameters: float32, float16, or uint16 for the bits of bfloat16."""

TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""safetensors dtypes that are weights, and how their bits are read."""


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """The weights in a folder's safetensors files, mapped into memory: read where they are looked at.

    Raises:
        InputError: no weights, damaged ones, or some of another type than float32, float16 and bfloat16.
    """
    maps: dict[Path, mmap.mmap] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in read_tensors(folder).items():
        if tensor.dtype not in TYPES:
            raise InputError(f"{tensor.file}: {name} is of type {tensor.dtype}; accepted are {', '.join(TYPES)}")
        kind = TYPES[tensor.dtype]
        count = (tensor.end - tensor.begin) // kind.itemsize
        if count == 0:
            arrays[name] = np.empty(tensor.shape, kind)
            continue
        if tensor.file not in maps:
            with open(tensor.file, "rb") as stream:
                maps[tensor.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        arrays[name] = np.frombuffer(maps[tensor.file], kind, count, tensor.begin).reshape(tensor.shape)
    return arrays


def as_float32(bits: NDArray[Any]) -> Float32:
    """The same numbers in float32, a new array: every 16-bit number is one."""
    if bits.dtype == np.uint16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.astype(np.float32)


def as_bits(values: Float32, dtype: str) -> NDArray[Any]:
    """The bits of float32 numbers in a safetensors dtype, rounded to the nearest even: exact for its own numbers."""
    if dtype == "BF16":
        bits = values.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    with np.errstate(over="ignore"):  # infinite: who loads the model finds that
        return values.astype(TYPES[dtype])


def bits_of(tensor: "torch.Tensor") -> NDArray[Any]:
    """A tensor as one of `Arrays`, a new array."""
    import torch

    tensor = tensor.detach().cpu()
    return np.asarray((tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy().copy())


def slice_of(
    arrays: Arrays, name: str, shape: Sequence[int], start: int, count: int | None = None, scale: float = 1.0
) -> Float32:
    """scale · weights of one parameter, flat, positions start … start+count−1: float32 [count].

    Raises:
        InputError: no such name, or another shape.
    """
    found = arrays.get(name)
    if found is None or found.shape != tuple(shape):
        there = "are not there" if found is None else f"have the shape {found.shape}, not {tuple(shape)}"
        raise InputError(f"the stored weights {name} {there}")
    stop = found.size if count is None else start + count
    values = as_float32(found.reshape(-1)[start:stop])
    return values if scale == 1 else np.multiply(values, np.float32(scale), out=values)


def check_arrays(arrays: Arrays, shapes: Mapping[str, Sequence[int]], known: Collection[str]) -> None:
    """Raise InputError unless there are weights of all `shapes`, and none that are not `known`."""
    unknown = next((name for name in arrays if name not in shapes and name not in known), None)
    if unknown is not None:
        raise InputError(f"the stored weights {unknown} are of another model: this one has none of that name")
    for name, shape in shapes.items():
        slice_of(arrays, name, shape, 0, 0)


@dataclass(frozen=True)
class StoredWeights:
    """A checkpoint's weights θ₀ as a direction (`esth.noise.Direction`): θ ← (1 − λ)θ + λθ₀ is an update with `keep`.

    Small wherever it travels, and compared by the weights' fingerprint: they are read where they are used, from
    `folder` or, where that is not there, from the model of that `name`.
    """

    fingerprint: str
    name: str = field(compare=False)
    folder: Path = field(compare=False)

    @classmethod
    def of(cls, checkpoint: "Checkpoint") -> "StoredWeights":
        """Those of a checkpoint."""
        return cls(checkpoint.fingerprint, checkpoint.name, checkpoint.folder)

    @property
    def key(self) -> tuple[int | str, ...]:
        """The fingerprint."""
        return ("stored", self.fingerprint)

    def noise(
        self, name: str, shape: Sequence[int], start: int = 0, count: int | None = None, *, scale: float = 1.0
    ) -> Float32:
        """scale · θ₀ of one parameter, flat, positions start … start+count−1: float32 [count].

        Raises:
            InputError: the checkpoint is gone or has other weights now, or none of that name and shape.
        """
        return slice_of(_opened(self.name, self.folder, self.fingerprint), name, shape, start, count, scale)


@lru_cache(maxsize=4)
def _opened(name: str, folder: Path, expected: str) -> dict[str, NDArray[Any]]:
    folder = folder if folder.is_dir() else load_checkpoint(name).folder
    if fingerprint(read_tensors(folder)) != expected:
        raise InputError(f"{folder} has other weights now than the center is drawn toward")
    return read_arrays(folder)
