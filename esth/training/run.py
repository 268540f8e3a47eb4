"""The one loop: a run is its configuration and a folder, and goes on from whatever the folder holds.

    from esth.training import ESConfig, train
    run = train(ESConfig(model="tiny-3", sigma=0.01, updates=100), Path("run"))
    for point in run.points():
        print(point.update, point.sets["held-out"].pass_at(16))

Every update is a function of the center and of its number, so a run that was killed and one that was not end in the
same weights to the bit: in float32, on one engine, with the same number of threads. ES replays its log from the newest
checkpoint; GRPO does again what came after it.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from esth.diversity.sampling import versions
from esth.errors import InputError, require
from esth.noise import hashed
from esth.training import es
from esth.training.config import ESConfig, GRPOConfig, TrainConfig
from esth.training.folder import Point, RunFolder
from esth.training.memory import forget_peak, peak_memory
from esth.training.worlds import DifferentiableWorld, Spent, World

if TYPE_CHECKING:
    from esth.training.real_world import RealWorld

Watch = Callable[[int, dict[str, Any]], None]
"""watch(updates done, metrics of the last)."""


def ignore(update: int, metrics: dict[str, Any]) -> None:
    """No one watches."""


def make_world(config: ESConfig | GRPOConfig) -> World:
    """The world of a configuration, its center where the run starts; TRL keeps weights in float32 whatever the dtype.

    Raises:
        InputError, MissingExtra: whatever is wrong with the model, the task or the run named by `init`.
    """
    config = replace(config, dtype="float32") if by_trl(config) else config
    require("torch", "llm").set_num_threads(config.threads)
    world: World
    if config.world == "toy":
        from esth.training.toy_world import ToyWorld

        world = ToyWorld(config)
    elif config.world == "tiny":
        from esth.training.tiny_world import TinyWorld

        world = TinyWorld(config)
    else:
        from esth.training.real_world import RealWorld

        world = RealWorld(config)
    try:
        if config.init is not None:
            _take_over(world, config, RunFolder(Path(config.init)))
    except BaseException:
        world.close()
        raise
    return world


def by_trl(config: TrainConfig) -> bool:
    """Whether TRL makes the updates."""
    return isinstance(config, GRPOConfig) and config.world == "real"


def _take_over(world: World, config: TrainConfig, before: RunFolder) -> None:
    """Start from the last center of another run, which began from the same model: drift and decay refer to its θ₀."""
    center = last_center(before)
    if before.identity.get("weights") != world.identity.get("weights"):
        raise InputError(
            f"init: {before.path} began from other weights ({before.config.model}) than {config.model} has"
        )
    world.load(center)


def last_center(run: RunFolder) -> Path:
    """The folder of a run's last center.

    Raises:
        InputError: no run, or none of its centers is kept.
    """
    run.config  # noqa: B018  says what is wrong
    kept = run.checkpoints()
    if not kept:
        raise InputError(f"{run.path} has no checkpoint yet")
    return run.checkpoint(kept[-1])


def train(config: ESConfig | GRPOConfig, folder: Path, watch: Watch = ignore) -> RunFolder:
    """Run to the end, from wherever the folder stands.

    Raises:
        InputError: the folder holds another run; whatever is wrong with model and task; a disk that is full.
    """
    run = RunFolder(folder)
    forget_peak()
    world = make_world(config)
    try:
        if by_trl(config):
            check_trl(cast("RealWorld", world), cast(GRPOConfig, config))
        run.begin(config, start_of(world, config))
        if isinstance(config, ESConfig):
            loop(ESLearner(world, config, run), watch)
        elif by_trl(config):
            train_by_trl(cast("RealWorld", world), config, run, watch)
        else:
            loop(GRPOLearner(world, config, run), watch)
    finally:
        world.close()
    return run


def start_of(world: World, config: ESConfig | GRPOConfig) -> dict[str, Any]:
    """What a run started from: weights, problems, the run before, versions."""
    before = RunFolder(Path(config.init)) if config.init is not None else None
    init = None if before is None else before.digest(before.checkpoints()[-1])
    return {**world.identity, "init": init, "versions": versions()}


class Learner(Protocol):
    """A method in a world, and the folder of its run."""

    world: World
    config: ESConfig | GRPOConfig
    run: RunFolder

    def resume(self) -> int:
        """Take up the newest checkpoint; how many updates it has had."""
        ...

    def update(self, number: int) -> dict[str, Any] | None:
        """Make update `number` happen (1, 2, …); its metrics, or None if it was only done again."""
        ...

    def save(self, number: int) -> None:
        """Keep a checkpoint."""
        ...


class ESLearner(Learner):
    """ES: an update has happened when it is in the log, and is done again from there."""

    def __init__(self, world: World, config: ESConfig, run: RunFolder) -> None:
        self.world, self.config, self.run = world, config, run
        self.log = run.log()
        run.keep_metrics(len(self.log))

    def resume(self) -> int:
        return load_newest(self.world, self.run, len(self.log))

    def update(self, number: int) -> dict[str, Any] | None:
        assert isinstance(self.config, ESConfig)
        if number <= len(self.log):
            self.world.apply_update(self.log[number - 1], self.config.decay)
            return None
        start = time.perf_counter()
        step = es.step(self.world, self.config, number)
        metrics = {"update": number, **es.metrics(step), **asdict(step.rewards.spent)}
        self.world.apply_update(step.update, self.config.decay)  # first, since it may overflow
        metrics["seconds"] = time.perf_counter() - start
        self.run.add_metrics(metrics)
        self.run.add_update(number, step.update)
        return metrics

    def save(self, number: int) -> None:
        self.run.save(number, self.world.save)


class GRPOLearner(Learner):
    """Our own GRPO: an update has happened when a checkpoint holds it."""

    def __init__(self, world: World, config: GRPOConfig, run: RunFolder) -> None:
        from esth.training.grpo import GRPO

        self.world, self.config, self.run = world, config, run
        self.grpo = GRPO(cast(DifferentiableWorld, world), config)

    def resume(self) -> int:
        from safetensors.torch import load_file

        done = load_newest(self.world, self.run, None)
        self.run.keep_metrics(done)
        if done > 0:
            self.grpo.load_state(load_file(self.run.checkpoint(done) / "optimizer.safetensors"))
        return done

    def update(self, number: int) -> dict[str, Any] | None:
        start = time.perf_counter()
        metrics = {"update": number, **self.grpo.step(number), "seconds": time.perf_counter() - start}
        self.run.add_metrics(metrics)
        return metrics

    def save(self, number: int) -> None:
        from safetensors.torch import save_file

        def write(folder: Path) -> None:
            self.world.save(folder)
            save_file(self.grpo.state(), folder / "optimizer.safetensors")

        self.run.save(number, write)


def check_trl(world: "RealWorld", config: GRPOConfig) -> None:
    """Raise InputError for what TRL does not do."""
    from esth.models.workers import Local
    from esth.training import trl_grpo

    assert isinstance(world.workers, Local)
    trl_grpo.check(config, cast(Any, world.workers.engine), world.training.task)


def train_by_trl(world: "RealWorld", config: GRPOConfig, run: RunFolder, watch: Watch) -> None:
    """GRPO of a language model: TRL has the loop and its own checkpoints, in the folder `trl`."""
    from esth.models.workers import Local
    from esth.training import trl_grpo

    assert isinstance(world.workers, Local)
    own = run.path / "trl"
    last = trl_grpo.last_checkpoint(own)
    run.keep_metrics(0 if last is None else trl_grpo.update_of(last, config) or 0)
    evaluate(world, config, run, 0)

    def done(update: int, metrics: dict[str, Any]) -> None:
        run.add_metrics(metrics)
        watch(update, metrics)
        if is_evaluated(config, update):
            evaluate(world, config, run, update)

    if run.checkpoints()[-1:] != [config.updates]:
        trl_grpo.train(config, cast(Any, world.workers.engine), world.training.task, own, on_update=done, resume=True)
        run.save(config.updates, world.save)


def load_newest(world: World, run: RunFolder, most: int | None) -> int:
    """Make the newest checkpoint the center; how many updates it has had, 0 if there is none.

    Raises:
        InputError: a checkpoint that does not belong to the log.
    """
    kept = run.checkpoints()
    if not kept:
        return 0
    if most is not None and kept[-1] > most:
        raise InputError(f"{run.path}: checkpoint {kept[-1]} does not belong to its log of {most} updates")
    world.load(run.checkpoint(kept[-1]))
    return kept[-1]


def loop(learner: Learner, watch: Watch) -> None:
    """Updates, evaluations and checkpoints until the run is over; what is there already is left as it is."""
    world, config, run = learner.world, learner.config, learner.run
    done = learner.resume()
    if done == 0:
        evaluate(world, config, run, 0)
    for number in range(done + 1, config.updates + 1):
        metrics = learner.update(number)
        if metrics is not None:
            watch(number, metrics)
        if is_evaluated(config, number):
            evaluate(world, config, run, number)
        if number == config.updates or number % config.save_every == 0:
            learner.save(number)


def is_evaluated(config: TrainConfig, number: int) -> bool:
    """Whether the center after so many updates is evaluated."""
    return number == config.updates or (config.evaluate_every > 0 and number % config.evaluate_every == 0)


def evaluate(world: World, config: TrainConfig, run: RunFolder, number: int) -> None:
    """Evaluate the center, unless the folder has it."""
    if run.has_point(number):
        return
    sets = world.evaluate(config.evaluation_samples, hashed("evaluation", config.evaluation_samples))
    spent, seconds = spent_until(run, number)
    peak = max([peak_memory(), *(p.peak_memory for p in run.points())])
    run.add_point(Point(number, world.drift(), spent, seconds, peak, {e.name: e for e in sets}))


def spent_until(run: RunFolder, number: int) -> tuple[Spent, float]:
    """What the updates up to `number` have cost, those of the runs before (`init`) too, and their seconds.

    Of a run before, the updates of the center that was taken over: it need not have been evaluated, nor be its end.
    """
    total, seconds = Spent(), 0.0
    if run.config.init is not None:
        before = RunFolder(Path(run.config.init))
        total, seconds = spent_until(before, before.checkpoints()[-1])
    names = list(asdict(total))
    for line in run.metrics():
        if line["update"] <= number:
            total = total + Spent(**{name: line[name] for name in names})
            seconds += line["seconds"]
    return total, seconds


def rebuild(run: RunFolder, update: int, folder: Path) -> None:
    """Write the center of an ES run after `update` updates, from where it started and the log alone.

    Raises:
        InputError: not an ES run, an update that the log does not have, a start that is another now.
    """
    config = run.config
    if not isinstance(config, ESConfig):
        raise InputError(f"{run.path} is a run of {config.method}: only ES keeps a log that rebuilds centers")
    log = run.log()
    if not 0 <= update <= len(log):
        raise InputError(f"{run.path} has {len(log)} updates: there is no center {update}")
    world = make_world(config)
    try:
        now, then = start_of(world, config), run.identity
        other = [k for k in then if k != "versions" and now.get(k) != then[k]]
        if other:
            raise InputError(f"{run.path} started from another {other[0]} than there is now")
        for terms in log[:update]:
            world.apply_update(terms, config.decay)
        world.save(folder)
    finally:
        world.close()
