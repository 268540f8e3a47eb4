"""Work shared out among threads, one operation in each."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from esth.errors import require

S = TypeVar("S")
T = TypeVar("T")


def side_by_side(work: Callable[[S], T], pieces: Iterable[S]) -> list[T]:
    """work(piece) of every piece, in their order, in as many threads as torch has, each operation in one thread.

    For many short operations that release the interpreter's lock. Shared out among threads one by one, each would end
    in a barrier, at which a busy machine loses most of its time. When a piece raises, those not begun are dropped, and
    the exception comes when no thread works any more.
    """
    torch = require("torch", "llm")
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, pieces))
    finally:
        torch.set_num_threads(threads)
