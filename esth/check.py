"""What was measured, what was predicted, what was guaranteed, and whether it held.

A `Check` of exact numbers is judged up to rounding. A `Check` of estimates is judged by equivalence: it *holds* only if
the whole interval of the deviation lies within the allowed one, is *violated* only if the whole interval lies outside,
and is *undecided* otherwise, with the factor by which the samples would have to grow. A large error bar can so never
make a prediction look right.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from esth._array import Array, floating
from esth.errors import InputError

Z = 2.5758293035489004
"""Half-width of an interval in standard errors: 99 %, since a table holds many checks."""

ROUNDING = 1e-9
"""Relative deviation of exact float64 numbers that counts as rounding."""

UNDERFLOW = 1e-14
"""Absolute deviation of exact numbers (nats or probabilities) that counts as rounding."""


class Verdict(StrEnum):
    """How a check came out."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNDECIDED = "undecided"
    IDENTITY = "identity"
    """True of any numbers: it tests the code, not the theory."""
    VACUOUS = "vacuous"
    """A bound that says nothing here."""


@dataclass(frozen=True)
class Bracket:
    """Two bounds that hold without any limit, as floats or arrays of one shape."""

    lower: Array
    upper: Array

    def margin(self, value: Array) -> Array:
        """Distance to the nearer bound; negative where the value lies outside."""
        xp, value, lower, upper = floating(value, self.lower, self.upper)
        # ∞ − ∞: a value that reaches an infinite bound lies on it.
        below = xp.where(value == lower, 0.0, value - xp.where(value == lower, 0.0, lower))
        above = xp.where(value == upper, 0.0, xp.where(value == upper, 0.0, upper) - value)
        return xp.minimum(below, above)

    def tightness(self, value: Array) -> tuple[Array, Array]:
        """(lower/value, value/upper): 1 is tight, 0 says nothing; 1 where both are equal (0/0 included)."""
        xp, value, lower, upper = floating(value, self.lower, self.upper)
        return _ratio(xp, lower, value), _ratio(xp, value, upper)

    def vacuous(self, floor: float, ceiling: float) -> bool:
        """Whether neither bound excludes anything that lies between the trivial `floor` and `ceiling`."""
        xp, lower, upper = floating(self.lower, self.upper)
        return bool(xp.all(lower <= floor) & xp.all(upper >= ceiling))


def _ratio(xp: Any, a: Array, b: Array) -> Array:
    ordinary = (a != b) & (b != 0) & xp.isfinite(b)
    return xp.where(a == b, 1.0, xp.where(ordinary, a / xp.where(ordinary, b, 1.0), 0.0))


