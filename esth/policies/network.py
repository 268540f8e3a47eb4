"""A softmax policy whose logits are a small tanh network: nonlinear in θ, derivatives in closed form."""

import numpy as np
from numpy.typing import ArrayLike

from esth.errors import InputError
from esth.policies.base import Float, Policy, check_decoding


class TanhSoftmax(Policy):
    """z(x) = B tanh(A φ(x))/temperature with θ = (A [h, k], B [V, h]) flattened in this order.

    Args:
        inputs: φ, [*prompts, k], the fixed features of each prompt.
        n_categories: V.
        hidden: h, units of the hidden layer.
        temperature: see `Policy`.
        top_k: see `Policy`.

    Raises:
        InputError: inputs that are no finite array with a feature axis, sizes below 1, temperature or top_k
            out of range.
    """

    def __init__(
        self,
        inputs: ArrayLike,
        n_categories: int,
        hidden: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> None:
        self._inputs = np.asarray(inputs, dtype=np.float64)
        if self._inputs.ndim < 1 or not np.all(np.isfinite(self._inputs)):
            raise InputError(f"inputs of shape {self._inputs.shape}: finite numbers [*prompts, k] are accepted")
        if min(n_categories, hidden, self._inputs.shape[-1]) < 1:
            raise InputError("the network needs at least one input, one hidden unit and one category")
        self.prompts = self._inputs.shape[:-1]
        self.n_outcomes, self.hidden = n_categories, hidden
        self.dimension = hidden * self._inputs.shape[-1] + n_categories * hidden
        self.temperature, self.top_k = temperature, top_k
        self._factor = check_decoding(temperature, top_k, n_categories)

    def logits(self, theta: ArrayLike) -> Float:
        activation, readout = self._forward(theta)
        return np.einsum("...vh,...h->...v", readout, activation)

    def jacobian(self, theta: ArrayLike) -> Float:
        activation, readout = self._forward(theta)
        slope = 1.0 - activation**2
        by_input = (readout * slope[..., None, :])[..., None] * self._inputs[..., None, None, :]
        # dz_v/dB_uh = δ_uv · activation_h, scaled like the logits.
        by_readout = self._factor * np.eye(self.n_outcomes)[:, :, None] * activation[..., None, None, :]
        flat = (*activation.shape[:-1], self.n_outcomes, -1)
        return np.concatenate([by_input.reshape(flat), by_readout.reshape(flat)], axis=-1)

    def logit_hessian(self, theta: ArrayLike) -> Float:
        activation, readout = self._forward(theta)
        n_inputs = self._inputs.shape[-1]
        split = self.hidden * n_inputs
        slope = 1.0 - activation**2
        bend = -2.0 * activation * slope
        unit, category = np.eye(self.hidden), np.eye(self.n_outcomes)
        hessian = np.zeros((*activation.shape[:-1], self.n_outcomes, self.dimension, self.dimension))
        # d²z_v/dA_hk dA_gl = δ_hg B_vh tanh″ φ_k φ_l
        inner = np.einsum(
            "...vh,hg,...k,...l->...vhkgl", readout * bend[..., None, :], unit, self._inputs, self._inputs
        )
        hessian[..., :split, :split] = inner.reshape(*inner.shape[:-4], split, split)
        # d²z_v/dA_hk dB_ug = δ_uv δ_hg tanh′ φ_k
        cross = self._factor * np.einsum("vu,hg,...h,...k->...vhkug", category, unit, slope, self._inputs)
        cross = cross.reshape(*cross.shape[:-4], split, self.dimension - split)
        hessian[..., :split, split:] = cross
        hessian[..., split:, :split] = np.matrix_transpose(cross)
        return hessian

    def _forward(self, theta: ArrayLike) -> tuple[Float, Float]:
        """Hidden activations [..., *prompts, h] and the scaled readout B/temperature [..., *1s, V, h]."""
        array = self.parameters(theta)
        batch, split = array.shape[:-1], self.hidden * self._inputs.shape[-1]
        first = array[..., :split].reshape(*batch, *(1,) * len(self.prompts), self.hidden, -1)
        readout = array[..., split:].reshape(*batch, *(1,) * len(self.prompts), self.n_outcomes, self.hidden)
        return np.tanh(np.einsum("...hk,...k->...h", first, self._inputs)), self._factor * readout
