"""Splits that stay disjoint whatever the seed: a problem's own key decides where it belongs."""

import hashlib
from collections.abc import Callable, Iterable

from esth.errors import InputError
from esth.tasks.task import Problem

SPLITS = ("train", "validation", "test")
"""Half of all keys train, a tenth validates, the rest tests; "all" is their union."""


def split_of(key: str) -> str:
    """The split a key belongs to: a hash of the key alone, so no seed or count can move a problem."""
    position = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) / 2**64
    return "train" if position < 0.5 else "validation" if position < 0.6 else "test"


def check_split(task: str, split: str, accepted: Iterable[str] = (*SPLITS, "all")) -> None:
    """
    Raises:
        InputError: the task has no such split.
    """
    accepted = tuple(accepted)
    if split not in accepted:
        raise InputError(f"task {task}: no split {split!r}; it has {', '.join(accepted)}")


def take(
    candidates: Iterable[tuple[str, Problem]],
    *,
    task: str,
    split: str,
    n: int | None,
    split_of: Callable[[str], str] = split_of,
) -> tuple[Problem, ...]:
    """The first `n` distinct problems of `split` among (key, problem) candidates; all of them for n = None.

    Asking for fewer problems gives a prefix of asking for more.

    Raises:
        InputError: the candidates end before `n` problems are found.
    """
    chosen: dict[str, Problem] = {}
    for key, problem in candidates:
        if split in ("all", split_of(key)):
            chosen.setdefault(problem.id, problem)
        if len(chosen) == n:
            break
    if n is not None and len(chosen) < n:
        raise InputError(f"task {task}: split {split} has {len(chosen)} problems, {n} were asked for")
    return tuple(chosen.values())
