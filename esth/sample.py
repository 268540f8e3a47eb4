"""A sampled population: what every member said, scored under every member, in one folder that needs no model.

FOLDER/sample.json        settings, weights, model, versions
FOLDER/prompts.parquet    one row a prompt: id, text, answer
FOLDER/population.parquet one row a response of a member
FOLDER/center.parquet     one row a response of the center
"""

import json
import math
import tempfile
from dataclasses import dataclass, fields
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from esth._array import check_weights
from esth.errors import InputError, require

FORMAT = "esth population sample 2"

SETTINGS: dict[str, tuple[tuple[type, ...], float | None, tuple[str, ...]]] = {
    "a whole number >= 1": ((int,), 1, ("prompts", "members", "max_tokens")),
    "a whole number >= 2": ((int,), 2, ("samples",)),
    "a whole number >= 0": ((int,), 0, ("scored", "seed")),
    "a finite number > 0": ((int, float), math.ulp(0.0), ("sigma",)),
    "a finite number >= 0": ((int, float), 0, ("temperature", "seconds")),
    "text": ((str,), None, ("model", "task", "family", "dtype")),
}
"""What readers use of a sample's settings: types, least value, names."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Responses:
    """Responses, one a row (R rows), sorted by prompt, member, sample.

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
        settings, weights = _read_head(folder / "sample.json")
        prompts = _read_columns(folder / "prompts.parquet", _prompt_types())
        said = Population(**_read_columns(folder / "population.parquet", _types(Population, len(weights))))
        center = Center(**_read_columns(folder / "center.parquet", _types(Center, len(weights))))
        sample = cls(settings, weights, prompts["prompt"], prompts["answer"], said, center)
        _check(folder, sample)
        return sample


def check_output(folder: Path) -> None:
    """Raise InputError unless `folder` is free, empty, or holds an older sample; called before the work begins."""
    if folder.exists() and not (folder / "sample.json").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and holds no population sample: name another output folder")


def _write(folder: Path, sample: PopulationSample) -> None:
    head = {"format": FORMAT, "settings": sample.settings, "weights": sample.weights.tolist()}
    (folder / "sample.json").write_text(json.dumps(head, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    prompts = {"prompt": sample.prompts, "answer": sample.answers}
    _write_columns(folder / "prompts.parquet", prompts, _prompt_types())
    for name, table in (("population", sample.population), ("center", sample.center)):
        _write_columns(folder / f"{name}.parquet", vars(table), _types(type(table)))


def _prompt_types() -> dict[str, Any]:
    pa = require("pyarrow", "llm")
    return {"prompt": pa.string(), "answer": pa.string()}


def _types(kind: type[Responses], members: int = -1) -> dict[str, Any]:
    """Arrow types of a table's columns; what is there a member has `members` entries, any number if −1."""
    pa = require("pyarrow", "llm")
    other = {
        **dict.fromkeys(("prompt", "member", "sample"), pa.int64()),
        **dict.fromkeys(("scores", "forms"), pa.list_(pa.float64(), members)),
        "tokens": pa.list_(pa.int32()),
        "text": pa.string(),
        "truncated": pa.bool_(),
    }
    return {f.name: other.get(f.name, pa.float64()) for f in fields(kind)}


def _write_columns(path: Path, columns: dict[str, Any], types: dict[str, Any]) -> None:
    pa, parquet = require("pyarrow", "llm"), require("pyarrow.parquet", "llm")
    rows = {k: list(v) if isinstance(v, np.ndarray) and v.ndim > 1 else v for k, v in columns.items()}
    parquet.write_table(pa.table(rows, schema=pa.schema(types)), path)


def _read_columns(path: Path, types: dict[str, Any]) -> dict[str, Any]:
    """Columns of these types, none of them with nulls; numbers as arrays, text and token ids as lists."""
    pa, parquet = require("pyarrow", "llm"), require("pyarrow.parquet", "llm")
    if not path.is_file():
        raise InputError(f"{path} is missing")
    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {_first_line(error)}") from error
    out = {}
    for name, kind in types.items():
        if name not in table.column_names:
            raise InputError(f"{path}: column {name!r} is missing")
        try:
            values = table[name].cast(kind).to_pylist()
        except (pa.ArrowException, ValueError) as error:
            raise InputError(f"{path}: column {name!r} is not of type {kind}: {_first_line(error)}") from error
        if any(v is None or (isinstance(v, list) and None in v) for v in values):
            raise InputError(f"{path}: column {name!r} has nulls")
        out[name] = values if kind in (pa.string(), pa.list_(pa.int32())) else np.array(values)
    return out


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _read_head(path: Path) -> tuple[dict[str, Any], Floats]:
    """Settings and weights [N], checked."""
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path.parent} holds no population sample (no readable sample.json)") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else type(head).__name__
        raise InputError(f"{path}: format {found!r}, this version reads {FORMAT!r}")
    s = head.get("settings")
    if not isinstance(s, dict):
        raise InputError(f"{path}: settings must be an object, not {s!r:.50}")
    for what, (kinds, least, keys) in SETTINGS.items():
        for key in keys:
            # The type itself: JSON's true is no 1.
            if type(s.get(key)) not in kinds or (least is not None and not least <= s[key] < math.inf):
                raise InputError(f"{path}: setting {key!r} must be {what}, not {s.get(key)!r:.50}")
    if not (s["scored"] == 0 or 2 <= s["scored"] <= s["samples"]):
        raise InputError(f"{path}: setting 'scored' must be 0, or 2 to samples = {s['samples']}, not {s['scored']}")
    try:
        weights = np.array([float(w) for w in head["weights"]])
        return s, np.asarray(check_weights(weights, np.broadcast_to(0.0, s["members"])))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: weights must be a list of numbers, one a member") from error


def _check(folder: Path, sample: PopulationSample) -> None:
    """Raise InputError unless the responses are those of the settings, each once, with what readers ask of them."""
    s = sample.settings
    x, n, m = s["prompts"], s["members"], s["samples"]
    if len(sample.prompts) != x:
        raise InputError(f"{folder}/prompts.parquet: {len(sample.prompts)} rows do not fit the settings' {x} prompts")
    for name, table, members in (("population", sample.population, range(n)), ("center", sample.center, [-1])):
        path, size = folder / f"{name}.parquet", x * len(members) * m
        if len(table) != size:
            raise InputError(f"{path}: {len(table)} rows do not fit {x} prompts, {len(members)} members, {m} samples")
        grid = np.stack(np.meshgrid(range(x), members, range(m), indexing="ij")).reshape(3, size)
        if not np.array_equal([table.prompt, table.member, table.sample], grid):
            raise InputError(f"{path}: rows must be every prompt, member, sample once, sorted by the three")
        if not (np.isin(table.reward, (0, 1)) | np.isnan(table.reward)).all():
            raise InputError(f"{path}: column 'reward' must be 0, 1 or NaN")
    said = sample.population
    if not np.array_equal(np.isfinite(said.chain), said.sample < s["scored"]):
        raise InputError(f"{folder}/population.parquet: 'chain' must be finite where sample < {s['scored']}, else NaN")
