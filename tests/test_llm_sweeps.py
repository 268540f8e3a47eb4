"""The sweeps of population size (C9) and of antithetic pairs (C10): their statistics, and small real runs."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from esth.estimators.intervals import Interval
from esth.models import load_checkpoint, tiny
from esth.noise import Member, hashed, population
from esth.training.compare import equivalence
from esth.training.tiny_world import TinyWorld
from esth.training.worlds import Decoding
from llm import antithetic, population_size


@pytest.mark.parametrize(
    ("lower", "upper", "said"),
    [
        (-0.029, 0.029, "equal"),
        (-0.031, 0.01, "undecided"),
        (-0.01, 0.031, "undecided"),
        (-0.2, -0.031, "worse"),
        (-0.2, -0.029, "undecided"),
        (0.031, 0.2, "better"),
        (0.001, 0.029, "equal"),
    ],
)
def test_two_settings_are_equal_only_if_the_whole_interval_says_so(lower: float, upper: float, said: str) -> None:
    assert equivalence(Interval(0.5 * (lower + upper), lower, upper), 0.03) == said


# Population size


def test_improving_members_are_counted_and_their_spread_is_not_that_of_the_noise() -> None:
    """Members' own gains N(μ, s²), seen through noise: the share above 0 is drawn to ½, the corrected one is not."""
    rng = np.random.default_rng(0)
    members, problems, mu, s, noise = 20_000, 50, -0.02, 0.02, 0.3
    gains = rng.normal(mu, s, (members, 1)) + rng.normal(0, noise, (members, problems))
    gains += np.linspace(-0.4, 0.4, problems)  # what a problem does to all members alike is no noise between them
    found = population_size.shares(gains)
    true = 0.5 * math.erfc(1 / math.sqrt(2))
    assert found["noise"] == pytest.approx(noise / math.sqrt(problems), rel=0.01)
    assert found["mean"][0] == pytest.approx(mu, abs=2e-3) and found["spread"] == pytest.approx(s, rel=0.03)
    assert found["normal"] == pytest.approx(true, abs=0.02)
    seen = 0.5 * math.erfc(-mu / math.hypot(s, noise / math.sqrt(problems)) / math.sqrt(2))
    assert found["share"][0] == pytest.approx(seen, abs=0.01) and abs(seen - true) > 0.1
    assert found["better"] == (gains.mean(axis=1) > 0).sum()


