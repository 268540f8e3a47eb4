"""How much members differ in success on a prompt, from counts: the parts of the reliability of a fitness (L3.5).

The variance of observed success rates holds binomial noise. Without bias, from c successes in m >= 2 tries:

    within    E p(1−p)   from c(m−c)/(m(m−1))
    between   Var(p)     from the mean of c(c−1)/(m(m−1)) and products of different members

p̄(1−p̄) is their sum, the variance of one try of a member drawn at random; the share `between`/p̄(1−p̄) is the intraclass
correlation r, and the reliability of the mean of a tries is a·r/(1 + (a−1)·r) (Spearman, Brown).

Counts [..., N], members on the last axis; population statistics (1/N).
"""

import numpy as np
from numpy.typing import ArrayLike

from esth.errors import InputError
from esth.estimators.intervals import Float


def within(c: ArrayLike, m: int) -> Float:
    """Unbiased mean over members of p(1−p), the noise variance of one try: [..., N] -> [...]."""
    counts = _check(c, m)
    return np.asarray((counts * (m - counts)).mean(-1) / (m * (m - 1)))


def between(c: ArrayLike, m: int) -> Float:
    """Unbiased Var(p) over these members; a single estimate may be negative: [..., N] -> [...]."""
    counts = _check(c, m)
    return np.asarray((counts / m).var(-1) - (1.0 - 1.0 / counts.shape[-1]) * within(counts, m) / m)


def tilt_slope(c: ArrayLike, m: int, a: int) -> Float:
    """√reliability·sd(p), the gain L3.5 of a z-scored fitness per unit of β: counts [..., X, N] -> [..., X].

    The fitness is the mean of `a` tries at the same prompt. √reliability·sd(p) is Var(p)/√(Var(p) + noise/a): the
    numerator is `between`, which has no bias; the denominator is √(p̄(1−p̄)(1+(a−1)r)/a) with one r for all prompts, as
    a prompt's own would be mostly noise. Simulated: 2–5 % below the mean gain of 8 members with sd(p) of .07 to .16,
    2–3 % of 16, for a = 1 to 4 and m = 2 to 4; a part of that is L3.5's own error of order 1/N.
    """
    if a < 1:
        raise InputError(f"a fitness needs at least one try, not {a}")
    variance = between(c, m)
    mean = np.asarray(c, dtype=np.float64).mean(-1) / m
    single = mean * (1.0 - mean)
    total = single.sum(-1, keepdims=True)
    share = np.clip(variance.sum(-1, keepdims=True) / np.where(total > 0, total, 1.0), 0.0, 1.0)
    square = single * (1.0 + (a - 1) * share) / a
    return np.where(square > 0, variance / np.sqrt(np.where(square > 0, square, 1.0)), 0.0)


def _check(c: ArrayLike, m: int) -> Float:
    counts = np.asarray(c, dtype=np.float64)
    if counts.ndim == 0 or m < 2 or not np.all((counts >= 0) & (counts <= m)):
        raise InputError(f"a variance of success needs m >= 2 tries a member and counts in 0..m, not m = {m}")
    return counts
