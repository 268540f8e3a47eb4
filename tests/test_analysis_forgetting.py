"""Forgetting: what is paired, what the verdicts need, gaps between problems trained on and held out."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from esth.analysis.forgetting import MARGIN, forgetting, forgetting_of, judged
from esth.analysis.over_seeds import change, gap, level, quantities_of
from esth.errors import InputError
from esth.estimators.intervals import Interval, bounded_mean, crossed
from esth.training.evaluation import Evaluation
from esth.training.folder import Point, RunFolder
from esth.training.worlds import Spent

DEMO = Path(__file__).parents[1] / "results" / "training" / "demo"


def evaluation(name: str, successes: np.ndarray, n: int = 16, first: int = 0) -> Evaluation:
    p = len(successes)
    ids = tuple(str(first + i) for i in range(p))
    greedy = (successes > n / 2).astype(float)
    return Evaluation(name, ids, n, successes.astype(float), greedy, np.zeros(p), np.ones(p), np.zeros(p))


def point(update: int, **sets: np.ndarray) -> Point:
    named = {name.replace("_", "-"): successes for name, successes in sets.items()}
    return Point(update, 0.0, Spent(), 0.0, 0, {n: evaluation(n, s) for n, s in named.items()})


def arm(seeds: int, gains: dict[str, int], prompts: int = 40) -> tuple[list[Point], list[Point]]:
    """Made-up runs: every prompt gains so many of 16 responses, and a seed's own one more or less."""
    rng = np.random.default_rng(0)
    before = {name: rng.integers(4, 8, prompts + i) for i, name in enumerate(gains)}
    starts = [point(0, **before) for _ in range(seeds)]
    own = rng.integers(-1, 2, (seeds, prompts + 2))
    ends = [
        point(9, **{n: before[n] + gain + own[s][: len(before[n])] for n, gain in gains.items()}) for s in range(seeds)
    ]
    return starts, ends


def plain(interval: Interval) -> list[float]:
    return [float(x) for x in interval]


def test_changes_are_paired_by_prompt_and_crossed_over_seeds() -> None:
    starts, ends = arm(3, {"train": 5, "held_out": 3, "other": -2})
    found = forgetting(starts, ends, ks=(1, 4))
    assert [(r.task, r.quantity) for r in found.rows][:3] == [
        ("train", "pass@1"),
        ("train", "pass@4"),
        ("train", "greedy"),
    ]
    row = next(r for r in found.rows if (r.task, r.quantity) == ("other", "pass@1"))
    table = np.stack([e.sets["other"].successes - s.sets["other"].successes for s, e in zip(starts, ends, strict=True)])
    assert row.change == pytest.approx(crossed(table / 16), abs=1e-12)
    assert row.before.value == pytest.approx(starts[0].sets["other"].successes.mean() / 16)
    assert row.verdict == "lost" and found.verdict == "forgotten" and found.seeds == 3
    (less,) = [g for g in found.gaps if g.quantity == "pass@1"]
    means = [
        [float(p.sets[n].successes.mean()) / 16 for p in points]
        for n in ("train", "held-out")
        for points in (starts, ends)
    ]
    train_before, train_after, held_before, held_after = map(np.mean, means)
    assert less.before.value == pytest.approx(train_before - held_before)
    assert less.after.value == pytest.approx(train_after - held_after)
    assert less.gain.value == pytest.approx(train_after - train_before - held_after + held_before)
    assert less.gain.lower < less.gain.value < less.gain.upper


def test_one_seed_is_the_paired_difference_of_its_evaluations() -> None:
    starts, ends = arm(1, {"train": 5, "held_out": 3})
    found = forgetting(starts, ends)
    row = next(r for r in found.rows if (r.task, r.quantity) == ("held-out", "pass@16"))
    after, before = ends[0].sets["held-out"], starts[0].sets["held-out"]
    assert plain(row.change) == pytest.approx(plain(after.difference(before, 16)))
    assert plain(row.after) == pytest.approx(plain(after.pass_at(16)))
    row = next(r for r in found.rows if (r.task, r.quantity) == ("held-out", "greedy"))
    assert plain(row.change) == pytest.approx(plain(after.greedy_difference(before)))
    assert found.verdict == "no task"


@pytest.mark.parametrize(
    ("value", "half", "verdict"),
    [(0.03, 0.02, "gained"), (-0.03, 0.02, "lost"), (0.0, 0.0199, "kept"), (0.0, 0.0201, "undecided"),
     (-0.01, 0.011, "undecided"), (-0.004, 0.003, "lost"), (0.1, 0.11, "kept")],
)  # fmt: skip
def test_verdicts_of_one_change(value: float, half: float, verdict: str) -> None:
    assert MARGIN == 0.02
    assert judged(Interval(*(np.asarray(x) for x in (value, value - half, value + half)))) == verdict


def test_one_task_that_is_forgotten_decides() -> None:
    # The held-out set is no further task.
    assert forgetting(*arm(3, {"held_out": -3, "a": 2, "b": 0})).verdict == "kept"
    assert forgetting(*arm(3, {"held_out": 3, "a": 2, "b": -2})).verdict == "forgotten"
    assert forgetting(*arm(2, {"held_out": 3, "a": 2, "b": 0}, prompts=4)).verdict == "undecided"


# Gaps


