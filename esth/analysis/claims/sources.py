"""Result files as the rules read them: a study of training, two runs beside each other, or plain JSON.

A file that is not there is a row that was not run. One that is there must be whole and of this version: what a rule
needs and does not find is an InputError that names the file.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esth.analysis.claims.claim import interval, negative
from esth.analysis.forgetting import HELD_OUT, TRAIN
from esth.analysis.over_seeds import change, quantities_of
from esth.errors import InputError
from esth.estimators.intervals import Interval
from esth.training.compare import gained
from esth.training.config import ESConfig, read_object
from esth.training.evaluation import Evaluation
from esth.training.folder import Point, RunFolder

ES_ARMS = ("ES, sampled fitness", "ES, greedy fitness")
GRPO = "GRPO"


class Found:
    """A JSON object in a result file.

    Attributes:
        name: of the file, from the folder of results on, as tables say it.
    """

    def __init__(self, file: Path, name: str, content: dict[str, Any] | None = None) -> None:
        self.file, self.name = file, name
        self.content = read_object(file) if content is None else content

    def at(self, *keys: str | int) -> Any:
        """What lies under these keys.

        Raises:
            InputError: nothing.
        """
        here: Any = self.content
        for key in keys:
            fits = isinstance(here, dict) if isinstance(key, str) else isinstance(here, list) and 0 <= key < len(here)
            if not fits or (isinstance(key, str) and key not in here):
                raise self._other(keys, "it has no")
            here = here[key]
        return here

    def names(self, *keys: str | int) -> list[str]:
        """Names in the object under these keys."""
        here = self.at(*keys)
        if not isinstance(here, dict):
            raise self._other(keys, "there are no names at")
        return list(here)

    def count(self, *keys: str | int) -> int:
        """Length of the list under these keys."""
        here = self.at(*keys)
        if not isinstance(here, list):
            raise self._other(keys, "there is no list at")
        return len(here)

    def text(self, *keys: str | int) -> str:
        """Text under these keys."""
        here = self.at(*keys)
        if not isinstance(here, str):
            raise self._other(keys, "there is no text at")
        return here

    def interval(self, *keys: str | int) -> Interval | None:
        """[value, lower, upper] under these keys, or None where null is."""
        here = self.at(*keys)
        if here is None:
            return None
        numbers = self._numbers(here, keys)
        if len(numbers) != 3 or not numbers[1] <= numbers[0] <= numbers[2]:
            raise self._other(keys, "there is no interval at")
        return interval(numbers[0], numbers[1], numbers[2])

    def estimate(self, *keys: str | int) -> tuple[float, float]:
        """[value, standard error], or an object of both."""
        here = self.at(*keys)
        numbers = self._numbers([here.get("value"), here.get("se")] if isinstance(here, dict) else here, keys)
        if len(numbers) != 2 or numbers[1] < 0:
            raise self._other(keys, "there is no estimate at")
        return numbers[0], numbers[1]

    def numbers(self, *keys: str | int) -> list[float]:
        """A list of numbers, one a seed."""
        numbers = self._numbers(self.at(*keys), keys)
        if not numbers:
            raise self._other(keys, "there are no seeds at")
        return numbers

    def number(self, *keys: str | int) -> float:
        """One number."""
        return self._numbers([self.at(*keys)], keys)[0]

    def truth(self, *keys: str | int) -> bool:
        """true or false."""
        here = self.at(*keys)
        if not isinstance(here, bool):
            raise self._other(keys, "there is no true or false at")
        return here

    def _numbers(self, here: Any, keys: Sequence[str | int]) -> list[float]:
        plain = isinstance(here, list) and all(type(x) in (int, float) and math.isfinite(x) for x in here)
        if not plain:
            raise self._other(keys, "there are no numbers at")
        return [float(x) for x in here]

    def _other(self, keys: Sequence[str | int], what: str) -> InputError:
        return InputError(f"{self.file} is damaged or from another version: {what} {'/'.join(map(str, keys))}")


class Training(ABC):
    """Runs of ES and GRPO beside each other.

    Places: "ends"; "updates", "responses" and "pass@1", where arms are matched.

    Attributes:
        name: of the result file.
        scale, model: toy, tiny or real; what was trained.
        seeds: runs of each arm.
        es: the ES arms, by the decoding of their fitness.
        places: where ES and GRPO can be compared.
        further: evaluated tasks that were not trained on.
        notes: what holds for every figure.
    """

    name: str
    scale: str
    model: str
    seeds: int
    es: tuple[str, ...]
    places: tuple[str, ...]
    further: tuple[str, ...]
    notes: tuple[str, ...]

    @abstractmethod
    def effect(
        self, place: str, arm: str, quantity: str, field: str = "gain", evaluated: str = HELD_OUT
    ) -> Interval | None:
        """An arm's "gain" over the base, or its gain "beyond_drift"; None where it is not known."""

    @abstractmethod
    def difference(self, place: str, a: str, b: str, quantity: str) -> Interval | None:
        """Held-out quantity of one arm less another's, paired; None where one did not get there."""

    @abstractmethod
    def values(self, place: str, arm: str, name: str) -> list[float]:
        """ "drift" or "peak_memory" of each seed; none where the arm did not get there."""

    @abstractmethod
    def learned(self, place: str, arm: str) -> bool:
        """Whether the arm had learned there: by the margin of the studies, above the base and random drift."""


