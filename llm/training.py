"""`python -m llm.training --model tiny-3`: ES, GRPO and both in turn, over seeds (claims C1–C4, C7, C8, C11–C14).

Runs go to a folder of their own and are taken up where they stopped; results are written from them: study.json, the
tables as table.txt, a figure. The settings below were chosen on the validation split (docs/training.md says how); the
evaluation here is on the test split.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jsonargparse import ArgumentParser

from esth.cli import run
from esth.errors import InputError
from esth.training import ESConfig, GRPOConfig
from esth.training.compare import Arm, Config
from esth.training.study import Said, results, run_study, study_options, write_study

KS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Plan:
    """What is compared on a model: arms of equally many updates, and ablations that stand for themselves."""

    compared: tuple[Arm, ...]
    ablations: tuple[Arm, ...] = ()


def plan(es: ESConfig, grpo: GRPOConfig, updates: int) -> Plan:
    """Both methods, both orders under one split budget; ES with greedy fitness, too, and with no more responses than
    GRPO; each with smaller steps and twice the updates (ES, P4.4: as much signal, less random drift); ablations of ES.
    """

    def half(config: Config) -> Config:
        return replace(config, updates=updates // 2)

    es, grpo = replace(es, updates=updates), replace(grpo, updates=updates)
    other = replace(es, fitness="greedy", samples=1, common_random_numbers=False)
    return Plan(
        (
            Arm("ES, sampled fitness", (es,)),
            Arm("ES, greedy fitness", (other,)),
            Arm("ES, half step", (replace(es, sigma=es.sigma / 1.5, alpha=es.step / 2, updates=2 * updates),)),
            Arm("ES, GRPO's batch", (replace(es, population=grpo.num_generations, prompts=grpo.prompts),)),
            Arm("GRPO", (grpo,)),
            Arm("GRPO, a third of the rate", (replace(grpo, learning_rate=1e-4, updates=2 * updates),)),
            Arm("GRPO, then ES", (half(grpo), half(es))),
            Arm("ES, then GRPO", (half(es), half(grpo))),
        ),
        (
            Arm("ES, no z-score", (replace(es, normalization="none"),), seeds=2),
            Arm("ES, a tenth of sigma", (replace(es, sigma=es.sigma / 10),), seeds=2),
            Arm("ES, three times sigma", (replace(es, sigma=es.sigma * 3),), seeds=2),
        ),
    )


def plans(model: str) -> Plan:
    """The settings of a model.

    Raises:
        InputError: no settings were chosen for it.
    """
    if model == "tiny-3":
        common: dict[str, Any] = {
            "model": model,
            "problems": 490,
            "evaluation_prompts": 192,
            "evaluation_samples": 32,
            "evaluate_every": 20,
            "save_every": 20,
            "held_out": ["chain:4"],
        }
        es = ESConfig(
            **common, population=64, prompts=128, sigma=0.03, alpha=0.02, fitness="sampled", common_random_numbers=True
        )
        grpo = GRPOConfig(**common, num_generations=16, prompts=32, learning_rate=3e-4, lr_scheduler_type="constant")
        return plan(es, grpo, 120)
    raise InputError(f"no settings were chosen for {model}: tiny-3 is accepted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run("llm.training", _run, arguments)


def _run(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m llm.training", description=__doc__, exit_on_error=False)
    parser.add_argument("--model", default="tiny-3", help="whose settings: tiny-3")
    options = study_options(parser, arguments, seeds=3)
    chosen = plans(options.model)
    arms = (*chosen.compared, *chosen.ablations)
    runs = run_study(arms, range(options.seeds), options.runs / options.model, Said())
    found = results(arms, runs, KS, [arm.name for arm in chosen.compared])
    drawn = [arm.name for arm in chosen.compared if arm.name != "ES, GRPO's batch"]
    write_study(found, options.out / options.model, options.model, drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