def test_a_member_that_ties_does_not_beat_its_center() -> None:
    gains = np.array([[0.5, -0.5], [0.5, 0.0], [-0.5, 0.0]])
    found = population_size.shares(gains)
    assert found["better"] == 1 and found["share"][0] == pytest.approx(1 / 3, abs=1e-6)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep in small: models of two updates of pretraining, runs of two updates."""
    monkeypatch.setattr(tiny, "SETTINGS", {3: replace(tiny.SETTINGS[3], steps=2)})
    monkeypatch.setattr(population_size, "MEMBERS", 5)
    plain = population_size.config

    def config(size: population_size.Size, n: int):
        sizes = {"problems": 20, "prompts": 8, "evaluation_prompts": 6, "evaluation_samples": 32}
        return replace(plain(size, n), **sizes, updates=2, evaluate_every=1)

    monkeypatch.setattr(population_size, "config", config)


def test_three_sizes_differ_in_width_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    found = population_size.sizes(tmp_path)
    assert [s.name for s in found] == ["small", "middle", "large"] and found[1].model == "tiny-3"
    # Embedding, and a layer's attention (4 h²), MLP (3 · h · 2h) and norms (2h), two of them, and the last norm.
    assert [s.parameters for s in found] == [16 * h + 2 * (4 * h * h + 6 * h * h + 2 * h) + h for h in (40, 64, 96)]
    assert population_size.config(found[0], 10).world == population_size.config(found[1], 10).world == "tiny"


def test_members_are_set_beside_their_center_on_the_same_numbers(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    size = population_size.Size("middle", "tiny-3", 0, "")
    found = population_size.gains_of_members(size, 0.03, tmp_path / "d" / "g.npy")
    world = TinyWorld(population_size.config(size, 30))
    decoding, seed = Decoding("sampled", population_size.RESPONSES, common=True), hashed(0, "density")
    everything = np.arange(20)[None]
    center = world.rewards([Member(0)], 0.0, everything, decoding, seed).values[0]
    members = population(hashed(0, "density", "members"), 5)
    gains = [world.rewards([m], 0.03, everything, decoding, seed).values[0] - center for m in members]
    assert np.array_equal(found, np.mean(gains, axis=2))
    assert not population_size.gains_of_members(size, 0.0, tmp_path / "zero.npy").any()
    np.save(tmp_path / "d" / "g.npy", np.full((2, 3), 7.0))
    assert (population_size.gains_of_members(size, 0.03, tmp_path / "d" / "g.npy") == 7).all()


def test_the_interval_of_a_share_knows_that_problems_are_a_sample() -> None:
    """All members move alike on each problem: their number tells nothing, and the share is 0 or 1 by the problems."""
    rng = np.random.default_rng(1)
    gains = np.tile(rng.normal(0, 1, 100), (50, 1)) + rng.normal(0, 1e-3, (50, 100))
    lower, upper = population_size.shares(gains)["share"][1:]
    assert lower < 0.1 and upper > 0.9
    assert population_size.shares(np.full((50, 100), -1.0))["share"][1:] == pytest.approx([0, 0.0711], abs=1e-3)


@pytest.mark.slow
def test_the_sweep_of_population_size_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    arguments = ["--seeds", "2", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert population_size.main(arguments) == 0
    found = json.loads((tmp_path / "out" / "study.json").read_text())
    assert len(found["ends"]) == 9 and found["ends"]["large, N = 20"]["responses"] == [2 * 20 * 8] * 2
    for name in found["sizes"]:
        gain = {n: found["ends"][f"{name}, N = {n}"]["effects"]["held-out"]["pass@1"]["gain"][0] for n in (10, 30)}
        difference = found["against the reference"][name]["10"]["difference"]["pass@1"][0]
        assert difference == pytest.approx(gain[10] - gain[30], abs=2e-6)
    assert (tmp_path / "out" / "population_size.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "out" / "study.json").read_text()
    assert population_size.main(arguments) == 0 and (tmp_path / "out" / "study.json").read_text() == before


def test_fewer_than_two_seeds_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (population_size.main, antithetic.main):
        assert command(["--seeds", "1"]) == 2
        assert "seeds must be at least 2" in capsys.readouterr().err


# Antithetic pairs


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> TinyWorld:
    monkeypatch.setattr(antithetic, "PROMPTS", 12)
    monkeypatch.setattr(antithetic, "PAIRS", 6)
    monkeypatch.setattr(antithetic, "SINGLE", 5)
    return TinyWorld(next(iter(antithetic.arms().values())).stages[0])


def test_arms_of_one_fitness_differ_in_the_family_alone() -> None:
    arms = antithetic.arms()
    for fitness in antithetic.FITNESS:
        (one,), (two,) = (arms[fitness, e].stages for e in ("one-point", "two-point"))
        assert replace(one, family="antithetic") == two and one != two
    assert arms["own numbers", "one-point"].stages[0].common_random_numbers is False
    assert arms["greedy", "two-point"].stages[0].fitness == "greedy"


def test_who_shares_random_numbers_with_whom(world: TinyWorld) -> None:
    """At sigma = 0 all members are one policy: equal numbers are equal rewards, and other numbers are not."""
    members = population(0, 12, "antithetic")
    y = {kind: antithetic.evaluations(world, kind, 0.0, members) for kind in antithetic.KINDS}
    assert all(values.shape == (12, 6, 2) for values in y.values())
    for kind in ("scoring", "greedy", "common"):
        assert np.allclose(y[kind], y[kind][:, :1, :1], atol=1e-4)
    assert np.array_equal(y["pair"][..., 0], y["pair"][..., 1])
    assert any(not np.array_equal(y["pair"][:, 0], y["pair"][:, k]) for k in range(1, 6))
    assert not np.array_equal(y["own"][..., 0], y["own"][..., 1])


def test_scores_are_log_probabilities_of_the_right_chain(world: TinyWorld) -> None:
    """Against transformers' own forward pass, at the center and at a member."""
    import torch
    import transformers

    checkpoint = load_checkpoint("tiny-3")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.folder).eval()
    member = Member(5)
    found = antithetic.evaluations(world, "scoring", 0.02, [member, Member(5, -1)])[:, 0]
    with torch.no_grad():
        for sign, column in ((1, 0), (-1, 1)):
            moved = {n: p + 0.02 * sign * torch.from_numpy(member.noise(n, p.shape)).view(p.shape)
                     for n, p in model.named_parameters()}  # fmt: skip
            for x, problem in enumerate(world.training.task.problems[:12]):
                prompt = checkpoint.tokenizer(problem.prompt)["input_ids"]
                chain = checkpoint.tokenizer(f"{problem.solution}$")["input_ids"]
                logits = torch.func.functional_call(model, moved, torch.tensor([prompt + chain])).logits[0]
                log_p = logits[len(prompt) - 1 : -1].log_softmax(-1)
                assert found[x, column] == pytest.approx(float(log_p[range(len(chain)), chain].sum()), abs=1e-3)


