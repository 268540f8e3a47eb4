"""Algebraic answers: equal by mathematics, in bounded time, whatever the text does to the helper process."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("math_verify", reason="extra math is not installed")

from esth.errors import MissingExtra
from esth.tasks import Problem, algebra
from esth.tasks.algebra import SECONDS, equivalent
from esth.tasks.verifiers import math


@pytest.mark.parametrize(
    ("response", "reference", "equal"),
    [
        (r"\boxed{\frac{3}{2\sqrt{3}}}", r"\frac{\sqrt{3}}{2}", True),
        (r"\boxed{\frac{\sqrt 3}{3}}", r"\frac{\sqrt{3}}{2}", False),
        (r"so it is $x^2 - 1$.", "(x-1)(x+1)", True),
        (r"so it is \(x^2 + 1\).", "(x-1)(x+1)", False),
        (r"\boxed{2^{10}}", "1024", True),
        (r"\boxed{2^{10}}", "1023", False),
        (r"\boxed{\{2, 1\}}", r"\{1, 2\}", True),
        (r"\boxed{(2, 1)}", "(1, 2)", False),
        (r"\boxed{(1,\!2)}", "(1,2)", True),
        (r"\boxed{x = 5}", "5", True),
        (r"$1$, or rather \boxed{\pi/2}", r"\frac{\pi}{2}", True),
        (r"\boxed{\dfrac12}", r"\frac{1}{2}", True),
        (r"\boxed{0.5}", "1/2", True),
        (r"18 apples", "18", True),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
        (r"$x$ and \boxed{x", "x", False),
        ("x", "y", False),
        ("", "x", False),
    ],
)
def test_equality(response: str, reference: str, equal: bool) -> None:
    assert equivalent(response, reference) is equal


@pytest.mark.parametrize(
    "answer",
    ["9^{9^{9^{9}}}", "1000000000!", "(" * 300, r"\sqrt{" * 80, "x^{" * 50, "\ud800", "{", r"\frac{1}{0}", "1" * 500],
)
def test_hostile_answers_are_wrong_within_the_limit(answer: str) -> None:
    equivalent("$a$", "b")  # starts the helper, so that its start is not timed
    begin = time.monotonic()
    assert equivalent(f"\\boxed{{{answer}}}", "7y") is False
    assert time.monotonic() - begin < SECONDS + 2
    assert equivalent("$2y + 5y$", "7y") is True  # and the helper still answers, the right question


def test_text_is_not_run_as_code(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    call = f"__import__('pathlib').Path('{target}').touch()"
    for response in (call, f"${call}$", f"\\boxed{{{call}}}", f"The answer is {call}"):
        assert equivalent(response, "x+1") is False
    assert not target.exists()


def test_a_helper_that_died_is_replaced() -> None:
    assert equivalent("$a + b$", "b + a") is True
    process = algebra._HELPER._process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert equivalent("$a + b$", "b + a") is True
    assert algebra._HELPER._process is not process


def test_threads_get_their_own_answers() -> None:
    verdicts = {}

    def ask(k: int) -> None:
        verdicts[k] = [equivalent(f"$x + {k}$", f"{j} + x") for j in range(4)]

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {k: [j == k for j in range(4)] for k in range(4)}


def test_verifier_and_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert math(r"\boxed{y + 2y}", Problem(id="", prompt="", answer="3y")) is True
    algebra._HELPER.close()
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtra, match=r"esth\[math\]"):
        math(r"\boxed{y + 2y}", Problem(id="", prompt="", answer="3y"))
