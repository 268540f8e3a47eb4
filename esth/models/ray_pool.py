"""Engines as Ray actors, on this machine or on many.

The pool keeps the log of what moved the center, every worker counts the moves it has made, and every call brings those
it lacks. A worker that replaces a lost one is thus brought to the same center, bit for bit, by the call that first uses
it, at the price of all updates so far, or of those since weights were last loaded: a load begins the log anew. Loaded
weights travel through Ray, so that their folder may go.
"""

import dataclasses
import logging
import os
import platform
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from esth.errors import InputError, require
from esth.models import load_engine
from esth.models.checkpoint import Checkpoint, load_checkpoint, one_line
from esth.models.engine import Engine
from esth.models.stored import Arrays
from esth.models.workers import EngineLost, Item, Result, Workers
from esth.noise import Direction

# Read when Ray is imported. A lost worker is our business; Ray would print a paragraph on it to standard output.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed|node with node id|cannot be scheduled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

ray: Any = require("ray", "ray")


class _Update(NamedTuple):
    """A move of the center, as `Engine.apply_update`."""

    terms: Sequence[tuple[Direction, float]]
    keep: float

    def apply(self, engine: Engine) -> None:
        engine.apply_update(self.terms, self.keep)


class _Load(NamedTuple):
    """A move of the center to weights in Ray's memory."""

    weights: Any

    def apply(self, engine: Engine) -> None:
        engine.load_center(ray.get(self.weights))


Move = _Update | _Load


