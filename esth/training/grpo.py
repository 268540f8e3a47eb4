"""Group relative policy optimisation of a world with gradients, with the names and conventions of TRL 1.16.

A_i = (r_i − r̄)/(sd(r) + 10⁻⁴) within the G responses to a prompt; −min(ρA, clip(ρ)A) + β k₃ a token, averaged as
`loss_type` says; AdamW. An update is one batch, so "dapo" (a mean over the tokens of all devices and accumulation
steps) is "bnpo". Weight decay is of every parameter; Hugging Face's trainer spares biases and norms.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import clip_grad_norm_

from esth.errors import InputError
from esth.noise import hashed
from esth.training.config import GRPOConfig
from esth.training.worlds import DifferentiableWorld, Responses, Spent, problem_batches

SPREAD = 1e-4
"""Added to a standard deviation that advantages are divided by."""

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def advantages(rewards: torch.Tensor, scale_rewards: str) -> torch.Tensor:
    """A [P, G] of rewards [P, G]: less the mean of the group, by the standard deviation (ddof = 1) of group or batch.

    Exactly 0 in a group without spread, where rounding of the mean could leave something.
    """
    flat = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    centred = torch.where(flat, 0.0, rewards - rewards.mean(dim=1, keepdim=True))
    if scale_rewards == "none":
        return centred
    spread = rewards.std() if scale_rewards == "batch" else rewards.std(dim=1, keepdim=True)
    return centred / (spread + SPREAD)


class Objective(NamedTuple):
    """What is minimised, and how far the policy is from those it is compared with.

    Attributes:
        loss: differentiable.
        clip_ratio: share of tokens (sequences, at the level "sequence") whose ratio is clipped.
        kl: mean over tokens of the k₃ estimate of KL(π‖reference), nats; 0 without a reference.
    """

    loss: torch.Tensor
    clip_ratio: torch.Tensor
    kl: torch.Tensor


def objective(
    log_p: torch.Tensor,
    old_log_p: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: GRPOConfig,
    max_tokens: int,
    reference_log_p: torch.Tensor | None = None,
) -> Objective:
    """The clipped objective.

    Args:
        log_p: of each token [B, T], differentiable.
        old_log_p: when the token was drawn [B, T].
        advantages: [B].
        mask: 1 for a token of the response [B, T].
        config: loss_type, importance_sampling_level, epsilon, epsilon_high, beta.
        max_tokens: where responses are cut, by which "dr_grpo" divides.
        reference_log_p: under the reference [B, T]; needed if beta > 0.
    """
    sequences = config.importance_sampling_level == "sequence"
    log_ratio = log_p - old_log_p
    if sequences:
        log_ratio = ((log_ratio * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0))[:, None]
    ratio, advantage = log_ratio.exp(), advantages[:, None]
    low, high = 1 - config.epsilon, 1 + config.upper
    token_loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    clipped = ((ratio < low) & (advantage < 0)) | ((ratio > high) & (advantage > 0))
    clip_ratio = clipped.to(mask.dtype).mean() if sequences else _token_mean(clipped, mask)
    if reference_log_p is None:
        return Objective(_average(token_loss, mask, config.loss_type, max_tokens), clip_ratio, mask.new_zeros(()))
    gap = reference_log_p - log_p
    kl = gap.exp() - gap - 1
    loss = _average(token_loss + config.beta * kl, mask, config.loss_type, max_tokens)
    return Objective(loss, clip_ratio, _token_mean(kl.detach(), mask))


def _average(token_loss: torch.Tensor, mask: torch.Tensor, loss_type: str, max_tokens: int) -> torch.Tensor:
    """Token losses [B, T] or [B, 1] as one: by responses, by tokens, or by a length that no response has a part in."""
    if loss_type == "grpo":
        return ((token_loss * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)).mean()
    if loss_type == "dr_grpo":
        return (token_loss * mask).sum() / (len(mask) * max_tokens)
    return _token_mean(token_loss, mask)


def _token_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1.0)


class GRPO:
    """The updates of a run.

    Made where the run starts: the reference, if beta > 0, is the center that the world has now. The world's tensors
    move in place. Where no group has spread and beta = 0 the gradient is 0, and AdamW still moves by what it remembers,
    as in TRL.
    """

    def __init__(self, world: DifferentiableWorld, config: GRPOConfig) -> None:
        self._world, self._config = world, config
        self._center = {name: tensor.detach().requires_grad_() for name, tensor in world.parameters.items()}
        self._reference = {n: p.detach().clone() for n, p in self._center.items()} if config.beta > 0 else None
        self._adam = torch.optim.AdamW(self._center.values(), lr=0.0, weight_decay=config.weight_decay, foreach=False)
        for parameter in self._center.values():
            moments = torch.zeros(()), torch.zeros_like(parameter).detach(), torch.zeros_like(parameter).detach()
            self._adam.state[parameter] = dict(zip(MOMENTS, moments, strict=True))

    def step(self, t: int) -> dict[str, float]:
        """Update number t = 1, 2, …: the center moves. Returns the metrics of the update.

        reward; reward_std (of all rewards, ddof = 1); frac_reward_zero_std (share of groups without spread); entropy
        (nats a token); truncated (share of responses); loss, grad_norm (before it is limited), clip_ratio, kl (means
        over the num_iterations); learning_rate (of the last); and what it cost, by the names of `Spent`.

        Raises:
            InputError: a gradient that is not finite (the optimiser does not make that step); `expected` in another
                world than the toy one.
        """
        drawn = problem_batches(self._world.n_problems, self._config.prompts, self._config.seed, t)[0]
        return self._expected(t, drawn) if self._config.expected else self._sampled(t, drawn)

    def _sampled(self, t: int, drawn: NDArray[np.int64]) -> dict[str, float]:
        config = self._config
        found = self.respond(drawn, t)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = self._world.log_probabilities(found, self._reference)
        rounds = []
        for iteration in range(config.num_iterations):
            result = self.backward(found, reference)
            rounds.append((*(float(x) for x in result), self._descend(t, iteration)))
        loss, clip_ratio, kl, grad_norm = np.mean(rounds, axis=0).tolist()
        b, k = found.rewards.size, config.num_iterations
        scored = Spent(forward_passes=(k + (reference is not None)) * b, backward_passes=k * b)
        return {
            "reward": float(found.rewards.mean()),
            "reward_std": float(found.rewards.std(ddof=1)),
            "frac_reward_zero_std": float(np.mean(np.ptp(found.rewards, axis=1) == 0)),
            "entropy": found.entropy,
            "truncated": found.truncated,
            "loss": loss,
            "grad_norm": grad_norm,
            "clip_ratio": clip_ratio,
            "kl": kl,
            "learning_rate": self._learning_rate(t, k - 1),
            **asdict(found.spent + scored),
        }

    def respond(self, problems: NDArray[np.int64], t: int) -> Responses:
        """The responses of update t."""
        return self._world.respond(problems, self._config.num_generations, hashed(self._config.seed, "grpo", t))

    def backward(self, found: Responses, reference_log_p: torch.Tensor | None = None) -> Objective:
        """The objective of responses at the center; its gradient is left in `gradient`."""
        a = advantages(torch.from_numpy(found.rewards), self._config.scale_rewards).flatten().to(found.mask)
        log_p = self._world.log_probabilities(found, self._center)
        result = objective(log_p, found.log_p, a, found.mask, self._config, self._world.max_tokens, reference_log_p)
        self._adam.zero_grad()
        result.loss.backward()
        return Objective(*(x.detach() for x in result))

    @property
    def gradient(self) -> Mapping[str, torch.Tensor]:
        """Of the loss, as the last `backward` left it, by the names of the parameters."""
        return {name: p.grad for name, p in self._center.items() if p.grad is not None}

    def _expected(self, t: int, drawn: NDArray[np.int64]) -> dict[str, float]:
        """An update by the exact expected gradient; what it reports is expected, too."""
        from esth.training.toy_expected import expected_grpo_gradient
        from esth.training.toy_world import ToyWorld

        world, n = self._world, self._config.num_generations
        if not isinstance(world, ToyWorld):
            raise InputError("expected updates need the toy world, where success is known exactly")
        p = world.success(world.theta, drawn)
        ascent = expected_grpo_gradient(world, drawn, n, self._config.scale_rewards)
        self._center["theta"].grad = -torch.from_numpy(ascent)
        return {
            "reward": float(p.mean()),
            "reward_std": float(np.sqrt(p.mean() * (1 - p.mean()))),
            "frac_reward_zero_std": float(np.mean(p**n + (1 - p) ** n)),
            "entropy": float(world.entropy(world.theta, drawn).mean()),
            "truncated": 0.0,
            "loss": 0.0,
            "grad_norm": self._descend(t, 0),
            "clip_ratio": 0.0,
            "kl": 0.0,
            "learning_rate": self._learning_rate(t, 0),
            **asdict(Spent()),
        }

    def _descend(self, t: int, iteration: int) -> float:
        """A step of AdamW along the gradient, whose norm it returns."""
        norm = float(clip_grad_norm_(self._center.values(), self._config.max_grad_norm, foreach=False))
        if not np.isfinite(norm):
            raise InputError(f"update {t}: the gradient is not finite; a smaller learning_rate may help")
        for group in self._adam.param_groups:
            group["lr"] = self._learning_rate(t, iteration)
        self._adam.step()
        return norm

    def _learning_rate(self, t: int, iteration: int) -> float:
        """That of the first step is learning_rate; "linear" would reach 0 one step after the last."""
        config = self._config
        if config.lr_scheduler_type == "constant":
            return config.learning_rate
        done = (t - 1) * config.num_iterations + iteration
        return config.learning_rate * (1 - done / (config.updates * config.num_iterations))

    def state(self) -> dict[str, torch.Tensor]:
        """What AdamW remembers, copied: step, exp_avg, exp_avg_sq of each parameter, as KIND:NAME."""
        return {f"{kind}:{n}": self._adam.state[p][kind].clone() for n, p in self._center.items() for kind in MOMENTS}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up what `state` gave; with the center of that moment, updates go on to the bit.

        Raises:
            InputError: the state of other parameters.
        """
        own = {f"{kind}:{n}": self._adam.state[p][kind] for n, p in self._center.items() for kind in MOMENTS}
        kinds, found = ({n: (x.shape, x.dtype) for n, x in tensors.items()} for tensors in (own, state))
        other = sorted(name for name in kinds.keys() | found.keys() if kinds.get(name) != found.get(name))
        if other:
            raise InputError(f"the optimiser's state does not fit these parameters: {other[0]}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
