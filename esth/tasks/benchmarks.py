"""Public benchmarks by name, read from the files of their publishers.

A file is found under the path that the user gives (a file, a folder, or an address on the Hugging Face hub), or else in
the folder named by the environment variable ESTH_DATA, or else, where that is unset, on the hub. Three kinds of
benchmark differ in their splits: GSM8K has the publisher's train and test file; SVAMP, ASDiv and MAWPS come as one
file, which is split by a hash of the question ("all" is the whole); the others are for testing only.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from esth.errors import InputError
from esth.tasks.files import HUB, Record, read_records
from esth.tasks.numbers import read_reference
from esth.tasks.splits import SPLITS, check_split, split_of
from esth.tasks.task import Problem, Verifier
from esth.tasks.verifiers import LETTERS, choice, label, mixed, number

STEPS = "{question}\nThink step by step, then write the final number after ####."
SHORT = "{question}\nReply with just the number."
BOXED = "{question}\nThink step by step, then put the final answer in \\boxed{}."
LETTER = "{question}\n\n{choices}\n\nReply with just the letter of the right option."
SENTIMENT = "Review: {question}\nSentiment:"


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark is published and judged.

    Attributes:
        files: file name of each split; None names the one file that is split here.
        read: a record as a problem whose prompt is the bare question.
        template: the prompt, with {question} and, for multiple choice, {choices} filled in.
        max_tokens: tokens a response may take by default.
        hub: OWNER/NAME/FILE on the hub of each split, where the publisher's records are there as such.
    """

    files: dict[str | None, str]
    read: Callable[[Record], Problem]
    template: str
    verifier: Verifier
    max_tokens: int
    hub: dict[str | None, str] = field(default_factory=dict)


def find_file(name: str, data: str | os.PathLike[str] | None, hub: str | None = None) -> str | Path:
    """The file `name` under `data` (a folder, the file itself, a hub address), under ESTH_DATA, or on the hub.

    Raises:
        InputError: it is not there; the message says where it was looked for.
    """
    folder = os.environ.get("ESTH_DATA") if data is None else data
    if not folder:
        if hub is None:
            raise InputError(f"{name}: say where it is (data=PATH), or set ESTH_DATA to the folder that holds it")
        return HUB + hub
    path = Path(folder)
    if data is not None and (os.fspath(data).startswith(HUB) or not path.is_dir()):
        return os.fspath(data)
    if not (path / name).is_file():
        raise InputError(f"{name}: not in the folder {path} ({'data' if data is not None else 'ESTH_DATA'})")
    return path / name


def problems(
    name: str, split: str, n: int | None, seed: int, data: str | os.PathLike[str] | None, template: str | None
) -> tuple[Problem, ...]:
    """Problems of the benchmark `name`: all in the file's order, or `n` drawn without replacement."""
    benchmark = BENCHMARKS[name]
    whole = None in benchmark.files
    check_split(name, split, (*SPLITS, "all") if whole else [str(s) for s in benchmark.files])
    part = None if whole else split
    path = find_file(benchmark.files[part], data, benchmark.hub.get(part))
    found = [benchmark.read(record) for record in read_records(path)]
    if whole and split != "all":
        found = [problem for problem in found if split_of(problem.prompt) == split]
    return finish(name, found, n, seed, template or benchmark.template)


def finish(name: str, found: list[Problem], n: int | None, seed: int, template: str) -> tuple[Problem, ...]:
    """Draws `n` of the problems and writes out their prompts."""
    if n is not None and n > len(found):
        raise InputError(f"task {name}: {len(found)} problems, {n} were asked for")
    if n is not None:
        found = [found[i] for i in np.random.default_rng(seed).permutation(len(found))[:n]]
    return tuple(replace(p, id=f"{name}:{p.id}", prompt=_fill(template, p)) for p in found)


def check_template(template: str) -> None:
    """
    Raises:
        InputError: the template has no place for the question.
    """
    if "{question}" not in template:
        raise InputError(f"the prompt template {template!r} has no {{question}} in it")


def _fill(template: str, problem: Problem) -> str:
    """Not str.format: a LaTeX question or template is full of other braces."""
    options = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, problem.choices, strict=False))
    parts = re.split(r"(\{question\}|\{choices\})", template)
    return "".join({"{question}": problem.prompt, "{choices}": options}.get(part, part) for part in parts)


def _numeric(record: Record, question: str, answer: str, solution: str | None = None) -> Problem:
    if read_reference(answer) is None:
        record.reject(f"the answer {answer!r} is not a number")
    return Problem(id=str(record.number), prompt=question, answer=answer, solution=solution)


def _gsm8k(record: Record) -> Problem:
    solution = re.sub(r"<<[^<>]*>>", "", record.text("answer"))  # the publisher's calculator calls
    return _numeric(record, record.text("question"), solution.rpartition("####")[2].strip(), solution)


