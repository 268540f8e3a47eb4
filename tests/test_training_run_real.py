"""Runs of a language model in engines: ES as in the tiny world, GRPO by TRL; killed, resumed, one after the other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from esth.errors import InputError
from esth.models.checkpoint import SHIPPED
from esth.training import ESConfig, GRPOConfig, RunFolder, last_center, rebuild, train
from tests.killing import killed

SMALL: dict[str, Any] = {
    "model": str(SHIPPED["tiny-3"]),  # a folder: to be held by an engine
    "task": "chain",
    "problems": 40,
    "prompts": 8,
    "evaluation_prompts": 6,
    "evaluation_samples": 4,
    "evaluate_every": 2,
}
ES = ESConfig(**SMALL, population=4, sigma=0.02, alpha=0.02, updates=4, save_every=3)
GRPO = GRPOConfig(**SMALL, num_generations=4, learning_rate=1e-3, updates=4, save_every=1)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_engines_and_the_one_batch_make_the_same_run(tmp_path: Path) -> None:
    """Greedy answers are the same in both, so are the rewards, and then the updates, to the bit."""
    engines = train(ES, tmp_path / "engines")
    batch = train(replace(ES, engine="batched"), tmp_path / "batch")
    assert engines.log() == batch.log()
    assert equal(weights(last_center(engines)), weights(last_center(batch)))
    for a, b in zip(engines.points(), batch.points(), strict=True):
        assert a.drift == pytest.approx(b.drift, rel=1e-9) and a.spent == b.spent
        for name, sets in a.sets.items():
            assert np.array_equal(sets.greedy, b.sets[name].greedy)
    rebuild(engines, 4, tmp_path / "again")
    assert equal(weights(tmp_path / "again"), weights(last_center(engines)))


@pytest.mark.slow
@pytest.mark.parametrize("config", [ES, GRPO], ids=["es", "grpo"])
def test_a_killed_run_goes_on(config: Any, tmp_path: Path) -> None:
    straight = train(config, tmp_path / "straight")
    for _ in range(3):
        killed(config, tmp_path / "run", 1)
    run = train(config, tmp_path / "run")
    assert equal(weights(last_center(run)), weights(last_center(straight)))
    assert [line["update"] for line in run.metrics()] == [1, 2, 3, 4]
    assert [line["reward"] for line in run.metrics()] == [line["reward"] for line in straight.metrics()]
    assert [p.update for p in run.points()] == [0, 2, 4]
    for a, b in zip(run.points(), straight.points(), strict=True):
        assert a.spent == b.spent and a.drift == b.drift
        assert a.sets["held-out"].to_dict() == b.sets["held-out"].to_dict()


def test_trl_trains_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    run = train(replace(GRPO, updates=6, lr_scheduler_type="constant"), tmp_path / "run")
    points = run.points()
    assert points[0].drift == 0 < points[1].drift < points[2].drift
    assert [p.spent.responses for p in points] == [0, 2 * 32, 4 * 32, 6 * 32]
    assert points[-1].spent.backward_passes == 6 * 32 and points[-1].peak_memory > 1e8
    base, end = weights(SHIPPED["tiny-3"]), weights(last_center(run))
    moved = sum(float((end[n].double() - base[n].double()).square().sum()) for n in base)
    whole = sum(float(base[n].double().square().sum()) for n in base)
    assert points[-1].drift == pytest.approx((moved / whole) ** 0.5, rel=1e-6)
    for line in run.metrics():
        assert {"reward", "entropy", "tokens", "seconds", "grad_norm", "clip_ratio"} <= line.keys()
    assert train(replace(GRPO, updates=6, lr_scheduler_type="constant"), tmp_path / "run").points() is not None


@pytest.mark.slow
def test_stages_of_a_language_model(tmp_path: Path) -> None:
    """ES from the end of GRPO, GRPO from the end of ES: each starts in the very weights where the other ended."""
    first = train(replace(GRPO, updates=2), tmp_path / "grpo")
    second = train(replace(ES, updates=2, init=str(first.path)), tmp_path / "es")
    third = train(replace(GRPO, updates=2, init=str(second.path)), tmp_path / "again")
    for before, after in ((first, second), (second, third)):
        end, start = before.points()[-1], after.points()[0]
        assert start.drift == end.drift and start.spent == end.spent
        assert start.sets["held-out"].to_dict() == end.sets["held-out"].to_dict()
    rebuild(second, 0, tmp_path / "center")
    assert equal(weights(tmp_path / "center"), weights(last_center(first)))


def test_a_divergence_needs_the_model_it_is_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="beta > 0 needs a run without init"):
        replace(GRPO, beta=0.1, init="somewhere")
    with pytest.raises(InputError, match="is no run"):
        train(replace(GRPO, init=str(tmp_path)), tmp_path / "run")
    assert not (tmp_path / "run").exists() and RunFolder(tmp_path).checkpoints() == []
