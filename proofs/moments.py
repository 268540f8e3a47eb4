"""Exact expectations of polynomials in independent, symmetric noise of unit variance."""

from collections.abc import Callable, Iterable

import sympy as sp

from proofs.series import polynomial

Law = Callable[[int], sp.Expr]
"""The k-th moment of a law, for every k >= 0."""


def gaussian(k: int) -> sp.Expr:
    """Standard normal: (k-1)!! for even k, 0 for odd k."""
    return sp.factorial2(k - 1) if k % 2 == 0 else sp.S.Zero


def rademacher(k: int) -> sp.Expr:
    """-1 or 1 with probability 1/2 each."""
    return sp.Integer(k % 2 == 0)


def symmetric(kurtosis: sp.Expr) -> Law:
    """Any symmetric law of unit variance with fourth moment `kurtosis`, known up to k = 5."""

    def moment(k: int) -> sp.Expr:
        if k > 5:
            raise ValueError(f"moment {k} of a law that is known up to its fourth moment")
        return (sp.S.One, sp.S.Zero, sp.S.One, sp.S.Zero, sp.sympify(kurtosis), sp.S.Zero)[k]

    return moment


def expectation(expression: sp.Expr, noise: Iterable[sp.Symbol], law: Law = gaussian) -> sp.Expr:
    """E of a polynomial in the independent symbols `noise`, each of the given `law`, exactly."""
    terms = sp.Poly(polynomial(expression), *noise).terms()
    return sp.Add(*(weight * sp.Mul(*(law(k) for k in powers)) for powers, weight in terms))
