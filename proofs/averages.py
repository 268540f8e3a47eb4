"""Averages over members and sums over i.i.d. members, for any number N of them: what makes a proof hold for
symbolic N."""

from collections.abc import Callable, Mapping
from typing import Any

import sympy as sp
from sympy.utilities.iterables import multiset_partitions


class Average:
    """A weighted average over the members of a population (or an expectation over one random member).

    All that is used is that it is linear and that the average of 1 is 1. So what is proved of it holds for every
    N and for all weights that sum to 1. `members` are the symbols that differ from member to member; the
    average of a monomial in them is a symbol of its own, unless it is `known`.
    """

    def __init__(self, *members: sp.Symbol, known: Mapping[sp.Expr, Any] | None = None) -> None:
        self.members = members
        self.known = {sp.sympify(monomial): value for monomial, value in (known or {}).items()}

    def __call__(self, polynomial: Any) -> sp.Expr:
        terms = sp.Poly(polynomial, *self.members).terms()
        return sp.Add(*(coefficient * self._of_monomial(powers) for powers, coefficient in terms))

    def _of_monomial(self, powers: tuple[int, ...]) -> sp.Expr:
        monomial = sp.Mul(*(member**power for member, power in zip(self.members, powers, strict=True)))
        if monomial == 1:
            return sp.S.One
        return sp.sympify(self.known.get(monomial, sp.Symbol(f"<{monomial}>", real=True)))


def expected_product_of_sums(count: Any, expectation: Callable[[sp.Expr], sp.Expr], *summands: sp.Expr) -> sp.Expr:
    """E of the product of the sums Σᵢ sₖ(i) over `count` i.i.d. members, exactly, for a symbolic count too.

    The members that the k factors point at either coincide or differ: a set partition of the factors, whose
    blocks are independent, and which count (count - 1) ... (count - blocks + 1) choices of members realise.
    `expectation` gives E of a function of one member.
    """
    total = sp.S.Zero
    for partition in multiset_partitions(list(range(len(summands)))):
        blocks = (expectation(sp.Mul(*(summands[k] for k in block))) for block in partition)
        choices = sp.Mul(*(count - k for k in range(len(partition))))
        total += choices * sp.Mul(*blocks)
    return sp.factor(total)


def expected_sample_variance(count: Any, expectation: Callable[[sp.Expr], sp.Expr], x: sp.Expr) -> sp.Expr:
    """E of the population variance (divisor `count`) of x over `count` i.i.d. members."""
    square = expected_product_of_sums(count, expectation, x**2)
    squared = expected_product_of_sums(count, expectation, x, x)
    return sp.factor(square / count - squared / count**2)
