"""Sampling a population around a checkpoint and scoring every response under every member."""

import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from esth.divergence import log_softmax
from esth.diversity.config import DiversityConfig
from esth.diversity.journal import Journal
from esth.errors import InputError, require
from esth.estimators import js
from esth.fisher import categorical_variance
from esth.lemmas import fisher_rate
from esth.noise import GENERATOR, Member, population
from esth.sample import Center, Floats, Population, PopulationSample

if TYPE_CHECKING:
    from esth.models.engine import Engine, Response, Sampling
    from esth.tasks.task import Task

T = TypeVar("T")

ROUNDING_FLOOR = 1e-10
"""JS in nats a token below which float32 logits show their rounding, not a diversity."""

DERIVATIVE_STEP = 0.25
"""The logits' derivative along a member's noise is a finite difference at this share of sigma: small enough that the
second derivative enters with a sixteenth of its weight in the member itself, large enough for float32."""


Show = Callable[[int, int], None]
"""Called with (members done in this block, tokens processed since the last call)."""

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
        for x, row in enumerate(grid):
            for s, response in enumerate(row):
                self.prompt.append(x)
                self.member.append(member)
                self.sample.append(s)
                self.response.append(response)

    def sorted(self) -> "Spoken":
        """By prompt: a block's responses then share the keys and values of few prompts."""
        order = sorted(range(len(self.prompt)), key=lambda r: (self.prompt[r], self.member[r], self.sample[r]))
        return Spoken(*([getattr(self, name)[r] for r in order] for name in ("prompt", "member", "sample", "response")))

    def columns(self, engine: "Engine", task: "Task") -> dict[str, Any]:
        """The columns of esth.sample.Responses."""
        text = [engine.checkpoint.decode(r.tokens) for r in self.response]
        return {
            "prompt": np.array(self.prompt, dtype=np.int64),
            "member": np.array(self.member, dtype=np.int64),
            "sample": np.array(self.sample, dtype=np.int64),
            "tokens": [list(r.tokens) for r in self.response],
            "text": text,
            "truncated": np.array([r.truncated for r in self.response], dtype=np.bool_),
            "reward": np.array([_reward(task, t, x) for t, x in zip(text, self.prompt, strict=True)], dtype=np.float64),
        }

    def part(self, rows: slice) -> "Spoken":
        """Some of the responses."""
        return Spoken(self.prompt[rows], self.member[rows], self.sample[rows], self.response[rows])

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
    engine: "Engine",
    task: "Task",
    config: DiversityConfig,
    progress: Progress = quiet,
    journal: Journal | None = None,
) -> PopulationSample:
    """Sample a population around the engine's center and score every response under every member.

    Args:
        engine: holds the center; it is the center again afterwards.
        task: its problems are the prompts.
        journal: keeps what is done, so that an interrupted call goes on where it stopped.

    Raises:
        InputError: a prompt that does not fit the context, or members that all behave alike (no diversity to measure)
            or break down to NaN.
    """
    from esth.tasks.task import encode

    started = time.monotonic()
    prompts = [encode(engine.checkpoint.tokenizer, p) for p in task.problems]
    members = population(config.seed, config.members, config.family, config.rank)
    sampling = config.sampling(task.max_tokens)
    journal = Journal(None) if journal is None else journal

    said, center = Spoken(), Spoken()
    for i in range(-1, len(members)):
        grid = journal.responses(f"said-{i}", len(prompts))
        if grid is None:
            if i < 0:
                engine.restore()
            else:
                engine.set_member(members[i], config.sigma)
            grid = journal.keep_responses(f"said-{i}", engine.sample(prompts, config.samples, sampling, config.seed))
        (said if i >= 0 else center).add(i, grid)
        progress("sampling", i + 2, len(members) + 1, sum(len(r.tokens) for row in grid for r in row))
    said, center = said.sorted(), center.sorted()

    scorer = Scorer(engine, prompts, members, config, sampling, progress, journal)
    scored, forms = scorer.population(said), scorer.center(center)
    engine.restore()
    if not np.isfinite(scored["chain"]).all():
        raise InputError(
            f"members at sigma = {config.sigma:g} break down to NaN: take a smaller sigma or a wider dtype"
        )
    tokens = sum(len(r.tokens) for r in said.response)
    if np.count_nonzero(config.weight_vector()) > 1 and scored["chain"].sum() <= ROUNDING_FLOOR * tokens:
        raise InputError(
            f"members at sigma = {config.sigma:g} do not differ beyond rounding ({ROUNDING_FLOOR:g} nats a token): "
            "sigma is too small, or so large that all are broken alike, or the temperature is 0"
        )
    settings = {
        **asdict(config),
        "max_tokens": sampling.max_tokens,
        "model": engine.checkpoint.name,
        "fingerprint": engine.checkpoint.fingerprint,
        "task_name": task.name,
        "split": task.split,
        "generator": GENERATOR,
        "derivative_step": DERIVATIVE_STEP,
        "versions": versions(),
        "seconds": round(time.monotonic() - started, 1),
    }
    return PopulationSample(
        settings,
        config.weight_vector(),
        [p.prompt for p in task.problems],
        [p.answer for p in task.problems],
        Population(**said.columns(engine, task), **scored),
        Center(**center.columns(engine, task), **forms),
    )


