"""Perturbation noise: symmetric, mean 0, covariance I, in every family.

Exact toy policies take whole matrices from a NumPy generator (`draw`). Checkpoints take noise that is a
function of (seed, parameter name in the checkpoint, position): members can then be rebuilt in any order, on any
engine, in any slices, and two parameters of one shape never share noise. The generator behind it,
"philox-quantile", has the same bits on every machine:

1. `numpy.random.Philox`, keyed by a BLAKE2b hash of the seed and the name, gives raw 64-bit words; NumPy promises
   that raw streams never change;
2. each word is four 16-bit indices into a table of the standard normal quantiles Φ⁻¹((i+½)/65536), the two
   outermost moved from ±4.32 to ±4.40 so that the variance is 1;
3. two entries are weighted 1/φ and 1/√φ (φ the golden ratio: the squares sum to 1) and added. The weighted tables
   hold multiples of 2⁻²⁰, far coarser than any disagreement between mathematical libraries, so the sum is exact in
   float32.

Unequal weights keep the two from cancelling: a plain sum would be exactly 0 once in 65,536 draws. The distance of
the distribution function from Φ is 2.4e-7, the variance 1 − 1e-9, the excess kurtosis −5.4e-5, the range ±6.18; odd
moments are 0 (`tests/test_noise.py` computes all this from the tables). Speed: about 4 ns an element on one core.
"""

import hashlib
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import index
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError

FAMILIES = ("gaussian", "antithetic", "rademacher", "low-rank")
GENERATOR = "philox-quantile"

Float32 = NDArray[np.float32]


def check_family(family: str) -> None:
    """Raise InputError unless `family` is one of FAMILIES."""
    if family not in FAMILIES:
        raise InputError(f"unknown noise family {family!r}: accepted are {', '.join(FAMILIES)}")


# Exact toy policies


