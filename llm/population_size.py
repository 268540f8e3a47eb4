"""`python -m llm.population_size`: how many members ES needs, at three sizes of a tiny model (claim C9).

The paper: after 300 updates on GSM8K, N = 10 and 20 are as good as N = 30 from 1.5 B parameters on, and not at 0.5 B;
perturbations that improve the task get denser with size. Here: three Llamas of one recipe (`esth.models.tiny`), the
same σ, α, prompts and updates for all of them; the middle one is tiny-3. Two things are measured, both resumable:

- held-out pass@1 at the end, N = 10 and 20 less N = 30, paired by seed and problem. It is called equal within MARGIN,
  fixed before the first run: the paper's half a percent would take some forty times the responses.
- the share of members θ + σε that beat their center θ, on the same problems with the same random numbers. Response
  noise draws it toward ½, so the share of a normal distribution with the members' own mean and spread stands beside it.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser
from numpy.typing import NDArray
from scipy import stats

from esth import plots
from esth._files import hold, write_whole
from esth.cli import run
from esth.estimators.intervals import Interval, clopper_pearson, crossed, interaction
from esth.models import tiny
from esth.models.checkpoint import fingerprint, read_tensors
from esth.noise import Member, hashed, population
from esth.training import ESConfig
from esth.training.compare import Arm, Trajectory, equivalence
from esth.training.run import make_world
from esth.training.study import Said, results, run_study, study_options, told, write_tables
from esth.training.worlds import Decoding

MARGIN = 0.03
"""Points of held-out pass@1 within which two population sizes are as good; fixed before any run."""

POPULATIONS = (10, 20, 30)
REFERENCE = POPULATIONS[-1]
KS = (1, 16, 32)
SIGMAS = (0.01, 0.03)
"""Distances at which members are set beside their center: a third of the training's σ, and that σ."""

MEMBERS = 128
RESPONSES = 8
"""Of each member to each training problem."""

WIDTHS = {"small": 40, "middle": 64, "large": 96}
"""hidden_size; the middle one is tiny-3, and the other two are pretrained by the same recipe and seed."""


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """A model under study: its name, where it lies, how many parameters it has, and their fingerprint."""

    name: str
    model: str
    parameters: int
    weights: str


def sizes(folder: Path) -> list[Size]:
    """The three models, pretrained into `folder` where they are not there yet (some minutes each)."""
    found = []
    for name, width in WIDTHS.items():
        setting = replace(tiny.SETTINGS[3], hidden=width, intermediate=2 * width)
        if setting == tiny.SETTINGS[3]:
            model, place = "tiny-3", Path(tiny.__file__).parent / "checkpoints" / "tiny-3"
        else:
            place = folder / f"{name}-{width}"
            model = str(place)
            if not place.is_dir():
                tiny.save(tiny.pretrain(setting, seed=0), place)
        tensors = read_tensors(place)
        parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
        found.append(Size(name, model, parameters, fingerprint(tensors)))
    return found


def config(size: Size, n: int) -> ESConfig:
    """Settings of all runs but for the model and N: those of tiny-3's study, and the step that suits N = 30.

    By P4.4 the gain is about aα − bα²/N an update, with a and b from the runs of N = 64 at α = .02 and random drift
    beside them: the best step at N = 30 is .0125.
    """
    return ESConfig(
        model=size.model,
        engine="transformers" if size.model == "tiny-3" else "batched",
        task="chain",
        difficulty="3",
        problems=490,
        prompts=128,
        population=n,
        sigma=0.03,
        alpha=0.0125,
        fitness="sampled",
        common_random_numbers=True,
        updates=100,
        evaluation_prompts=192,
        evaluation_samples=32,
        evaluate_every=50,
        save_every=50,
    )


def arms(found: Sequence[Size]) -> dict[tuple[str, int], Arm]:
    """A run of every model with every N."""
    return {(s.name, n): Arm(f"{s.name}, N = {n}", (config(s, n),)) for s in found for n in POPULATIONS}


