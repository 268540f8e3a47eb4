"""Time and memory of `esth compare` on a pair whose embedding is that of a 7 B model.

    python -m pytest -n 0 -s benchmarks/bench_analysis.py

A made-up pair in bfloat16 in a temporary folder (3 GB of disk in all): an embedding of 152,064 x 3,584 and some layers
of a 7 B Qwen2. The comparison runs in a process of its own, whose peak resident memory is reported. What it takes for
7.6e9 parameters follows from its speed, which depends on no tensor's size.
"""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

VOCABULARY, WIDTH, INNER, HEADS = 152_064, 3_584, 18_944, 512
LAYERS = 1
PARAMETERS = 7_615_616_512  # of the whole model
SHAPES = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
for _layer in (f"model.layers.{i}." for i in range(LAYERS)):
    SHAPES |= {
        f"{_layer}input_layernorm.weight": (WIDTH,),
        f"{_layer}self_attn.q_proj.weight": (WIDTH, WIDTH),
        f"{_layer}self_attn.k_proj.weight": (HEADS, WIDTH),
        f"{_layer}self_attn.v_proj.weight": (HEADS, WIDTH),
        f"{_layer}self_attn.o_proj.weight": (WIDTH, WIDTH),
        f"{_layer}post_attention_layernorm.weight": (WIDTH,),
        f"{_layer}mlp.gate_proj.weight": (INNER, WIDTH),
        f"{_layer}mlp.up_proj.weight": (INNER, WIDTH),
        f"{_layer}mlp.down_proj.weight": (WIDTH, INNER),
    }

COMPARE = """
import resource, sys
from esth.cli import main
from esth.training.memory import peak_memory
assert main(["compare", sys.argv[1], sys.argv[2], "--out", sys.argv[3]]) == 0
usage = resource.getrusage(resource.RUSAGE_SELF)
print(peak_memory(), usage.ru_utime + usage.ru_stime)
"""


def write_pair(path: Path) -> tuple[list[Path], int]:
    """Base and child, slice by slice: normal weights of standard deviation 0.02, a child 0.003 away."""
    header, end = {}, 0
    for name, shape in SHAPES.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folders = [path / "base", path / "child"]
    for folder in folders:
        folder.mkdir()
    rng = np.random.default_rng(0)
    files = [open(folder / "model.safetensors", "wb") for folder in folders]  # noqa: SIM115  closed below
    for file in files:
        file.write(struct.pack("<Q", len(text)) + text)
    # One block of noise, written over and over: speed does not depend on the numbers.
    base = 0.02 * rng.standard_normal(1 << 22, np.float32)
    child = base + 0.003 * rng.standard_normal(1 << 22, np.float32)
    blocks = [(values.view(np.uint32) >> 16).astype(np.uint16).tobytes() for values in (base, child)]
    for file, block in zip(files, blocks, strict=True):
        for start in range(0, end, len(block)):
            file.write(block[: end - start])
        file.close()
    return folders, end // 2


def test_a_7b_embedding_within_4_gib(tmp_path):
    folders, coordinates = write_pair(tmp_path)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, *map(str, folders), str(tmp_path / "out.json")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    peak, processor = (float(word) for word in done.stdout.splitlines()[-1].split())
    scale = PARAMETERS / coordinates
    print(
        f"\n  {coordinates:,} coordinates, {2 * coordinates / 2**30:.2f} GiB a side: {seconds:.0f} s, "
        f"{processor:.0f} s of the processor ({1e9 * processor / coordinates:.0f} ns a coordinate, "
        f"{processor * scale / 60:.0f} minutes for {PARAMETERS / 1e9:.1f}e9), peak {peak / 2**20:.0f} MiB"
    )
    assert peak < 4 * 2**30
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["runs"][0]["whole"]["coordinates"] == coordinates
    assert abs(found["runs"][0]["whole"]["relative_distance"] / 0.15 - 1) < 0.02
