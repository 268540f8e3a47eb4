"""`python -m llm.sparsity`: short runs, taken back in part; killed, resumed; what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llm.sparsity
from esth.analysis.pair import open_family
from esth.analysis.sparsity import changes
from esth.training import ESConfig, GRPOConfig, RunFolder, train

SMALL: dict[str, Any] = {
    "model": "tiny-3",
    "problems": 20,
    "prompts": 8,
    "evaluation_prompts": 8,
    "evaluation_samples": 4,
    "updates": 3,
}
ES = ESConfig(**SMALL, population=8, sigma=0.03, alpha=0.02, fitness="sampled", common_random_numbers=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of ES, and one of GRPO."""
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train(replace(ES, seed=seed), place / f"es{seed}")
    train(GRPOConfig(**SMALL, num_generations=4, learning_rate=1e-3), place / "grpo")
    return place


def command(place: Path, *arguments: str) -> int:
    few = ["--shares", "0.5", "0.9", "--control-shares", "0.5", "--multiples", "1"]
    return llm.sparsity.main([*arguments, "--work", str(place / "work"), *few])


def test_two_seeds_of_one_arm(made: Path, tmp_path: Path) -> None:
    runs = [str(made / f"es{seed}") for seed in (0, 1)]
    out = tmp_path / "out"
    assert command(tmp_path, *runs, "--out", str(out)) == 0
    found = json.loads((out / "study.json").read_text())
    assert (out / "sparsity.png").read_bytes().startswith(b"\x89PNG")
    assert found["evaluated"] == {"set": "held-out", "problems": 8, "samples": 4, "seeds": 2}
    assert [(r["order"], r["cut"]) for r in found["rows"]] == [
        ("smallest", "1 step"), ("smallest", "0.5"), ("smallest", "0.9"), ("smallest", "1 sigma"),
        ("random", "0.5"), ("largest", "0.5"),
    ]  # fmt: skip
    # Of the run's own numbers: what its log and its weights say.
    families = [open_family("tiny-3", [run]) for run in runs]
    step = ES.step / np.sqrt(ES.population)
    for name, size in (("1 step", step), ("2 step", 2 * step), ("0.5 sigma", ES.sigma / 2)):
        row = next(t for t in found["thresholds"] if t["name"] == name)
        assert row["size"] == pytest.approx([size] * 2)
        assert row["share"] == pytest.approx(
            [changes(f, [row["size"][0]]).below[0] / f.size for f in families], abs=1e-6
        )
    half, random = (
        next(r for r in found["rows"] if (r["order"], r["cut"]) == (o, "0.5")) for o in ("smallest", "random")
    )
    assert half["share"] == random["share"] == [0.5, 0.5]
    assert half["kept"][0] > 0.9 and random["kept"][0] == pytest.approx(0.5, abs=0.02)
    points = [RunFolder(Path(run)).points() for run in runs]
    means = [np.mean([p[i].sets["held-out"].per_prompt(1).mean() for p in points]) for i in (0, -1)]
    assert found["base"]["pass@1"]["value"][0] == pytest.approx(means[0], abs=1e-6)
    assert found["child"]["pass@1"]["gain"][0] == pytest.approx(means[1] - means[0], abs=1e-6)
    assert "learned" in found and sum(found["histogram"]["share"]) == pytest.approx(1.0)
    assert [m["size"] for m in found["models"]] == [f.size for f in families]
    table = (out / "table.txt").read_text()
    assert "the largest share that can be zeroed" in table and found["verdict"] in table

    # Again: nothing is evaluated, and the results are the same.
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "work").rglob("*.json")}
    assert len(kept) == 2 * 8
    before = (out / "study.json").read_text()
    assert command(tmp_path, *runs, "--out", str(out)) == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "work").rglob("*.json")} == kept
    assert (out / "study.json").read_text() == before


