"""Verdicts: brackets of exact numbers, equivalence of estimates, and what the tables and JSON show."""

import json
import math

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from esth import check
from esth.check import (
    ROUNDING,
    Bracket,
    Check,
    Verdict,
    Z,
    estimated,
    judge_bracket,
    judge_equal,
    judge_identity,
    number,
    table,
)
from esth.errors import InputError
from tests.populations import approx

HOLDS, VIOLATED, UNDECIDED, IDENTITY, VACUOUS = Verdict
INF = math.inf


def equal(measured, predicted, **options):
    return judge_equal("L1.1", "JS, nats", measured, predicted, **options)


def within(measured, lower, upper, **options):
    return judge_bracket("L1.3", "JS, nats", measured, Bracket(lower, upper), **options)


# Brackets


def test_margin_is_the_distance_to_the_nearer_bound():
    assert Bracket(1.0, 4.0).margin(2.0) == 1.0
    assert Bracket(1.0, 4.0).margin([3.5, 0.0, 6.0, 1.0]).tolist() == [0.5, -1.0, -2.0, 0.0]
    assert Bracket(np.array([0.0, 1.0]), np.array([1.0, 2.0])).margin(1.0).tolist() == [0.0, 0.0]
    assert Bracket(-INF, INF).margin([0.0, INF, -INF]).tolist() == [INF, 0.0, 0.0]
    assert Bracket(0.0, INF).margin([3.0, INF]).tolist() == [3.0, 0.0]
    assert Bracket(0.0, 1.0).margin(INF) == -INF


def test_tightness():
    low, high = Bracket(1.0, 4.0).tightness([2.0, 4.0, 1.0])
    assert low.tolist() == [0.5, 0.25, 1.0]
    assert high.tolist() == [0.5, 1.0, 0.25]
    assert [float(x) for x in Bracket(0.0, 0.0).tightness(0.0)] == [1.0, 1.0]
    assert [float(x) for x in Bracket(0.0, INF).tightness(5.0)] == [0.0, 0.0]
    assert [float(x) for x in Bracket(-3.0, INF).tightness(INF)] == [0.0, 1.0]
    assert [float(x) for x in Bracket(0.5, 1.0).tightness(0.0)] == [0.0, 0.0]


def test_vacuous_brackets_exclude_nothing():
    assert Bracket(-1.0, 3.0).vacuous(0.0, 2.0)
    assert Bracket(0.0, 2.0).vacuous(0.0, 2.0)
    assert not Bracket(0.1, 3.0).vacuous(0.0, 2.0)
    assert not Bracket(-1.0, 1.9).vacuous(0.0, 2.0)
    assert not Bracket(np.array([-1.0, 0.5]), 3.0).vacuous(0.0, 2.0)
    assert not Bracket(-1.0, np.array([1.5, 3.0])).vacuous(0.0, 2.0)


# Exact numbers


@pytest.mark.parametrize(
    ("measured", "lower", "upper", "verdict"),
    [
        (0.5, 0.0, 1.0, HOLDS),
        (1.0, 0.0, 1.0, HOLDS),
        (1.0 + 0.998e-9, 0.0, 1.0, HOLDS),
        (1.0 + 1.002e-9, 0.0, 1.0, VIOLATED),
        (-0.998e-14, 0.0, 1.0, HOLDS),
        (-1.002e-14, 0.0, 1.0, VIOLATED),
        (1e-3 * (1 - 1e-8), 1e-3, 1.0, VIOLATED),
        (0.1, 0.1005, 1e6, VIOLATED),
        (0.1, -1e6, 0.0995, VIOLATED),
        (0.5, 0.6, 0.4, VIOLATED),
        (INF, 0.0, INF, HOLDS),
        (INF, 0.0, 1.0, VIOLATED),
        (0.0, -INF, INF, VACUOUS),
    ],
)
def test_exact_values_are_judged_up_to_the_rounding_of_what_they_are_compared_with(measured, lower, upper, verdict):
    judged = within(measured, lower, upper)
    assert judged.verdict is verdict
    assert judged.exact and judged.detectable == 0 and judged.samples_factor is None
    assert (judged.measured, judged.lower, judged.upper) == (measured, lower, upper)


