"""A base and its children as aligned tensors: what is read, and what is refused in one line."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from esth.analysis.pair import Weights, open_family
from esth.errors import InputError
from esth.models.checkpoint import SHIPPED, read_tensors
from esth.training import ESConfig, train

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tensors(seed=0, dtype=torch.float32, layers=(0, 1, 10, 2)):
    """A made-up model whose layers are not in order of their names."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {EMBEDDING: (7, 5), "model.norm.weight": (5,)}
    for layer in layers:
        shapes |= {f"model.layers.{layer}.mlp.up_proj.weight": (3, 5), f"model.layers.{layer}.norm.weight": (5,)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def write(folder: Path, weights, shards=1, model_type="llama"):
    """A Hugging Face folder of weights, in one file or several."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    names = list(weights)
    files = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def gathered(family, count, side):
    """Every tensor put together again from the slices, [-1 is the base, else the number of a child]."""
    found = {}
    for part in family.slices(count):
        values = part.base if side < 0 else part.children[side]
        assert part.start == sum(len(v) for v in found.get(part.name, [])), "slices in order, without gaps"
        assert values.dtype == np.float32 and len(values) <= count
        found.setdefault(part.name, []).append(values.copy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


@pytest.mark.parametrize("count", [1, 4, 7, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_weight_is_read_once_in_float32_however_it_is_stored(tmp_path, count, dtype):
    base, one, two = tensors(0, dtype), tensors(1), tensors(2, torch.float16)
    family = open_family(
        write(tmp_path / "base", base, shards=3), [write(tmp_path / "1", one), write(tmp_path / "2", two, shards=2)]
    )
    for side, stored in ((-1, base), (0, one), (1, two)):
        found = gathered(family, count, side)
        assert found.keys() == stored.keys()
        for name, tensor in stored.items():
            assert np.array_equal(found[name], tensor.float().numpy().ravel())
    assert family.size == sum(t.numel() for t in base.values())
    assert family.bytes == sum(t.nbytes for side in (base, one, two) for t in side.values())


def test_layers_come_in_order_of_their_numbers(tmp_path):
    folder = write(tmp_path / "base", tensors())
    layers = [n.split(".")[2] for n in open_family(folder, [folder]).shapes if "up_proj" in n]
    assert layers == ["0", "1", "2", "10"]


def test_only_the_tensors_asked_for(tmp_path):
    folder = write(tmp_path / "base", tensors())
    parts = list(open_family(folder, [folder]).slices(names=["model.norm.weight"]))
    assert [part.name for part in parts] == ["model.norm.weight"] and len(parts[0].child) == 5


def test_names_that_are_known_and_runs(tmp_path):
    config = ESConfig(
        model="tiny-3", sigma=0.03, alpha=0.02, population=4, prompts=8, fitness="sampled",
        common_random_numbers=True, updates=1, evaluation_prompts=8, evaluation_samples=2,
    )  # fmt: skip
    run = train(config, tmp_path / "run")
    family = open_family("tiny-3", [run.path])
    assert family.base.folder == SHIPPED["tiny-3"]
    assert family.children[0].folder == run.checkpoint(1)
    # The drift that the run measured of its own center, in another way.
    moved = sum(float(np.square(p.child.astype(float) - p.base).sum()) for p in family.slices())
    base = sum(float(np.square(p.base.astype(float)).sum()) for p in family.slices())
    assert (moved / base) ** 0.5 == pytest.approx(run.points()[-1].drift, rel=1e-5) and moved > 0


# Tied embeddings


def tied(seed, *, head, embedding=True):
    """A model whose head is its embedding: stored by either name or both; `head` may be another tensor."""
    found = tensors(seed)
    if head is not None:
        found[HEAD] = found[EMBEDDING].clone() if head == "tied" else found[EMBEDDING] + head
    if not embedding:
        del found[EMBEDDING]
    return found


@pytest.mark.parametrize("heads", [(None, "tied"), ("tied", None), ("tied", "tied")])
def test_a_head_stored_twice_is_one_tensor_with_its_embedding(tmp_path, heads):
    base, child = (write(tmp_path / str(i), tied(i, head=head)) for i, head in enumerate(heads))
    family = open_family(base, [child])
    assert HEAD not in family.shapes and EMBEDDING in family.shapes
    assert sum(f"{HEAD} equals {EMBEDDING}" in note for note in family.notes) == heads.count("tied")
    assert np.array_equal(gathered(family, 9, 0)[EMBEDDING], tensors(1)[EMBEDDING].numpy().ravel())


def test_a_tensor_stored_as_head_on_one_side_and_as_embedding_on_the_other(tmp_path):
    base, child = (
        write(tmp_path / "0", tied(0, head=None)),
        write(tmp_path / "1", tied(1, head="tied", embedding=False)),
    )
    family = open_family(base, [child])
    assert HEAD not in family.shapes and any("is its embedding too" in note for note in family.notes)
    assert np.array_equal(gathered(family, 9, 0)[EMBEDDING], tensors(1)[EMBEDDING].numpy().ravel())


def test_stored_as_the_head_on_both_sides(tmp_path):
    folders = [write(tmp_path / str(i), tied(i, head="tied", embedding=False)) for i in (0, 1)]
    family = open_family(folders[0], folders[1:])
    assert HEAD in family.shapes and EMBEDDING not in family.shapes


@pytest.mark.parametrize("heads", [(1.0, 1.0), ("tied", 1e-6)])
def test_a_head_of_its_own_is_a_tensor_of_its_own(tmp_path, heads):
    base, child = (write(tmp_path / str(i), tied(i, head=head)) for i, head in enumerate(heads))
    family = open_family(base, [child])
    assert {HEAD, EMBEDDING} <= family.shapes.keys() and family.notes == []


@pytest.mark.parametrize(("heads", "lacks"), [((None, 1e-6), "0"), ((1e-6, None), "1")])
def test_a_head_of_its_own_on_one_side_only_is_missing_on_the_other(tmp_path, heads, lacks):
    base, child = (write(tmp_path / str(i), tied(i, head=head)) for i, head in enumerate(heads))
    with pytest.raises(InputError, match=rf"{lacks} has no tensor {HEAD}"):
        open_family(base, [child])


def test_a_narrower_child_is_said_to_be_one(tmp_path):
    wide, narrow = write(tmp_path / "f32", tensors()), write(tmp_path / "bf16", tensors(dtype=torch.bfloat16))
    assert open_family(narrow, [wide]).notes == []
    assert "stores BF16" in open_family(wide, [narrow]).notes[0]


# What is refused


def refused(base, child, *words):
    """The one line in which a family is refused."""
    with pytest.raises(InputError) as caught:
        for _ in open_family(base, [child]).slices(3):
            pass
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_missing_tensors_and_other_shapes_name_the_first(tmp_path):
    base = write(tmp_path / "base", tensors())
    few = write(tmp_path / "few", tensors(layers=(0, 1)))
    refused(base, few, "few has no tensor model.layers.2.mlp.up_proj.weight, which", "base has")
    refused(few, base, "few has no tensor model.layers.2.mlp.up_proj.weight")
    other = tensors()
    other["model.layers.10.norm.weight"] = torch.zeros(6)
    other["model.norm.weight"] = torch.zeros(6)
    refused(base, write(tmp_path / "other", other), "model.layers.10.norm.weight is [5] in", "[6] in")
    foreign = write(tmp_path / "gpt2", {"transformer.wte.weight": torch.zeros(7, 5)}, model_type="gpt2")
    refused(base, foreign, "a llama and a gpt2 model")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_named(tmp_path, value, dtype):
    base = write(tmp_path / "base", tensors(0, dtype))
    broken = tensors(1, dtype)
    broken["model.layers.2.mlp.up_proj.weight"][2, 1] = value
    child = write(tmp_path / "child", broken)
    refused(base, child, "child: model.layers.2.mlp.up_proj.weight", "position 11", "finite")
    refused(child, base, "child: model.layers.2.mlp.up_proj.weight")


def test_other_dtypes_are_refused(tmp_path):
    base = write(tmp_path / "base", tensors())
    packed = tensors()
    packed["model.norm.weight"] = torch.zeros(5, dtype=torch.int8)
    refused(base, write(tmp_path / "int8", packed), "model.norm.weight", "I8", "F32, F16, BF16")


def test_a_file_cut_short_after_it_was_opened(tmp_path):
    base = write(tmp_path / "base", tensors())
    family = open_family(base, [base])
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="truncated"):
        list(family.slices())


def test_a_header_whose_shapes_do_not_fit_its_bytes(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    header = json.dumps({"a.weight": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert len(read_tensors(folder)) == 1
    with pytest.raises(InputError, match=r"a\.weight of shape"):
        Weights.open(folder)


def test_nothing_there(tmp_path):
    refused(tmp_path / "none", "tiny-3", "none")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "tiny-3", "no weights")
