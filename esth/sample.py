"""A sampled population: what every member said, scored under every member, in one folder that needs no model.

FOLDER/sample.json        settings, weights, model, versions
FOLDER/prompts.parquet    one row a prompt: id, text, answer
FOLDER/population.parquet one row a response of a member
FOLDER/center.parquet     one row a response of the center
"""

import json
import tempfile
from dataclasses import dataclass, fields
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError, require

FORMAT = "esth population sample 2"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Responses:
    """Responses, one a row (R rows).

    Attributes:
        prompt: [R] index of the prompt.
        member: [R] index of the member that spoke; −1 is the center.
        sample: [R] index of the try.
        tokens: R lists of token ids, the stop token included.
        text: R decoded responses.
        truncated: [R] whether the token limit ended it; an outcome of the truncated process like any other.
        reward: [R] the verifier's 0 or 1; NaN where the task has none.
    """

    prompt: Ints
    member: Ints
    sample: Ints
    tokens: list[list[int]]
    text: list[str]
    truncated: NDArray[np.bool_]
    reward: Floats

    def __len__(self) -> int:
        return len(self.text)

    def pick(self, keep: NDArray[np.bool_]) -> Self:
        """The responses of a mask [R]."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        kept: dict[str, Any] = {
            k: list(compress(c, keep)) if isinstance(c, list) else c[keep] for k, c in columns.items()
        }
        return type(self)(**kept)

    @property
    def lengths(self) -> Ints:
        """[R] tokens of each response."""
        return np.array([len(t) for t in self.tokens], dtype=np.int64)


@dataclass
class Population(Responses):
    """Responses of the members, with what scoring them under every member gave.

    Attributes:
        scores: [R, N] log-probability of the response under each member, nats; NaN here and below where a response was
            not scored.
        rb, chain: [R] sums over tokens of the two step estimators (esth/estimators/js.py), nats.
        lower, upper: [R] sums over tokens of the bracket L1.4, nats.
    """

    scores: Floats
    rb: Floats
    chain: Floats
    lower: Floats
    upper: Floats


@dataclass
class Center(Responses):
    """Responses of the center, with the directional Fisher information along the members' noise.

    Attributes:
        rate: [C] Σ_t ½ Σᵢ wᵢ Var(uᵢ − ū_w), whose mean predicts JS from the center alone (L1.1), nats.
        forms: [C, N] Σ_t Var(J_t εᵢ); the mean over responses is εᵢᵀFεᵢ (L1.4).
    """

    rate: Floats
    forms: Floats


@dataclass
class PopulationSample:
    """One sampled population: settings (JSON types), member weights [N], prompts, answers, and all responses."""

    settings: dict[str, Any]
    weights: Floats
    prompts: list[str]
    answers: list[str]
    population: Population
    center: Center

    @property
    def n(self) -> int:
        """Members."""
        return len(self.weights)

    @property
    def verified(self) -> bool:
        """Whether the responses carry a verifier's rewards."""
        return len(self.population) > 0 and not bool(np.isnan(self.population.reward).any())

    @property
    def scored(self) -> int:
        """Responses of a member (and of the center) to a prompt that carry scores: the first ones."""
        return int(self.settings["scored"])

    def first(self, samples: int) -> "PopulationSample":
        """The same sample with the first `samples` responses only."""
        settings = self.settings | {"samples": samples, "scored": min(self.scored, samples)}
        said, center = self.population, self.center
        said, center = said.pick(said.sample < samples), center.pick(center.sample < samples)
        return PopulationSample(settings, self.weights, self.prompts, self.answers, said, center)

    def grid(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the population's responses [R, …] as [prompts, members, samples, …]."""
        p = self.population
        samples = int(p.sample.max()) + 1
        order = np.lexsort((p.sample, p.member, p.prompt))
        return values[order].reshape((len(self.prompts), self.n, samples, *values.shape[1:]))

    def center_grid(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the center's responses [C, …] as [prompts, samples, …]."""
        order = np.lexsort((self.center.sample, self.center.prompt))
        return values[order].reshape((len(self.prompts), -1, *values.shape[1:]))

    def save(self, folder: Path) -> None:
        """Write the folder whole or not at all; an older sample there is replaced.

        Raises:
            InputError: something else is there, or the disk refuses.
        """
        folder = Path(folder)
        check_output(folder)
        parent = folder.absolute().parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=parent) as scratch:
                new = Path(scratch, "new")
                new.mkdir()
                _write(new, self)
                if folder.exists():
                    folder.rename(Path(scratch, "old"))
                new.rename(folder)
        except OSError as error:
            raise InputError(f"cannot write the sample to {folder}: {error.strerror or error}") from error

    @classmethod
    def load(cls, folder: Path) -> "PopulationSample":
        """Read a folder written by `save`.

        Raises:
            InputError: no sample there, one of another version, or damaged files.
        """
        folder = Path(folder)
        try:
            head = json.loads((folder / "sample.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{folder} holds no population sample (no readable sample.json)") from error
        except ValueError as error:
            raise InputError(f"{folder}/sample.json is not JSON: {error}") from error
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            found = head.get("format") if isinstance(head, dict) else type(head).__name__
            raise InputError(f"{folder}/sample.json: format {found!r}, this version reads {FORMAT!r}")
        prompts = _read_columns(folder / "prompts.parquet")
        try:
            sample = cls(
                head["settings"],
                np.array(head["weights"], dtype=np.float64),
                [str(x) for x in prompts["prompt"]],
                [str(x) for x in prompts["answer"]],
                _read(folder / "population.parquet", Population),
                _read(folder / "center.parquet", Center),
            )
            expected = [sample.settings[key] for key in ("prompts", "members", "samples")]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{folder}: {error.args[0]!r} is missing or damaged") from error
        x, n, m = expected
        sizes = len(sample.prompts), sample.n, len(sample.population), len(sample.center)
        if sizes != (x, n, x * n * m, x * m):
            raise InputError(f"{folder}: {sizes} prompts, members and responses do not fit its settings {expected}")
        return sample


def check_output(folder: Path) -> None:
    """Raise InputError unless `folder` is free, empty, or holds an older sample; called before the work begins."""
    if folder.exists() and not (folder / "sample.json").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and holds no population sample: name another output folder")


def _write(folder: Path, sample: PopulationSample) -> None:
    head = {"format": FORMAT, "settings": sample.settings, "weights": sample.weights.tolist()}
    (folder / "sample.json").write_text(json.dumps(head, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _write_columns(folder / "prompts.parquet", {"prompt": sample.prompts, "answer": sample.answers})
    for name, table in (("population", sample.population), ("center", sample.center)):
        columns = {f.name: getattr(table, f.name) for f in fields(table)}
        _write_columns(folder / f"{name}.parquet", columns)


def _write_columns(path: Path, columns: dict[str, Any]) -> None:
    pa, parquet = require("pyarrow", "llm"), require("pyarrow.parquet", "llm")
    rows = {k: list(v) if isinstance(v, np.ndarray) and v.ndim > 1 else v for k, v in columns.items()}
    types = {"tokens": pa.list_(pa.int32()), "prompt": pa.string() if "answer" in columns else pa.int64()}
    parquet.write_table(pa.table({k: pa.array(v, type=types.get(k)) for k, v in rows.items()}), path)


def _read_columns(path: Path) -> dict[str, Any]:
    pa, parquet = require("pyarrow", "llm"), require("pyarrow.parquet", "llm")
    try:
        return dict(parquet.read_table(path).to_pydict())
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _read(path: Path, kind: type[Any]) -> Any:
    columns = _read_columns(path)
    out = {}
    for f in fields(kind):
        if f.name not in columns:
            raise InputError(f"{path}: column {f.name!r} is missing")
        value = columns[f.name]
        if f.name in ("tokens", "text"):
            out[f.name] = value
        else:
            dtype = {"truncated": np.bool_}.get(
                f.name, np.int64 if f.name in ("prompt", "member", "sample") else np.float64
            )
            out[f.name] = np.array(value, dtype=dtype)
    return kind(**out)