@pytest.mark.parametrize(
    ("measured", "predicted", "tolerance", "verdict"),
    [
        (1.0, 1.0 + 0.998e-9, ROUNDING, HOLDS),
        (1.0, 1.0 + 1.002e-9, ROUNDING, VIOLATED),
        (1.04, 1.0, 0.05, HOLDS),
        (1.06, 1.0, 0.05, VIOLATED),
        (-1.04, -1.0, 0.05, HOLDS),
        (-1.0, 1.0, 0.05, VIOLATED),
        (0.0, 0.0, ROUNDING, HOLDS),
        (0.998e-14, 0.0, ROUNDING, HOLDS),
        (1.002e-14, 0.0, ROUNDING, VIOLATED),
        (INF, INF, ROUNDING, HOLDS),
        (1.0, INF, ROUNDING, VIOLATED),
        (1.0, INF, 0.0, VIOLATED),
        (INF, 1.0, 0.1, VIOLATED),
        (INF, -INF, 0.1, VIOLATED),
    ],
)
def test_exact_equality(measured, predicted, tolerance, verdict):
    judged = equal(measured, predicted, tolerance=tolerance)
    assert judged.verdict is verdict
    assert (judged.measured, judged.predicted, judged.lower) == (measured, predicted, None)


def test_an_identity_tests_the_code_only():
    assert judge_identity("L3.1", "Price", 0.25, 0.25 + 1e-17).verdict is IDENTITY
    assert judge_identity("L3.1", "Price", 0.25, 0.26).verdict is VIOLATED
    assert judge_identity("L2.3", "inside", 0.25, INF).verdict is VIOLATED
    assert judge_identity("L2.3", "inside", INF, INF).verdict is IDENTITY


def test_a_bracket_that_says_nothing_is_vacuous_unless_it_is_broken():
    trivial = {"floor": 0.0, "ceiling": 1.0}
    assert within(0.5, -1.0, 2.0, **trivial).verdict is VACUOUS
    assert within(0.5, 0.0, 1.0, measured_se=10.0, **trivial).verdict is VACUOUS
    assert within(3.0, -1.0, 2.0, **trivial).verdict is VIOLATED
    assert within(0.5, 0.1, 2.0, **trivial).verdict is HOLDS


def test_nan_and_negative_errors_are_refused():
    for call in (
        lambda: equal(math.nan, 1.0),
        lambda: equal(1.0, math.nan),
        lambda: within(math.nan, 0.0, 1.0),
        lambda: within(0.5, math.nan, 1.0),
        lambda: equal(1.0, 1.0, measured_se=-0.1),
        lambda: equal(1.0, 1.0, predicted_se=math.nan),
        lambda: within(0.5, 0.0, 1.0, bracket_se=-1.0),
    ):
        with pytest.raises(InputError, match=r"NaN|standard errors"):
            call()


# Estimates


def test_the_interval_is_of_99_percent():
    assert approx(scipy.stats.norm.ppf(0.995), rel=1e-15) == Z


@pytest.mark.parametrize(
    ("measured", "se", "verdict"),
    [
        (1.00, 0.01, HOLDS),
        (1.07, 0.01, HOLDS),
        (1.09, 0.01, UNDECIDED),
        (1.11, 0.01, UNDECIDED),
        (1.13, 0.01, VIOLATED),
        (0.87, 0.01, VIOLATED),
        (1.00, 0.04, UNDECIDED),
        (1.00, 1000.0, UNDECIDED),
        (9.00, 1000.0, UNDECIDED),
    ],
)
def test_estimates_are_judged_by_equivalence(measured, se, verdict):
    """Within 10 % of 1: a large error bar makes nothing look right."""
    assert equal(measured, 1.0, measured_se=se, tolerance=0.1).verdict is verdict
    assert equal(measured, 1.0, predicted_se=se, tolerance=0.1).verdict is verdict
    assert within(measured, 0.9, 1.1, measured_se=se).verdict is verdict
    assert within(measured, 0.9, 1.1, bracket_se=se).verdict is verdict


def test_both_errors_add_in_quadrature():
    judged = equal(1.0, 1.0, measured_se=0.03, predicted_se=0.04, tolerance=0.1)
    assert judged.detectable == approx(Z * 0.05, rel=1e-15)
    assert not judged.exact


@pytest.mark.parametrize("measured", [1.0, 1.05, 1.099, 1.1005, 1.3, -2.0])
@pytest.mark.parametrize("se", [0.05, 0.3, 50.0, 1e200])
def test_that_many_times_the_samples_decide(measured, se):
    """The standard error falls as 1/√samples, the estimate staying where it is."""
    judged = equal(measured, 1.0, measured_se=se, tolerance=0.1)
    if judged.verdict is not UNDECIDED:
        assert judged.samples_factor is None
        return
    factor = judged.samples_factor
    assert factor >= 1
    if math.isfinite(factor):
        enough, too_few = (
            equal(measured, 1.0, measured_se=se / math.sqrt(factor * c), tolerance=0.1) for c in (1.01, 0.99)
        )
        assert enough.verdict is (HOLDS if abs(measured - 1) < 0.1 else VIOLATED)
        assert too_few.verdict is UNDECIDED


@pytest.mark.parametrize(("measured", "se"), [(0.0, 1.0), (1e-200, 1.0), (0.5, INF), (INF, INF)])
def test_what_no_number_of_samples_decides(measured, se):
    judged = within(measured, 0.0, INF, measured_se=se, floor=-1.0)
    assert judged.verdict is UNDECIDED and judged.samples_factor == INF


