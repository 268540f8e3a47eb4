"""Attacks the verifiers: nothing may raise, and everything but `math` must be done in 10 ms.

    python -m esth.tasks.fuzz --count 1e6

Answers come from three sources: a grammar that spells a known answer in many ways, and near misses of it, so that the
verdict is known too; real responses of a language model, mutated; and texts built to hurt. Every answer is judged by
every verifier. An answer that took too long is timed again, so that a pause of the machine is not held against it.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from esth.tasks.files import read_records
from esth.tasks.responses import RESPONSES
from esth.tasks.task import Problem
from esth.tasks.verifiers import LETTERS, VERIFIERS

FAST = tuple(name for name in VERIFIERS if name != "math")
LIMIT = 0.010
"""Seconds a verdict may take, but for `math`, which has its own limit."""
HURTFUL_SHARE = 0.002
"""Of all answers; each is long, up to a million characters."""


@dataclass(frozen=True)
class Attack:
    """An answer, its problem, and the verdict of one verifier where the answer's construction settles it."""

    response: str
    problem: Problem
    verifier: str | None = None
    verdict: bool | None = None


@dataclass
class Report:
    """What a fuzz run saw.

    Attributes:
        slowest: per verifier, the longest time of a verdict in seconds and the answer that took it.
        raised: per failing answer, the verifier and the exception.
        mistaken: answers whose known verdict was missed.
    """

    answers: int = 0
    verdicts: int = 0
    known: int = 0
    right: int = 0
    slowest: dict[str, tuple[float, str]] = field(default_factory=dict)
    raised: list[tuple[str, str, str]] = field(default_factory=list)
    mistaken: list[Attack] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Nothing raised, nothing was mistaken, nothing took over 10 ms."""
        return (
            not self.raised
            and not self.mistaken
            and all(seconds <= LIMIT for name, (seconds, _) in self.slowest.items() if name in FAST)
        )


def fuzz(
    count: int,
    seed: int = 0,
    *,
    corpus: tuple[str, ...] = RESPONSES,
    verifiers: tuple[str, ...] = FAST,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Judges `count` answers by each of the verifiers."""
    report = Report()
    for attack in attacks(count, seed, corpus):
        report.answers += 1
        for name in verifiers:
            verdict = _judge(name, attack, report)
            if name == attack.verifier:
                report.known += 1
                report.right += attack.verdict is True
                if verdict is not attack.verdict:
                    report.mistaken.append(attack)
        if progress is not None and report.answers % 1000 == 0:
            progress(report.answers)
    return report


def _judge(name: str, attack: Attack, report: Report) -> bool | None:
    verify = VERIFIERS[name]
    begin = time.perf_counter()
    try:
        verdict = verify(attack.response, attack.problem)
    except Exception as error:
        report.raised.append((name, attack.response[-200:], repr(error)))
        return None
    seconds = time.perf_counter() - begin
    report.verdicts += 1
    if seconds > report.slowest.get(name, (0.0, ""))[0]:
        for _ in range(5):
            begin = time.perf_counter()
            verify(attack.response, attack.problem)
            seconds = min(seconds, time.perf_counter() - begin)
        report.slowest[name] = max(report.slowest.get(name, (0.0, "")), (seconds, attack.response[-200:]))
    return verdict


def attacks(count: int, seed: int, corpus: tuple[str, ...] = RESPONSES) -> Iterator[Attack]:
    """`count` answers of all sources, the same for the same seed."""
    rng = random.Random(seed)
    grammar = (_spelled_number, _unreadable_number, _countdown, _choice)
    for _ in range(count):
        kind = rng.random()
        if kind < HURTFUL_SHARE:
            yield Attack(_hurtful(rng), _any_problem(rng))
        elif kind < 0.5:
            yield Attack(_mutated(rng, corpus), _any_problem(rng))
        else:
            yield rng.choice(grammar)(rng)


# Grammar: answers whose verdict is known from how they were built.

_LEADS = ("", "The answer is ", "So she has ", "9 + 9 = 18, so it is ", "Step 1: 3 apples.\n\nAnswer: ", "= ", "x = ")
_TRAILS = ("", ".", " apples.", "\n", " in all!", " dollars\n\n", " (see above)")
_FRAMES = (
    "{}",
    "**{}**",
    "${}$",
    "\\({}\\)",
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    "\n#### {}",
    "`{}`",
    "({})",
    "\\text{{{}}}",
)


def _number_problem(reference: Fraction) -> Problem:
    return Problem(id="", prompt="", answer=str(reference))


