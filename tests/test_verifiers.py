"""Verifiers of text, letters and labels; what holds of all of them; the fuzz run."""

import builtins
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esth.tasks import VERIFIERS, Problem
from esth.tasks.fuzz import FAST, LIMIT, attacks, fuzz
from esth.tasks.fuzz import main as fuzz_main
from esth.tasks.verifiers import choice, label, mixed, number, text


def problem(answer: str, **fields: tuple[str, ...]) -> Problem:
    return Problem(id="", prompt="", answer=answer, **fields)


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        ("Mrs. Hilt", "Mrs. Hilt", True),
        ("Let us see.\nIt was mrs hilt!", "Mrs. Hilt", True),
        ("**Mrs. Hilt** bought the most.", "Mrs. Hilt", False),
        ("Yes, they have enough.", "Yes", True),
        ("No, they have not.", "Yes", False),
        ("Yes they have", "Yes", False),
        ("Yes.\nNo.", "Yes", False),
        ("It is not John.", "John", False),
        ("Johnny", "John", False),
        ("The ratio is 5:6.", "5:6", True),
        ("The ratio is 15:6.", "5:6", False),
        ("At 3:30 PM", "3:30 p.m.", True),
        ("At 13:30 p.m.", "3:30 p.m.", False),
        (r"\boxed{\text{Rug B}}", "Rug B", True),
        ("#### Lisa\u2019s soccer team", "Lisa's soccer team", True),
        ("", "Yes", False),
        ("!!!", "Yes", False),
        ("anything", "?", False),
    ],
)
def test_text(response: str, answer: str, right: bool) -> None:
    assert text(response, problem(answer)) is right


def test_mixed_reads_numbers_as_numbers_and_texts_as_texts() -> None:
    assert mixed("so 9 apples in all", problem("9 (apples)"))
    assert mixed("it was Mrs. Hilt", problem("Mrs. Hilt"))
    assert not mixed("9 (apples) minus 1 is 8", problem("9 (apples)"))


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B.", "B"),
        ("B. Mitosis", "B"),
        ("B) Mitosis", "B"),
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("The answer is B because A is wrong.", "B"),
        ("The correct option is (B).", "B"),
        ("The best answer to this question is option B.", "B"),
        ("The answer is A. No: the answer is B.", "B"),
        ("A is wrong, C is wrong.\n\nB", "B"),
        ("B\n\nA mutation inserts a base.", "B"),
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{B}} and the answer is C", "B"),
        ("Answer: B. I think so.", "B"),
        # nothing is answered by …
        ("A planet turns faster.", None),
        ("A or B", None),
        ("The answer is A or B.", None),
        ("Answer: A, B", None),
        ("Answer: A/B.", None),
        ("A) one\nB) two\nC) three\nD) four", None),
        ("The answer is not clear.", None),
        ("The answer I chose depends.", None),
        ("Answer: Because", None),
        ("AB", None),
        (r"\boxed{AB}", None),
        (r"\boxed{2}", None),
        ("Mitosis", None),
        ("", None),
    ],
)
def test_choice(response: str, letter: str | None) -> None:
    verdicts = {x for x in "ABCDEFGHIJ" if choice(response, problem(x, choices=("p", "q", "r", "s")))}
    assert verdicts == ({letter} if letter else set())


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("positive", True),
        (" Positive.\n", True),
        ("positively", False),
        ("negative", False),
        ("not positive", False),
        ("", False),
    ],
)
def test_label(response: str, right: bool) -> None:
    assert label(response, problem("positive", choices=("negative", "positive"))) is right


def test_number_needs_a_reference_that_is_a_number() -> None:
    assert number("18", problem("18"))
    assert not number("18", problem("Mrs. Hilt"))


