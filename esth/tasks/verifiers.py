r"""Verifiers v(x, y) ∈ {0, 1}: whether a response answers its problem.

Each takes any text a model may write and a `Problem`, and returns a bool. It never raises, never evaluates text as code
and reads at most the last 16,384 characters; all but `math` take well under 10 ms. Right is a response …

number      whose answer (`esth.tasks.numbers` has the rules) is the reference number
text        whose last line (or last box) is the reference, ends with it, or has it as its first clause
mixed       judged by `number` where the reference is a number, by `text` elsewhere
choice      that names the letter of the right option, and that letter only
label       that begins with the right label word
countdown   whose expression in the given numbers, each at most once, has the target's value (`esth.tasks.expression`)
chain       whose equations are true, use each given number once, and end in the target (`esth.tasks.chain`)
math        whose answer equals the reference by algebra (`esth.tasks.algebra`, extra `math`)
"""

import re
from operator import add, mul, sub

from esth.tasks.algebra import equivalent
from esth.tasks.expression import MAX_LENGTH, evaluate
from esth.tasks.numbers import TAIL, find_number, last_box, read_reference, tail_of
from esth.tasks.task import Problem, Verifier

LETTERS = "ABCDEFGHIJ"


def number(response: str, problem: Problem) -> bool:
    """The response's number agrees with the reference, exactly or up to the reference's own rounding."""
    reference, answer = read_reference(problem.answer), find_number(response)
    return reference is not None and answer is not None and answer.agrees(reference)


def text(response: str, problem: Problem) -> bool:
    """The final line is the reference, ends with it ("She is Mrs. Hilt."), or begins with it as a clause ("Yes, …").

    Case, punctuation and markup do not count. "It is not John" does not end with John.
    """
    reference, line = _words(problem.answer), _final_line(response)
    words = _words(line)
    if not reference or not words:
        return False
    ends = words[-len(reference) :] == reference and words[-len(reference) - 1 : -len(reference)] != ["not"]
    return ends or _words(re.split(r"[,;!?—]|[.:](?=\s|$)", line, maxsplit=1)[0]) == reference


def mixed(response: str, problem: Problem) -> bool:
    """`number` where the reference is a number, `text` elsewhere (ASDiv has both)."""
    return (text if read_reference(problem.answer) is None else number)(response, problem)


# The letter an answer is declared to be, unless another one is offered beside it or it is a word ("A planet …").
_DECLARED = re.compile(
    r"\b(?i:answer|(?:correct|right|best) (?:option|choice))(?:\*\*)?(?:[^.:\n]{0,40}?(?i: is)|\s?[:=])"
    r"[\s*:=$(\[\"'`]{0,8}(?:(?i:option|choice|letter)\s{1,2}[(*]{0,3})?(?P<letter>[A-J])(?![\w'’])"
    r"(?![)\]*]{0,3}(?:\s(?i:or|and)\s\(?[A-J]\b|\s?[,/&]\s?\(?[A-J](?=\s*(?:[.,)\n]|$))))"
)
_BARE = re.compile(r"[\s*(\[$\"'`]*(?:(?i:answer|option)[\s*:]*)?(?P<letter>[A-Ja-j])[\s*)\]$.:\"'`]*")
_LED = re.compile(r"[\s*(\[\"'`]*(?P<letter>[A-J])[*\])]*(?:[.):\]]|\s[-–—])")


def choice(response: str, problem: Problem) -> bool:
    r"""The response names the reference's letter.

    The letter is, in this order: alone in the last `\boxed{}`; the last one declared ("The correct answer is (B)",
    "Answer: B"), without another beside it ("A or B"); alone on the last line, or on the first; or at the head of a
    response of one line ("B. Photosynthesis"). A list of the options answers nothing.
    """
    return _letter(tail_of(response)) == problem.answer.upper()


