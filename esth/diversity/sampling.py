"""Sampling a population around a checkpoint and scoring every response under every member."""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from esth._threads import side_by_side
from esth.divergence import log_softmax
from esth.diversity.config import DiversityConfig
from esth.diversity.journal import Journal
from esth.errors import InputError, require
from esth.estimators import js
from esth.fisher import categorical_variance
from esth.lemmas import fisher_rate
from esth.models.workers import Local
from esth.noise import GENERATOR, Direction, hashed, population
from esth.sample import Center, Floats, Population, PopulationSample

if TYPE_CHECKING:
    from esth.models.checkpoint import Checkpoint
    from esth.models.engine import Engine, Response, Sampling
    from esth.models.workers import Workers
    from esth.tasks.task import Task

ROUNDING_FLOOR = 1e-10
"""JS in nats a token below which float32 logits show their rounding, not a diversity."""

DERIVATIVE_STEP = 0.25
"""The logits' derivative along a member's noise is a finite difference at this share of sigma: small enough that the
second derivative enters with a sixteenth of its weight in the member itself, large enough for float32."""


Progress = Callable[[str, int, int, int], None]
"""Called with (stage, steps done, steps in all, tokens processed since the last call)."""


def quiet(stage: str, done: int, total: int, tokens: int) -> None:
    """No progress shown."""


@dataclass
class Spoken:
    """Responses of one speaker, flat, in the order prompt, sample."""

    prompt: list[int] = field(default_factory=list)
    member: list[int] = field(default_factory=list)
    sample: list[int] = field(default_factory=list)
    response: list["Response"] = field(default_factory=list)

    def add(self, member: int, grid: Sequence[Sequence["Response"]]) -> None:
        """Enter what a member said: responses by prompt and sample."""
        for x, row in enumerate(grid):
            for s, response in enumerate(row):
                self.prompt.append(x)
                self.member.append(member)
                self.sample.append(s)
                self.response.append(response)

    def sorted(self) -> "Spoken":
        """By prompt: a block's responses then share the keys and values of few prompts."""
        return self.pick(
            sorted(range(len(self.prompt)), key=lambda r: (self.prompt[r], self.member[r], self.sample[r]))
        )

    def columns(self, checkpoint: "Checkpoint", task: "Task") -> dict[str, Any]:
        """The columns of esth.sample.Responses."""
        text = [checkpoint.decode(r.tokens) for r in self.response]
        return {
            "prompt": np.array(self.prompt, dtype=np.int64),
            "member": np.array(self.member, dtype=np.int64),
            "sample": np.array(self.sample, dtype=np.int64),
            "tokens": [list(r.tokens) for r in self.response],
            "text": text,
            "truncated": np.array([r.truncated for r in self.response], dtype=np.bool_),
            "reward": np.array([_reward(task, t, x) for t, x in zip(text, self.prompt, strict=True)], dtype=np.float64),
        }

    def pick(self, rows: Sequence[int]) -> "Spoken":
        """Some of the responses."""
        return Spoken(*([getattr(self, name)[r] for r in rows] for name in ("prompt", "member", "sample", "response")))

    def scored(self, samples: int) -> list[int]:
        """Rows of the first `samples` tries."""
        return [r for r, s in enumerate(self.sample) if s < samples]

    def blocks(self, positions: int) -> Iterator[slice]:
        """Consecutive responses of at most `positions` tokens together, at least one response."""
        start = tokens = 0
        for r, response in enumerate(self.response):
            if r > start and tokens + len(response.tokens) > positions:
                yield slice(start, r)
                start, tokens = r, 0
            tokens += len(response.tokens)
        yield slice(start, len(self.response))


def _reward(task: "Task", text: str, prompt: int) -> float:
    problem = task.problems[prompt]
    return float(task.verify(text, problem)) if problem.answer else math.nan


