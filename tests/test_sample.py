"""A saved sample is read back as it was, or refused in one line that names the file and what is wrong with it."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import parquet

from esth.errors import InputError
from esth.sample import Center, Population, PopulationSample

PROMPTS, MEMBERS, SAMPLES, SCORED = 3, 2, 4, 2
SETTINGS = {
    "prompts": PROMPTS, "members": MEMBERS, "samples": SAMPLES, "scored": SCORED, "seed": 0, "sigma": 0.1,
    "temperature": 1, "max_tokens": 3, "seconds": 0.5, "model": "none", "task": "none", "family": "gaussian",
    "dtype": "float32",
}  # fmt: skip


def responses(rng: np.random.Generator, members: list[int]) -> dict[str, Any]:
    grid = np.meshgrid(range(PROMPTS), members, range(SAMPLES), indexing="ij")
    size = grid[0].size
    return {
        **dict(zip(("prompt", "member", "sample"), (a.ravel() for a in grid), strict=True)),
        "tokens": [[*range(k % 3), 2] for k in range(size)],
        "text": [f"response {k}\n" for k in range(size)],
        "truncated": rng.random(size) < 0.5,
        "reward": (rng.random(size) < 0.5).astype(float),
    }


@pytest.fixture
def sample() -> PopulationSample:
    rng = np.random.default_rng(0)
    said, center = responses(rng, list(range(MEMBERS))), responses(rng, [-1])

    def scored(columns: dict[str, Any], *shape: int) -> np.ndarray:
        values = rng.standard_normal((len(columns["text"]), *shape))
        values[columns["sample"] >= SCORED] = np.nan
        return values

    terms = {name: scored(said) for name in ("rb", "chain", "lower", "upper")}
    return PopulationSample(
        dict(SETTINGS),
        np.array([0.7, 0.3]),
        ["one", "two", "three"],
        ["1", "", "3"],
        Population(**said, scores=scored(said, MEMBERS), **terms),
        Center(**center, rate=scored(center), forms=scored(center, MEMBERS)),
    )


@pytest.fixture
def folder(sample: PopulationSample, tmp_path: Path) -> Path:
    sample.save(tmp_path / "saved")
    return tmp_path / "saved"


def refused(folder: Path, file: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        PopulationSample.load(folder)
    message = str(error.value)
    assert message.startswith(f"{folder / file}") and words in message and len(message.splitlines()) == 1, message


def test_an_undamaged_sample_is_read_as_it_was(sample: PopulationSample, folder: Path) -> None:
    again = PopulationSample.load(folder)
    assert (again.settings, again.prompts, again.answers) == (sample.settings, sample.prompts, sample.answers)
    assert np.array_equal(again.weights, sample.weights)
    for before, after in ((sample.population, again.population), (sample.center, again.center)):
        for field in fields(before):
            a, b = getattr(before, field.name), getattr(after, field.name)
            assert type(a) is type(b), field.name
            if isinstance(a, list):
                assert a == b
            else:
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


def test_further_settings_and_unverified_and_unscored_responses_are_fine(
    sample: PopulationSample, tmp_path: Path
) -> None:
    said, center = sample.population, sample.center
    nothing = np.full(len(said), np.nan)
    said = replace(said, reward=nothing, chain=nothing)
    center = replace(center, reward=nothing[: len(center)])
    other = replace(sample, settings=SETTINGS | {"scored": 0, "engine": None}, population=said, center=center)
    other.save(tmp_path / "s")
    again = PopulationSample.load(tmp_path / "s")
    assert again.settings == other.settings and not again.verified and sample.verified


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({key: None}, f"setting {key!r} must be") for key in SETTINGS),
        *(({key: "x"}, f"setting {key!r} must be") for key, value in SETTINGS.items() if not isinstance(value, str)),
        *(({key: True}, f"setting {key!r} must be") for key in SETTINGS),
        *(({key: -1}, f"setting {key!r} must be") for key in SETTINGS),
        *(({key: float("nan")}, f"setting {key!r} must be") for key in SETTINGS),
        *(({key: float("inf")}, f"setting {key!r} must be") for key in ("sigma", "temperature", "seconds")),
        *(({key: 0}, f"setting {key!r} must be") for key in ("prompts", "members", "samples", "max_tokens", "sigma")),
        *(({key: 2.0}, f"setting {key!r} must be a whole number") for key in ("members", "samples", "scored", "seed")),
        ({"samples": 1, "scored": 0}, "setting 'samples' must be a whole number >= 2"),
        ({"scored": 1}, "setting 'scored' must be 0, or 2 to samples = 4, not 1"),
        ({"scored": 5}, "setting 'scored' must be 0, or 2 to samples = 4, not 5"),
        ({"members": 3}, "one weight a member"),
        ({"members": 10**12}, "one weight a member"),
    ],
)
def test_damaged_settings(folder: Path, changes: dict[str, Any], words: str) -> None:
    file = folder / "sample.json"
    head = json.loads(file.read_text())
    settings = {k: v for k, v in (head["settings"] | changes).items() if v is not None}
    file.write_text(json.dumps(head | {"settings": settings}))
    refused(folder, "sample.json", words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": []}, "settings must be an object"),
        ({"settings": None}, "settings must be an object"),
        ({"format": "esth population sample 1"}, "format"),
        ({"weights": None}, "weights must be a list of numbers"),
        ({"weights": 1}, "weights must be a list of numbers"),
        ({"weights": [0.7, None]}, "weights must be a list of numbers"),
        ({"weights": [0.7, "x"]}, "weights must be a list of numbers"),
        ({"weights": [[0.7, 0.3]]}, "weights must be a list of numbers"),
        ({"weights": [0.7, 10**400]}, "weights must be a list of numbers"),
        ({"weights": []}, "one weight a member"),
        ({"weights": [0.7, 0.2, 0.1]}, "one weight a member"),
        ({"weights": [0.7, 0.7]}, "sum to 1"),
        ({"weights": [1.7, -0.7]}, "not be negative"),
        ({"weights": [0.7, float("nan")]}, "finite"),
    ],
)
def test_damaged_head(folder: Path, changes: dict[str, Any], words: str) -> None:
    file = folder / "sample.json"
    head = {k: v for k, v in (json.loads(file.read_text()) | changes).items() if v is not None}
    file.write_text(json.dumps(head))
    refused(folder, "sample.json", words)


@pytest.mark.parametrize(
    ("content", "words"), [(b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[]", "format 'list'")]
)
def test_a_head_that_is_none(folder: Path, content: bytes, words: str) -> None:
    (folder / "sample.json").write_bytes(content)
    refused(folder, "sample.json", words)


@pytest.mark.parametrize("file", ["prompts.parquet", "population.parquet", "center.parquet"])
def test_files_lost_and_broken(folder: Path, file: str) -> None:
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: len(whole) // 2])
    refused(folder, file, "cannot be read")
    (folder / file).unlink()
    refused(folder, file, "is missing")


Change = Callable[[list[Any]], Any]


def at(k: int, value: Any) -> Change:
    """The column with another value in row k."""
    return lambda column: [*column[:k], value, *column[k + 1 :]]


COMBINATIONS = "rows must be every prompt, member, sample once"


@pytest.mark.parametrize(
    ("file", "column", "change", "words"),
    [
        *(
            (f"{table}.parquet", name, change, words)
            for table in ("population", "center")
            for name, change, words in (
                ("prompt", lambda c: c[::-1], COMBINATIONS),
                ("prompt", lambda c: [0] * len(c), COMBINATIONS),
                ("prompt", lambda c: [x + 1 for x in c], COMBINATIONS),
                ("member", lambda c: [0] * len(c), COMBINATIONS),
                ("member", at(0, 2), COMBINATIONS),
                ("sample", at(1, 0), COMBINATIONS),
                ("sample", at(3, 4), COMBINATIONS),
                ("sample", lambda c: [s + 0.5 for s in c], "'sample' is not of type int64"),
                ("prompt", at(0, None), "'prompt' has nulls"),
                ("prompt", lambda c: [str(x) + "?" for x in c], "'prompt' is not of type int64"),
                ("tokens", at(2, None), "'tokens' has nulls"),
                ("tokens", at(2, [5, None]), "'tokens' has nulls"),
                ("tokens", lambda c: [[0.5]] * len(c), "'tokens' is not of type list"),
                ("tokens", lambda c: [2] * len(c), "'tokens' is not of type list"),
                ("text", at(0, None), "'text' has nulls"),
                ("truncated", at(0, None), "'truncated' has nulls"),
                ("reward", at(0, 0.5), "'reward' must be 0, 1 or NaN"),
                ("reward", at(0, 7.0), "'reward' must be 0, 1 or NaN"),
                ("reward", at(0, -np.inf), "'reward' must be 0, 1 or NaN"),
                ("reward", at(0, None), "'reward' has nulls"),
                ("reward", None, "column 'reward' is missing"),
                ("tokens", None, "column 'tokens' is missing"),
            )
        ),
        *(
            (f"{table}.parquet", name, change, f"{name!r} is not of type")
            for table, name in (("population", "scores"), ("center", "forms"))
            for change in (
                lambda c: [row[:1] for row in c],
                lambda c: [[*row, 0.0] for row in c],
                at(0, [0.0]),
                lambda c: [0.0] * len(c),
            )
        ),
        ("population.parquet", "scores", at(0, [None, 0.0]), "'scores' has nulls"),
        ("population.parquet", "chain", at(0, np.nan), "'chain' must be finite where sample < 2"),
        ("population.parquet", "chain", at(3, 0.0), "'chain' must be finite where sample < 2"),
        ("population.parquet", "upper", at(0, None), "'upper' has nulls"),
        ("center.parquet", "rate", at(0, None), "'rate' has nulls"),
        ("prompts.parquet", "prompt", at(0, None), "'prompt' has nulls"),
        ("prompts.parquet", "answer", None, "column 'answer' is missing"),
        ("prompts.parquet", "answer", lambda c: [[a] for a in c], "'answer' is not of type string"),
    ],
)
def test_damaged_columns(folder: Path, file: str, column: str, change: Change | None, words: str) -> None:
    table = parquet.read_table(folder / file)
    where = table.column_names.index(column)
    if change is None:
        table = table.remove_column(where)
    else:
        table = table.set_column(where, column, pa.array(change(table[column].to_pylist())))
    parquet.write_table(table, folder / file)
    refused(folder, file, words)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("prompts.parquet", "2 rows do not fit the settings' 3 prompts"),
        ("population.parquet", "23 rows do not fit 3 prompts, 2 members, 4 samples"),
        ("center.parquet", "11 rows do not fit 3 prompts, 1 members, 4 samples"),
    ],
)
def test_lost_rows(folder: Path, file: str, words: str) -> None:
    table = parquet.read_table(folder / file)
    parquet.write_table(table.slice(0, table.num_rows - 1), folder / file)
    refused(folder, file, words)


def test_rows_written_twice(folder: Path) -> None:
    table = parquet.read_table(folder / "population.parquet")
    parquet.write_table(pa.concat_tables([table, table]), folder / "population.parquet")
    refused(folder, "population.parquet", "48 rows do not fit")


def test_a_column_there_twice(folder: Path) -> None:
    table = parquet.read_table(folder / "center.parquet")
    parquet.write_table(table.append_column("rate", table["rate"]), folder / "center.parquet")
    refused(folder, "center.parquet", "cannot be read")


def test_text_that_is_no_utf8(folder: Path) -> None:
    table = parquet.read_table(folder / "prompts.parquet")
    text = pa.array([b"\xff", b"", b""]).view(pa.string())
    parquet.write_table(table.set_column(0, "prompt", text), folder / "prompts.parquet")
    refused(folder, "prompts.parquet", "'prompt' is not of type string")
