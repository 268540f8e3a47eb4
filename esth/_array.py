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

    The dtype is the widest of the floating arrays (tensors, if there is one) among the values, and float64 if there is
    none; half precision becomes float32. Python numbers, lists and integer arrays follow.
    """
    xp = namespace(*values)
    if xp is np:
        dtype = _widest(np, [v for v in values if isinstance(v, np.ndarray | np.generic)])
        return (np, *(np.asarray(v, dtype=dtype) for v in values))
    tensors = [v for v in values if is_torch(v)]
    kind = {"dtype": _widest(xp, tensors), "device": tensors[0].device}
    # Not asarray for tensors: it warns about those that record gradients.
    return (xp, *(v.to(**kind) if is_torch(v) else xp.asarray(v, **kind) for v in values))


def _widest(xp: Any, arrays: list[Array]) -> Any:
    dtypes = [a.dtype for a in arrays if xp.isdtype(a.dtype, "real floating")]
    dtype = xp.result_type(*dtypes) if dtypes else xp.float64
    return xp.float32 if xp.finfo(dtype).bits < 32 else dtype


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
    if like.ndim == 0 or like.shape[-1] < 1:
        raise InputError("a population needs at least one member (N >= 1), on the last axis of its values")
    n = like.shape[-1]
    if weights is None:
        return namespace(like).full_like(like, 1.0 / n)
    if is_torch(weights) and not is_torch(like):
        raise InputError("the weights are a torch tensor, the members' values are not: give both as one kind")
    xp, weights = floating(weights)
    if weights.ndim == 0 or weights.shape[-1] != n:
        raise InputError(f"weights of shape {tuple(weights.shape)} for {n} members: one weight a member is needed")
    if not bool(xp.all(xp.isfinite(weights))):
        raise InputError("weights must be finite numbers")
    if not signed and bool(xp.any(weights < 0)):
        raise InputError(f"weights must not be negative (smallest: {float(xp.min(weights)):.6g})")
    error = xp.abs(xp.sum(weights, axis=-1) - 1.0)
    tolerance = n * (1e-9 if xp.finfo(weights.dtype).bits >= 64 else 1e-6)
    if bool(xp.any(error > tolerance * xp.clip(xp.max(xp.abs(weights), axis=-1), 1.0, None))):
        raise InputError(f"weights must sum to 1 (a sum is off by {float(xp.max(error)):.3g})")
    kind = {"dtype": like.dtype, "device": like.device}
    return weights.to(**kind) if is_torch(weights) else namespace(like).asarray(weights, **kind)


def check_probability(p: Array, what: str = "success probabilities") -> Array:
    """`p` as a floating array, every entry in [0, 1].

    Raises:
        InputError: an entry is NaN or outside [0, 1].
    """
    xp, p = floating(p)
    if not bool(xp.all((p >= 0) & (p <= 1))):
        raise InputError(f"{what} must lie in [0, 1]")
    return p