def _spelled_number(rng: random.Random) -> Attack:
    value, spelling = _spelling(rng)
    sign = rng.choice(("", "", "-", "−"))
    value = -value if sign else value
    response = rng.choice(_LEADS) + rng.choice(_FRAMES).format(sign + spelling) + rng.choice(_TRAILS)
    right = rng.random() < 0.5
    return Attack(response, _number_problem(value if right else value + 1), "number", right)


def _spelling(rng: random.Random) -> tuple[Fraction, str]:
    n, d = rng.randrange(10 ** rng.randint(1, 7)), rng.randint(2, 99)
    proper = Fraction(rng.randrange(1, d), d)
    above, below = proper.as_integer_ratio()
    cents = Fraction(n, 100)
    whole = (f"{n}", f"{n:,}", f"{n}.00", f"{n:,}".replace(",", "{,}"), f"{n}%", f"{n}\\%", f"{n} million", f"{n}.")
    forms = (
        *((Fraction(n), spelling) for spelling in whole),
        (Fraction(n * 10**6), f"{n} million"), (Fraction(n, 100), f"{n} percent"),
        (cents, f"{n / 100:.2f}"), (cents, f"{n // 100:,}.{n % 100:02d}"), (proper, f"{above}/{below}"),
        (proper, f"\\frac{{{above}}}{{{below}}}"), (proper, f"\\dfrac{{{above}}}{{{below}}}"),
        (n + proper, f"{n} {above}/{below}"), (n + proper, f"{n}\\frac{{{above}}}{{{below}}}"),
    )  # fmt: skip
    return rng.choice(forms)


def _unreadable_number(rng: random.Random) -> Attack:
    """Texts that end in a number that answers nothing, against that very number."""
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    form = rng.choice((
        "{a} + {b}", "{a}+{b}", "{a} - {b}", "{a}-{b}", "{a} × {b}", "{a}*{b}", "{a} x {b}", "{c}/{b}", "{c} / {b}",
        "{a}^{b}", "{a}^{{{b}}}", "{a}**{b}", "{b}x", "{a}\\sqrt{{{b}}}", "\\sqrt{{{b}}}", "{b}\\pi", "{a}:{b}",
        "{a},{b}", "{a}/{b}/2024", "{b}/0", "H{b}O", "x_{b}", "{a} \\times {b}", "\\boxed{{{b}", "\\boxed{{{a}, {b}}}",
        "\\boxed{{{b}y + {a}}}", "\\frac{{\\sqrt{{{a}}}}}{{{b}}}",
    ))  # fmt: skip
    return Attack(form.format(a=a, b=b, c=a * b), _number_problem(Fraction(b)), "number", False)


_EXPRESSION_FRAMES = (
    "<answer>{e}</answer>", "<answer>{e} = {t}</answer>", "{t} = {e}", "\\boxed{{{e}}}", "{e}", "Answer: {e}.", "`{e}`",
)  # fmt: skip


def _countdown(rng: random.Random) -> Attack:
    """A random expression: right for its value, wrong for another value or where one of its numbers is not given."""
    used = [rng.randint(1, 30) for _ in range(rng.randint(1, 6))]
    value, text, _ = _tree(rng, used)
    given, case = list(used), rng.randrange(4)
    whole = value is not None and value.denominator == 1
    target = value if whole and case > 0 else Fraction(rng.randint(10, 99))
    if case == 1:
        given[rng.randrange(len(given))] += 100
    frame = rng.choice(_EXPRESSION_FRAMES)
    response = rng.choice(("", "Let me try 3 + 4.\n")) + frame.format(e=text, t=target)
    problem = Problem(id="", prompt="", answer=str(target), numbers=tuple(given))
    return Attack(response, problem, "countdown", value == target and given == used)


def _tree(rng: random.Random, numbers: list[int]) -> tuple[Fraction | None, str, int]:
    """Value (None after a division by zero), spelling with the brackets it needs, and binding strength (1 to 3)."""
    if len(numbers) == 1:
        return Fraction(numbers[0]), str(numbers[0]), 3
    cut = rng.randint(1, len(numbers) - 1)
    a, left, left_strength = _tree(rng, numbers[:cut])
    b, right, right_strength = _tree(rng, numbers[cut:])
    operation = rng.choice("+-*/")
    strength = 1 if operation in "+-" else 2
    left = f"({left})" if left_strength < strength or rng.random() < 0.1 else left
    right = f"({right})" if right_strength <= strength else right
    space = rng.choice(("", " "))
    spelled = {"*": rng.choice("*×·"), "/": rng.choice("/÷")}.get(operation, operation)
    value = None
    if a is not None and b is not None and not (operation == "/" and b == 0):
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / (b or 1)}[operation]
    return value, f"{left}{space}{spelled}{space}{right}", strength


