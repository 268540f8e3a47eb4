r"""Which number a response answers with, as an exact rational.

Where the answer stands, in this order:

1. In the last closed ``\boxed{…}`` or on the last ``#### …`` line, whichever comes later, if it holds one number with
   at most a name before it and a unit after it (``x = 18``, ``\$18``, ``18 \text{ apples}``). A box that holds anything
   else (``2^{10}``, ``3x + 4``, ``(1, 2)``) makes the response unreadable; a ``####`` line that does (``#### Step 1``,
   ``#### 1. Add them``) is a heading and is passed over.
2. Otherwise the last number of the text: 20 in "18 of 20", 2 in "1, 2", 2024 in "18 in 2024".

How a number may be spelled: ``1,234.50`` (commas at thousands only), ``.5``, ``18.`` and ``18.0`` (both 18),
``1.5e3``, ``-3`` and ``−3``, ``$5``, ``-$5``, ``3/4``, ``1 3/4``, ``\frac{3}{4}``, ``1{,}234``, ``75%``,
``1.5 million``, with markdown or LaTeX around it. Percent and words of scale may be in the number or asked for by the
question: 75% agrees with both 75 and 0.75, "1.5 million" with both 1.5 and 1,500,000.

What is passed over, because it is part of a word or of a unit: digits after a letter or an underscore (``H2O``,
``x_1``, ``COVID-19``), exponents (the 2 of ``cm^2``).

What makes the response unreadable, hence wrong, when it comes last: the right-hand side of an unfinished calculation
or of a range (``9 + 9``, ``5-3``, ``9 × 2``, ``48/2``: a quotient that comes out whole was not carried out), a power
(``2^10``), a multiple of a symbol (``3x``, ``2\pi``, ``3\sqrt{2}``), numbers in braces of other commands
(``\sqrt{2}``), clock times, ratios, dates and unspaced lists (``3:30``, ``1/2/2024``, ``1,2``), division by zero, a
literal of over 30 digits, and digits of other scripts. A minus sign counts as a sign only directly before its number
and not after a letter, digit or closing bracket: "- 3" is an item of a list, "5 - 3" and "5 -3" are differences.

Only the last 16,384 characters are read, so the time is bounded whatever the response.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

TAIL = 16_384
LONGEST_MARKED = 128
WINDOW = 256
LONGEST_LITERAL = 30
ROUNDED_FROM = 3
"""A reference with this many decimals or more is taken as rounded: 3.333 for 10/3."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was spelled.

    Attributes:
        value: the number without its scale.
        scale: 1/100 for a percentage, 10⁶ for millions, else 1.
        decimals: digits after the decimal point.
    """

    value: Fraction
    scale: Fraction = Fraction(1)
    decimals: int = 0

    def agrees(self, reference: "Number") -> bool:
        """Whether this is the reference's number, up to the reference's rounding if it has 3 decimals or more."""
        unscaled = self.value, reference.value
        scaled = self.value * self.scale, reference.value * reference.scale
        pairs = [scaled, unscaled] if (self.scale == 1) != (reference.scale == 1) else [scaled]
        slack = Fraction(1, 2 * 10**reference.decimals) if reference.decimals >= ROUNDED_FROM else 0
        return any(abs(a - b) <= slack for a, b in pairs)


# Possessive quantifiers and atomic groups: no pattern here gives back digits it has taken.
_INTEGER = r"(?>(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])|[0-9]+)"
_DECIMAL = rf"(?>{_INTEGER}(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]{{1,2}}(?![0-9A-Za-z]|\.[0-9]))?+|(?<![0-9.])\.[0-9]++)"
_NUMBER = re.compile(
    r"(?P<sign>(?<![-0-9A-Za-z)}\]%.])[-+]\(?)?"
    r"(?P<currency>[$€£¥] ?(?P<inner_sign>-)?)?"
    rf"(?:(?P<whole>[0-9]++) (?=[0-9]++ ?/ ?[0-9]))?(?P<parts>{_DECIMAL}(?: ?/ ?{_DECIMAL})*+)"
)
_SCALE = re.compile(r"\$? ?(?:(?P<percent>%|percent\b)|(?P<word>thousand|million|billion|trillion)s?\b)", re.IGNORECASE)
_WORDS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

# What stands directly before a number …
_IN_COMMAND = re.compile(r"(?:\\(?:sqrt|log|ln|sin|cos|tan|[dt]?frac|binom|pi) ?\{?|\\[A-Za-z]+\{?|(?<![_^])\{)$")
_IN_WORD = re.compile(r"(?:[^\W0-9]-?|[_^]\{?)$")
_OPERAND = re.compile(r"(?:[0-9][.,:]|[0-9)}%] ?[-–*/x] ?[($]*|[\w)}%] ?[+×·÷] ?[($]*|[0-9]\*\*)$")
_AFTER_OPERAND = re.compile(r"[0-9)}%] $")
# … and directly after it.
_SYMBOLIC = re.compile(
    r"[ )]?(?:π|√|\^|\\(?:pi|sqrt|[dt]?frac|log|ln|sin|cos|tan|theta|alpha|beta|binom)(?![A-Za-z]))"
    r"|\*\*[0-9(]|:[0-9]|[eE][-+]?[0-9]|[\d²³¹⁰-ⁿ½¼¾⅐-⅞]|(?: ?[nxyz]|[ik])(?![A-Za-z])"
)

_SPACES = str.maketrans({"\u00a0": " ", "\u2009": " ", "\u202f": " ", "\t": " ", "−": "-"})
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathbf|mathrm|mathit|mbox|mathbb) ?\{([^{}]*)\}")
_FRACTION = re.compile(r"(?P<whole>[0-9] ?)?\\[dt]?frac ?(?:\{ ?(-?[0-9]+) ?\}|([0-9])) ?(?:\{ ?([0-9]+) ?\}|([0-9]))")
_LATEX = (
    (re.compile(r"\{,\}|\\,(?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "×"),
    (re.compile(r"\\div(?![A-Za-z])"), "÷"),
    (re.compile(r"\^ ?\{? ?\\circ(?![A-Za-z])\}?"), "°"),
    (re.compile(r"\\(?:[,;: ]|(?:left|right|approx|quad|qquad|displaystyle)(?![A-Za-z]))"), " "),
)

_NAME = re.compile(r"[\s(*$]*(?:[A-Za-z]\w{0,9}\s?[=≈:])?[\s(*$]*")
_UNIT = re.compile(
    r"(?!\.\s*\w)\**(?:/(?=[A-Za-z]{2})|(?<=[A-Za-z])/|[A-Za-z\s.°%$€£(),'\"])*(?:[²³]|\^\{?[23]\}?)?[\s.)*$]*"
)


def tail_of(response: str) -> str:
    """The part of a response that is read: all of a short one, else its end, with no number cut in two."""
    return response if len(response) <= TAIL else response[-TAIL:].lstrip("0123456789.,/")


def find_number(response: str) -> Number | None:
    """The number a response answers with, or None where there is none that can be read (see the module)."""
    tail = tail_of(response)
    box, mark = last_box(tail), tail.rfind("####")
    if box is None or mark > box[0]:
        line = tail[mark + 4 :].split("\n", 1)[0] if mark >= 0 else ""
        number = _sole_number(line)
        if number is not None:
            return number
    return _last_number(tail) if box is None else _sole_number(box[1])


@lru_cache(maxsize=65_536)
def read_reference(answer: str) -> Number | None:
    """A reference answer as its publisher wrote it (`9 (apples)`, `2,125`, `145.0`, a text ending in `#### 18`)."""
    marked = last_box(answer)
    return _sole_number(answer.rpartition("####")[2].strip().split("\n", 1)[0] if marked is None else marked[1])


def last_box(text: str) -> tuple[int, str] | None:
    r"""Where the last `\boxed{…}` begins, and its contents; None where it is missing or not closed."""
    start = text.rfind("\\boxed{")
    depth = 0
    for end in range(start + 6, min(len(text), start + 7 + 4 * LONGEST_MARKED)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return start, text[start + 7 : end]
    return None


def _sole_number(text: str) -> Number | None:
    """The number of a text that is one number, with at most a name before it and a unit after it."""
    if len(text) > LONGEST_MARKED:
        return None
    text = _plain(text)
    found = list(_numbers(text))
    if len(found) != 1:
        return None
    ((start, end, number),) = found
    return number if _NAME.fullmatch(text, 0, start) and _UNIT.fullmatch(text, end) else None


def _last_number(text: str) -> Number | None:
    last_digit = max(text.rfind(digit) for digit in "0123456789")
    found = list(_numbers(_plain(text[max(0, last_digit - WINDOW) : last_digit + 64]))) if last_digit >= 0 else []
    return found[-1][2] if found else None


def _numbers(text: str) -> Iterator[tuple[int, int, Number | None]]:
    """Where each number of a plain text begins and ends, and the number, None where it cannot be read."""
    for found in _NUMBER.finditer(text):
        start, end = found.span()
        before = text[max(0, start - 16) : start]
        if found["currency"] is None and not _IN_COMMAND.search(before) and _IN_WORD.search(before):
            continue
        signed = (found["sign"] or "+")[0] == "-" or found["inner_sign"] is not None
        unreadable = (
            _IN_COMMAND.search(before)
            or _OPERAND.search(before)
            or (found["sign"] and _AFTER_OPERAND.search(before))
            or _SYMBOLIC.match(text, end)
        )
        number = None if unreadable else _read(found["whole"], found["parts"])
        scale = _SCALE.match(text, end)
        if number is not None:
            value = -number.value if signed else number.value
            number = Number(value, _scale(scale), number.decimals)
        yield start, end if scale is None else scale.end(), number


def _read(whole: str | None, parts: str) -> Number | None:
    """The number spelled by an optional whole part and one literal or the quotient of two."""
    literals = [literal.strip().replace(",", "") for literal in parts.split("/")]
    if len(literals) > 2 or max(map(len, literals)) > LONGEST_LITERAL:
        return None
    if len(literals) == 1:
        return Number(Fraction(literals[0]), decimals=len(literals[0].lower().partition("e")[0].partition(".")[2]))
    above, below = map(Fraction, literals)
    if below == 0 or (above / below).denominator == 1:
        return None
    if whole is not None and above < below and len(whole) <= LONGEST_LITERAL:
        return Number(int(whole) + above / below)
    return Number(above / below)


def _scale(found: re.Match[str] | None) -> Fraction:
    if found is None:
        return Fraction(1)
    return Fraction(1, 100) if found["percent"] else Fraction(_WORDS[found["word"].lower()])


def _plain(text: str) -> str:
    """`text` with the LaTeX that surrounds or spells numbers written out."""
    text = text.translate(_SPACES)
    if "\\" not in text and "{,}" not in text:
        return text
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    # Text commands come last: only now are the braces of fractions and thousands gone from inside them.
    return _TEXT.sub(r"\1", _FRACTION.sub(_spell_fraction, text))


def _spell_fraction(found: re.Match[str]) -> str:
    whole, above, above_digit, below, below_digit = found.groups()
    return f"{whole.strip() + ' ' if whole else ''}{above or above_digit}/{below or below_digit}"
