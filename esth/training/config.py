"""A run's whole configuration: one dataclass a method, saved as JSON, and the same run starts again from it."""

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from esth.diversity.config import DTYPES, check_least
from esth.errors import InputError
from esth.noise import check_family

NORMALIZATIONS = ("zscore", "ranks", "none")
FITNESS = ("greedy", "sampled", "expected")
SCALE_REWARDS = ("group", "batch", "none")
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")
ENGINES = ("transformers", "vllm", "batched")
HELD_OUT_SPLITS = ("test", "validation")
NOT_TOY = ("task", "data", "difficulty", "verifier", "max_tokens", "evaluation_split", "evaluation_data", "held_out")


@dataclass(frozen=True)
class TrainConfig:
    """What runs of both methods have in common.

    Attributes:
        model: "toy" (exact linear-softmax policies), "tiny-3" or "tiny-4" (small, shipped with the package), or a
            causal language model: a folder, a hub name, "demo".
        init: a run's folder, whose last center is where this run starts; `model` is still what it began from. Take
            another seed than that run's, or ES draws the same members and problems again.
        task: of training (esth/tasks), or "file"; the toy world has its own.
        data: the user's file, or where a benchmark's file lies.
        difficulty: of generated tasks.
        question: field of the prompt in a user's file.
        answer: field of the answer in a user's file.
        verifier: in place of the task's own.
        problems: training problems, the first of the task's training split.
        prompts: of these, drawn for each update without replacement.
        updates: of the run.
        temperature: of the policy: sampled fitness, GRPO's responses, evaluation.
        max_tokens: a response is cut there; the task's own limit if none.
        seed: of everything random.
        evaluate_every: updates between evaluations; the start and the end are always evaluated. 0: only these.
        evaluation_prompts: held-out problems evaluated, and as many training problems.
        evaluation_samples: responses to each.
        evaluation_split: of the task that is held out: "test", or "validation" while settings are chosen.
        evaluation_data: the held-out file of a user whose `data` is a training file.
        held_out: further tasks evaluated, as NAME or NAME:DIFFICULTY.
        save_every: updates between checkpoints; a run that was killed goes on from the last.
        engine: of a language model: transformers, vllm, or batched (a population as one batch: tiny-3 and
            tiny-4 always, other small Llamas if asked for).
        workers: engines side by side (more than one: Ray).
        threads: of torch, in each engine; part of what makes a run the same to the bit.
        dtype: of the weights; GRPO of a language model keeps them in float32 and computes in this one.
    """

    method: ClassVar[str]

    model: str = "tiny-3"
    init: str | None = None
    task: str = "chain"
    data: str | None = None
    difficulty: str | None = None
    question: str = "question"
    answer: str = "answer"
    verifier: str | None = None
    problems: int = 256
    prompts: int = 16
    updates: int = 100
    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int = 0
    evaluate_every: int = 0
    evaluation_prompts: int = 128
    evaluation_samples: int = 32
    evaluation_split: str = "test"
    evaluation_data: str | None = None
    held_out: list[str] | None = None
    save_every: int = 25
    engine: str = "transformers"
    workers: int = 1
    threads: int = 1
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for f in fields(self):  # 1 and 1.0 are one number, and one JSON
            value = getattr(self, f.name)
            if f.type in (float, float | None) and type(value) is int:
                object.__setattr__(self, f.name, float(value))
        check_least(
            self, problems=2, prompts=1, updates=1, seed=0, evaluate_every=0, save_every=1, workers=1, threads=1
        )
        check_least(self, evaluation_prompts=2, evaluation_samples=1)
        _one_of(self, dtype=DTYPES, engine=ENGINES, evaluation_split=HELD_OUT_SPLITS)
        if self.prompts > self.problems:
            raise InputError(f"prompts = {self.prompts} of an update are more than the {self.problems} problems")
        if not 1e-6 <= self.temperature < math.inf:
            raise InputError(f"temperature must be finite and at least 1e-6, not {self.temperature}")
        if self.max_tokens is not None:
            check_least(self, max_tokens=1)
        if self.world != "real" and (self.workers > 1 or self.engine == "vllm" or self.dtype != "float32"):
            raise InputError(f"{self.model} runs as one float32 batch: engine, workers and dtype are for larger models")
        unread = next((f.name for f in fields(self) if f.name in NOT_TOY and getattr(self, f.name) != f.default), None)
        if self.world == "toy" and unread is not None:
            raise InputError(f"{unread} is not for the toy world, which has its own problems")

    @property
    def world(self) -> str:
        """toy, tiny or real."""
        if self.model == "toy":
            return "toy"
        return "tiny" if self.engine == "batched" or self.model in ("tiny-3", "tiny-4") else "real"


