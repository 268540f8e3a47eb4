"""What every exact policy has: all that follows from its logits and their first two derivatives in θ.

A policy is a smooth family of distributions π_θ over finitely many outcomes, one distribution a prompt. A
subclass gives the logits z(θ), their Jacobian J and their second derivatives H; with E the expectation under
π_θ,

    ∇ log π = J − E J  (the score s),      ∇² log π = H − E H − F,      F = E s sᵀ,
    ∇p = E[v s],                           ∇²p = E[v (s sᵀ + ∇² log π)]

for the success p = E v of a verifier v. All of it is exact, NumPy float64, and batched over members: θ has
shape [..., d], and the batch axes come first in every result, then the prompt axes (none for a single
prompt), then the outcomes, then d. `population_log_p` and `population_success` put the members where the rest
of the library wants them.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esth.divergence import log_softmax
from esth.errors import InputError

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class Policy(ABC):
    """An exact policy: the distribution that is sampled, so temperature and top-k belong to it.

    Attributes:
        dimension: d, the number of parameters.
        prompts: shape of the prompt axes, () for a single prompt.
        n_outcomes: V, the number of outcomes a prompt has.
        temperature: the logits are divided by it; inf is the uniform policy, 0 is greedy (top_k = 1).
        top_k: only the `top_k` largest logits keep their probability (ties go to the lower index); None keeps
            all. Derivatives are those within a region where the kept set does not change.
    """

    dimension: int
    prompts: tuple[int, ...]
    n_outcomes: int
    temperature: float
    top_k: int | None

    @abstractmethod
    def logits(self, theta: ArrayLike) -> Float:
        """Logits z(θ), temperature included, before top-k: [..., d] -> [..., *prompts, V]."""

    @abstractmethod
    def jacobian(self, theta: ArrayLike) -> Float:
        """J = dz/dθ: [..., d] -> [..., *prompts, V, d]."""

    @abstractmethod
    def logit_hessian(self, theta: ArrayLike) -> Float:
        """H = d²z/dθ²: [..., d] -> [..., *prompts, V, d, d]."""

    def log_p(self, theta: ArrayLike) -> Float:
        """log π_θ, −inf for outcomes that top-k forbids: [..., d] -> [..., *prompts, V]."""
        logits = self.logits(theta)
        k = 1 if self.temperature == 0 else self.top_k
        return log_softmax(logits if k is None else keep_largest(logits, k))

    def score(self, theta: ArrayLike) -> Float:
        """s = ∇ log π_θ, of mean 0: [..., d] -> [..., *prompts, V, d]."""
        jacobian = self.jacobian(theta)
        return jacobian - _expectation(self.log_p(theta), jacobian)[..., None, :]

    def log_p_hessian(self, theta: ArrayLike) -> Float:
        """∇² log π_θ = H − E H − F: [..., d] -> [..., *prompts, V, d, d]."""
        hessian = self.logit_hessian(theta)
        mean = _expectation(self.log_p(theta), hessian) + self.fisher(theta)
        return hessian - mean[..., None, :, :]

    def fisher(self, theta: ArrayLike) -> Float:
        """F = E[s sᵀ] of each prompt: [..., d] -> [..., *prompts, d, d]."""
        score = self.score(theta)
        return np.matrix_transpose(score) @ (np.exp(self.log_p(theta))[..., None] * score)

    def success(self, theta: ArrayLike, accepted: ArrayLike) -> Float:
        """p = E[v]: [..., d] -> [..., *prompts]; `accepted` holds v, 0 or 1, as [V] or [*prompts, V]."""
        p = np.sum(np.exp(self.log_p(theta)) * self._verifier(accepted), axis=-1)
        return np.clip(p, 0.0, 1.0)

    def success_gradient(self, theta: ArrayLike, accepted: ArrayLike) -> Float:
        """∇p = E[v s]: [..., d] -> [..., *prompts, d]."""
        return _expectation(self.log_p(theta), self.score(theta), self._verifier(accepted))

    def success_hessian(self, theta: ArrayLike, accepted: ArrayLike) -> Float:
        """∇²p = E[v (s sᵀ + ∇² log π)]: [..., d] -> [..., *prompts, d, d]."""
        verifier, score = self._verifier(accepted), self.score(theta)
        mass = (np.exp(self.log_p(theta)) * verifier)[..., None]
        return np.matrix_transpose(score) @ (mass * score) + _expectation(
            self.log_p(theta), self.log_p_hessian(theta), verifier
        )

    def population_log_p(self, thetas: ArrayLike) -> Float:
        """log π of a population's members: [..., N, d] -> [..., *prompts, N, V], as in `esth.divergence`."""
        return np.moveaxis(self.log_p(thetas), -2 - len(self.prompts), -2)

    def population_success(self, thetas: ArrayLike, accepted: ArrayLike) -> Float:
        """pᵢ of a population's members: [..., N, d] -> [..., *prompts, N], as in `esth.coverage`."""
        return np.moveaxis(self.success(thetas, accepted), -1 - len(self.prompts), -1)

    def sample(self, rng: np.random.Generator, theta: ArrayLike, m: int) -> Int:
        """m independent outcomes for each θ and prompt: [..., d] -> [..., *prompts, m], outcome indices."""
        p = np.exp(self.log_p(theta))[..., None, :]
        return choose(rng, np.broadcast_to(p, (*p.shape[:-2], m, self.n_outcomes)))

    def parameters(self, theta: ArrayLike) -> Float:
        """`theta` as a float array [..., d].

        Raises:
            InputError: another length of the last axis than d, or a number that is not finite.
        """
        array = np.asarray(theta, dtype=np.float64)
        if array.ndim == 0 or array.shape[-1] != self.dimension:
            raise InputError(f"theta of shape {array.shape} for a policy of {self.dimension} parameters")
        if not np.all(np.isfinite(array)):
            raise InputError("theta must be finite numbers")
        return array

    def _verifier(self, accepted: ArrayLike) -> Float:
        verifier = np.asarray(accepted, dtype=np.float64)
        if verifier.shape not in ((self.n_outcomes,), (*self.prompts, self.n_outcomes)):
            raise InputError(
                f"verifier of shape {verifier.shape}: ({self.n_outcomes},) or "
                f"{(*self.prompts, self.n_outcomes)} is accepted"
            )
        if not np.all((verifier == 0) | (verifier == 1)):
            raise InputError("a verifier accepts an outcome or not: 0 or 1")
        return verifier


