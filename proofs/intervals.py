"""Inequalities certified over whole boxes by interval arithmetic with Arb balls (python-flint).

Every number that enters is exact (an integer, a rational, an Arb constant), every operation encloses its true
result, and a box counts as settled only when the enclosing ball excludes 0: rounding can lose a proof but
never make one.

A function that touches 0 inside the box can't be settled this way; a step then states the analytic form that
removes the contact (a quotient by the vanishing factor, say) and certifies that form.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import flint
import sympy as sp
from flint import arb, fmpq

from proofs.step import ProofError, checked

Side = tuple[Any, Any]
"""Exact endpoints of an interval: int, Fraction or SymPy rational."""

FUNCTIONS: dict[Any, Callable[[arb], arb]] = {
    sp.exp: arb.exp,
    sp.log: arb.log,
    sp.sqrt: arb.sqrt,
    sp.sinh: arb.sinh,
    sp.cosh: arb.cosh,
    sp.tanh: arb.tanh,
    sp.coth: arb.coth,
    sp.sech: arb.sech,
    sp.sin: arb.sin,
    sp.cos: arb.cos,
    sp.atan: arb.atan,
    sp.Abs: abs,
}


def certified_positive(
    claim: Callable[..., arb] | sp.Expr,
    box: Mapping[sp.Symbol, Side] | Sequence[Side],
    *,
    what: str = "positive on the box",
    precision: int = 96,
    limit: int = 100_000,
) -> int:
    """Certify claim > 0 on the whole closed `box`; returns the number of sub-boxes that it took.

    `claim` is a SymPy expression, with `box` from each of its symbols to its range; it is then evaluated in
    mean-value form as well, whose excess width is quadratic in the size of a sub-box. Or it is a function of
    balls, with `box` a sequence of ranges. Sub-boxes are bisected along their longest side (relative to the
    box) until every one is settled.

    Raises:
        ProofError: a point where the claim fails for certain was found, or `limit` boxes did not settle it.
    """
    sides = list(box.values()) if isinstance(box, Mapping) else list(box)
    if isinstance(claim, sp.Expr):
        if not isinstance(box, Mapping):
            raise TypeError("an expression needs a box that names its symbols")
        claim = _mean_value_form(claim, list(box))
    return _bisect(claim, [(_rational(low), _rational(high)) for low, high in sides], what, precision, limit)


def ball(low: Any, high: Any | None = None) -> arb:
    """A ball that contains the interval [low, high], or the exact number `low`."""
    lower = arb(_flint(_rational(low)))
    return lower if high is None else lower.union(arb(_flint(_rational(high))))


def enclosure(expression: sp.Expr, symbols: Sequence[sp.Symbol]) -> Callable[..., arb]:
    """`expression` as a function of one ball a symbol, whose value contains the expression's exact range."""
    position = {symbol: k for k, symbol in enumerate(symbols)}
    if unknown := expression.free_symbols - set(symbols):
        raise TypeError(f"no range is given for {sorted(map(str, unknown))}")

    replacements, (reduced,) = sp.cse(expression)
    for name, _ in replacements:
        position[name] = len(position)
    intermediate = [_compile(value, position) for _, value in replacements]
    final = _compile(reduced, position)

    def evaluate(*balls: arb) -> arb:
        values = list(balls)
        for compute in intermediate:
            values.append(compute(values))
        return final(values)

    return evaluate


def _compile(e: sp.Expr, position: Mapping[sp.Symbol, int]) -> Callable[[list[arb]], arb]:
    if e.is_Symbol:
        k = position[e]
        return lambda values: values[k]
    if e.is_Rational:
        # Rounded at each call: the precision of the call, and a ball that contains the exact number.
        number = _flint(_rational(e))
        return lambda values: arb(number)
    if e is sp.pi:
        return lambda values: arb.pi()
    if e is sp.E:
        return lambda values: arb.const_e()
    parts = [_compile(argument, position) for argument in e.args]
    if e.is_Add:
        return lambda values: sum((part(values) for part in parts[1:]), parts[0](values))
    if e.is_Mul:

        def product(values: list[arb]) -> arb:
            result = parts[0](values)
            for part in parts[1:]:
                result *= part(values)
            return result

        return product
    if e.is_Pow:
        base, exponent = parts
        if e.exp.is_Integer:
            n = int(e.exp)
            return lambda values: _integer_power(base(values), n)
        if e.exp == sp.Rational(1, 2):
            return lambda values: base(values).sqrt()
        return lambda values: base(values) ** exponent(values)
    if e.func in FUNCTIONS:
        function, (part,) = FUNCTIONS[e.func], parts
        return lambda values: function(part(values))
    raise TypeError(f"no enclosure for {e.func}")


def _integer_power(base: arb, n: int) -> arb:
    """base^n from the endpoints, as tight as can be; arb's own power is undefined on a ball around 0."""
    if n < 0:
        return 1 / _integer_power(base, -n)
    low, high = (base.lower(), base.upper()) if n % 2 else (base.abs_lower(), base.abs_upper())
    return _exact_power(low, n).union(_exact_power(high, n))


def _exact_power(base: arb, n: int) -> arb:
    power = arb(1)
    for bit in bin(n)[2:]:
        power *= power
        if bit == "1":
            power *= base
    return power


def _mean_value_form(expression: sp.Expr, symbols: list[sp.Symbol]) -> Callable[..., arb]:
    value = enclosure(expression, symbols)
    slopes = [enclosure(sp.diff(expression, symbol), symbols) for symbol in symbols]

    def evaluate(*balls: arb) -> arb:
        direct = value(*balls)
        if direct > 0 or not direct.is_finite():
            return direct
        middles = [arb(b.mid()) for b in balls]
        centred = value(*middles)
        for slope, whole, middle in zip(slopes, balls, middles, strict=True):
            centred += slope(*balls) * (whole - middle)
        return direct.intersection(centred) if centred.is_finite() else direct

    return evaluate


def _bisect(claim: Callable[..., arb], box: list[tuple], what: str, precision: int, limit: int) -> int:
    sizes = [high - low or Fraction(1) for low, high in box]
    pending, settled, seen = [box], 0, 0
    with flint.ctx.workprec(precision):
        while pending:
            part = pending.pop()
            seen += 1
            value = claim(*(ball(low, high) for low, high in part))
            if value > 0:
                settled += 1
                continue
            middle = [(low + high) / 2 for low, high in part]
            if claim(*(ball(m) for m in middle)) <= 0:
                at = ", ".join(f"{float(m):.6g}" for m in middle)
                raise ProofError(f"{what} is refuted at ({at})")
            if seen + len(pending) >= limit:
                where = " x ".join(f"[{float(low):.6g}, {float(high):.6g}]" for low, high in part)
                raise ProofError(f"{what}: not settled by {limit} boxes, near {where}")
            k = max(range(len(part)), key=lambda i: (part[i][1] - part[i][0]) / sizes[i])
            low, high = part[k]
            pending.append([*part[:k], (middle[k], high), *part[k + 1 :]])
            pending.append([*part[:k], (low, middle[k]), *part[k + 1 :]])
    checked()
    return settled


def _rational(number: Any) -> Fraction:
    if isinstance(number, float):
        raise TypeError("a float is not an exact endpoint: give an int, a Fraction or a SymPy rational")
    number = sp.Rational(number)
    return Fraction(int(number.p), int(number.q))


def _flint(number: Fraction) -> fmpq:
    return fmpq(number.numerator, number.denominator)