def sample_population(
    workers: "Workers",
    task: "Task",
    config: DiversityConfig,
    progress: Progress = quiet,
    journal: Journal | None = None,
    directions: Sequence[Direction] | None = None,
) -> PopulationSample:
    """Sample a population around the workers' center and score its responses under every member.

    Args:
        workers: hold the center; they are the center again afterwards.
        task: its problems are the prompts.
        journal: keeps what is done, so that an interrupted call goes on where it stopped.
        directions: of the members, `config.members` of them, in place of the population that the seed names.

    Raises:
        InputError: a prompt that does not fit the context, or members that all behave alike (no diversity to measure)
            or break down to NaN.
    """
    from esth.tasks.task import encode

    started = time.monotonic()
    given = directions
    if directions is None:
        directions = population(config.seed, config.members, config.family, config.rank)
    if len(directions) != config.members:
        raise InputError(f"{len(directions)} directions for {config.members} members")
    journal = Journal(None) if journal is None else journal
    prompts = [encode(workers.checkpoint.tokenizer, p) for p in task.problems]
    sampling = config.sampling(task.max_tokens)
    jobs = Jobs(prompts, list(directions), config, sampling, progress if isinstance(workers, Local) else quiet)

    said, center = _speak(workers, jobs, progress, journal)
    scored = _reduce(workers, jobs, "scoring", said, progress, journal)
    forms = _reduce(workers, jobs, "center", center, progress, journal)
    workers.restore()
    _check_diverse(said, scored, config)
    settings = {
        **identify(workers.checkpoint, task, config, given),
        "workers": config.workers,
        "model": workers.checkpoint.name,
        "task_name": task.name,
        "derivative_step": DERIVATIVE_STEP,
        "versions": versions(),
        "seconds": round(time.monotonic() - started, 1),
    }
    return PopulationSample(
        settings,
        config.weight_vector(),
        [p.prompt for p in task.problems],
        [p.answer for p in task.problems],
        Population(**said.columns(workers.checkpoint, task), **scored),
        Center(**center.columns(workers.checkpoint, task), **forms),
    )


def identify(
    checkpoint: "Checkpoint", task: "Task", config: DiversityConfig, directions: Sequence[Direction] | None = None
) -> dict[str, Any]:
    """What a sample's numbers depend on, as JSON types: two of one identity are the same sample."""
    from esth.tasks.task import encode

    problems = [(encode(checkpoint.tokenizer, p), p.answer, list(p.choices), list(p.numbers)) for p in task.problems]
    identity = {
        **asdict(config),
        "scored": config.scored_samples,
        "max_tokens": config.sampling(task.max_tokens).max_tokens,
        "fingerprint": checkpoint.fingerprint,
        "problems": f"{hashed(json.dumps(problems)):016x}",
        "generator": GENERATOR,
    }
    del identity["workers"]  # the numbers do not depend on it
    return identity if directions is None else identity | {"directions": [str(d) for d in directions]}


def _check_diverse(said: Spoken, scored: dict[str, Floats], config: DiversityConfig) -> None:
    """Refuse members that broke down, or do not differ: neither is a diversity of 0."""
    chain = scored["chain"][said.scored(config.scored_samples)]
    if not np.isfinite(chain).all():
        raise InputError(
            f"members at sigma = {config.sigma:g} break down to NaN: take a smaller sigma or a wider dtype"
        )
    tokens = sum(len(said.response[r].tokens) for r in said.scored(config.scored_samples))
    if len(chain) > 0 and np.count_nonzero(config.weight_vector()) > 1 and chain.sum() <= ROUNDING_FLOOR * tokens:
        raise InputError(
            f"members at sigma = {config.sigma:g} do not differ beyond rounding ({ROUNDING_FLOOR:g} nats a token): "
            "sigma is too small, or so large that all are broken alike, or the temperature is 0"
        )


def _speak(workers: "Workers", jobs: "Jobs", progress: Progress, journal: Journal) -> tuple[Spoken, Spoken]:
    """What the members and the center say, each by prompt."""
    count = len(jobs.prompts)
    grids = {i: journal.responses(f"said-{i}", count) for i in range(-1, len(jobs.directions))}
    missing = [i for i, grid in grids.items() if grid is None]
    done = len(grids) - len(missing)
    for k, grid in workers.map(jobs.speak, missing):
        grids[missing[k]] = journal.keep_responses(f"said-{missing[k]}", grid)
        done += 1
        progress("sampling", done, len(grids), sum(len(r.tokens) for row in grid for r in row))
    said, center = Spoken(), Spoken()
    for i, found in grids.items():
        (said if i >= 0 else center).add(i, found or [])
    return said.sorted(), center.sorted()


