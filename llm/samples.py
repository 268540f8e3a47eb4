"""What the five studies share: their settings, and the samples they are computed from, made once and kept.

A study asks for samples by name. One that lies in the folder is read; one that does not is made, if there is a model,
and kept. So everything is recomputed from the folder alone, with no model, and an interrupted run goes on.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth._files import write_text
from esth.check import Check, Verdict
from esth.diversity import DiversityConfig, sample_into
from esth.diversity.config import check_least
from esth.diversity.journal import Journal
from esth.diversity.sampling import Progress, quiet
from esth.errors import InputError
from esth.models.workers import Workers, load_workers
from esth.noise import Direction
from esth.sample import PopulationSample
from esth.tasks import Task

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Settings:
    """Sizes of the studies; the defaults fit the demo checkpoint and two cores.

    Attributes:
        task: name of a task, or "file".
        data: the user's file, or where a benchmark's file lies.
        split: train, validation, test or all, as far as the task has it.
        difficulty: of generated tasks.
        question: field of the prompt in a user's file.
        answer: field of the answer in a user's file.
        verifier: in place of the task's own.
        max_tokens: a response is cut there; the task's own limit if none.
        temperature: of the policy.
        sigma: of the populations whose success is measured.
        members: N of the i.i.d. population.
        pairs: antithetic pairs, of directions of their own: fresh members to the population.
        prompts: prompts; weights and updates come from the first half, gains are measured on the other.
        samples: responses m of each member of the population (and of the center) to each prompt; m >= N.
        scored: of these, how many are scored under every member.
        pair_samples: responses of each member of the pairs to each prompt.
        sigma_low: smallest sigma of `fisher_rate`.
        sigma_high: largest sigma of `fisher_rate`.
        sigmas: how many, evenly on a logarithmic scale.
        rate_members: N of the populations of `fisher_rate`.
        rate_prompts: prompts of `fisher_rate`.
        groups: whether `fisher_rate` splits by parameter group.
        betas: sizes α/σ of the update that `center_update` makes.
        updated_samples: responses of each updated center to each held-out prompt.
        engine: that holds the weights: transformers or vllm.
        workers: engines side by side (more than one: Ray).
        dtype: of the weights.
        seed: of members, prompts and responses.
        block_gib: GiB that the next-token distributions held at a time may take.
    """

    task: str = "arithmetic"
    data: str | None = None
    split: str = "all"
    difficulty: str | None = None
    question: str = "question"
    answer: str = "answer"
    verifier: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.7
    sigma: float = 0.004
    members: int = 8
    pairs: int = 12
    prompts: int = 40
    samples: int = 8
    scored: int = 2
    pair_samples: int = 4
    sigma_low: float = 5e-5
    sigma_high: float = 1e-2
    sigmas: int = 6
    rate_members: int = 4
    rate_prompts: int = 16
    groups: bool = True
    betas: tuple[float, ...] = (0.5, 1.0, 2.0)
    updated_samples: int = 24
    engine: str = "transformers"
    workers: int = 1
    dtype: str = "float32"
    seed: int = 0
    block_gib: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma_low < self.sigma_high:
            raise InputError(f"sigma_low = {self.sigma_low:g} must lie between 0 and sigma_high = {self.sigma_high:g}")
        if self.samples < self.members:
            raise InputError(
                f"P_mix at K = members needs samples >= members, not samples = {self.samples}, members = {self.members}"
            )
        check_least(self, members=2, pairs=2, prompts=4, pair_samples=2, sigmas=2)
        check_least(self, rate_members=2, rate_prompts=2, updated_samples=2)
        if not self.betas or not all(0 < b < float("inf") for b in self.betas):
            raise InputError(f"betas must be positive numbers, not {list(self.betas)}")
        self.population()  # refuses what a population refuses

    def population(self, **changes: Any) -> DiversityConfig:
        """The i.i.d. population's configuration, with `changes`."""
        shared = {
            name: getattr(self, name)
            for name in (
                "task", "data", "split", "difficulty", "question", "answer", "verifier", "max_tokens", "temperature",
                "sigma", "members", "samples", "scored", "prompts", "engine", "workers", "dtype", "block_gib",
            )
        }  # fmt: skip
        return DiversityConfig(**(shared | {"seed": self.stream(0)} | changes))

    def stream(self, k: int) -> int:
        """The seed of the k-th of four kinds of members and responses: no run's are those of another seed's run."""
        return 4 * self.seed + k

    def sweep(self) -> NDArray[np.float64]:
        """The values of sigma of `fisher_rate`."""
        return np.geomspace(self.sigma_low, self.sigma_high, self.sigmas)