# How dense improving members are


def gains_of_members(size: Size, sigma: float, file: Path) -> Floats:
    """Success of members less their center's [members, problems], on the same random numbers; kept in `file`."""
    if file.is_file():
        return np.asarray(np.load(file), dtype=np.float64)
    world = make_world(config(size, REFERENCE))
    try:
        everything = np.arange(world.n_problems)[None]
        decoding, seed = Decoding("sampled", RESPONSES, common=True), hashed(0, "density")
        members = population(hashed(0, "density", "members"), MEMBERS)
        center = world.rewards([Member(0)], 0.0, everything, decoding, seed).values[0]
        found = []
        for start in range(0, MEMBERS, 32):
            block = members[start : start + 32]
            problems = np.broadcast_to(everything, (len(block), world.n_problems))
            found.append((world.rewards(block, sigma, problems, decoding, seed).values - center).mean(axis=2))
    finally:
        world.close()
    gains = np.concatenate(found)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda stream: np.save(stream, gains))
    return gains


def shares(gains: Floats) -> dict[str, Any]:
    """Of gains over the center [members, problems]: how many members gain, and the members' own mean and spread.

    Members and problems are both samples, and the center's own responses are common to all members: intervals are
    crossed, that of the share by a bootstrap of both (and no shorter than the exact one over members alone). The spread
    is what remains of the variance of measured gains when the residual's share, what neither a member nor a problem
    explains, is taken off; `normal` is the share above 0 of a normal distribution with that mean and spread.
    """
    n, problems = gains.shape
    mean = gains.mean(axis=1)
    noise = interaction(gains) / problems
    spread = math.sqrt(max(0.0, float(mean.var(ddof=1)) - noise))
    better = int((mean > 0).sum())
    exact, drawn = clopper_pearson(better, n), _bootstrap_share(gains)
    return {
        "members": n,
        "better": better,
        "share": Interval(better / n, min(exact.lower, drawn[0]), max(exact.upper, drawn[1])).rounded(),
        "mean": crossed(gains).rounded(),
        "spread": spread,
        "noise": math.sqrt(noise),
        "normal": float(stats.norm.sf(0, mean.mean(), spread)) if spread > 0 else None,
    }


def _bootstrap_share(gains: Floats, draws: int = 2000) -> Floats:
    """95 % of the share of members above 0 when members and problems are drawn again: [2]."""
    rng, (n, problems) = np.random.default_rng(0), gains.shape
    counts = rng.multinomial(problems, np.full(problems, 1 / problems), draws)
    above = (gains @ counts.T / problems > 0).T  # [draws, members]
    kept = np.take_along_axis(above, rng.integers(0, n, (draws, n)), axis=1)
    return np.asarray(np.quantile(kept.mean(axis=1), [0.025, 0.975]))


# The command


def study(found: Sequence[Size], runs: dict[str, list[Trajectory]], folder: Path) -> dict[str, Any]:
    """Everything that is shown, as JSON types."""
    every = {key: arm.name for key, arm in arms(found).items()}
    ends = results(list(arms(found).values()), runs, KS, list(runs))

    def against(size: str, n: int) -> dict[str, Any]:
        difference = ends["differences"][every[size, n]][every[size, REFERENCE]]
        return {"difference": difference, "verdict": equivalence(Interval(*difference["pass@1"]), MARGIN)}

    def gains(size: Size, sigma: float) -> Floats:
        name = f"{size.weights[:16]}-{sigma}-{MEMBERS}x{RESPONSES}.npy"
        return gains_of_members(size, sigma, folder / "density" / name)

    names = {s.model: s.name for s in found}
    for settings in ends["arms"].values():  # not where its folder lay
        settings[0]["model"] = names[settings[0]["model"]]
    return {
        **{key: ends[key] for key in ("versions", "arms", "curves", "ends", "learned")},
        "margin": MARGIN,
        "reference": REFERENCE,
        "sizes": {s.name: s.parameters for s in found},
        "against the reference": {s.name: {str(n): against(s.name, n) for n in POPULATIONS[:-1]} for s in found},
        "density": {s.name: [{"sigma": x, **shares(gains(s, x))} for x in SIGMAS] for s in found},
    }


