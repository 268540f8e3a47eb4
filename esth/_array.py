"""The array namespace the library computes in: NumPy by default, torch where it is given torch tensors."""

from typing import Any

import numpy as np

from esth.errors import InputError, require

Array = Any
"""A NumPy array or a torch tensor (anything array-API shaped)."""


def is_torch(value: Any) -> bool:
    """Whether `value` is a torch tensor, told without importing torch."""
    return type(value).__module__.split(".")[0] == "torch"


def namespace(*values: Any) -> Any:
    """The array-API namespace of `values`: torch's (through array-api-compat) if one is a tensor, else NumPy."""
    if any(is_torch(value) for value in values):
        return require("array_api_compat.torch", "llm")
    return np


def floating(*values: Any) -> tuple[Any, ...]:
    """`(xp, *arrays)`: the values as floating arrays of one namespace, dtype and device.

    Python numbers, lists and integer arrays become float64 (NumPy) or the dtype of the first floating tensor (torch).
    """
    xp = namespace(*values)
    if xp is np:
        arrays = [np.asarray(value) for value in values]
        return (xp, *(a if a.dtype.kind == "f" else a.astype(np.float64) for a in arrays))
    tensors = [value for value in values if is_torch(value)]
    like = next((t for t in tensors if t.is_floating_point()), tensors[0].double())
    return (xp, *(xp.asarray(value, dtype=like.dtype, device=like.device) for value in values))


def safe_log(x: Array) -> Array:
    """log x, −inf at 0, without a warning."""
    xp = namespace(x)
    positive = x > 0
    return xp.where(positive, xp.log(xp.where(positive, x, 1.0)), -xp.inf)


def times(a: Array, b: Array) -> Array:
    """a·b with 0·∞ = 0."""
    xp, a, b = floating(a, b)
    zero = (a == 0) | (b == 0)
    return xp.where(zero, 0.0, xp.where(zero, 1.0, a) * xp.where(zero, 1.0, b))


def check_weights(weights: Array | None, like: Array, *, signed: bool = False) -> Array:
    """Member weights [..., N] for member values `like` [..., N]; uniform where `weights` is None.

    Raises:
        InputError: no member, another number of weights than members, not finite, negative (unless `signed`),
            or a sum that differs from 1 by more than rounding.
    """
    xp = namespace(like)
    n = like.shape[-1]
    if n < 1:
        raise InputError("a population needs at least one member (N >= 1)")
    if weights is None:
        return xp.full_like(like, 1.0 / n)
    _, weights, like = floating(weights, like)
    if weights.ndim == 0 or weights.shape[-1] != n:
        raise InputError(f"weights of shape {tuple(weights.shape)} for {n} members: one weight a member is needed")
    if not bool(xp.all(xp.isfinite(weights))):
        raise InputError("weights must be finite numbers")
    if not signed and bool(xp.any(weights < 0)):
        raise InputError(f"weights must not be negative (smallest: {float(xp.min(weights)):.6g})")
    total = xp.sum(weights, axis=-1)
    tolerance = n * 1e-9 if weights.dtype in (xp.float64,) else n * 1e-6
    worst = float(xp.max(xp.abs(total - 1.0)))
    if worst > tolerance * max(1.0, float(xp.max(xp.abs(weights)))):
        raise InputError(f"weights must sum to 1 (a sum is off by {worst:.3g})")
    return weights


def check_probability(p: Array, what: str = "success probabilities") -> Array:
    """`p` as a floating array, every entry in [0, 1].

    Raises:
        InputError: an entry is NaN or outside [0, 1].
    """
    xp, p = floating(p)
    if not bool(xp.all((p >= 0) & (p <= 1))):
        raise InputError(f"{what} must lie in [0, 1]")
    return p
