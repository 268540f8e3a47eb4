"""An attack from beginning to end: work shared out, progress shown, interruptions survived."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, TypeVar

from esth.attack.bound import named
from esth.attack.report import AttackResult, conclude
from esth.attack.search import BATCH, CHUNK, OFFSPRING, STARTS, bounds_of, refine, rounds, scan, spaces_of
from esth.attack.state import State, fingerprint, load
from esth.errors import InputError
from esth.lemmas import LEMMAS

T = TypeVar("T")

SAVE_EVERY = 5.0
"""Seconds between two saved states."""


def attack(
    lemma: str,
    *,
    instances: float = 1e6,
    seed: int = 0,
    out: Path | str | None = None,
    constants: dict[str, float] | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> AttackResult:
    """Search for an instance that breaks a bound of `lemma`.

    Args:
        lemma: one of `esth.lemmas.LEMMAS`.
        instances: random instances of each bound; the local search tries 5 % more, and 40,960 at least.
        seed: of everything random. The same seed gives the same result, for any number of workers and after
            interruptions.
        out: folder for the state, from which the same call goes on after an interruption; nothing is kept if None.
        constants: by name of a bound, a factor on its scaled side that makes it false, to see the attack find it.
        workers: processes; one for each core if None. With more than one, a script must call this under
            `if __name__ == "__main__":`, as always with `multiprocessing`.
        progress: show a progress bar on standard error.

    Raises:
        InputError: an unknown lemma or bound, no instance, or a file in `out` that is no state of an attack.
    """
    if lemma not in LEMMAS:
        raise InputError(f"unknown lemma {lemma!r}: accepted are {', '.join(LEMMAS)}")
    if not (1 <= instances < 1e15):
        raise InputError(f"instances = {instances:g} must be at least 1")
    if seed < 0:
        raise InputError(f"seed = {seed} must not be negative")
    constants = dict(constants or {})
    named(bounds_of(lemma), constants)
    total = math.ceil(instances)
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    job = {"lemma": lemma, "seed": seed, "instances": total, "constants": constants, "code": fingerprint()}
    state = load(folder, job)
    workers = (os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise InputError(f"workers = {workers} must be at least 1")
    with _pool(workers) as pool, _Reporter(progress, lemma) as reporter:
        _search(state, pool, folder, reporter)
        _refine(state, pool, folder, reporter)
    tried = total + STARTS * OFFSPRING * rounds(total)
    results = (conclude(bound, state.findings[bound.name], tried) for bound in bounds_of(lemma, constants))
    return AttackResult(lemma, seed, tuple(results))


def _search(state: State, pool: Pool | None, folder: Path | None, reporter: "_Reporter") -> None:
    """Random search, space by space. Results are taken in the order of the batches, whoever finishes first."""
    job = state.job
    instances = job["instances"]
    total = math.ceil(instances / BATCH)
    for index, space in enumerate(spaces_of(bounds_of(job["lemma"]))):
        done = state.batches.get(space, 0)
        reporter.stage(f"random {space}", instances, done * BATCH)
        chunks = [range(first, min(first + CHUNK, total)) for first in range(done, total, CHUNK)]
        tasks = [(job["lemma"], job["constants"], job["seed"], index, chunk, instances) for chunk in chunks]
        saved = time.monotonic()
        for chunk, found in zip(chunks, _ordered(pool, scan, tasks), strict=True):
            state.add(space, len(chunk), found)
            reporter.advance(
                min(chunk.stop * BATCH, instances), min(c.margin for name in found for c in state.starts[name])
            )
            if time.monotonic() - saved > SAVE_EVERY:
                state.save(folder)
                saved = time.monotonic()
        state.save(folder)


def _refine(state: State, pool: Pool | None, folder: Path | None, reporter: "_Reporter") -> None:
    """Local search, bound by bound."""
    job = state.job
    names = [b.name for b in bounds_of(job["lemma"]) if b.name not in state.findings]
    n_rounds = rounds(job["instances"])
    reporter.stage("local search", len(names) + len(state.findings), len(state.findings))
    tasks = [(job["lemma"], job["constants"], job["seed"], name, state.starts[name], n_rounds) for name in names]
    for name, finding in zip(names, _ordered(pool, refine, tasks), strict=True):
        state.findings[name] = finding
        state.save(folder)
        reporter.advance(len(state.findings), finding.candidate.margin)


def _ordered(pool: Pool | None, function: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """function(*task) of every task, in their order."""
    call = partial(_call, function)
    return map(call, tasks) if pool is None else pool.imap(call, tasks)


def _call(function: Callable[..., T], task: tuple[Any, ...]) -> T:
    return function(*task)


@contextmanager
def _pool(workers: int) -> Iterator[Pool | None]:
    """A pool of processes, ended at once when an error or Ctrl-C ends the attack; None to work in this process."""
    if workers == 1:
        yield None
        return
    # Ctrl-C reaches every process of a terminal; only the first is to answer.
    with get_context("spawn").Pool(workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield pool


class _Reporter:
    """A progress bar: stage, share done, time left, and the smallest margin so far."""

    def __init__(self, shown: bool, lemma: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn(f"{lemma}: {{task.description}}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("closest {task.fields[closest]}"), console=Console(stderr=True), disable=not shown,
        )  # fmt: skip
        self._task: Any = None

    def __enter__(self) -> "_Reporter":
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def stage(self, description: str, total: int, done: int) -> None:
        """Begin a stage of `total` steps of which `done` were made earlier."""
        self._task = self._progress.add_task(description, total=total, completed=done, closest="–")

    def advance(self, done: int, margin: float) -> None:
        """Steps of this stage made so far, and the smallest margin yet."""
        self._progress.update(self._task, completed=done, closest=f"{margin:.2g}")
