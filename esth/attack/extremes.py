"""Random numbers that a bound should fear: point masses, zeros, ties, near-ties, heavy tails, rare events, all scales.

Each function returns n rows made by several recipes, in random order, so that recipes of different parts of an instance
meet in all combinations.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Recipe = Callable[[np.random.Generator, tuple[int, ...]], Float]


def mixed(rng: np.random.Generator, n: int, shape: Sequence[int], recipes: Sequence[Recipe]) -> Float:
    """n arrays of `shape`, an equal share by each recipe, shuffled."""
    shares = np.diff(np.linspace(0, n, len(recipes) + 1).astype(int))
    rows = np.concatenate([recipe(rng, (int(m), *shape)) for recipe, m in zip(recipes, shares, strict=True)])
    return rows[rng.permutation(n)]


def scales(rng: np.random.Generator, n: int, low: float, high: float) -> Float:
    """log of scales that are log-uniform between 10^low and 10^high: [n, 1]."""
    return rng.uniform(low, high, size=(n, 1)) * np.log(10.0)


def directions(rng: np.random.Generator, n: int, shape: Sequence[int]) -> Float:
    """Arrays [n, *shape] of numbers of order 1."""
    return mixed(rng, n, shape, (_normal, _normal, _heavy, _signs, _single, _rounded, _near_equal))


def logits(rng: np.random.Generator, n: int, v: int) -> Float:
    """Logits [n, v] of a distribution: equal, ordinary, peaked, with rare categories down to e⁻⁷⁰⁰."""
    return mixed(rng, n, (v,), (_zeros, _normal, _wide, _peaked, _rare))


def log_weights(rng: np.random.Generator, n: int, members: int) -> Float:
    """log of unnormalised member weights [n, members]: equal, ordinary, uneven, with zeros, on one member."""
    rows = mixed(rng, n, (members,), (_zeros, _zeros, _normal, _wide, _absent, _rare))
    hopeless = np.all(np.isinf(rows), axis=-1)
    rows[hopeless] = 0.0
    return rows


def repeated(rng: np.random.Generator, rows: Float, share: float = 0.15) -> Float:
    """`rows` [n, members, …] in which a share of the populations consists of copies of the first member but for one."""
    n, members = rows.shape[:2]
    chosen = rng.random((n, 1)) < share
    odd = rng.integers(0, members, size=n)
    copies = chosen & np.not_equal.outer(odd, np.arange(members))
    return np.where(copies.reshape(n, members, *[1] * (rows.ndim - 2)), rows[:, :1], rows)


def holes(rng: np.random.Generator, rows: Float, value: float, share: float) -> Float:
    """`rows` [n, …] in which a share of the instances has `value` at random places."""
    hit = rng.random((rows.shape[0], *[1] * (rows.ndim - 1))) < share
    return np.where(hit & (rng.random(rows.shape) < 0.4), value, rows)


def _zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return np.zeros(shape)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return rng.standard_normal(shape)


def _wide(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return rng.standard_normal(shape) * 10 ** rng.uniform(-1, 1.5, size=(shape[0], *[1] * (len(shape) - 1)))


def _heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return np.clip(rng.standard_cauchy(shape), -1e4, 1e4)


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return rng.choice([-1.0, 1.0], size=shape)


def _rounded(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return np.rint(rng.standard_normal(shape))


def _near_equal(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return rng.choice([-1.0, 1.0], size=shape) + 1e-6 * rng.standard_normal(shape)


def _single(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    """One number of the last axis is not 0."""
    place = rng.integers(shape[-1], size=shape[:-1])
    return np.where(np.arange(shape[-1]) == place[..., None], rng.choice([-1.0, 1.0], size=shape), 0.0)


def _peaked(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return _single(rng, shape) * rng.uniform(0, 60, size=(shape[0], *[1] * (len(shape) - 1))) + _normal(rng, shape)


def _rare(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return -np.abs(_single(rng, shape)) * rng.uniform(0, 700, size=(shape[0], *[1] * (len(shape) - 1)))


def _absent(rng: np.random.Generator, shape: tuple[int, ...]) -> Float:
    return np.where(rng.random(shape) < 0.5, -np.inf, _normal(rng, shape))
