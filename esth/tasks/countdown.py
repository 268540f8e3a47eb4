"""Countdown: reach a target from given numbers by + - * /, each number at most once."""

from collections.abc import Iterator

import numpy as np

from esth.errors import InputError
from esth.tasks.splits import take
from esth.tasks.task import Problem

PROMPT = (
    "Using the numbers {numbers}, each at most once, and the operations + - * / and brackets, write an expression "
    "that equals {target}. Put the expression inside answer tags, for example <answer>(1 + 2) * 3</answer>."
)
ALIASES = {None: 3, "easy": 3, "hard": 4, "3": 3, "4": 4, "5": 5, "6": 6}
NUMBERS = range(1, 31)
TARGETS = range(10, 100)
DEFAULT_COUNT = 256
DRAWS_PER_PROBLEM = 1000


def problems(split: str, n: int | None, seed: int, difficulty: str | None = None) -> tuple[Problem, ...]:
    """Problems with a solution by construction: a random expression in random numbers names the target.

    Args:
        n: how many; None is 256.
        difficulty: how many numbers, "3" (the default, also "easy") to "6"; "hard" is 4.

    Every step of the expression is a positive whole number, and the target is none of the given numbers. The same
    numbers in another order are the same problem.
    """
    if difficulty not in ALIASES:
        raise InputError(f"task countdown: difficulty {difficulty!r} is not one of 3, 4, 5, 6, easy (3), hard (4)")
    n = DEFAULT_COUNT if n is None else n
    rng = np.random.default_rng(seed)
    candidates = _candidates(rng, ALIASES[difficulty], DRAWS_PER_PROBLEM * n)
    return take(candidates, task="countdown", split=split, n=n)


def _candidates(rng: np.random.Generator, count: int, draws: int) -> Iterator[tuple[str, Problem]]:
    for _ in range(draws):
        numbers = tuple(int(x) for x in rng.choice(NUMBERS, count))
        target, expression = _random_expression(rng, numbers)
        if target not in TARGETS or target in numbers:
            continue
        key = f"{target} from {', '.join(map(str, sorted(numbers)))}"
        listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
        yield (
            key,
            Problem(
                id=key,
                prompt=PROMPT.format(numbers=listed, target=target),
                answer=str(target),
                numbers=numbers,
                solution=f"<answer>{expression}</answer>",
            ),
        )


def _random_expression(rng: np.random.Generator, numbers: tuple[int, ...]) -> tuple[int, str]:
    """Joins two random entries by a random allowed operation until one is left: its value and its spelling."""
    entries = [(x, str(x)) for x in numbers]
    while len(entries) > 1:
        i, j = rng.choice(len(entries), 2, replace=False)
        (a, left), (b, right) = entries[i], entries[j]
        results = {"+": a + b, "*": a * b}
        if a > b:
            results["-"] = a - b
        if b > 1 and a % b == 0:
            results["/"] = a // b
        operation = str(rng.choice(list(results)))
        rest = [entry for k, entry in enumerate(entries) if k not in (i, j)]
        entries = [*rest, (results[operation], f"({left} {operation} {right})")]
    value, expression = entries[0]
    return value, expression[1:-1]
