"""`python -m llm.antithetic`: two-point against one-point ES at equal evaluations (T5, claim C10), on tiny-3.

The paper: antithetic pairs lower the raw variance of scored labels, not that of regenerated rewards, and training gains
nothing. Whether a pair helps is C > C′ (T5), and what decides it is which random numbers two evaluations share:

    scoring   log-probability of a right answer, teacher-forced: no response noise
    greedy    reward of the greedy response: none either, but a step function of the weights
    own       reward of a response drawn with numbers of its own: noise independent everywhere
    pair      the same numbers in both members of a pair, others in other pairs
    common    the same numbers in all members: what common random numbers of training are

V, C and C′ of these are measured around centers that training passed through, for single evaluations and for the mean
reward of a whole batch, which is what ES weighs; the variances of both estimates stand beside (V − C)/(σ²N). Then both
train, at equal evaluations, with common numbers, with own ones, and greedily. Everything is resumable.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import ArgumentParser
from numpy.typing import NDArray

from esth import plots
from esth._files import hold, write_text
from esth.cli import run
from esth.estimators.gradient_variance import estimate_variances
from esth.estimators.intervals import Estimate, Interval, normal
from esth.estimators.pair_covariance import pair_covariance, two_way_jackknife, unlike
from esth.lemmas import two_point as lemma
from esth.noise import Member, hashed, population
from esth.tasks.task import encode
from esth.training import ESConfig
from esth.training.compare import Arm, Trajectory, equivalence
from esth.training.folder import RunFolder
from esth.training.run import rebuild
from esth.training.study import Said, results, run_study, study_options, told, write_tables
from esth.training.tiny_world import TinyWorld
from esth.training.worlds import Decoding
from llm.training import KS, plans

MARGIN = 0.03
"""Points of held-out pass@1 within which both are as good; fixed before any run."""

KINDS = ("scoring", "greedy", "own", "pair", "common")
FITNESS = {
    "common numbers": {},
    "own numbers": {"common_random_numbers": False},
    "greedy": {"fitness": "greedy", "common_random_numbers": False},
}
ESTIMATORS = {"two-point": "antithetic", "one-point": "gaussian"}

CENTERS = (0, 60, 120)
"""Updates of the run with common numbers, seed 0, whose centers are looked at."""

PAIRS = 128
PROMPTS = 128
SINGLE = 48
"""Prompts and pairs of the covariances of single evaluations, whose jackknife leaves out every one of both."""

COORDINATES = 4096
"""Of the directions, on which the estimates' variances are measured: √(2/4096) = 2 % of error at most."""

Float = NDArray[np.float64]


def arms() -> dict[tuple[str, str], Arm]:
    """Both estimators with every fitness: the settings of tiny-3's study."""
    es = plans("tiny-3").compared[0].stages[0]
    assert isinstance(es, ESConfig)
    return {
        (fitness, estimator): Arm(f"{estimator}, {fitness}", (replace(es, family=family, **changes),))
        for fitness, changes in FITNESS.items()
        for estimator, family in ESTIMATORS.items()
    }


# V, C and C′


