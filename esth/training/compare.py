"""Runs beside each other: at matched updates, responses or gain, over seeds, and beside random drift of the same norm.

Equal numbers of updates favour whichever method moves less, equal numbers of responses whichever learns from fewer; so
a comparison says what is matched. What a random step of the same length does to the policy as well is not an effect of
training: each run's end is set beside a few draws of θ₀ + c ε with ‖c ε‖ = ‖θ − θ₀‖.
"""

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esth._files import write_text
from esth.errors import InputError
from esth.estimators.intervals import Interval, crossed
from esth.noise import Member, hashed
from esth.training.config import ESConfig, GRPOConfig
from esth.training.evaluation import Evaluation
from esth.training.folder import Point, RunFolder
from esth.training.run import make_world, train

MARGIN = 0.05
"""Points of held-out pass@1 that a method must gain to have learned; fixed before any run was made."""

DRAWS = 4
"""Random directions a run is set beside."""

Config = ESConfig | GRPOConfig


class Stop(NamedTuple):
    """A place on a trajectory, at an evaluated center or between two.

    Attributes:
        updates: of all stages until here.
        point: the evaluated center.
        toward: the next one, of so many updates, if the place is past `point`.
        fraction: how far towards it: what is said of the place is interpolated.
    """

    updates: float
    point: Point
    toward: Point | None = None
    fraction: float = 0.0

    def between(self, value: Callable[[Point], Any]) -> Any:
        """A value of the place."""
        here = value(self.point)
        return here if self.toward is None else here + self.fraction * (value(self.toward) - here)


class Trajectory:
    """What a policy went through: one run, or several, each from the end of the one before."""

    def __init__(self, stages: Sequence[RunFolder]) -> None:
        self.stages = list(stages)
        self.stops: list[Stop] = []
        before = 0
        for run in stages:
            points = run.points()
            self.stops += [Stop(before + p.update, p) for p in points if p.update > 0 or before == 0]
            before += points[-1].update

    @property
    def start(self) -> Point:
        """The base."""
        return self.stops[0].point

    @property
    def end(self) -> Stop:
        """Where it ended."""
        return self.stops[-1]

    def at_updates(self, updates: float) -> Stop:
        """The last evaluated center of at most so many updates."""
        return [s for s in self.stops if s.updates <= updates][-1]

    def at_responses(self, responses: int) -> Stop:
        """Where so many responses were spent."""
        return self._crossing(lambda p: p.spent.responses, responses) or self.end

    def at_gain(self, gain: float, value: Callable[[Evaluation], float], name: str = "held-out") -> Stop | None:
        """Where the value first exceeds the base's by `gain`; None if it never does."""
        base = value(self.start.sets[name])
        return self._crossing(lambda p: value(p.sets[name]) - base, gain)

    def _crossing(self, value: Callable[[Point], float], level: float) -> Stop | None:
        """Where a value of evaluated centers, 0 at the start, first reaches a level; None if it never does."""
        if level <= 0:
            return self.stops[0]
        for before, after in pairwise(self.stops):
            low, high = value(before.point), value(after.point)
            if high >= level:
                fraction = (level - low) / (high - low)
                updates = before.updates + fraction * (after.updates - before.updates)
                return Stop(updates, before.point, after.point, fraction)
        return None


def pass_at_1(evaluation: Evaluation) -> float:
    """Mean success."""
    return float(evaluation.per_prompt(1).mean())


def greedy(evaluation: Evaluation) -> float:
    """Greedy accuracy."""
    return float(evaluation.greedy.mean())


GAINS = {"pass@1": pass_at_1, "greedy": greedy}


