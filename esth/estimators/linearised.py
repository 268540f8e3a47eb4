"""Smooth functions of means over prompts, with standard errors by linearisation (the delta method).

Bias of the order of the squared relative standard errors of the means; cost: one pass. Values of one prompt share
whatever they share (its difficulty, its length): prompts are the independent unit, everything else is paired in them.

Arrays: prompts (or other independent replicates) are the last axis. NumPy float64.
"""

import numpy as np
from numpy.typing import ArrayLike

from esth.errors import InputError
from esth.estimators.intervals import Estimate, mean


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Estimate:
    """E numerator / E denominator from paired values [..., X] -> [...].

    Raises:
        InputError: fewer than 2 values, or a denominator of mean 0.
    """
    a, b = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if np.any(b.mean(-1) == 0):
        raise InputError("a ratio needs a denominator whose mean is not 0")
    value = a.mean(-1) / b.mean(-1)
    return Estimate(value, mean((a - value[..., None] * b) / b.mean(-1)[..., None]).se)


def log_slope(x: ArrayLike, values: ArrayLike) -> Estimate:
    """Least-squares slope of log E[values] on log x, each x of equal weight: x [S], values [S, X] -> scalars.

    Raises:
        InputError: fewer than 2 different x, an x or a mean that is not positive, or fewer than 2 values.
    """
    at, y = np.asarray(x, dtype=np.float64), np.asarray(values, dtype=np.float64)
    average = y.mean(-1)
    if len(at) < 2 or np.ptp(at) == 0 or at.min() <= 0 or average.min() <= 0:
        raise InputError("a slope of logarithms needs two different abscissas, and positive means")
    centred = np.log(at) - np.log(at).mean()
    coefficient = centred / np.sum(centred**2)
    return Estimate(coefficient @ np.log(average), mean(coefficient @ (y / average[:, None])).se)
