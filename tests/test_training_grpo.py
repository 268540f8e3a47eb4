"""GRPO against loops that write the objective out, against TRL itself, and AdamW against its equations."""

import math
import statistics
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from esth.errors import InputError
from esth.training.config import LOSS_TYPES, GRPOConfig
from esth.training.grpo import GRPO, advantages, objective
from esth.training.toy_world import ToyWorld
from esth.training.worlds import problem_batches

LEVELS = ("token", "sequence")
MAX_TOKENS = 9
VARIANTS = [(loss, level, beta) for loss in LOSS_TYPES for level in LEVELS for beta in (0.0, 0.3)]


def config(**values):
    return GRPOConfig(model="toy", problems=6, prompts=3, num_generations=4, evaluation_prompts=2, **values)


def tokens(seed=0, b=8, t=5):
    """Log-probabilities whose ratios leave [1 − ε, 1 + ε] on both sides, under advantages of both signs."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([5, 1, 3, 4, 2, 5, 1, 3])[:b]
    mask = (torch.arange(t)[None] < lengths[:, None]).double()
    log_p, old, reference = (-3 * torch.rand(b, t, generator=draw, dtype=torch.float64) for _ in range(3))
    old = log_p + 0.4 * torch.randn(b, t, generator=draw, dtype=torch.float64)
    old[4] = log_p[4] + 0.5  # far outside, where the advantage is 0: clipped or not makes no difference
    a = torch.tensor([1.2, -0.7, -1.5, 0.4, 0.0, 2.0, 0.9, -0.3], dtype=torch.float64)[:b]
    return log_p * mask, old * mask, reference * mask, mask, a


# Advantages


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_by_hand(scale):
    rewards = [[0.0, 1.0, 1.0, 0.3, 0.0, 0.0], [0.1, 0.2, 0.9, 0.9, 0.4, 0.1], [0.1] * 6]
    everything = [r for group in rewards for r in group]
    found = advantages(torch.tensor(rewards, dtype=torch.float64), scale)
    for group, row in zip(rewards, found.tolist(), strict=True):
        by = {"none": 1.0, "group": statistics.stdev(group) + 1e-4, "batch": statistics.stdev(everything) + 1e-4}[scale]
        assert row == pytest.approx([(r - statistics.mean(group)) / by for r in group], rel=1e-12, abs=1e-15)
    assert found[2].tolist() == [0.0] * 6, "no spread, whatever the rounding of the mean"


# The objective


def written_out(log_p, old, a, mask, settings, reference):
    """Loss, clip ratio and KL, one token after the other."""
    low, high = 1 - settings.epsilon, 1 + (settings.epsilon_high or settings.epsilon)
    by_response, lengths, clipped, kls = [], [], [], []
    for i in range(len(a)):
        n = int(mask[i].sum())
        lengths.append(n)
        whole = sum(log_p[i, s] - old[i, s] for s in range(n)) / n
        losses = []
        for s in range(n):
            ratio = torch.exp(whole if settings.importance_sampling_level == "sequence" else log_p[i, s] - old[i, s])
            number = float(ratio.detach())
            bounded = min(max(number, low), high)
            less = bounded * float(a[i]) < number * float(a[i])
            loss = -bounded * a[i] if less else -ratio * a[i]
            if s == 0 or settings.importance_sampling_level == "token":
                clipped.append(less)
            if settings.beta > 0:
                x = torch.exp(reference[i, s]) / torch.exp(log_p[i, s])
                kl = x - torch.log(x) - 1
                kls.append(float(kl.detach()))
                loss = loss + settings.beta * kl
            losses.append(loss)
        by_response.append(losses)
    total = sum(sum(losses) for losses in by_response)
    if settings.loss_type == "grpo":
        loss = sum(sum(losses) / len(losses) for losses in by_response) / len(by_response)
    elif settings.loss_type == "dr_grpo":
        loss = total / (len(by_response) * MAX_TOKENS)
    else:
        loss = total / sum(lengths)
    return loss, statistics.fmean(clipped), statistics.fmean(kls) if kls else 0.0


@pytest.mark.parametrize(("loss_type", "level", "beta"), VARIANTS)
@pytest.mark.parametrize("epsilon_high", [None, 0.35])
def test_objective_written_out(loss_type, level, beta, epsilon_high):
    settings = config(loss_type=loss_type, importance_sampling_level=level, beta=beta, epsilon_high=epsilon_high)
    log_p, old, reference, mask, a = tokens()
    ours, theirs = (log_p.clone().requires_grad_() for _ in range(2))
    found = objective(ours, old, a, mask, settings, MAX_TOKENS, reference if beta > 0 else None)
    loss, clip_ratio, kl = written_out(theirs, old, a, mask, settings, reference)
    assert 0 < clip_ratio < 1
    assert float(found.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert float(found.clip_ratio) == pytest.approx(clip_ratio, rel=1e-12)
    assert float(found.kl) == pytest.approx(kl, rel=1e-12)
    gradient = torch.autograd.grad(found.loss, ours)[0]
    np.testing.assert_allclose(gradient, torch.autograd.grad(loss, theirs)[0], rtol=1e-11, atol=1e-14)
    assert np.all(gradient.numpy()[mask.numpy() == 0] == 0)


@pytest.mark.parametrize(("loss_type", "level", "beta"), VARIANTS)
def test_objective_is_that_of_trl(loss_type, level, beta):
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    settings = config(loss_type=loss_type, importance_sampling_level=level, beta=beta, epsilon_high=0.35)
    log_p, old, reference, mask, a = tokens(seed=1)
    ours, theirs = (log_p.clone().requires_grad_() for _ in range(2))
    metrics = defaultdict(list)
    itself = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (theirs, torch.zeros_like(theirs), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=settings.epsilon,
        epsilon_high=settings.upper,
        use_vllm=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_TOKENS,
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x),
        _entropy_bonus_enabled=False,
        _metrics={"train": metrics},
    )
    ids = torch.ones_like(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": a,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    loss = trainer._compute_loss(itself, None, inputs)
    found = objective(ours, old, a, mask, settings, MAX_TOKENS, reference if beta > 0 else None)
    assert float(found.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert float(found.clip_ratio) == pytest.approx(metrics["clip_ratio/region_mean"][0], rel=1e-6)
    if beta > 0:
        assert float(found.kl) == pytest.approx(metrics["kl"][0], rel=1e-6)
    gradient = torch.autograd.grad(found.loss, ours)[0]
    np.testing.assert_allclose(gradient, torch.autograd.grad(loss, theirs)[0], rtol=1e-11, atol=1e-14)


# Updates


def by_the_equations(settings, updates):
    """θ after some updates, and the norms of the gradients: scores in NumPy, AdamW as its paper writes it."""
    world = ToyWorld(settings)
    theta, m, v, norms = world.theta, 0.0, 0.0, []
    start = theta
    done, total = 0, settings.updates * settings.num_iterations
    for t in range(1, updates + 1):
        drawn = problem_batches(6, 3, settings.seed, t)[0]
        found = GRPO(world, settings).respond(drawn, t)
        problems, outcomes = (x.numpy() for x in found.tokens)
        policy = world.training.policy(settings.temperature, problems)
        rows = np.arange(len(problems))
        old = policy.log_p(theta)[rows, outcomes]
        grouped = found.rewards - found.rewards.mean(axis=1, keepdims=True)
        a = (grouped / (found.rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)
        for _ in range(settings.num_iterations):
            log_p, score = policy.log_p(theta)[rows, outcomes], policy.score(theta)[rows, outcomes]
            ratio = np.exp(log_p - old)
            moves = np.where(a > 0, ratio <= 1 + settings.epsilon, ratio >= 1 - settings.epsilon)
            slope = -a * ratio * moves
            if settings.beta > 0:
                slope = slope + settings.beta * (1 - np.exp(policy.log_p(start)[rows, outcomes] - log_p))
            g = (slope[:, None] * score).mean(axis=0)
            norms.append(np.linalg.norm(g))
            g = g * min(1.0, settings.max_grad_norm / (norms[-1] + 1e-6))
            rate = settings.learning_rate * (1 - done / total if settings.lr_scheduler_type == "linear" else 1)
            done += 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            step = (m / (1 - 0.9**done)) / (np.sqrt(v / (1 - 0.999**done)) + 1e-8)
            theta = theta - rate * settings.weight_decay * theta - rate * step
        world.parameters["theta"].copy_(torch.from_numpy(theta))
    return theta, norms


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"lr_scheduler_type": "constant", "weight_decay": 0.1},
        {"max_grad_norm": 0.05},
        {"num_iterations": 3, "epsilon": 0.05},
        {"beta": 0.2, "num_iterations": 2, "temperature": 0.7},
    ],
)
def test_updates_follow_the_equations(values):
    settings = config(learning_rate=0.05, updates=5, seed=2, **values)
    theta, norms = by_the_equations(settings, 4)
    world = ToyWorld(settings)
    method = GRPO(world, settings)
    metrics = [method.step(t) for t in range(1, 5)]
    np.testing.assert_allclose(world.theta, theta, rtol=1e-10)
    k = settings.num_iterations
    expected = [statistics.fmean(norms[i : i + k]) for i in range(0, len(norms), k)]
    assert [line["grad_norm"] for line in metrics] == pytest.approx(expected, rel=1e-9)
    if "max_grad_norm" in values:
        assert max(norms) > 0.05
    if k == 3:
        assert max(line["clip_ratio"] for line in metrics) > 0
    assert (metrics[-1]["kl"] > 0) == (settings.beta > 0)


def test_metrics_say_what_happened_and_what_it_cost():
    settings = config(learning_rate=0.01, updates=4, beta=0.1, num_iterations=2)
    world = ToyWorld(settings)
    method = GRPO(world, settings)
    found = method.respond(problem_batches(6, 3, 0, 1)[0], 1)
    line = method.step(1)
    rewards = found.rewards.ravel().tolist()
    assert line["reward"] == pytest.approx(statistics.fmean(rewards))
    assert line["reward_std"] == pytest.approx(statistics.stdev(rewards))
    assert line["frac_reward_zero_std"] == statistics.fmean(len(set(group)) == 1 for group in found.rewards.tolist())
    assert line["entropy"] == found.entropy
    assert line["learning_rate"] == pytest.approx(0.01 * 7 / 8)
    # 12 responses: made once, scored by the reference once, and in each of two iterations there and back.
    cost = {"responses": 12, "tokens": 12, "forward_passes": 12 * (1 + 1 + 2), "backward_passes": 24}
    assert {name: line[name] for name in cost} == cost


def test_a_state_goes_on_to_the_bit():
    settings = config(learning_rate=0.05, updates=6, beta=0.05, num_iterations=2)
    world = ToyWorld(settings)
    method = GRPO(world, settings)
    for t in range(1, 4):
        method.step(t)
    theta, state = world.theta, method.state()
    whole = [method.step(t) for t in range(4, 7)]
    assert state["step:theta"] == 6, "a state is a copy"
    other = ToyWorld(settings)
    resumed = GRPO(other, settings)  # at θ₀, which is the reference
    other.parameters["theta"].copy_(torch.from_numpy(theta))
    resumed.load_state(state)
    assert [resumed.step(t) for t in range(4, 7)] == whole
    assert other.theta.tobytes() == world.theta.tobytes()


@pytest.mark.parametrize("change", ["missing", "name", "shape", "dtype"])
def test_a_state_of_other_parameters_is_refused(change):
    settings = config(learning_rate=0.05)
    method = GRPO(ToyWorld(settings), settings)
    state = method.state()
    if change in ("missing", "name"):
        moment = state.pop("exp_avg:theta")
    if change == "name":
        state["exp_avg:other"] = moment
    if change == "shape":
        state["exp_avg:theta"] = torch.zeros(11, dtype=torch.float64)
    if change == "dtype":
        state["exp_avg_sq:theta"] = state["exp_avg_sq:theta"].float()
    with pytest.raises(InputError, match="exp_avg"):
        method.load_state(state)


def test_groups_without_spread_give_no_gradient():
    settings = config(learning_rate=0.05, seed=1)
    world = ToyWorld(settings)
    method = GRPO(world, settings)
    training, theta = world.training, world.theta
    world.training = replace(training, accepted=np.ones_like(training.accepted))
    line = method.step(1)
    assert (line["frac_reward_zero_std"], line["grad_norm"], line["reward"]) == (1.0, 0.0, 1.0)
    assert all(math.isfinite(value) for value in line.values())
    assert world.theta.tobytes() == theta.tobytes(), "nothing to remember yet"
    world.training = training
    assert method.step(2)["grad_norm"] > 0
    theta, moment = world.theta, method.state()["exp_avg:theta"]
    world.training = replace(training, accepted=np.ones_like(training.accepted))
    assert method.step(3)["grad_norm"] == 0
    assert np.all((world.theta - theta) * moment.numpy() < 0), "AdamW moves on by its momentum, as in TRL"


def test_a_gradient_that_is_not_finite_moves_nothing():
    settings = config(learning_rate=0.05)
    world = ToyWorld(settings)
    method = GRPO(world, settings)
    theta, state = world.theta, method.state()
    world.training = replace(world.training, accepted=np.full_like(world.training.accepted, np.nan))
    with pytest.raises(InputError, match="update 1: the gradient is not finite"):
        method.step(1)
    assert world.theta.tobytes() == theta.tobytes()
    assert all(torch.equal(tensor, method.state()[name]) for name, tensor in state.items())
