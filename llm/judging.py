"""What the studies of verified responses share: rewards, verdicts on estimates of them, columns for their figures."""

from typing import Any

import numpy as np

from esth.check import Bracket, Check, Verdict, as_vacuous, judge_bracket, judge_equal
from esth.errors import InputError
from esth.estimators.intervals import Estimate
from esth.sample import Floats, PopulationSample

NOTHING = "every response came out alike: nothing to compare"


def rewards(sample: PopulationSample) -> Floats:
    """[prompts, members, tries] 0 or 1.

    Raises:
        InputError: the task has no verifier.
    """
    if not sample.verified:
        raise InputError("this study needs verified responses: the task has no answers to verify")
    return sample.grid(sample.population.reward)


def equal(
    statement: str, what: str, measured: float, predicted: float, se: float, tolerance: float, detail: str = ""
) -> Check:
    """`judge_equal` of two paired estimates, `se` of their difference; vacuous where no response differs."""
    check = judge_equal(
        statement, what, measured, predicted, measured_se=float(se), tolerance=tolerance, detail=detail
    )  # fmt: skip
    return check if se > 0 else as_vacuous(check, NOTHING)


def between(statement: str, what: str, measured: float, bracket: Bracket, se: float, detail: str = "") -> Check:
    """`judge_bracket` of an estimate; vacuous where no response differs."""
    check = judge_bracket(statement, what, measured, bracket, measured_se=float(se), detail=detail)
    return check if se > 0 else as_vacuous(check, NOTHING)


def needs(statement: str, what: str, least: str) -> Check:
    """A row for what these sizes cannot estimate at all."""
    return Check(statement, what, Verdict.VACUOUS, 0.0, detail=f"not estimated: needs {least}")


def as_columns(estimate: Estimate) -> dict[str, Any]:
    """An estimate as JSON types."""
    return {"value": np.asarray(estimate.value).tolist(), "se": np.asarray(estimate.se).tolist()}