@dataclass
class Scorer:
    """Next-token distributions of blocks of responses under all members, reduced to one row a response."""

    engine: "Engine"
    prompts: list[list[int]]
    members: list[Member]
    config: DiversityConfig
    sampling: "Sampling"
    progress: Progress
    journal: Journal

    def population(self, said: Spoken) -> dict[str, Any]:
        """Columns scores [R, N], rb, chain, lower, upper [R]."""
        return self._by_block("scoring", said, len(self.members), self._population_block)

    def center(self, said: Spoken) -> dict[str, Any]:
        """Columns rate [C], forms [C, N]; NaN where the sampled policy has not full support (L1 does not apply)."""
        if self.config.smooth:
            return self._by_block("center", said, len(self.members) + 1, self._center_block)
        count = len(said.response)
        return {"rate": np.full(count, np.nan), "forms": np.full((count, len(self.members)), np.nan)}

    def _by_block(
        self, stage: str, said: Spoken, width: int, reduce: Callable[[Spoken, Show], dict[str, Floats]]
    ) -> dict[str, Any]:
        """Blocks that fit the memory, each taken from the journal if it was done before."""
        row_bytes = 4 * width * self.engine.vocabulary
        parts = list(said.blocks(max(1, int(self.config.block_gib * 2**30 / row_bytes))))
        columns = []
        for b, part in enumerate(parts):

            def show(done: int, tokens: int, b: int = b) -> None:
                self.progress(stage, b * width + done, len(parts) * width, tokens)

            name = f"{stage}-{b}"
            stored = self.journal.get(name)
            columns.append(self.journal.put(name, reduce(said.part(part), show)) if stored is None else stored)
            show(width, 0)
        return {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}

    def _population_block(self, said: Spoken, show: Show) -> dict[str, Floats]:
        torch = require("torch", "llm")
        weights = torch.tensor(self.config.weight_vector(), dtype=torch.float64)
        logits = self._logits(said, self.config.sigma, len(self.members), show)
        tokens = torch.tensor([t for r in said.response for t in r.tokens], device=logits.device)
        lengths = [len(r.tokens) for r in said.response]
        speaker = torch.repeat_interleave(torch.tensor(said.member), torch.tensor(lengths)).to(logits.device)
        pieces = self._pieces(logits)
        token_scores = _side_by_side(lambda i: js.token_scores(logits[i], tokens[i]), pieces)
        by_response = torch.cat(token_scores).double().cpu().split(lengths)
        posterior = torch.cat([js.prefix_log_posterior(s, weights) for s in by_response])
        posterior = posterior.to(logits.dtype).to(logits.device)
        terms = _side_by_side(lambda i: js.position_terms(logits[i], posterior[i], speaker[i]), pieces)
        columns = {"scores": torch.stack([s.sum(0) for s in by_response]).numpy()}
        for name in ("rb", "chain", "lower", "upper"):
            columns[name] = _sums([getattr(t, name) for t in terms], lengths)
        return columns

    def _center_block(self, said: Spoken, show: Show) -> dict[str, Floats]:
        torch = require("torch", "llm")
        logits = self._logits(said, DERIVATIVE_STEP * self.config.sigma, len(self.members) + 1, show)
        weights = torch.tensor(self.config.weight_vector(), dtype=logits.dtype, device=logits.device)

        def directional(i: slice) -> tuple[Any, Any]:
            log_p = log_softmax(logits[i, -1])
            # Derivatives of logits up to a constant a row, which no variance sees.
            derivative = (logits[i, :-1] - logits[i, -1:]) / DERIVATIVE_STEP
            rate = fisher_rate.predict_population(log_p, derivative, weights)
            return rate, categorical_variance(log_p[:, None, :], derivative) / self.config.sigma**2

        rates, forms = zip(*_side_by_side(directional, self._pieces(logits)), strict=True)
        lengths = [len(r.tokens) for r in said.response]
        return {"rate": _sums(list(rates), lengths), "forms": _sums(list(forms), lengths)}

    def _logits(self, said: Spoken, sigma: float, width: int, show: Show) -> Any:
        """[positions, members (then the center, if `width` has room), V]: a member is set once, not once a response."""
        torch = require("torch", "llm")
        used = sorted(set(said.prompt))
        prompts = [self.prompts[x] for x in used]
        grouped = [[r for r, x in zip(said.response, said.prompt, strict=True) if x == y] for y in used]
        positions = sum(len(r.tokens) for r in said.response)
        logits = None
        for j in range(width):
            if j < len(self.members):
                self.engine.set_member(self.members[j], sigma)
            else:
                self.engine.restore()
            rows = self.engine.next_token_logits(prompts, grouped, self.sampling)
            if logits is None:
                logits = torch.empty((positions, width, rows.shape[-1]), dtype=rows.dtype, device=rows.device)
            logits[:, j] = rows
            show(j, positions)
        return logits

    def _pieces(self, logits: Any) -> list[slice]:
        """Positions whose distributions stay near the processor's cache while they are reduced."""
        size = max(1, js.BLOCK // (4 * logits.shape[1] * logits.shape[2]))
        return [slice(i, i + size) for i in range(0, logits.shape[0], size)]


def _side_by_side(work: Callable[[slice], T], pieces: list[slice]) -> list[T]:
    """work(piece) of every piece, in their order, a thread a core and each operation in one thread.

    The reductions are many short operations over a vocabulary. Shared out among threads one by one, each would end in
    a barrier, at which a busy machine loses most of its time.
    """
    torch = require("torch", "llm")
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        results = list(pool.map(work, pieces))
    torch.set_num_threads(threads)
    return results


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