def _reduce(
    workers: "Workers", jobs: "Jobs", stage: str, said: Spoken, progress: Progress, journal: Journal
) -> dict[str, Any]:
    """Columns of all responses, NaN where one is not scored, from blocks of distributions that fit the memory."""
    population_ = stage == "scoring"
    n = len(jobs.directions)
    rows = said.scored(jobs.config.scored_samples if population_ or jobs.config.smooth else 0)
    shapes = {"scores": n, "rb": 0, "chain": 0, "lower": 0, "upper": 0} if population_ else {"rate": 0, "forms": n}
    columns = {k: np.full((len(said.response), v) if v else len(said.response), np.nan) for k, v in shapes.items()}
    if not rows:
        return columns
    width = n if population_ else n + 1
    used = said.pick(rows)
    positions = jobs.positions(workers.vocabulary, width)
    parts = [used.pick(range(part.start, part.stop)) for part in used.blocks(positions)]
    found = {b: journal.get(f"{stage}-{b}") for b in range(len(parts))}
    missing = [b for b, block in found.items() if block is None]
    done = len(parts) - len(missing)
    work = jobs.population_block if population_ else jobs.center_block
    for k, block in workers.map(work, [parts[b] for b in missing]):
        found[missing[k]] = journal.put(f"{stage}-{missing[k]}", block)
        done += 1
        progress(stage, done, len(parts), sum(len(r.tokens) for r in parts[missing[k]].response))
    for name, column in columns.items():
        column[rows] = np.concatenate([block[name] for block in found.values() if block is not None])
    return columns