@dataclass(frozen=True)
class ESConfig(TrainConfig):
    """Evolution strategies: θ ← θ + (α/N) Σ zᵢ εᵢ; N, σ and α as in Qiu et al. (2025, arXiv 2509.24372).

    Attributes:
        population: N.
        sigma: scale of the noise on every parameter.
        alpha: step size; σ/2 if none.
        normalization: of the rewards within the population: zscore, ranks (centered, in [−½, ½]), or none.
        family: of noise: gaussian, antithetic (two-point), rademacher, low-rank.
        rank: of low-rank noise.
        fitness: rewards of greedy responses, of sampled ones, or (toy world) expected ones.
        samples: responses a member gives to a prompt when fitness is sampled.
        common_random_numbers: all members draw their responses with the same uniform numbers.
        fresh_prompts: each member gets prompts of its own, in place of one batch for all.
        decay: λ of anchored weight decay, θ ← θ + λ(θ₀ − θ) with each step, θ₀ the weights of `model`
            (Schweighofer et al. 2026).
    """

    method: ClassVar[str] = "es"

    population: int = 30
    sigma: float = 1e-3
    alpha: float | None = None
    normalization: str = "zscore"
    family: str = "gaussian"
    rank: int = 1
    fitness: str = "greedy"
    samples: int = 1
    common_random_numbers: bool = False
    fresh_prompts: bool = False
    decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, population=2, samples=1, rank=1)
        _positive(self, sigma=self.sigma, alpha=self.step)
        _one_of(self, normalization=NORMALIZATIONS, fitness=FITNESS)
        check_family(self.family)
        if self.family == "antithetic" and self.population % 2:
            raise InputError(f"antithetic members come in pairs: population must be even, not {self.population}")
        if self.fitness != "sampled" and (self.samples > 1 or self.common_random_numbers):
            raise InputError(f"samples and common_random_numbers go with fitness sampled, not {self.fitness}")
        if self.fitness == "expected" and self.world != "toy":
            raise InputError("fitness expected needs the toy world, where success is known exactly")
        if not 0 <= self.decay < 1:
            raise InputError(f"decay must be in [0, 1), not {self.decay}")
        if self.fresh_prompts and self.common_random_numbers:
            raise InputError("common_random_numbers needs prompts that members share: leave fresh_prompts off")

    @property
    def step(self) -> float:
        """α."""
        return self.sigma / 2 if self.alpha is None else self.alpha


