"""What a sampled population would cost, and how precise it would be: extrapolated from a small real one."""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from esth.diversity.config import DiversityConfig
from esth.diversity.report import effective_rank, per_prompt
from esth.diversity.sampling import Progress, quiet, sample_population
from esth.errors import InputError

PILOT_PROMPTS = 6
PILOT_MEMBERS = 4
PILOT_SAMPLES = 2


@dataclass(frozen=True)
class Plan:
    """Cost and precision of a population of `config`, estimated from a pilot; seconds, GiB, nats.

    Attributes:
        seconds, gib: time after loading, and memory for weights, their one copy, and a block of distributions.
        js, standard_error: JS in the pilot, and the standard error over prompts to expect.
        population_spread: standard deviation of JS between populations of this size (L1.2); NaN if not estimable.
        target: wanted standard error, or None.
        samples, prompts, members: each alone raised to reach the target; None where that alone cannot.
    """

    config: DiversityConfig
    pilot: str
    seconds: float
    gib: float
    js: float
    standard_error: float
    population_spread: float
    target: float | None = None
    samples: int | None = None
    prompts: int | None = None
    members: int | None = None

    def lines(self) -> list[str]:
        """In words."""
        c = self.config
        out = [
            f"pilot: {self.pilot}",
            f"time: about {self.seconds:.0f} s after loading; memory: about {self.gib:.1f} GiB",
            f"JS about {self.js:.3g} nats; standard error over {c.prompts} prompts about {self.standard_error:.2g}",
        ]
        if math.isfinite(self.population_spread):
            out.append(
                f"another population of {c.members} members: JS differs by about {self.population_spread:.2g} (sd)"
            )
        if self.target is not None:
            alone = f"samples alone cannot: the spread between {c.prompts} prompts is too large"
            samples = alone if self.samples is None else f"samples = {self.samples}"
            out.append(f"for a standard error of {self.target:g}: {samples}; or prompts = {self.prompts}")
            if self.members is not None:
                out.append(f"for the same spread between populations: members = {self.members}")
        return out


def plan(
    model: str,
    config: DiversityConfig,
    target: float | None = None,
    progress: Progress = quiet,
    trust_remote_code: bool = False,
) -> Plan:
    """Run a small population of the same model, task and sigma, and extrapolate.

    Raises:
        InputError: target <= 0; or as `esth.diversity.measure`.
    """
    from esth.models import load_engine
    from esth.models.workers import Local
    from esth.noise import population

    if target is not None and not target > 0:
        raise InputError(f"a standard error to reach must be positive, not {target}")
    small = replace(
        config,
        prompts=min(config.prompts, PILOT_PROMPTS),
        members=min(config.members, PILOT_MEMBERS),
        samples=PILOT_SAMPLES,
        scored=None,
        workers=1,
        weights=None,
    )
    config.load_task()  # that there are so many problems is found out now, not after the hours it plans
    task = small.load_task()
    progress("loading the model", 0, 1, 0)
    engine = load_engine(model, config.engine, dtype=config.dtype, trust_remote_code=trust_remote_code)
    progress("loading the model", 1, 1, 0)
    started = time.monotonic()
    engine.set_member(population(config.seed, config.members, config.family, config.rank)[-1], config.sigma)
    switch = time.monotonic() - started

    clock: dict[str, list[float]] = {}

    def timed(stage: str, done: int, total: int, tokens: int) -> None:
        if stage not in ("sampling", "scoring", "center"):  # others run inside these
            return
        clock.setdefault(stage, []).append(time.monotonic())
        progress(stage, done, total, tokens)

    begun = time.monotonic()
    sample = sample_population(Local(engine), task, small, timed)
    marks = [begun, *(times[-1] for times in clock.values())]
    spent = dict(zip(clock, np.diff(marks), strict=True))

    x, n, m = small.prompts, small.members, small.samples
    tokens = float(sample.population.lengths.mean())
    # Each stage: what a member switch costs, and what is left shared out over its work.
    per_response = max(spent["sampling"] - n * switch, 0.0) / ((n + 1) * x * m)
    positions = x * n * m * tokens
    per_position = max(spent["scoring"] - n * switch, 0.0) / (n * positions)
    full_positions = config.prompts * config.members * config.scored_samples * tokens
    block = config.block_gib * 2**30 / (4 * config.members * engine.vocabulary)
    blocks = math.ceil(full_positions / max(block, 1.0))
    center_positions = config.prompts * config.scored_samples * tokens
    seconds = config.members * (switch + config.prompts * config.samples * per_response) + config.members * (
        blocks * switch + (full_positions + center_positions) * per_position + switch
    )
    weights = sum(t.end - t.begin for t in engine.checkpoint.tensors.values())
    width = {"float32": 4}.get(config.dtype, 2)
    stored = {"F32": 4, "F64": 8}.get(next(iter(engine.checkpoint.tensors.values())).dtype, 2)
    gib = (
        2 * weights * width / stored
        + min(config.block_gib * 2**30, 4 * config.members * engine.vocabulary * full_positions)
    ) / 2**30

    chain, within = per_prompt(sample, sample.population.chain)
    response_variance = float(np.mean(within**2)) * n * m
    between = max(float(chain.var(ddof=1)) - response_variance / (n * m), 0.0) if x > 1 else 0.0
    a_prompt = between + response_variance / (config.members * max(config.scored_samples, 1))
    js = float(chain.mean())
    forms = sample.center.forms
    rank = (
        effective_rank(forms.mean(0))
        if config.family == "gaussian" and n > 2 and np.isfinite(forms).all()
        else math.nan
    )
    many = config.members > 1
    spread = js * math.sqrt(2.0 / ((config.members - 1) * rank)) if many else math.nan
    needed: dict[str, int | None] = {}
    if target is not None:
        left = target**2 * config.prompts - between
        needed["samples"] = max(2, math.ceil(response_variance / (config.members * left))) if left > 0 else None
        needed["prompts"] = max(1, math.ceil(a_prompt / target**2))
        needed["members"] = 1 + math.ceil(2.0 * js**2 / (rank * target**2)) if math.isfinite(rank) else None
    about = (
        f"{x} prompts × {n} members × {m} responses in {time.monotonic() - begun:.0f} s; {tokens:.1f} tokens a response"
    )
    return Plan(config, about, float(seconds), gib, js, math.sqrt(a_prompt / config.prompts), spread, target, **needed)