def tables(found: dict[str, Any]) -> list[Any]:
    """Gains by size and N, and the share of members that beat their center."""
    from rich.table import Table

    gains = Table(title="Held-out pass@1 at the end [95 %]: seeds × problems", title_justify="left")
    for column in ("model", "parameters", "N", "responses", "gain", "less random drift", f"less N = {REFERENCE}", ""):
        gains.add_column(column)
    for name, parameters in found["sizes"].items():
        for n in POPULATIONS:
            row = found["ends"][f"{name}, N = {n}"]
            effect = row["effects"]["held-out"]["pass@1"]
            against = found["against the reference"][name].get(str(n))
            difference = [] if against is None else [told(against["difference"]["pass@1"]), against["verdict"]]
            cells = [told(effect["gain"]), told(effect["beyond_drift"]), *difference]
            gains.add_row(name, f"{parameters:,}", str(n), f"{np.mean(row['responses']):,.0f}", *cells)
    dense = Table(title="Members that beat their center, on the same random numbers", title_justify="left")
    for column in ("model", "sigma", "share [95 %]", "mean gain [95 %]", "spread", "normal share"):
        dense.add_column(column)
    for name, rows in found["density"].items():
        for row in rows:
            normal = "" if row["normal"] is None else f"{row['normal']:.3f}"
            share = "{:.3f} ({:.3f} … {:.3f})".format(*row["share"])
            dense.add_row(name, f"{row['sigma']:g}", share, told(row["mean"]), f"{row['spread']:.4f}", normal)
    return [gains, dense]


def figure(found: dict[str, Any]) -> Any:
    """Gain against N at each size, and the share of improving members against size."""
    fig, (left, right) = plots.figure("C9: members that ES needs, by size of the model", 2)
    for style, (name, parameters) in enumerate(found["sizes"].items()):
        gain = np.array(
            [found["ends"][f"{name}, N = {n}"]["effects"]["held-out"]["pass@1"]["gain"] for n in POPULATIONS]
        )
        x = np.array(POPULATIONS) + 0.4 * (style - 1)
        plots.predicted(left, x, gain[:, 0], style=style)
        plots.interval(left, x, gain, style=style, name=f"{parameters:,} parameters")
    plots.level(left, 0.0)
    plots.label(left, "held-out pass@1 at the end", "N, members", "gain in pass@1")
    plots.ticks(left, POPULATIONS)
    plots.legend(left)
    sizes_ = np.array(list(found["sizes"].values()), dtype=float)
    for style, sigma in enumerate(SIGMAS):
        rows = [row for rows in found["density"].values() for row in rows if row["sigma"] == sigma]
        plots.interval(right, sizes_, np.array([r["share"] for r in rows]), style=style, name=f"σ = {sigma:g}")
        plots.predicted(right, sizes_, [np.nan if r["normal"] is None else r["normal"] for r in rows], style=style)
    plots.level(right, 0.5)
    plots.label(right, "members that beat their center (line: normal share)", "parameters", "share", log="x")
    plots.legend(right)
    return fig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run("llm.population_size", _run, arguments)


def _run(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m llm.population_size", description=__doc__, exit_on_error=False)
    options = study_options(parser, arguments, seeds=8, out=Path("results/population_size"))
    folder = options.runs / "population_size"
    hold(folder / "lock", options)
    found = sizes(folder / "models")
    runs = run_study(list(arms(found).values()), range(options.seeds), folder, Said())
    result = study(found, runs, folder)
    write_tables(result, tables(result), options.out)
    plots.save(figure(result), options.out / "population_size.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
