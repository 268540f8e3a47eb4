"""GRPO of a language model by TRL's `GRPOTrainer`, with our prompts, our verifiers, and an engine that watches.

    engine = TransformersEngine(load_checkpoint("demo"))
    train(config, engine, task, Path("run"), on_update=lambda update, metrics: ...)

Sampling, loss, optimiser and checkpoints are TRL's. The engine's model is trained in place, without a copy: before,
during (in `on_update`) and after training the engine is the policy of the center.

Weights and the optimiser's moments are float32 whatever `config.dtype` is: a step of 10⁻⁶ is lost in a 16-bit weight.
Forward and backward passes, those of sampling too, are computed in `config.dtype` (autocast).

Checkpoints are folders `checkpoint-S` (S optimiser steps) in Hugging Face format with safetensors weights. The state of
the optimiser beside them is pickled by torch, as TRL does it, and read back by torch's loader of plain data.
"""

import copy
import inspect
import json
import logging
import math
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from esth.errors import InputError, require
from esth.models.checkpoint import Checkpoint, read_tensors
from esth.models.engine import check_tokens
from esth.models.transformers_engine import TransformersEngine
from esth.noise import hashed
from esth.tasks.task import Task
from esth.training.config import GRPOConfig
from esth.training.worlds import problem_batches

datasets = require("datasets", "llm")
torch = require("torch", "llm")
transformers = require("transformers", "llm")
transformers_logging = transformers.utils.logging
trl = require("trl", "llm")

Metrics = dict[str, float]

MICRO_TOKENS = 1024
"""Tokens that are held for one backward pass, unless one response has more: gradients of an update are accumulated."""


def train(
    config: GRPOConfig,
    engine: TransformersEngine,
    task: Task,
    output: Path,
    *,
    on_update: Callable[[int, Metrics], None],
    on_save: Callable[[int, Path], None] = lambda update, folder: None,
    resume: bool = False,
) -> None:
    """Train the engine's model to `config.updates` updates.

    Args:
        engine: float32, at the start of the run: the KL divergence, if any, is to its checkpoint.
        task: its problems are those trained on; `max_tokens` is that of the task unless the configuration has one.
        output: where checkpoints go; nothing else is written.
        on_update: told the number of updates done and the metrics of the last: reward (mean), reward_spread (standard
            deviation within a group, its mean), zero_spread (share of groups without any), truncated (share of
            responses), responses, tokens, forward_passes, backward_passes, seconds; and from TRL entropy (nats; the
            mean over micro-batches), kl (to the start; NaN if beta is 0), clip_ratio (share of tokens), grad_norm
            (before it is clipped) and learning_rate. The engine may be used, sampled from and scored with, not moved.
        on_save: told of each checkpoint when it is whole; the two newest are kept.
        resume: go on from the newest whole checkpoint in `output`, if there is one; half-written ones are deleted.
            Updates after it are made, and told, again: the same ones on a CPU.

    Raises:
        InputError: something that TRL does not do, no stop token, a prompt that does not fit the context, checkpoints
            in `output` that are not to be resumed.
    """
    check(config, engine, task)
    last = last_checkpoint(output)
    if last is not None and not resume:
        raise InputError(f"{output} holds checkpoints of a run: resume it, or name another folder")
    for folder in output.glob("checkpoint-*"):
        if update_of(folder, config) is None:
            shutil.rmtree(folder)
    model = engine.model
    engine.restore()
    engine._center = {}  # a copy of the center, if members were set, would be the old one soon
    with _quiet():
        trainer = make_trainer(config, engine, task, output, on_update, on_save)
        try:
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        finally:
            model.eval().requires_grad_(False)
            model.generation_config = transformers.GenerationConfig()