def draw(
    family: str,
    rng: np.random.Generator,
    n: int,
    d: int,
    *,
    rank: int = 1,
    shape: tuple[int, int] | None = None,
) -> NDArray[np.float64]:
    """Noise of a population, ε [n, d]: each row has mean 0 and covariance I exactly.

    Rows are independent, except that "antithetic" rows 2k and 2k+1 are ±. "low-rank" reads a row as the matrix
    A Bᵀ/√rank of the given `shape` (as square as d allows when None), with A and B standard normal.

    Raises:
        InputError: unknown family, n < 0, d < 1 or rank < 1, odd n for antithetic pairs, a shape that does not
            hold d.
    """
    check_family(family)
    if n < 0 or d < 1 or rank < 1:
        raise InputError(f"noise needs n >= 0, d >= 1 and rank >= 1, not n={n}, d={d}, rank={rank}")
    if family == "antithetic":
        if n % 2:
            raise InputError(f"antithetic noise comes in pairs: n must be even, not {n}")
        half = rng.standard_normal((n // 2, d))
        return np.stack([half, -half], axis=1).reshape(n, d)
    if family == "rademacher":
        return rng.integers(0, 2, size=(n, d)).astype(np.float64) * 2 - 1
    if family == "low-rank":
        rows, columns = matrix_shape(d) if shape is None else shape
        if rows * columns != d:
            raise InputError(f"a {rows} x {columns} matrix does not hold d={d} entries")
        a = rng.standard_normal((n, rows, rank))
        b = rng.standard_normal((n, columns, rank))
        return (a @ b.transpose(0, 2, 1)).reshape(n, d) / math.sqrt(rank)
    return rng.standard_normal((n, d))


def matrix_shape(d: int) -> tuple[int, int]:
    """The most square matrix of d entries, rows <= columns."""
    rows = math.isqrt(d)
    while d % rows:
        rows -= 1
    return rows, d // rows


# Populations of checkpoints


class Direction(Protocol):
    """A direction in the parameters of a checkpoint: hashable, compared by value, the same on every engine."""

    @property
    def key(self) -> tuple[int | str, ...]:
        """What names the random streams of responses drawn along it."""
        ...

    def noise(
        self, name: str, shape: Sequence[int], start: int = 0, count: int | None = None, *, scale: float = 1.0
    ) -> Float32:
        """scale · direction of one parameter, flat, positions start … start+count−1: float32 [count]."""
        ...


@dataclass(frozen=True)
class Member:
    """A direction ε = sign · noise(seed) in the parameters of a checkpoint. The member itself is θ + σ ε.

    Attributes:
        seed: an integer in [0, 2⁶⁴).
        sign: +1, or −1 for the second of an antithetic pair.
        family: one of FAMILIES; for a single direction "antithetic" is "gaussian".
        rank: of low-rank noise in two-dimensional parameters.
    """

    seed: int
    sign: int = 1
    family: str = "gaussian"
    rank: int = 1

    def __post_init__(self) -> None:
        check_family(self.family)
        if not 0 <= self.seed < 2**64 or self.sign not in (1, -1) or self.rank < 1:
            raise InputError(f"a member needs 0 <= seed < 2**64, sign +1 or -1 and rank >= 1, not {self}")

    @property
    def key(self) -> tuple[int | str, ...]:
        """Seed and sign."""
        return (self.seed, self.sign)

    def noise(
        self, name: str, shape: Sequence[int], start: int = 0, count: int | None = None, *, scale: float = 1.0
    ) -> Float32:
        """scale · ε of one parameter, flat, positions start … start+count−1: float32 [count].

        The product is of two float32 numbers, correctly rounded, and a plain array: adding it to the weights gives the
        same bits on every engine, where a fused multiply-add would not.
        """
        epsilon = parameter_noise(self.seed, name, shape, self.family, start, count, rank=self.rank)
        with np.errstate(over="ignore", invalid="ignore"):  # who uses the weights finds that they are not finite
            return np.multiply(epsilon, np.float32(self.sign * scale), out=epsilon)


@dataclass(frozen=True)
class Restricted:
    """A member's direction in some parameters only, 0 in the others.

    Attributes:
        member: whose noise it is.
        parameters: names in the checkpoint of those that move.
    """

    member: Member
    parameters: frozenset[str]

    def __repr__(self) -> str:
        """In one order: that of a set differs from process to process, and saved samples say whose they are."""
        return f"Restricted({self.member}, {sorted(self.parameters)})"

    @property
    def key(self) -> tuple[int | str, ...]:
        """The member's, and what moves."""
        return (*self.member.key, hashed(*sorted(self.parameters)))

    def noise(
        self, name: str, shape: Sequence[int], start: int = 0, count: int | None = None, *, scale: float = 1.0
    ) -> Float32:
        """As `Member.noise`; zeros in a parameter that does not move."""
        if name in self.parameters:
            return self.member.noise(name, shape, start, count, scale=scale)
        return np.zeros(math.prod(shape) - start if count is None else count, np.float32)


@dataclass(frozen=True)
class Combination:
    """Σ coefficient · direction, summed in float32 in the order given: an update of the center (P4) as a direction."""

    terms: tuple[tuple[Direction, float], ...]

    @property
    def key(self) -> tuple[int | str, ...]:
        """Of all terms."""
        return ("sum", hashed(*(part for m, c in self.terms for part in (*m.key, float(c).hex()))))

    def noise(
        self, name: str, shape: Sequence[int], start: int = 0, count: int | None = None, *, scale: float = 1.0
    ) -> Float32:
        """As `Member.noise`; at scale 1 the bits of `Engine.apply_update`."""
        total = np.zeros(math.prod(shape) - start if count is None else count, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for member, coefficient in self.terms:
                if coefficient != 0:  # rewards without spread: nothing to draw
                    total += member.noise(name, shape, start, count, scale=scale * coefficient)
        return total


@dataclass(frozen=True)
class Keyed:
    """A direction whose responses are drawn along streams of another name, that of all who bear it.

    Members of one name draw with the same uniform numbers (common random numbers): where their policies agree, so do
    their responses, and what their rewards differ by is due to the parameters.
    """

    direction: Direction
    name: tuple[int | str, ...]

    @property
    def key(self) -> tuple[int | str, ...]:
        """The name."""
        return self.name

    def noise(
        self, name: str, shape: Sequence[int], start: int = 0, count: int | None = None, *, scale: float = 1.0
    ) -> Float32:
        """The direction's."""
        return self.direction.noise(name, shape, start, count, scale=scale)


def population(seed: int, n: int, family: str = "gaussian", rank: int = 1) -> list[Member]:
    """The n members of the population that one integer seed names; a larger n only appends.

    Members have seeds hashed from (seed, index). In the family "antithetic" members 2k and 2k+1 share a seed and
    differ in sign.

    Raises:
        InputError: n < 1, an odd n for antithetic pairs, unknown family, rank < 1.
    """
    if n < 1:
        raise InputError(f"a population needs at least one member, not {n}")
    if family != "antithetic":
        return [Member(hashed("member", seed, i), 1, family, rank) for i in range(n)]
    if n % 2:
        raise InputError(f"antithetic members come in pairs: their number must be even, not {n}")
    return [Member(hashed("member", seed, i // 2), 1 - 2 * (i % 2), family, rank) for i in range(n)]


def hashed(*key: int | str, bits: int = 64) -> int:
    """An integer of `bits` bits: the BLAKE2b hash of a key of integers and strings, written as a JSON list."""
    text = json.dumps([part if isinstance(part, str) else index(part) for part in key])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=bits // 8).digest(), "little")


_streams = threading.local()


def words(key: int, start: int = 0) -> np.random.Philox:
    """The Philox stream of a 128-bit key from word `start` on (four words a counter step).

    One object a thread, set anew by each call: to make one takes ten times as long, most of a small parameter's noise.
    """
    if not hasattr(_streams, "philox"):
        _streams.philox = np.random.Philox(key=0)
        _streams.state = _streams.philox.state
    stream: np.random.Philox = _streams.philox
    _streams.state["state"]["key"][:] = key & (2**64 - 1), key >> 64
    _streams.state["state"]["counter"][:] = start // 4, 0, 0, 0
    stream.state = _streams.state
    stream.random_raw(start % 4, output=False)
    return stream


def uniforms(*key: int | str, count: int) -> NDArray[np.float64]:
    """The first `count` numbers of the uniform stream that a key names: multiples of 2⁻⁵¹ in [0, 1).

    Two bits below float64's 53, so that u · total < total in float64 for every total: an inverse-CDF draw then
    never falls behind the last category.
    """
    return (words(hashed(*key, bits=128)).random_raw(count) >> np.uint64(13)).astype(np.float64) * 2.0**-51


# Noise of a parameter


def parameter_noise(
    seed: int,
    name: str,
    shape: Sequence[int],
    family: str = "gaussian",
    start: int = 0,
    count: int | None = None,
    *,
    rank: int = 1,
) -> Float32:
    """Noise of one checkpoint parameter: a function of (seed, name, position), with the same bits everywhere.

    Args:
        seed: of the member.
        name: of the parameter in the checkpoint.
        shape: of the parameter; positions count its elements in row-major order.
        family: "antithetic" is "gaussian" here, its sign being the population's matter; "low-rank" is A Bᵀ/√rank
            in two-dimensional parameters and Gaussian in others.
        start, count: the slice of positions wanted; by default to the end.

    Returns:
        float32 [count], equal to the same slice of the whole.

    Raises:
        InputError: unknown family, rank < 1, or a slice outside the parameter.
    """
    check_family(family)
    size = math.prod(shape)
    count = size - start if count is None else count
    if rank < 1 or start < 0 or count < 0 or start + count > size:
        raise InputError(f"no positions {start}..{start + count} of rank {rank} in {name} of {size} elements")
    if family == "rademacher":
        return _signs(hashed(seed, name, "signs", bits=128), start, count)
    if family == "low-rank" and len(shape) == 2:
        return _low_rank(seed, name, (shape[0], shape[1]), start, count, rank)
    return _normals(hashed(seed, name, bits=128), start, count)


def _normals(key: int, start: int, count: int) -> Float32:
    """Normal j is made of the indices 2j and 2j+1: half a word."""
    first, second = quantile_tables()
    out = np.empty(count, np.float32)
    stream = words(key, start // 2)
    skip = start % 2
    chunk = 1 << 16  # even; words, indices and values of a chunk stay in a core's cache
    for low in range(-skip, count, chunk):
        part = out[max(low, 0) : low + chunk]
        here = max(-low, 0)  # the first word of an odd slice holds one normal too many
        raw = stream.random_raw((here + len(part) + 1) // 2)
        pair = raw.astype("<u8", copy=False).view("<u2")[2 * here :][: 2 * len(part)]
        # "clip": no 16-bit index is outside the table, and NumPy is twice as fast without the check.
        first.take(pair[0::2], mode="clip", out=part)
        part += second.take(pair[1::2], mode="clip")
    return out


def _signs(key: int, start: int, count: int) -> Float32:
    """±1 from the bits of the stream, lowest first."""
    skip = start % 64
    raw = words(key, start // 64).random_raw((skip + count + 63) // 64)
    bits = np.unpackbits(raw.astype("<u8", copy=False).view(np.uint8), bitorder="little")[skip:][:count]
    out = bits.astype(np.float32)
    np.multiply(out, np.float32(2), out=out)
    return np.subtract(out, np.float32(1), out=out)


def _low_rank(seed: int, name: str, shape: tuple[int, int], start: int, count: int, rank: int) -> Float32:
    """A Bᵀ/√rank, rank-one terms in a fixed order: a matrix product rounds differently on each machine."""
    columns = shape[1]
    if count == 0:
        return np.empty(0, np.float32)
    first, last = start // columns, (start + count - 1) // columns + 1
    total: Any = np.float32(0)
    for k in range(rank):
        a = _normals(hashed(seed, name, "rows", k, bits=128), first, last - first)
        b = _normals(hashed(seed, name, "columns", k, bits=128), 0, columns)
        total = total + np.multiply.outer(a, b)
    total *= np.float32(1 / math.sqrt(rank))
    return total.reshape(-1)[start - first * columns :][:count]


@cache
def quantile_tables() -> tuple[Float32, Float32]:
    """The two weighted tables of 65,536 normal quantiles: antisymmetric multiples of 2⁻²⁰ below 4, so 22 bits."""
    upper = np.array([NormalDist().inv_cdf((i + 0.5) / 65536) for i in range(32768, 65536)])
    upper[-1] = math.sqrt(32768 - math.fsum(upper[:-1] ** 2))
    quantile = np.concatenate([-upper[::-1], upper])
    golden = (1 + math.sqrt(5)) / 2
    weights = (1 / golden, 1 / math.sqrt(golden))
    first, second = (np.rint(quantile * weight * 2**20) / 2**20 for weight in weights)
    return first.astype(np.float32), second.astype(np.float32)
