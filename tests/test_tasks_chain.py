"""Countdown chains: every problem by brute force, a verifier that is strict and quick, splits by content."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esth.errors import InputError
from esth.tasks import Problem, load_task
from esth.tasks.chain import (
    CHARACTERS,
    SPLITS,
    chain_tokens,
    code_of,
    codes_of_split,
    prompt_tokens,
    reachable,
    results,
    text_of,
)
from esth.tasks.verifiers import chain


def chains(numbers: tuple[int, ...]) -> set[str]:
    """Every chain of the numbers, spelt by hand: all orders, all operators, `eval` for the value."""
    found = set()
    for order in itertools.permutations(numbers):
        for signs in itertools.product("+-*", repeat=len(numbers) - 1):
            value, text = order[0], str(order[0])
            for sign, x in zip(signs, order[1:], strict=True):
                value = eval(f"{value}{sign}{x}")
                text += f"{sign}{x}={value:02d}"
                if not 0 <= value <= 99:
                    break
            else:
                found.add(text)
    return found


def problem(numbers: tuple[int, ...], target: str) -> Problem:
    return Problem(id="", prompt="", answer=target, numbers=numbers)


EASY = {numbers: chains(numbers) for numbers in itertools.combinations_with_replacement(range(1, 10), 3)}
"""The chains of every three numbers."""


def test_the_problems_of_three_numbers_are_those_of_brute_force() -> None:
    expected = {(numbers, text[-2:]) for numbers, texts in EASY.items() for text in texts}
    problems = load_task("chain", split="all").problems
    assert len(problems) == len(expected) == 1959
    assert {(tuple(sorted(p.numbers)), p.answer) for p in problems} == expected
    ways = [sum(text.endswith("=" + target) for text in EASY[numbers]) for numbers, target in expected]
    assert (np.median(ways), round(np.mean(np.array(ways) > 1), 2)) == (2, 0.73)


def test_the_number_of_problems_of_four_numbers() -> None:
    codes, numbers, operators = reachable(4)
    assert len(codes) == len(set(codes.tolist())) == 19_670
    rng = np.random.default_rng(0)
    for i in rng.choice(len(codes), 40, replace=False):
        targets = {int(text[-2:]) for text in chains(tuple(int(x) for x in numbers[i]))}
        code = int("".join(map(str, sorted(numbers[i], reverse=True)))) * 100
        assert {int(c) - code for c in codes[(codes >= code) & (codes < code + 100)]} == targets
        assert results(numbers[i], operators[i])[-1] == codes[i] % 100


@pytest.mark.parametrize(("difficulty", "count"), [(None, 3), ("easy", 3), ("3", 3), ("hard", 4), ("4", 4)])
def test_problems_are_as_described(difficulty: str | None, count: int) -> None:
    task = load_task("chain", difficulty=difficulty, n=60)
    for p in task.problems:
        assert len(p.numbers) == count and set(p.numbers) <= set(range(1, 10))
        assert p.prompt == "".join(map(str, p.numbers)) + f"={p.answer}:" and set(p.prompt) <= set(CHARACTERS)
        assert p.id == f"{p.answer} from {', '.join(map(str, sorted(p.numbers)))}"
        assert p.solution in chains(p.numbers) and len(p.solution) == 5 * count - 4 < task.max_tokens
        assert task.verify(p.solution, p) and task.verify(p.solution + "$", p)
    shown = [p.numbers for p in task.problems]
    assert shown != [tuple(sorted(x)) for x in shown]


@pytest.mark.parametrize("difficulty", ["3", "4"])
def test_splits_share_no_problem_whatever_the_seeds(difficulty: str) -> None:
    def content(split: str, seed: int) -> set[tuple[str, tuple[int, ...]]]:
        problems = load_task("chain", split=split, seed=seed, difficulty=difficulty, n=90).problems
        assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == 90
        return {(p.answer, tuple(sorted(p.numbers))) for p in problems}

    held = [content(s, 1) | content(s, 2) for s in SPLITS]
    assert sum(map(len, held)) == len(set.union(*held))
    count = int(difficulty)
    codes = [set(codes_of_split(count, s).tolist()) for s in SPLITS]
    assert sum(map(len, codes)) == len(set.union(*codes)) == len(reachable(count)[0])
    for drawn, split in zip(held, codes, strict=True):
        assert {int(code_of(np.array(x), np.array(int(target)))) for target, x in drawn} <= split


def test_seeds_and_sizes() -> None:
    assert sum(len(load_task("chain", split=s)) for s in SPLITS) == 1959
    assert len(load_task("chain", difficulty="4")) == 256
    first, again, other = (load_task("chain", seed=s, n=30).problems for s in (3, 3, 4))
    assert first == again != other
    assert load_task("chain", seed=3, n=20).problems == first[:20]
    with pytest.raises(InputError, match=r"difficulty '5' is not one of 3, 4, easy \(3\), hard \(4\)"):
        load_task("chain", difficulty="5")
    with pytest.raises(InputError, match="split validation has 95 problems, 96 were asked for"):
        load_task("chain", split="validation", n=96)


# The verifier


def test_the_verifier_is_right_about_every_chain_of_three_numbers() -> None:
    """Of the numbers 1, 2, 2 and of 2, 4, 7, against every target: right for their own last value only."""
    for numbers in ((1, 2, 2), (2, 4, 7)):
        for target in range(100):
            right = {t for texts in EASY.values() for t in texts if chain(t, problem(numbers, f"{target:02d}"))}
            assert right == {t for t in EASY[numbers] if int(t[-2:]) == target}


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("9+7=16-3=13", True),
        ("9+7=16-3=13$", True),
        ("9+7=16-3=13$$$$", True),
        ("9+7=16-3=13$7-3=04", True),  # nothing after the end of the text is part of the response
        ("7-3=04+9=13", True),
        ("9+7=15-2=13", False),
        ("9+7=16-3=14", False),
        ("9+7=17-3=13", False),  # an equation is wrong, the target is there
        ("9+7=15-3=13", False),
        ("7-3=4+9=13", False),
        ("7-3=004+9=13", False),
        ("9+4=13", False),
        ("9+7=16-3=13+1=14", False),
        ("9+7=16-3=13 ", False),
        (" 9+7=16-3=13", False),
        ("9+7=16-3=13\n", False),
        ("9+7=16-3=13:", False),
        ("$9+7=16-3=13", False),
        ("9+7=16$-3=13", False),
        ("9+7=16-3=1٣", False),
        ("9+7=16−3=13", False),
        ("3-9=-6+7=01", False),
        ("9+7=16=16-3=13", False),
        ("", False),
        ("13", False),
    ],
)  # fmt: skip
def test_verdicts(response: str, right: bool) -> None:
    assert chain(response, problem((9, 3, 7), "13")) is right


def test_a_number_is_used_as_often_as_it_is_given() -> None:
    assert chain("2+2=04+9=13", problem((2, 9, 2), "13"))
    assert not chain("2+2=04+9=13", problem((2, 9, 9), "13"))
    assert not chain("9*9=81+9=90", problem((9, 9), "90")) and chain("9*9=81", problem((9, 9), "81"))
    assert not chain("9*9=81*9=729", problem((9, 9, 9), "729"))
    assert not chain("2-5=-3", problem((2, 5), "-3"))


@settings(max_examples=300, deadline=None)
@given(
    response=st.text(alphabet=CHARACTERS, max_size=40) | st.text(max_size=40),
    numbers=st.lists(st.integers(-5, 12), max_size=5),
    answer=st.text(max_size=3),
)
def test_the_verifier_never_raises_and_accepts_only_chains(response: str, numbers: list[int], answer: str) -> None:
    if chain(response, problem(tuple(numbers), answer)):
        assert response.partition("$")[0] in chains(tuple(numbers))


@settings(max_examples=300, deadline=None)
@given(numbers=st.lists(st.integers(1, 9), min_size=3, max_size=4), data=st.data())
def test_one_changed_character_makes_a_right_chain_wrong_or_another_right_one(numbers: list[int], data) -> None:
    solutions = chains(tuple(numbers))
    if not solutions:
        return
    text = data.draw(st.sampled_from(sorted(solutions)))
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from(CHARACTERS)) + text[at + 1 :]
    right = changed in solutions and changed[-2:] == text[-2:]
    assert chain(changed, problem(tuple(numbers), text[-2:])) is right


@pytest.mark.parametrize("text", ["1+1=02" * 200_000, "1" * 10**6, "9+7=16-3=13" + "$" * 10**6, "+1=02" * 10**5])
def test_long_responses(text: str) -> None:
    assert chain(text, problem((9, 3, 7), "13")) is text.startswith("9+7=16-3=13")


# Tokens


def test_tokens_spell_prompts_and_chains() -> None:
    numbers, operators = np.array([[9, 7, 3], [7, 3, 9], [1, 2, 9]]), np.array([[0, 1], [1, 0], [1, 0]])
    values = results(numbers, operators)
    assert values.tolist() == [[16, 13], [4, 13], [-1, -1]]
    spelt = [text_of(row) for row in chain_tokens(numbers, operators, values)[:2]]
    assert spelt == ["9+7=16-3=13$", "7-3=04+9=13$"]
    assert [text_of(row) for row in prompt_tokens(numbers, np.array([13, 7, 0]))] == ["973=13:", "739=07:", "129=00:"]
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 16 and re.fullmatch(r"0123456789.*\$", CHARACTERS)


def test_results_of_every_pair_of_equations() -> None:
    grid = np.indices((9, 9, 9, 3, 3)).reshape(5, -1).T
    numbers, operators = grid[:, :3] + 1, grid[:, 3:]
    for x, o, values in zip(numbers.tolist(), operators.tolist(), results(numbers, operators).tolist(), strict=True):
        first = eval(f"{x[0]}{'+-*'[o[0]]}{x[1]}")
        second = eval(f"{first}{'+-*'[o[1]]}{x[2]}")
        first_fits = 0 <= first <= 99
        assert values == [first if first_fits else -1, second if first_fits and 0 <= second <= 99 else -1]