def keep_largest(logits: Float, k: int) -> Float:
    """`logits` [..., V] with all but the k largest at −inf; ties go to the lower index."""
    kept = np.argsort(-logits, axis=-1, kind="stable")[..., :k]
    result = np.full_like(logits, -np.inf)
    np.put_along_axis(result, kept, np.take_along_axis(logits, kept, axis=-1), axis=-1)
    return result


def choose(rng: np.random.Generator, p: Float) -> Int:
    """One index from each distribution p [..., V], by inversion: -> [...]. Never one of probability 0."""
    cumulative = np.cumsum(p, axis=-1)
    total = cumulative[..., -1:]
    # Rounding must not carry u up to the total: no index would be left.
    u = np.minimum(rng.random(p.shape[:-1])[..., None] * total, np.nextafter(total, 0.0))
    return np.sum(cumulative <= u, axis=-1)


def check_decoding(temperature: float, top_k: int | None, n_categories: int) -> float:
    """1/temperature, the factor of the logits (1 at temperature 0, where `log_p` is greedy).

    Raises:
        InputError: a negative or NaN temperature, or top_k outside 1…n_categories.
    """
    if not temperature >= 0:
        raise InputError(f"temperature = {temperature} must be >= 0 (0 is greedy, inf is uniform)")
    if top_k is not None and not 1 <= top_k <= n_categories:
        raise InputError(f"top_k = {top_k} must lie in 1..{n_categories}, the number of categories")
    return 1.0 if temperature == 0 else 1.0 / temperature


def _expectation(log_p: Float, values: Float, verifier: Float | None = None) -> Float:
    """E[v·values] over the outcomes: log_p [..., V], values [..., V, *rest] -> [..., *rest]."""
    mass = np.exp(log_p) if verifier is None else np.exp(log_p) * verifier
    rest = values.ndim - mass.ndim
    return np.sum(mass[(...,) + (None,) * rest] * values, axis=-1 - rest)
