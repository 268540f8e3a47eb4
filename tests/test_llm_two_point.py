"""The study of T5: on a tiny real model end to end, and its verdicts on evaluations of known V, C and C′."""

import json
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra esth[plot]")

from esth.check import Verdict
from esth.estimators.pair_covariance import unlike
from esth.lemmas import two_point as lemma
from esth.models import load_checkpoint
from esth.models.engine import Response, Sampling
from esth.models.transformers_engine import TransformersEngine
from esth.noise import population
from esth.tasks.task import Problem, encode
from llm import two_point as study
from llm.__main__ import main
from llm.samples import Samples

SIGMA = 0.05
PROMPTS = 8


def easy_questions(folder, path):
    """A task that the model solves about every second time: the answer is what it says most often."""
    engine = TransformersEngine(load_checkpoint(str(folder)))
    tokenizer = engine.checkpoint.tokenizer
    questions = [f"t{5 + i} t{9 + 2 * i}" for i in range(PROMPTS)]
    prompts = [encode(tokenizer, Problem("", q, "")) for q in questions]
    said = engine.sample(prompts, 64, Sampling(0.3, 3), seed=1)
    text = [[engine.checkpoint.decode(r.tokens).split() for r in row] for row in said]
    words = [Counter(t[-1] for t in row if t) for row in text]
    path.write_text(
        "".join(
            json.dumps({"question": q, "answer": c.most_common(1)[0][0]}) + "\n"
            for q, c in zip(questions, words, strict=True)
        )
    )
    return path


def options(folder, data, **changes):
    sizes = {
        "task": "file", "data": data, "verifier": "text", "prompts": PROMPTS, "members": 3, "samples": 3, "pairs": 6,
        "pair_samples": 4, "sigma": SIGMA, "max_tokens": 3, "temperature": 0.3, "updated_samples": 6,
    } | changes  # fmt: skip
    return ["--model", str(folder), *(f"--{k}={v}" for k, v in sizes.items())]


@pytest.fixture(scope="module")
def ran(tiny_folder, tmp_path_factory):
    """The study on a tiny model: its folder."""
    out, folder = tmp_path_factory.mktemp("t5"), tiny_folder("llama")
    data = easy_questions(folder, out / "questions.jsonl")
    assert main(["two_point", *options(folder, data), f"--keep={out / 'kept'}"]) in (0, 1)
    return out / "kept"


def record(folder):
    return json.loads((folder / "two_point.json").read_text(encoding="utf-8"))


def test_study_runs_and_is_found_again_without_the_model(ran, tmp_path):
    first = record(ran)
    assert (ran / "two_point.png").read_bytes().startswith(b"\x89PNG")
    assert main(["T5", f"--from={ran}", f"--out={tmp_path}"]) in (0, 1)
    again = record(tmp_path)
    assert again["checks"] == first["checks"] and again["data"] == first["data"]
    assert {"own", "shared"} <= {kind for kind, found in first["data"]["kinds"].items() if "two-point" in found}
    own = first["data"]["kinds"]["own"]["single"]
    assert 0.02 < own["variance"]["value"] < 0.3, "rewards vary: the test must be able to fail"
    told = [c["detail"] for c in first["checks"] if c["verdict"] == "undecided"]
    assert all("would decide it" in text for text in told)


def test_scores_are_the_model_s(ran, tiny_folder):
    """Teacher-forced scores against the engine's own, one by one; prompts and members in their order."""
    engine = TransformersEngine(load_checkpoint(str(tiny_folder("llama"))))
    with Samples(ran, None) as samples:
        kept = samples.arrays("teacher-forced", None)
        problem = samples.task.problems[3]
    member = population(1, 12, "antithetic")[5]
    engine.set_member(member, SIGMA)
    tokens = [*engine.checkpoint.tokenizer(problem.answer, add_special_tokens=False)["input_ids"], 2]
    prompt = encode(engine.checkpoint.tokenizer, problem)
    (score,) = engine.score([prompt], [[Response(tuple(tokens), False)]], Sampling(0.3, 3))[0]
    assert kept["reference_lengths"][3] == len(tokens)
    assert kept["reference"][5, 3, : len(tokens)] == pytest.approx(score, abs=1e-4)
    assert study._means(kept["reference"], kept["reference_lengths"])[0, 3, 5] == pytest.approx(score.mean(), abs=1e-4)


