"""Published benchmarks: their fields, and that their publishers' answers are judged right."""

import os
from pathlib import Path

import pytest

from esth.errors import InputError
from esth.tasks import Problem, load_task
from esth.tasks.benchmarks import BENCHMARKS
from esth.tasks.numbers import read_reference

DATA = os.environ.get("ESTH_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="ESTH_DATA does not name the folder of the public benchmark files")

SIZES = {
    ("gsm8k", "train"): 7473,
    ("gsm8k", "test"): 1319,
    ("svamp", "all"): 1000,
    ("asdiv", "all"): 2215,
    ("mawps_singleop", "all"): 562,
    ("mawps_multiarith", "all"): 600,
    ("amc23", "test"): 40,
    ("aime24", "test"): 30,
    ("mmlu_stem", "test"): 3018,
    ("arc_challenge", "test"): 1172,
}


@needs_data
@pytest.mark.parametrize(("name", "split"), SIZES)
def test_every_published_answer_is_judged_right_and_its_neighbour_wrong(name: str, split: str) -> None:
    task = load_task(name, split=split)
    assert len(task) == SIZES[name, split] == len({p.id for p in task.problems})
    for problem in task.problems:
        responses = [problem.answer, f"The answer is {problem.answer}.", f"**{problem.answer}**\n"]
        if name == "gsm8k":
            assert problem.solution is not None and "<<" not in problem.solution
            responses = [problem.solution, *responses]
        reference = read_reference(problem.answer)
        if problem.choices:
            options = "ABCDE"[: len(problem.choices)]
            wrong = [x for x in options if x != problem.answer]
            assert len(wrong) == len(options) - 1
            assert all(f"\n{x}. {o}" in problem.prompt for x, o in zip(options, problem.choices, strict=True))
        else:
            wrong = [str(reference.value + 1)] if reference is not None else ["none of these", "7"]
        assert all(task.verify(response, problem) for response in responses), problem
        assert not any(task.verify(f"The answer is {answer}.", problem) for answer in wrong), problem


@needs_data
def test_last_steps_of_human_solutions() -> None:
    """Without its #### line, a solution's last number is nearly always its answer; the others end with another one."""
    task = load_task("gsm8k", split="test")
    steps = [(p.solution or "").rsplit("\n####", 1)[0] for p in task.problems]
    assert sum(task.verify(s, p) for s, p in zip(steps, task.problems, strict=True)) / len(task) > 0.97


@needs_data
def test_known_problems() -> None:
    def first(name: str, split: str) -> Problem:
        return load_task(name, split=split).problems[0]

    assert first("gsm8k", "test").answer == "18"
    assert first("svamp", "all").answer == "145"
    assert "are organized into 93 groups. How big is each group" in first("svamp", "all").prompt
    assert first("asdiv", "all").prompt.startswith("Seven red apples and two green apples are in the basket. How many")
    assert first("mawps_singleop", "all").prompt.endswith("Reply with just the number.")
    assert first("amc23", "test").answer == "27"
    assert read_reference(load_task("aime24").problems[7].answer) is not None
    assert first("mmlu_stem", "test").answer == "C" and first("arc_challenge", "test").answer == "C"


@needs_data
@pytest.mark.parametrize("name", ["svamp", "asdiv", "mawps_singleop", "mawps_multiarith"])
def test_files_without_splits_are_split_by_question(name: str) -> None:
    splits = {s: [p.prompt for p in load_task(name, split=s).problems] for s in ("train", "validation", "test", "all")}
    assert sum(len(splits[s]) for s in ("train", "validation", "test")) == len(splits["all"])
    assert not set(splits["train"]) & set(splits["test"]) and not set(splits["validation"]) & set(splits["test"])


@needs_data
def test_drawing_some() -> None:
    some, more = load_task("svamp", n=10, seed=3).problems, load_task("svamp", n=20, seed=3).problems
    assert some == more[:10] != load_task("svamp", n=10, seed=4).problems
    assert set(more) <= set(load_task("svamp").problems)


def test_finding_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"input": "1 and 1?", "target": 2.0}\n'
    (tmp_path / "mawps_singleop.jsonl").write_text(line)
    (tmp_path / "other.jsonl").write_text(line.replace("2.0", "3.33333"))
    monkeypatch.delenv("ESTH_DATA", raising=False)
    with pytest.raises(InputError, match=r"svamp.jsonl: say where it is \(data=PATH\), or set ESTH_DATA"):
        load_task("svamp")
    assert load_task("mawps_singleop", split="all", data=tmp_path).problems[0].answer == "2"
    assert load_task("mawps_singleop", split="all", data=tmp_path / "other.jsonl").problems[0].answer == "3.33333"
    monkeypatch.setenv("ESTH_DATA", str(tmp_path))
    assert load_task("mawps_singleop", split="all").problems[0].answer == "2"
    with pytest.raises(InputError, match=r"svamp.jsonl: not in the folder .* \(ESTH_DATA\)"):
        load_task("svamp")
    with pytest.raises(InputError, match="task gsm8k: no split 'validation'; it has train, test"):
        load_task("gsm8k", split="validation")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("gsm8k", '{"question": "q", "answer": "no mark"}', "line 1: the answer 'no mark' is not a number"),
        ("svamp", '{"Body": "b", "Question": "q"}', "line 1: no field 'Answer'; it has Body, Question"),
        ("aime24", '{"answer": "1"}', "line 1: no field 'question' or 'problem'"),
        (
            "mmlu_stem",
            '{"question": "q", "choices": ["a", "b"], "answer": 2}',
            "'answer' is 2, not a whole number from 0 to 1",
        ),
        (
            "mmlu_stem",
            '{"question": "q", "choices": "ab", "answer": 1}',
            "field 'choices' is 'ab', not a list of texts",
        ),
        ("mmlu_stem", '{"question": "q", "choices": ["a"], "answer": 0}', "1 options; 2 to 10 are accepted"),
        (
            "arc_challenge",
            '{"question": "q", "options": ["a", "b"], "option_labels": ["A", "B"], "answer": "C"}',
            "the answer 'C' is not one of the labels A, B",
        ),
    ],
)
def test_broken_records(tmp_path: Path, name: str, line: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=message):
        load_task(name, data=path, split="all" if None in BENCHMARKS[name].files else "test")


