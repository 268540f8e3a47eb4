"""Where instances live: rows of unconstrained numbers, and what they stand for.

A row can be moved in any direction and remains an instance, so that a search needs no constraints: probabilities are
softmaxes or sigmoids of its numbers, positive scales are exponentials. Infinite numbers stand for zeros and ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from esth.attack.bound import Float, Setting
from esth.attack.extremes import directions, holes, log_weights, logits, repeated, scales

FEW = (1, 2, 2, 3, 3, 3, 4)
"""Sizes worth searching: counterexamples, where there are any, are small."""
LARGE = 12


def size(rng: np.random.Generator, least: int = 1) -> int:
    """A small number of members or categories, one time in twenty a larger one."""
    if rng.random() < 0.05:
        return int(rng.integers(5, LARGE + 1))
    return int(rng.choice([k for k in FEW if k >= least]))


def groups(rng: np.random.Generator, v: int) -> int:
    """A number of outcomes below v, more than one where that can be."""
    return int(rng.integers(2, v)) if v > 2 else 1


def split(x: Float, *shapes: Sequence[int]) -> list[Float]:
    """Columns of rows [n, parameters] as arrays [n, *shape], in order."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(len(x), *shape) for part, shape in zip(np.split(x, ends[:-1], axis=-1), shapes, strict=True)]


def join(*parts: Float) -> Float:
    """The inverse of `split`."""
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1)


def scale(log_scale: Float) -> Float:
    """e^x, kept between 1e-8 and 1e4: smaller differences are rounding, larger ones all alike."""
    return np.exp(np.clip(log_scale, np.log(1e-8), np.log(1e4)))


