"""`esth compare`: what it prints and writes, what it refuses, and the memory it takes."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from esth.analysis.compare import compare
from esth.analysis.show import short_names
from esth.cli import main
from esth.models.checkpoint import SHIPPED

TINY = SHIPPED["tiny-3"]


def moved(folder, seed, scale, dtype=torch.float32, only=""):
    """tiny-3 with normal noise in the tensors whose names hold `only`."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(TINY / "model.safetensors")
    for name, tensor in weights.items():
        noise = scale * torch.randn(tensor.shape, generator=generator)
        weights[name] = (tensor + noise * (only in name)).to(dtype)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    return str(folder)


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    """A child that moved everywhere, and one whose norms alone did."""
    path = tmp_path_factory.mktemp("children")
    return moved(path / "all", 1, 1e-3), moved(path / "norms", 2, 0.1, only="norm")


def test_the_file_has_what_whole_tensors_say(children, tmp_path, capsys):
    assert main(["compare", "tiny-3", *children, "--top", "50", "--out", str(tmp_path / "new" / "out.json")]) == 0
    assert "written to" in capsys.readouterr().out
    found = json.loads((tmp_path / "new" / "out.json").read_text())
    base = load_file(TINY / "model.safetensors")
    updates = [
        {n: t.double() - base[n].double() for n, t in load_file(f"{child}/model.safetensors").items()}
        for child in children
    ]
    whole = [torch.cat([u.flatten() for u in update.values()]) for update in updates]
    norm = math.sqrt(sum(float(t.double().square().sum()) for t in base.values()))
    for run, update, flat in zip(found["runs"], updates, whole, strict=True):
        assert run["whole"]["relative_distance"] == pytest.approx(float(flat.norm()) / norm)
        assert run["whole"]["changed"] == int((flat != 0).sum())
        for name, tensor in update.items():
            assert run["tensors"][name]["distance"] == pytest.approx(float(tensor.norm()))
        sizes = flat.abs()
        assert run["magnitudes"]["whole"]["0.5"] == pytest.approx(
            np.quantile(sizes, 0.5, method="inverted_cdf"), rel=found["quantile_resolution"]
        )
        top = run["landing"]["top"]
        assert [abs(c["update"]) for c in top] == sizes.topk(50).values.tolist()
        assert all(float(update[c["tensor"]].flatten()[c["position"]]) == c["update"] for c in top)
        assert all(float(base[c["tensor"]].flatten()[c["position"]]) == c["base"] for c in top)
        assert sum(run["landing"]["top_by_kind"].values()) == 50 and run["landing"]["top_that_moved_one_spacing"] == 0
        assert sum(run["landing"]["share_of_squared_distance"].values()) == pytest.approx(1)
    cosine = float(torch.cosine_similarity(*whole, dim=0))
    assert found["cosines"]["whole"][0][1] == pytest.approx(cosine, rel=1e-9)
    assert found["cosines"]["groups"]["mlp"][0][1] is None, "the second did not move there"
    assert found["fisher"] is None and {"esth", "numpy"} <= found["versions"].keys()


def test_where_the_largest_lie_is_seen(children):
    found = compare("tiny-3", children)
    norms = sum(t.numel() for n, t in load_file(TINY / "model.safetensors").items() if "norm" in n)
    assert found.top_by_kind(1) == {"norm": 100} and found.square_share(1)["norm"] == 1
    expected = found.expected_by_size(1)["norm"]
    assert expected.mean == pytest.approx(100 * norms / found.family.size) and expected.upper < 10
    assert found.peaks_by_kind(1) == {"norm": 2}
    # Noise of one variance lies where the coordinates are.
    counts, by_size = found.top_by_kind(0), found.expected_by_size(0)
    outside = [k for k, e in by_size.items() if not e.lower <= counts.get(k, 0) <= e.upper]
    assert len(outside) <= 1


def test_tables(children, capsys):
    assert main(["compare", "tiny-3", *children, "--layers", "--tensors"]) == 0
    text = capsys.readouterr().out
    for words in (
        "83,264 coordinates in 20 tensors",
        "model.layers.1.self_attn.q_proj.weight",
        "Cosine between updates",
        "Quantiles of |Δ| over all coordinates (histogram: ±0.4%",
        "The 100 largest |Δ| by kind",
    ):
        assert words in text
    row = next(line for line in text.split("largest |Δ| by kind")[1].splitlines() if "│ norm " in line)
    assert re.search(r"│\s+100 ▲ │$", row.strip()), row


