"""`python -m toy.training`: ES and GRPO on exact policies, over seeds; what in an update is drift, and what is noise.

Every evaluation is exact, so intervals are over seeds and prompts alone. Settings: of six for each method, the one with
the largest pass@1 on training prompts after 100 updates of seed 100 (docs/training.md).
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table

from esth import plots
from esth.cli import run
from esth.training import ESConfig, GRPOConfig
from esth.training.compare import Arm
from esth.training.study import Watch, results, run_study, study_options, write_study
from esth.training.toy_expected import (
    es_updates,
    expected_es_update,
    expected_grpo_gradient,
    grpo_gradients,
    split,
)
from esth.training.toy_world import DIMENSION, ToyWorld

KS = (1, 2, 4, 8, 16, 32)
UPDATES = 100
COMMON: dict[str, Any] = {
    "model": "toy",
    "problems": 256,
    "prompts": 32,
    "evaluation_prompts": 128,
    "evaluate_every": 5,
    "save_every": 50,
}
ES = ESConfig(**COMMON, updates=UPDATES, population=32, sigma=1.0, alpha=0.2, fitness="sampled")
GRPO = GRPOConfig(**COMMON, updates=UPDATES, num_generations=8, learning_rate=0.2, lr_scheduler_type="constant")
HALF_ES, HALF_GRPO = (replace(config, updates=UPDATES // 2) for config in (ES, GRPO))

COMPARED = (
    Arm("ES, sampled fitness", (ES,)),
    Arm("ES, greedy fitness", (replace(ES, fitness="greedy"),)),
    Arm("GRPO", (GRPO,)),
    Arm("GRPO, then ES", (HALF_GRPO, HALF_ES)),
    Arm("ES, then GRPO", (HALF_ES, HALF_GRPO)),
)
EXACT = (
    Arm("ES, expected fitness", (replace(ES, fitness="expected"),)),
    Arm("GRPO, expected gradient", (replace(GRPO, expected=True),)),
    Arm("ES, no z-score", (replace(ES, normalization="none"),)),
    Arm("ES, a tenth of sigma", (replace(ES, sigma=ES.sigma / 10),)),
    Arm("ES, three times sigma", (replace(ES, sigma=ES.sigma * 3),)),
)
LINEAR = "alpha^2 (d+N-2)/N"
"""E‖Δ‖² where fitness is linear and without noise (P4.4)."""
DRAWS = 1000
"""Sampled updates at θ₀ that are split into drift and noise."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run("toy.training", _run, arguments)


def _run(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m toy.training", description=__doc__, exit_on_error=False)
    options = study_options(parser, arguments, seeds=10)
    arms = (*COMPARED, *EXACT)
    runs = run_study(arms, range(options.seeds), options.runs / "toy", _silent)
    found = results(arms, runs, KS, [arm.name for arm in COMPARED])
    found["updates"] = drift_and_noise()
    write_study(found, options.out / "toy", "toy", [arm.name for arm in COMPARED])
    Console(width=160).print(updates_table(found["updates"]))
    fig, (a,) = plots.figure("Updates of ES at θ₀: drift and noise", 1, columns=1)
    _plot_updates(a, found["updates"])
    plots.save(fig, options.out / "toy" / "updates.png")
    return 0


_silent: Watch = lambda told, update, metrics: None  # noqa: E731  a run takes a second


def drift_and_noise() -> dict[str, Any]:
    """At θ₀, of sampled updates: ‖EΔ‖² and tr Cov Δ beside P4.4, and the mean's cosine with the enumerated update."""
    found: dict[str, Any] = {"draws": DRAWS, "es": [], "grpo": []}
    for fitness in ("expected", "sampled", "greedy"):
        for n in (8, 32, 128):
            config = replace(ES, population=n, fitness=fitness, family="rademacher", sigma=0.3, prompts=256)
            world = ToyWorld(config)
            parts = split(es_updates(world, config, DRAWS))
            expected = expected_es_update(world, config, np.arange(world.n_problems))
            found["es"].append(
                {
                    "fitness": fitness,
                    "population": n,
                    "signal": parts.signal,
                    "noise": parts.noise,
                    "enumerated signal": float(expected @ expected),
                    "alpha^2 d/N": config.step**2 * DIMENSION / n,
                    LINEAR: config.step**2 * (DIMENSION + n - 2) / n,
                    "cosine": _cosine(parts.drift, expected),
                }
            )
    for g in (2, 8, 32):
        config_g = replace(GRPO, num_generations=g, prompts=256)
        world = ToyWorld(config_g)
        parts = split(grpo_gradients(world, config_g, DRAWS))
        exact = expected_grpo_gradient(world, np.arange(world.n_problems), g, config_g.scale_rewards)
        found["grpo"].append(
            {
                "generations": g,
                "signal": parts.signal,
                "noise": parts.noise,
                "enumerated signal": float(exact @ exact),
                "cosine": _cosine(parts.drift, exact),
            }
        )
    return found


def _cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def updates_table(found: dict[str, Any]) -> Table:
    """Drift and noise, a row a setting."""
    out = Table(title=f"Updates at θ₀, {found['draws']} draws, all training prompts", title_justify="left")
    columns = ("update", "‖EΔ‖²", "enumerated", "tr Cov Δ", "α²d/N (P4.4)", "E‖Δ‖²", "α²(d+N−2)/N (P4.4)", "cosine")
    for column in columns:
        out.add_column(column)
    for row in found["es"]:
        name = f"ES, {row['fitness']}, N = {row['population']}"
        total = row["signal"] + row["noise"]
        numbers = (row["signal"], row["enumerated signal"], row["noise"], row["alpha^2 d/N"], total, row[LINEAR])
        out.add_row(name, *(f"{x:.3g}" for x in numbers), f"{row['cosine']:.4f}")
    for row in found["grpo"]:
        numbers = (row["signal"], row["enumerated signal"], row["noise"])
        name = f"GRPO gradient, G = {row['generations']}"
        out.add_row(name, *(f"{x:.3g}" for x in numbers), "", "", "", f"{row['cosine']:.4f}")
    return out


def _plot_updates(ax: Any, found: dict[str, Any]) -> None:
    for style, fitness in enumerate(("expected", "sampled", "greedy")):
        rows = [row for row in found["es"] if row["fitness"] == fitness]
        n = [row["population"] for row in rows]
        plots.measured(ax, n, [row["noise"] for row in rows], style=style, name=f"noise, {fitness} fitness")
        plots.predicted(ax, n, [row["signal"] for row in rows], style=style, name=f"drift ‖EΔ‖², {fitness}")
    rows = found["es"][:3]
    plots.predicted(ax, [r["population"] for r in rows], [r["alpha^2 d/N"] for r in rows], style=5, name="α²d/N (P4.4)")
    plots.label(ax, "σ = 0.3, Rademacher, z-scored", "members N", "squared length of an update", log="xy")
    plots.ticks(ax, [row["population"] for row in rows])
    plots.legend(ax)


if __name__ == "__main__":
    sys.exit(main())
