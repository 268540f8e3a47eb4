"""The variance of ES gradient estimates, measured on some coordinates of their directions (T5).

Two disjoint groups of antithetic pairs give two independent estimates, whose squared difference is twice the variance
without any assumption about its size. Evaluations f [X, K, 2] of each prompt, members ±εₖ; a few coordinates of the
directions, [K, d]. Estimates are linear in the directions: their coefficients and the directions' inner products are
enough, and nothing of a model's full dimension is stored.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esth.errors import InputError
from esth.estimators.intervals import Float
from esth.lemmas.two_point import one_point_estimate, two_point_estimate

Group = NDArray[np.intp]


def estimate_variances(
    f: ArrayLike, epsilon: ArrayLike, sigma: float, n: int, second: ArrayLike
) -> tuple[Float, Float]:
    """Variance of a coordinate of the one-point and of the two-point estimate from n members: -> [X], [X].

    The one-point estimate is made of members of different pairs, once of those at +ε and once of those at −ε. A group's
    variance is brought to n members: the two-point one falls as 1/N, with a mean baseline as 1/(N−1).

    Args:
        f: [X, K, 2] evaluations.
        epsilon: [K, d] coordinates of the directions.
        sigma: of the population.
        n: members of the estimate that is asked about.
        second: [K] whether a pair belongs to the second group.

    Raises:
        InputError: a group of fewer than 2 pairs (a mean baseline needs two members).
    """
    values, noise = np.asarray(f, dtype=np.float64), np.asarray(epsilon, dtype=np.float64)
    groups = [np.flatnonzero(np.asarray(second) == label) for label in (False, True)]
    if min(map(len, groups)) < 2:
        raise InputError(f"two groups of at least 2 pairs are needed, not of {len(groups[0])} and {len(groups[1])}")
    gram = noise @ noise.T / noise.shape[1]
    unit = np.eye(len(noise))  # in place of the directions: estimates are then their coefficients [X, K]
    signed = np.stack([unit, -unit], axis=1)

    def two_point(group: Group) -> Float:
        members = 2 * len(group)
        fitness, directions = values[:, group].reshape(-1, members), signed[group].reshape(members, -1)
        return np.asarray(math.sqrt(members / n) * two_point_estimate(fitness, directions, sigma))

    def one_point(group: Group, sign: int) -> Float:
        estimate = one_point_estimate(values[:, group, sign], signed[group, sign], sigma)
        return np.asarray(math.sqrt((len(group) - 1) / (n - 1)) * estimate)

    def variance(estimate: Callable[[Group], Float]) -> Float:
        first, last = (estimate(group) for group in groups)
        difference = first - last
        return np.asarray(0.5 * np.sum((difference @ gram) * difference, axis=-1))

    plus, minus = (variance(partial(one_point, sign=sign)) for sign in (0, 1))
    return 0.5 * (plus + minus), variance(two_point)
