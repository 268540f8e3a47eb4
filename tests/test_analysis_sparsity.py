"""Zeroing updates: exact counts, exact bits, what a step is; the curve and the rules it is read by."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import integrate, stats

from esth.analysis import sparsity
from esth.analysis.pair import Family, open_family
from esth.analysis.sparsity import (
    ORDERS,
    Scale,
    changes,
    cut_slices,
    cuts,
    histogram_edges,
    keys,
    normal_squares,
    rebuild,
    scales,
    smallest,
    step_variance,
)
from esth.analysis.sparsity_curve import (
    MARGIN,
    PAPER,
    UNLEARNED,
    Curves,
    Tried,
    largest_share,
    no_loss_seen,
    verdict,
    within_margin,
)
from esth.errors import InputError
from esth.estimators.intervals import Interval, crossed
from esth.models.stored import as_bits
from esth.noise import Member
from esth.training.compare import gained
from esth.training.config import ESConfig, GRPOConfig, to_json
from esth.training.evaluation import Evaluation
from esth.training.folder import RunFolder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pair(tiny: Path, place: Path, dtype: str = "float32", scale: float = 0.01, seed: int = 1) -> Family:
    """A random model and a child of it: normal updates to all but the norms, in one dtype."""
    generator = torch.Generator().manual_seed(seed)
    base = {n: t.to(DTYPES[dtype]) for n, t in load_file(tiny / "model.safetensors").items()}
    child = {
        n: t.clone()
        if "norm" in n
        else (t.float() + scale * torch.randn(t.shape, generator=generator)).to(DTYPES[dtype])
        for n, t in base.items()
    }
    for name, tensors in (("base", base), ("child", child)):
        (place / name).mkdir()
        for file in tiny.glob("*.json"):
            (place / name / file.name).write_bytes(file.read_bytes())
        save_file(tensors, place / name / "model.safetensors", {"format": "pt"})
    return open_family(place / "base", [place / "child"])


def flat(folder: Path) -> torch.Tensor:
    """All weights of a folder's files in the order of their names, in their dtype."""
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


def bits(weights: torch.Tensor) -> np.ndarray:
    return weights.view(torch.int32 if weights.dtype == torch.float32 else torch.int16).numpy()


def sides(family: Family) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    base, child = flat(family.base.folder), flat(family.children[0].folder)
    return base, child, (child.float() - base.float()).abs().numpy()


# Which coordinates


