"""What the five studies share: how much to draw, averages with their errors, power-law fits, quadrature.

A study is a module with a `TITLE`, `PARTS` and `figure`. A part is a function (settings, generator) ->
(checks, data), data being what the figure shows; `figure` takes the data of all parts by name. Every part has its own
generator, so its numbers do not depend on which others run.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import roots_hermitenorm

from esth.check import Check
from esth.errors import InputError
from esth.noise import draw

Float = NDArray[np.float64]
Data = dict[str, Any]
Part = Callable[["Settings", np.random.Generator], tuple[list[Check], Data]]

SMALL = 1e-3
"""σ² tr F up to which a leading order is fitted: its remainder is then of relative size SMALL times a number near 1."""

BLOCK = 1 << 15
"""Members drawn at a time, for memory."""


@dataclass(frozen=True)
class Settings:
    """What a run may choose. `quick` changes sizes only.

    Raises:
        InputError: a range of σ in which the leading orders cannot be fitted or saturation not be seen.
    """

    seed: int = 0
    sigma: tuple[float, float] = (1e-3, 10.0)
    quick: bool = False

    def __post_init__(self) -> None:
        low, high = self.sigma
        if not (1e-5 <= low <= 1e-2 and 1.0 <= high <= 1e3):
            raise InputError(
                f"sigma from {low:g} to {high:g}: accepted is a low end in [1e-5, 0.01], where the rates are fitted, "
                "and a high end in [1, 1000]"
            )
        if self.seed < 0:
            raise InputError(f"seed {self.seed}: an integer >= 0 is accepted")

    @property
    def members(self) -> int:
        """Members drawn for each measured point."""
        return 1 << (15 if self.quick else 17)

    @property
    def precision(self) -> float:
        """Relative standard error at which the drawing of populations may stop."""
        return 0.006 if self.quick else 0.004

    def populations(self, n: int, most: int = 1 << 30) -> int:
        """Populations of `n` members for one point."""
        return min(self.members // n, most)

    def sigmas(self) -> Float:
        """The whole range of σ, on a logarithmic grid."""
        low, high = self.sigma
        return np.geomspace(low, high, round(np.log10(high / low) * (2 if self.quick else 3)) + 1)

    def small_sigmas(self, scale: float) -> Float:
        """σ from the low end to where σ²·scale = SMALL, three decades at most (fewer would let rounding in)."""
        high = np.sqrt(SMALL / scale)
        return np.geomspace(min(self.sigma[0], high / 10), high, 2 if self.quick else 4)


def populations(
    statistic: Callable[[Float], Float],
    family: str,
    rng: np.random.Generator,
    n: int,
    d: int,
    *,
    most: int,
    precision: ArrayLike = 0.0,
) -> Float:
    """`statistic` of the noise [b, n, d] of populations of `n` members, drawn in blocks: -> [R, ...].

    Draws `most` populations, or fewer if by then the means have relative standard errors of `precision` (broadcasts).
    """
    values: list[Float] = []
    step, drawn, done = max(1, BLOCK // n), 0, False
    while drawn < most and not done:
        b = min(step, most - drawn)
        values.append(statistic(draw(family, rng, b * n, d).reshape(b, n, d)))
        drawn += b
        if drawn >= 64 and np.any(precision):
            so_far = np.concatenate(values)
            done = np.all(so_far.std(axis=0) / np.sqrt(drawn) <= precision * np.abs(so_far.mean(axis=0)))
    return np.concatenate(values)


def over_prompts(values: Float) -> Float:
    """Average over the prompt axes: [R, *prompts] -> [R]."""
    return values.reshape(len(values), -1).mean(axis=1)


def mean(values: Float) -> tuple[float, float]:
    """Mean and standard error of independent replicates [R]."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def mean_variance(values: Float) -> tuple[float, float]:
    """Variance of replicates [R, ...], averaged over the other axes, with its standard error."""
    square = (values - values.mean(axis=0)) ** 2 * len(values) / (len(values) - 1)
    return mean(over_prompts(square))


def power_law(x: Float, values: Float) -> tuple[float, float]:
    """Least-squares slope of log E[values] on log x, with its standard error: x [S], replicates [R, S].

    The replicates of all x may share their noise: the error is that of the slope's linearisation in each replicate.
    """
    log_x = np.log(x) - np.log(x).mean()
    coefficient = log_x / np.sum(log_x**2)
    average = values.mean(axis=0)
    slope = float(coefficient @ np.log(np.abs(average)))
    return slope, 0.0 if len(values) == 1 else mean((values / average) @ coefficient)[1]


def zero_crossing(x: Float, y: Float) -> float:
    """Where the least-squares line through (x, y) is 0."""
    slope, height = np.polyfit(x, y, 1)
    return float(-height / slope)


def gauss_hermite(order: int, members: int = 1) -> tuple[Float, Float]:
    """Nodes [M, members] and weights [M] of E over independent standard normals, one an axis."""
    node, weight = roots_hermitenorm(order)
    weight = weight / weight.sum()
    nodes = np.array(list(itertools.product(node, repeat=members)))
    weights = np.array([np.prod(w) for w in itertools.product(weight, repeat=members)])
    return nodes, weights


def all_signs(count: int) -> Float:
    """All 2^count vectors of signs, [2^count, count]: the exact expectation over Rademacher noise."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=count)))


def columns(names: Sequence[str], *values: Any) -> Data:
    """Named columns as lists of numbers, for JSON."""
    return {name: np.asarray(value).tolist() for name, value in zip(names, values, strict=True)}
