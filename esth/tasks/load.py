"""Every task by its name."""

import difflib
import os
from collections.abc import Sequence

from esth.errors import InputError
from esth.tasks import arithmetic, benchmarks, chain, countdown
from esth.tasks.files import Record, read_records
from esth.tasks.numbers import read_reference
from esth.tasks.splits import SPLITS, check_split
from esth.tasks.task import Problem, Task
from esth.tasks.verifiers import VERIFIERS

GENERATED = {
    "arithmetic": (arithmetic.problems, "number", 16),
    "chain": (chain.problems, "chain", 17),
    "countdown": (countdown.problems, "countdown", 256),
}
NAMES = (*GENERATED, *benchmarks.BENCHMARKS, "file")


def load_task(
    name: str = "arithmetic",
    *,
    split: str = "test",
    n: int | None = None,
    seed: int = 0,
    difficulty: str | None = None,
    data: str | os.PathLike[str] | None = None,
    template: str | None = None,
    question: str = "question",
    answer: str = "answer",
    labels: Sequence[str] = (),
    verifier: str | None = None,
    max_tokens: int | None = None,
) -> Task:
    """A task: generated (`arithmetic`, `chain`, `countdown`), a benchmark by name, or `file`, a file of the user's own.

    Args:
        split: "train", "validation", "test" or "all", as far as the task has it; splits share no problem.
        n: how many problems; None is all of a file or of a small generated task, else 256. A smaller n gives the first
            problems of a larger one.
        seed: which problems are drawn; it never moves a problem to another split.
        difficulty: of generated tasks: "1+" … for arithmetic, "3" or "4" for chains, "3" … "6" for Countdown.
        data: the benchmark's file or folder (else ESTH_DATA, else the hub), or the user's file: JSONL, Parquet, CSV
            or TSV; hub:OWNER/NAME/FILE names a data set's file on the Hugging Face hub.
        template: the prompt, with {question} (and {choices}) where they are to stand.
        question, answer: names of the fields of a user's file.
        labels: label words of a user's file whose answers are labels or their indices (verifier "label").
        verifier: one of `esth.tasks.VERIFIERS`, in place of the task's own; "number" for a user's file.
        max_tokens: tokens a response may take, in place of the task's own number.

    Raises:
        InputError: an unknown task, split, verifier or difficulty; a file that is missing or broken; too few problems.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(name.lower(), NAMES, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(f"unknown task {name!r}; {hint}known are {', '.join(NAMES)}")
    if verifier is not None and verifier not in VERIFIERS:
        raise InputError(f"unknown verifier {verifier!r}; known are {', '.join(VERIFIERS)}")
    for what, value, least in (("n", n, 1), ("max_tokens", max_tokens, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise InputError(f"{what} is {value}; at least {least} is accepted")
    if template is not None:
        benchmarks.check_template(template)

    if name in GENERATED:
        _refuse(f"the generated task {name}", data=data, template=template)
        make, own, tokens = GENERATED[name]
        check_split(name, split, (*(chain.SPLITS if name == "chain" else SPLITS), "all"))
        problems = make(split, n, seed, difficulty)
    else:
        _refuse(f"task {name}", difficulty=difficulty)
        if name == "file":
            own, tokens = "label" if labels else "number", 4 if labels else 256
            problems = _own_file(split, n, seed, data, template, question, answer, tuple(labels), verifier or own)
        else:
            own, tokens = benchmarks.BENCHMARKS[name].verifier.__name__, benchmarks.BENCHMARKS[name].max_tokens
            problems = benchmarks.problems(name, split, n, seed, data, template)
    return Task(name, split, problems, VERIFIERS[verifier or own], max_tokens or tokens)


def _refuse(task: str, **given: object) -> None:
    for what, value in given.items():
        if value is not None:
            raise InputError(f"{task} takes no {what}")


def _own_file(
    split: str,
    n: int | None,
    seed: int,
    data: str | os.PathLike[str] | None,
    template: str | None,
    question: str,
    answer: str,
    labels: tuple[str, ...],
    verifier: str,
) -> tuple[Problem, ...]:
    if data is None:
        raise InputError("task file: say which file (data=PATH)")
    if split not in ("test", "all"):
        raise InputError(f"task file: no split {split!r}; a file is one split (test, all), give another for training")
    if verifier in ("chain", "countdown") or (verifier == "label") != bool(labels):
        raise InputError(f"task file: verifier {verifier!r} and labels {list(labels)} do not go together")

    def read(record: Record) -> Problem:
        if labels:
            return benchmarks.labelled(record, record.text(question), record.get(answer), labels)
        reference = record.answer(answer)
        if verifier == "number" and read_reference(reference) is None:
            record.reject(f"the answer {reference[:60]!r} is not a number; for others take text, mixed, choice or math")
        return Problem(id=str(record.number), prompt=record.text(question), answer=reference)

    found = [read(record) for record in read_records(data)]
    return benchmarks.finish("file", found, n, seed, template or "{question}")
