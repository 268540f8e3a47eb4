"""GRPO by TRL: prompts, sampled policy, rewards and steps are as everywhere here; a killed run goes on unchanged."""

import dataclasses
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

from esth.errors import InputError  # noqa: E402
from esth.models import Response, Sampling, load_checkpoint  # noqa: E402
from esth.models.transformers_engine import TransformersEngine  # noqa: E402
from esth.noise import hashed, population  # noqa: E402
from esth.tasks.task import Problem, Task  # noqa: E402
from esth.training import trl_grpo  # noqa: E402
from esth.training.config import GRPOConfig  # noqa: E402
from esth.training.trl_grpo import last_checkpoint, make_trainer, micro_batch, train  # noqa: E402

Folder = Callable[[str], Path]
TEMPLATE = "{% for m in messages %}<s> t3 {{ m.content }} t4{% endfor %}{% if add_generation_prompt %} t8{% endif %}"
EXTRA_STOP = 40


def begins_low(response: str, problem: Problem) -> bool:
    """The first token is one of t10 … t29: about one in three of a random model's."""
    return response.startswith(("t1", "t2")) and len(response.split()[0]) == 3


TASK = Task("low", "train", tuple(Problem(str(i), " ".join(["t9"] * (i % 3) + [f"t{i + 3}"]), "") for i in range(12)),
            begins_low, 6)  # fmt: skip


def config_of(**changes) -> GRPOConfig:
    standard = {"prompts": 4, "problems": 12, "num_generations": 8, "learning_rate": 1e-2, "updates": 3}
    return GRPOConfig(model="local", task="file", **{**standard, **changes})


