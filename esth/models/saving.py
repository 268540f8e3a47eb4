"""Writing a center as a model folder in Hugging Face format, tensor by tensor, from whatever engine holds it."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError
from esth.models.stored import TYPES, bits_of

if TYPE_CHECKING:
    from esth.models.engine import Engine
    from esth.models.workers import Workers

_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
COPIED = (".json", ".jinja", ".txt", ".model", ".py")
"""Endings of what belongs to a model's folder beside its weights."""


def save_center(workers: "Workers", folder: Path) -> None:
    """Write the center of workers, with the checkpoint's config and tokenizer, into a folder that is new or empty.

    The weights are those of the engines to the bit, in their dtype and under the checkpoint's names. Engines hand over
    one tensor at a time, which goes to its place in the file.

    Raises:
        InputError: the disk refuses; what is half-written is left for the caller to delete.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ((_, layout),) = workers.map(_layout, [None])
        for file in sorted(workers.checkpoint.folder.iterdir()):
            if file.suffix in COPIED and not file.name.endswith(".index.json"):
                content = file.read_bytes()
                (folder / file.name).write_bytes(_config(content, layout) if file.name == "config.json" else content)
        _write(workers, layout, folder / "model.safetensors")
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error


Layout = dict[str, tuple[str, tuple[int, ...]]]
"""dtype and shape of every parameter by its name in the checkpoint."""


def _layout(engine: "Engine", item: None) -> Layout:
    return {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in engine.center.items()}


def _tensor(engine: "Engine", name: str) -> NDArray[Any]:
    return bits_of(engine.center[name])


def _config(content: bytes, layout: Layout) -> bytes:
    """The config, saying the dtype of the weights that are written: transformers loads in the one it says."""
    config = json.loads(content)
    ((dtype, _), *_) = layout.values()
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            part.pop("torch_dtype", None)  # the older name of the same field
            part["dtype"] = dtype
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _write(workers: "Workers", layout: Layout, file: Path) -> None:
    kinds = {name: (_NAMES[dtype], shape) for name, (dtype, shape) in layout.items()}
    names = list(layout)
    with open(file, "wb") as stream:
        begins = begin_safetensors(stream, kinds)
        for i, bits in workers.map(_tensor, names):
            stream.seek(begins[names[i]])
            stream.write(np.ascontiguousarray(bits).data.cast("B") if bits.size else b"")


def begin_safetensors(stream: IO[bytes], tensors: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, int]:
    """Write the head of a safetensors file, which is then as long as it will be, and tell where each tensor begins.

    The format: a 64-bit length, a JSON header of that length, then the tensors one after another.

    Args:
        tensors: safetensors dtype and shape of each, in the order of the file.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + TYPES[dtype].itemsize * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = 8 + len(text)
    stream.write(struct.pack("<Q", len(text)) + text)
    stream.truncate(data + end)
    return {name: data + entry["data_offsets"][0] for name, entry in header.items() if name in tensors}