def matched(arms: dict[str, list[Trajectory]], by: str) -> tuple[str, dict[str, list[Stop | None]]]:
    """A place on every trajectory, all with the same of what `by` names, and what that is.

    Places at a number of responses or a gain lie between evaluated centers, by linear interpolation.

    Args:
        arms: trajectories of each method, one a seed.
        by: "updates" or "responses", as many as all have; "pass@1" or "greedy", the largest gain on held-out problems
            that all seeds reach in every arm which gains MARGIN in the mean over seeds (0 if none does).
    """
    everything = [t for runs in arms.values() for t in runs]
    if by == "updates":
        updates = min(int(t.end.updates) for t in everything)
        return f"{updates} updates", {arm: [t.at_updates(updates) for t in runs] for arm, runs in arms.items()}
    if by == "responses":
        count = min(t.end.point.spent.responses for t in everything)
        return f"{count:,} responses", {arm: [t.at_responses(count) for t in runs] for arm, runs in arms.items()}
    value = GAINS[by]

    def gains(t: Trajectory) -> list[float]:
        return [value(s.point.sets["held-out"]) - value(t.start.sets["held-out"]) for s in t.stops]

    reached = [
        min(max(gains(t)) for t in runs) for runs in arms.values() if np.mean([gains(t)[-1] for t in runs]) >= MARGIN
    ]
    gain = min(reached, default=0.0)
    return f"{by} +{gain:.3f}", {arm: [t.at_gain(gain, value) for t in runs] for arm, runs in arms.items()}


def common_updates(trajectories: Sequence[Trajectory]) -> list[float]:
    """Numbers of updates at which all of them were evaluated, ascending."""
    return sorted(set.intersection(*({s.updates for s in t.stops} for t in trajectories)))


# Over seeds


class Effect(NamedTuple):
    """One quantity of an arm, over its seeds and the prompts.

    Attributes:
        value: of the arm.
        gain: less the base's, paired by prompt.
        beyond_drift: less that of random drift of the same norm, paired; None where there is no control.
    """

    value: Interval
    gain: Interval
    beyond_drift: Interval | None


def quantities(ks: Sequence[int]) -> dict[str, Callable[[Evaluation], NDArray[np.float64]]]:
    """Values a prompt [P] whose mean is the quantity: pass@k, greedy accuracy, entropy (nats a token), length."""
    found: dict[str, Callable[[Evaluation], NDArray[np.float64]]] = {}
    for k in ks:
        found[f"pass@{k}"] = lambda e, k=k: e.per_prompt(k)  # type: ignore[misc]
    found["greedy"] = lambda e: e.greedy
    found["entropy"] = lambda e: e.entropy_values()
    found["length"] = lambda e: e.tokens / e.responses
    return found


def effects(
    stops: Sequence[Stop],
    starts: Sequence[Point],
    name: str,
    ks: Sequence[int],
    drifts: Sequence[list[list[Evaluation]]] | None = None,
) -> dict[str, Effect]:
    """Effects of an arm on one evaluation set.

    Args:
        stops: one a seed, at least 2.
        starts: the base of each.
        drifts: of each seed, the evaluations of its random draws.
    """
    found = {}
    for quantity, of in quantities(ks).items():
        here, base, drawn = values_of(stops, starts, name, of, drifts)
        beyond = None if drawn is None else crossed(here - drawn)
        found[quantity] = Effect(crossed(here), crossed(here - base), beyond)
    return found


class Values(NamedTuple):
    """One quantity of an arm, [S, P] over seeds and prompts: there, at the base, and its mean over random drifts."""

    here: NDArray[np.float64]
    base: NDArray[np.float64]
    drawn: NDArray[np.float64] | None


def values_of(
    stops: Sequence[Stop],
    starts: Sequence[Point],
    name: str,
    of: Callable[[Evaluation], NDArray[np.float64]],
    drifts: Sequence[list[list[Evaluation]]] | None = None,
) -> Values:
    """What `effects` are made of, for a quantity's values a prompt."""
    drawn = None
    if drifts is not None:
        drawn = np.stack(
            [np.mean([of(next(e for e in d if e.name == name)) for d in draws], axis=0) for draws in drifts]
        )
    here = np.stack([s.between(lambda p: of(p.sets[name])) for s in stops])
    return Values(here, np.stack([of(p.sets[name]) for p in starts]), drawn)