def _letter(response: str) -> str | None:
    box = last_box(response)
    if box is not None:
        found = _BARE.fullmatch(re.sub(r"\\(?:text|textbf|mathbf|mathrm) ?\{([^{}]*)\}", r"\1", box[1]))
        return found["letter"].upper() if found else None
    *_, declared = None, *_DECLARED.finditer(response)
    if declared is not None:
        return declared["letter"]
    lines = response.strip().split("\n")
    for line in (lines[-1], lines[0]):
        if (found := _BARE.fullmatch(line[:32])) and len(line) <= 32:
            return found["letter"].upper()
    found = _LED.match(lines[0]) if len(lines) == 1 else None
    return found["letter"] if found else None


def label(response: str, problem: Problem) -> bool:
    """The first word is the reference label, in any case."""
    reference, words = _words(problem.answer), _words(response[:TAIL])
    return bool(reference) and words[: len(reference)] == reference


_CLAUSE = re.compile(r"(?:.*(?::|\bis\b))?", re.DOTALL)
_OPERATORS = (("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("\\left", ""), ("\\right", ""))


def countdown(response: str, problem: Problem) -> bool:
    r"""The expression answered with has the target as its exact value.

    The expression stands in the last `<answer>…</answer>`, else in the last `\boxed{…}`, else on the last line, after a
    colon or the word "is" where there is one. It may be written as an equation with the target on the other side.
    """
    tail = tail_of(response)
    end = tail.rfind("</answer>")
    start = tail.rfind("<answer>", 0, max(end, 0))
    box = last_box(tail)
    answer = tail[start + 8 : end] if start >= 0 else box[1] if box is not None else tail
    line = answer.strip().rpartition("\n")[2]
    for command, operator in _OPERATORS:
        line = line.replace(command, operator)
    clause = _CLAUSE.match(line[-2 * MAX_LENGTH :])
    line = line[-2 * MAX_LENGTH :][clause.end() if clause else 0 :].strip(" *`$.\r\\")
    sides = [side.strip() for side in line.split("=")]
    if len(sides) == 2 and problem.answer in sides:
        sides.remove(problem.answer)
    value = evaluate(sides[0], problem.numbers) if len(sides) == 1 else None
    return value is not None and str(value) == problem.answer


_STEP = re.compile(r"([-+*])([1-9])=([0-9]{2})")
_CHAIN = re.compile(rf"[1-9](?:{_STEP.pattern})+")
_JOIN = {"+": add, "-": sub, "*": mul}


def chain(response: str, problem: Problem) -> bool:
    """The response is a chain of true equations, `9+7=16-3=13`: each given number once, and the target at the end.

    Nothing else may stand before it, nor between it and the end of the response or the first `$`.
    """
    length = 5 * len(problem.numbers) - 4
    line = response[: length + 1].partition("$")[0]
    if len(line) != length or _CHAIN.fullmatch(line) is None:
        return False
    value, used = int(line[0]), [int(line[0])]
    for sign, number, result in _STEP.findall(line):
        value = _JOIN[sign](value, int(number))
        used.append(int(number))
        if value != int(result):
            return False
    return sorted(used) == sorted(problem.numbers) and line[-2:] == problem.answer


def math(response: str, problem: Problem) -> bool:
    """The response's answer equals the reference by algebra, decided within seconds in a process of its own."""
    return equivalent(tail_of(response), problem.answer)


VERIFIERS: dict[str, Verifier] = {v.__name__: v for v in (number, text, mixed, choice, label, countdown, chain, math)}


def _words(line: str) -> list[str]:
    """Words in lower case; a dot or an apostrophe within a word joins it: p.m., Lisa's."""
    return re.findall(r"\w+", re.sub(r"(?<=[^\W\d])[.'’](?=[^\W\d])", "", line.casefold()))


def _final_line(response: str) -> str:
    tail = tail_of(response)
    box = last_box(tail)
    return (tail.strip().rpartition("\n")[2] if box is None else box[1])[-1024:]
