"""Data files: a user's own, and what is said of broken ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from esth.errors import InputError
from esth.tasks import load_task
from esth.tasks.files import read_records


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return path


def test_a_users_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"q": "How many {question} are there? \\frac{1}{2}", "a": "so\n#### 1,234", "else": None},
        "",
        {"q": "And now?", "a": 0.5},
        {"q": "And then?", "a": 7},
    )
    task = load_task("file", data=path, question="q", answer="a", template="Q: {question}\nA:")
    assert [p.id for p in task.problems] == ["file:1", "file:3", "file:4"]
    assert [p.answer for p in task.problems] == ["so\n#### 1,234", "0.5", "7"]
    assert task.problems[0].prompt == "Q: How many {question} are there? \\frac{1}{2}\nA:"
    assert [task.verify(r, p) for r, p in zip(["1234", "1/2", "8"], task.problems, strict=True)] == [True, True, False]
    assert (
        task.max_tokens == 256 and load_task("file", data=path, question="q", answer="a", max_tokens=5).max_tokens == 5
    )
    drawn = load_task("file", data=path, question="q", answer="a", n=2, seed=1).problems
    assert len({p.id for p in drawn}) == 2
    assert drawn == load_task("file", data=path, question="q", answer="a", n=3, seed=1).problems[:2]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv", ".tsv"])
def test_every_format_gives_the_same_problems(tmp_path: Path, suffix: str) -> None:
    rows = [{"question": "What is 1 + 1?", "answer": "2"}, {"question": "Café — 3 + 4?", "answer": "7"}]
    path = tmp_path / f"x{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == ".jsonl":
        write(path, *rows)
    else:
        mark = "," if suffix == ".csv" else "\t"
        write(path, *(mark.join(values) for values in [("question", "answer"), *(r.values() for r in rows)]))
    assert [(p.prompt, p.answer) for p in load_task("file", data=path).problems] == [tuple(r.values()) for r in rows]


def test_quoted_lines_of_csv_and_plain_quotes_of_tsv(tmp_path: Path) -> None:
    table = write(tmp_path / "x.csv", "question,answer", '"Two\nlines, one ""quoted""",3')
    assert load_task("file", data=table).problems[0].prompt == 'Two\nlines, one "quoted"'
    plain = write(tmp_path / "x.tsv", "sentence\tlabel", '"fine," they say\t1')
    assert read_records(plain)[0].fields == {"sentence": '"fine," they say', "label": "1"}


def test_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "sst2.jsonl", {"sentence": "a fine film", "label": 1}, {"sentence": "dull", "label": 0})
    task = load_task("sst2", data=path)
    assert [(p.prompt, p.answer, p.choices) for p in task.problems] == [
        ("Review: a fine film\nSentiment:", "positive", ("negative", "positive")),
        ("Review: dull\nSentiment:", "negative", ("negative", "positive")),
    ]
    assert task.verify(" positive", task.problems[0]) and not task.verify(" positive", task.problems[1])
    own = write(tmp_path / "own.jsonl", {"text": "dull", "mood": "bad"}, {"text": "fine", "mood": "1"})
    task = load_task("file", data=own, question="text", answer="mood", labels=["bad", "good"])
    assert [p.answer for p in task.problems] == ["bad", "good"] and task.verifier.__name__ == "label"


GOOD = {"question": "q", "answer": "1"}
BROKEN = [
    ([GOOD, {"question": "q"}], r"x.jsonl line 2: no field 'answer'; it has question$"),
    ([GOOD, {"question": "q", "answer": None}], r"line 2: no field 'answer'"),
    ([GOOD, "{oops"], r"x.jsonl line 2: bad JSON: Expecting property name"),
    ([GOOD, "[" * 100_000], r"line 2: bad JSON"),
    ([GOOD, "[1]"], r"line 2: a JSON object with named fields was expected, not \[1\]"),
    ([GOOD, '{"question": "q", "answer": NaN}'], r"line 2: field 'answer' is nan, neither a text nor a number"),
    ([GOOD, '{"question": "q", "answer": Infinity}'], r"line 2: field 'answer' is inf"),
    ([GOOD, {"question": "q", "answer": True}], r"line 2: field 'answer' is True"),
    ([GOOD, {"question": "q", "answer": ["1"]}], r"line 2: field 'answer' is \['1'\]"),
    ([GOOD, {"question": " ", "answer": "1"}], r"line 2: field 'question' is ' ', not a text"),
    ([GOOD, {"question": 3, "answer": "1"}], r"line 2: field 'question' is 3, not a text"),
    ([GOOD, {"question": "q", "answer": "Paris"}], r"line 2: the answer 'Paris' is not a number; for others take text"),
    ([GOOD, '{"question": "q", "answer": ' + "9" * 5000 + "}"], r"line 2: bad JSON"),
    ([], r"x.jsonl: holds no records"),
    (["", "  "], r"x.jsonl: holds no records"),
]