MILLION = 1_000_000
HOSTILE = {
    "powers": "9**9**9**9",
    "brackets": "(" * MILLION,
    "balanced": "(" * (MILLION // 2) + ")" * (MILLION // 2),
    "digits": "9" * MILLION,
    "thousands": "1,234" * (MILLION // 5),
    "slashes": "1/" * (MILLION // 2) + "1",
    "zeros": "1/0",
    "exponents": "1e99" * (MILLION // 4),
    "unicode digits": "\u0661\uff18²" * (MILLION // 3),
    "boxes": "\\boxed{" * (MILLION // 7),
    "closed boxes": "\\boxed{" * (MILLION // 14) + "}" * (MILLION // 14),
    "marks": "#" * MILLION,
    "fractions": "\\frac{1" * (MILLION // 7),
    "text commands": "\\text{" * (MILLION // 6) + "1",
    "signs": "-" * MILLION + "1",
    "currency": "$ " * (MILLION // 2) + "1",
    "spaces": " " * MILLION + "1",
    "lines": "\n" * MILLION,
    "tags": "<answer>" * (MILLION // 8) + "</answer>",
    "declared": "the answer " * (MILLION // 11),
    "declared letters": "answer: A or " * (MILLION // 13),
    "clauses": "is: " * (MILLION // 4),
    "controls": "\x00\x1b\u202e" * (MILLION // 3),
    "surrogates": "\ud800" * MILLION,
    "code": "__import__('os').abort()",
    "braces": "{}{0.__class__}%s%n",
}


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_plainly_wrong_and_soon(hostile: str, name: str) -> None:
    response = HOSTILE[hostile]
    given = Problem(id="", prompt="", answer="24", choices=("x", "y"), numbers=(3, 8))
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        assert VERIFIERS[name](response, given) is False
        seconds.append(time.process_time() - begin)
    assert min(seconds) < LIMIT


@settings(deadline=None, max_examples=500)
@given(st.text(), st.text(min_size=1), st.sampled_from(FAST))
def test_any_text_and_any_reference_give_a_verdict(response: str, answer: str, name: str) -> None:
    given = Problem(id="", prompt="", answer=answer, choices=("x",), numbers=(1, 2))
    assert VERIFIERS[name](response, given) in (True, False)


def test_nothing_is_evaluated_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("text reached Python")

    samples = list(attacks(300, seed=5))
    for name in ("eval", "exec", "compile"):
        monkeypatch.setattr(builtins, name, refuse)
    for attack in samples:
        for name in FAST:
            VERIFIERS[name](attack.response, attack.problem)
    monkeypatch.undo()


def test_fuzz() -> None:
    report = fuzz(10_000, seed=7)
    assert report.raised == []
    assert report.mistaken == []
    assert report.answers == 10_000 and report.verdicts == 10_000 * len(FAST)
    # the known verdicts are many, and of both kinds, so that they can be missed
    assert report.known > 4_000 and 1_000 < report.right < report.known - 1_000
    assert max(seconds for seconds, _ in report.slowest.values()) < LIMIT


def test_fuzz_is_reproducible_and_sees_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(attacks(50, seed=1)) == list(attacks(50, seed=1)) != list(attacks(50, seed=2))
    monkeypatch.setitem(
        VERIFIERS, "number", lambda response, given: bool(1 / len(response)) and number(response, given)
    )
    assert any(name == "number" and "ZeroDivisionError" in error for name, _, error in fuzz(2000).raised)
    monkeypatch.setitem(VERIFIERS, "number", lambda response, given: True)
    assert not (report := fuzz(200)).passed and {a.verifier for a in report.mistaken} == {"number"}
    monkeypatch.setitem(VERIFIERS, "number", lambda response, given: bool(time.sleep(1.2 * LIMIT)))
    assert fuzz(3).slowest["number"][0] > LIMIT


def test_fuzz_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_main(["--count", "300", "--seed", "2"]) == 0
    out = capsys.readouterr().out
    assert "300 answers" in out and "raised: 0" in out and all(f"slowest {name}" in out for name in FAST)