@dataclass(frozen=True)
class GRPOConfig(TrainConfig):
    """Group relative policy optimisation, with the names and meanings of TRL's `GRPOConfig`.

    Attributes:
        num_generations: responses to a prompt, the group.
        learning_rate: of AdamW.
        lr_scheduler_type: "linear" falls to 0 over the run, "constant" stays.
        weight_decay: of AdamW.
        max_grad_norm: the gradient is scaled down to this norm.
        num_iterations: optimisation steps on one set of responses; an update holds all of them.
        beta: coefficient of the KL divergence to where the run starts; 0 leaves it out.
        epsilon: the ratio is clipped below at 1 − epsilon.
        epsilon_high: and above at 1 + epsilon_high; `epsilon` if none.
        scale_rewards: advantages are divided by the group's standard deviation, the batch's, or none.
        loss_type: how token losses are averaged: grpo, bnpo, dr_grpo or dapo.
        importance_sampling_level: ratios of tokens, or of whole sequences (GSPO).
        expected: the exact expected gradient by enumeration (toy world).
    """

    method: ClassVar[str] = "grpo"

    num_generations: int = 8
    learning_rate: float = 1e-6
    lr_scheduler_type: str = "linear"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    num_iterations: int = 1
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    scale_rewards: str = "group"
    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    expected: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_generations < 2:
            raise InputError(
                f"num_generations must be at least 2, not {self.num_generations}: a group of 1 has no spread"
            )
        check_least(self, num_iterations=1)
        _positive(self, learning_rate=self.learning_rate, max_grad_norm=self.max_grad_norm, epsilon=self.epsilon)
        _positive(self, epsilon_high=self.upper)
        for name in ("weight_decay", "beta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be finite and at least 0, not {getattr(self, name)}")
        _one_of(
            self,
            lr_scheduler_type=("linear", "constant"),
            scale_rewards=SCALE_REWARDS,
            loss_type=LOSS_TYPES,
            importance_sampling_level=("token", "sequence"),
        )
        if self.world == "real" and (self.engine != "transformers" or self.workers > 1):
            raise InputError("GRPO of a language model runs on one transformers engine: leave engine and workers")
        if self.world == "real" and self.beta > 0 and self.init is not None:
            raise InputError("beta > 0 needs a run without init: TRL's KL divergence is to the weights of `model`")
        if self.expected and (self.world != "toy" or self.beta > 0 or self.num_iterations > 1):
            raise InputError("expected needs the toy world, beta = 0 and num_iterations = 1")

    @property
    def upper(self) -> float:
        """epsilon_high, which is epsilon unless given."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high


CONFIGS: dict[str, type[ESConfig] | type[GRPOConfig]] = {"es": ESConfig, "grpo": GRPOConfig}


def to_json(config: TrainConfig) -> dict[str, Any]:
    """The configuration as it is saved: the method and every field."""
    return {"method": config.method, **asdict(config)}


def read_config(file: Path, method: str | None = None) -> ESConfig | GRPOConfig:
    """A configuration from a JSON file, of `method` where the file does not say.

    Raises:
        InputError: no such file, no JSON object, an unknown method or field, a value that is not accepted.
    """
    return from_json(read_object(file), method, str(file))


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} holds no JSON object")
    return found


def from_json(values: Mapping[str, Any], method: str | None = None, where: str = "configuration") -> Any:
    """The configuration that `to_json` wrote.

    Raises:
        InputError: as `read_config`.
    """
    values = dict(values)
    named = values.pop("method", method)
    if named not in CONFIGS:
        raise InputError(f"{where}: method {named!r} is not one of {', '.join(CONFIGS)}")
    if method is not None and named != method:
        raise InputError(f"{where} is of method {named}, not {method}")
    kind = CONFIGS[named]
    check_fields(values, kind, where)
    return kind(**values)


def check_fields(values: Mapping[str, Any], kind: type[TrainConfig], where: str) -> None:
    """Raise InputError for a field that the configuration does not have, or a value of another type."""
    known = {f.name: f.type for f in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise InputError(f"{where}: unknown field {name!r}; {nearest(name, known)}")
        if not _fits(value, known[name]):
            raise InputError(f"{where}: {name} must be {_words(known[name])}, not {value!r}")


def nearest(name: str, known: Any) -> str:
    """The names that come nearest to one that is not known."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"


def _fits(value: Any, kind: Any) -> bool:
    if kind is float or kind == float | None:
        return (isinstance(value, int | float) and not isinstance(value, bool)) or (value is None and kind is not float)
    if kind is int or kind == int | None:
        return (isinstance(value, int) and not isinstance(value, bool)) or (value is None and kind is not int)
    if kind == list[str] | None:
        return value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value))
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).replace(" | None", " or null")


def _positive(config: TrainConfig, **values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be finite and > 0, not {value}")


def _one_of(config: TrainConfig, **accepted: tuple[str, ...]) -> None:
    for name, choices in accepted.items():
        if getattr(config, name) not in choices:
            raise InputError(f"{name} must be one of {', '.join(choices)}, not {getattr(config, name)!r}")