def test_fisher_information_as_an_expectation(children, tmp_path, capsys):
    out = tmp_path / "out.json"
    command = ["compare", "tiny-3", *children, "--fisher", "chain:3", "--fisher-prompts", "4", "--out", str(out)]
    assert main(command) == 0
    assert "By Fisher: normal" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["fisher"]["task"] == "chain:3" and found["fisher"]["prompts"] == 4
    traces = found["fisher"]["traces"]
    assert traces.keys() == load_file(TINY / "model.safetensors").keys()
    landing = found["runs"][0]["landing"]
    shares = landing["share_of_fisher_trace"]
    assert sum(share["value"] for share in shares.values()) == pytest.approx(1)
    queries = sum(v for n, v in traces.items() if "q_proj" in n) / sum(traces.values())
    assert shares["attention q"]["value"] == pytest.approx(queries)
    assert sum(e["mean"] for e in landing["expected_by_fisher"].values()) == pytest.approx(100)


def test_a_base_that_is_its_child(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["compare", "tiny-3", str(TINY), "tiny-3", "--out", str(out)]) == 0
    assert "no coordinate changed" in capsys.readouterr().out
    for run in json.loads(out.read_text(), parse_constant=pytest.fail)["runs"]:
        assert run["whole"]["relative_distance"] == 0 and run["whole"]["changed"] == 0
        assert run["landing"]["top"] == [] and set(run["landing"]["share_of_squared_distance"].values()) == {0}


def test_a_child_stored_in_bfloat16_and_one_in_shards(tmp_path, capsys):
    narrow = moved(tmp_path / "narrow", 1, 1e-3, torch.bfloat16)
    assert main(["compare", "tiny-3", narrow]) == 0
    assert "stores BF16" in capsys.readouterr().out
    weights = load_file(TINY / "model.safetensors")
    shards = tmp_path / "shards"
    shards.mkdir()
    files = {name: f"{i % 3}.safetensors" for i, name in enumerate(weights)}
    for file in set(files.values()):
        save_file({n: weights[n] for n in weights if files[n] == file}, shards / file)
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert compare("tiny-3", [str(shards)]).drift.whole.distance(0) == 0


def nan(folder):
    weights = load_file(TINY / "model.safetensors")
    weights["model.norm.weight"][3] = math.nan
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiny-3", "{nan}"], "model.norm.weight holds nan at position 3"),
        (["tiny-3", "{nan}", "tiny-4"], "model.embed_tokens.weight is [16, 64] in tiny-3 and [16, 80] in tiny-4"),
        (["tiny-3", "./nowhere"], "nowhere"),
        (["tiny-3", "tiny-3", "--top", "0"], "top"),
        (["tiny-3", "tiny-3", "--fisher", "not_a_task"], "not_a_task"),
        (["tiny-3", "tiny-3", "--fisher", "chain:3", "--fisher-prompts", "1"], "prompts"),
        (["toy", "tiny-3"], "toy"),
        (["tiny-3"], "runs"),
        (["tiny-3", "tiny-3", "--tops", "3"], "--tops"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, words):
    arguments = [a.format(nan=nan(tmp_path / "nan")) if "{" in a else a for a in arguments]
    out = tmp_path / "out.json"
    assert main(["compare", *arguments, "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("esth: ") and printed.err.count("\n") == 1 and words in printed.err
    assert printed.out == "" and not out.exists()


def test_a_file_that_cannot_be(tmp_path, capsys):
    assert main(["compare", "tiny-3", "tiny-3", "--out", str(tmp_path)]) == 2
    assert "must be a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["/a/es/0/last", "/a/grpo/0/last"], ["es", "grpo"]),
        (["/a/b/run"], ["run"]),
        (["demo"], ["demo"]),
        (["x/run", "y/other/run"], ["x", "other"]),
        (["/long/way/to/a", "b"], ["a", "b"]),
        (["/far/a", "a"], ["far/a", "a"]),
        (["same", "same"], ["1: same", "2: same"]),
        (["/a", "/a/b"], ["a", "b"]),
    ],
)
def test_short_names(names, short):
    assert short_names(names) == short


PEAK = """
import sys
from esth.analysis.compare import compare
from esth.training.memory import peak_memory
compare(sys.argv[1], [sys.argv[2]])
print(peak_memory())
"""


def large(folder, rows):
    """An embedding of `rows` x 1024 in bfloat16, written piece by piece."""
    folder.mkdir()
    rng = np.random.default_rng(rows)
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [0, rows * 2048]}}
    ).encode()
    with open(folder / "model.safetensors", "wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for _ in range(0, rows, 1024):
            stream.write(rng.integers(0x3C00, 0x3F80, 1 << 20, dtype=np.uint16).tobytes())
    return str(folder)


@pytest.mark.slow
def test_memory_does_not_grow_with_a_tensor(tmp_path):
    """32 MiB and 256 MiB a side: eight times the tensor, the same peak up to what allocators do."""
    peaks = []
    for rows in (16 << 10, 128 << 10):
        pair = [large(tmp_path / f"{side}-{rows}", rows) for side in ("base", "child")]
        done = subprocess.run([sys.executable, "-c", PEAK, *pair], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) / 2**20)
    assert abs(peaks[1] - peaks[0]) < 48, peaks