@pytest.mark.parametrize(("lines", "message"), BROKEN)
def test_broken_jsonl(tmp_path: Path, lines: list[object], message: str) -> None:
    path = write(tmp_path / "x.jsonl", *lines)
    with pytest.raises(InputError, match=message) as caught:
        load_task("file", data=path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_broken_files_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "bytes.jsonl").write_bytes(b'{"question": "q", "answer": "1"}\n{"question": "\xff"}\n')
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but not really")
    (tmp_path / "folder.jsonl").mkdir()
    write(tmp_path / "wide.csv", "question,answer", "q,1", "q,1,2")
    pyarrow.parquet.write_table(
        pyarrow.table({"question": ["q", None], "answer": ["1", "2"]}), tmp_path / "null.parquet"
    )
    for name, message in {
        "bytes.jsonl": r"bytes.jsonl line 2: not UTF-8 at byte 15 of the line",
        "x.parquet": r"x.parquet: not a readable Parquet file",
        "folder.jsonl": r"folder.jsonl: is a folder, not a file",
        "missing.jsonl": r"missing.jsonl: no such file",
        "x.docx": r"x.docx: unknown kind of file; accepted are .jsonl, .parquet, .csv, .tsv",
        "wide.csv": r"wide.csv line 3: more columns than the header names",
        "null.parquet": r"null.parquet row 2: no field 'question'",
    }.items():
        with pytest.raises(InputError, match=message) as caught:
            load_task("file", data=tmp_path / name)
        assert "\n" not in str(caught.value)


def test_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\r\nq,1\r\n")
    assert load_task("file", data=tmp_path / "x.csv").problems[0].answer == "1"


def test_refusals(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", GOOD, {"question": "q", "answer": "2"})
    for arguments, message in [
        ({}, r"say which file"),
        ({"data": path, "split": "train"}, r"no split 'train'; a file is one split"),
        ({"data": path, "n": 3}, r"task file: 2 problems, 3 were asked for"),
        ({"data": path, "template": "Say it."}, r"the prompt template 'Say it.' has no \{question\}"),
        ({"data": path, "verifier": "countdown"}, r"verifier 'countdown' and labels \[\] do not go together"),
        ({"data": path, "verifier": "label"}, r"verifier 'label' and labels \[\] do not"),
        ({"data": path, "labels": ["a", "b"], "verifier": "text"}, r"verifier 'text' and labels \['a', 'b'\]"),
        ({"data": path, "labels": ["a"]}, r"line 1: field 'label' is '1', not a whole number from 0 to 0"),
    ]:
        with pytest.raises(InputError, match=message):
            load_task("file", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("verifier", ["text", "mixed", "choice", "math"])
def test_other_verifiers_take_other_answers(tmp_path: Path, verifier: str) -> None:
    path = write(tmp_path / "x.jsonl", {"question": "q", "answer": "B"})
    task = load_task("file", data=path, verifier=verifier)
    assert task.verifier.__name__ == verifier and task.verify(r"\boxed{B}", task.problems[0])


def test_a_file_of_the_hub(tmp_path: Path) -> None:
    """The hub's client reads its cache when offline: laid out here as it lays it out."""
    repository = tmp_path / "datasets--openai--gsm8k"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    (snapshot / "main").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    rows = [{"question": f"What is {i} and 1?", "answer": f"<<{i}+1={i + 1}>>\n#### {i + 1}"} for i in range(5)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), snapshot / "main" / "test-00000-of-00001.parquet")
    code = """
from esth.errors import InputError
from esth.tasks import load_task
print([p.answer for p in load_task("gsm8k").problems])
address = "hub:openai/gsm8k/main/test-00000-of-00001.parquet"
print([p.prompt for p in load_task("file", data=address, verifier="mixed", n=1, split="all").problems])
for data in ("hub:openai/gsm8k/main/train-00000-of-00001.parquet", "hub:openai/gsm8k"):
    try:
        load_task("gsm8k", split="test", data=data)
    except InputError as error:
        print(error)
"""
    environment = {k: v for k, v in os.environ.items() if k != "ESTH_DATA"}
    environment |= {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers, prompts, absent, partial = done.stdout.splitlines()
    assert answers == str([str(i + 1) for i in range(5)])
    assert prompts.startswith("['What is ")
    assert absent.startswith("hub:openai/gsm8k/main/train-00000-of-00001.parquet: the hub does not give it: ")
    assert partial == "hub:openai/gsm8k: a data set's file on the hub is named hub:OWNER/NAME/FILE"
