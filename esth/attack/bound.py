"""A bound as something to break: its two sides, the constant on one of them, and what counts as rounding.

A bound says smaller <= larger. Its margin on an instance is relative, (larger − smaller)/max(|larger|, |smaller|):
0 at equality, negative where the bound is broken. In float64 only a margin that is negative by more than rounding
(`RELATIVE`, `ULPS`) is a suspicion, and only exact arithmetic makes it a violation (`Bound.exact_margin`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from esth.attack.exact import CONTEXT, decimals
from esth.errors import InputError

T = TypeVar("T")
Float = NDArray[np.float64]
Setting = Mapping[str, int]
"""The sizes one batch of instances shares: members, categories, tries …"""
Exact = dict[str, Any]
"""The same for one instance: numbers as `Decimal`, arrays as nested lists."""

RELATIVE = 1e-9
"""Rounding allowance relative to the larger side."""
EPS = float(np.finfo(np.float64).eps)
ULPS = 64 * EPS
"""Rounding allowance relative to the numbers that cancel in computing a side."""
TINY = 1e-290
"""Where both sides are smaller, float64 is near its end and says nothing."""
DIGITS = (60, 120, 240, 480, 960)
"""Precisions of the exact margin, raised until two agree: the square of e⁻⁷⁰⁰ has to be told from 0."""


class Instances(dict[str, Float]):
    """Named arrays whose first axis is the instance."""

    def __init__(self, arrays: dict[str, Float]) -> None:
        super().__init__(arrays)
        self._known: dict[Callable[..., Any], Any] = {}

    def once(self, function: Callable[..., T], *settings: Setting) -> T:
        """function(*settings, self), computed once for all bounds that need it."""
        if function not in self._known:
            self._known[function] = function(*settings, self)
        return self._known[function]


class Space(Protocol):
    """A space of instances, each a row of unconstrained numbers that `decode` turns into arrays."""

    @property
    def name(self) -> str:
        """Short and unique within a lemma."""

    def setting(self, rng: np.random.Generator) -> Setting:
        """Sizes for one batch."""

    def draw(self, setting: Setting, rng: np.random.Generator, n: int) -> Float:
        """n random rows, extremes among them: [n, parameters]; ±inf allowed."""

    def decode(self, setting: Setting, x: Float) -> dict[str, Float]:
        """Rows [n, parameters] -> named arrays [n, …]. Any perturbed row is an instance."""


class Sides(NamedTuple):
    """Both sides of a bound on a batch, [n] each.

    Attributes:
        cancelled: size of the numbers whose difference the sides are, where float64 loses digits by cancellation.
    """

    smaller: Float
    larger: Float
    cancelled: Float | float = 0.0


class Margins(NamedTuple):
    """Relative margins [n], and the same plus the rounding allowance: negative only beyond rounding."""

    relative: Float
    guarded: Float


@dataclass(frozen=True)
class Bound:
    """smaller <= larger on every instance of a space.

    Attributes:
        name: short and unique within its lemma, the key of `constant` in `attack`.
        statement: number in docs/theory.md.
        formula: what is claimed, in one line.
        space: where instances come from.
        sides: both sides in float64, by the library's own functions.
        exact: both sides of one instance in decimal arithmetic, from the definitions.
        scaled: the side that `constant` multiplies.
        limit: the largest smaller/larger there is: 1 where the bound is sharp.
        constant: 1 for the statement, anything else to falsify it on purpose.
    """

    name: str
    statement: str
    formula: str
    space: Space
    sides: Callable[[Setting, Instances], Sides]
    exact: Callable[[Setting, Exact], tuple[Decimal, Decimal]]
    scaled: Literal["smaller", "larger"]
    limit: float = 1.0
    constant: float = 1.0

    @property
    def sharp(self) -> bool:
        """Whether instances come arbitrarily close to equality."""
        return self.limit == 1.0

    def instances(self, setting: Setting, x: Float) -> Instances:
        """The instances that rows x [n, parameters] stand for."""
        return Instances(self.space.decode(setting, x))

    def margins(self, setting: Setting, instances: Instances) -> Margins:
        """Margins of a batch of instances.

        An instance says nothing and gets the margin 1 where both sides are below `TINY`, or the larger is infinite; one
        with a NaN gets −inf.
        """
        smaller, larger, cancelled = self.sides(setting, instances)
        if self.scaled == "smaller":
            smaller = self.constant * smaller
        else:
            larger = self.constant * larger
        size = np.maximum(np.abs(smaller), np.abs(larger))
        defined = ~(np.isnan(smaller) | np.isnan(larger))
        trivial = (size < TINY) | ((smaller <= larger) & np.isinf(size))
        ordinary = defined & ~trivial & np.isfinite(size)
        size = np.where(ordinary, size, 1.0)
        gap = np.where(ordinary, larger, 1.0) - np.where(ordinary, smaller, 0.0)
        relative = np.where(ordinary, gap / size, np.where(trivial, 1.0, -np.inf))
        allowance = RELATIVE + ULPS * np.broadcast_to(cancelled, size.shape) / size
        return Margins(relative, np.where(ordinary, relative + allowance, relative))

    def exact_margin(self, setting: Setting, x: Float) -> float:
        """Relative margin of one row x [parameters] in decimal arithmetic; NaN if the finest precision is too coarse.

        The precision is doubled until the margin no longer changes, and the sides stand out of its last digits.
        """
        previous: Decimal | None = None
        for digits in DIGITS:
            margin = self._decimal_margin(setting, x, digits)
            if margin is not None and previous is not None and abs(margin - previous) <= abs(margin) * Decimal("1e-6"):
                return float(margin)
            if margin is not None and previous is not None and max(abs(margin), abs(previous)) < Decimal("1e-40"):
                return 0.0
            previous = margin
        return float("nan")

    def _decimal_margin(self, setting: Setting, x: Float, digits: int) -> Decimal | None:
        instances = self.space.decode(setting, x[None, :])
        with localcontext(CONTEXT, prec=digits):
            smaller, larger = self.exact(setting, {name: decimals(array[0]) for name, array in instances.items()})
            constant = Decimal(self.constant)
            if self.scaled == "smaller":
                smaller = smaller * constant
            else:
                larger = larger * constant
            size = max(abs(smaller), abs(larger))
            if size < Decimal(10) ** (-3 * digits // 4):
                return None
            if size.is_infinite():
                return Decimal(1) if smaller <= larger else Decimal("-Infinity")
            return (larger - smaller) / size


def named(bounds: tuple[Bound, ...], names: Mapping[str, float] | list[str] | tuple[str, ...]) -> None:
    """Raise InputError unless every one of `names` is the name of a bound."""
    known = [bound.name for bound in bounds]
    for name in names:
        if name not in known:
            raise InputError(f"no bound {name!r}: this lemma has {', '.join(known)}")