@pytest.fixture
def chat_folder(tiny_folder: Folder, tmp_path: Path) -> Path:
    """A model with a chat template, and a stop token that only its generation config names."""
    folder = tmp_path / "chat"
    shutil.copytree(tiny_folder("llama"), folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    settings = {"eos_token_id": EXTRA_STOP, "top_k": 3, "temperature": 0.1, "repetition_penalty": 2.0}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


class Run:
    """A run, and all that it told."""

    def __init__(self, folder: Path, output: Path, task: Task = TASK, resume: bool = False, **changes) -> None:
        self.engine = TransformersEngine(load_checkpoint(folder), device="cpu")
        self.metrics: list[dict] = []
        self.saved: list[tuple[int, Path]] = []
        self.config = config_of(**changes)
        train(self.config, self.engine, task, output, on_update=self.told, resume=resume,
              on_save=lambda update, folder: self.saved.append((update, folder)))  # fmt: skip

    def told(self, update: int, metrics: dict) -> None:
        assert metrics["update"] == update
        self.metrics.append(metrics)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What TRL made of each update's prompts: the responses, their rewards and advantages, as tensors."""
    made: list[dict] = []
    plain = trl_grpo.Trainer._generate_and_score_completions

    def watched(self, inputs):
        found = plain(self, inputs)
        made.append({**found, "problems": [x["problem"] for x in inputs]})
        return found

    monkeypatch.setattr(trl_grpo.Trainer, "_generate_and_score_completions", watched)
    return made


def rows(ids: "torch.Tensor", mask: "torch.Tensor") -> list[list[int]]:
    return [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]


def test_prompts_are_those_of_the_checkpoint_and_of_evolution_strategies(
    chat_folder: Path, tmp_path: Path, batches: list[dict]
) -> None:
    run = Run(chat_folder, tmp_path / "run", seed=5)
    assert len(batches) == 3
    for t, batch in enumerate(batches, start=1):
        drawn = np.random.default_rng(hashed(5, "problems", t)).choice(12, 4, replace=False)
        assert batch["problems"] == drawn.repeat(8).tolist()
        expected = [run.engine.checkpoint.encode(TASK.problems[i].prompt) for i in drawn.repeat(8)]
        assert rows(batch["prompt_ids"], batch["prompt_mask"]) == expected
    assert {len(p) for p in expected} > {5}  # of several lengths, so some are padded
    assert expected[0][:2] == [1, 3] and expected[0][-1] == 8  # the template's, its special token once


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_prompts_without_a_template_are_plain(
    tiny_folder: Folder, tmp_path: Path, batches: list[dict], kind: str
) -> None:
    run = Run(tiny_folder(kind), tmp_path / "run", updates=1)
    expected = [run.engine.checkpoint.encode(TASK.problems[i].prompt) for i in batches[0]["problems"]]
    assert rows(batches[0]["prompt_ids"], batches[0]["prompt_mask"]) == expected


def test_rewards_are_of_the_text_that_the_verifier_sees_everywhere(
    chat_folder: Path, tmp_path: Path, batches: list[dict]
) -> None:
    judged: list[tuple[str, Problem]] = []

    def verifier(text: str, problem: Problem) -> bool:
        judged.append((text, problem))
        return begins_low(text, problem)

    run = Run(chat_folder, tmp_path / "run", dataclasses.replace(TASK, verifier=verifier), temperature=2.0)
    checkpoint = run.engine.checkpoint
    assert checkpoint.stop_tokens == {2, EXTRA_STOP}
    for t, batch in enumerate(batches):
        said = rows(batch["completion_ids"], batch["completion_mask"])
        assert len(said) == 4 * 8
        texts = [checkpoint.decode(tokens) for tokens in said]
        assert judged[32 * t : 32 * (t + 1)] == [
            (text, TASK.problems[i]) for text, i in zip(texts, batch["problems"], strict=True)
        ]
        assert not any("</s>" in text for text in texts)
        rewards = np.array([begins_low(text, TASK.problems[0]) for text in texts], dtype=float).reshape(4, 8)
        # TRL's standard deviation has ddof 1, and 10⁻⁴ is added to it.
        scaled = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
        assert batch["advantages"].numpy() == pytest.approx(scaled.ravel(), abs=1e-5)
        stops = [tokens[-1] in checkpoint.stop_tokens for tokens in said]
        for tokens, stopped in zip(said, stops, strict=True):  # ends at the first stop token, else at the limit
            assert not set(tokens[:-1]) & checkpoint.stop_tokens
            assert stopped or len(tokens) == TASK.max_tokens
        metrics = run.metrics[t]
        expected = {
            "reward": rewards.mean(),
            "reward_spread": rewards.std(axis=1).mean(),
            "zero_spread": np.mean([len(set(group)) == 1 for group in rewards]),
            "truncated": 1 - np.mean(stops),
            "responses": 32,
            "tokens": sum(map(len, said)),
            "forward_passes": 64,
            "backward_passes": 32,
            "clip_ratio": 0,
        }
        assert {name: metrics[name] for name in expected} == pytest.approx(expected)
        assert math.isnan(metrics["kl"]) and metrics["seconds"] > 0 and metrics["grad_norm"] > 0
    ends = {tokens[-1] for batch in batches for tokens in rows(batch["completion_ids"], batch["completion_mask"])}
    assert ends >= {2, EXTRA_STOP}  # each of the two stopped some response


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_the_sampled_policy_is_softmax_of_logits_over_temperature(
    chat_folder: Path, tmp_path: Path, temperature: float
) -> None:
    """Of TRL's draws themselves: no top-k, top-p, penalty or temperature of the checkpoint's own config enters."""
    engine = TransformersEngine(load_checkpoint(chat_folder), device="cpu")
    config = config_of(temperature=temperature, max_tokens=1, prompts=2, num_generations=4000)
    trainer = make_trainer(config, engine, TASK, tmp_path, lambda *_: None, lambda *_: None)
    prompts = [engine.checkpoint.encode(TASK.problems[i].prompt) for i in (0, 1)]
    ids, _ = trainer._generate_single_turn([p for p in prompts for _ in range(4000)], None, {}, 4000)
    drawn = np.array(ids).reshape(2, 4000)
    for prompt, tokens in zip(prompts, drawn, strict=True):
        with torch.no_grad():
            logits = transformers.AutoModelForCausalLM.from_pretrained(chat_folder)(torch.tensor([prompt])).logits
        p = (logits[0, -1].double() / temperature).softmax(0).numpy()
        counts = np.bincount(tokens, minlength=len(p))
        rare = p * 4000 < 5
        observed, expected = [*counts[~rare], counts[rare].sum()], [*(4000 * p[~rare]), 4000 * p[rare].sum()]
        assert rare.any() and stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_trained_log_probabilities_are_the_engine_s(tiny_folder: Folder, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    shutil.copytree(tiny_folder(kind), folder)
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"attn_pdrop": 0.5} if kind == "gpt2" else {"attention_dropout": 0.5}
    (folder / "config.json").write_text(json.dumps(settings))
    engine = TransformersEngine(load_checkpoint(folder), device="cpu")
    trainer = make_trainer(config_of(temperature=1.7), engine, TASK, tmp_path, lambda *_: None, lambda *_: None)
    trainer.model.train()  # as in a step: dropout, if any, would show
    prompts = [[5, 6, 7], [8]]
    said = [[(11, 12, 2), (13, 14, 15)], [(16,), (17, 18)]]
    tokens, mask = torch.zeros(4, 6, dtype=torch.long), torch.zeros(4, 6, dtype=torch.long)
    for i in range(2):
        for j in range(2):
            row, p, r = 2 * i + j, prompts[i], said[i][j]
            tokens[row, 3 - len(p) : 3 + len(r)] = torch.tensor([*p, *r])
            mask[row, 3 - len(p) : 3 + len(r)] = 1
    found, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, tokens, mask, 3, compute_entropy=True
    )
    responses = [[Response(r, truncated=False) for r in group] for group in said]
    trainer.model.eval()
    scores = engine.score(prompts, responses, Sampling(temperature=1.7, max_tokens=3))
    logits = engine.next_token_logits(prompts, responses, Sampling(temperature=1.7, max_tokens=3)).double()
    entropy = torch.distributions.Categorical(logits=logits).entropy().tolist()
    for i in range(2):
        for j in range(2):
            length = len(said[i][j])
            assert found[2 * i + j, :length].tolist() == pytest.approx(scores[i][j].tolist(), abs=1e-4)
            assert entropies[2 * i + j, :length].tolist() == pytest.approx(entropy[:length], abs=1e-4)
            entropy = entropy[length:]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_gradient_and_entropy_are_those_of_the_sampled_policy(
    tiny_folder: Folder, tmp_path: Path, batches: list[dict], kind: str
) -> None:
    """By plain forward passes, one a response: ∇ = −Σ A ∇log p / Σ tokens, since all ratios are 1 (loss "dapo")."""
    run = Run(tiny_folder(kind), tmp_path / "run", updates=1, temperature=1.7)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_folder(kind)).eval()
    (batch,) = batches
    prompts = rows(batch["prompt_ids"], batch["prompt_mask"])
    said = rows(batch["completion_ids"], batch["completion_mask"])
    tokens = sum(map(len, said))
    entropy = 0.0
    for prompt, response, advantage in zip(prompts, said, batch["advantages"], strict=True):
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 1.7
        policy = torch.distributions.Categorical(logits=logits)
        (-advantage * policy.log_prob(torch.tensor(response)).sum() / tokens).backward()
        entropy += policy.entropy().sum().item() / tokens
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]))
    assert run.metrics[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert run.metrics[0]["entropy"] == pytest.approx(entropy, rel=1e-5)


def test_every_setting_reaches_trl(tiny_folder: Folder, tmp_path: Path) -> None:
    engine = TransformersEngine(load_checkpoint(tiny_folder("llama")), device="cpu")
    shared = {
        "num_generations": 6, "learning_rate": 3e-4, "lr_scheduler_type": "constant", "weight_decay": 0.03,
        "max_grad_norm": 0.7, "num_iterations": 2, "beta": 0.04, "epsilon": 0.1, "epsilon_high": 0.3,
        "scale_rewards": "batch", "loss_type": "grpo", "importance_sampling_level": "sequence", "temperature": 0.8,
    }  # fmt: skip
    args = trl_grpo.arguments(config_of(**shared, updates=7, save_every=2), engine, TASK, tmp_path)
    assert {name: getattr(args, name) for name in shared} == shared
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 24 == args.generation_batch_size
    assert args.steps_per_generation == args.gradient_accumulation_steps
    assert (args.max_steps, args.save_steps, args.logging_steps) == (14, 4, 2)
    assert (args.max_completion_length, args.bf16, args.fp16) == (6, False, False)
    assert trl_grpo.arguments(config_of(max_tokens=3), engine, TASK, tmp_path).max_completion_length == 3
    assert trl_grpo.arguments(config_of(dtype="bfloat16"), engine, TASK, tmp_path).bf16


def test_a_backward_pass_holds_a_bounded_number_of_tokens() -> None:
    assert [micro_batch(64, tokens) for tokens in (1, 16, 17, 300, 2000)] == [64, 64, 32, 2, 1]
    assert micro_batch(77, 100) == 7


def test_one_update_is_one_step_of_the_whole_batch_however_it_is_split(
    tiny_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Run(tiny_folder("llama"), tmp_path / "whole", updates=1)
    monkeypatch.setattr(trl_grpo, "MICRO_TOKENS", 20)
    split = Run(tiny_folder("llama"), tmp_path / "split", updates=1)
    assert json.loads((tmp_path / "split/checkpoint-1/trainer_state.json").read_text())["train_batch_size"] == 2
    assert split.metrics[0]["grad_norm"] == pytest.approx(whole.metrics[0]["grad_norm"], rel=1e-4)


def test_an_update_holds_all_its_iterations(tiny_folder: Folder, tmp_path: Path, batches: list[dict]) -> None:
    run = Run(tiny_folder("llama"), tmp_path / "run", num_iterations=3, beta=0.1, save_every=2)
    assert len(batches) == 3 and [m["update"] for m in run.metrics] == [1, 2, 3]
    assert [update for update, _ in run.saved] == [2, 3]
    assert [f.name for _, f in run.saved] == ["checkpoint-6", "checkpoint-9"]
    assert run.metrics[0]["forward_passes"] == 32 * (1 + 3 + 1 + 1) and run.metrics[0]["backward_passes"] == 96
    assert all(m["kl"] > 0 and m["clip_ratio"] > 0 for m in run.metrics)
    # "linear" falls to 0 over 9 steps; the last of each update is told.
    assert [m["learning_rate"] for m in run.metrics] == pytest.approx([1e-2 * (1 - k / 9) for k in (2, 5, 8)])


def test_the_reward_rises_and_the_engine_is_the_trained_policy(tiny_folder: Folder, tmp_path: Path) -> None:
    run = Run(tiny_folder("llama"), tmp_path / "run", updates=20)
    rewards = [m["reward"] for m in run.metrics]
    assert np.mean(rewards[:3]) < 0.6 and np.mean(rewards[-3:]) > 0.9
    saved = TransformersEngine(load_checkpoint(tmp_path / "run/checkpoint-20"), device="cpu")
    assert saved.parameters.keys() == run.engine.parameters.keys()
    for name, parameter in run.engine.parameters.items():
        assert torch.equal(parameter, saved.parameters[name]) and not parameter.requires_grad
    prompts = [run.engine.checkpoint.encode(problem.prompt) for problem in TASK.problems]
    sampling = Sampling(max_tokens=6)
    said = run.engine.sample(prompts, 4, sampling, seed=0)
    assert said == saved.sample(prompts, 4, sampling, seed=0)
    right = [begins_low(run.engine.checkpoint.decode(r.tokens), TASK.problems[0]) for group in said for r in group]
    assert np.mean(right) > 0.9


def test_the_engine_watches_between_updates_and_changes_nothing(tiny_folder: Folder, tmp_path: Path) -> None:
    alone = Run(tiny_folder("gpt2"), tmp_path / "alone")
    said: list = []

    class Watched(Run):
        def told(self, update: int, metrics: dict) -> None:
            super().told(update, metrics)
            assert not self.engine.model.training
            said.append(self.engine.score([[5, 6]], [[Response((7, 8), True)]], Sampling())[0][0].sum())
            self.engine.sample([[5, 6]], 3, Sampling(max_tokens=3), seed=1)

    watched = Watched(tiny_folder("gpt2"), tmp_path / "watched")
    assert len(set(said)) == 3
    assert without_seconds(watched.metrics) == without_seconds(alone.metrics)
    assert all(torch.equal(p, alone.engine.parameters[name]) for name, p in watched.engine.parameters.items())


def test_an_engine_that_was_a_member_starts_from_its_center_and_ends_at_the_trained_one(
    tiny_folder: Folder, tmp_path: Path
) -> None:
    plain = Run(tiny_folder("llama"), tmp_path / "plain", updates=1)
    engine = TransformersEngine(load_checkpoint(tiny_folder("llama")), device="cpu")
    engine.set_member(population(0, 1)[0], 0.5)
    told: list[dict] = []
    train(config_of(updates=1), engine, TASK, tmp_path / "run", on_update=lambda update, metrics: told.append(metrics))
    assert without_seconds(told) == without_seconds(plain.metrics)
    engine.set_member(population(0, 1)[0], 0.5)
    engine.restore()
    assert all(torch.equal(p, plain.engine.parameters[name]) for name, p in engine.parameters.items())


def without_seconds(metrics: list[dict]) -> list[dict]:
    return [{k: v for k, v in m.items() if k not in ("seconds", "kl")} for m in metrics]


def test_nothing_is_printed_sent_or_written_elsewhere(
    tiny_folder: Folder, tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args, **options):
        raise AssertionError("the network is asked")

    for name in ("socket.socket.connect", "socket.getaddrinfo"):
        monkeypatch.setattr(name, refuse)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    environment, level = dict(os.environ), logging.getLogger("trl").level
    Run(tiny_folder("llama"), tmp_path / "run", importance_sampling_level="sequence", updates=1)
    assert capfd.readouterr() == ("", "")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["checkpoint-1"]
    assert dict(os.environ) == environment and logging.getLogger("trl").level == level


# Going on


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_training_trl import Run
from pathlib import Path

class Killed(Run):
    def told(self, update, metrics):
        if update == 5:
            os.kill(os.getpid(), signal.SIGKILL)

Killed(Path({folder!r}), Path({output!r}), updates=8, save_every=2)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tiny_folder: Folder, tmp_path: Path) -> None:
    straight = Run(tiny_folder("llama"), tmp_path / "straight", updates=8, save_every=2)
    code = KILLED.format(
        tests=str(Path(__file__).parent), folder=str(tiny_folder("llama")), output=str(tmp_path / "run")
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert last_checkpoint(tmp_path / "run") == tmp_path / "run/checkpoint-4"
    resumed = Run(tiny_folder("llama"), tmp_path / "run", updates=8, save_every=2, resume=True)
    assert [m["update"] for m in resumed.metrics] == [5, 6, 7, 8]
    assert without_seconds(resumed.metrics) == without_seconds(straight.metrics[4:])
    assert all(torch.equal(p, straight.engine.parameters[name]) for name, p in resumed.engine.parameters.items())
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["checkpoint-6", "checkpoint-8"]
    again = Run(tiny_folder("llama"), tmp_path / "run", updates=8, save_every=2, resume=True)
    assert again.metrics == []  # it is over, and its weights are there
    assert all(torch.equal(p, straight.engine.parameters[name]) for name, p in again.engine.parameters.items())


PARTS = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


@pytest.fixture(scope="module")
def two_checkpoints(tiny_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    Run(tiny_folder("llama"), output, updates=2, save_every=1)
    return output


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("missing", [True, False])
def test_a_half_written_checkpoint_is_skipped(two_checkpoints: Path, tmp_path: Path, part: str, missing: bool) -> None:
    output = tmp_path / "run"
    shutil.copytree(two_checkpoints, output)
    assert last_checkpoint(output) == output / "checkpoint-2"
    file = output / "checkpoint-2" / part
    if missing:
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size - 10)
    assert last_checkpoint(output) == output / "checkpoint-1"


def test_a_run_goes_on_from_the_checkpoint_before_a_half_written_one(
    tiny_folder: Folder, two_checkpoints: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    shutil.copytree(two_checkpoints, output)
    file = output / "checkpoint-2" / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    resumed = Run(tiny_folder("llama"), output, updates=3, save_every=1, resume=True)
    assert [m["update"] for m in resumed.metrics] == [2, 3]
    assert sorted(p.name for p in output.iterdir()) == ["checkpoint-2", "checkpoint-3"]


def test_resuming_nothing_starts_and_starting_over_is_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7").mkdir()  # killed before anything was written
    run = Run(tiny_folder("llama"), tmp_path, updates=1, resume=True)
    assert len(run.metrics) == 1 and [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"]
    with pytest.raises(InputError, match="holds checkpoints of a run"):
        Run(tiny_folder("llama"), tmp_path, updates=1)


# What is refused


@pytest.mark.parametrize(
    "changes, dtype, message",
    [
        ({"workers": 2}, "float32", "one transformers engine"),
        ({"engine": "vllm"}, "float32", "one transformers engine"),
        ({"dtype": "float16"}, "float32", "needs a GPU"),
        ({}, "bfloat16", "float32 weights"),
        ({"max_tokens": 126}, "float32", "problem 2.*context of 128"),
        ({"prompts": 13, "problems": 13}, "float32", "more than the 12 problems"),
    ],
)
def test_what_trl_does_not_do_is_refused_before_anything_is_written(
    tiny_folder: Folder, tmp_path: Path, changes: dict, dtype: str, message: str
) -> None:
    engine = TransformersEngine(load_checkpoint(tiny_folder("llama")), device="cpu", dtype=dtype)
    with pytest.raises(InputError, match=message):
        train(config_of(**changes), engine, TASK, tmp_path / "run", on_update=lambda *_: None)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_needs_a_stop_token_and_its_tokenizer_none(
    tiny_folder: Folder, tmp_path: Path, batches: list[dict]
) -> None:
    engine = TransformersEngine(load_checkpoint(tiny_folder("llama")), device="cpu")
    engine.checkpoint = dataclasses.replace(engine.checkpoint, stop_tokens=frozenset())
    with pytest.raises(InputError, match="no stop token"):
        train(config_of(), engine, TASK, tmp_path / "run", on_update=lambda *_: None)
    folder = tmp_path / "bare"
    shutil.copytree(tiny_folder("llama"), folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    run = Run(folder, tmp_path / "run", updates=2, temperature=2.0)
    assert run.engine.checkpoint.tokenizer.eos_token is None and run.engine.checkpoint.stop_tokens == {2}
    said = [tokens for batch in batches for tokens in rows(batch["completion_ids"], batch["completion_mask"])]
    assert {len(tokens) for tokens in said if tokens[-1] != 2} == {6} and any(tokens[-1] == 2 for tokens in said)


def test_sixteen_bits_train_float32_weights(tiny_folder: Folder, tmp_path: Path) -> None:
    """A step of 10⁻⁶ would not move a bfloat16 weight of this size; here nearly every weight moves."""
    before = TransformersEngine(load_checkpoint(tiny_folder("llama")), device="cpu").parameters
    run = Run(tiny_folder("llama"), tmp_path, updates=1, dtype="bfloat16", learning_rate=1e-6)
    moved = {name: p - before[name] for name, p in run.engine.parameters.items()}
    assert all(p.dtype == torch.float32 for p in run.engine.parameters.values())
    steps = torch.cat([d.flatten() for d in moved.values()])
    assert (steps != 0).double().mean() > 0.8 and steps.abs().max() < 1.2e-6
