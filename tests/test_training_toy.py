"""The toy world against plain loops, and its expected updates against enumeration, sampling and small-noise limits."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from esth.errors import InputError
from esth.noise import Member, population
from esth.training import es
from esth.training.config import ESConfig, GRPOConfig
from esth.training.grpo import GRPO, advantages
from esth.training.toy_expected import (
    es_updates,
    expected_es_update,
    expected_grpo_gradient,
    grpo_gradients,
    grpo_slope,
    split,
)
from esth.training.toy_world import DIMENSION, ToyWorld, draw, inverse_cdf
from esth.training.worlds import Decoding, Spent

SMALL = {"model": "toy", "problems": 5, "prompts": 5, "evaluation_prompts": 4}


def world(**values):
    return ToyWorld(ESConfig(**{**SMALL, **values}))


def probabilities(theta, prompts, x, temperature=1.0):
    """π [V] of prompt x, written out."""
    logits = [sum(f * t for f, t in zip(row, theta, strict=True)) / temperature for row in prompts.features[x]]
    weights = [math.exp(z) for z in logits]
    return np.array(weights) / sum(weights)


def success(theta, prompts, x, temperature=1.0):
    return float(probabilities(theta, prompts, x, temperature) @ prompts.accepted[x])


# The world


def test_the_base_is_what_the_trials_need():
    """pass@1 between a quarter and .4, pass@16 well below 1 on some prompts, right answers of unequal probability."""
    toy = ToyWorld(ESConfig(model="toy"))
    for evaluation, prompts in zip(toy.evaluate(0, 0), (draw("train", 128), draw("held-out", 128)), strict=True):
        p = evaluation.successes
        assert 0.25 < p.mean() < 0.4
        assert 0.1 < np.mean(1 - (1 - p) ** 16 < 0.7) < 0.4
        log_p = prompts.policy().log_p(toy.theta)
        right = [np.exp(log_p[x][prompts.accepted[x] == 1]) for x in range(128)]
        assert [len(r) for r in right[:4]] == [2, 3, 2, 3]
        assert np.median([r.max() / r.min() for r in right]) > 3
    assert np.linalg.norm(toy.theta) == pytest.approx(2.0)


def test_the_world_is_one_draw():
    """Neither the seed nor the number of problems changes a prompt, and no held-out prompt is trained on."""
    few, many = world(seed=3), world(seed=4, problems=40)
    assert np.array_equal(few.training.features, many.training.features[:5])
    assert np.array_equal(few.training.accepted, many.training.accepted[:5])
    assert few.identity == world(seed=9).identity != many.identity
    assert world(evaluation_prompts=5).identity != few.identity
    every = np.concatenate([many.training.features, many.held_out.features]).reshape(44, -1)
    assert len(np.unique(every, axis=0)) == 44
    with pytest.raises(InputError, match="problems must be at least 2"):
        world(problems=1, prompts=1)


def test_members_earn_what_their_policies_say():
    toy = world(temperature=0.6)
    members = population(7, 3, "gaussian")
    problems = np.array([[0, 1], [3, 2], [4, 4]])
    greedy, expected = (toy.rewards(members, 0.3, problems, Decoding(kind), 0) for kind in ("greedy", "expected"))
    entropies = []
    for i, member in enumerate(members):
        theta = toy.theta + np.float32(0.3) * member.noise("theta", (12,))
        for j, x in enumerate(problems[i]):
            pi = probabilities(theta, toy.training, x, 0.6)
            assert expected.values[i, j, 0] == pytest.approx(success(theta, toy.training, x, 0.6), rel=1e-6)
            assert greedy.values[i, j, 0] == toy.training.accepted[x][pi.argmax()]
            entropies.append(-sum(q * math.log(q) for q in pi))
    assert greedy.entropy == expected.entropy == pytest.approx(np.mean(entropies), rel=1e-6)
    assert (expected.spent, greedy.spent) == (Spent(), Spent(6, 6, 6, 0))
    assert greedy.truncated == 0


def test_sampled_rewards_have_the_mean_of_success():
    toy = world()
    members = population(7, 2, "gaussian")
    problems = np.broadcast_to(np.arange(5), (2, 5))
    found = toy.rewards(members, 0.3, problems, Decoding("sampled", samples=4000), 1)
    exact = toy.rewards(members, 0.3, problems, Decoding("expected"), 1).values[..., 0]
    assert found.values.shape == (2, 5, 4000)
    z = (found.values.mean(axis=2) - exact) / np.sqrt(exact * (1 - exact) / 4000)
    assert np.abs(z).max() < 4
    assert found.spent == Spent(40000, 40000, 40000, 0)
    # Two members' responses to a prompt are independent: correlations of 4000 pairs are below 4/√4000.
    assert max(abs(np.corrcoef(found.values[:, x])[0, 1]) for x in range(5)) < 4 / math.sqrt(4000)


def test_common_random_numbers_are_common():
    """At σ = 0 all members are the center: with common numbers they say the same."""
    toy = world()
    members, problems = population(7, 4), np.broadcast_to(np.arange(5), (4, 5))
    common, own = (
        toy.rewards(members, 0.0, problems, Decoding("sampled", 6, shared), 1).values for shared in (True, False)
    )
    assert np.all(common == common[0])
    assert not np.all(own == own[0])
    other = toy.rewards(members, 0.0, problems, Decoding("sampled", 6, True), 2).values
    assert not np.array_equal(common, other)
    more = toy.rewards(members, 0.0, problems[:, ::-1], Decoding("sampled", 8, True), 1).values
    assert np.array_equal(more[:, ::-1, :6], common), "a response's number is its own: by problem and try"


def test_inverse_cdf():
    log_p = np.log([0.25, 0.5, 0.25])
    u = np.array([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2.0**-51])
    assert inverse_cdf(log_p, u).tolist() == [0, 0, 1, 1, 2, 2]
    assert inverse_cdf(np.array([-0.1, -0.1 - 1e-17, -np.inf]), u)[-1] == 1


def test_responses_and_their_gradients():
    toy = world(temperature=0.7)
    problems = np.array([3, 0])
    found = toy.respond(problems, 2000, seed=5)
    rows, outcomes = (x.numpy() for x in found.tokens)
    assert rows.tolist() == [3] * 2000 + [0] * 2000
    for i, x in enumerate(problems):
        pi = probabilities(toy.theta, toy.training, x, 0.7)
        said = outcomes[rows == x]
        assert np.array_equal(found.rewards[i], toy.training.accepted[x][said])
        np.testing.assert_allclose(found.log_p[rows == x, 0], np.log(pi)[said], rtol=1e-12)
        counts = np.bincount(said, minlength=8)
        assert np.all(np.abs(counts - 2000 * pi) < 4.5 * np.sqrt(2000 * pi * (1 - pi)) + 1)
    assert found.mask.shape == (4000, 1) and bool((found.mask == 1).all())
    theta = toy.parameters["theta"].clone().requires_grad_()
    log_p = toy.log_probabilities(found, {"theta": theta})
    assert torch.allclose(log_p.detach(), found.log_p, rtol=1e-12)
    one = torch.autograd.grad(log_p[17, 0], theta)[0]
    score = toy.training.policy(0.7).score(toy.theta)[3, outcomes[17]]
    np.testing.assert_allclose(one, score, rtol=1e-10)
    assert not np.array_equal(toy.respond(problems, 2000, seed=6).rewards, found.rewards)


def test_an_update_pulls_to_the_start_and_then_moves():
    toy = world()
    start = toy.theta
    first, second = Member(1), Member(2, -1, "rademacher")
    toy.apply_update([(first, 0.5)])
    theta = toy.theta
    np.testing.assert_allclose(theta, start + 0.5 * first.noise("theta", (12,)), rtol=1e-6)
    toy.apply_update([(first, 0.25), (second, -0.125)], decay=0.1)
    step = np.float32(0.25) * first.noise("theta", (12,)) + np.float32(-0.125) * second.noise("theta", (12,))
    np.testing.assert_allclose(toy.theta, theta + 0.1 * (start - theta) + step.astype(float), rtol=1e-13, atol=1e-15)
    assert toy.drift() == pytest.approx(np.linalg.norm(toy.theta - start) / np.linalg.norm(start), rel=1e-12)
    theta, held = toy.theta, toy.parameters["theta"]
    for update in ([(first, math.nan)], [(first, 3e38)]):
        with pytest.raises(InputError):
            toy.apply_update(update)
        assert toy.theta.tobytes() == theta.tobytes()
    toy.apply_update([(first, 1.0)])
    assert held is toy.parameters["theta"], "the optimiser's tensors stay the world's"


def test_evaluation_is_exact():
    toy = world(temperature=0.8, problems=9, prompts=3)
    train, held_out = toy.evaluate(samples=32, seed=1)
    assert (train.name, held_out.name) == ("train", "held-out")
    assert train.ids == ("train-0", "train-1", "train-2", "train-3")
    assert held_out.ids == ("held-out-0", "held-out-1", "held-out-2", "held-out-3")
    for evaluation, prompts in ((train, draw("train", 9)), (held_out, draw("held-out", 4))):
        pi = [probabilities(toy.theta, prompts, x, 0.8) for x in range(4)]
        assert evaluation.samples == 0
        np.testing.assert_allclose(evaluation.successes, [success(toy.theta, prompts, x, 0.8) for x in range(4)])
        np.testing.assert_allclose(evaluation.entropy, [-np.sum(q * np.log(q)) for q in pi])
        assert evaluation.greedy.tolist() == [prompts.accepted[x][pi[x].argmax()] for x in range(4)]
        assert evaluation.tokens.tolist() == [1] * 4
        assert evaluation.truncated.tolist() == [0] * 4


def test_a_center_is_saved_and_loaded(tmp_path):
    toy, other = world(), world(seed=8)
    toy.apply_update([(Member(4), 0.3)])
    toy.save(tmp_path / "center")
    held = other.parameters["theta"]
    other.load(tmp_path / "center")
    assert other.theta.tobytes() == toy.theta.tobytes()
    assert other.drift() == toy.drift() > 0, "the start stays"
    assert held is other.parameters["theta"]
    assert json.loads((tmp_path / "center" / "config.json").read_text())["model_type"] == "esth-toy"


@pytest.mark.parametrize("tensors", [
    {},
    {"other": torch.zeros(12, dtype=torch.float64)},
    {"theta": torch.zeros(11, dtype=torch.float64)},
    {"theta": torch.zeros(12)},
    {"theta": torch.zeros(12, dtype=torch.float64), "more": torch.zeros(1)},
    {"theta": torch.full((12,), torch.nan, dtype=torch.float64)},
    None,
])  # fmt: skip
def test_no_center_is_refused(tmp_path, tensors):
    toy = world()
    theta = toy.theta
    if tensors is not None:
        save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError):
        toy.load(tmp_path)
    assert toy.theta.tobytes() == theta.tobytes()


# Expected GRPO


@pytest.mark.parametrize(("scale", "prompts", "generations"), [
    ("none", 1, 3), ("group", 1, 3), ("batch", 1, 3), ("none", 2, 2), ("group", 2, 2), ("batch", 2, 2),
])  # fmt: skip
def test_expected_grpo_gradient_by_all_groups(scale, prompts, generations):
    """Every response to every prompt, weighted by its probability: 8³ and 8⁴ batches."""
    toy = world()
    problems = np.array([2, 0])[:prompts]
    policy = toy.training.policy(1.0, problems)
    pi, score = np.exp(policy.log_p(toy.theta)), policy.score(toy.theta)
    accepted = toy.training.accepted[problems]
    total = np.zeros(DIMENSION)
    for said in itertools.product(range(8), repeat=prompts * generations):
        group = np.array(said).reshape(prompts, generations)
        row = np.arange(prompts)[:, None]
        a = advantages(torch.from_numpy(accepted[row, group]), scale).numpy()
        total += np.prod(pi[row, group]) * (a[..., None] * score[row, group]).mean(axis=(0, 1))
    np.testing.assert_allclose(expected_grpo_gradient(toy, problems, generations, scale), total, rtol=1e-10)


def test_grpo_slope_in_known_cases():
    """1 − 1/G without scaling; with it 1/√(p(1−p)) for large groups, and for G = 2 by hand."""
    p = np.array([0.1, 0.35, 0.8])
    np.testing.assert_allclose(grpo_slope(p, 8, "none"), [7 / 8] * 3, rtol=1e-12)
    np.testing.assert_allclose(grpo_slope(p, 400, "group"), 1 / np.sqrt(p * (1 - p)), rtol=0.01)
    # Of two responses, one right: A = ±½/(√½ + 10⁻⁴). A right one meets a wrong one with 1 − p, a wrong one a right one
    # with p, and the two advantages differ by (1 − p) A + p A.
    np.testing.assert_allclose(grpo_slope(p, 2, "group"), [0.5 / (math.sqrt(0.5) + 1e-4)] * 3, rtol=1e-12)
    np.testing.assert_allclose(grpo_slope(p[:1], 8, "batch"), grpo_slope(p[:1], 8, "group"), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dapo", "dr_grpo"])
def test_sampled_gradients_scatter_about_the_expected_one(loss_type):
    settings = GRPOConfig(**{**SMALL, "loss_type": loss_type, "num_generations": 4, "scale_rewards": "batch"})
    toy = ToyWorld(settings)
    found = grpo_gradients(toy, settings, 300)
    expected = expected_grpo_gradient(toy, np.arange(5), 4, "batch")
    error = found.std(axis=0, ddof=1) / math.sqrt(300)
    assert np.abs((found.mean(axis=0) - expected) / error).max() < 4
    assert np.abs(expected / error).max() > 12, "an error of a third would be seen"
    assert np.array_equal(toy.theta, world().theta)


def test_an_expected_update_is_a_step_along_the_expected_gradient():
    """AdamW's first step is the learning rate by the sign, whatever the gradient's size."""
    settings = GRPOConfig(
        **{**SMALL, "learning_rate": 0.02, "expected": True, "num_generations": 4, "temperature": 0.9}
    )
    toy = ToyWorld(settings)
    start, problems = toy.theta, np.arange(5)
    gradient = expected_grpo_gradient(toy, problems, 4, "group")
    p = np.array([success(start, toy.training, x, 0.9) for x in range(5)])
    line = GRPO(toy, settings).step(1)
    np.testing.assert_allclose(toy.theta - start, 0.02 * np.sign(gradient), rtol=1e-5)
    assert line["grad_norm"] == pytest.approx(np.linalg.norm(gradient))
    assert line["reward"] == pytest.approx(p.mean())
    assert line["reward_std"] == pytest.approx(math.sqrt(p.mean() * (1 - p.mean())))
    assert line["frac_reward_zero_std"] == pytest.approx(np.mean(p**4 + (1 - p) ** 4))
    assert line["responses"] == line["forward_passes"] == line["backward_passes"] == 0


# Expected ES


def es_config(**values):
    return ESConfig(**{**SMALL, "family": "rademacher", "sigma": 0.4, "alpha": 0.1, **values})


@pytest.mark.slow
@pytest.mark.parametrize("values", [
    {"normalization": "none", "fitness": "greedy", "population": 20},
    {"normalization": "none", "fitness": "expected", "population": 20},
    {"normalization": "none", "fitness": "sampled", "population": 20, "samples": 2},
    {"normalization": "none", "fitness": "sampled", "population": 20, "common_random_numbers": True},
    {"normalization": "zscore", "fitness": "greedy", "population": 400},
    {"normalization": "zscore", "fitness": "expected", "population": 400},
    {"normalization": "zscore", "fitness": "sampled", "population": 400},
    {"normalization": "ranks", "fitness": "expected", "population": 400},
])  # fmt: skip
def test_sampled_updates_scatter_about_the_expected_one(values):
    settings = es_config(**values)
    toy = ToyWorld(settings)
    count = 250 if settings.population == 20 else 12
    found = es_updates(toy, settings, count)
    expected = expected_es_update(toy, settings, np.arange(5))
    error = found.std(axis=0, ddof=1) / math.sqrt(count)
    assert np.abs((found.mean(axis=0) - expected) / error).max() < 5
    along = found @ expected / (expected @ expected)
    error = along.std(ddof=1) / math.sqrt(count)
    assert along.mean() == pytest.approx(1, abs=4 * error)
    assert error < 0.12, "an error of a half would be seen"


def test_small_noise_gives_the_gradient():
    """ασ∇f without normalisation, α∇f/‖∇f‖ with z-scores, f the mean success on the batch."""
    toy, problems = world(), np.array([1, 4, 2])
    policy, accepted = toy.training.policy(1.0, problems), toy.training.accepted[problems]
    gradient = policy.success_gradient(toy.theta, accepted).mean(axis=0)
    settings = es_config(sigma=1e-4, fitness="expected")
    raw = expected_es_update(toy, replace(settings, normalization="none"), problems)
    np.testing.assert_allclose(raw, 0.1 * 1e-4 * gradient, rtol=1e-5, atol=1e-12)
    scored = expected_es_update(toy, settings, problems)
    np.testing.assert_allclose(scored, 0.1 * gradient / np.linalg.norm(gradient), rtol=1e-5, atol=1e-8)


def test_noise_of_responses_attenuates_z_scores():
    """By the square root of the reliability (L3.5), here of the exact success of all directions."""
    settings = es_config(fitness="expected")
    toy, problems = ToyWorld(settings), np.arange(5)
    exact = expected_es_update(toy, settings, problems)
    noisy = expected_es_update(toy, replace(settings, fitness="sampled", samples=3), problems)
    p = np.array([
        [success(toy.theta + 0.4 * np.array(e), toy.training, x) for x in problems]
        for e in itertools.islice(itertools.product((-1, 1), repeat=12), 0, None, 7)
    ])  # fmt: skip
    signal, noise = p.mean(axis=1).var(), (p * (1 - p)).mean() / (3 * 5)
    np.testing.assert_allclose(noisy / exact, math.sqrt(signal / (signal + noise)), rtol=0.03)


@pytest.mark.parametrize("values", [
    {"family": "gaussian"},
    {"fitness": "sampled", "normalization": "ranks"},
    {"fitness": "sampled", "common_random_numbers": True},
])  # fmt: skip
def test_no_expectation_is_refused(values):
    settings = es_config(**values)
    with pytest.raises(InputError):
        expected_es_update(ToyWorld(settings), settings, np.arange(5))


# Drift and noise


def test_split_by_hand():
    found = split(np.array([[1.0, 0.0], [3.0, 4.0]]))
    assert found.drift.tolist() == [2.0, 2.0]
    assert found.noise == pytest.approx(2 + 8)  # variances 2 and 8 with ddof = 1
    assert found.signal == pytest.approx(8 - 10 / 2)
    with pytest.raises(InputError, match="at least 2"):
        split(np.ones((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 25])
def test_drift_against_signal(n):
    """P4.4: E‖Δ‖² is α²d/N where z does not depend on the noise, and α²(d + N − 2)/N where it is linear in it."""
    blind = es_config(family="gaussian", sigma=1e-9, fitness="sampled", population=n)
    found = es_updates(ToyWorld(blind), blind, 250)
    moved = np.any(found != 0, axis=1)  # where all members earn the same, nothing moves
    squares = (found[moved] ** 2).sum(axis=1)
    assert squares.mean() == pytest.approx(0.01 * 12 / n, abs=4 * squares.std() / math.sqrt(len(squares)))
    result = split(found[moved])
    assert abs(result.signal) < 4 * result.noise / len(squares)
    linear = es_config(family="gaussian", sigma=1e-4, fitness="expected", population=n)
    found = es_updates(ToyWorld(linear), linear, 250)
    squares = (found**2).sum(axis=1)
    expected = 0.01 * (12 + n - 2) / n
    assert squares.mean() == pytest.approx(expected, abs=4 * squares.std() / math.sqrt(250))
    result = split(found)
    assert result.signal + result.noise == pytest.approx(squares.mean(), rel=0.01)
    # The drift is along the gradient: α E[sd] of n normal numbers, the noise the rest.
    mean_sd = math.sqrt(2 / n) * math.gamma(n / 2) / math.gamma((n - 1) / 2)
    policy = world().training.policy()
    gradient = policy.success_gradient(world().theta, world().training.accepted).mean(axis=0)
    along = found @ gradient / np.linalg.norm(gradient)
    assert along.mean() == pytest.approx(0.1 * mean_sd, abs=4 * along.std() / math.sqrt(250))
    assert result.signal == pytest.approx((0.1 * mean_sd) ** 2, rel=0.1)


def test_es_and_grpo_draw_the_same_problems():
    settings = ESConfig(**{**SMALL, "prompts": 2, "seed": 5})
    toy = ToyWorld(settings)
    drawn = {tuple(es.problems(toy, settings, t)[0].tolist()) for t in range(1, 9)}
    assert len(drawn) > 4
    grpo = GRPOConfig(**{**SMALL, "prompts": 2, "seed": 5})
    asked = []
    toy.respond, respond = (
        lambda problems, n, seed: asked.append(tuple(problems)) or respond(problems, n, seed),
        toy.respond,
    )
    method = GRPO(toy, grpo)
    for t in range(1, 9):
        method.step(t)
    assert set(asked) == drawn