_NAMING = (
    "{a}", "{a}.", "({a})", "**{a}**", "Answer: {a}", "The answer is {a}.", "\\boxed{{{a}}}",
    "\\boxed{{\\text{{{a}}}}}", "The correct answer is ({a}) since {b} fails.", "{a}. Mitosis",
    "{b} is wrong.\n\n**Answer:** {a}", "Answer: {b}. No, answer: {a}",
)  # fmt: skip
_NAMING_NONE = (
    "{a} or {b}", "The answer is {a} or {b}.", "A) one\nB) two\nC) three\nD) four", "A planet.", "{a}{b}", "",
)  # fmt: skip


def _choice(rng: random.Random) -> Attack:
    a, b = rng.sample("ABCD", 2)
    form = rng.choice(_NAMING + _NAMING_NONE)
    answer = rng.choice((a, b))
    problem = Problem(id="", prompt="", answer=answer, choices=("p", "q", "r", "s"))
    return Attack(form.format(a=a, b=b), problem, "choice", form in _NAMING and answer == a)


# Mutation and harm: answers whose verdict is not known, only that there must be one.

_PIECES = (
    "####", "\\boxed{", "}", "{", "<answer>", "</answer>", "\\frac", "\\text{", "/", "-", "−", ".", ",", "%", "$", "^",
    "**", "(", ")", "=", ":", "\n", " ", "\x00", "\ud800", "\u202e", "٣", "１８", "²", "½", "0", "9" * 40, "1e99",
    "answer is", " or ", "A", "x", "option", " is", "'", "[",
)  # fmt: skip


def _mutated(rng: random.Random, corpus: tuple[str, ...]) -> str:
    text = rng.choice(corpus)
    for _ in range(rng.randint(1, 6)):
        i, j = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:i] + text[j:]
        elif kind == 1:
            text = text[:i] + rng.choice(_PIECES) * rng.choice((1, 1, 1, 2, 50)) + text[i:]
        elif kind == 2:
            text = text[:i] + text[i : min(j, i + 40)] * rng.randint(2, 4) + text[j:]
        elif kind == 3:
            text = text[:i] + rng.choice(corpus)[-rng.randint(1, 80) :]
        elif kind == 4 and text:
            text = text[:i] + chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x3000)))) + text[i + 1 :]
        else:
            text = text[i:j] + text[j:] + text[:i]
    return text


def _hurtful(rng: random.Random) -> str:
    size = rng.choice((300, 5_000, 20_000, 1_000_000))
    unit = "".join(rng.choice(_PIECES) for _ in range(rng.randint(1, 3)))
    tail = rng.choice(("", "1", "\\boxed{" + "1" * 200 + "}", "<answer>" + "(" * 100 + "</answer>", "9**9**9**9"))
    return (unit * (size // len(unit)))[:size] + tail


def _any_problem(rng: random.Random) -> Problem:
    answer = rng.choice(("18", "3.333", "75%", "-3/4", "Mrs. Hilt", "5:6", rng.choice(LETTERS), "positive", "24"))
    return Problem(id="", prompt="", answer=answer, choices=("a", "b"), numbers=(3, 8, 8, 3))


def main(arguments: list[str] | None = None) -> int:
    """The command line: judge odd answers; the exit status, 1 if a verifier broke."""
    parser = argparse.ArgumentParser(prog="python -m esth.tasks.fuzz", description="Attack the verifiers.")
    parser.add_argument("--count", type=float, default=1e5, help="answers to judge (default 1e5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--math", action="store_true", help="judge by math-verify instead, which may take seconds")
    parser.add_argument("--corpus", type=Path, help="JSONL of more real responses, in the field response or answer")
    options = parser.parse_args(arguments)
    corpus = RESPONSES
    if options.corpus is not None:
        corpus += tuple(record.text("response", "answer") for record in read_records(options.corpus))
    count = int(options.count)

    from rich.progress import Progress

    with Progress(transient=True) as bar:
        row = bar.add_task("answers", total=count)
        names = ("math",) if options.math else FAST
        report = fuzz(
            count, options.seed, corpus=corpus, verifiers=names, progress=lambda n: bar.update(row, completed=n)
        )

    print(f"{report.answers:,} answers, {report.verdicts:,} verdicts, seed {options.seed}")
    print(f"{report.known:,} verdicts known beforehand ({report.right:,} of them right): {len(report.mistaken)} missed")
    print(f"raised: {len(report.raised)}")
    for name, (seconds, response) in report.slowest.items():
        print(f"slowest {name:<10} {1e3 * seconds:8.3f} ms   …{json.dumps(response[-48:])}")
    for name, response, error in report.raised[:10]:
        print(f"{name} raised {error} on …{json.dumps(response)}")
    for attack in report.mistaken[:10]:
        print(f"{attack.verifier} should be {attack.verdict}: {json.dumps(attack.response)} for {attack.problem}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