def test_twins_draw_with_the_same_numbers(ran, tiny_folder):
    """Without noise in the weights both twins say the same; they differ from one another only in their weights."""
    engine = TransformersEngine(load_checkpoint(str(tiny_folder("llama"))))
    prompts, said = [engine.checkpoint.encode("t5 t9")], []
    for member in population(7, 4, "antithetic"):
        engine.set_member(study.twin(member), 1e-9)
        said.append(engine.sample(prompts, 8, Sampling(0.7, 3), seed=0))
    assert said[0] == said[1] and said[2] == said[3] and said[0] != said[2]
    alike = record(ran)["data"]["alike"]
    assert alike == sorted(alike, reverse=True) and 0 < alike[-1] < 1


def test_rewards_of_the_whole_length_are_the_rewards(ran):
    with Samples(ran, None) as samples:
        kept, own = samples.arrays("prefix-rewards", None), samples.antithetic()
    assert kept["lengths"].tolist() == [1, 2, 3]
    assert np.array_equal(kept["own"][:, -1], own.population.reward)
    assert not np.array_equal(kept["own"][:, 0], own.population.reward)


def test_coordinates_are_those_of_the_directions(ran, tiny_folder):
    checkpoint = load_checkpoint(str(tiny_folder("llama")))
    with Samples(ran, None) as samples:
        epsilon = samples.arrays("coordinates", None)["epsilon"]
    name, tensor = min(checkpoint.tensors.items(), key=lambda item: (np.prod(item[1].shape), item[0]))
    members = population(1, 12, "antithetic")
    size = int(np.prod(tensor.shape))
    assert epsilon.shape == (6, study.COORDINATES)
    assert np.array_equal(epsilon[2, :size], members[4].noise(name, tensor.shape))
    assert np.mean(epsilon**2) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("change", "message"), [({"pairs": 1}, "pairs"), ({"sigma": 0.0}, "sigma")])
def test_wrong_input_is_one_line(tiny_folder, ran, tmp_path, capsys, change, message):
    data = ran.parent / "questions.jsonl"
    arguments = ["two_point", *options(tiny_folder("llama"), data, **change), f"--keep={tmp_path / 'k'}"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "k" / "two_point.json").exists()


# Verdicts on evaluations of known moments


def evaluations(rng, x, k, m, odd, even, shared):
    """Rewards y [X, K, 2, m] of successes ½ ± odd + even, a share of pairs with one random number."""
    p = 0.5 + rng.choice([-0.1, 0.1], (x, 1, 1)) + even * rng.choice([-1, 1], (x, k, 1)) * np.ones(2)
    p = p + odd * rng.choice([-1, 1], (x, k, 1)) * np.array([1, -1])
    u = rng.random((x, k, 2, m))
    u[:, :, 1] = np.where(rng.random((x, k, m)) < shared, u[:, :, 0], u[:, :, 1])
    return (u < p[..., None]).astype(float)


def verdicts(checks):
    return [check.verdict for check in checks]


@pytest.mark.parametrize(
    ("kind", "m", "shape", "winner"),
    [
        ("own", 4, (0.3, 0.0, 0.0), "one-point"),
        ("own", 4, (0.0, 0.3, 0.0), "two-point"),
        ("shared", 2, (0.0, 0.0, 0.5), "two-point"),
    ],
)
def test_right_predictions_hold_and_name_the_winner(kind, m, shape, winner):
    rng = np.random.default_rng(0)
    y = evaluations(rng, 160, 12, m, *shape)
    checks, data = study.variances(kind, y, rng.standard_normal((12, 1024)), 0.01)
    assert verdicts(checks) == [Verdict.HOLDS] * 3
    assert f"predicts the {winner}" in checks[2].detail
    odd, even, shared = shape
    differences = unlike(y[..., 0::2].mean(axis=-1))
    for name, moment, n in zip(study.ESTIMATES, differences, (23, 24), strict=True):
        assert data[name]["predicted"]["value"] == pytest.approx(moment.mean() / (0.01**2 * n))
    noise = 0.25 - 0.01 - odd**2 - even**2  # E p(1 − p)
    single = data["single"]["two_point"]
    assert abs(single["value"] - (noise * (1 - shared) + 2 * odd**2)) < 4 * single["se"]