class Samples(AbstractContextManager["Samples"]):
    """The samples of one model and one task, in `folder`.

    Args:
        folder: where they lie; its settings.json says of what they are.
        model: of which missing ones are made (a folder, a hub name, "demo"); None makes none.
        settings: for a new folder; None reads those of the folder.
        progress: called as samples are made.

    Raises:
        InputError: no settings and no such folder, or a folder of other settings.
    """

    def __init__(
        self, folder: Path, model: str | None, settings: Settings | None = None, progress: Progress = quiet
    ) -> None:
        self.folder, self.model, self.progress = folder, model, progress
        stored = _stored(folder)
        if settings is None and stored is None:
            raise InputError(f"{folder} holds no samples of the studies (no settings.json)")
        self.settings = _settings(stored["settings"], folder) if settings is None else settings  # type: ignore[index]
        self.name = model if stored is None or model is not None else str(stored["model"])
        self._new = stored is None
        if (
            stored is not None
            and settings is not None
            and _work(stored) != _work({"model": model, "settings": self.record()})
        ):
            raise InputError(f"{folder} holds samples of another model or of other settings: name another folder")
        self._workers: Workers | None = None
        self.seconds: dict[str, float] = {}
        """What it took to make each of the samples and arrays asked for so far, model loading left out."""

    def iid(self) -> PopulationSample:
        """The population that most studies share: i.i.d. members, [prompts, members, samples] verified responses."""
        return self.population("population", self.settings.population(), lambda: self.task)

    def antithetic(self) -> PopulationSample:
        """Antithetic pairs on the same prompts, of other directions than `iid`: each member is also a fresh one."""
        s = self.settings
        config = s.population(
            family="antithetic", members=2 * s.pairs, samples=s.pair_samples, scored=0, seed=s.stream(1)
        )
        return self.population("pairs", config, lambda: self.task)

    def population(
        self,
        name: str,
        config: DiversityConfig,
        task: Callable[[], Task],
        directions: Sequence[Direction] | None = None,
    ) -> PopulationSample:
        """The sample `name`, of `config` on the problems of `task`, of the members `directions` where given.

        `task` is called only to make the sample: who reads it again needs no data files.
        """
        place = self.folder / name
        if self.model is not None:
            sample = sample_into(place, self.workers, task(), config, self._titled(name), directions)
        elif place.is_dir():
            sample = PopulationSample.load(place)
            if any(sample.settings[k] != getattr(config, k) for k in ("prompts", "members", "samples")):
                raise InputError(f"{place} is not the sample {name!r} of {self.folder}/settings.json")
        else:
            raise InputError(f"{self.folder} has no sample {name!r}: give --model to make it")
        self.seconds[name] = float(sample.settings["seconds"])
        return sample

    def arrays(self, name: str, make: Callable[[Workers, Progress], Arrays]) -> Arrays:
        """Named arrays that `make` computes with a model."""
        folder = self.folder / "arrays"
        found = Journal(folder, {}).get(name) if folder.is_dir() else None
        if found is None or "seconds" not in found:
            if self.model is None:
                raise InputError(f"{self.folder} has no arrays {name!r}: give --model to make them")
            workers, started = self.workers, time.monotonic()
            made = make(workers, self._titled(name))
            found = Journal(folder, {}).put(name, made | {"seconds": np.array(time.monotonic() - started)})
        self.seconds[name] = float(found["seconds"])
        return found

    @cached_property
    def task(self) -> Task:
        """All prompts of the studies."""
        return self.settings.population().load_task()

    def held_out(self) -> Task:
        """The half of the prompts on which gains are measured: those of odd index."""
        return replace(self.task, problems=self.task.problems[1::2])

    @property
    def workers(self) -> Workers:
        """The engines, loaded when first needed; the folder is begun when they and the task are there."""
        if self._workers is None:
            s = self.settings
            assert self.model is not None and len(self.task) > 0
            self._workers = load_workers(self.model, s.engine, workers=s.workers, dtype=s.dtype)
        if self._new:
            content = {"model": self.model, "settings": self.record()}
            write_text(self.folder / "settings.json", json.dumps(content, indent=2) + "\n")
            self._new = False
        return self._workers

    def record(self) -> dict[str, Any]:
        """The settings, as JSON types."""
        return asdict(self.settings) | {"betas": list(self.settings.betas)}

    def _titled(self, name: str) -> Progress:
        return lambda stage, done, total, tokens: self.progress(f"{name}: {stage}", done, total, tokens)

    def __exit__(self, *exception: object) -> None:
        if self._workers is not None:
            self._workers.close()


def sized(check: Check, n: int, unit: str = "prompts") -> Check:
    """The check with the number of `unit` that would decide it in its detail; it was judged from `n` of them.

    One number takes the deviation as it stands, which is itself noisy; the other supposes the prediction exact.
    """
    if check.verdict is not Verdict.UNDECIDED or check.samples_factor is None:
        return check
    told = f"{_count(n * check.samples_factor)} {unit} would decide it"
    if check.allowed is not None:
        exact = (check.detectable / check.allowed) ** 2 if check.allowed > 0 else math.inf
        told += f", {_count(n * exact)} if the prediction is exact"
    return replace(check, detail="; ".join(filter(None, (check.detail, told))))


def _count(number: float) -> str:
    if not math.isfinite(number):
        return "no number of"
    return f"≈ {math.ceil(number):,}" if number < 1e6 else "over a million"


def train(values: NDArray[Any]) -> NDArray[Any]:
    """Of values [prompts, …], those of the prompts from which weights and updates come (even index)."""
    return values[0::2]


def test(values: NDArray[Any]) -> NDArray[Any]:
    """Of values [prompts, …], those of the held-out prompts (odd index)."""
    return values[1::2]


def _stored(folder: Path) -> dict[str, Any] | None:
    path = folder / "settings.json"
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and holds no samples of the studies: name another folder")
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(stored, dict) or not {"model", "settings"} <= stored.keys():
        raise InputError(f"{path} does not hold the settings of the studies")
    return stored


def _work(stored: dict[str, Any]) -> str:
    """What the samples are of: how many engines made them does not matter."""
    settings = {k: v for k, v in stored["settings"].items() if k != "workers"}
    return json.dumps({"model": stored["model"], "settings": settings}, sort_keys=True)


def _settings(stored: dict[str, Any], folder: Path) -> Settings:
    try:
        return Settings(**(stored | {"betas": tuple(stored["betas"])}))
    except (TypeError, KeyError) as error:
        raise InputError(f"{folder}/settings.json is of another version: {error}") from error