@pytest.mark.parametrize(
    ("deviation", "holds", "violated"),
    [(0.0, (0.98, 1.0), (0.0, 0.0)), (0.1, (0.0, 0.01), (0.0, 0.01)), (0.2, (0.0, 0.0), (0.98, 1.0))],
)
def test_rates_of_wrong_verdicts(deviation, holds, violated):
    """Estimates with se 0.02 of a quantity `deviation` from its prediction, 10 % allowed.

    Well inside it nearly always holds, well outside it is nearly always violated, and on the very edge either verdict
    comes in at most 0.5 % of the cases (one tail of the 99 % interval).
    """
    rng = np.random.default_rng(3)
    draws = 1.0 + deviation + 0.02 * rng.standard_normal(4000)
    verdicts = [equal(x, 1.0, measured_se=0.02, tolerance=0.1).verdict for x in draws]
    assert holds[0] <= verdicts.count(HOLDS) / 4000 <= holds[1]
    assert violated[0] <= verdicts.count(VIOLATED) / 4000 <= violated[1]


# Output


def checks():
    return [
        equal(1.0, 1.02, tolerance=0.05, detail="one [note]"),
        within(0.5, 0.1, INF, measured_se=1.0),
        within(3.0, 0.0, 1.0),
        judge_identity("L3.1", "gain", 0.25, 0.25),
        judge_bracket("P4.1", "[p(θ⁺) − p] − [p̄_w − p̄]", 0.0, Bracket(-2.0, 2.0), floor=-1.0, ceiling=1.0),
        within(0.0, 0.0, INF, measured_se=1.0, floor=-1.0),
    ]


def test_checks_survive_json():
    written = json.loads(json.dumps([c.to_dict() for c in checks()], allow_nan=False))
    assert [w["verdict"] for w in written] == ["holds", "undecided", "violated", "identity", "vacuous", "undecided"]
    assert written[1]["upper"] == "inf" and written[5]["samples_factor"] == "inf"
    for record, original in zip(written, checks(), strict=True):
        fields = {k: float(v) if v in ("inf", "-inf") else v for k, v in record.items()}
        assert Check(**{**fields, "verdict": Verdict(fields["verdict"])}) == original


def test_numpy_numbers_survive_json():
    judged = equal(np.float64(1), np.float32(1), measured_se=np.float32(0.1), predicted_se=np.float32(0.1))
    bracketed = within(
        np.array(0.5), np.float32(0), np.array(1.0), measured_se=np.float64(0.1), bracket_se=np.float32(0)
    )
    json.dumps([judged.to_dict(), bracketed.to_dict()], allow_nan=False)


def test_the_table_shows_every_number_and_no_markup():
    console = Console(width=220, color_system=None)
    with console.capture() as capture:
        console.print(table(checks(), title="Checks [toy]"))
    text = capture.get()
    for part in (
        "Checks [toy]",
        "L1.1",
        "JS, nats",
        "1.02",
        "one [note]",
        "0.5 ± 1",
        "[0.1, inf]",
        "violated",
        "identity",
        "[p(θ⁺) − p] − [p̄_w − p̄]",
        "needs inf× the samples",
        f"needs {(Z / 0.4) ** 2:.3g}× the samples",
    ):
        assert part in text, part


def test_numbers():
    assert number(1 / 3) == "0.33333"
    assert number(0.12345, 0.0123) == "0.1235 ± 0.01"
    assert number(INF) == "inf"


# Wrong constants are noticed

MUTANTS = {"Z": 2.6, "ROUNDING": 1.01e-9, "UNDERFLOW": 1.01e-14}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    monkeypatch.setattr(check, name, MUTANTS[name])
    with pytest.raises(AssertionError):
        test_exact_values_are_judged_up_to_the_rounding_of_what_they_are_compared_with(
            1.0 + 1.002e-9, 0.0, 1.0, VIOLATED
        )
        test_exact_values_are_judged_up_to_the_rounding_of_what_they_are_compared_with(-1.002e-14, 0.0, 1.0, VIOLATED)
        test_both_errors_add_in_quadrature()


def test_sampled_numbers_that_do_not_vary_decide_nothing():
    for measured in (1.0, 2.0):  # would hold, would be violated
        check = judge_equal("L1.1", "JS", measured, 1.0, measured_se=measured * 1e-15, tolerance=0.1)
        assert check.verdict is not Verdict.VACUOUS and estimated(check).verdict is Verdict.VACUOUS
    varied = judge_equal("L1.1", "JS", 1.0, 1.0, measured_se=1e-3, tolerance=0.1)
    assert estimated(varied) == varied
    identity = judge_identity("L1.1", "JS", 1.0, 1.0)
    assert estimated(identity) == identity