class RayPool(Workers):
    """See `esth.models.workers.Workers`.

    Args:
        checkpoint: from `load_checkpoint`. Every worker loads it itself, from the same folder (or by its name, where
            the folder is not on that machine), and must find the same weights.
        engine, options: as `load_engine`.
        workers: engines, each an actor.
        threads: CPU cores reserved for each worker, and the threads of torch in it.
        address: of a Ray cluster; else Ray is started here and ends with the pool. A Ray that this process has
            started or joined before is used as it is.
        gpus: reserved for each worker (`load_workers`).
        retries: how often an item whose worker was lost is tried again, and a worker that was lost while loading.
        patience: seconds in which at least one worker must finish loading while all others are idle or load too.

    Raises:
        InputError: workers or threads < 1, more CPUs or GPUs than there are, no cluster at the address, whatever a
            worker finds wrong with the checkpoint.
        EngineLost: the workers do not start.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: str = "transformers",
        workers: int = 2,
        *,
        threads: int = 1,
        address: str | None = None,
        gpus: float | None = None,
        retries: int = 3,
        patience: float = 600.0,
        **options: Any,
    ) -> None:
        if min(workers, threads) < 1 or (gpus is not None and gpus < 0):
            raise InputError(f"no pool of {workers} workers with {threads} threads and {gpus} GPUs each")
        self.checkpoint = checkpoint
        self.retries = retries
        self.patience = patience
        self.lost = 0  # workers, so far
        self._moves: list[Move] = []
        self._first = 0  # the number of the first of them; those before it no longer matter
        self._idle: deque[_Worker] = deque()
        self._calls: dict[Any, _Call] = {}  # one for each worker that is not idle
        self._lost_loading = 0  # since a worker was last loaded
        # The tokenizer stays here: it may be of a class that exists in this process only.
        self._recipe = _Recipe(dataclasses.replace(checkpoint, tokenizer=None, tensors={}), engine, threads, options)
        self._started_ray = _connect(address, workers * threads)
        try:
            gpus = _gpus(options.get("device")) if gpus is None else gpus
            _check_room(workers, {"CPU": threads, "GPU": gpus})
            reserve: Any = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD")
            self._host = reserve(_Host)
            for _ in range(workers):
                self._start()
            while self._calls:
                self._receive()
        except BaseException:
            self.close()
            raise

    def map(self, work: Callable[[Engine, Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        sent = ray.put(work)  # once to each machine, not once an item
        inbox: deque[tuple[int, _Answer | None]] = deque()
        waiting = deque(range(len(items)))
        losses: Counter[int] = Counter()
        left = len(items)
        while left > 0:
            while waiting and self._idle:
                index = waiting.popleft()
                self._send(self._idle.popleft(), sent, items[index], inbox, index)
            if not inbox:
                self._receive()
                continue  # keep the worker busy before the caller has the result
            index, answer = inbox.popleft()
            if answer is None:
                losses[index] += 1
                if losses[index] > self.retries:
                    raise EngineLost(f"item {index} of {len(items)} has lost {losses[index]} workers one after another")
                waiting.appendleft(index)
            else:
                left -= 1
                yield index, answer.result()

    def apply_update(self, update: Sequence[tuple[Direction, float]], keep: float = 1.0) -> None:
        self._move(_Update(list(update), keep))

    def load_center(self, weights: Arrays) -> None:
        self._move(_Load(ray.put({name: np.asarray(array) for name, array in weights.items()})))
        self._first += len(self._moves) - 1
        del self._moves[:-1]

    def _move(self, move: Move) -> None:
        known = self._first + len(self._moves)
        self._moves.append(move)
        error = self._everywhere(_nothing)  # the move comes with the call
        if error is not None:  # an engine that fails is where it was; those that did not go back to there
            self._moves.pop()
            for worker in [worker for worker in self._idle if worker.moves > known]:
                self._idle.remove(worker)
                self._replace(worker)
            raise error

    def restore(self) -> None:
        error = self._everywhere(_restore)
        if error is not None:
            raise error

    def close(self) -> None:
        if ray.is_initialized():
            for worker in [*self._idle, *(call.worker for call in self._calls.values())]:
                ray.kill(worker.actor)
        self._idle.clear()
        self._calls.clear()
        if self._started_ray:
            self._started_ray = False
            ray.shutdown()

    def _everywhere(self, work: Callable[[Engine, None], None]) -> Exception | None:
        """Do it in every worker that is loaded, after what an abandoned `map` left there; return the first error.

        Who is lost or loads meanwhile has no member to leave, and catches up with moves at its next call.
        """
        while not self._idle or any(call.inbox is not None for call in self._calls.values()):
            self._receive()
        inbox: deque[tuple[int, _Answer | None]] = deque()
        count = len(self._idle)
        for _ in range(count):
            self._send(self._idle.popleft(), work, None, inbox, 0)
        while len(inbox) < count:
            self._receive()
        return next((answer.error for _, answer in inbox if answer is not None and answer.error is not None), None)

    def _start(self) -> None:
        worker = _Worker(self._host.remote())
        self._calls[worker.actor.load.remote(self._recipe)] = _Call(worker)

    def _replace(self, worker: "_Worker") -> None:
        ray.kill(worker.actor)  # it may be out of reach only
        self._start()

    def _send(self, worker: "_Worker", work: Any, item: Any, inbox: deque[Any], index: int) -> None:
        start = max(worker.moves, self._first)
        call = worker.actor.run.remote(start, self._moves[start - self._first :], work, item)
        self._calls[call] = _Call(worker, inbox, index)

    def _receive(self) -> None:
        """Wait for a call to end. Its answer goes to its inbox, None if its worker was lost, which is then replaced."""
        if not self._calls:
            raise EngineLost("the pool has no workers: it is closed")
        loading = all(call.inbox is None for call in self._calls.values())
        done, _ = ray.wait(list(self._calls), timeout=self.patience if loading else None)
        if not done:
            raise EngineLost(f"no worker has loaded the model in {self.patience:g} s")
        answer = _fetch(done[0])
        worker, inbox, index = self._calls.pop(done[0])
        if inbox is None:
            self._loaded(worker, answer)
            return
        if answer is None or answer.moves is None:
            self._replace(worker)
            self.lost += answer is None
        else:
            worker.moves = answer.moves
            self._idle.append(worker)
        inbox.append((index, answer))

    def _loaded(self, worker: "_Worker", answer: "_Answer | None") -> None:
        if answer is not None and answer.error is None:
            self.vocabulary = answer.value
            self._lost_loading = 0
            self._idle.append(worker)
            return
        ray.kill(worker.actor)
        if answer is not None:
            answer.result()
        self.lost += 1
        self._lost_loading += 1
        if self._lost_loading > self.retries:
            raise EngineLost(f"{self._lost_loading} workers were lost while they loaded {self.checkpoint.name}")
        self._start()


@dataclass(eq=False)
class _Worker:
    actor: Any
    moves: int = 0  # made so far


class _Call(NamedTuple):
    worker: _Worker
    inbox: deque[Any] | None = None  # None: it loads
    item: int = 0


class _Answer(NamedTuple):
    """Of a worker. Errors are answers, since Ray wraps what an actor raises in a class of its own."""

    value: Any
    error: Exception | None
    moves: int | None  # that the worker's center has made; None if nobody knows

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class _Recipe(NamedTuple):
    checkpoint: Checkpoint  # without its tokenizer and tensors, which every worker reads itself
    engine: str
    threads: int
    options: dict[str, Any]

    def load(self) -> Engine:
        require("torch", "llm").set_num_threads(self.threads)
        name, folder = self.checkpoint.name, self.checkpoint.folder
        here = load_checkpoint(
            folder if Path(folder).is_dir() else name, trust_remote_code=self.checkpoint.trust_remote_code
        )
        if here.fingerprint != self.checkpoint.fingerprint:
            raise InputError(f"{name} has other weights on {platform.node()}: every machine needs the same checkpoint")
        checkpoint = dataclasses.replace(self.checkpoint, tokenizer=here.tokenizer, tensors=here.tensors)
        return load_engine(checkpoint, self.engine, **self.options)


class _Host:
    """The actor: an engine in a process of its own."""

    def __init__(self) -> None:
        self.engine: Engine
        self.moves = 0

    def load(self, recipe: _Recipe) -> _Answer:
        def load() -> int:
            self.engine = recipe.load()
            return self.engine.vocabulary

        return self._answer(load)

    def run(self, start: int, moves: Sequence[Move], work: Callable[[Engine, Any], Any], item: Any) -> _Answer:
        def run() -> Any:
            for number, move in enumerate(moves, start + 1):
                move.apply(self.engine)
                self.moves = number
            return work(self.engine, item)

        return self._answer(run)

    def _answer(self, work: Callable[[], Any]) -> _Answer:
        try:
            return _Answer(work(), None, self.moves)
        except Exception as error:
            if not isinstance(error, InputError):
                error.add_note(f"in a worker: {traceback.format_exc()}")
            return _Answer(None, error, self.moves)


def _fetch(call: Any) -> _Answer | None:
    """A call's answer; None if the worker, its machine, or the answer on the way was lost."""
    try:
        answer: _Answer = ray.get(call)
        return answer
    except (ray.exceptions.RayTaskError, ray.exceptions.RaySystemError) as error:
        return _Answer(None, error, None)  # something on the way could not be pickled
    except ray.exceptions.RayError:
        return None


def _nothing(engine: Engine, item: None) -> None:
    pass


def _restore(engine: Engine, item: None) -> None:
    engine.restore()


def _connect(address: str | None, cpus: int) -> bool:
    """Join the cluster, or start Ray on this machine; True if it was started."""
    if ray.is_initialized():
        return False
    logging.getLogger("ray").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            ray.init(address, **quiet)
        else:
            ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
    except Exception as error:  # nobody there, another version, no authorisation, no room for its files
        where = "on this machine" if address is None else f"at {address}"
        raise InputError(f"no Ray {where}: {one_line(error)}") from error
    return address is None


def _gpus(device: str | None) -> float:
    there = ray.cluster_resources().get("GPU", 0) > 0
    return 1 if there and (device is None or not device.startswith("cpu")) else 0


def _check_room(workers: int, each: dict[str, float]) -> None:
    """Ray would wait for resources that never come."""
    there = ray.cluster_resources()
    for what, amount in each.items():
        if workers * amount > there.get(what, 0):
            raise InputError(f"{workers} workers of {amount:g} {what} each, but Ray has {there.get(what, 0):g}")