def make_trainer(
    config: GRPOConfig,
    engine: TransformersEngine,
    task: Task,
    output: Path,
    on_update: Callable[[int, Metrics], None],
    on_save: Callable[[int, Path], None],
) -> "Trainer":
    """The trainer of a run."""
    model, checkpoint = engine.model, engine.checkpoint
    model.requires_grad_(True)
    for layer in model.modules():  # TRL's `disable_dropout` knows the modules of that name only
        if isinstance(getattr(layer, "attention_dropout", None), float):
            layer.attention_dropout = 0.0
    model.generation_config.eos_token_id = sorted(checkpoint.stop_tokens)  # TRL stops at these
    seen = Seen(config, checkpoint, task)
    trainer = Trainer(
        checkpoint,
        model=model,
        reward_funcs=seen.reward,
        args=arguments(config, engine, task, output),
        train_dataset=dataset(config, task),
        processing_class=_tokenizer(checkpoint),
        callbacks=[Told(config, engine, seen, on_update, on_save)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def arguments(config: GRPOConfig, engine: TransformersEngine, task: Task, output: Path) -> Any:
    """TRL's configuration: ours under the same names, and every default that would be another."""
    responses = config.prompts * config.num_generations
    rows = micro_batch(responses, max(map(len, _prompts(engine.checkpoint, task))) + max_tokens(config, task))
    found = trl.GRPOConfig(
        output_dir=str(output),
        seed=hashed(config.seed, "trl", bits=32),
        # Responses
        num_generations=config.num_generations,
        generation_batch_size=responses,
        max_completion_length=max_tokens(config, task),
        temperature=config.temperature,
        top_k=0,
        top_p=1.0,
        min_p=None,
        repetition_penalty=1.0,
        shuffle_dataset=False,
        # Steps: all responses of an update are one batch
        max_steps=config.updates * config.num_iterations,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=responses // rows,
        num_iterations=config.num_iterations,
        optim="adamw_torch",
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=0,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        # Loss
        loss_type=config.loss_type,
        scale_rewards=config.scale_rewards,
        importance_sampling_level=config.importance_sampling_level,
        beta=config.beta,
        epsilon=config.epsilon,
        epsilon_high=config.upper,
        disable_dropout=True,  # or the policy that is trained would not be the one that is sampled
        # Numbers
        use_cpu=engine.device.type == "cpu",
        bf16=config.dtype == "bfloat16",
        fp16=config.dtype == "float16",
        gradient_checkpointing=False,
        trust_remote_code=engine.checkpoint.trust_remote_code,
        # What is said and kept
        logging_steps=config.num_iterations,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        save_steps=config.save_every * config.num_iterations,
        save_total_limit=2,
    )
    found._n_gpu = min(found.n_gpu, 1)  # several would be wrapped in DataParallel, which TRL refuses
    return found


def micro_batch(responses: int, tokens: int) -> int:
    """Responses of one backward pass, of at most so many `tokens` each: a divisor, so that all weigh the same."""
    return max(n for n in range(1, responses + 1) if responses % n == 0 and (n == 1 or n * tokens <= MICRO_TOKENS))


def max_tokens(config: GRPOConfig, task: Task) -> int:
    """Tokens of a response."""
    return task.max_tokens if config.max_tokens is None else config.max_tokens


def dataset(config: GRPOConfig, task: Task) -> Any:
    """The prompts of all updates in their order, in memory: those that ES reads too with this seed."""
    numbers = range(1, config.updates + 1)
    problems = np.concatenate([problem_batches(len(task), config.prompts, config.seed, t)[0] for t in numbers])
    return datasets.Dataset.from_dict({"prompt": [task.problems[i].prompt for i in problems], "problem": problems})


class Trainer(trl.GRPOTrainer):  # type: ignore[name-defined]
    """TRL's trainer, which reads prompts as everything here does, and keeps to its folder."""

    def __init__(self, checkpoint: Checkpoint, **options: Any) -> None:
        self.checkpoint = checkpoint
        super().__init__(**options)
        for model in filter(None, (self.model, self.ref_model)):
            if "position_ids" in inspect.signature(type(model).forward).parameters:
                model.register_forward_pre_hook(_positions, with_kwargs=True)

    def _tokenize_prompts(self, prompts: Sequence[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Token ids of prompts. TRL would write the special tokens of a prompt without a chat turn in its own way."""
        return [self.checkpoint.encode(prompt) for prompt in prompts], None, {}

    def _send_telemetry(self) -> None:
        """Nothing is sent."""

    def create_model_card(self, *args: Any, **options: Any) -> None:
        """No card: TRL's would ask the hub."""


def _positions(model: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Scored tokens are counted from their prompt's first. TRL counts the padding before it too, which is another
    policy than the one that was sampled where positions are learned (GPT-2); to rotary ones it is the same."""
    if "fused_lm_head" in inputs:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    return args, inputs


class Seen:
    """The reward function, which keeps in mind what an update's responses were like."""

    def __init__(self, config: GRPOConfig, checkpoint: Checkpoint, task: Task) -> None:
        self.config, self.checkpoint, self.task = config, checkpoint, task
        self.metrics: Metrics = {}

    def reward(self, completion_ids: list[list[int]], problem: list[int], **_: Any) -> list[float]:
        """v(x, y) of all responses of an update, groups together; the text is read from the tokens as everywhere."""
        texts = map(self.checkpoint.decode, completion_ids)
        right = [float(self.task.verify(text, self.task.problems[i])) for text, i in zip(texts, problem, strict=True)]
        config, responses = self.config, len(right)
        groups = np.reshape(right, (config.prompts, config.num_generations))
        spread = groups.std(axis=1)
        scored = config.num_iterations + (config.num_iterations > 1) + (config.beta > 0)
        self.metrics = {
            "reward": float(groups.mean()),
            "reward_spread": float(spread.mean()),
            "zero_spread": float((spread == 0).mean()),
            "truncated": float(np.mean([ids[-1] not in self.checkpoint.stop_tokens for ids in completion_ids])),
            "responses": responses,
            "tokens": sum(map(len, completion_ids)),
            "forward_passes": responses * (1 + scored),
            "backward_passes": responses * config.num_iterations,
        }
        return right


class Told(transformers.TrainerCallback):  # type: ignore[name-defined]
    """Passes on what TRL tells of steps, in updates."""

    def __init__(
        self,
        config: GRPOConfig,
        engine: TransformersEngine,
        seen: Seen,
        on_update: Callable[[int, Metrics], None],
        on_save: Callable[[int, Path], None],
    ) -> None:
        self.config, self.engine, self.seen = config, engine, seen
        self.tell_update, self.tell_save = on_update, on_save
        self.start = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.config.num_iterations == 0:
            self.start = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "grad_norm" not in logs:  # the summary at the end
            return
        update = state.global_step // self.config.num_iterations
        from_trl = {
            "entropy": logs["entropy"],
            "kl": logs.get("kl", math.nan),
            "clip_ratio": logs["clip_ratio/region_mean"],
            "grad_norm": logs["grad_norm"],
            "learning_rate": logs["learning_rate"],
        }
        seconds = time.perf_counter() - self.start
        with self._evaluating():
            self.tell_update(update, {"update": update, **self.seen.metrics, **from_trl, "seconds": seconds})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        with self._evaluating():
            self.tell_save(state.global_step // self.config.num_iterations, folder)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.engine.model.eval()
        try:
            yield
        finally:
            self.engine.model.train()


# Checkpoints


def last_checkpoint(output: Path) -> Path | None:
    """The newest whole checkpoint, None if there is none."""
    whole = {step: folder for folder in output.glob("checkpoint-*") if (step := _step_of(folder)) is not None}
    return whole[max(whole)] if whole else None


def update_of(folder: Path, config: GRPOConfig) -> int | None:
    """How many updates a checkpoint has had, None if it is not whole."""
    step = _step_of(folder)
    return None if step is None else step // config.num_iterations


def _step_of(folder: Path) -> int | None:
    """Optimiser steps of a whole checkpoint. Its parts are written one after another, `trainer_state.json` the last."""
    try:
        step = json.loads((folder / "trainer_state.json").read_text())["global_step"]
        read_tensors(folder)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    pickled = [folder / name for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")]
    return int(step) if all(zipfile.is_zipfile(file) for file in pickled) else None  # their directory is at the end


# What TRL needs


def check(config: GRPOConfig, engine: TransformersEngine, task: Task) -> None:
    """Raise InputError for what TRL does not do, no stop token, a prompt that does not fit the context."""
    checkpoint = engine.checkpoint
    if config.engine != "transformers" or config.workers > 1:
        raise InputError("GRPO of a language model runs on one transformers engine: leave engine and workers")
    if any(parameter.dtype != torch.float32 for parameter in engine.parameters.values()):
        raise InputError("GRPO trains float32 weights: load the engine with dtype float32")
    if config.dtype == "float16" and engine.device.type == "cpu":
        raise InputError("GRPO in float16 needs a GPU: take float32 or bfloat16")
    if config.prompts > len(task):
        raise InputError(f"prompts = {config.prompts} of an update are more than the {len(task)} problems")
    if not checkpoint.stop_tokens:
        raise InputError(f"{checkpoint.name} names no stop token: GRPO needs one")
    for problem, prompt in zip(task.problems, _prompts(checkpoint, task), strict=True):
        check_tokens(f"problem {problem.id}", prompt, max_tokens(config, task), checkpoint.context, engine.vocabulary)


def _prompts(checkpoint: Checkpoint, task: Task) -> list[list[int]]:
    return [checkpoint.encode(problem.prompt) for problem in task.problems]


def _tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's tokenizer, with a stop token and a padding token, which TRL takes for granted."""
    tokenizer = copy.deepcopy(checkpoint.tokenizer)
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(min(checkpoint.stop_tokens))
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """No advice on standard error from the libraries underneath."""
    loggers = [logging.getLogger(name) for name in ("accelerate", "datasets", "transformers", "trl")]
    levels = [logger.level for logger in loggers]
    bars = transformers_logging.is_progress_bar_enabled()
    try:
        transformers_logging.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