def learned(gains: dict[str, Effect], margin: float = MARGIN) -> bool:
    """Whether held-out pass@1 rose by the margin, its interval above the base and above random drift."""
    effect = gains["pass@1"]
    above_drift = effect.beyond_drift is not None and bool(effect.beyond_drift.lower > 0)
    return above_drift and gained(effect.gain, margin)


def gained(gain: Interval, margin: float = MARGIN) -> bool:
    """Whether pass@1 rose by the margin, its interval above the base: what can be said where drift is no control."""
    return bool(gain.lower > 0 and gain.value >= margin)


def equivalence(difference: Interval, margin: float) -> str:
    """What a difference's interval says: equal (all of it within ±margin), worse or better (beyond), or undecided."""
    if -margin < difference.lower and difference.upper < margin:
        return "equal"
    if difference.upper < -margin:
        return "worse"
    return "better" if difference.lower > margin else "undecided"


# The control


def random_drift(run: RunFolder, distance: float, draws: int = DRAWS) -> list[list[Evaluation]]:
    """Evaluations of draws of θ₀ + c ε at a relative distance from θ₀; kept in the run's folder.

    Raises:
        InputError: a distance that is negative or not finite.
    """
    if not 0 <= distance < math.inf:
        raise InputError(f"random drift needs a finite distance >= 0, not {distance}")
    kept = kept_drift(run, distance, draws)
    if kept is not None:
        return kept
    config = replace(run.config, init=None)
    world = make_world(config)
    found = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            world.save(Path(scratch) / "start")
            for i in range(draws):
                member = Member(hashed("drift", config.seed, i))
                world.apply_update([(member, 1e-3)])  # the distance is proportional to the coefficient
                coefficient = 1e-3 * distance / world.drift()
                world.load(Path(scratch) / "start")
                world.apply_update([(member, coefficient)])
                samples = config.evaluation_samples
                found.append(world.evaluate(samples, hashed("evaluation", samples)))
                world.load(Path(scratch) / "start")
    finally:
        world.close()
    write_text(_drift_file(run, distance, draws), json.dumps([[e.to_dict() for e in draw] for draw in found]) + "\n")
    return found


def kept_drift(run: RunFolder, distance: float, draws: int = DRAWS) -> list[list[Evaluation]] | None:
    """What `random_drift` has left in the run's folder, without making it; None if nothing."""
    file = _drift_file(run, distance, draws)
    if not file.is_file():
        return None
    try:
        return [[Evaluation.from_dict(e) for e in draw] for draw in json.loads(file.read_text())]
    except (ValueError, TypeError) as error:
        raise InputError(f"{file} is damaged: {error}") from error


def _drift_file(run: RunFolder, distance: float, draws: int) -> Path:
    return run.path / "drift" / f"{float(distance).hex()}-{draws}.json"


# Studies


@dataclass(frozen=True)
class Arm:
    """A method under study.

    Attributes:
        name: of the method.
        stages: configurations, one from the end of the other; seed and init are set for each run.
        seeds: runs at most, where it is worth fewer than the study has.
    """

    name: str
    stages: tuple[Config, ...]
    seeds: int | None = None


def run_arm(arm: Arm, seed: int, folder: Path, watch: Callable[[str, int, dict[str, Any]], None]) -> Trajectory:
    """All stages of an arm with one seed, in `folder/arm/seed/stage`: what is done already is left as it is."""
    stages: list[RunFolder] = []
    for number, config in enumerate(arm.stages):
        init = str(stages[-1].path) if stages else None
        path = folder / arm.name / str(seed) / str(number)
        told = f"{arm.name}/{seed}/{number}"
        config = replace(config, seed=seed, init=init)
        if not is_done(RunFolder(path), config):
            train(config, path, lambda u, m, told=told: watch(told, u, m))  # type: ignore[misc]
        stages.append(RunFolder(path))
    return Trajectory(stages)


def is_done(run: RunFolder, config: Config) -> bool:
    """Whether the folder holds this run, to its end."""
    return (run.path / "config.json").is_file() and run.config == config and run.checkpoints()[-1:] == [config.updates]