class Study(Training):
    """A study.json of `esth.training.study`."""

    def __init__(self, found: Found, scale: str, model: str) -> None:
        self.found, self.name, self.scale, self.model = found, found.name, scale, model
        self.es, self.places, self.notes = ES_ARMS, ("updates", "responses", "pass@1"), ()
        self.seeds = len(found.numbers("ends", GRPO, "updates"))
        self.further = tuple(s for s in found.names("ends", GRPO, "effects") if s not in (HELD_OUT, TRAIN))

    def effect(
        self, place: str, arm: str, quantity: str, field: str = "gain", evaluated: str = HELD_OUT
    ) -> Interval | None:
        """See `Training`."""
        keys = self._keys(place, arm)
        return self.found.interval(*keys, "effects", evaluated, quantity, field) if keys else None

    def difference(self, place: str, a: str, b: str, quantity: str) -> Interval | None:
        """See `Training`."""
        at = ("differences",) if place == "ends" else ("matched", place, "differences")
        for first, second, turned in ((a, b, False), (b, a, True)):
            if first in self.found.names(*at) and second in self.found.names(*at, first):
                found = self.found.interval(*at, first, second, quantity)
                return negative(found) if turned else found
        return None

    def values(self, place: str, arm: str, name: str) -> list[float]:
        """See `Training`."""
        keys = self._keys(place, arm)
        return self.found.numbers(*keys, name) if keys else []

    def learned(self, place: str, arm: str) -> bool:
        """See `Training`: at the end as the study says, and at an earlier place by the gain there too."""
        if not self.found.truth("learned", arm):
            return False
        gain = self.effect(place, arm, "pass@1")
        return gain is not None and gained(gain, self.found.number("margin"))

    def _keys(self, place: str, arm: str) -> tuple[str, ...]:
        keys = ("ends", arm) if place == "ends" else ("matched", place, "rows", arm)
        return keys if self.found.at(*keys) is not None else ()


class Runs(Training):
    """One run of ES and one of GRPO, folders of `esth train`: intervals are over prompts alone."""

    def __init__(self, folder: Path, name: str, scale: str, model: str) -> None:
        es, grpo = RunFolder(folder / "es"), RunFolder(folder / "grpo")
        config = es.config
        if not isinstance(config, ESConfig):
            raise InputError(f"{es.path} is no run of ES")
        self.name, self.scale, self.model, self.seeds = name, scale, model, 1
        self.es = (f"ES, {config.fitness} fitness",)
        self.runs = {self.es[0]: _ends(es), GRPO: _ends(grpo)}
        starts, stops = zip(*self.runs.values(), strict=True)
        self.places = ("updates",) if stops[0].update == stops[1].update else ()
        self.further = tuple(s for s in starts[0].sets if s not in (HELD_OUT, TRAIN))
        self.notes = ("intervals over prompts only", "no random-drift control")

    def effect(
        self, place: str, arm: str, quantity: str, field: str = "gain", evaluated: str = HELD_OUT
    ) -> Interval | None:
        """See `Training`."""
        if field == "beyond_drift":
            return None
        start, stop = (point.sets[evaluated] for point in self.runs[arm])
        return _difference(stop, start, quantity)

    def difference(self, place: str, a: str, b: str, quantity: str) -> Interval | None:
        """See `Training`."""
        here, there = (self.runs[arm][1].sets[HELD_OUT] for arm in (a, b))
        return _difference(here, there, quantity)

    def values(self, place: str, arm: str, name: str) -> list[float]:
        """See `Training`."""
        return [float(getattr(self.runs[arm][1], name))]

    def learned(self, place: str, arm: str) -> bool:
        """See `Training`; there is no control of random drift."""
        gain = self.effect(place, arm, "pass@1")
        return gain is not None and gained(gain)


def _ends(run: RunFolder) -> tuple[Point, Point]:
    try:
        points = run.points()
    except InputError as error:
        raise InputError(f"{run.path}/evaluations: {error}") from error
    if len(points) < 2 or not all({TRAIN, HELD_OUT} <= set(point.sets) for point in points):
        raise InputError(f"{run.path}/evaluations is damaged or from another version: no held-out start and end")
    return points[0], points[-1]


def _difference(here: Evaluation, there: Evaluation, quantity: str) -> Interval | None:
    if quantity == "entropy":
        return here.entropy_difference(there)
    return change([here], [there], quantity) if quantity in quantities_of([here, there]) else None
