"""Work on a population, shared out among engines: one in this process, or many (`esth.models.ray_pool`).

    def answers(engine, member):
        engine.set_member(member, sigma)
        return engine.sample(prompts, 4, sampling, seed)

    with load_workers("demo", workers=4) as workers:
        for i, responses in workers.map(answers, members):     # as they are done, in any order
            said[i] = responses
        workers.apply_update([(member, alpha * f / n) for member, f in zip(members, fitness)])

A piece of work is a function of (center, item) and of nothing else. It begins with `set_member` or `restore`, since an
engine comes to it as the member that the work before left in it; then it does not matter which engine does it, when, or
how often, and a lost engine's work is simply done again.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from esth.errors import InputError, require
from esth.models import check_engine, load_engine
from esth.models.checkpoint import Checkpoint, load_checkpoint

if TYPE_CHECKING:
    from esth.models.engine import Engine
    from esth.models.stored import Arrays
    from esth.noise import Direction

Item = TypeVar("Item")
Result = TypeVar("Result")


class EngineLost(InputError):
    """Engines were lost again and again, or none starts: an error of the machines, told in one line all the same."""


class Workers(Protocol):
    """Engines around one center, which moves in all of them by the same bits."""

    checkpoint: Checkpoint
    vocabulary: int  # V, the width of the logits

    def map(self, work: "Callable[[Engine, Item], Result]", items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """(index, work(engine, item)) of every item, as they are done, in any order.

        Items are handed out as engines become free, and nothing is done before the iteration begins. An iteration
        that is left early leaves the engines usable. The center must not be moved before it is over.

        Functions, items and results may travel to other processes, functions by cloudpickle: what a function closes
        over should be small, and results should be NumPy arrays rather than tensors. Arrays that come back may be
        read-only, in memory shared with the process that made them.

        Raises:
            InputError: as the work raised it; any other exception comes back too, with a note of where it was raised.
            EngineLost: an item took down every engine that tried it.
        """
        ...

    def apply_update(self, update: "Sequence[tuple[Direction, float]]", keep: float = 1.0) -> None:
        """Move the center of every engine, as `Engine.apply_update`; if that fails in one, no center has moved."""
        ...

    def load_center(self, weights: "Arrays") -> None:
        """Make weights the center of every engine, as `Engine.load_center`; all or none, as `apply_update`."""
        ...

    def restore(self) -> None:
        """Make every engine its center; needed only by who looks at an engine without setting a member."""
        ...

    def close(self) -> None:
        """End the engines' processes, whatever they are doing."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Local(Workers):
    """One engine in this process: items one after another, in their order."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.checkpoint = engine.checkpoint
        self.vocabulary = engine.vocabulary

    def map(self, work: "Callable[[Engine, Item], Result]", items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        for index, item in enumerate(items):
            yield index, work(self.engine, item)

    def apply_update(self, update: "Sequence[tuple[Direction, float]]", keep: float = 1.0) -> None:
        self.engine.apply_update(update, keep)

    def load_center(self, weights: "Arrays") -> None:
        self.engine.load_center(weights)

    def restore(self) -> None:
        self.engine.restore()

    def close(self) -> None:
        pass


def load_workers(
    model: str | os.PathLike[str] | Checkpoint,
    engine: str = "transformers",
    *,
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    gpus: float | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> Workers:
    """Load a checkpoint into one engine here, or into many under Ray.

    In float32 the transformers engine gives the same bits for any number of workers, if `threads` is the same: the
    rounding of sums may depend on how many threads share them.

    Args:
        model: a folder, a hub name or "demo"; other machines need it under the same path or name.
        engine: one of `esth.models.ENGINES`.
        workers: engines. One is loaded into this process, unless `address` says where.
        threads: of torch in each engine; by default what torch takes for one engine here, and 1 for each of many, or
            its share of the cores where many are on GPUs, whose numbers do not depend on it.
        address: of a Ray cluster ("auto": the one this machine belongs to); else Ray is started on this machine.
        gpus: that Ray gives each worker, a fraction if several share one; by default one if there are any and the
            option `device` does not name the CPU.
        options: of the engine's class, as `load_engine`.

    Raises:
        InputError: workers or threads < 1, an unknown engine, more GPUs than there are, whatever is wrong with the
            checkpoint.
        MissingExtra: Ray or the engine's dependencies are not installed.
        EngineLost: the workers do not start.
    """
    if workers < 1:
        raise InputError(f"at least one worker is needed, not {workers}")
    if threads is not None and threads < 1:
        raise InputError(f"an engine needs at least one thread, not {threads}")
    check_engine(engine)
    local = workers == 1 and address is None
    if not local:
        from esth.models.ray_pool import RayPool  # says what to install, before anything is read
    if not isinstance(model, Checkpoint):
        model = load_checkpoint(model, trust_remote_code=trust_remote_code)
    if not local:
        if threads is None:
            threads = 1
            if require("torch", "llm").cuda.is_available() and not str(options.get("device")).startswith("cpu"):
                threads = max(1, (os.cpu_count() or 1) // workers)  # noise is drawn on the processor
        return RayPool(model, engine, workers, threads=threads, address=address, gpus=gpus, **options)
    if threads is not None:
        require("torch", "llm").set_num_threads(threads)
    return Local(load_engine(model, engine, **options))