@dataclass
class Jobs:
    """What the engines do, each a function of the center and its argument alone, so that any engine may do it.

    Responses are reduced to one row each, blocks of next-token distributions at a time.
    """

    prompts: list[list[int]]
    directions: list[Direction]
    config: DiversityConfig
    sampling: "Sampling"
    progress: Progress = quiet

    def speak(self, engine: "Engine", member: int) -> list[list["Response"]]:
        """What one member says, the center if −1: [prompt][sample]."""
        self._become(engine, member, self.config.sigma)
        return engine.sample(self.prompts, self.config.samples, self.sampling, self.config.seed)

    def _become(self, engine: "Engine", member: int, sigma: float) -> None:
        if member < 0:
            engine.restore()
        else:
            engine.set_member(self.directions[member], sigma)

    def positions(self, vocabulary: int, width: int) -> int:
        """Positions whose next-token distributions under `width` speakers fit the memory."""
        return max(1, int(self.config.block_gib * 2**30 / (4 * width * vocabulary)))

    def population_block(self, engine: "Engine", said: Spoken) -> dict[str, Floats]:
        """Columns scores [R, N], rb, chain, lower, upper [R]."""
        torch = require("torch", "llm")
        n = len(self.directions)
        weights = torch.tensor(self.config.weight_vector(), dtype=torch.float64)
        columns: dict[str, Floats] = {"scores": np.zeros((len(said.response), n))}
        for part, heads in self._windows(said, self.positions(engine.vocabulary, n)):
            logits = self._logits(engine, part, heads, range(n), self.config.sigma)
            tokens = torch.tensor([t for r in part.response for t in r.tokens], device=logits.device)
            lengths = [len(r.tokens) for r in part.response]
            speaker = torch.repeat_interleave(torch.tensor(part.member), torch.tensor(lengths)).to(logits.device)
            pieces = self._pieces(logits)
            token_scores = side_by_side(partial(_token_scores, logits, tokens), pieces)
            by_response = torch.cat(token_scores).double().cpu().split(lengths)
            # The members' posterior at the window's begin is what their weights are there.
            prior = js.log_posterior(torch.from_numpy(columns["scores"]), weights).exp()
            posterior = torch.cat([js.prefix_log_posterior(s, w) for s, w in zip(by_response, prior, strict=True)])
            posterior = posterior.to(logits.dtype).to(logits.device)
            terms = side_by_side(partial(_terms, logits, posterior, speaker), pieces)
            columns["scores"] = columns["scores"] + torch.stack([s.sum(0) for s in by_response]).numpy()
            for name in ("rb", "chain", "lower", "upper"):
                columns[name] = columns.get(name, 0.0) + _sums([getattr(t, name) for t in terms], lengths)
        return columns

    def center_block(self, engine: "Engine", said: Spoken) -> dict[str, Floats]:
        """Columns rate [C], forms [C, N]; they need a policy of full support (L1)."""
        torch = require("torch", "llm")
        speakers = [*range(len(self.directions)), -1]
        columns: dict[str, Floats] = {}
        for part, heads in self._windows(said, self.positions(engine.vocabulary, len(speakers))):
            logits = self._logits(engine, part, heads, speakers, DERIVATIVE_STEP * self.config.sigma)
            weights = torch.tensor(self.config.weight_vector(), dtype=logits.dtype, device=logits.device)
            found = side_by_side(partial(_directional, logits, weights, self.config.sigma), self._pieces(logits))
            lengths = [len(r.tokens) for r in part.response]
            for name, values in zip(("rate", "forms"), zip(*found, strict=True), strict=True):
                columns[name] = columns.get(name, 0.0) + _sums(list(values), lengths)
        return columns

    def _windows(self, said: Spoken, positions: int) -> Iterator[tuple[Spoken, Mapping[int, list[int]]]]:
        """A block and its prompts; or a response too long for the memory in parts, each after what stands before it."""
        if len(said.response) > 1 or len(said.response[0].tokens) <= positions:
            yield said, dict(enumerate(self.prompts))
            return
        (x,), (whole,) = said.prompt, said.response
        for start in range(0, len(whole.tokens), positions):
            window = replace(whole, tokens=whole.tokens[start : start + positions])
            yield replace(said, response=[window]), {x: [*self.prompts[x], *whole.tokens[:start]]}

    def _logits(
        self,
        engine: "Engine",
        said: Spoken,
        heads: Mapping[int, list[int]],
        speakers: Sequence[int],
        sigma: float,
    ) -> Any:
        """[positions, speakers, V]: a member is set once, not once a response."""
        torch = require("torch", "llm")
        used = sorted(set(said.prompt))
        prompts = [heads[x] for x in used]
        grouped = [[r for r, x in zip(said.response, said.prompt, strict=True) if x == y] for y in used]
        positions = sum(len(r.tokens) for r in said.response)
        logits = None
        for j, member in enumerate(speakers):
            self._become(engine, member, sigma)
            rows = engine.next_token_logits(prompts, grouped, self.sampling)
            if logits is None:
                logits = torch.empty((positions, len(speakers), rows.shape[-1]), dtype=rows.dtype, device=rows.device)
            logits[:, j] = rows
            self.progress("forward passes of a block", j + 1, len(speakers), positions)
        return logits

    def _pieces(self, logits: Any) -> list[slice]:
        """Positions whose distributions stay near the processor's cache while they are reduced."""
        size = max(1, js.BLOCK // (logits.shape[1] * logits.shape[2]))
        return [slice(i, i + size) for i in range(0, logits.shape[0], size)]


def _token_scores(logits: Any, tokens: Any, i: slice) -> Any:
    return js.token_scores(logits[i], tokens[i])


def _terms(logits: Any, posterior: Any, speaker: Any, i: slice) -> js.Terms:
    return js.position_terms(logits[i], posterior[i], speaker[i])


def _directional(logits: Any, weights: Any, sigma: float, i: slice) -> tuple[Any, Any]:
    """Terms of `Center.rate` and `Center.forms`; the center's logits stand behind the members'."""
    log_p = log_softmax(logits[i, -1])
    # Derivatives of logits up to a constant a row, which no variance sees.
    derivative = (logits[i, :-1] - logits[i, -1:]) / DERIVATIVE_STEP
    rate = fisher_rate.predict_population(log_p, derivative, weights)
    return rate, categorical_variance(log_p[:, None, :], derivative) / sigma**2


def _sums(pieces: list[Any], lengths: list[int]) -> Floats:
    """Sums over each response's positions of values [positions, …] that come in pieces: -> [R, …]."""
    torch = require("torch", "llm")
    return np.stack([s.sum(0).numpy() for s in torch.cat(pieces).double().cpu().split(lengths)])


def versions() -> dict[str, str]:
    """Versions of what a number depends on."""
    found = {"python": platform.python_version()}
    for name in ("esth", "numpy", "scipy", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
