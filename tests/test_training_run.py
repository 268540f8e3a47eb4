"""Runs: what an update is, what a folder keeps, and that a run killed anywhere ends as one that was not."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from esth.cli import main
from esth.errors import InputError
from esth.noise import parameter_noise
from esth.training import ESConfig, GRPOConfig, RunFolder, last_center, rebuild, train
from esth.training.config import from_json, read_config, to_json
from tests.killing import killed

SMALL: dict[str, Any] = {
    "model": "tiny-3",
    "problems": 40,
    "prompts": 12,
    "evaluation_prompts": 8,
    "evaluation_samples": 4,
}
ES = ESConfig(**SMALL, population=6, sigma=0.02, alpha=0.02, updates=30, save_every=7, evaluate_every=10)
GRPO = GRPOConfig(
    **SMALL, num_generations=4, learning_rate=1e-3, updates=30, save_every=4, evaluate_every=10, beta=0.01
)
CONFIGS = {"es": ES, "grpo": GRPO, "toy-es": replace(ES, model="toy"), "toy-grpo": replace(GRPO, model="toy")}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def told(run: RunFolder) -> list[dict[str, Any]]:
    """Metrics but for the seconds."""
    return [{k: str(v) for k, v in line.items() if k != "seconds"} for line in run.metrics()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return {name: train(config, folder / name) for name, config in CONFIGS.items()}


# The update


def test_an_update_is_the_sum_of_weighted_noise(tmp_path: Path) -> None:
    """θ₁ − θ₀ = (α/N) Σ zᵢ εᵢ, from the log, by NumPy alone; z has mean 0 and variance 1."""
    start = weights(last_center(train(replace(ES, updates=1, alpha=1e-30), tmp_path / "start")))
    run = train(replace(ES, updates=1, alpha=0.07), tmp_path / "run")
    ((terms),) = run.log()
    z = np.array([c for _, c in terms]) * len(terms) / 0.07
    assert np.isclose(z.mean(), 0, atol=1e-12) and np.isclose(z.var(), 1)
    for name, moved in weights(last_center(run)).items():
        noise = [parameter_noise(m.seed, name, moved.shape).astype(np.float64) for m, _ in terms]
        expected = start[name].double().numpy().ravel() + 0.07 / len(terms) * (z @ np.stack(noise))
        assert np.abs(moved.double().numpy().ravel() - expected).max() < 1e-7


def test_anchored_decay_pulls_towards_the_start(tmp_path: Path) -> None:
    """With λ = ¼ and zero steps after the first, θ − θ₀ shrinks by ¾ an update."""
    free = train(replace(ES, updates=1), tmp_path / "free")
    drift = free.points()[-1].drift
    held = train(replace(ES, updates=3, decay=0.25, evaluate_every=1), tmp_path / "held")
    first, second, third = (p.drift for p in held.points()[1:])
    assert first == pytest.approx(drift, rel=1e-5)
    assert second < math.hypot(0.75 * first, 1.1 * drift) and third < math.hypot(0.75 * second, 1.1 * drift)
    base = weights(last_center(train(replace(ES, updates=1, alpha=1e-30), tmp_path / "base")))
    theta = {name: tensor.double() for name, tensor in base.items()}
    for terms in held.log():
        for name, tensor in theta.items():
            step = sum(
                c * torch.from_numpy(parameter_noise(m.seed, name, tensor.shape)).double().view_as(tensor)
                for m, c in terms
            )
            theta[name] = tensor + 0.25 * (base[name].double() - tensor) + step
    for name, tensor in weights(last_center(held)).items():
        assert (tensor.double() - theta[name]).abs().max() < 1e-6


def test_rewards_without_spread_leave_the_center_and_say_so(tmp_path: Path) -> None:
    config = replace(ES, sigma=1e-12, updates=2)  # all members answer alike
    run = train(config, tmp_path / "run")
    assert all(c == 0 for terms in run.log() for _, c in terms)
    assert [line["note"] for line in run.metrics()] == ["rewards have no spread: the update is zero"] * 2
    assert run.points()[-1].drift == 0
    raw = train(replace(config, normalization="none"), tmp_path / "raw")
    assert raw.points()[-1].drift == 0


@pytest.mark.parametrize(
    "change",
    [
        {"normalization": "ranks"},
        {"normalization": "none"},
        {"family": "antithetic"},
        {"family": "rademacher"},
        {"family": "low-rank", "rank": 2},
        {"fitness": "sampled"},
        {"fitness": "sampled", "samples": 3, "common_random_numbers": True},
        {"fresh_prompts": True},
    ],
    ids=str,
)
def test_every_option_trains_and_its_log_rebuilds_the_center(change: dict[str, Any], tmp_path: Path) -> None:
    run = train(replace(ES, updates=2, evaluate_every=0, **change), tmp_path / "run")
    rebuild(run, 2, tmp_path / "again")
    assert equal(weights(last_center(run)), weights(tmp_path / "again"))
    assert run.points()[-1].drift > 0
    responses = ES.population * ES.prompts * change.get("samples", 1)
    assert [line["responses"] for line in run.metrics()] == [responses] * 2


# The folder


def test_the_log_rebuilds_any_center(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    for name in ("es", "toy-es"):
        for update in (0, 3, 21, 30):
            rebuild(undisturbed[name], update, tmp_path / f"{name}-{update}")
        shorter = train(replace(CONFIGS[name], updates=21), tmp_path / f"{name}-run")
        assert equal(weights(tmp_path / f"{name}-21"), weights(last_center(shorter)))
        assert equal(weights(tmp_path / f"{name}-30"), weights(last_center(undisturbed[name])))
        assert not equal(weights(tmp_path / f"{name}-3"), weights(tmp_path / f"{name}-0"))
    with pytest.raises(InputError, match="30 updates: there is no center 31"):
        rebuild(undisturbed["es"], 31, tmp_path / "none")
    with pytest.raises(InputError, match="only ES keeps a log"):
        rebuild(undisturbed["grpo"], 3, tmp_path / "none")


@pytest.mark.parametrize("name", list(CONFIGS))
def test_what_a_run_keeps(name: str, undisturbed: dict[str, RunFolder]) -> None:
    run = undisturbed[name]
    assert [line["update"] for line in run.metrics()] == list(range(1, 31))
    assert [p.update for p in run.points()] == [0, 10, 20, 30]
    assert run.checkpoints() == [30]
    assert run.config == CONFIGS[name]
    spent = run.points()[-1].spent
    assert spent.responses == sum(line["responses"] for line in run.metrics())
    assert (spent.backward_passes > 0) == ("grpo" in name)
    assert {"train", "held-out"} <= set(run.points()[0].sets)


def test_a_checkpoint_is_a_hugging_face_folder(undisturbed: dict[str, RunFolder]) -> None:
    import transformers

    folder = last_center(undisturbed["es"])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert transformers.AutoTokenizer.from_pretrained(folder)("1+2")["input_ids"] == [1, 10, 2]
    stored = weights(folder)
    assert torch.equal(model.get_input_embeddings().weight, stored["model.embed_tokens.weight"])


def test_more_updates_go_on(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    train(replace(ES, updates=11), tmp_path / "run")
    run = train(ES, tmp_path / "run")
    assert equal(weights(last_center(run)), weights(last_center(undisturbed["es"])))
    assert told(run) == told(undisturbed["es"])


def test_a_run_starts_from_another(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    """GRPO after ES: from its last center, with what both have spent; drift counts from the model."""
    before = undisturbed["es"]
    run = train(replace(GRPO, updates=2, init=str(before.path)), tmp_path / "run")
    start, end = run.points()
    assert start.drift == pytest.approx(before.points()[-1].drift)
    assert np.array_equal(start.sets["held-out"].successes, before.points()[-1].sets["held-out"].successes)
    assert start.spent == before.points()[-1].spent
    own = GRPO.prompts * GRPO.num_generations * 2
    assert end.spent.responses == before.points()[-1].spent.responses + own
    rebuilt = train(replace(ES, updates=2, init=str(tmp_path / "run")), tmp_path / "third")
    rebuild(rebuilt, 2, tmp_path / "center")
    assert equal(weights(tmp_path / "center"), weights(last_center(rebuilt)))


# Killed


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CONFIGS))
def test_killed_anywhere_it_ends_in_the_same_weights(
    name: str, undisturbed: dict[str, RunFolder], tmp_path: Path
) -> None:
    config, folder, rng = CONFIGS[name], tmp_path / "run", np.random.default_rng(7)
    kills = 0
    while kills < 12:
        kills += killed(config, folder, int(rng.integers(0, 3)), float(rng.uniform(0, 0.25)))
        if RunFolder(folder).checkpoints() == [30]:  # over before it could be killed so often: once more
            shutil.rmtree(folder)
    run = train(config, folder)
    assert equal(weights(last_center(run)), weights(last_center(undisturbed[name])))
    assert told(run) == told(undisturbed[name])
    for a, b in zip(run.points(), undisturbed[name].points(), strict=True):
        assert (a.update, a.drift, a.spent) == (b.update, b.drift, b.spent)
        for key, sets in a.sets.items():
            assert sets.to_dict() == b.sets[key].to_dict()


@pytest.mark.slow
def test_the_command_goes_on_after_kill_and_interruption(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    file = tmp_path / "es.json"
    file.write_text(json.dumps(to_json(ES)))
    # Where the tests run in the background, interruptions are ignored, and Python would go along with that.
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from esth.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "train", "es", "--config", str(file), "--out", str(tmp_path / "run")]
    metrics = tmp_path / "run" / "metrics.jsonl"
    for number, (number_of_lines, sent) in enumerate([(2, signal.SIGKILL), (5, signal.SIGINT)]):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < number_of_lines:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
        if number == 1:
            assert process.returncode == 130
            assert said.strip().splitlines()[-1] == "esth: interrupted; the same command goes on from here"
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    assert equal(weights(last_center(RunFolder(tmp_path / "run"))), weights(last_center(undisturbed["es"])))


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_goes_on(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    """Files limited to fewer and fewer bytes: weights, then evaluations, then the log do not fit."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path\n"
        "from esth.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    file = tmp_path / "es.json"
    file.write_text(json.dumps(to_json(ES)))
    arguments = ["train", "es", "--config", str(file), "--out", str(tmp_path / "run")]
    for limit in (100, 1200, 5_000, 60_000):
        done = subprocess.run(
            [sys.executable, "-c", code, str(limit), *arguments], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 2, done
        assert done.stderr.strip().splitlines()[-1].startswith("esth: cannot write"), done.stderr
        assert "Traceback" not in done.stderr
    run = train(ES, tmp_path / "run")
    assert equal(weights(last_center(run)), weights(last_center(undisturbed["es"])))
    assert told(run) == told(undisturbed["es"])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process keeps its peak")
def test_the_peak_of_memory_is_that_of_the_run(tmp_path: Path) -> None:
    """Not that of what the process did before (runs of a study share one), nor that of the process that started it."""
    parent = np.ones(1 << 27)  # 1 GiB
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from esth.training import train\n"
        "from esth.training.config import from_json\n"
        "from esth.training.memory import peak_memory\n"
        "before = np.ones(1 << 26)\n"  # 512 MiB
        "peak = peak_memory()\n"
        "assert peak > before.nbytes\n"
        "del before\n"
        "run = train(from_json(json.loads(sys.argv[1])), Path(sys.argv[2]))\n"
        "print(peak, run.points()[-1].peak_memory)\n"
    )
    settings = json.dumps(to_json(replace(CONFIGS["toy-es"], updates=1)))
    done = subprocess.run(
        [sys.executable, "-c", code, settings, str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    peak, of_the_run = map(int, done.stdout.split())
    assert of_the_run < peak - (1 << 28) and peak < parent.nbytes


# What is refused


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("esth: ") and "\n" not in said
    return said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["es", "--sigma", "0"], "sigma must be finite and > 0"),
        (["es", "--alpha", "-1"], "alpha must be finite and > 0"),
        (["es", "--population", "1"], "population must be at least 2"),
        (["es", "--family", "antithetic", "--population", "5"], "must be even"),
        (["es", "--samples", "2"], "go with fitness sampled"),
        (["es", "--fitness", "expected"], "needs the toy world"),
        (["es", "--normalization", "zscores"], "normalization must be one of zscore"),
        (["es", "--sgima", "1"], "unknown option --sgima; did you mean sigma"),
        (["es", "--engine", "vllm"], "runs as one float32 batch"),
        (["grpo", "--num-generations", "1"], "a group of 1 has no spread"),
        (["grpo", "--sigma", "1"], "unknown option --sigma"),
        (["grpo", "--loss-type", "gpro"], "loss_type must be one of"),
        (["grpo", "--expected", "true"], "expected needs the toy world"),
        (["es", "--prompts", "300"], "more than the 256 problems"),
        (["es", "--model", "no/such/folder"], "no model folder"),
        (["es", "--init", "nowhere"], "nowhere is no run"),
        (["es", "--task", "arithmetic", "--problems", "50", "--evaluation_prompts", "9"], "cannot read the problem"),
        (["es", "--preset", "demo", "--config", "x.json"], "both name settings"),
        (["es", "--update", "5"], "unknown option --update; did you mean updates"),
        (["es", "--base", "tiny-3"], "unknown option --base"),
        (["es", "--engine", "vlm"], "engine must be one of transformers, vllm, batched"),
        (["es", "--evaluation_split", "train"], "evaluation_split must be one of test, validation"),
        (["es", "--problems", "1", "--prompts", "1"], "problems must be at least 2"),
        (["es", "--max_tokens", "60"], "7 + 60 tokens exceed the model's context of 64"),
        (["es", "--model", "toy", "--held_out", "[chain:4]"], "held_out is not for the toy world"),
        (["es", "--model", "toy", "--task", "gsm8k"], "task is not for the toy world"),
        (["grpo", "--model", "demo", "--workers", "2"], "one transformers engine"),
        (["grpo", "--model", "demo", "--engine", "vllm"], "one transformers engine"),
        (["es", "--held_out", "[chain:5]"], "difficulty '5'"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_wrong_option_is_one_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(["train", *arguments, "--out", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run").exists()


def test_a_wrong_configuration_names_the_field_and_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    for content, reason in (
        ({"poplation": 3}, "unknown field 'poplation'; did you mean population"),
        ({"sigma": "big"}, "sigma must be float, not 'big'"),
        ({"population": 2.5}, "population must be int, not 2.5"),
        ({"method": "grpo"}, "is of method grpo, not es"),
        ({"held_out": "chain:4"}, "held_out must be"),
        ([1], "holds no JSON object"),
    ):
        file.write_text(json.dumps(content))
        assert reason in refused(["train", "es", "--config", str(file), "--out", str(tmp_path / "run")], capsys)
    file.write_text("{")
    assert "is no JSON" in refused(["train", "es", "--config", str(file), "--out", str(tmp_path / "run")], capsys)
    assert "No such file" in refused(["train", "es", "--config", str(tmp_path / "no.json")], capsys)


@pytest.mark.parametrize("config", list(CONFIGS.values()), ids=list(CONFIGS))
def test_a_configuration_comes_back_from_json(config: Any, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(to_json(config)))
    assert read_config(tmp_path / "c.json") == config == from_json(to_json(config))


def test_folders_of_something_else_are_refused(
    undisturbed: dict[str, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed["es"].path, run)
    with pytest.raises(InputError, match=r"another configuration: sigma is 0\.02 there and 0\.03 here"):
        train(replace(ES, sigma=0.03), run)
    with pytest.raises(InputError, match="another configuration: method is 'es' there and 'grpo' here"):
        train(GRPO, run)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="holds something else than a run"):
        train(ES, tmp_path / "other")
    identity = json.loads((run / "identity.json").read_text())
    (run / "identity.json").write_text(json.dumps({**identity, "weights": "0"}))
    with pytest.raises(InputError, match="started from another weights"):
        train(ES, run)


def test_a_checkpoint_of_another_run_is_refused(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(replace(ES, seed=1, updates=30, evaluate_every=0), run)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(undisturbed["es"].path / "checkpoints", run / "checkpoints")
    with pytest.raises(InputError, match="does not belong to this run"):
        train(replace(ES, seed=1, updates=31, evaluate_every=0), run)
    shutil.rmtree(run)
    train(replace(ES, updates=7), run)
    shutil.copytree(undisturbed["es"].path / "checkpoints" / "000030", run / "checkpoints" / "000030")
    with pytest.raises(InputError, match="checkpoint 30 does not belong to its log of 7 updates"):
        train(ES, run)


def test_updates_that_were_made_are_not_undone(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    """A run of 30 updates whose configuration said 20 would be taken for one of 20."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed["es"].path, run)
    with pytest.raises(InputError, match="has had 30 updates already: updates = 20 cannot undo them"):
        train(replace(ES, updates=20), run)
    assert RunFolder(run).config == ES and RunFolder(run).checkpoints() == [30]


def test_what_is_refused_leaves_the_configuration(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed["toy-es"].path, run.path)
    with pytest.raises(InputError, match="started from another fingerprint"):
        run.begin(replace(CONFIGS["toy-es"], updates=40), {**run.identity, "fingerprint": "0"})
    assert run.config == CONFIGS["toy-es"]


def test_a_run_starts_from_one_of_the_same_model(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    """Drift is measured from the start of `model`, and decay pulls there: both runs must mean the same."""
    for config, init in ((CONFIGS["toy-es"], "es"), (ES, "toy-es"), (replace(ES, model="tiny-4"), "es")):
        with pytest.raises(InputError, match="began from other weights"):
            train(replace(config, init=str(undisturbed[init].path)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_what_a_run_before_has_spent_is_that_of_its_center(tmp_path: Path) -> None:
    """Cut short after its checkpoint of update 7, it has been evaluated at the start only."""
    toy = replace(CONFIGS["toy-es"], evaluate_every=0)

    def stop(update: int, metrics: dict[str, Any]) -> None:
        if update == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toy, tmp_path / "first", stop)
    run = train(replace(toy, updates=2, init=str(tmp_path / "first")), tmp_path / "second")
    assert [p.spent.responses for p in run.points()] == [(7 + t) * toy.population * toy.prompts for t in (0, 2)]


def test_damaged_weights_are_refused(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed["grpo"].path, run)
    file = run / "checkpoints" / "000030" / "model.safetensors"
    stored = load_file(file)
    stored["model.norm.weight"] = stored["model.norm.weight"][:-1].clone()
    save_file(stored, file)
    with pytest.raises(InputError, match="does not hold the weights"):
        last = RunFolder(run)
        train(replace(GRPO, updates=2, init=str(last.path)), tmp_path / "next")


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from esth.training import RunFolder
from test_training_run import ES
run = RunFolder(Path({str(tmp_path / "run")!r}))
run.begin(ES, {{}})
print("held", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(InputError, match="another process is at work there"):
        RunFolder(tmp_path / "run").begin(ES, {})
    holder.communicate("")
    RunFolder(tmp_path / "run").begin(ES, {})


def test_weights_of_another_run_in_a_checkpoint_are_refused(undisturbed: dict[str, RunFolder], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed["es"].path, run)
    shutil.copy(
        last_center(undisturbed["grpo"]) / "model.safetensors", run / "checkpoints" / "000030" / "model.safetensors"
    )
    with pytest.raises(InputError, match="does not hold the weights that this run saved"):
        train(replace(ES, updates=31), run)


def test_options_that_take_a_list_take_one_value_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--prompts", "4", "--samples", "2"]
    assert (
        main(["evaluate", "tiny-3", *sizes, "--k", "2", "--held_out", "chain:4", "--out", str(tmp_path / "e.json")])
        == 0
    )
    said = capsys.readouterr().out
    assert "pass@2" in said and "pass@1 " not in said and "chain:4" in said
    assert [e["name"] for e in json.loads((tmp_path / "e.json").read_text())["evaluations"]] == ["chain:3", "chain:4"]
    assert "must be a file in a folder" in refused(["evaluate", "tiny-3", *sizes, "--out", str(tmp_path)], capsys)
    assert "k = 3 needs 1 <= k <= samples = 2" in refused(["evaluate", "tiny-3", *sizes, "--k", "1,3"], capsys)


def test_what_a_model_cannot_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--task", "arithmetic", "--prompts", "4", "--samples", "2"]
    assert "cannot read the problem" in refused(["evaluate", "tiny-3", *asked], capsys)
    out = ["--out", str(tmp_path / "out")]
    assert "cannot read the problem" in refused(["diversity", "tiny-3", *asked, *out], capsys)
    assert "no model folder" in refused(["evaluate", "no/such/model"], capsys)


def test_one_seed_is_one_set_of_random_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a task is called: chains of tiny-3 are those of 3 numbers."""
    from esth.training.evaluate import EvaluationConfig, evaluate

    sizes = {"prompts": 5, "samples": 3}
    own, named = (evaluate("tiny-3", EvaluationConfig(**sizes, task=t)).model[0] for t in (None, "chain"))
    assert own.successes.tolist() == named.successes.tolist() and own.entropy.tolist() == named.entropy.tolist()


def test_a_run_of_zero_updates_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--problems", "8", "--prompts", "4", "--population", "4", "--evaluation-prompts", "2", "--updates", "2"]
    assert main(["train", "es", *sizes, "--sigma", "1e-12", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 updates were zero" in said and "less the start's" in said