def test_a_killed_command_goes_on(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = str(made / "es0"), tmp_path / "out"
    rebuilt = llm.sparsity.rebuild
    calls: list[Any] = []

    def dying(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rebuilt(*arguments)

    monkeypatch.setattr(llm.sparsity, "rebuild", dying)
    assert command(tmp_path, run, "--out", str(out)) == 130
    assert len(list((tmp_path / "work").rglob("*.json"))) == 4 and not out.exists()
    assert command(tmp_path, run, "--out", str(out)) == 0
    assert len(calls) == 3 + 4
    whole = tmp_path / "whole"
    monkeypatch.undo()
    assert llm.sparsity.main([run, "--work", str(tmp_path / "other"), "--out", str(whole), "--shares", "0.5", "0.9",
                              "--control-shares", "0.5", "--multiples", "1"]) == 0  # fmt: skip
    one, two = (json.loads((folder / "study.json").read_text()) for folder in (out, whole))
    assert {k: v for k, v in one.items() if k != "command"} == {k: v for k, v in two.items() if k != "command"}


def test_models_answer_with_the_runs_own_numbers(made: Path) -> None:
    """The unchanged child and the base, evaluated as rebuilt models are, give what the run keeps, to the bit."""
    for name in ("es0", "grpo"):
        run = RunFolder(made / name)
        (subject,) = llm.sparsity.of_runs([run.path])
        start, *_, end = run.points()
        with subject.opened() as evaluate:
            child = evaluate(subject.family.children[0].folder)
            base = evaluate(subject.family.base.folder)
        assert child.to_dict() == end.sets["held-out"].to_dict()
        assert base.to_dict() == start.sets["held-out"].to_dict()


def test_a_run_from_the_end_of_another_is_set_beside_that(made: Path, tmp_path: Path) -> None:
    train(replace(ES, seed=5, init=str(made / "grpo"), updates=1), tmp_path / "next")
    (subject,) = llm.sparsity.of_runs([tmp_path / "next"])
    assert subject.family.base.folder == RunFolder(made / "grpo").checkpoint(3)
    update = changes(subject.family, [ES.step / np.sqrt(ES.population)])
    assert update.below[0] / update.changed == pytest.approx(0.6827, abs=0.02)  # one step: a normal one's own rms


@pytest.mark.slow
def test_any_two_models(made: Path, tmp_path: Path) -> None:
    child = RunFolder(made / "grpo").checkpoint(3)
    out = tmp_path / "out"
    settings = ["--task", "chain", "--difficulty", "3", "--prompts", "4", "--samples", "2"]
    assert command(tmp_path, "--pair", "tiny-3", str(child), *settings, "--out", str(out)) == 0
    found = json.loads((out / "study.json").read_text())
    assert found["evaluated"] == {"set": "chain:3", "problems": 4, "samples": 2, "seeds": 1}
    assert found["thresholds"] == [] and list(found["child"]) == ["pass@1", "greedy"]
    assert [(r["order"], r["cut"]) for r in found["rows"]] == [
        ("smallest", "0.5"), ("smallest", "0.9"), ("random", "0.5"), ("largest", "0.5"),
    ]  # fmt: skip
    # A base that is its own child: nothing has changed, and every share is well defined.
    assert command(tmp_path, "--pair", "tiny-3", "tiny-3", *settings, "--out", str(tmp_path / "same")) == 0
    same = json.loads((tmp_path / "same" / "study.json").read_text())
    assert same["models"][0]["changed"] == 0 and {tuple(r["share"]) for r in same["rows"]} == {(0.0,)}
    assert same["verdict"] == "undecided: the run did not learn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name runs (folders of esth train), or two models with --pair BASE CHILD"),
        (["{es0}", "--pair", "tiny-3", "tiny-3", "--task", "chain"], "name runs"),
        (["--pair", "tiny-3", "tiny-4"], "needs the task that both models are evaluated on: --task"),
        (
            ["--pair", "tiny-3", "tiny-4", "--task", "chain", "--difficulty", "3"],
            "base and child must have equal shapes",
        ),
        (["{es0}", "--samples", "4"], "options of an evaluation go with --pair"),
        (["{es0}", "{grpo}"], "one arm at a time"),
        (["{es0}", "{es0}"], "one seed is there twice"),
        (["{nowhere}"], "is no run: it has no config.json"),
        (["{es0}", "--shares", "1.5"], "shares must lie between 0 and 1 (both ends are known), not 1.5"),
        (["{es0}", "--multiples", "-1"], "multiples must be above 0, not -1"),
        (["{es0}", "--task", "nothing"], "options of an evaluation go with --pair"),
        (["--pair", "tiny-3", "tiny-3", "--task", "nothing"], "nothing"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [a.format(es0=made / "es0", grpo=made / "grpo", nowhere=tmp_path / "nowhere") for a in arguments]
    out = tmp_path / "out"
    assert llm.sparsity.main([*told, "--work", str(tmp_path / "work"), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("llm.sparsity: ") and message in said
    assert not out.exists() and not (tmp_path / "work").exists()


def test_weights_that_were_exchanged_are_found(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(made / "es0", run)
    identity = json.loads((run / "identity.json").read_text())
    (run / "identity.json").write_text(json.dumps(identity | {"weights": "0" * 64}))
    assert command(tmp_path, str(run), "--out", str(tmp_path / "out")) == 2
    assert "does not belong to this run" in capsys.readouterr().err
    shutil.copy(made / "es1" / "checkpoints" / "000003" / "model.safetensors", run / "checkpoints" / "000003")
    shutil.copy(made / "es0" / "identity.json", run)
    assert command(tmp_path, str(run), "--out", str(tmp_path / "out")) == 2
    assert "does not hold the weights that this run saved there" in capsys.readouterr().err
