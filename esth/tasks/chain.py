"""Countdown chains over 16 characters: the task of the tiny world, small enough to enumerate.

`937=13:` gives the numbers 9, 3, 7 and the target 13; `9+7=16-3=13` answers it, and so does `7-3=04+9=13`. A chain
starts from a given number and joins one more by + - or * in every equation, from left to right. Each given number (1
to 9, some perhaps equal) is used exactly once, every result is written with two digits and lies in 00..99, and the last
one is the target. A chain of k numbers has 5k − 4 characters, then `$`, the end of the text.

The problems are all (numbers, target) that some chain reaches. The order of the numbers is not part of a problem: it
decides neither the split nor the id. The target may be one of the numbers: all of them have to be used, so that gives
nothing away. For 3 numbers there are 165 multisets and 1,959 problems, 73 % of them with several right chains (the
median problem has 2); for 4 numbers 495 and 19,670, 86 % (median 4).

Splits: half of all problems are for pretraining (`esth.models.tiny`) alone, so that a pretrained model meets the
training problems of ES and GRPO, and those held out, equally unprepared. Of the other half, half train, a tenth
validates and the rest tests.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError
from esth.tasks import splits
from esth.tasks.task import Problem

CHARACTERS = "0123456789+-*=:$"
"""A character's index is its token id in the tiny models."""
OPERATORS = "+-*"
ALIASES = {None: 3, "easy": 3, "hard": 4, "3": 3, "4": 4}
DEFAULT_COUNT = {3: None, 4: 256}
SPLITS = ("pretrain", *splits.SPLITS)

Int = NDArray[np.int64]


def problems(split: str, n: int | None, seed: int, difficulty: str | None = None) -> tuple[Problem, ...]:
    """Problems in a random order, their numbers too, each with one right chain.

    Args:
        n: how many; None is all of the split for 3 numbers, 256 for 4.
        difficulty: how many numbers: "3" (the default, also "easy") or "4" ("hard").
    """
    if difficulty not in ALIASES:
        raise InputError(f"task chain: difficulty {difficulty!r} is not one of 3, 4, easy (3), hard (4)")
    count = ALIASES[difficulty]
    n = DEFAULT_COUNT[count] if n is None else n
    candidates = _candidates(np.random.default_rng(seed), count)
    return splits.take(candidates, task="chain", split=split, n=n, split_of=split_of)


def _candidates(rng: np.random.Generator, count: int) -> Iterator[tuple[str, Problem]]:
    _, numbers, operators = reachable(count)
    for i in rng.permutation(len(numbers)):
        values = results(numbers[i], operators[i])
        shown = tuple(int(x) for x in rng.permutation(numbers[i]))
        key, target = key_of(shown, int(values[-1])), f"{values[-1]:02d}"
        solution = text_of(chain_tokens(numbers[i], operators[i], values)[:-1])
        prompt = text_of(prompt_tokens(np.array(shown), values[-1]))
        yield key, Problem(id=key, prompt=prompt, answer=target, numbers=shown, solution=solution)


@functools.cache
def reachable(count: int) -> tuple[Int, Int, Int]:
    """Every problem of `count` numbers: its code [P] (ascending), and the numbers [P, k] and operators [P, k − 1] of a
    chain that solves it."""
    numbers = 1 + np.indices((9,) * count).reshape(count, -1).T[:, None, :]
    operators = np.indices((len(OPERATORS),) * (count - 1)).reshape(count - 1, -1).T[None, :, :]
    shape = (numbers.shape[0], operators.shape[1])
    numbers = np.broadcast_to(numbers, (*shape, count)).reshape(-1, count)
    operators = np.broadcast_to(operators, (*shape, count - 1)).reshape(-1, count - 1)
    targets = results(numbers, operators)[:, -1]
    possible = targets >= 0
    codes, first = np.unique(code_of(numbers, targets)[possible], return_index=True)
    return codes, numbers[possible][first], operators[possible][first]


@functools.cache
def codes_of_split(count: int, split: str) -> Int:
    """Codes (`code_of`) of the problems of a split, ascending."""
    codes, numbers, operators = reachable(count)
    targets = results(numbers, operators)[:, -1]
    keys = (key_of(x, int(t)) for x, t in zip(numbers.tolist(), targets, strict=True))
    return codes[[split_of(key) == split for key in keys]]


def split_of(key: str) -> str:
    """The split a key belongs to, by two hashes of the key."""
    return "pretrain" if splits.split_of(f"pretrain {key}") == "train" else splits.split_of(key)


def key_of(numbers: Any, target: int) -> str:
    """What names a problem, whatever the order of its numbers."""
    return f"{target:02d} from {', '.join(map(str, sorted(numbers)))}"


def code_of(numbers: Int, targets: Int) -> Int:
    """The same as one integer below 10^(k + 2): numbers [..., k], targets [...] -> [...]."""
    return 100 * (np.sort(numbers, axis=-1) @ 10 ** np.arange(numbers.shape[-1])) + targets


def results(numbers: Int, operators: Int) -> Int:
    """Results of a chain's equations: numbers [..., k] in order of use, operators [..., k − 1] as indices of OPERATORS
    -> [..., k − 1], −1 from the first result outside 0..99 on."""
    value, values = numbers[..., 0], []
    for i in range(operators.shape[-1]):
        operator, x = operators[..., i], numbers[..., i + 1]
        joined = np.where(operator == 0, value + x, np.where(operator == 1, value - x, value * x))
        value = np.where((value >= 0) & (joined >= 0) & (joined < 100), joined, -1)
        values.append(value)
    return np.stack(values, axis=-1)


def prompt_tokens(numbers: Int, targets: Int) -> Int:
    """`937=13:` as indices of CHARACTERS: numbers [..., k], targets [...] -> [..., k + 4]."""
    equals, colon = (np.full_like(targets, CHARACTERS.index(c)) for c in "=:")
    return np.concatenate([numbers, np.stack([equals, targets // 10, targets % 10, colon], axis=-1)], axis=-1)


def chain_tokens(numbers: Int, operators: Int, values: Int) -> Int:
    """`7-3=04+9=13$` as indices of CHARACTERS, from what `results` takes and gives: -> [..., 5k − 3]."""
    equals, end = np.full_like(values, CHARACTERS.index("=")), CHARACTERS.index("$")
    signs = np.array([CHARACTERS.index(o) for o in OPERATORS])[operators]
    equations = np.stack([signs, numbers[..., 1:], equals, values // 10, values % 10], axis=-1)
    steps = equations.reshape(*equations.shape[:-2], -1)
    return np.concatenate([numbers[..., :1], steps, np.full_like(numbers[..., :1], end)], axis=-1)


def text_of(tokens: Int) -> str:
    """One row of indices as text."""
    return "".join(CHARACTERS[i] for i in tokens)
