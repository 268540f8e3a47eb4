"""Random instances of the exact policies, each with a center and a verifier."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from esth.divergence import js
from esth.fisher import projected_fisher, trace
from esth.policies import Autoregressive, Categorical, LinearSoftmax, Policy
from toy.study import Float, over_prompts


@dataclass(frozen=True)
class Instance:
    """A policy at a center, with a verifier. Where there are several prompts, quantities are their means."""

    name: str
    policy: Policy
    theta: Float
    accepted: NDArray[np.int64]

    @property
    def dimension(self) -> int:
        return self.policy.dimension

    @property
    def fisher(self) -> Float:
        """F, averaged over the prompts: [d, d]."""
        return self._average(self.policy.fisher(self.theta), 2)

    @property
    def projected_fisher(self) -> Float:
        """Fᵛ, averaged over the prompts: [d, d]."""
        return self._average(projected_fisher(self.p, self.gradient), 2)

    @property
    def p(self) -> Float:
        """Success of the center: [*prompts]."""
        return self.policy.success(self.theta, self.accepted)

    @property
    def gradient(self) -> Float:
        """∇p: [*prompts, d]."""
        return self.policy.success_gradient(self.theta, self.accepted)

    @property
    def hessian(self) -> Float:
        """∇²p: [*prompts, d, d]."""
        return self.policy.success_hessian(self.theta, self.accepted)

    @property
    def rate(self) -> float:
        """tr F."""
        return float(trace(self.fisher))

    def log_p(self, epsilon: Float, sigma: float) -> Float:
        """Log-probabilities of the members: noise [..., N, d] -> [..., *prompts, N, V]."""
        return self.policy.population_log_p(self.theta + sigma * epsilon)

    def success(self, epsilon: Float, sigma: float) -> Float:
        """Successes of the members: noise [..., N, d] -> [..., *prompts, N]."""
        return self.accept(self.log_p(epsilon, sigma))

    def accept(self, log_p: Float) -> Float:
        """Successes from log-probabilities: [..., *prompts, N, V] -> [..., *prompts, N]."""
        return np.clip(np.sum(np.exp(log_p) * self.accepted[..., None, :], axis=-1), 0.0, 1.0)

    def js(self, epsilon: Float, sigma: float, weights: Float | None = None) -> Float:
        """JS_w in nats, averaged over the prompts: noise [R, N, d] -> [R]."""
        return over_prompts(js(self.log_p(epsilon, sigma), weights))

    def _average(self, value: Float, kept: int) -> Float:
        return value.reshape(-1, *value.shape[value.ndim - kept :]).mean(axis=0)


def categorical(rng: np.random.Generator, n_categories: int = 8, scale: float = 1.0) -> Instance:
    """One prompt, θ the logits divided by `scale`."""
    policy = Categorical(n_categories, scale * np.eye(n_categories))
    return Instance("categorical", policy, rng.standard_normal(n_categories) / scale, verifier(rng, n_categories))


def one_direction(rng: np.random.Generator, n_categories: int = 6) -> Instance:
    """One prompt and one parameter, θ = 0: expectations over the noise are one-dimensional integrals."""
    direction, offset = rng.standard_normal((2, n_categories))
    policy = Categorical(n_categories, direction[:, None], offset)
    return Instance("one direction", policy, np.zeros(1), verifier(rng, n_categories))


def covered(instance: Instance, n: int) -> Instance:
    """The same policy with a verifier that accepts the outcome of probability nearest 1/n: n tries may fail."""
    log_p = instance.policy.log_p(instance.theta)
    nearest = np.argmin(np.abs(log_p + np.log(n)), axis=-1)
    return replace(instance, accepted=np.eye(instance.policy.n_outcomes, dtype=np.int64)[nearest])


def curved(rng: np.random.Generator, sign: int) -> Instance:
    """One direction along which p, between 0.1 and 0.4, is clearly convex (`sign` 1) or concave (−1) at the center."""
    while True:
        instance = one_direction(rng)
        if 0.1 < instance.p < 0.4 and sign * instance.hessian[0, 0] > 0.1:
            return instance


def steep(rng: np.random.Generator) -> Instance:
    """One direction along which p clearly rises or falls."""
    while True:
        instance = one_direction(rng)
        if abs(instance.gradient[0]) > 0.15:
            return instance


def linear(rng: np.random.Generator, dimension: int = 12, n_prompts: int = 4, n_categories: int = 6) -> Instance:
    """Several prompts that read the same parameters through correlated features."""
    policy = LinearSoftmax.random(rng, n_prompts, n_categories, dimension, shared=0.5)
    accepted = np.stack([verifier(rng, n_categories) for _ in range(n_prompts)])
    return Instance("linear", policy, rng.standard_normal(dimension), accepted)


def autoregressive(rng: np.random.Generator, vocabulary: int = 3, length: int = 3) -> Instance:
    """Sequences whose next-token logits are a tanh network of the prefix, not affine in θ."""
    policy = Autoregressive.tanh(rng, vocabulary, length)
    theta = rng.standard_normal(policy.dimension)
    return Instance("autoregressive", policy, theta, verifier(rng, policy.n_outcomes))


def families(rng: np.random.Generator) -> list[Instance]:
    """A new instance of each family."""
    return [categorical(rng), linear(rng), autoregressive(rng)]


def verifier(rng: np.random.Generator, n_outcomes: int) -> NDArray[np.int64]:
    """A random verifier that accepts a quarter of the outcomes, at least one."""
    accepted = np.zeros(n_outcomes, dtype=np.int64)
    accepted[rng.permutation(n_outcomes)[: max(1, n_outcomes // 4)]] = 1
    return accepted
