"""Comparisons: places that match, effects over seeds and prompts, the random-drift control, one small real study."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from esth.errors import InputError
from esth.estimators.intervals import crossed
from esth.training import ESConfig, GRPOConfig, train
from esth.training.compare import (
    Arm,
    Effect,
    Stop,
    Trajectory,
    effects,
    is_done,
    learned,
    matched,
    random_drift,
    run_arm,
)
from esth.training.evaluation import Evaluation
from esth.training.folder import Point, RunFolder
from esth.training.study import results, run_study, tables
from esth.training.worlds import Spent

SIZES = {"model": "toy", "problems": 40, "prompts": 20, "evaluation_prompts": 30, "evaluate_every": 2}
ES = ESConfig(**SIZES, updates=6, population=16, sigma=0.1, alpha=0.2, fitness="sampled")
GRPO = GRPOConfig(**SIZES, updates=6, num_generations=4, learning_rate=0.05, lr_scheduler_type="constant")


def evaluation(p: list[float], greedy: list[float] | None = None) -> Evaluation:
    ones = np.ones(len(p))
    ids = tuple(map(str, range(len(p))))
    return Evaluation("held-out", ids, 0, np.array(p), np.array(greedy or 0 * ones), ones, ones, 0 * ones)


def stop(update: int, responses: int, p: list[float]) -> Stop:
    return Stop(update, Point(update, 0.1, Spent(responses), 1.0, 1, {"held-out": evaluation(p)}))


def trajectory(*stops: Stop) -> Trajectory:
    found = Trajectory([])
    found.stops = list(stops)
    return found


def test_places_are_matched_by_updates_responses_and_gain() -> None:
    fast = trajectory(stop(0, 0, [0.2, 0.2]), stop(5, 50, [0.4, 0.4]), stop(10, 100, [0.5, 0.5]))
    slow = trajectory(stop(0, 0, [0.2, 0.2]), stop(10, 900, [0.25, 0.25]), stop(20, 1800, [0.3, 0.3]))
    arms = {"fast": [fast], "slow": [slow]}

    def updates(by: str) -> tuple[str, list[float]]:
        what, places = matched(arms, by)
        return what, [s.updates for stops in places.values() for s in stops if s is not None]

    assert updates("updates") == ("10 updates", [10, 10])
    assert updates("responses") == ("100 responses", [10, pytest.approx(10 / 9)])
    assert updates("pass@1") == ("pass@1 +0.100", [pytest.approx(2.5), 20])
    assert updates("greedy")[1] == [0, 0]  # nobody gained the margin: everyone is where it began
    weak = trajectory(stop(0, 0, [0.2, 0.2]), stop(10, 100, [0.23, 0.23]))
    what, places = matched({**arms, "weak": [weak]}, "pass@1")
    assert what == "pass@1 +0.100" and places["weak"] == [None]
    what, places = matched({"fast": [fast], "weak": [weak]}, "pass@1")
    assert what == "pass@1 +0.300" and [p.updates for p in places["fast"] if p] == [pytest.approx(10)]


def test_a_place_between_two_centers_is_interpolated() -> None:
    t = trajectory(stop(0, 0, [0.2, 0.4]), stop(4, 40, [0.4, 0.8]), stop(8, 80, [0.3, 0.9]))
    place = t.at_responses(10)
    assert (place.updates, place.between(lambda p: p.spent.responses)) == (1, 10)
    assert place.between(lambda p: p.sets["held-out"].per_prompt(1)).tolist() == pytest.approx([0.25, 0.5])
    found = effects([place, place], [t.start] * 2, "held-out", [1])["pass@1"]
    assert found.gain.value == pytest.approx(0.075)
    assert t.at_gain(0.3, lambda e: float(e.per_prompt(1).mean())).updates == pytest.approx(4)
    assert t.at_gain(0.31, lambda e: float(e.per_prompt(1).mean())) is None
    assert t.at_responses(500) is t.end and t.at_responses(0).updates == 0


def test_effects_are_paired_and_crossed() -> None:
    rng = np.random.default_rng(0)
    base, ends, draws = (rng.uniform(0.2, 0.8, shape) for shape in ((20,), (3, 20), (3, 4, 20)))
    stops = [stop(9, 1, p.tolist()) for p in ends]
    starts = [stop(0, 0, base.tolist()).point] * 3
    drifts = [[[evaluation(p.tolist())] for p in seed] for seed in draws]
    found = effects(stops, starts, "held-out", [1, 4], drifts)["pass@4"]

    def at_4(p: np.ndarray) -> np.ndarray:
        return 1 - (1 - p) ** 4

    assert np.allclose(found.value, crossed(at_4(ends)))
    assert np.allclose(found.gain, crossed(at_4(ends) - at_4(base)))
    assert found.beyond_drift is not None
    assert np.allclose(found.beyond_drift, crossed(at_4(ends) - at_4(draws).mean(axis=1)))
    assert effects(stops, starts, "held-out", [1])["pass@1"].beyond_drift is None


def test_to_have_learned_is_the_margin_above_base_and_drift() -> None:
    def verdict(gain: tuple[float, float, float], beyond: tuple[float, float, float]) -> bool:
        from esth.estimators.intervals import Interval

        one = Interval(*map(np.float64, gain))
        return learned({"pass@1": Effect(one, one, Interval(*map(np.float64, beyond)))})

    assert verdict((0.06, 0.01, 0.11), (0.05, 0.01, 0.1))
    assert not verdict((0.049, 0.01, 0.11), (0.05, 0.01, 0.1))
    assert not verdict((0.06, -0.01, 0.13), (0.05, 0.01, 0.1))
    assert not verdict((0.06, 0.01, 0.11), (0.05, -0.01, 0.1))


@pytest.mark.parametrize("model", ["toy", "tiny-3"])
def test_random_drift_has_the_distance_and_no_aim(model: str, tmp_path: Path) -> None:
    config = replace(ES, model=model, updates=1, sigma=0.01, alpha=0.01, evaluation_samples=4)
    run = train(config, tmp_path / "run")
    end = run.points()[-1]
    found = random_drift(run, end.drift, draws=3)
    assert [e.name for e in found[0]] == list(end.sets)
    assert found[0][1].ids == end.sets["held-out"].ids
    successes = [draw[1].successes.tolist() for draw in found]
    assert successes[0] != successes[1] != successes[2]
    again = random_drift(RunFolder(run.path), end.drift, draws=3)
    assert [draw[1].successes.tolist() for draw in again] == successes
    near = random_drift(run, 1e-9, draws=1)[0]
    start = run.points()[0].sets["held-out"]
    assert np.allclose(near[1].successes, start.successes, atol=1e-6)
    with pytest.raises(InputError, match="distance >= 0"):
        random_drift(run, -0.1)
    still = random_drift(run, 0.0, draws=1)[0]  # a run that never moved
    assert still[1].successes.tolist() == start.successes.tolist()


def test_a_toy_drift_of_a_known_direction(tmp_path: Path) -> None:
    """θ₀ + c ε by NumPy: the success of the drawn policy, prompt by prompt."""
    from esth.noise import hashed, parameter_noise
    from esth.training.toy_world import draw, start

    run = train(replace(ES, updates=1), tmp_path / "run")
    (found,) = random_drift(run, 0.3, draws=1)
    epsilon = parameter_noise(hashed("drift", ES.seed, 0), "theta", (12,)).astype(float)
    theta = start() + 0.3 * np.linalg.norm(start()) * epsilon / np.linalg.norm(epsilon)
    prompts = draw("held-out", ES.evaluation_prompts)
    logits = prompts.features @ theta
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = (p * prompts.accepted).sum(-1) / p.sum(-1)
    assert np.allclose(found[1].successes, p, atol=1e-6)


def test_stages_follow_one_another_and_are_taken_up(tmp_path: Path) -> None:
    arm = Arm("GRPO, then ES", (replace(GRPO, updates=3), replace(ES, updates=4)))
    said: list[tuple[str, int]] = []
    found = run_arm(arm, 5, tmp_path, lambda told, update, metrics: said.append((told, update)))
    assert [s.updates for s in found.stops] == [0, 2, 3, 5, 7]
    assert found.stages[1].config.init == str(found.stages[0].path) and found.stages[1].config.seed == 5
    spent = [s.point.spent.responses for s in found.stops]
    assert spent == sorted(spent) and spent[-1] == 3 * 20 * 4 + 4 * 16 * 20
    assert said == [("GRPO, then ES/5/0", u) for u in (1, 2, 3)] + [("GRPO, then ES/5/1", u) for u in (1, 2, 3, 4)]
    again = run_arm(arm, 5, tmp_path, lambda *_: pytest.fail("done already"))
    assert [s.updates for s in again.stops] == [0, 2, 3, 5, 7]
    assert not is_done(RunFolder(tmp_path / arm.name / "5" / "0"), replace(GRPO, updates=4))


def test_a_study_from_runs_to_tables(tmp_path: Path) -> None:
    from rich.console import Console

    arms = [Arm("ES", (ES,)), Arm("GRPO", (GRPO,))]
    runs = run_study(arms, range(2), tmp_path, lambda *_: None)
    found = results(arms, runs, (1, 16), ["ES", "GRPO"])
    assert list(found["ends"]) == ["ES", "GRPO"] and set(found["matched"]) == {
        "updates",
        "responses",
        "pass@1",
        "greedy",
    }
    gains = found["ends"]["GRPO"]["effects"]["held-out"]["pass@1"]["gain"]
    ends = [t.end.point.sets["held-out"].per_prompt(1) for t in runs["GRPO"]]
    start = runs["GRPO"][0].start.sets["held-out"].per_prompt(1)
    assert gains[0] == pytest.approx(np.mean(ends) - start.mean(), abs=1e-6)
    assert found["ends"]["ES"]["responses"] == [6 * 16 * 20] * 2
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in tables(found, "toy"):
        console.print(table)
    console.file.close()
    text = console.export_text()
    assert "less random drift" in text and "matched responses" in text and f"{gains[0]:+.3f}" in text
