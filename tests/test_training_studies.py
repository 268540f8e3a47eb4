"""The studies of training: what is compared is what is said, drift and noise as enumerated, small real runs."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import llm.training
import toy.training
from esth.training import ESConfig, GRPOConfig
from esth.training.compare import Arm


def differences(arm: Arm, reference: ESConfig) -> dict[str, object]:
    (config,) = arm.stages
    return {name: value for name, value in asdict(config).items() if value != asdict(reference)[name]}


def test_the_arms_of_the_tiny_study_differ_in_what_their_names_say() -> None:
    plan = llm.training.plans("tiny-3")
    arms = {arm.name: arm for arm in (*plan.compared, *plan.ablations)}
    (es,), (grpo,) = arms["ES, sampled fitness"].stages, arms["GRPO"].stages
    assert isinstance(es, ESConfig) and isinstance(grpo, GRPOConfig)
    greedy = {"fitness": "greedy", "common_random_numbers": False}
    assert differences(arms["ES, greedy fitness"], es) == greedy
    assert differences(arms["ES, no z-score"], es) == {"normalization": "none"}
    assert differences(arms["ES, a tenth of sigma"], es) == {"sigma": pytest.approx(es.sigma / 10)}
    assert differences(arms["ES, three times sigma"], es) == {"sigma": pytest.approx(es.sigma * 3)}
    batch = {"population": grpo.num_generations, "prompts": grpo.prompts}
    assert differences(arms["ES, GRPO's batch"], es) == batch
    half = arms["ES, half step"].stages[0]
    assert isinstance(half, ESConfig)
    assert half.updates * half.step == pytest.approx(es.updates * es.step)
    for name, order in (("GRPO, then ES", (grpo, es)), ("ES, then GRPO", (es, grpo))):
        stages = arms[name].stages
        assert sum(stage.updates for stage in stages) == es.updates == grpo.updates
        assert [replace(s, updates=c.updates) for s, c in zip(stages, order, strict=True)] == list(order)
    for arm in arms.values():
        assert {stage.evaluation_split for stage in arm.stages} == {"test"}
        assert arm.stages[0].alpha is None or arm.stages[0].alpha > 0 if isinstance(arm.stages[0], ESConfig) else True


@pytest.mark.slow
def test_drift_and_noise_of_toy_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.training, "DRAWS", 300)
    found = toy.training.drift_and_noise()
    for row in found["es"]:
        assert row["cosine"] > 0.98
        assert row["noise"] == pytest.approx(row["alpha^2 d/N"], rel=0.25)
        if row["fitness"] == "expected":
            assert row["signal"] + row["noise"] == pytest.approx(row[toy.training.LINEAR], rel=0.12)
        if row["population"] == 128:
            assert row["signal"] == pytest.approx(row["enumerated signal"], rel=0.05)
    for row in found["grpo"]:
        assert row["cosine"] > 0.99 and row["signal"] == pytest.approx(row["enumerated signal"], rel=0.05)


@pytest.mark.slow
def test_a_small_study_of_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"problems": 20, "prompts": 8, "evaluation_prompts": 6, "evaluation_samples": 4, "evaluate_every": 2}
    es = ESConfig(model="tiny-3", **sizes, population=4, sigma=0.02, fitness="sampled", common_random_numbers=True)
    grpo = GRPOConfig(model="tiny-3", **sizes, num_generations=4, learning_rate=1e-3)
    monkeypatch.setattr(llm.training, "plans", lambda model: llm.training.plan(es, grpo, 4))
    monkeypatch.setattr(llm.training, "KS", (1, 4))
    arguments = ["--seeds", "2", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert llm.training.main(arguments) == 0
    out = tmp_path / "out" / "tiny-3"
    found = json.loads((out / "study.json").read_text())
    assert len(found["ends"]) == len(found["arms"]) == 11
    assert found["ends"]["GRPO, then ES"]["updates"] == [4, 4]
    assert found["ends"]["GRPO, then ES"]["responses"] == [2 * 8 * 4 + 2 * 4 * 8] * 2
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG") and "learned" in (out / "table.txt").read_text()
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*") if p.is_file()}
    before = (out / "study.json").read_text()
    assert llm.training.main(arguments) == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*") if p.is_file()} == written
    assert (out / "study.json").read_text() == before


@pytest.mark.parametrize("command", [toy.training.main, llm.training.main])
def test_one_seed_has_no_interval(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--seeds", "1"]) == 2  # type: ignore[operator]
    assert "seeds must be at least 2" in capsys.readouterr().err


def test_a_model_without_settings_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert llm.training.main(["--model", "demo"]) == 2
    assert capsys.readouterr().err == "llm.training: no settings were chosen for demo: tiny-3 is accepted\n"
