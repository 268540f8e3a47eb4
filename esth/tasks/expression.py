"""Countdown expressions read by a grammar of their own, in exact rationals.

    sum     = product {("+" | "-") product}
    product = operand {("*" | "/") operand}
    operand = number | "(" sum ")"

There is no sign, no power and no joining of digits: every number of the expression is one of those given, used at most
as often as it was given. Text that is not such an expression has no value; it is never evaluated as code.
"""

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

MAX_LENGTH = 256
MAX_DEPTH = 32

_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_ALPHABET = re.compile(r"[-+*/() 0-9]*")
_SPELLINGS = str.maketrans(
    {"×": "*", "·": "*", "∙": "*", "∗": "*", "x": "*", "X": "*", "÷": "/", "∕": "/", "−": "-", "[": "(", "]": ")"}
)


def evaluate(text: str, numbers: Iterable[int]) -> Fraction | None:
    """The exact value of `text`, or None where it is no expression in `numbers`.

    None also for a division by zero anywhere, more than 256 characters, or more than 32 opening brackets.
    """
    text = text.translate(_SPELLINGS)
    if len(text) > MAX_LENGTH or text.count("(") > MAX_DEPTH or not _ALPHABET.fullmatch(text):
        return None
    tokens = _TOKEN.findall(text)
    used, given = Counter(t for t in tokens if t.isdigit()), Counter(map(str, numbers))
    if not used <= given:
        return None
    tokens.reverse()
    try:
        value = _sum(tokens)
    except (IndexError, ZeroDivisionError, SyntaxError):
        return None
    return None if tokens else value


def _sum(tokens: list[str]) -> Fraction:
    """Consumes one sum from the end of the reversed `tokens`."""
    value = _product(tokens)
    while tokens and tokens[-1] in "+-":
        value = value + _product(tokens) if tokens.pop() == "+" else value - _product(tokens)
    return value


def _product(tokens: list[str]) -> Fraction:
    value = _operand(tokens)
    while tokens and tokens[-1] in "*/":
        value = value * _operand(tokens) if tokens.pop() == "*" else value / _operand(tokens)
    return value


def _operand(tokens: list[str]) -> Fraction:
    token = tokens.pop()
    if token.isdigit():
        return Fraction(int(token))
    if token != "(":
        raise SyntaxError("an operand is missing")
    value = _sum(tokens)
    if tokens.pop() != ")":
        raise SyntaxError("a bracket is not closed")
    return value