def test_the_smallest_keys_are_found_by_counting() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**64, 5000, dtype=np.uint64)
    values[::7] = values[3]  # many equal ones
    values[::11] = 0
    values[5:9] = [1, 2**16, 2**32, 2**64 - 1]
    parts = np.split(values, [17, 18, 3000])
    there = np.sort(values[values > 0])
    counts = [0, 1, 2, 700, len(there) // 2, len(there) - 1, len(there)]
    for n, (key, ties) in zip(counts, smallest(lambda: parts, counts), strict=True):
        if n == 0:
            assert (key, ties) == (0, 0)
        else:
            assert key == there[n - 1] and ties == n - np.sum(there < there[n - 1])


@pytest.mark.parametrize("count", [-1, 5])
def test_no_more_are_zeroed_than_have_changed(count: int) -> None:
    with pytest.raises(InputError, match=f"{count} coordinates cannot be zeroed: 4 have changed"):
        smallest(lambda: [np.array([3, 0, 9, 9, 2**63], np.uint64)], [1, count])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
def test_rebuilt_bits(order: str, dtype: str, tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    """As many as asked for have the base's bits, the first in the order; all others the child's."""
    family = pair(tiny_folder("llama-untied"), tmp_path, dtype)
    base, child, size = sides(family)
    changed = int((size > 0).sum())
    assert changes(family).changed == changed > 0.5 * len(size)
    counts = [round(share * changed) for share in (0.1, 0.5, 0.97)]
    for cut in cuts(family, order, counts):
        found = rebuild(family, cut, tmp_path / f"{cut.zeroed}")
        new = flat(tmp_path / f"{cut.zeroed}")
        assert new.dtype == DTYPES[dtype]
        zeroed = (bits(new) == bits(base)) & (size > 0)
        assert ((bits(new) == bits(child)) | zeroed).all()
        assert zeroed.sum() == found.zeroed == cut.zeroed
        left = np.square(size[~zeroed], dtype=np.float64).sum()
        assert found.squares == pytest.approx(left, rel=1e-12)
        here, others = size[zeroed], size[~zeroed & (size > 0)]
        if order == "smallest":
            assert here.max() <= others.min()
        elif order == "largest":
            assert here.min() >= others.max()


def test_random_zeroing_is_random_and_named_by_its_seed(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    family = pair(tiny_folder("llama"), tmp_path)
    changed = changes(family).changed

    def zeroed(seed: int, order: str = "random") -> np.ndarray:
        (cut,) = cuts(family, order, [changed // 4], seed)
        return np.concatenate([mask & (part.child != part.base) for part, mask in cut_slices(family, cut)])

    one = zeroed(0)
    assert (one == zeroed(0)).all() and (one != zeroed(1)).any()
    # Independent draws agree in 1/16 of all coordinates, and a draw knows nothing of |Δ| nor of the tensor.
    both = int((one & zeroed(1)).sum())
    assert both == pytest.approx(changed / 16, abs=5 * math.sqrt(changed / 16))
    size = np.concatenate([np.abs(part.child - part.base) for part in family.slices()])
    there = size > 0
    assert abs(np.corrcoef(one[there], size[there])[0, 1]) < 5 / math.sqrt(changed)
    for part, mask in cut_slices(family, cuts(family, "random", [changed // 4])[0]):
        n = int((part.child != part.base).sum())
        assert abs(int((mask & (part.child != part.base)).sum()) - n / 4) < 5 * math.sqrt(n * 3 / 16) + 1
    # Distinct |Δ| need no random numbers.
    assert (zeroed(0, "smallest") == zeroed(1, "smallest")).mean() > 0.999


def test_keys_do_not_depend_on_slices(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    family = pair(tiny_folder("llama"), tmp_path)
    for order in ORDERS:
        whole = np.concatenate([keys(part, order, 3) for part in family.slices()])
        assert (np.concatenate([keys(part, order, 3) for part in family.slices(count=777)]) == whole).all()
        assert ((whole > 0) == np.concatenate([part.child != part.base for part in family.slices()])).all()


def test_equal_sizes_are_drawn_at_random_and_counted(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    """In bfloat16 a few hundred values of |Δ| are all there are: the cut goes through many that are equal."""
    family = pair(tiny_folder("llama"), tmp_path, "bfloat16", scale=1e-3)
    _, _, size = sides(family)
    changed = int((size > 0).sum())
    assert len(np.unique(size)) < changed / 10
    (cut,) = cuts(family, "smallest", [changed // 2])
    masks, parts = zip(*[(mask, part) for part, mask in cut_slices(family, cut)], strict=True)
    mask = np.concatenate(masks)
    delta = np.concatenate([np.abs(p.child - p.base) for p in parts])
    at = np.sort(delta[delta > 0])[changed // 2 - 1]
    ties = np.flatnonzero(delta == at)
    inside = mask[ties].sum()
    assert (mask & (delta > 0)).sum() == changed // 2 and 20 < inside < len(ties) - 20
    # The first half of the tied ones in order has its fair part of those that are zeroed: a hypergeometric count.
    half = int(mask[ties[: len(ties) // 2]].sum())
    fair = stats.hypergeom(len(ties), int(inside), len(ties) // 2)
    assert fair.cdf(half) > 1e-6 and fair.sf(half - 1) > 1e-6


def test_counts_are_exact_even_if_all_random_numbers_were_equal(
    tmp_path: Path, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Constant:
        def random_raw(self, count: int) -> np.ndarray:
            return np.full(count, 12345 << 32, np.uint64)

    monkeypatch.setattr(sparsity, "words", lambda key, start=0: Constant())
    family = pair(tiny_folder("llama"), tmp_path, "bfloat16", scale=1e-3)
    changed = changes(family).changed
    for order in ORDERS:
        for cut in cuts(family, order, [1, changed // 3, changed]):
            assert cut.ties > 0
            found = rebuild(family, cut, tmp_path / f"{order}{cut.zeroed}")
            assert found.zeroed == cut.zeroed


# Bits


def test_nothing_zeroed_is_the_child_and_everything_the_base(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    family = pair(tiny_folder("llama"), tmp_path)
    base, child = (load_file(tmp_path / side / "model.safetensors") for side in ("base", "child"))
    name = next(iter(base))
    base[name].view(-1)[:2], child[name].view(-1)[:2] = torch.tensor([0.0, -0.0]), torch.tensor([-0.0, 0.0])
    for side, tensors in (("base", base), ("child", child)):
        save_file(tensors, tmp_path / side / "model.safetensors", {"format": "pt"})
    family = open_family(tmp_path / "base", [tmp_path / "child"])
    changed = changes(family).changed
    for order in ORDERS:
        nothing, everything = cuts(family, order, [0, changed])
        assert rebuild(family, nothing, tmp_path / f"{order}0").zeroed == 0
        assert rebuild(family, everything, tmp_path / f"{order}1") == (changed, 0.0)
        assert (bits(flat(tmp_path / f"{order}0")) == bits(flat(tmp_path / "child"))).all()
        assert (bits(flat(tmp_path / f"{order}1")) == bits(flat(tmp_path / "base"))).all()


def test_base_equal_to_child(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    folder = tiny_folder("llama")
    family = open_family(folder, [folder])
    found = changes(family, [0.0, 1e-9, math.inf])
    assert (found.changed, found.squares, found.below, int(found.histogram.sum())) == (0, 0.0, [0, 0, 0], 0)
    for order in ORDERS:
        (cut,) = cuts(family, order, [0])
        assert rebuild(family, cut, tmp_path / order) == (0, 0.0)
        assert (bits(flat(tmp_path / order)) == bits(flat(folder))).all()


def test_a_wider_base_is_rounded_as_torch_does(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    pair(tiny_folder("llama"), tmp_path)
    for dtype in ("bfloat16", "float16"):
        child = {n: t.to(DTYPES[dtype]) for n, t in load_file(tmp_path / "child" / "model.safetensors").items()}
        narrow = tmp_path / dtype
        narrow.mkdir()
        (narrow / "config.json").write_text("{}")
        save_file(child, narrow / "model.safetensors")
        family = open_family(tmp_path / "base", [narrow])
        (cut,) = cuts(family, "smallest", [changes(family).changed])
        rebuild(family, cut, tmp_path / f"all-{dtype}")
        expected = flat(tmp_path / "base").to(DTYPES[dtype])
        assert (bits(flat(tmp_path / f"all-{dtype}")) == bits(expected)).all()


def test_rounding_to_bfloat16_is_torchs() -> None:
    numbers = torch.randn(20000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-20, 20).repeat(500)
    halfway = torch.tensor([1.00390625, 1.01171875, -1.00390625, 0.0, -0.0, 3.0e38])  # ties go to the even one
    for values in (numbers, halfway):
        assert (as_bits(values.numpy(), "BF16") == values.to(torch.bfloat16).view(torch.int16).numpy().view("u2")).all()


def test_shards_and_a_head_stored_twice(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    """The child's names in one file: a head that is the embedding to the bit stays it."""
    pair(tiny_folder("llama"), tmp_path)
    child = load_file(tmp_path / "child" / "model.safetensors")
    child["lm_head.weight"] = child["model.embed_tokens.weight"].clone()
    names = sorted(child)
    split = tmp_path / "split"
    split.mkdir()
    for file in (tmp_path / "child").glob("*.json"):
        (split / file.name).write_bytes(file.read_bytes())
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, some in shards.items():
        save_file({n: child[n] for n in some}, split / file)
    index = {"weight_map": {n: file for file, some in shards.items() for n in some}}
    (split / "model.safetensors.index.json").write_text(json.dumps(index))
    (split / "run.json").write_text("{}")
    family = open_family(tmp_path / "base", [split])
    whole = open_family(tmp_path / "base", [tmp_path / "child"])
    changed = changes(family).changed
    assert changed == changes(whole).changed
    rebuild(family, cuts(family, "smallest", [changed // 2])[0], tmp_path / "a")
    rebuild(whole, cuts(whole, "smallest", [changed // 2])[0], tmp_path / "b")
    a, b = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    assert a.keys() == child.keys() and torch.equal(a["lm_head.weight"], a["model.embed_tokens.weight"])
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert sorted(f.name for f in (tmp_path / "a").iterdir()) == sorted(
        [f.name for f in (tmp_path / "child").iterdir()]
    )


def test_a_rebuilt_folder_loads(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    import transformers

    family = pair(tiny_folder("llama"), tmp_path)
    (cut,) = cuts(family, "random", [1000])
    rebuild(family, cut, tmp_path / "new")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    stored = load_file(tmp_path / "new" / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in stored.items())


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    family = pair(tiny_folder("llama"), tmp_path)
    (cut,) = cuts(family, "random", [10])
    with pytest.raises(InputError, match="child is there already"):
        rebuild(family, cut, tmp_path / "child")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sparsity, "_write", full)
    with pytest.raises(InputError, match="No space left on device"):
        rebuild(family, cut, tmp_path / "out" / "new")
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_do_not_fit_or_are_no_numbers(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    family = pair(tiny_folder("llama"), tmp_path)
    with pytest.raises(InputError, match=r"equal shapes|no tensor"):
        open_family(tiny_folder("qwen2"), [tmp_path / "child"])
    child = load_file(tmp_path / "child" / "model.safetensors")
    child["model.norm.weight"][3] = math.nan
    save_file(child, tmp_path / "child" / "model.safetensors")
    family = open_family(tmp_path / "base", [tmp_path / "child"])
    for work in (lambda: changes(family), lambda: cuts(family, "smallest", [1])):
        with pytest.raises(InputError, match=r"model.norm.weight holds nan at position 3"):
            work()
    with pytest.raises(InputError, match="order must be one of smallest, random, largest, not 'first'"):
        cuts(family, "first", [1])
    with pytest.raises(InputError, match="thresholds must be numbers"):
        changes(family, [math.nan])


# How large updates are


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counts_below_thresholds_and_in_bins(dtype: str, tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    family = pair(tiny_folder("llama"), tmp_path, dtype)
    _, _, size = sides(family)
    median = float(np.median(size[size > 0]))
    at = float(size[size > 0][17])
    found = changes(family, [0.0, median, at, math.inf])
    assert found.below == [int(((size > 0) & (size.astype(np.float64) < t)).sum()) for t in (0.0, median, at, math.inf)]
    assert found.size == len(size) and found.squares == pytest.approx(np.square(size.astype(np.float64)).sum())
    edges = histogram_edges()
    counted, _ = np.histogram(size[size > 0].astype(np.float64), edges[:-1].astype(np.float64))
    assert (found.histogram[:-1] == counted).all() and found.histogram[-1] == 0
    assert {1.0, 1.25, 1.5, 1.75, 2.0, 2.5} <= set(edges.tolist())


def run_of(config: Any, folder: Path, updates: list[list[tuple[Member, float]]]) -> RunFolder:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    run = RunFolder(folder)
    for number, update in enumerate(updates, start=1):
        run.add_update(number, update)
    return run


def test_one_step_of_z_scores_is_alpha_over_root_n(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    config = ESConfig(population=8, sigma=0.03, alpha=0.02)
    updates = []
    for t in range(3):
        z = rng.standard_normal(8)
        z = (z - z.mean()) / z.std()
        updates.append([(Member(100 * t + i), 0.02 * float(z[i]) / 8) for i in range(8)])
    updates.append([(Member(999), 0.0)] * 1)  # rewards without spread: no step
    step, sigma = scales(run_of(config, tmp_path / "run", updates), 4)
    assert step.size == pytest.approx(0.02 / math.sqrt(8), rel=1e-12) and sigma == ("sigma", 0.03, step.drift)
    assert step.drift == pytest.approx(3 * 0.02**2 / 8)
    # The share below one step after T of them, by the normal distribution function.
    expected = 2 * stats.norm.cdf(1 / math.sqrt(3)) - 1
    assert step.drift_below(step.size) == pytest.approx(expected, rel=1e-12)
    (one, _) = scales(run_of(config, tmp_path / "more", updates), 2)
    assert one.drift == pytest.approx(2 * 0.02**2 / 8)


def test_what_a_step_is_elsewhere(tmp_path: Path) -> None:
    assert step_variance([(Member(1), 3.0), (Member(1, -1), 1.0), (Member(2), 1.0), (Member(2, -1), 1.0)]) == 4.0
    decaying = run_of(ESConfig(decay=0.1), tmp_path / "decay", [[(Member(1), 0.5)]])
    assert [s.drift for s in scales(decaying, 1)] == [None, None] and Scale("step", 1.0, None).drift_below(1.0) is None
    assert scales(run_of(GRPOConfig(learning_rate=3e-4), tmp_path / "grpo", []), 0) == [("step", 3e-4, None)]
    with pytest.raises(InputError, match="all updates were zero"):
        scales(run_of(ESConfig(), tmp_path / "zero", [[(Member(1), 0.0)]]), 1)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.776, 0.93, 0.999, 1.0])
def test_the_squares_that_small_normal_updates_hold(share: float) -> None:
    t = float(stats.norm.ppf((1 + share) / 2))
    expected, _ = integrate.quad(lambda x: 2 * x * x * stats.norm.pdf(x), 0, t) if share < 1 else (1.0, 0.0)
    assert normal_squares(share) == pytest.approx(expected, abs=1e-9)


def test_normal_squares_are_those_of_a_normal_update(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    family = pair(tiny_folder("llama"), tmp_path, scale=0.01)
    update = changes(family)
    for share in (0.5, 0.9):
        (cut,) = cuts(family, "smallest", [round(share * update.changed)])
        left = rebuild(family, cut, tmp_path / f"{share}").squares / update.squares
        assert 1 - left == pytest.approx(normal_squares(share), abs=0.01)
    with pytest.raises(InputError, match="a share lies in"):
        normal_squares(1.1)


# The curve


def interval(value: float, half: float) -> Interval:
    return Interval(*(np.asarray(x) for x in (value, value - half, value + half)))


def test_the_margin_is_a_second_condition() -> None:
    assert (MARGIN, PAPER) == (0.02, (0.776, 0.93))
    for value, half, seen, within in (
        (0.0, 0.0, True, True),
        (-0.005, 0.01, True, True),
        (-0.005, 0.02, True, False),  # a small sample loses nothing and shows nothing
        (-0.01, 0.005, False, True),  # a small loss, but one
        (0.03, 0.01, True, True),
        (0.0, 0.5, True, False),
        (0.0, 0.0199, True, True),
        (0.0, 0.0201, True, False),
    ):
        assert (no_loss_seen(interval(value, half)), within_margin(interval(value, half))) == (seen, within)


def test_the_largest_share_is_where_the_first_fails() -> None:
    good, bad = interval(0.0, 0.01), interval(-0.05, 0.01)
    curve = [(0.25, good), (0.5, good), (0.75, bad), (0.9, good)]
    assert largest_share(curve, within_margin) == 0.5
    assert largest_share(curve[:2], within_margin) == 0.5
    assert largest_share([(0.25, bad), (0.5, good)], within_margin) == 0.0
    assert largest_share([], within_margin) == 0.0
    assert largest_share([(0.5, good), (0.5, bad), (0.25, good)], within_margin) == 0.25


def test_the_verdict_on_c5() -> None:
    good, wide, bad = interval(0.0, 0.01), interval(0.0, 0.05), interval(-0.05, 0.01)
    assert verdict(False, [(1.0, good)]) == UNLEARNED
    assert verdict(True, [(0.5, good), (0.776, good), (0.9, bad)]) == "seen"
    assert verdict(True, [(0.5, good), (0.77599, good), (0.9, bad)]) == "seen"
    assert verdict(True, [(0.5, good), (0.776, wide), (0.9, bad)]) == "undecided"
    assert verdict(True, [(0.5, good), (0.77599, bad), (0.9, bad)]) == "contrary"
    shown = interval(-0.003, 0.002)  # a loss, and one that is smaller than the margin
    assert verdict(True, [(0.5, shown), (0.776, shown), (0.9, bad)]) == "seen"
    assert verdict(True, [(0.5, good), (0.776, interval(-0.021, 0.009)), (0.9, bad)]) == "undecided"
    assert verdict(True, [(0.5, good), (0.9, bad)]) == "undecided"  # the paper's share was not tried
    assert gained(interval(0.06, 0.05)) and not gained(interval(0.06, 0.07))
    assert not gained(interval(0.04, 0.01))


def evaluation(successes: list[int], n: int = 16) -> Evaluation:
    p = len(successes)
    zero = np.zeros(p)
    greedy = (np.array(successes) > n / 2).astype(float)
    return Evaluation(
        "held-out", tuple(map(str, range(p))), n, np.array(successes, float), greedy, zero, zero + 1, zero
    )


def curves(seeds: int) -> Curves:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 8, 40)

    def some(gain: int) -> list[Evaluation]:
        return [evaluation((base + gain + s % 2).tolist()) for s in range(seeds)]

    tried = [
        Tried("smallest", "0.5", [0.5] * seeds, [0.93] * seeds, some(4)),
        Tried("random", "0.5", [0.5] * seeds, [0.5] * seeds, some(2)),
        Tried("smallest", "0.9", [0.9] * seeds, [0.44] * seeds, some(1)),
    ]
    return Curves(some(0), some(4), tried)


def test_curves_are_paired_by_prompt_and_seed() -> None:
    one = curves(1)
    found = one.to_dict()
    (child,), (base,) = one.child, one.base
    assert found["child"]["pass@16"]["gain"] == pytest.approx([float(x) for x in child.difference(base, 16)], abs=1e-6)
    assert found["learned"] and [q for q in found["child"]] == ["pass@1", "pass@16", "greedy"]
    half, tenth, random = (found["rows"][i] for i in (0, 1, 2))
    assert (half["order"], tenth["cut"], random["order"]) == ("smallest", "0.9", "random")
    assert half["effects"]["pass@1"]["less child"][0] == 0.0
    assert half["effects"]["pass@1"]["less random"][0] == pytest.approx(2 / 16)
    assert "less random" not in random["effects"]["pass@1"] and "less random" not in tenth["effects"]["pass@1"]
    # First order: the gain, 4 of 16, times the share of ‖Δ‖² that is gone.
    assert half["expected"] == pytest.approx(-0.25 * 0.07) and tenth["expected"] == pytest.approx(-0.25 * 0.56)
    assert found["largest"]["smallest"]["no loss seen"] == 0.5 and found["largest"]["random"]["no loss seen"] == 0.0
    two = curves(2)
    expected = crossed(np.stack([c.per_prompt(1) - b.per_prompt(1) for c, b in zip(two.child, two.base, strict=True)]))
    assert two.to_dict()["child"]["pass@1"]["gain"] == pytest.approx([float(x) for x in expected], abs=1e-6)


def test_a_run_that_did_not_learn_loses_nothing_and_says_nothing() -> None:
    found = curves(2)
    found = replace(found, child=found.base, tried=[t._replace(evaluations=found.base) for t in found.tried])
    assert found.to_dict()["verdict"] == UNLEARNED and not found.learned
    assert found.to_dict()["largest"]["smallest"]["within margin"] == 1.0