def test_arc_as_first_published(tmp_path: Path) -> None:
    path = tmp_path / "arc.jsonl"
    path.write_text(
        '{"question": "q", "choices": {"text": ["p", "r", "s"], "label": ["1", "2", "3"]}, "answerKey": "3"}\n'
    )
    (problem,) = load_task("arc_challenge", data=path).problems
    assert problem.answer == "C" and problem.prompt.startswith("q\n\nA. p\nB. r\nC. s\n")


def test_gpqa_options_are_shuffled_for_good(tmp_path: Path) -> None:
    path = tmp_path / "gpqa_diamond.csv"
    header = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3"
    path.write_text("\n".join([header, *(f"q{i},right,wrong1,wrong2,wrong3" for i in range(200))]) + "\n")
    problems = load_task("gpqa", data=tmp_path).problems
    assert all(p.choices["ABCD".index(p.answer)] == "right" for p in problems)
    assert all(sorted(p.choices) == ["right", "wrong1", "wrong2", "wrong3"] for p in problems)
    counts = [sum(p.answer == x for p in problems) for x in "ABCD"]
    assert sum((c - 50) ** 2 / 50 for c in counts) < 16.3  # χ² with 3 degrees of freedom, 1 in 1000
    assert problems == load_task("gpqa", data=tmp_path, seed=9).problems


def test_template_places(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": "{choices}?", "choices": ["a", "b"], "answer": 1}\n')
    (problem,) = load_task("mmlu_stem", data=path, template="{choices}|{question}").problems
    assert problem.prompt == "A. a\nB. b|{choices}?"