def evaluations(world: TinyWorld, kind: str, sigma: float, members: Sequence[Member]) -> Float:
    """Outcomes y [X, K, 2] of pairs of members on the first X training problems, one evaluation each."""
    everything = np.arange(PROMPTS)
    seed = hashed(0, "antithetic", kind)
    if kind == "scoring":
        blocks = [_scores(world, sigma, members[i : i + 32]) for i in range(0, len(members), 32)]
    else:
        common = kind in ("pair", "common")
        decoding = Decoding("greedy") if kind == "greedy" else Decoding("sampled", 1, common)
        width = 2 if kind == "pair" else 32
        blocks = [
            world.rewards(
                members[i : i + width],
                sigma,
                np.broadcast_to(everything, (min(width, len(members) - i), PROMPTS)),
                decoding,
                hashed(seed, i) if kind == "pair" else seed,
            ).values[..., 0]
            for i in range(0, len(members), width)
        ]
    return np.concatenate(blocks).reshape(len(members) // 2, 2, PROMPTS).transpose(2, 0, 1)


@torch.no_grad()
def _scores(world: TinyWorld, sigma: float, members: Sequence[Member]) -> Float:
    """Log-probability of each problem's own right chain and its end, nats [N, X]."""
    tokenizer, task = world.model.checkpoint.tokenizer, world.training.task
    chains = [tokenizer(f"{p.solution}$")["input_ids"] for p in task.problems[:PROMPTS]]
    prompts = torch.tensor([[encode(tokenizer, p) for p in task.problems[:PROMPTS]]])
    tokens = torch.tensor(chains)[None, :, None].expand(len(members), -1, -1, -1)
    lengths = torch.full(tokens.shape[:3], tokens.shape[-1])
    weights = world.model.members(members, sigma)
    return world.model.log_probabilities(weights, prompts, tokens, lengths)[0].sum(dim=(-1, -2)).double().numpy()


def measured(world: TinyWorld, kind: str, config: ESConfig) -> dict[str, Any]:
    """Covariances of single evaluations and of the batch's mean, and both estimates' variances, with standard errors.

    Of the batch the problems are fixed, and errors are over pairs; single evaluations have errors over both.
    """
    members = population(hashed(0, "antithetic", "members"), 2 * PAIRS, "antithetic")
    y = evaluations(world, kind, config.sigma, members)
    single = pair_covariance(y[:SINGLE, :SINGLE, :, None])
    batch = y.mean(axis=0, keepdims=True)
    epsilon = _coordinates(world, members[::2])
    second = np.arange(PAIRS) % 2 == 1

    def statistics(_: Any, k: Any) -> Float:
        (across,), (within,) = unlike(batch[:, k])
        one, two = estimate_variances(batch[:, k], epsilon[k], config.sigma, config.population, second[k])
        scale = [lemma.predict(v, 0.0, config.sigma, config.population) for v in (across, within)]
        return np.array([across, within, across - within, within / across, *scale, one[0], two[0]])

    value, se = two_way_jackknife(statistics, 1, PAIRS)
    names = (
        "V - C'",
        "V - C",
        "C - C'",
        "ratio",
        "one-point predicted",
        "two-point predicted",
        "one-point",
        "two-point",
    )
    return {
        "single": {
            "V": list(single.variance),
            "C": list(single.within),
            "C'": list(single.across),
            "C - C'": list(single.wins),
        },
        "batch": {name: [float(v), float(e)] for name, v, e in zip(names, value, se, strict=True)},
        "mean": float(y.mean()),
    }


def _coordinates(world: TinyWorld, members: Sequence[Member]) -> Float:
    """Some coordinates of the directions [K, COORDINATES], from all over the weights."""
    center = world.model.center
    stride = sum(tensor.numel() for tensor in center.values()) // COORDINATES
    rows = [np.concatenate([m.noise(name, t.shape) for name, t in center.items()])[::stride] for m in members]
    return np.stack(rows).astype(np.float64)


def around(run_folder: RunFolder, update: int, folder: Path) -> dict[str, Any]:
    """All kinds around the center of a run after so many updates; kept in `folder`."""
    file = folder / f"{run_folder.digest(update)[:16]}-{update}-{PAIRS}x{PROMPTS}.json"
    if file.is_file():
        return dict(json.loads(file.read_text()))
    config = run_folder.config
    assert isinstance(config, ESConfig)
    with tempfile.TemporaryDirectory() as scratch:
        rebuild(run_folder, update, Path(scratch) / "center")
        world = TinyWorld(config)
        world.load(Path(scratch) / "center")
        found = {"update": update, "kinds": {kind: measured(world, kind, config) for kind in KINDS}}
    write_text(file, json.dumps(found) + "\n")
    return found


# The command


def study(runs: dict[str, list[Trajectory]], folder: Path) -> dict[str, Any]:
    """Everything that is shown, as JSON types."""
    every = {key: arm.name for key, arm in arms().items()}
    ends = results(list(arms().values()), runs, KS, list(runs))

    def difference(fitness: str) -> dict[str, Any]:
        found = ends["differences"][every[fitness, "two-point"]][every[fitness, "one-point"]]
        return {**found, "verdict": equivalence(Interval(*found["pass@1"]), MARGIN)}

    source = runs[every["common numbers", "one-point"]][0].stages[0]
    return {
        **{key: ends[key] for key in ("versions", "arms", "curves", "ends", "learned")},
        "margin": MARGIN,
        "two-point less one-point": {fitness: difference(fitness) for fitness in FITNESS},
        "measured": [around(source, update, folder / "around") for update in CENTERS],
    }


def tables(found: dict[str, Any]) -> list[Any]:
    """Covariances around each center, and what training gained."""
    from rich.table import Table

    out = []
    for place in found["measured"]:
        one = Table(title=f"Around the center after {place['update']} updates (± one standard error)")
        for column in ("evaluation", "V", "C", "C'", "C − C'", "batch: C − C'", "one-point", "(V−C')/σ²N", "two-point"):
            one.add_column(column)
        one.add_column("(V−C)/σ²N")
        for kind, row in place["kinds"].items():
            single = [_estimate(row["single"][name]) for name in ("V", "C", "C'", "C - C'")]
            names = ("C - C'", "one-point", "one-point predicted", "two-point", "two-point predicted")
            one.add_row(kind, *single, *(_estimate(row["batch"][name]) for name in names))
        out.append(one)
    gains = Table(title="Training at equal evaluations: gain in held-out pass@1 [95 %]")
    for column in ("fitness", *ESTIMATORS, "two-point less one-point", ""):
        gains.add_column(column)
    for fitness, difference in found["two-point less one-point"].items():
        ends = [found["ends"][arms()[fitness, e].name]["effects"]["held-out"]["pass@1"]["gain"] for e in ESTIMATORS]
        gains.add_row(fitness, *map(told, ends), told(difference["pass@1"]), difference["verdict"])
    return [*out, gains]


def figure(found: dict[str, Any]) -> Any:
    """Predicted variance of two-point over one-point estimates by kind of evaluation, and pass@1 along training."""
    fig, (left, right) = plots.figure("C10: two-point against one-point ES, tiny-3", 2)
    for style, place in enumerate(found["measured"]):
        ratio = np.array([normal(Estimate(*place["kinds"][kind]["batch"]["ratio"])) for kind in KINDS])
        plots.interval(left, np.arange(len(KINDS)) + 0.15 * (style - 1), ratio, style=style, name=str(place["update"]))
    plots.level(left, 1.0)
    plots.label(left, "by updates of training [95 %]", "evaluation", "(V − C)/(V − C′) of the batch")
    left.set_xticks(range(len(KINDS)), KINDS)
    plots.legend(left)
    for style, (fitness, estimator) in enumerate(arms()):
        curve = found["curves"][arms()[fitness, estimator].name]
        value = [stop["held-out"]["pass@1"]["value"][0] for stop in curve]
        plots.predicted(right, [stop["updates"] for stop in curve], value, style=style, name=f"{estimator}, {fitness}")
    plots.label(right, "held out, mean over seeds", "updates", "pass@1")
    plots.legend(right)
    return fig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run("llm.antithetic", _run, arguments)


def _run(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m llm.antithetic", description=__doc__, exit_on_error=False)
    options = study_options(parser, arguments, seeds=3, out=Path("results/antithetic"))
    folder = options.runs / "antithetic"
    hold(folder / "lock", options)
    runs = run_study(list(arms().values()), range(options.seeds), folder, Said())
    found = study(runs, folder)
    write_tables(found, tables(found), options.out)
    plots.save(figure(found), options.out / "antithetic.png")
    return 0


def _estimate(pair: Sequence[float]) -> str:
    return "{:.3g} ± {:.1g}".format(*pair)


if __name__ == "__main__":
    sys.exit(main())
