"""A checkpoint on disk: found, checked, fingerprinted, with its tokenizer; no weights are loaded here."""

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from esth.errors import InputError, require

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SHIPPED = {name: Path(__file__).parent / "checkpoints" / name for name in ("tiny-3", "tiny-4")}
"""Checkpoints that come with the package (`esth.models.tiny`)."""
_BLOCK = 1 << 22  # bytes read at once
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


class StoredTensor(NamedTuple):
    """Where a tensor lies: file, safetensors dtype ("F32", "BF16", …), shape, byte range in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Checkpoint:
    """A folder in Hugging Face format with safetensors weights and a tokenizer.

    Attributes:
        name: as the user gave it.
        folder: where it lies.
        fingerprint: SHA-256 of the weights (`fingerprint`); results carry it, since one name can mean several weights.
        tensors: name in the checkpoint -> where it lies.
        tokenizer: a transformers tokenizer.
        stop_tokens: ids that end a response; empty if the checkpoint names none, and then all are truncated.
        context: the most tokens that prompt and response may have together, None if the config does not say.
        trust_remote_code: whether code in the folder may run; off unless the user turned it on.
    """

    name: str
    folder: Path
    fingerprint: str
    tensors: dict[str, StoredTensor] = field(repr=False)
    tokenizer: Any = field(repr=False)
    stop_tokens: frozenset[int]
    context: int | None
    trust_remote_code: bool = False

    def encode(self, question: str) -> list[int]:
        """Token ids of a question: as the user's turn of a chat where the tokenizer has a template, else plain."""
        if self.tokenizer.chat_template is None:
            return list(self.tokenizer(question)["input_ids"])
        turn = [{"role": "user", "content": question}]
        return list(self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a response, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def load_checkpoint(model: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Checkpoint:
    """Find and check a checkpoint.

    Args:
        model: a local folder; "demo" (`esth.models.demo`); "tiny-3" or "tiny-4" (`esth.models.tiny`); or a name on the
            Hugging Face hub.
        trust_remote_code: let transformers run Python code that comes with the checkpoint.

    Raises:
        InputError: nothing there; no config, tokenizer or weights; pickled or damaged weights.
        MissingExtra: transformers is not installed.
    """
    transformers = require("transformers", "llm")
    name = os.fspath(model)
    folder = find_folder(name)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: a model folder in Hugging Face format is needed")
    tensors = read_tensors(folder)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise InputError(f"{folder} has no tokenizer: one of {', '.join(_TOKENIZER_FILES)} is needed")
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **options).get_text_config()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left", **options)
    except Exception as error:  # whatever a tokenizer's own file or code raises
        raise InputError(f"{folder}: config or tokenizer does not load: {one_line(error)}") from error
    return Checkpoint(
        name=name,
        folder=folder,
        fingerprint=fingerprint(tensors),
        tensors=tensors,
        tokenizer=tokenizer,
        stop_tokens=_stop_tokens(folder, config, tokenizer),
        context=getattr(config, "max_position_embeddings", None),
        trust_remote_code=trust_remote_code,
    )


def _stop_tokens(folder: Path, config: Any, tokenizer: Any) -> frozenset[int]:
    """What any of the three places names: chat models often list their end of turn in one of them only."""
    file = folder / "generation_config.json"
    generation = _read_object(file).get("eos_token_id") if file.is_file() else None
    tokens: set[int] = set()
    for ids in (generation, config.eos_token_id, tokenizer.eos_token_id):
        tokens |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(tokens)


def find_folder(name: str) -> Path:
    """The folder that a model's name means (`load_checkpoint`); a hub's is fetched unless it is cached.

    Raises:
        InputError: nothing there.
    """
    if name == "demo":
        from esth.models.demo import demo_folder

        return demo_folder()
    if name in SHIPPED:
        return SHIPPED[name]
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"no model folder {name}: give a folder, a Hugging Face name, {', '.join(SHIPPED)} or demo")
    return hub_folder(name)


def hub_folder(name: str, *, timeout: float = 10) -> Path:
    """The snapshot of a model on the hub, fetched unless it is cached: weights in safetensors, no code.

    Args:
        timeout: seconds to wait for the hub's first answer.

    Raises:
        InputError: the hub does not answer or does not know the name, or has no safetensors weights.
    """
    hub, constants = require("huggingface_hub", "llm"), require("huggingface_hub.constants", "llm")
    patterns = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py"]
    try:
        if constants.HF_HUB_OFFLINE:
            return Path(hub.snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        info = hub.HfApi().model_info(name, timeout=timeout)
        files = [file.rfilename for file in info.siblings]
        if not any(file.endswith(".safetensors") for file in files):
            raise InputError(f"{name} has no safetensors weights on the hub; pickled weights are not loaded")
        return Path(hub.snapshot_download(name, revision=info.sha, allow_patterns=patterns))
    except InputError:
        raise
    except Exception as error:  # network, authorisation, unknown name, disk: all of them one line for the user
        try:
            return Path(hub.snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        except Exception:
            message = f"no model folder {name}, and the hub does not give it: {one_line(error)}"
            raise InputError(message) from error


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder's safetensors files, from their headers; data are not read.

    Raises:
        InputError: no weights, pickled weights only, a damaged or truncated file or index, a missing shard.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLED)
        if pickled:
            raise InputError(f"{folder} has pickled weights only ({pickled[0]}): save them as safetensors")
        raise InputError(f"{folder} has no weights: *.safetensors files are needed")
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    elif index.is_file():
        shards = _read_object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(s, str) for s in shards.values()):
            raise InputError(f"{index}: weight_map must name the file of every tensor")
        files = [folder / shard for shard in sorted(set(shards.values()))]
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        tensors |= _read_header(file)
    return tensors


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is not readable JSON: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """A safetensors file: a 64-bit length, a JSON header of that length, then the data to the end of the file."""
    try:
        with open(file, "rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, 100_000_000)))
        size = file.stat().st_size
        start = 8 + length
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(
                file, entry["dtype"], tuple(entry["shape"]), *(start + at for at in entry["data_offsets"])
            )
            for name, entry in header.items()
        }
    except (OSError, ValueError, struct.error, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is not a readable safetensors file: {one_line(error)}") from error
    if max((tensor.end for tensor in tensors.values()), default=start) != size:
        raise InputError(f"{file} is truncated or damaged: its header does not fit its {size} bytes")
    return tensors


def fingerprint(tensors: dict[str, StoredTensor]) -> str:
    """SHA-256 (hex) of names, dtypes, shapes and bits of all tensors in order of name, however they are sharded."""
    digest = hashlib.sha256()
    with ExitStack() as stack:
        # Read, not mapped: pages of a map would count as this process's memory, up to the size of the model.
        files = {file: stack.enter_context(open(file, "rb")) for file in {t.file for t in tensors.values()}}
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            files[tensor.file].seek(tensor.begin)
            for at in range(tensor.begin, tensor.end, _BLOCK):
                digest.update(files[tensor.file].read(min(_BLOCK, tensor.end - at)))
    return digest.hexdigest()


def one_line(error: Exception) -> str:
    """The first line of an error's message, for an InputError to quote."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
