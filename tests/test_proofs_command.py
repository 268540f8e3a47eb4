"""What the proofs stand on: checks that fail when they should, interval arithmetic that encloses, and the
command."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import mpmath
import pytest
import sympy as sp
from flint import arb, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from proofs.intervals import ball, certified_positive, enclosure
from proofs.moments import expectation, gaussian, rademacher, symmetric
from proofs.series import polynomial, taylor
from proofs.step import (
    ProofError,
    coefficient,
    holds,
    identity,
    limit,
    nonnegative,
    outcomes,
    positive,
    prove,
    step,
    steps,
)

ROOT = Path(__file__).parents[1]
x, y = sp.symbols("x y", real=True)
a, b = sp.symbols("a b", positive=True)
RATIONALS = st.fractions(min_value=-3, max_value=3, max_denominator=64)


def proof_module(*functions) -> ModuleType:
    """A lemma module with these steps."""
    module = ModuleType("lemma")
    for function in functions:
        function.__module__ = "lemma"
        setattr(module, function.__name__, function)
    return module


@step("X1.1", "square", scope="all x", method="identity")
def square(two: int = 2) -> None:
    """(x+1)² = x² + 2x + 1.

    The rest is not part of the claim.
    """
    identity((x + 1) ** 2, x**2 + two * x + 1)


@step("X1.2", "nothing", scope="-", method="-")
def nothing() -> None:
    """Nothing is checked."""


@step("X2.1", "wrong", scope="-", method="-")
def wrong() -> None:
    """1 = 2."""
    identity(1, 2)


# Steps


def test_steps_in_order_with_their_claims():
    module = proof_module(square, nothing, wrong)
    assert [s.statement for s in steps(module)] == ["X1.1", "X1.2", "X2.1"]
    assert steps(module)[0].claim == "(x+1)² = x² + 2x + 1."
    assert steps(module)[0].constants == {"two": 2}


def test_a_step_imported_from_another_module_is_not_counted_twice():
    module = proof_module(square)
    other = ModuleType("other")
    other.square = square
    assert steps(module) and not steps(other)


def test_a_step_that_checks_nothing_fails():
    (outcome,) = outcomes(proof_module(nothing))
    assert outcome.checks == 0 and outcome.failure == "nothing was checked"
    with pytest.raises(ProofError, match=r"X1\.2 nothing: nothing was checked"):
        prove(proof_module(square, nothing))


def test_outcomes_go_on_after_a_failure():
    found = list(outcomes(proof_module(wrong, square)))
    assert [outcome.failure is None for outcome in found] == [False, True]
    assert [outcome.checks for outcome in found] == [0, 1]


def test_a_constant_is_put_in_and_selects_its_steps():
    module = proof_module(square, wrong)
    assert len(prove(module, two=2)) == 1
    with pytest.raises(ProofError, match="refuted at x = "):
        prove(module, two=sp.Rational(201, 100))
    with pytest.raises(TypeError, match="claims no constant named three"):
        prove(module, three=3)


def test_selection_by_statement():
    assert [o.step.statement for o in prove(proof_module(square, wrong), "X1")] == ["X1.1"]


# Checks


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        ((x + y) ** 3, sp.expand((x + y) ** 3)),
        (1 / (a * b), (1 / a) * (1 / b)),
        (1 / a + 1 / b, (a + b) / (a * b)),
        (sp.log(a / b), sp.log(a) - sp.log(b)),
        (sp.cosh(x) ** 2, 1 + sp.sinh(x) ** 2),
        (sp.Matrix([[a, b]]) * sp.Matrix([[b], [a]]), sp.Matrix([[2 * a * b]])),
    ],
)
def test_identity_accepts_what_is_equal_and_refuses_what_is_nearly(lhs, rhs):
    identity(lhs, rhs)
    off = sp.ones(*rhs.shape) / 10**6 if isinstance(rhs, sp.MatrixBase) else sp.Rational(1, 10**6)
    with pytest.raises(ProofError, match="refuted"):
        identity(lhs, rhs + off)


def test_identity_that_cannot_be_decided_fails():
    f = sp.Function("f")
    with pytest.raises(ProofError, match="does not reduce to 0"):
        identity(f(x), f(-x))


def test_coefficient():
    coefficient(sp.exp(x) * sp.log(1 + x), x, 2, sp.Rational(1, 2))
    coefficient((sp.exp(x) * (x - 1) + 1) / x**2, x, 1, sp.Rational(1, 3))
    with pytest.raises(ProofError):
        coefficient(sp.exp(x), x, 3, sp.Rational(1, 5))


def test_limit():
    limit(sp.log(1 + a) / a, a, 0, 1)
    with pytest.raises(ProofError):
        limit(sp.log(1 + a) / a, a, 0, 2)


def test_signs():
    nonnegative((x - y) ** 2)
    nonnegative(x**2 - 2 * x * y + y**2)
    nonnegative(1 / a + a - 2, because=(a - 1) ** 2 / a)
    positive(1 / (1 + a) + a / b)
    for wrong_claim in (x**2 - 3 * x * y + y**2, a - 1, -a):
        with pytest.raises(ProofError, match="refuted"):
            nonnegative(wrong_claim)
    with pytest.raises(ProofError):
        positive((x - y) ** 2)
    with pytest.raises(ProofError):
        nonnegative(1 / a + a - 2, because=(a - 1) ** 2)
    # True, but nothing here shows it: not a proof.
    with pytest.raises(ProofError, match="not established"):
        nonnegative(sp.exp(x) - 1 - x)


@pytest.mark.parametrize("condition", [False, None, 1, "yes", x > 0])
def test_holds_takes_true_alone(condition):
    holds(2 * 2 == 4, "arithmetic")
    with pytest.raises(ProofError):
        holds(condition, "claim")


# Series, polynomials and moments


@pytest.mark.parametrize(
    "expression",
    [
        sp.exp(a * x) / (1 + b * x) ** 3,
        sp.log(1 - a + a * sp.exp(x)),
        sp.sqrt(b + x) * sp.exp(a + x),
        (a + x) ** b,
        x**7,
        sp.sin(x) / x,
        sp.log(a + x) ** 2,
        (2 + x) ** sp.Rational(-3, 2),
    ],
)
def test_taylor_against_derivatives(expression):
    """Against derivatives at 0 (as a limit where the form is singular)."""
    for k, found in enumerate(taylor(expression, x, 4)):
        derivative = sp.limit(sp.diff(expression, x, k), x, 0) / sp.factorial(k)
        assert sp.simplify(found - derivative) == 0


@given(st.lists(st.integers(-3, 3), min_size=5, max_size=5))
def test_polynomial_is_expansion(c):
    expression = (c[0] * x + c[1] * y / a) ** 3 * (c[2] + sp.log(a) * x) - c[3] * (x - y) ** 2 * c[4]
    assert sp.expand(polynomial(expression) - expression) == 0
    assert polynomial(expression - sp.expand(expression)) == 0


def test_moments():
    k = sp.Symbol("k")
    assert [gaussian(n) for n in range(9)] == [1, 0, 1, 0, 3, 0, 15, 0, 105]
    assert expectation(x**4 * y**2 + 3 * x * y + a, [x, y]) == 3 + a
    assert expectation(x**4 * y**2 + x**6, [x, y], rademacher) == 2
    assert sp.expand(expectation((x + y) ** 4, [x, y], symmetric(k)) - (2 * k + 6)) == 0
    with pytest.raises(ValueError, match="fourth moment"):
        expectation(x**6, [x], symmetric(k))


# Interval arithmetic

FORMS = [
    x**2 - 2 * x**3 + sp.Rational(1, 3),
    sp.exp(x) * sp.sin(y) - sp.cos(x * y) / 7,
    sp.log(1 + x**2) - sp.atan(y) ** 3,
    sp.sqrt(1 + x**2) * sp.tanh(y) + sp.pi / (3 + sp.cosh(x)),
    (x**2 + 1) ** -2 + abs(y) * sp.sech(x) - sp.E,
]


@given(st.sampled_from(FORMS), RATIONALS, RATIONALS, st.fractions(0, 1, max_denominator=8))
@settings(max_examples=200, deadline=None)
def test_enclosure_contains_the_value_at_every_point(form, at_x, at_y, width):
    """Against mpmath with 60 digits, at points inside the box."""
    evaluate = enclosure(form, [x, y])
    box = ball(at_x, at_x + width), ball(at_y, at_y + width / 3)
    enclosed = evaluate(*box)
    point = {x: sp.Rational(at_x) + sp.Rational(width) / 2, y: sp.Rational(at_y) + sp.Rational(width) / 4}
    with mpmath.workdps(60):
        value = mpmath.mpf(str(sp.N(form.subs(point), 55)))
        radius = mpmath.mpf("1e-50") * (1 + abs(value))
        assert enclosed.overlaps(arb(str(value), str(radius)))
    if width == 0:
        assert enclosed.rad() < arb("1e-12")


def test_rationals_are_exact():
    third = enclosure(sp.Rational(1, 3) * x, [x])(ball(1))
    assert third.contains(fmpq(1, 3)) and not third.is_exact()
    assert (ball(sp.Rational(1, 10)) - arb(fmpq(1, 10))).contains(0)
    for endpoint in (0.1, 1.0):
        with pytest.raises(TypeError, match="not an exact endpoint"):
            ball(endpoint)


def test_even_powers_of_a_ball_around_zero():
    square_of = enclosure(x**2, [x])(ball(-1, 1))
    assert not square_of < 0 and square_of.upper() < 1.01
    assert enclosure(x**3, [x])(ball(-2, 1)).contains(-8)


def test_certified_positive():
    strict = sp.exp(x) - 1 - x
    margin = sp.Rational(1, 1000)
    assert certified_positive(strict + margin, {x: (-3, 3)}) > 1
    assert certified_positive(lambda u: u.exp() - u, [(-3, 3)]) >= 1
    with pytest.raises(ProofError, match="is refuted at"):
        certified_positive(strict - margin, {x: (-3, 3)})
    # It touches 0 at a point that bisection never meets: there is no proof, and none is claimed.
    with pytest.raises(ProofError, match="not settled by 500 boxes"):
        certified_positive((x - sp.Rational(1, 3)) ** 2, {x: (-1, 1)}, limit=500)
    with pytest.raises(ProofError, match="not settled"):
        certified_positive(1 / x, {x: (0, 1)}, limit=100)


def test_a_margin_far_below_double_precision_is_still_seen():
    """(1 + 1e-20) - 1 is 0 in doubles; a wrong claim of that size is refuted, a right one certified."""
    tiny = sp.Rational(1, 10**20)
    certified_positive(x + tiny - x * (1 - tiny), {x: (0, 1)})
    with pytest.raises(ProofError, match="refuted"):
        certified_positive(x - tiny - x * (1 - tiny), {x: (0, 1)})


def test_bad_boxes():
    with pytest.raises(TypeError, match="no range is given"):
        certified_positive(x + y, {x: (0, 1)})
    with pytest.raises(TypeError, match="names its symbols"):
        certified_positive(x, [(0, 1)])
    with pytest.raises(TypeError, match="no enclosure"):
        certified_positive(sp.Function("f")(x), {x: (0, 1)})


# The command


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "proofs", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_command_proves_a_statement():
    done = run("L1.2", "t5")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "✓ L1.2  Variance of a Gaussian quadratic form" in done.stdout
    assert "identity · any dimension; explicitly 1..4 · claims two = 2 · 4 checks" in done.stdout
    assert "✓ T5" in done.stdout and "L1.3" not in done.stdout
    assert "✗" not in done.stdout and "steps proved" in done.stdout


def test_command_exits_1_when_a_step_fails():
    done = run("L1.3", "--claim", "eighth=0.12625")
    assert done.returncode == 1
    assert "✗ L1.3  The bound by the span alone" in done.stdout
    assert "is refuted at" in done.stdout and "1 step failed, 0 proved" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["L7"], "unknown lemma 'L7'; there are fisher_rate (L1)"),
        (["fisher"], "unknown lemma 'fisher'"),
        (["L1.9"], "no step proves a part of L1.9"),
        (["L1.2", "--claim", "eighth=1/9"], "no step claims a constant named 'eighth'"),
        (["L1.2", "--claim", "half=much"], "not NAME=VALUE"),
        (["L1.2", "--claim", "half=1/0"], "not NAME=VALUE"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_command_exits_2_with_one_line_on_bad_usage(arguments, complaint):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("proofs: ") and complaint in done.stderr
    assert done.stderr.count("\n") == 1
