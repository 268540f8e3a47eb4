"""Checkpoints on disk: what is found, what is refused, and what the fingerprint depends on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file

from esth.errors import InputError
from esth.models import load_checkpoint
from esth.models.checkpoint import fingerprint, read_tensors

Folder = Callable[[str], Path]


@pytest.fixture
def folder(tiny_folder: Folder, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny_folder("llama"), tmp_path / "model"))


def refused(folder: Path | str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        load_checkpoint(folder)
    assert "\n" not in str(error.value)


def test_a_good_folder(folder: Path) -> None:
    checkpoint = load_checkpoint(folder)
    weights = load_file(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == {
        name: array.shape for name, array in weights.items()
    }
    for name, tensor in checkpoint.tensors.items():
        stored = np.fromfile(tensor.file, "<f4", tensor.end - tensor.begin >> 2, offset=tensor.begin)
        assert np.array_equal(stored, weights[name].ravel())
    assert checkpoint.encode("t5 t9 </s>") == [5, 9, 2]
    assert checkpoint.decode([5, 9, 2]) == "t5 t9"
    assert checkpoint.stop_tokens == {2} and checkpoint.context == 128
    assert checkpoint.tokenizer.padding_side == "left"


def test_a_chat_template_is_used_where_there_is_one(folder: Path) -> None:
    template = "{% for m in messages %}<s> {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} t60{% endif %}"
    (folder / "chat_template.jinja").write_text(template)
    assert load_checkpoint(folder).encode("t5 t9") == [1, 5, 9, 60]


def test_stop_tokens_are_the_union_of_what_the_files_name(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 9}))
    assert load_checkpoint(folder).stop_tokens == {2, 7, 8, 9}


def test_the_fingerprint_is_of_the_weights_not_of_the_files(folder: Path) -> None:
    before = load_checkpoint(folder).fingerprint
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_checkpoint(folder).fingerprint == before
    (folder / "b.safetensors").unlink()
    refused(folder, "b.safetensors is not a readable")


def test_the_fingerprint_sees_one_bit_one_name_and_one_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"

    def of(changed: dict) -> str:
        save_file(changed, folder / "model.safetensors")
        return fingerprint(read_tensors(folder))

    flipped = weights[name].copy()
    flipped.view(np.uint32)[3, 4] ^= 1
    other = {n: a for n, a in weights.items() if n != name}
    prints = [
        of(weights),
        of(weights | {name: flipped}),
        of(weights | {name: weights[name].reshape(-1)}),
        of(weights | {name: weights[name].view(np.int32)}),
        of(other | {name + "_": weights[name]}),
        of(other),
    ]
    assert len(set(prints)) == 6
    assert of(dict(reversed(weights.items()))) == prints[0]


def test_missing_parts_are_named(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no model folder .*nowhere")
    refused("./nowhere", "no model folder ./nowhere")
    refused(folder / "config.json", "no model folder")
    weights = (folder / "model.safetensors").rename(tmp_path / "kept")
    refused(folder, "no weights")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    refused(folder, "pickled weights only .pytorch_model.bin.")
    weights.rename(folder / "model.safetensors")
    load_checkpoint(folder)  # pickled weights beside safetensors are ignored
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    refused(folder, "no tokenizer")
    (folder / "tokenizer.json").write_text("{")
    refused(folder, "config or tokenizer does not load")
    (tmp_path / "tokenizer.json").rename(folder / "tokenizer.json")
    (folder / "config.json").unlink()
    refused(folder, "no config.json")


@pytest.mark.parametrize("keep", [0, 5, 8, 100, 5000, -1])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(folder, "model.safetensors is (not a readable|truncated)")


def test_damaged_weights_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (
        b"\xff" * 8 + whole[8:],
        whole + b"\0",
        whole[:8] + b"[" + whole[9:],
        whole[:8] + b"\xff" + whole[9:],
    ):
        file.write_bytes(damaged)
        refused(folder, "model.safetensors is (not a readable|truncated)")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "index.json is not readable JSON"),
        ("[]", "index.json must hold a JSON object, not list"),
        ("{}", "index.json: weight_map must name"),
        ('{"weight_map": {}}', "index.json: weight_map must name"),
        ('{"weight_map": ["a.safetensors"]}', "index.json: weight_map must name"),
        ('{"weight_map": {"w": 1}}', "index.json: weight_map must name"),
        ('{"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}', "b.safetensors is not a readable"),
    ],
)
def test_a_broken_index_is_refused(folder: Path, text: str, words: str) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(text)
    refused(folder, words)


def test_a_broken_generation_config_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    refused(folder, "generation_config.json is not readable JSON")


def test_code_in_a_checkpoint_does_not_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Config: pass\n")
    refused(folder, "config or tokenizer does not load")
    assert not (folder / "ran").exists()