@dataclass(frozen=True)
class Check:
    """One comparison of the theory with numbers.

    Attributes:
        statement: number in docs/theory.md, as "L1.3".
        what: the quantity, in words, with its unit.
        verdict: see `Verdict`.
        measured, measured_se: value and standard error (0: exact).
        predicted, predicted_se: the same for the prediction, if there is one.
        lower, upper: the guaranteed bracket, if there is one.
        allowed: the deviation from `predicted` that the prediction may have, in units of `measured`.
        detectable: the deviation the error bars could have shown, in units of `measured`; 0 if exact.
        samples_factor: times as many samples as were used that would decide it, if undecided.
        detail: anything more, in words.
    """

    statement: str
    what: str
    verdict: Verdict
    measured: float
    measured_se: float = 0.0
    predicted: float | None = None
    predicted_se: float = 0.0
    lower: float | None = None
    upper: float | None = None
    allowed: float | None = None
    detectable: float = 0.0
    samples_factor: float | None = None
    detail: str = ""

    @property
    def exact(self) -> bool:
        """Whether no error bar entered."""
        return self.measured_se == 0 and self.predicted_se == 0

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types; an infinite number becomes the string "inf" or "-inf"."""
        return {k: _jsonable(v) for k, v in asdict(self).items()}


def _jsonable(value: Any) -> Any:
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _standard_error(*errors: float) -> float:
    if any(not e >= 0 for e in errors):
        raise InputError(f"standard errors must be numbers >= 0, not {errors}")
    return math.hypot(*errors)


def _judge(margin: float, se: float, slack: float) -> tuple[Verdict, float | None]:
    """Verdict of `margin` >= 0 known with standard error `se`, and the factor of samples if undecided."""
    if math.isnan(margin):
        raise InputError("a check needs numbers, not NaN")
    if se == 0:
        return (Verdict.HOLDS if margin >= -slack else Verdict.VIOLATED), None
    half = Z * se
    if half <= abs(margin) and math.isfinite(se):
        return (Verdict.HOLDS if margin > 0 else Verdict.VIOLATED), None
    ratio = half / abs(margin) if margin != 0 and math.isfinite(half) else math.inf
    # Not ratio**2, which raises OverflowError.
    return Verdict.UNDECIDED, ratio * ratio


def judge_equal(
    statement: str,
    what: str,
    measured: float,
    predicted: float,
    *,
    measured_se: float = 0.0,
    predicted_se: float = 0.0,
    tolerance: float = ROUNDING,
    detail: str = "",
) -> Check:
    """Judge `measured` = `predicted` up to `tolerance` (relative), the error the prediction itself may have.

    Exact numbers need only rounding; a leading-order prediction needs the size of its remainder, and an estimate needs
    a tolerance that its error bars can resolve: the deviation must be shown to be smaller.
    """
    measured, predicted = float(measured), float(predicted)
    se = _standard_error(measured_se, predicted_se)
    deviation = 0.0 if measured == predicted else abs(measured - predicted)
    # An infinite prediction is met by nothing finite, whatever the relative tolerance.
    allowed = tolerance * abs(predicted) if math.isfinite(predicted) else 0.0
    verdict, factor = _judge(allowed - deviation, se, UNDERFLOW)
    return Check(
        statement, what, verdict, measured, float(measured_se), predicted, float(predicted_se),
        allowed=allowed, detectable=Z * se, samples_factor=factor, detail=detail,
    )  # fmt: skip


def judge_bracket(
    statement: str,
    what: str,
    measured: float,
    bracket: Bracket,
    *,
    measured_se: float = 0.0,
    bracket_se: float = 0.0,
    floor: float = -math.inf,
    ceiling: float = math.inf,
    detail: str = "",
) -> Check:
    """Judge lower <= `measured` <= upper; vacuous if the bracket excludes nothing between `floor` and `ceiling`."""
    measured, lower, upper = float(measured), float(bracket.lower), float(bracket.upper)
    bracket = Bracket(lower, upper)
    se = _standard_error(measured_se, bracket_se)
    crossed = lower if measured < lower else upper
    scale = max([abs(x) for x in (measured, crossed) if math.isfinite(x)], default=0.0)
    verdict, factor = _judge(float(bracket.margin(measured)), se, ROUNDING * scale + UNDERFLOW)
    if verdict is not Verdict.VIOLATED and bracket.vacuous(floor, ceiling):
        verdict, factor = Verdict.VACUOUS, None
    return Check(
        statement, what, verdict, measured, float(measured_se), lower=lower, upper=upper,
        detectable=Z * se, samples_factor=factor, detail=detail,
    )  # fmt: skip


def as_identity(check: Check) -> Check:
    """The same check of a relation that any numbers satisfy: `identity` where it holds."""
    return replace(check, verdict=Verdict.IDENTITY) if check.verdict is Verdict.HOLDS else check


def as_vacuous(check: Check, why: str = "") -> Check:
    """The same check as one that says nothing here, `why` added to its detail."""
    detail = "; ".join(filter(None, (check.detail, why)))
    return replace(check, verdict=Verdict.VACUOUS, samples_factor=None, detail=detail)


def estimated(check: Check) -> Check:
    """The same check of sampled numbers: where none varied it is vacuous, an error of 0 being no certainty then."""
    scale = max(abs(check.measured), abs(check.predicted or 0.0))
    varied = math.hypot(check.measured_se, check.predicted_se) > 1e-12 * scale
    if varied or check.verdict in (Verdict.IDENTITY, Verdict.VACUOUS):
        return check
    return as_vacuous(check, "no sample differed from another: nothing to compare")


def judge_identity(statement: str, what: str, left: float, right: float, *, detail: str = "") -> Check:
    """Compare the two sides of a relation that any numbers satisfy: `identity` if equal up to rounding."""
    return as_identity(judge_equal(statement, what, left, right, detail=detail))


def table(checks: Iterable[Check], title: str = "Checks") -> Any:
    """A rich table of checks, one a row; print it with `rich.console.Console`."""
    from rich.table import Table

    out = Table(
        title=rich_safe(title), title_justify="left", caption_justify="left",
        caption="± is one standard error, of the deviation that is judged where two estimates are compared; "
        "verdicts go by its 99 % interval.",
    )  # fmt: skip
    for column in ("", "quantity", "measured", "predicted", "bracket", "verdict", "note"):
        out.add_column(column, justify="right" if column in ("measured", "predicted") else "left")
    for c in checks:
        bracket = "" if c.lower is None or c.upper is None else f"[{c.lower:.4g}, {c.upper:.4g}]"
        note = c.detail
        if c.samples_factor is not None:
            note = f"needs {c.samples_factor:.3g}× the samples" + (f"; {note}" if note else "")
        style = {Verdict.HOLDS: "green", Verdict.VIOLATED: "bold red", Verdict.UNDECIDED: "yellow"}.get(
            c.verdict, "dim"
        )
        out.add_row(
            rich_safe(c.statement), rich_safe(c.what), number(c.measured, c.measured_se),
            "" if c.predicted is None else number(c.predicted, c.predicted_se),
            rich_safe(bracket), f"[{style}]{c.verdict}[/]", rich_safe(note),
        )  # fmt: skip
    return out


def rich_safe(text: str) -> str:
    """Text whose square brackets rich prints instead of reading as markup."""
    from rich.markup import escape

    return escape(text)


def signed(interval: Sequence[Any]) -> str:
    """A difference with its interval: +0.064 [+0.038, +0.091]."""
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval)


def number(value: float, se: float = 0.0) -> str:
    """`value ± se`, or the value and "exact" left unsaid when it has no error."""
    return f"{value:.5g}" if se == 0 else f"{value:.4g} ± {se:.1g}"
