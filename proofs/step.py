"""What a proof is made of: steps, and the checks that a step must pass.

A lemma module holds functions decorated with `@step`, in the order of the derivation. A step takes the
constants it claims as keyword parameters, so that a test can put a wrong one in; it returns nothing and
raises `ProofError` at the first check that fails. Checks are counted: a step that checked nothing has proved
nothing and fails.

A check passes only when SymPy reduces it to a certainty: a difference to the number 0, a sign to a known one.
Sampling is used the other way round alone: before SymPy works on a claim, a few exact points try to refute
it.
"""

import inspect
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import sympy as sp

from proofs.series import polynomial, taylor

Constant = sp.Expr | int
"""A constant that a step claims: exact, so that a wrong one is not excused by rounding."""


class ProofError(AssertionError):
    """A check failed: the claim is refuted, or could not be established."""


@dataclass(frozen=True)
class Step:
    """One step of a derivation, as its module declares it."""

    statement: str  # "L1.3": the statement of docs/theory.md it belongs to
    title: str
    scope: str  # the N, V or noise it holds for: "symbolic N", "N = 2..5"
    method: str  # "identity", "series", "sign", "Arb boxes"
    run: Callable[..., None]

    @property
    def claim(self) -> str:
        """What is proved: the first paragraph of the function's docstring, on one line."""
        return " ".join((inspect.getdoc(self.run) or "").split("\n\n")[0].split())

    @property
    def constants(self) -> dict[str, Any]:
        """The constants the step claims, by name, with their right values."""
        return {name: parameter.default for name, parameter in inspect.signature(self.run).parameters.items()}


@dataclass(frozen=True)
class Outcome:
    """A step that has been run. `failure` is None when it is proved; `seconds` is wall time."""

    step: Step
    checks: int
    seconds: float
    failure: str | None


def step(statement: str, title: str, *, scope: str, method: str) -> Callable:
    """Declare the function below as a step of the proof of `statement`."""

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        function.proof_step = Step(statement, title, scope, method, function)  # type: ignore[attr-defined]
        return function

    return declare


def steps(module: ModuleType) -> list[Step]:
    """The steps of a lemma module, in the order in which it defines them."""
    return [
        value.proof_step
        for value in vars(module).values()
        if hasattr(value, "proof_step") and value.__module__ == module.__name__
    ]


def select(module: ModuleType, statement: str) -> list[Step]:
    """The steps of `module` whose number starts with `statement`: all of them for ""."""
    return [s for s in steps(module) if s.statement.startswith(statement)]


_checks = 0


def checked() -> None:
    """Count one check that passed. Every helper that can raise `ProofError` ends with it."""
    global _checks
    _checks += 1


def outcomes(module: ModuleType, statement: str = "", **constants: Any) -> Iterator[Outcome]:
    """Run the selected steps of `module` one by one, whether or not they fail.

    With `constants`, only the steps that claim one of them are run, with that value in place of their own.
    """
    selected = select(module, statement)
    if unknown := set(constants) - {name for s in selected for name in s.constants}:
        raise TypeError(f"{module.__name__} claims no constant named {', '.join(sorted(unknown))}")
    for s in selected:
        replaced = {name: value for name, value in constants.items() if name in s.constants}
        if replaced or not constants:
            yield _run(s, replaced)


def _run(s: Step, constants: dict[str, Any]) -> Outcome:
    before, start, failure = _checks, time.perf_counter(), None
    try:
        s.run(**constants)
        if _checks == before:
            failure = "nothing was checked"
    except ProofError as error:
        failure = str(error)
    return Outcome(s, _checks - before, time.perf_counter() - start, failure)


def prove(module: ModuleType, statement: str = "", **constants: Any) -> list[Outcome]:
    """Run a proof (see `outcomes`) and return its outcomes.

    Raises:
        ProofError: at the first step that fails.
    """
    proved = []
    for outcome in outcomes(module, statement, **constants):
        if outcome.failure is not None:
            raise ProofError(f"{outcome.step.statement} {outcome.step.title}: {outcome.failure}")
        proved.append(outcome)
    return proved