def test_covariances_of_a_batch_by_pairs_of_members(world: TinyWorld) -> None:
    config = next(iter(antithetic.arms().values())).stages[0]
    members = population(hashed(0, "antithetic", "members"), 12, "antithetic")
    f = antithetic.evaluations(world, "common", config.sigma, members).mean(axis=0)  # [K, 2]
    apart = [0.5 * (a - b) ** 2 for i, j in combinations(range(6), 2) for a in f[i] for b in f[j]]
    within = 0.5 * (f[:, 0] - f[:, 1]) ** 2
    batch = antithetic.measured(world, "common", config)["batch"]
    assert batch["V - C'"][0] == pytest.approx(np.mean(apart)) and batch["V - C"][0] == pytest.approx(within.mean())
    assert batch["ratio"][0] == pytest.approx(within.mean() / np.mean(apart))
    scale = config.sigma**2 * config.population
    assert batch["two-point predicted"][0] == pytest.approx(within.mean() / scale)


@pytest.mark.slow
def test_the_sweep_of_antithetic_pairs_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PROMPTS": 10, "PAIRS": 6, "SINGLE": 4, "CENTERS": (0, 2)}.items():
        monkeypatch.setattr(antithetic, name, value)
    full = antithetic.arms()
    sizes = {"problems": 20, "prompts": 8, "population": 6, "evaluation_prompts": 6, "updates": 2, "evaluate_every": 1}
    shrunk = {key: replace(arm, stages=(replace(arm.stages[0], **sizes),)) for key, arm in full.items()}
    monkeypatch.setattr(antithetic, "arms", lambda: shrunk)
    arguments = ["--seeds", "2", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert antithetic.main(arguments) == 0
    found = json.loads((tmp_path / "out" / "study.json").read_text())
    assert [place["update"] for place in found["measured"]] == [0, 2]
    assert set(found["two-point less one-point"]) == set(antithetic.FITNESS)
    assert len({tuple(row["responses"]) for row in found["ends"].values()}) == 1  # equal evaluations
    assert (tmp_path / "out" / "antithetic.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "out" / "study.json").read_text()
    assert antithetic.main(arguments) == 0 and (tmp_path / "out" / "study.json").read_text() == before
