r"""Equality of algebraic answers by `math-verify`, in a process of its own.

A computer algebra system may run for ever on the text of a model, in C code that no exception can stop. So one
helper process does the comparing, one question at a time; an answer that takes over two seconds or 4 GiB is wrong, and
the system ends the process. Only the LaTeX grammar of `math-verify` is used: its reader of plain expressions hands the
text to Python's `eval`.
"""

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import Any

from esth.errors import require
from esth.tasks.numbers import find_number, last_box, read_reference

SECONDS = 2.0
MEMORY = 4 << 30
MAX_LENGTH = 512

_MATHEMATICS = re.compile(r"\$\$?([^$]{1,512})\$\$?|\\\(([^$]{1,512}?)\\\)|\\\[([^$]{1,512}?)\\\]")


def equivalent(response: str, reference: str) -> bool:
    r"""Whether the response's answer equals `reference`.

    The answer is the last `\boxed{…}`, else the last formula between dollars or LaTeX brackets, else the last number.
    Equal text and equal numbers are decided here; everything else is asked of the helper process.
    """
    wanted, known = _answer(reference), read_reference(reference)
    answer, number = _answer(response), find_number(response)
    if wanted is None:
        wanted = reference.strip()
    if answer is not None and _squeezed(answer) == _squeezed(wanted):
        return True
    if known is not None and number is not None:
        return number.agrees(known)
    if answer is None or max(len(answer), len(wanted)) > MAX_LENGTH:
        return False
    return _HELPER.ask(wanted, answer)


def _answer(text: str) -> str | None:
    box = last_box(text)
    if box is not None or "\\boxed{" in text:
        return None if box is None else box[1]
    *_, formula = None, *_MATHEMATICS.finditer(text[-2 * MAX_LENGTH :])
    return None if formula is None else next(filter(None, formula.groups()))


def _squeezed(latex: str) -> str:
    return re.sub(r"\s|\\[,;!: ]|\\left|\\right|(?<=\\)[dt](?=frac)", "", latex)


class _Helper:
    """Asks the helper process, which is started when first needed and again after it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def ask(self, reference: str, answer: str) -> bool:
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                self._start()
            assert self._process is not None and self._process.stdin and self._process.stdout
            try:
                self._process.stdin.write(json.dumps([reference, answer]) + "\n")
                self._process.stdin.flush()
                return self._process.stdout.readline() == "true\n"
            except OSError:
                return False

    def _start(self) -> None:
        require("math_verify", "math")
        self.close()
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "esth.tasks.algebra"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the parent, which closes the pipe in its own time
        )

    def close(self) -> None:
        """Ends the helper process, unless it belongs to the process this one was forked from."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


_HELPER = _Helper()
atexit.register(_HELPER.close)


def _serve(math_verify: Any) -> None:
    """Answers questions line by line; the alarm is never caught, so it ends the process even inside C code."""
    latex = [math_verify.LatexExtractionConfig()]

    def parse(text: str) -> Any:
        return math_verify.parse(
            f"\\boxed{{{text}}}", extraction_config=latex, fallback_mode="no_fallback", parsing_timeout=None
        )

    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            reference, answer = map(parse, json.loads(line))
            equal = bool(reference) and bool(math_verify.verify(reference, answer, timeout_seconds=None))
        except Exception:  # whatever the library meets in untrusted text means that it saw no equality
            equal = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(equal), flush=True)


def _main() -> None:
    """Forks a server, and a new one whenever an alarm has ended it: the library is imported only once."""
    import resource

    math_verify = require("math_verify", "math")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while os.fork():
        _, status = os.wait()
        if os.WIFEXITED(status) or os.WTERMSIG(status) != signal.SIGALRM:
            return
        print("false", flush=True)
    _serve(math_verify)


if __name__ == "__main__":
    _main()