def test_wrong_constants_are_caught(monkeypatch):
    """A prediction 1.6 times too large is violated with these prompts; within the tolerance nothing is."""
    rng = np.random.default_rng(1)
    y, epsilon = evaluations(rng, 120, 12, 4, 0.1, 0.0, 0.0), rng.standard_normal((12, 1024))
    right = lemma.predict
    monkeypatch.setattr(lemma, "predict", lambda v, c, sigma, n: 1.6 * right(v, c, sigma, n))
    assert verdicts(study.variances("own", y, epsilon, 0.01)[0])[:2] == [Verdict.VIOLATED] * 2
    monkeypatch.setattr(lemma, "predict", lambda v, c, sigma, n: right(v, c, 2 * sigma, n))
    assert verdicts(study.variances("own", y, epsilon, 0.01)[0])[:2] == [Verdict.VIOLATED] * 2


def test_few_prompts_do_not_decide():
    rng = np.random.default_rng(2)
    for _ in range(20):
        y = evaluations(rng, 5, 6, 2, 0.1, 0.1, 0.0)
        checks, _ = study.variances("own", y, rng.standard_normal((6, 1024)), 0.01)
        assert Verdict.VIOLATED not in verdicts(checks)


def test_scores_without_noise_are_split_by_pairs():
    rng = np.random.default_rng(3)
    along = 0.2 * rng.standard_normal((60, 24))
    y = np.stack([along, -along + 0.05 * along**2], axis=2)[..., None] - 2.0
    checks, data = study.variances("scoring", y, rng.standard_normal((24, 1024)), 0.01)
    assert verdicts(checks)[2] is Verdict.HOLDS and "predicts the one-point" in checks[2].detail
    assert Verdict.VIOLATED not in verdicts(checks)
    one, two = (data[name]["measured"]["value"] for name in study.ESTIMATES)
    assert one == pytest.approx(0.04 / (0.01**2 * 47), rel=0.2) and two == pytest.approx(0.08 / (0.01**2 * 48), rel=0.2)


@pytest.mark.parametrize("value", [0.0, 1.0, -np.inf])
def test_evaluations_that_say_nothing_are_vacuous(value):
    y = np.full((6, 6, 2, 2), value)
    checks, data = study.variances("own", y, np.ones((6, 8)), 0.01)
    assert verdicts(checks) == [Verdict.VACUOUS] and data == {}
    if np.isfinite(value):
        assert verdicts(study.decoupling([y, y], np.array([1, 2]))[0]) == [Verdict.VACUOUS]
    assert study.by_length([y], np.array([1]))["length"] == []


def test_a_single_success_does_not_decide():
    y = np.zeros((6, 6, 2, 2))
    y[0, 0, 0, 0] = 1.0
    checks, data = study.variances("own", y, np.ones((6, 8)), 0.01)
    assert verdicts(checks) == [Verdict.VACUOUS]
    empty = {"pairs": 6, "lengths": [1], "alike": [1.0], "kinds": {"own": data}}
    study.figure(study.TITLE, empty | {name: {"length": []} for name in study.KINDS})


def test_decoupling_is_seen():
    """All shared at one token, nothing at eight."""
    rng = np.random.default_rng(4)
    y = [evaluations(rng, 20, 6, 2, 0.0, 0.0, share) for share in (1.0, 0.6, 0.3, 0.0)]
    (check,), data = study.decoupling(y, np.array([1, 2, 4, 8]))
    assert check.verdict is Verdict.HOLDS
    assert data["correlation"]["value"][0] == 1.0 and abs(data["correlation"]["value"][-1]) < 0.2
    (check,), _ = study.decoupling(y[::-1], np.array([1, 2, 4, 8]))
    assert check.verdict is Verdict.VIOLATED


def test_too_few_pairs_are_said(ran):
    class Small:
        settings = type("S", (), {"pairs": 2})

    checks, data = study.study(Small)
    assert verdicts(checks) == [Verdict.VACUOUS] and "pairs >= 3" in checks[0].detail
    study.figure(study.TITLE, data)
