"""Centers that are kept in part, loaded and saved: against NumPy, safetensors and transformers, to the bit."""

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from esth.errors import InputError  # noqa: E402
from esth.models import Engine, load_checkpoint, load_engine  # noqa: E402
from esth.models.saving import save_center  # noqa: E402
from esth.models.stored import StoredWeights, as_float32, read_arrays, slice_of  # noqa: E402
from esth.models.workers import Local  # noqa: E402
from esth.noise import Keyed, Member, parameter_noise, population  # noqa: E402

Folder = Callable[[str], Path]
MEMBERS = population(3, 3)
DTYPES = ("float32", "bfloat16", "float16")


def engine_of(folder: Path, dtype: str = "float32") -> Engine:
    return load_engine(load_checkpoint(folder), device="cpu", dtype=dtype)


def center(engine: Engine) -> dict[str, "torch.Tensor"]:
    return {name: tensor.detach().clone() for name, tensor in engine.center.items()}


def same(a: dict, b: dict) -> bool:
    """To the bit: zeros of another sign are others."""
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and torch.equal(a[n].view(torch.uint8), b[n].view(torch.uint8)) for n in a
    )


def step(name: str, shape: "torch.Size") -> np.ndarray:
    """0.02 · ε₀ − 0.01 · ε₁ in float32."""
    total = np.zeros(shape, np.float32)
    for member, coefficient in zip(MEMBERS, (0.02, -0.01), strict=False):
        total += np.float32(coefficient) * parameter_noise(member.seed, name, shape).reshape(shape)
    return total


UPDATE = [(MEMBERS[0], 0.02), (MEMBERS[1], -0.01)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [1.0, 0.9, 0.0])
def test_an_update_keeps_a_share_of_the_center(tiny_folder: Folder, dtype: str, keep: float) -> None:
    engine = engine_of(tiny_folder("llama"), dtype)
    before = center(engine)
    engine.set_member(MEMBERS[2], 0.3)  # whoever it is, its center moves
    engine.apply_update(UPDATE, keep)
    for name, old in before.items():
        kept = old.float().numpy() if keep == 1 else np.float32(keep) * old.float().numpy()
        expected = torch.from_numpy(kept + step(name, old.shape)).to(old.dtype)
        assert torch.equal(engine.center[name], expected), name
        assert engine.parameters[name] is engine.center[name]