def identity(lhs: Any, rhs: Any, what: str = "") -> None:
    """`lhs` equals `rhs`: scalars or matrices whose difference SymPy reduces to exactly 0."""
    difference = sp.sympify(lhs) - sp.sympify(rhs)
    for entry in difference if isinstance(difference, sp.MatrixBase) else [difference]:
        # In this order: most true identities are polynomial ones, and a false one is refuted sooner than reduced.
        if polynomial(entry) != 0:
            _refute(entry, lambda value: abs(value) > 1e-12, what or f"{_short(lhs)} = {_short(rhs)}")
            _reduce(entry, what or "identity")
    checked()


def coefficient(expression: Any, x: sp.Symbol, order: int, claimed: Any, what: str = "") -> None:
    """The coefficient of x^order in the expansion of `expression` at x = 0 equals `claimed`."""
    found = taylor(sp.sympify(expression), x, order)[order]
    identity(found, claimed, what or f"coefficient of {x}^{order}")


def limit(expression: Any, x: sp.Symbol, point: Any, claimed: Any, what: str = "") -> None:
    """`expression` tends to `claimed` as x tends to `point` (from above)."""
    identity(sp.limit(expression, x, point, "+"), claimed, what or f"limit at {x} -> {point}")


def nonnegative(expression: Any, what: str = "", *, because: Any = None) -> None:
    """`expression` >= 0 wherever its symbols satisfy their assumptions.

    SymPy must see it: in the expression itself, factored, or with numerator expanded into nonnegative terms.
    `because`: an equal form in which the sign shows (a sum of squares, say); the equality is checked too.
    """
    _signed(expression, "is_nonnegative", lambda value: value < -1e-12, because, what or "nonnegative")


def positive(expression: Any, what: str = "", *, because: Any = None) -> None:
    """`expression` > 0 wherever its symbols satisfy their assumptions; see `nonnegative`."""
    _signed(expression, "is_positive", lambda value: value <= 0, because, what or "positive")


def holds(condition: Any, what: str) -> None:
    """An exact decision (rational arithmetic, finite combinatorics) came out true."""
    if condition is not True and condition is not sp.true:
        raise ProofError(f"{what}: {condition}")
    checked()


def _signed(expression: Any, sign: str, refutes: Callable, because: Any, what: str) -> None:
    expression = sp.sympify(expression)
    _refute(expression, refutes, what)
    if because is not None:
        identity(expression, because, f"{what}: the form that shows it")
        expression = sp.sympify(because)
    if not any(getattr(form, sign) for form in _forms(expression)):
        raise ProofError(f"{what}: the sign of {_short(expression)} is not established")
    checked()


def _forms(expression: sp.Expr) -> Iterator[sp.Expr]:
    yield expression
    yield sp.factor(sp.together(expression))
    numerator, denominator = sp.fraction(sp.together(expression))
    yield sp.expand(numerator) / sp.factor(denominator)


def _reduce(difference: sp.Expr, what: str) -> None:
    reductions = (
        lambda e: polynomial(sp.fraction(sp.together(e))[0]),
        lambda e: polynomial(sp.expand_log(e)),
        sp.simplify,
        lambda e: sp.simplify(sp.expand(sp.expand_log(e))),
    )
    if not any(reduction(difference) == 0 for reduction in reductions):
        raise ProofError(f"{what}: the difference does not reduce to 0 but to {_short(difference)}")


def _refute(expression: sp.Expr, refutes: Callable[[float], bool], what: str) -> None:
    """Raise if `expression` has a refuting value at one of three exact points that its symbols allow."""
    rng = random.Random(0)
    symbols = sorted(expression.free_symbols, key=str)
    for _ in range(3):
        point = {symbol: _draw(symbol, rng) for symbol in symbols}
        try:
            value = sp.N(expression.xreplace(point), 30)
        except (ArithmeticError, ValueError, TypeError, NotImplementedError):
            return
        if value.is_number and value.is_real and value.is_finite and refutes(value):
            at = ", ".join(f"{symbol} = {number}" for symbol, number in point.items())
            raise ProofError(f"{what} is refuted{' at ' + at if at else ''}: off by {sp.N(value, 6)}")


def _draw(symbol: sp.Symbol, rng: random.Random) -> sp.Rational:
    """A value the symbol may take; within (0, 1) where it can, so that probabilities are probabilities."""
    if symbol.is_integer:
        return sp.Integer(rng.randint(2, 6))
    value = sp.Rational(rng.randint(1, 96), 97)
    return value if symbol.is_nonnegative else value * rng.choice((-2, 1))


def _short(expression: Any, width: int = 160) -> str:
    text = str(expression)
    return text if len(text) <= width else text[: width - 3] + "..."
