"""Generated tasks: solvable, distinct, split for good, and the same for the same seed."""

import itertools
from fractions import Fraction

import pytest

from esth.errors import InputError
from esth.tasks import Problem, load_task
from esth.tasks.countdown import TARGETS
from esth.tasks.splits import SPLITS, split_of

DIFFICULTIES = [("arithmetic", d) for d in ("1+", "2-", "1*", "3+-*", "6*")]
DIFFICULTIES += [("chain", d) for d in "34"] + [("countdown", d) for d in "3456"]


def solvable(values: tuple[Fraction, ...], target: int) -> bool:
    """Whether some expression in some of the values has the target's value: every pair, every operation, in turn."""
    if target in values:
        return True
    for i, j in itertools.permutations(range(len(values)), 2):
        a, b = values[i], values[j]
        rest = [v for k, v in enumerate(values) if k not in (i, j)]
        if any(solvable((*rest, r), target) for r in (a + b, a - b, a * b, *([a / b] if b else []))):
            return True
    return False


def test_the_default_task() -> None:
    task = load_task()
    assert (task.name, task.split, task.max_tokens, task.verifier.__name__) == ("arithmetic", "test", 16, "number")
    for problem in task.problems:
        a, b = map(int, problem.id.split(" + "))
        assert 0 <= a <= 9 and 0 <= b <= 9
        assert problem.prompt == f"What is {a} + {b}? Reply with just the number."
        assert problem.answer == str(a + b)


def test_single_digit_splits_hold_every_sum_once_and_commuted_ones_together() -> None:
    splits = {s: {p.id for p in load_task(split=s).problems} for s in SPLITS}
    everything = {f"{a} + {b}" for a in range(10) for b in range(10)}
    assert set.union(*splits.values()) == everything == {p.id for p in load_task(split="all").problems}
    assert sum(map(len, splits.values())) == 100 and all(splits.values())
    for held in splits.values():
        assert {" + ".join(reversed(name.split(" + "))) for name in held} == held


@pytest.mark.parametrize(("digits", "operation"), [(1, "-"), (2, "*"), (3, "+"), (6, "-")])
def test_arithmetic_is_right(digits: int, operation: str) -> None:
    for problem in load_task(difficulty=f"{digits}{operation}", n=40).problems:
        a, sign, b = problem.id.split(" ")
        assert sign == operation and len(a) == len(b) == digits
        value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert problem.answer == str(value) and problem.id in problem.prompt


def test_all_operations_of_a_difficulty_occur() -> None:
    assert {p.id.split(" ")[1] for p in load_task(difficulty="2+-*", n=60).problems} == {"+", "-", "*"}


@pytest.mark.parametrize("difficulty", ["3", "4", "easy", "hard"])
def test_countdown_is_solvable_and_its_solution_is_right(difficulty: str) -> None:
    task = load_task("countdown", difficulty=difficulty, n=40)
    for problem in task.problems:
        assert len(problem.numbers) == {"3": 3, "4": 4, "easy": 3, "hard": 4}[difficulty]
        target = int(problem.answer)
        assert target in TARGETS and target not in problem.numbers
        assert str(target) in problem.prompt and all(str(x) in problem.prompt for x in problem.numbers)
        assert solvable(tuple(map(Fraction, problem.numbers)), target)
        assert problem.solution is not None and task.verify(problem.solution, problem)
        assert not task.verify(problem.prompt, problem) and not task.verify(problem.answer, problem)


@pytest.mark.parametrize(("name", "difficulty"), DIFFICULTIES)
def test_splits_are_disjoint_whatever_the_seeds(name: str, difficulty: str) -> None:
    def keys(split: str, seed: int) -> list[object]:
        problems = load_task(
            name, split=split, n=None if difficulty[0] == "1" else 150, seed=seed, difficulty=difficulty
        ).problems
        assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == len(problems)
        return [_content(p) for p in problems]

    train, test = [{*keys(s, 1), *keys(s, 2)} for s in ("train", "test")]
    assert not train & test


def _content(problem: Problem) -> object:
    """What the problem asks, whatever the order of its numbers."""
    if problem.numbers:
        return problem.answer, tuple(sorted(problem.numbers))
    a, sign, b = problem.id.split(" ")
    return sign, (a, b) if sign == "-" else tuple(sorted((a, b)))


@pytest.mark.parametrize(("name", "difficulty"), DIFFICULTIES)
def test_seeds_and_prefixes(name: str, difficulty: str) -> None:
    def draw(n: int, seed: int) -> tuple[Problem, ...]:
        return load_task(name, n=n, seed=seed, difficulty=difficulty, split="all").problems

    assert draw(20, 3) == draw(20, 3) != draw(20, 4)
    assert draw(30, 3)[:20] == draw(20, 3)


def test_split_shares() -> None:
    counts = {s: sum(split_of(f"key {i}") == s for i in range(20_000)) / 20_000 for s in SPLITS}
    for split, share in {"train": 0.5, "validation": 0.1, "test": 0.4}.items():
        assert abs(counts[split] - share) < 5 * (share * (1 - share) / 20_000) ** 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "arithmatic"}, "did you mean arithmetic"),
        ({"name": "GSM"}, "did you mean gsm8k"),
        ({"name": "?"}, "unknown task '\\?'; known are arithmetic, chain, countdown, gsm8k"),
        ({"split": "dev"}, "no split 'dev'; it has train, validation, test, all"),
        ({"difficulty": "9+"}, "difficulty '9\\+' is not"),
        ({"difficulty": "+"}, "is not a number of digits"),
        ({"name": "countdown", "difficulty": "2"}, "difficulty '2' is not one of"),
        ({"n": 1000}, "split test has 30 problems, 1000 were asked for"),
        ({"n": 0}, "n is 0; at least 1"),
        ({"seed": -1}, "seed is -1; at least 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"verifier": "judge"}, "unknown verifier 'judge'; known are number"),
        ({"data": "x.jsonl"}, "arithmetic takes no data"),
        ({"name": "svamp", "difficulty": "1+"}, "task svamp takes no difficulty"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_task(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_draw_that_cannot_succeed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esth.tasks.countdown.NUMBERS", range(1, 3))  # 1 and 2 alone reach no target of two digits
    with pytest.raises(InputError, match="split test has 0 problems, 2 were asked for"):
        load_task("countdown", n=2)
