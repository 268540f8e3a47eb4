"""How far weights moved: against NumPy and torch on whole tensors, whatever the slices."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from esth.analysis.drift import DOUBLINGS, SPACINGS, bfloat16, drift, layer, places, spacing_exponents
from esth.analysis.histogram import RESOLUTION, Histogram
from esth.analysis.pair import open_family

SHAPES = {
    "model.embed_tokens.weight": (11, 4),
    "model.layers.0.input_layernorm.weight": (4,),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.mlp.up_proj.weight": (9, 4),
    "model.layers.1.self_attn.q_proj.weight": (4, 4),
    "model.layers.1.mlp.up_proj.weight": (9, 4),
    "model.norm.weight": (4,),
}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def draw(seed):
    """Weights of many magnitudes, some of them 0."""
    rng = np.random.default_rng(seed)

    def of(shape):
        return rng.normal(size=shape) * 2.0 ** rng.integers(-12, 6, shape) * (rng.random(shape) > 0.1)

    return {name: torch.from_numpy(of(shape)) for name, shape in SHAPES.items()}


def write(folder, weights, dtype):
    folder.mkdir()
    save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=["F32", "F16", "BF16"])
def case(request, tmp_path_factory):
    """A base and two children of one dtype, on disk and in memory; a third of the coordinates do not move."""
    path, dtype = tmp_path_factory.mktemp(request.param), DTYPES[request.param]
    base = {name: tensor.to(dtype) for name, tensor in draw(0).items()}
    children = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        steps = {
            name: torch.from_numpy(t.numpy() * 10.0 ** rng.uniform(-4, 0, t.shape) * (rng.random(t.shape) > 0.3))
            for name, t in draw(seed).items()
        }
        children.append({name: (base[name].double() + steps[name]).to(dtype) for name in SHAPES})
    folders = [write(path / str(i), w, dtype) for i, w in enumerate((base, *children))]
    return request.param, base, children, folders


def flat(weights, names=SHAPES):
    return torch.cat([weights[name].flatten() for name in names])


@pytest.mark.parametrize("count", [1, 5, 1 << 20])
def test_distances_and_cosines_are_those_of_the_whole_tensors(case, count):
    _, base, children, folders = case
    found = drift(open_family(folders[0], folders[1:]), count)
    parts = {
        "whole": (list(SHAPES), found.whole),
        "layer": ([n for n in SHAPES if ".layers.1." in n], found.by_layer()["model.layers.1"]),
        "outside": (["model.norm.weight"], found.by_layer()["model.norm.weight"]),
        "group": ([n for n in SHAPES if "attn" in n], found.by_group()["attention"]),
        "kind": ([n for n in SHAPES if "norm" in n], found.by_kind()["norm"]),
        "tensor": (["model.layers.0.mlp.up_proj.weight"], found.tensors["model.layers.0.mlp.up_proj.weight"]),
    }
    for names, tally in parts.values():
        here = flat(base, names).double()
        moves = [flat(child, names).double() - here for child in children]
        assert tally.size == len(here)
        for r, move in enumerate(moves):
            assert tally.distance(r) == pytest.approx(float(move.norm()), rel=1e-13)
            assert tally.relative(r) == pytest.approx(float(move.norm() / here.norm()), rel=1e-13)
            assert tally.changed[r] == int((flat(children[r], names) != flat(base, names)).sum())
        assert tally.cosine(0, 1) == tally.cosine(1, 0) == pytest.approx(float(torch.cosine_similarity(*moves, dim=0)))
        assert tally.cosine(0, 0) == pytest.approx(1)


@pytest.mark.parametrize("count", [3, 1 << 20])
def test_changes_are_counted_in_spacings_of_the_stored_dtype(case, count):
    name, base, children, folders = case
    found = drift(open_family(folders[0], folders[1:]), count)
    here = flat(base)
    away = torch.full_like(here, torch.inf).copysign(here)
    spacing = (torch.nextafter(here, away).double() - here.double()).abs()  # by torch, in that dtype
    if name != "BF16":
        assert np.array_equal(spacing.numpy(), np.spacing(here.numpy()).astype(float).__abs__())
    for r, child in enumerate(children):
        steps = ((flat(child).double() - here.double()).abs() / spacing).numpy()
        expected = [np.sum(steps == 0), np.sum((steps > 0) & (steps < 1))]
        expected += [np.sum((steps >= 2.0**k) & (steps < 2.0 ** (k + 1))) for k in range(DOUBLINGS)]
        expected += [np.sum(steps >= 2.0**DOUBLINGS)]
        assert found.whole.spacings[r].tolist() == expected
        assert len(expected) == len(SPACINGS) and sum(expected) == len(here)


@pytest.mark.parametrize("count", [3, 1 << 20])
def test_changes_that_bfloat16_would_not_hold(case, count):
    name, base, children, folders = case
    found = drift(open_family(folders[0], folders[1:]), count)
    for r, child in enumerate(children):
        lost = (flat(child) != flat(base)) & (flat(child).bfloat16() == flat(base).bfloat16())
        assert found.whole.lost[r] == int(lost.sum())
        assert found.whole.share_lost(r) == pytest.approx(float(lost.sum()) / found.whole.changed[r])
        assert (found.whole.lost[r] > 0) == (name != "BF16"), "what is stored in bfloat16 is held by it"


def test_whatever_the_slices(case):
    folders = case[3]
    one, other = (drift(open_family(folders[0], folders[1:]), count) for count in (2, 1 << 20))
    assert np.array_equal(one.whole.spacings, other.whole.spacings)
    for group, histograms in one.magnitudes.items():
        for a, b in zip(histograms, other.magnitudes[group], strict=True):
            assert np.array_equal(a.counts, b.counts) and (a.zeros, a.largest) == (b.zeros, b.largest)
    assert one.whole.gram == pytest.approx(other.whole.gram, rel=1e-13)


def test_the_histogram_holds_every_coordinate(case):
    _, base, children, folders = case
    found = drift(open_family(folders[0], folders[1:]))
    for r, child in enumerate(children):
        sizes = (flat(child).double() - flat(base).double()).abs().numpy()
        histogram = found.histogram(r)
        assert histogram.size == len(sizes) and histogram.largest == sizes.max()
        for q in (0.1, 0.3, 0.5, 0.9, 0.999):
            exact = np.quantile(sizes, q, method="inverted_cdf")
            assert histogram.quantile(q) == pytest.approx(exact, rel=RESOLUTION)


def test_a_base_that_is_its_child(tmp_path):
    folder = write(tmp_path / "base", draw(0), torch.float32)
    found = drift(open_family(folder, [folder, folder]))
    whole = found.whole
    assert whole.distance(0) == whole.relative(0) == whole.share_changed(0) == whole.share_lost(0) == 0
    assert math.isnan(whole.cosine(0, 1))
    assert whole.spacings[0].tolist() == [whole.size] + [0] * (len(SPACINGS) - 1)
    assert found.histogram(0).quantile(0.5) == found.histogram(0).quantile(1) == 0
    json.dumps(whole.to_dict(0), allow_nan=False)


def test_a_base_of_norm_zero(tmp_path):
    zero = write(tmp_path / "zero", {n: torch.zeros_like(t) for n, t in draw(0).items()}, torch.float32)
    child = write(tmp_path / "child", draw(0), torch.float32)
    assert drift(open_family(zero, [zero])).whole.relative(0) == 0
    tally = drift(open_family(zero, [child])).whole
    assert tally.relative(0) == math.inf
    assert json.loads(json.dumps(tally.to_dict(0), allow_nan=False))["relative_distance"] == "inf"


def test_signs_of_zero_and_extreme_weights(tmp_path):
    largest, least = np.float32(3.4028234663852886e38), np.float32(1e-45)
    base = torch.tensor([0.0, 0.0, largest, least, 1.0])
    child = torch.tensor([-0.0, least, -largest, -least, 1.0])
    folders = [write(tmp_path / str(i), {"a.weight": t}, torch.float32) for i, t in enumerate((base, child))]
    found = drift(open_family(folders[0], folders[1:]))
    assert found.whole.changed[0] == 3, "-0 is 0"
    assert found.whole.lost[0] == 2, "both denormal numbers are 0 in bfloat16"
    assert found.whole.distance(0) == pytest.approx(2 * float(largest))
    assert found.histogram(0).largest == 2 * float(largest)
    assert found.histogram(0).quantile(0.6) == pytest.approx(1.4e-45, rel=RESOLUTION)  # the third of 0, 0, 2⁻¹⁴⁹, …


def test_children_of_another_dtype_than_the_base(tmp_path):
    exact = {"a.weight": torch.tensor([1.0, 1.0 + 2**-9, 1.0, 3.0])}
    child = {"a.weight": torch.tensor([1.0, 1.0, 1.0 + 2**-7, 3.0 + 2 * 2**-6])}
    base = write(tmp_path / "base", exact, torch.float32)
    tally = drift(open_family(base, [write(tmp_path / "child", child, torch.bfloat16)])).whole
    counts = dict(zip(SPACINGS, tally.spacings[0].tolist(), strict=True))
    assert {k: v for k, v in counts.items() if v} == {"0": 1, "(0, 1)": 1, "[2^0, 2^1)": 1, "[2^1, 2^2)": 1}
    assert tally.lost[0] == 1, "the second moved only by being stored in bfloat16"


# Bits


def test_rounding_to_bfloat16_is_torchs():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    ties = (rng.integers(0, 1 << 16, 10_000, dtype=np.uint64).astype(np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    values = values[np.isfinite(values)]
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    found = (bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_spacings_at_every_bfloat16_or_float16(dtype):
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    values = bits.view(torch.float16 if dtype == "F16" else torch.bfloat16)
    values = values[values.isfinite()]
    stored = values.to(DTYPES[dtype])
    beyond = torch.nextafter(stored, torch.full_like(stored, torch.inf).copysign(stored)).double()
    inside = beyond.isfinite()
    expected = (beyond - stored.double()).abs()[inside].log2().numpy()
    assert np.array_equal(spacing_exponents(values.float().numpy(), dtype)[inside.numpy()], expected)


# Quantiles


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 9,
        [1.0] * 100,
        [0.0, 0.0, 5e-45, 1e-44, 1e-40, 3e-39],  # denormal in float32
        [2.0**-149, 6.8e38, 1.0, 1.0, 0.0],
        [np.nextafter(2.0, 1), 2.0, np.nextafter(2.0, 3)],  # at an edge of bins
        list(np.random.default_rng(0).lognormal(0, 20, 2000).clip(2.0**-149, 6.8e38)),
        list(np.abs(np.random.default_rng(1).standard_cauchy(2000))),
    ],
)
def test_quantiles_are_within_the_resolution(values):
    array = np.array(values)
    histogram = Histogram()
    for part in np.array_split(array, 3):
        histogram.add(part)
    for q in (0.0, 0.01, 0.2, 1 / 3, 0.5, 0.77, 0.99, 1.0):
        exact = np.quantile(array, q, method="inverted_cdf")
        lower, upper = histogram.bracket(q)
        assert lower <= exact <= upper
        assert abs(histogram.quantile(q) - exact) <= RESOLUTION * exact
    assert histogram.quantile(1) == array.max()
    halves = Histogram(), Histogram()
    for half, part in zip(halves, np.array_split(array, 2), strict=True):
        half.add(part)
    both = halves[0] + halves[1]
    assert np.array_equal(both.counts, histogram.counts) and both.zeros == histogram.zeros


def test_the_resolution_is_no_finer_than_it_says():
    """The worst values, at the upper edge of a bin that begins at a power of two, use most of it."""
    histogram = Histogram()
    values = np.nextafter(np.full(4, 1 + 1 / 128), 0)
    histogram.add(np.append(values, 2.0))
    error = 1 - histogram.quantile(0.5) / values[0]
    assert 0.9 * RESOLUTION < error <= RESOLUTION


def test_no_values():
    assert math.isnan(Histogram().quantile(0.5)) and Histogram().size == 0


# Names


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("model.layers.12.mlp.up_proj.weight", "model.layers.12"),
        ("transformer.h.3.attn.c_attn.bias", "transformer.h.3"),
        ("h.0.ln_1.weight", "h.0"),
        ("model.layers.1.block_sparse_moe.experts.7.w1.weight", "model.layers.1"),
        ("model.norm.weight", "model.norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_layers(name, at):
    assert layer(name) == at


def test_an_embedding_stored_as_the_head_is_one():
    assert places(["lm_head.weight", "model.norm.weight"])["lm_head.weight"].label == "embedding"
    both = places(["lm_head.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias"])
    labels = {name: place.label for name, place in both.items()}
    assert labels == {
        "lm_head.weight": "head",
        "model.embed_tokens.weight": "embedding",
        "model.layers.0.self_attn.q_proj.bias": "attention q",
    }