def test_the_center_is_seen_whoever_the_engine_is(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"))
    before = center(engine)
    engine.set_member(MEMBERS[0], 0.3)
    assert same(center(engine), before)
    assert not same(dict(engine.parameters), before)


@pytest.mark.parametrize("keep", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(tiny_folder: Folder, keep: float) -> None:
    engine = engine_of(tiny_folder("llama"))
    before = center(engine)
    with pytest.raises(InputError, match="keeps must be in"):
        engine.apply_update(UPDATE, keep)
    assert same(center(engine), before)


# Stored weights


@pytest.fixture(scope="module")
def typed_folder(tiny_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny Llama with weights stored in a dtype, two of them −0."""

    def folder(dtype: str) -> Path:
        path = tmp_path_factory.mktemp(dtype) / "llama"
        shutil.copytree(tiny_folder("llama"), path)
        weights = safetensors.load_file(path / "model.safetensors")
        weights = {name: w.to(getattr(torch, dtype)) for name, w in weights.items()}
        weights["model.norm.weight"][:2] = -0.0
        safetensors.save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return path

    return folder


@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_weights_are_a_direction(typed_folder: Folder, dtype: str) -> None:
    folder = typed_folder(dtype)
    stored = pickle.loads(pickle.dumps(StoredWeights.of(load_checkpoint(folder))))
    for name, tensor in safetensors.load_file(folder / "model.safetensors").items():
        flat = tensor.float().numpy().ravel()
        assert stored.noise(name, tensor.shape).tobytes() == flat.tobytes()
        found = stored.noise(name, tensor.shape, 3, 17, scale=0.3)
        assert found.dtype == np.float32 and np.array_equal(found, flat[3:20] * np.float32(0.3))


def test_stored_weights_are_known_by_their_fingerprint(typed_folder: Folder, tmp_path: Path) -> None:
    stored = StoredWeights.of(load_checkpoint(typed_folder("float32")))
    shutil.copytree(stored.folder, tmp_path / "copy")
    copy = StoredWeights.of(load_checkpoint(tmp_path / "copy"))
    assert copy == stored and hash(copy) == hash(stored) and copy.key == stored.key
    weights = safetensors.load_file(tmp_path / "copy" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    safetensors.save_file(weights, tmp_path / "copy" / "model.safetensors", metadata={"format": "pt"})
    assert StoredWeights.of(load_checkpoint(tmp_path / "copy")) != stored
    with pytest.raises(InputError, match="other weights now"):
        copy.noise("model.norm.weight", (32,))
    with pytest.raises(InputError, match=r"nothing are not there"):
        stored.noise("nothing", (32,))
    with pytest.raises(InputError, match=r"have the shape \(32,\), not \(4, 8\)"):
        stored.noise("model.norm.weight", (4, 8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decay_toward_where_it_began(tiny_folder: Folder, dtype: str) -> None:
    engine = engine_of(tiny_folder("qwen2"), dtype)
    stored = StoredWeights.of(engine.checkpoint)
    engine.apply_update(UPDATE)
    before = center(engine)
    engine.apply_update([*UPDATE, (stored, 0.25)], keep=0.75)
    for name, start in safetensors.load_file(stored.folder / "model.safetensors").items():
        old = before[name].float().numpy()
        pulled = np.float32(0.75) * old + (step(name, old.shape) + np.float32(0.25) * start.numpy())
        assert torch.equal(engine.center[name], torch.from_numpy(pulled).to(before[name].dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_loaded_weights_are_the_center_to_the_bit(typed_folder: Folder, dtype: str) -> None:
    folder = typed_folder(dtype)
    engine = engine_of(folder, dtype)
    start = center(engine)
    assert torch.signbit(start["model.norm.weight"][:2]).all()
    engine.apply_update(UPDATE)
    engine.set_member(MEMBERS[2], 0.3)
    engine.load_center(read_arrays(folder))
    assert same(center(engine), start) and same(dict(engine.parameters), start)
    engine.set_member(MEMBERS[2], 0.3)
    engine.restore()
    assert same(dict(engine.parameters), start)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), "model.norm.weight are not there"),
        (lambda w: w.update({"model.norm.weight": torch.ones(31)}), r"shape \(31,\), not \(32,\)"),
        (lambda w: w.update({"model.layers.2.mlp.up_proj.weight": torch.ones(3)}), "layers.2.* of another model"),
        (lambda w: w["model.norm.weight"].fill_(float("nan")), "model.norm.weight overflows its dtype or is not"),
        (lambda w: w.update({"model.norm.weight": torch.ones(32, dtype=torch.int64)}), "is of type I64"),
    ],
)
def test_weights_that_do_not_fit_leave_the_center(tiny_folder: Folder, tmp_path: Path, change, message: str) -> None:
    engine = engine_of(tiny_folder("llama"))
    engine.apply_update(UPDATE)
    before = center(engine)
    weights = safetensors.load_file(tiny_folder("llama") / "model.safetensors")
    change(weights)
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=message):
        engine.load_center(read_arrays(tmp_path))
    assert same(center(engine), before) and same(dict(engine.parameters), before)


# Saving


@pytest.mark.parametrize("kind", ["llama", "llama-untied", "qwen2", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_center_is_a_model_folder(tiny_folder: Folder, tmp_path: Path, kind: str, dtype: str) -> None:
    engine = engine_of(tiny_folder(kind), dtype)
    engine.apply_update(UPDATE)
    engine.set_member(MEMBERS[2], 0.3)
    save_center(Local(engine), tmp_path / "new" / "center")
    assert same(safetensors.load_file(tmp_path / "new" / "center" / "model.safetensors"), center(engine))
    expected = {name: p.clone() for name, p in engine.model.state_dict().items()}
    engine.restore()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "center")
    assert model.dtype == getattr(torch, dtype)  # what the config says
    assert same(model.state_dict(), engine.model.state_dict()) and not same(model.state_dict(), expected)
    again = engine_of(tmp_path / "new" / "center", dtype)
    assert same(center(again), center(engine))
    assert again.checkpoint.tokenizer.get_vocab() == engine.checkpoint.tokenizer.get_vocab()
    assert again.checkpoint.stop_tokens == engine.checkpoint.stop_tokens
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["center"]


def test_a_saved_center_goes_on_as_if_nothing_had_happened(tiny_folder: Folder, tmp_path: Path) -> None:
    through, stopped = engine_of(tiny_folder("llama")), engine_of(tiny_folder("llama"))
    stored = StoredWeights.of(through.checkpoint)
    moves = [[(member, 0.01), (stored, 0.125)] for member in MEMBERS]
    for move in moves:
        through.apply_update(move, keep=0.875)
    for move in moves[:2]:
        stopped.apply_update(move, keep=0.875)
    save_center(Local(stopped), tmp_path / "2")
    taken_up = engine_of(tiny_folder("llama"))
    taken_up.load_center(read_arrays(tmp_path / "2"))
    taken_up.apply_update(moves[2], keep=0.875)
    assert same(center(taken_up), center(through))


def test_an_old_name_of_the_dtype_and_a_shard_index_are_left_behind(tiny_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    del config["dtype"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    (tmp_path / "old" / "model.safetensors").rename(tmp_path / "old" / "shard.safetensors")
    names = dict.fromkeys(read_arrays(tiny_folder("llama")), "shard.safetensors")
    (tmp_path / "old" / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    engine = engine_of(tmp_path / "old")
    save_center(Local(engine), tmp_path / "new")
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == config | {"dtype": "float32"}
    assert not list((tmp_path / "new").glob("*.index.json"))
    assert same(center(engine_of(tmp_path / "new")), center(engine))


def test_a_disk_that_refuses_is_one_line(tiny_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        save_center(Local(engine_of(tiny_folder("llama"))), tmp_path / "file" / "center")


# Common random numbers


def test_members_of_one_name_draw_with_the_same_numbers(tiny_folder: Folder) -> None:
    from esth.models import Sampling

    checkpoint = dataclasses.replace(load_checkpoint(tiny_folder("llama")), stop_tokens=frozenset({2}))
    engine = load_engine(checkpoint, device="cpu")

    def said(direction) -> list:
        engine.set_member(direction, 1e-6)  # all policies are all but one
        return engine.sample([[5, 6, 7]], 4, Sampling(max_tokens=8), 0)

    a, b = MEMBERS[:2]
    assert said(Keyed(a, ("all",))) == said(Keyed(b, ("all",)))
    assert said(Keyed(a, ("all",))) != said(Keyed(a, ("other",)))
    assert said(a) != said(b)
    assert np.array_equal(Keyed(a, ("all",)).noise("x", (9,), 2, 5, scale=0.1), a.noise("x", (9,), 2, 5, scale=0.1))
    assert Keyed(a, ("all",)) == Keyed(Member(a.seed), ("all",)) != Keyed(b, ("all",))


def test_sixteen_bits_are_widened_exactly() -> None:
    numbers = torch.tensor([1.0, -0.0, 3.140625, 1e-40, 65504.0, -2.5e-7])
    for kind, dtype in ((torch.bfloat16, np.uint16), (torch.float16, np.float16)):
        short = numbers.to(kind)
        bits = short.view(torch.uint16).numpy().view(dtype)
        assert as_float32(bits).tobytes() == short.float().numpy().tobytes()
    assert slice_of({"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, "x", (2, 3), 2).tolist() == [2, 3, 4, 5]
