"""Generated arithmetic: the smallest task on which a language model can be right or wrong."""

import math
import re
from collections.abc import Iterable

import numpy as np

from esth.errors import InputError
from esth.tasks.splits import take
from esth.tasks.task import Problem

PROMPT = "What is {a} {operation} {b}? Reply with just the number."
DEFAULT_DIFFICULTY = "1+"
DEFAULT_COUNT = 256
ENUMERABLE = 50_000
DRAWS_PER_PROBLEM = 100


def problems(split: str, n: int | None, seed: int, difficulty: str | None = None) -> tuple[Problem, ...]:
    """Problems with two operands of equal length.

    Args:
        n: how many; None is all of the split up to 2 digits, 256 beyond.
        difficulty: number of digits, then the operations to draw from: "1+" (the default) is single-digit
            addition, "3+-" three-digit addition and subtraction, "2*" two-digit multiplication.

    Commuted operands share a split, so 3 + 5 is never tested after training on 5 + 3.
    """
    found = re.fullmatch(r"([1-6])([-+*]+)", difficulty or DEFAULT_DIFFICULTY)
    if found is None:
        raise InputError(
            f"task arithmetic: difficulty {difficulty!r} is not a number of digits 1-6 followed by operations "
            "from + - *, as in 1+ or 2+-"
        )
    digits, operations = int(found[1]), "".join(dict.fromkeys(found[2]))
    low, high = (0 if digits == 1 else 10 ** (digits - 1)), 10**digits
    rng = np.random.default_rng(seed)
    shape = (len(operations), high - low, high - low)
    space = math.prod(shape)
    drawn: Iterable[int]
    if space <= ENUMERABLE:
        drawn = rng.permutation(space).tolist()
    else:
        n = DEFAULT_COUNT if n is None else n
        drawn = (int(rng.integers(space)) for _ in range(DRAWS_PER_PROBLEM * n))
    places = (map(int, np.unravel_index(index, shape)) for index in drawn)
    pairs = (_problem(low + a, operations[k], low + b) for k, a, b in places)
    return take(pairs, task="arithmetic", split=split, n=n)


def _problem(a: int, operation: str, b: int) -> tuple[str, Problem]:
    value = {"+": a + b, "-": a - b, "*": a * b}[operation]
    key = f"{a}-{b}" if operation == "-" else operation.join(map(str, sorted((a, b))))
    prompt = PROMPT.format(a=a, operation=operation, b=b)
    return key, Problem(id=f"{a} {operation} {b}", prompt=prompt, answer=str(value), solution=str(value))
