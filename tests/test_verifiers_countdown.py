"""Countdown expressions against Python's own grammar, walked in exact arithmetic by an independent evaluator."""

import ast
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esth.tasks import Problem
from esth.tasks.expression import evaluate
from esth.tasks.verifiers import countdown

GIVEN = (1, 2, 3, 5, 8, 8)


def walk(node: ast.AST) -> tuple[Fraction, list[int]] | None:
    """Value and numbers of a Python expression of whole numbers and + - * /; None for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value), [node.value]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return None
    left, right = walk(node.left), walk(node.right)
    if left is None or right is None or (isinstance(node.op, ast.Div) and right[0] == 0):
        return None
    (a, used), (b, more) = left, right
    value = (
        a + b if isinstance(node.op, ast.Add)
        else a - b if isinstance(node.op, ast.Sub)
        else a * b if isinstance(node.op, ast.Mult)
        else a / b
    )  # fmt: skip
    return value, used + more


def oracle(text: str) -> Fraction | None:
    try:
        found = walk(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        return None
    within = found is not None and all(found[1].count(x) <= GIVEN.count(x) for x in found[1])
    return found[0] if found is not None and within else None


tokens = st.lists(st.sampled_from([*map(str, GIVEN), "7", *"+-*/()", " "]), max_size=14).map("".join)
expressions = st.recursive(
    st.sampled_from([*map(str, GIVEN), "7"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner, st.booleans()).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})" if t[3] else f"{t[0]}{t[1]}{t[2]}"
    ),
    max_leaves=7,
)


@settings(deadline=None, max_examples=1500)
@given(tokens | expressions)
def test_against_pythons_grammar(text: str) -> None:
    assert evaluate(text, GIVEN) == oracle(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/(3-8/3)", None),  # 3 is given once
        ("(8+8)/(5-3)", 8),
        ("8-5-3", 0),  # from left to right
        ("8/2/2", None),
        ("8/5/8", Fraction(1, 5)),
        ("1+2*3", 7),
        ("2 × 3 − 1", 5),
        ("8 ÷ 8", 1),
        ("[1+2]*3", 9),
        ("-3+5", None),
        ("+3", None),
        ("1 2", None),
        ("12", None),
        ("2(3)", None),
        ("(1+2", None),
        ("1+2)", None),
        ("()", None),
        ("", None),
        ("1/(2-2)", None),
        ("3/(8-8)", None),
        ("08", None),
        ("8.0", None),
        ("1e1", None),
        ("2**3", None),
        ("2^3", None),
        ("8//3", None),
        ("8%3", None),
        ("\u0663", None),
        ("²", None),
        ("__import__('os')", None),
    ],
)
def test_value(text: str, value: Fraction | int | None) -> None:
    assert evaluate(text, GIVEN) == value


def test_depth_and_length_are_bounded() -> None:
    assert evaluate("(" * 32 + "1" + ")" * 32, GIVEN) == 1
    assert evaluate("(" * 33 + "1" + ")" * 33, GIVEN) is None
    assert evaluate("1" + " " * 255, GIVEN) == 1
    assert evaluate("1" + " " * 256, GIVEN) is None
    assert evaluate("(" * 1_000_000, GIVEN) is None


PROBLEM = Problem(id="", prompt="", answer="24", numbers=(3, 3, 8, 8))


@pytest.mark.parametrize(
    "response",
    [
        "<answer>8 / (3 - 8 / 3)</answer>",
        "<answer>8 / (3 - 8 / 3) = 24</answer>",
        "<answer> 24 = 8/(3-8/3) </answer> and that is it, 1 + 1",
        "<think>8 + 8 = 16</think>\n<answer>8 × 3</answer>",
        "<answer>1</answer> or rather <answer>8*3</answer>",
        "I multiply.\n8 * 3",
        "The answer is 8 * 3 = 24.",
        "Answer: **8 * 3**",
        r"\boxed{8 \times 3}",
        r"$\boxed{8 \div \left(3 - 8 \div 3\right)}$",
        "`8 * 3`",
    ],
)
def test_right(response: str) -> None:
    assert countdown(response, PROBLEM) is True


@pytest.mark.parametrize(
    "response",
    [
        "<answer>24</answer>",  # 24 is not one of the numbers
        "<answer>3 * 3 + 8 + 8 - 1</answer>",
        "<answer>8 * (3 + 3 - 3)</answer>",  # a number used more often than it is given
        "<answer>8 + 8 + 8</answer>",
        "<answer>8 * 3 = 25</answer>",
        "<answer>8 * 3 = 24 = 24</answer>",
        "<answer>8 + 3 = 11; 11 + 13 = 24</answer>",
        "<answer>8 * 3",  # cut off: what would have followed is unknown, and a tag is no expression
        "<answer></answer>",
        "8 * 3\nIs that right?",
        "-8 * -3",
        "sqrt(8)*3",
        "24 * 1",
        "",
        "9**9**9**9",
    ],
)
def test_wrong(response: str) -> None:
    assert countdown(response, PROBLEM) is False


def test_a_reference_that_is_no_number_is_never_met() -> None:
    assert countdown("3", Problem(id="", prompt="", answer="x", numbers=(3,))) is False
    assert countdown("y", Problem(id="", prompt="", answer="None", numbers=(3,))) is False
