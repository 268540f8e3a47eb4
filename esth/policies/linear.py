"""Softmax policies with logits affine in θ; features shared across prompts couple what the prompts learn.

z(x, v) = (φ(x, v)·θ + b(x, v))/temperature. Every prompt reads the same θ, so a step that helps one prompt
moves the policy of every prompt whose features overlap: the toy counterpart of one network answering many
questions.
"""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from esth.errors import InputError
from esth.policies.base import Float, Policy, check_decoding


class LinearSoftmax(Policy):
    """Softmax of logits affine in θ.

    Args:
        features: φ, [*prompts, V, d]; any number of prompt axes, none for a single prompt.
        offset: b, [*prompts, V] or None for 0.
        temperature: see `Policy`.
        top_k: see `Policy`.

    Raises:
        InputError: features that are no finite array of at least two axes, an offset of another shape, or a
            temperature or top_k out of range.
    """

    def __init__(
        self,
        features: ArrayLike,
        offset: ArrayLike | None = None,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> None:
        phi = np.asarray(features, dtype=np.float64)
        if phi.ndim < 2 or 0 in phi.shape[-2:] or not np.all(np.isfinite(phi)):
            raise InputError(f"features of shape {phi.shape}: finite numbers [*prompts, V >= 1, d >= 1] are accepted")
        *prompts, self.n_outcomes, self.dimension = phi.shape
        self.prompts = tuple(prompts)
        b = np.zeros(phi.shape[:-1]) if offset is None else np.asarray(offset, dtype=np.float64)
        if b.shape != phi.shape[:-1] or not np.all(np.isfinite(b)):
            raise InputError(f"offset of shape {b.shape}: finite numbers of shape {phi.shape[:-1]} are accepted")
        self.temperature, self.top_k = temperature, top_k
        factor = check_decoding(temperature, top_k, self.n_outcomes)
        self._features, self._offset = factor * phi, factor * b

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        n_prompts: int,
        n_categories: int,
        dimension: int,
        *,
        scale: float = 1.0,
        shared: float = 0.0,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> Self:
        """A random family: Gaussian features of variance scale²/d, so that z has standard deviation
        scale·‖θ‖/√d.

        Args:
            rng: source of the features.
            n_prompts: X, length of the one prompt axis.
            n_categories: V.
            dimension: d.
            scale: standard deviation of the logits at a θ of standard normal entries.
            shared: correlation in [0, 1] of two prompts' features of one category: 1 makes all prompts alike.
            temperature: see `Policy`.
            top_k: see `Policy`.
        """
        if not 0 <= shared <= 1:
            raise InputError(f"shared = {shared} must lie in [0, 1]")
        common = rng.standard_normal((1, n_categories, dimension))
        own = rng.standard_normal((n_prompts, n_categories, dimension))
        features = scale / np.sqrt(dimension) * (np.sqrt(shared) * common + np.sqrt(1.0 - shared) * own)
        return cls(features, temperature=temperature, top_k=top_k)

    def logits(self, theta: ArrayLike) -> Float:
        flat = self._features.reshape(-1, self.dimension)
        product = self.parameters(theta) @ flat.T
        return product.reshape(*product.shape[:-1], *self._offset.shape) + self._offset

    def jacobian(self, theta: ArrayLike) -> Float:
        batch = self.parameters(theta).shape[:-1]
        return np.broadcast_to(self._features, (*batch, *self._features.shape))

    def logit_hessian(self, theta: ArrayLike) -> Float:
        batch = self.parameters(theta).shape[:-1]
        return np.broadcast_to(0.0, (*batch, *self._features.shape, self.dimension))