def test_a_gap_of_one_seed_is_welchs_interval() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 0.2, (1, 30)), rng.normal(0.1, 0.05, (1, 90))
    expected = stats.ttest_ind(a[0], b[0], equal_var=False).confidence_interval(0.95)
    assert (gap(a, b).lower, gap(a, b).upper) == pytest.approx((expected.low, expected.high), rel=1e-10)
    wide = stats.ttest_ind(a[0], b[0], equal_var=False).confidence_interval(0.99)
    assert gap(a, b, 0.99).upper == pytest.approx(wide.high, rel=1e-10)


def test_a_gap_to_a_constant_is_the_crossed_interval() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(0.3, 0.2, (4, 30)) + rng.normal(0, 0.1, (4, 1)) + rng.normal(0, 0.1, 30)
    assert gap(a, np.zeros((4, 50))) == pytest.approx(crossed(a), rel=1e-10)


@pytest.mark.parametrize(("seeds", "spread", "least"), [(3, 0.0, 0.93), (3, 0.03, 0.90), (5, 0.03, 0.92)])
def test_coverage_of_a_gap(seeds: int, spread: float, least: float) -> None:
    """Seeds shift both sets by much and their gap by `spread`; prompts and their interaction with seeds vary too."""
    rng = np.random.default_rng(2)
    covered = []
    for _ in range(1500):
        common, own = rng.normal(0, 0.1, (seeds, 1)), rng.normal(0, spread, (seeds, 1))
        a, b = (
            shift + rng.normal(0, 0.15, (1, n)) + rng.normal(0, 0.1, (seeds, n))
            for shift, n in ((0.2 + common + own, 60), (common, 40))
        )
        found = gap(a, b)
        covered.append(found.lower <= 0.2 <= found.upper)
    assert least < np.mean(covered) < 0.985


# Bad input, and what runs keep


def test_what_cannot_be_compared() -> None:
    starts, ends = arm(2, {"train": 1, "held_out": 1})
    with pytest.raises(InputError, match="needs runs, each with its start and end: 2 starts, 1 ends"):
        forgetting(starts, ends[:1])
    with pytest.raises(InputError, match="needs runs"):
        forgetting([], [])
    with pytest.raises(InputError, match="need the same tasks"):
        forgetting(starts, [ends[0], point(9, train=np.array([1, 2]))])
    other = [point(9, train=np.arange(39) % 17, held_out=np.arange(41) % 17)] * 2
    with pytest.raises(InputError, match="evaluations 'train' and 'train' have different prompts"):
        forgetting(starts, other)
    a, b = evaluation("a", np.arange(8)), evaluation("a", np.arange(8), first=1)
    with pytest.raises(InputError, match="have different prompts"):
        change([a], [b], "pass@1")
    with pytest.raises(InputError, match="seeds must be paired"):
        change([a, a], [a], "pass@1")
    with pytest.raises(InputError, match="seeds must be paired, at least one"):
        level([], "pass@1")
    for one, two in ((np.zeros(3), np.zeros((1, 3))), (np.zeros((2, 3)), np.zeros((1, 3))), (np.zeros((1, 1)),) * 2):
        with pytest.raises(InputError, match="a gap needs"):
            gap(one, two)


def test_levels_and_quantities() -> None:
    a = evaluation("a", np.array([0, 3, 16, 16]))
    assert quantities_of([a]) == ["pass@1", "pass@16", "greedy"]
    assert quantities_of([evaluation("a", np.array([0, 3]), n=4)], (1, 4, 8)) == ["pass@1", "pass@4", "greedy"]
    expected = bounded_mean(np.array([0.0, 0.0, 1.0, 1.0]))
    assert level([a], "greedy") == pytest.approx(plain(expected))
    assert level([a], "pass@16").value == 0.75 and level([a, a], "pass@1").value == pytest.approx(35 / 64)
    exact = Evaluation("a", ("0", "1"), 0, *(np.array(x) for x in ([0.5, 0.2], [1, 0], [0, 0], [1, 1], [0, 0])))
    assert quantities_of([exact]) == ["pass@1", "pass@16", "pass@32", "greedy"]
    assert level([exact], "pass@16").value == pytest.approx((2 - 0.5**16 - 0.8**16) / 2)


def test_from_the_folders_of_runs(tmp_path: Path) -> None:
    starts, ends = arm(2, {"train": 2, "held_out": 1, "other": 0})
    runs = []
    for seed, points in enumerate(zip(starts, ends, strict=True)):
        runs.append(RunFolder(tmp_path / str(seed)))
        for p in points:
            runs[-1].add_point(p)
    found = forgetting_of(runs)
    assert found.to_dict() == forgetting(starts, ends).to_dict()
    assert found.to_dict()["rows"][0]["change"][0] == pytest.approx(found.rows[0].change.value, abs=1e-6)
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(found.table("made up"))
    shown = console.export_text()
    assert "train less held-out" in shown and "made up: [95 %] over 2 seeds" in shown
    (tmp_path / "0" / "evaluations" / "000009.json").unlink()
    with pytest.raises(InputError, match="has 1 evaluated centers: a start and an end are needed"):
        forgetting_of(runs)


@pytest.mark.parametrize("method", ["es", "grpo"])
def test_the_committed_runs_of_the_demo(method: str) -> None:
    """From the counts themselves: two digits were never trained on."""
    run = RunFolder(DEMO / method)
    found = forgetting_of([run])
    before, after = (p.sets["arithmetic:2+"] for p in (run.points()[0], run.points()[-1]))
    row = next(r for r in found.rows if (r.task, r.quantity) == ("arithmetic:2+", "pass@1"))
    assert math.isclose(row.change.value, (after.successes.sum() - before.successes.sum()) / (16 * 30))
    assert found.verdict == "kept" and row.verdict == "gained"
