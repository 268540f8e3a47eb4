"""The categorical policy of one prompt: θ are the logits, or the logits are affine in θ."""

import numpy as np
from numpy.typing import ArrayLike

from esth.errors import InputError
from esth.policies.linear import LinearSoftmax


class Categorical(LinearSoftmax):
    """Softmax over V categories of the logits θ + offset, or directions·θ + offset.

    Args:
        n_categories: V.
        directions: [V, d], the derivative of the logits; the identity (d = V) if None.
        offset: [V] or None for 0.
        temperature: see `Policy`.
        top_k: see `Policy`.

    Raises:
        InputError: shapes that do not fit, numbers that are not finite, temperature or top_k out of range.
    """

    def __init__(
        self,
        n_categories: int,
        directions: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> None:
        if n_categories < 1:
            raise InputError(f"{n_categories} categories: at least 1 is needed")
        matrix = np.eye(n_categories) if directions is None else np.asarray(directions, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != n_categories:
            raise InputError(f"directions of shape {matrix.shape}: ({n_categories}, d) is accepted")
        super().__init__(matrix, offset, temperature=temperature, top_k=top_k)