def _svamp(record: Record) -> Problem:
    return _numeric(record, _story(record.text("Body"), record.text("Question")), record.answer("Answer"))


def _asdiv(record: Record) -> Problem:
    question = _story(record.text("body"), record.text("question"))
    return Problem(id=str(record.number), prompt=question, answer=record.answer("answer"))


def _story(body: str, question: str) -> str:
    return f"{body} {question}" if body.endswith((".", "?", "!")) else f"{body}. {question}"


def _mawps(record: Record) -> Problem:
    return _numeric(record, record.text("input"), record.answer("target"))


def _contest(record: Record) -> Problem:
    solution = record.text("solution") if record.fields.get("solution") else None
    return _numeric(record, record.text("question", "problem"), record.answer("answer"), solution)


def _options(record: Record, options: tuple[str, ...], right: int) -> Problem:
    if not 2 <= len(options) <= len(LETTERS):
        record.reject(f"{len(options)} options; 2 to {len(LETTERS)} are accepted")
    return Problem(
        id=str(record.number), prompt=record.text("question", "Question"), answer=LETTERS[right], choices=options
    )


def _mmlu(record: Record) -> Problem:
    options = record.texts("choices")
    return _options(record, options, record.index(len(options), "answer"))


def _arc(record: Record) -> Problem:
    """Labels may be letters or digits; the prompt letters the options anew, in the publisher's order."""
    nested = record.fields.get("choices")
    if isinstance(nested, dict):
        record = Record(
            record.where,
            record.number,
            record.fields | {"options": nested.get("text"), "option_labels": nested.get("label")},
        )
    labels, right = record.texts("option_labels"), record.text("answer", "answerKey")
    if right not in labels:
        record.reject(f"the answer {right!r} is not one of the labels {', '.join(labels)}")
    return _options(record, record.texts("options"), labels.index(right))


def _gpqa(record: Record) -> Problem:
    """The publisher lists the right answer first, so the options are put in an order drawn from the row's number."""
    names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    order = np.random.default_rng(record.number).permutation(len(names))
    return _options(record, tuple(record.text(names[i]) for i in order), int(np.flatnonzero(order == 0)[0]))


def _sst2(record: Record) -> Problem:
    return labelled(record, record.text("sentence", "text"), record.get("label"), ("negative", "positive"))


def labelled(record: Record, question: str, value: object, labels: tuple[str, ...]) -> Problem:
    """A scoring problem: the label words are its choices; `value` is one of them or the index of one."""
    if value not in labels:
        value = labels[Record(record.where, record.number, {"label": value}).index(len(labels), "label")]
    return Problem(id=str(record.number), prompt=question, answer=str(value), choices=labels)


_SHARD = "-00000-of-00001.parquet"

BENCHMARKS: dict[str, Benchmark] = {
    "gsm8k": Benchmark(
        {"train": "gsm8k_train.jsonl", "test": "gsm8k_test.jsonl"}, _gsm8k, STEPS, number, 400,
        {s: f"openai/gsm8k/main/{s}{_SHARD}" for s in ("train", "test")},
    ),
    "svamp": Benchmark({None: "svamp.jsonl"}, _svamp, STEPS, number, 256),
    "asdiv": Benchmark({None: "asdiv.jsonl"}, _asdiv, STEPS.replace("number", "answer"), mixed, 256),
    "mawps_singleop": Benchmark({None: "mawps_singleop.jsonl"}, _mawps, SHORT, number, 16),
    "mawps_multiarith": Benchmark({None: "mawps_multiarith.jsonl"}, _mawps, STEPS, number, 256),
    "amc23": Benchmark(
        {"test": "amc23.jsonl"}, _contest, BOXED, number, 2048, {"test": f"math-ai/amc23/test{_SHARD}"}
    ),
    "aime24": Benchmark(
        {"test": "aime24.jsonl"}, _contest, BOXED, number, 4096, {"test": f"HuggingFaceH4/aime_2024/data/train{_SHARD}"}
    ),
    "mmlu_stem": Benchmark({"test": "mmlu_stem.jsonl"}, _mmlu, LETTER, choice, 16),
    "arc_challenge": Benchmark(
        {"test": "arc_challenge_test.parquet"}, _arc, LETTER, choice, 16,
        {"test": f"allenai/ai2_arc/ARC-Challenge/test{_SHARD}"},
    ),
    "gpqa": Benchmark(
        {"test": "gpqa_diamond.csv"}, _gpqa, LETTER, choice, 16, {"test": "Idavidrein/gpqa/gpqa_diamond.csv"}
    ),
    "sst2": Benchmark(
        {"test": "sst2.jsonl"}, _sst2, SENTIMENT, label, 4, {"test": f"stanfordnlp/sst2/data/validation{_SHARD}"}
    ),
}  # fmt: skip