def softmax(rows: Float) -> Float:
    """Weights from their logarithms [n, members]; −inf is a weight of 0."""
    e = np.exp(rows - np.max(rows, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


@dataclass(frozen=True)
class Populations:
    """Softmax policies around a common one: `logits` [n, N, V], `weights` [n, N].

    Sizes: n members, v categories, g outcomes: the last v − g + 1 categories are one outcome.
    """

    name: str = "populations"

    def setting(self, rng: np.random.Generator) -> Setting:
        n, v = size(rng), size(rng)
        return {"n": n, "v": v, "g": groups(rng, v)}

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        members, v = setting["n"], setting["v"]
        moves = repeated(rng, directions(rng, n, (members, v)))
        if v > 1:
            # Forbidden categories (top-k), never all of a member.
            moves[..., 1:] = holes(rng, moves[..., 1:], -np.inf, share=0.05)
        return join(logits(rng, n, v), scales(rng, n, -5, 4), moves, log_weights(rng, n, members))

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        n, v = setting["n"], setting["v"]
        base, log_scale, moves, rows = split(x, (v,), (1,), (n, v), (n,))
        return {"logits": base[:, None, :] + scale(log_scale)[..., None] * moves, "weights": softmax(rows)}


@dataclass(frozen=True)
class Tilts:
    """A distribution and a change of its logits: `logits` [n, V], `change` [n, V].

    Sizes: v categories, g outcomes as in `Populations`, `accepted` by a verifier: the first ones.
    """

    name: str = "tilts"

    def setting(self, rng: np.random.Generator) -> Setting:
        v = size(rng)
        return {"v": v, "g": groups(rng, v), "accepted": int(rng.integers(0, v + 1))}

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        v = setting["v"]
        return join(logits(rng, n, v), scales(rng, n, -5, 4), directions(rng, n, (v,)))

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        v = setting["v"]
        base, log_scale, move = split(x, (v,), (1,), (v,))
        return {"logits": base, "change": scale(log_scale) * move}


@dataclass(frozen=True)
class Trees:
    """Members as sequence policies of two tokens: `logits` [n, N, 1 + V, V] of the first token and, after each first
    token, of the second; `weights` [n, N].

    Sizes: n members, v tokens, `accepted` the sequences a verifier accepts, one bit each.
    """

    name: str = "sequences"

    def setting(self, rng: np.random.Generator) -> Setting:
        n, v = int(rng.choice([1, 2, 2, 3])), int(rng.choice([1, 2, 2, 2, 3]))
        return {"n": n, "v": v, "accepted": int(rng.integers(0, 2 ** (v * v)))}

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        members, v = setting["n"], setting["v"]
        base = logits(rng, n * (1 + v), v)
        moves = repeated(rng, directions(rng, n, (members, 1 + v, v)))
        return join(base.reshape(n, -1), scales(rng, n, -5, 3), moves, log_weights(rng, n, members))

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        n, v = setting["n"], setting["v"]
        base, log_scale, moves, rows = split(x, (1 + v, v), (1,), (n, 1 + v, v), (n,))
        return {"logits": base[:, None] + scale(log_scale)[..., None, None] * moves, "weights": softmax(rows)}


@dataclass(frozen=True)
class Successes:
    """Success probabilities of a population: `success` [n, N] with exact 0 and 1 among them, `weights` [n, N].

    Sizes: n members, m responses a member, k tries of at most n.
    """

    name: str = "successes"

    def setting(self, rng: np.random.Generator) -> Setting:
        n = size(rng)
        return {"n": n, "m": int(rng.integers(1, 4)), "k": int(rng.integers(1, n + 1))}

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        members = setting["n"]
        center = logits(rng, n, 2)
        moves = repeated(rng, directions(rng, n, (members,)))
        moves = holes(rng, holes(rng, moves, np.inf, share=0.05), -np.inf, share=0.05)
        return join(center[:, :1] - center[:, 1:], scales(rng, n, -5, 3), moves, log_weights(rng, n, members))

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        n = setting["n"]
        center, log_scale, moves, rows = split(x, (1,), (1,), (n,), (n,))
        return {"success": expit(center + scale(log_scale) * moves), "weights": softmax(rows)}


@dataclass(frozen=True)
class Tilted:
    """Fitness and success of a population, weights and a tilt: `fitness`, `success`, `weights` [n, N], `beta` [n, 2].

    The two β are in ascending order. Sizes: n members, k tries.
    """

    name: str = "fitness and success"

    def setting(self, rng: np.random.Generator) -> Setting:
        return {"n": size(rng), "k": int(rng.integers(1, 9))}

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        members = setting["n"]
        center = logits(rng, n, 2)
        moves = repeated(rng, directions(rng, n, (members,)))
        fitness = repeated(rng, directions(rng, n, (members,)))
        return join(
            center[:, :1] - center[:, 1:], scales(rng, n, -5, 3), moves, fitness, log_weights(rng, n, members),
            directions(rng, n, (1,)), scales(rng, n, -5, 2),
        )  # fmt: skip

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        n = setting["n"]
        center, log_scale, moves, fitness, rows, beta, log_step = split(x, (1,), (1,), (n,), (n,), (n,), (1,), (1,))
        return {
            "fitness": fitness,
            "success": expit(center + scale(log_scale) * moves),
            "weights": softmax(rows),
            "beta": np.concatenate([beta, beta + scale(log_step)], axis=-1),
        }


@dataclass(frozen=True)
class Updates:
    """A softmax center, its members' noise and fitness: `logits` [n, V], `noise` [n, N, V], `fitness` [n, N],
    `sigma`, `beta` [n].

    Sizes: n members, v categories, `accepted` by the verifier: the first ones, k tries.
    """

    name: str = "center updates"

    def setting(self, rng: np.random.Generator) -> Setting:
        n, v = size(rng, least=2), size(rng, least=2)
        return {"n": n, "v": v, "accepted": int(rng.integers(1, v)), "k": int(rng.integers(1, 9))}

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        members, v = setting["n"], setting["v"]
        return join(
            logits(rng, n, v), repeated(rng, directions(rng, n, (members, v))), directions(rng, n, (members,)),
            scales(rng, n, -3, 3), scales(rng, n, -3, 2),
        )  # fmt: skip

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        n, v = setting["n"], setting["v"]
        base, noise, fitness, log_sigma, log_beta = split(x, (v,), (n, v), (n,), (), ())
        return {
            "logits": base,
            "noise": noise,
            "fitness": fitness,
            "sigma": scale(log_sigma),
            "beta": scale(log_beta),
        }


@dataclass(frozen=True)
class Cubes:
    """An objective on the cube {−1, 1}^d, where Rademacher noise is all there is: `values` [n, 2^d], `sigma` [n].

    Sizes: d dimensions, n members.
    """

    name: str = "objectives on a cube"

    def setting(self, rng: np.random.Generator) -> Setting:
        # Some bounds are sharp in three dimensions only: ε₁ε₂ε₃ is odd and has no gradient.
        d, n = ((1, 2), (1, 4), (2, 2), (3, 2), (3, 2), (3, 2))[rng.integers(6)]
        return {"d": d, "n": n}

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        values = directions(rng, n, (2 ** setting["d"],))
        return join(values, scales(rng, n, -4, 2))

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        values, log_sigma = split(x, (2 ** setting["d"],), ())
        return {"values": values, "sigma": scale(log_sigma)}
