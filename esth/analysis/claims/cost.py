"""Runs of the paper's size that were not made: the commands, and what they would cost on one H100 80GB.

The estimate counts tokens, from the presets (`esth.training.presets`): responses an update × updates × tokens a
response, and the evaluations on the way. What turns tokens into hours are assumptions, not measurements of ours:

    RESPONSE_TOKENS  a mean GSM8K response of a 1.5 B instruction model; the presets cut at 1,024
    SAMPLED          vLLM, bfloat16, Qwen2.5-1.5B. Decoding 256 sequences of 300 tokens moves 3.1 GB of weights and
                     2.2 GB of cache (28,672 bytes a token), of 3.35 TB/s: 160,000 tokens/s at most. GPUStack's
                     performance lab reports 11,500 to 34,500 tokens/s, read and written, of Qwen3.5-9B with vLLM on an
                     H100 80GB (docs.gpustack.ai, performance-lab/qwen3.5-9b/h100). 20,000 lies an eighth below the
                     bound and within what a model of six times the size is reported to do
    NOISE            seconds a number on one core, which was measured (x86-64). Every member is drawn twice, for its
                     responses and in the update, on THREADS cores that are assumed to be as many times as fast
    TRAINED          gradients of GRPO: 6 FLOPs a parameter and token, at 30 % of 989 TFLOP/s (bfloat16, dense)

GRPO samples in TRL without vLLM here, which is slower: its hours are a lower bound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from esth.analysis.claims.claim import Row
from esth.training.config import CONFIGS, ESConfig, GRPOConfig
from esth.training.presets import PRESETS

GPU = "H100 80GB"
PRESET = "qwen2.5-1.5b"
PARAMETERS = 1.54e9
RESPONSE_TOKENS = 300
SAMPLED = 20_000.0
"""Tokens a second."""
TRAINED = 0.3 * 989e12 / (6 * PARAMETERS)
"""Tokens a second."""
NOISE = 4e-9
THREADS = 16
SEEDS = 3


@dataclass(frozen=True)
class Run:
    """A run of `esth train`: its method, options beside the preset, and parameters in units of the preset's model."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    size: float = 1.0

    @property
    def command(self) -> str:
        """What starts it, of one seed."""
        options = {**({"threads": THREADS} if self.method == "es" else {}), **self.options}
        return " ".join(["esth train", self.method, "--preset", PRESET, *(f"--{k} {v}" for k, v in options.items())])

    @property
    def config(self) -> ESConfig | GRPOConfig:
        """Its settings, as far as they can be known before the run that it starts from."""
        told = {k: v.split(",") if k == "held_out" else v for k, v in self.options.items() if k not in ("init", "out")}
        return CONFIGS[self.method](**{**PRESETS[self.method][PRESET], **told})

    @property
    def hours(self) -> float:
        """On one GPU, of one seed; a model of `size` times the parameters takes as much longer."""
        config = self.config
        trained, evaluated = tokens(config)
        seconds = (trained + evaluated) / SAMPLED
        if isinstance(config, ESConfig):
            seconds += 2 * config.population * config.updates * PARAMETERS * NOISE / THREADS
        else:
            seconds += trained / TRAINED
        return self.size * seconds / 3600


def tokens(config: ESConfig | GRPOConfig) -> tuple[float, float]:
    """Sampled in training, and in the evaluations of start, end and every `evaluate_every` updates."""
    of_a_prompt = config.population * config.samples if isinstance(config, ESConfig) else config.num_generations
    stops = 1 + math.ceil(config.updates / (config.evaluate_every or config.updates))
    problems = (2 + len(config.held_out or ())) * config.evaluation_prompts
    trained = of_a_prompt * config.prompts * config.updates
    return trained * RESPONSE_TOKENS, stops * problems * config.evaluation_samples * RESPONSE_TOKENS


@dataclass(frozen=True)
class Plan:
    """What would test a claim at the paper's size: runs of SEEDS seeds, and a command on them."""

    runs: tuple[Run, ...]
    then: str = ""

    @property
    def command(self) -> str:
        """All commands, of one seed."""
        return "; ".join([*(run.command for run in self.runs), *([self.then] if self.then else [])])

    @property
    def cost(self) -> str:
        """In words."""
        hours = SEEDS * sum(run.hours for run in self.runs)
        bound = "at least " if any(run.method == "grpo" for run in self.runs) else ""
        machine = f"one {GPU} and {THREADS} cores"
        return f"{bound}{hours:,.0f} hours of {machine} for {SEEDS} seeds, at {SAMPLED:,.0f} tokens/s (assumed)"


MODEL = str(PRESETS["es"][PRESET]["model"])
SIGMA = float(PRESETS["es"][PRESET]["sigma"])
UPDATES = int(PRESETS["es"][PRESET]["updates"])
ES, GRPO = Run("es"), Run("grpo")
SIZES = {"Qwen/Qwen2.5-0.5B-Instruct": 0.49e9, MODEL: PARAMETERS, "Qwen/Qwen2.5-3B-Instruct": 3.09e9}


def _half(method: str, init: str | None = None) -> Run:
    return Run(method, {"updates": UPDATES // 2, "out": f"half-{method}"} if init is None else
               {"updates": UPDATES // 2, "init": init, "seed": 1})  # fmt: skip


def _both(**options: Any) -> Plan:
    return Plan((Run("es", options), Run("grpo", options)))


PLANS = {
    "C1": _both(held_out="gpqa"),
    "C2": _both(),
    "C3": Plan((ES,)),
    "C4": _both(),
    "C5": Plan((ES,), "python -m llm.sparsity RUN"),
    "C6": Plan((ES, GRPO), f"esth compare {MODEL} RUN RUN"),
    "C7": Plan((ES, Run("es", {"normalization": "none"}))),
    "C8": Plan((ES, *(Run("es", {"sigma": f * SIGMA, "alpha": SIGMA / 2}) for f in (0.1, 3.0)))),
    "C9": Plan(
        tuple(Run("es", {"model": m, "population": n}, p / PARAMETERS) for m, p in SIZES.items() for n in (10, 20, 30))
    ),
    "C10": Plan(
        (ES, Run("es", {"family": "antithetic"})),
        f"python -m llm two_point --model {MODEL} --task sst2; python -m llm two_point --model {MODEL} --task gsm8k",
    ),
    "C11": Plan((GRPO, _half("es"), _half("grpo"), _half("grpo", "half-es"), _half("es", "half-grpo"))),
    "C12": Plan((Run("es", {"held_out": "svamp,asdiv,mmlu_stem,arc_challenge,gpqa"}),)),
    "C13": _both(task="countdown", problems=2000),
    "C14": _both(),
}
"""By claim."""


def paper_rows() -> dict[str, Row]:
    """A row of each claim at the paper's size, which was not run."""
    return {
        claim: Row(claim, "real", MODEL, "the paper's size", command=plan.command, cost=plan.cost)
        for claim, plan in PLANS.items()
    }
