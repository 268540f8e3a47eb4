"""Arms less each other: paired by seed and problem, over the seeds that both have."""

import numpy as np
import pytest

from esth.estimators.intervals import crossed
from esth.training.compare import Stop
from esth.training.differences import differences
from esth.training.evaluation import Evaluation
from esth.training.folder import Point
from esth.training.worlds import Spent

PROMPTS = 6


def evaluation(successes: np.ndarray, name: str = "held-out") -> Evaluation:
    ones = np.ones(PROMPTS)
    ids = tuple(str(i) for i in range(PROMPTS))
    return Evaluation(name, ids, 4, successes, ones, 2.0 * successes + 1.0, 8.0 * ones, 0.0 * ones)


def stop(successes: np.ndarray, train: np.ndarray | None = None) -> Stop:
    sets = {"held-out": evaluation(successes), "train": evaluation(successes if train is None else train, "train")}
    return Stop(1.0, Point(1, 0.1, Spent(), 1.0, 1, sets))


@pytest.fixture
def drawn() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 5, (3, PROMPTS)).astype(float), rng.integers(0, 5, (3, PROMPTS)).astype(float)


def test_they_are_paired_by_seed_and_problem(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = drawn
    places = {"a": [stop(s) for s in a], "b": [stop(s) for s in b]}
    found = differences(places, (1, 2), ("pass@1", "entropy"))
    assert list(found) == ["a"] and list(found["a"]) == ["b"] and set(found["a"]["b"]) == {"pass@1", "entropy"}
    assert found["a"]["b"]["pass@1"] == pytest.approx([float(x) for x in crossed((a - b) / 4)], abs=1e-6)
    # Entropy a token, every response of 2 tokens: (2 c + 1)/8 for c successes.
    assert found["a"]["b"]["entropy"] == pytest.approx([float(x) for x in crossed((a - b) / 4)], abs=1e-6)
    alike = {"a": places["a"], "b": [stop(np.roll(s, 1)) for s in a]}
    assert differences(alike, (1,), ("pass@1",))["a"]["b"]["pass@1"][2] > 0.0  # other problems: no pairs, a spread
    assert differences({"a": places["a"], "b": places["a"]}, (1,), ("pass@1",))["a"]["b"]["pass@1"] == [0.0, 0.0, 0.0]


def test_seeds_that_both_have_and_arms_that_got_there(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = drawn
    places = {"a": [stop(s) for s in a], "b": [stop(s) for s in b[:2]], "c": [stop(a[0]), None, stop(a[2])]}
    found = differences(places, (1,), ("pass@1",))
    assert found["a"]["b"]["pass@1"] == pytest.approx([float(x) for x in crossed((a[:2] - b[:2]) / 4)], abs=1e-6)
    assert "c" not in found["a"] and "b" not in found
    assert differences({"a": places["a"], "b": places["b"][:1]}, (1,), ("pass@1",)) == {}


def test_between_evaluated_centers_and_on_another_set(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = drawn
    here = [Stop(1.5, stop(s).point, stop(t).point, 0.25) for s, t in zip(a, b, strict=True)]
    found = differences({"a": here, "b": [stop(s) for s in a]}, (1,), ("pass@1",))
    assert found["a"]["b"]["pass@1"] == pytest.approx([float(x) for x in crossed(0.25 * (b - a) / 4)], abs=1e-6)
    places = {"a": [stop(s, t) for s, t in zip(a, b, strict=True)], "b": [stop(s) for s in a]}
    assert differences(places, (1,), ("pass@1",))["a"]["b"]["pass@1"] == [0.0, 0.0, 0.0]
    train = differences(places, (1,), ("pass@1",), "train")["a"]["b"]["pass@1"]
    assert train == pytest.approx([float(x) for x in crossed((b - a) / 4)], abs=1e-6)
