"""pass@k of a task from counts of successes, with intervals over prompts, and paired differences of two policies.

A prompt's pass@k is estimated without bias by 1 − C(n−c, k)/C(n, k) (`esth.coverage.pass_at_k`); the task's is the mean
over its prompts. The interval is for the population the prompts were sampled from: the spread between prompts holds
the sampling of the responses already. `bounded_mean` was chosen over Student's t and the bootstrap by simulation: at a
mean within 0.06 of 0 or 1 and 30 prompts those cover 19–92 %, it covers 95–98 %.

Pooled over the members of a population the same estimate is that of a uniform k-subset of all Nm responses (L2.6), not
of k draws of their mixture.
"""

import numpy as np
from numpy.typing import ArrayLike

from esth.coverage import pass_at_k as prompt_pass_at_k
from esth.errors import InputError
from esth.estimators.intervals import Float, Interval, bounded_mean

PAIRED_PSEUDO = 0.02
"""`bounded_mean`'s pseudo-value for differences, which spread far less than 0/1 values; by simulated coverage."""


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int, confidence: float = 0.95) -> Interval:
    """pass@k over prompts: `c` successes [..., X] in `n` i.i.d. draws of each prompt -> [...].

    Raises:
        InputError: k outside 1…n, counts outside 0…n, or fewer than 2 prompts.
    """
    return bounded_mean(per_prompt(n, c, k), confidence)


def difference(
    n_a: ArrayLike, c_a: ArrayLike, n_b: ArrayLike, c_b: ArrayLike, k: int, confidence: float = 0.95
) -> Interval:
    """pass@k of policy a minus that of b on the same prompts [..., X] -> [...]; the numbers of draws may differ.

    Paired: the interval is that of the mean difference, so what the prompts have in common cancels. Simulated coverage
    of 95 % intervals over 30 or 100 prompts, k = 1: 93–98.5 %; lower (to 88 %) or higher where only a handful of
    prompts differ at all, and near 100 % where hardly any does.

    Raises:
        InputError: as `pass_at_k`, or different numbers of prompts.
    """
    a, b = per_prompt(n_a, c_a, k), per_prompt(n_b, c_b, k)
    if a.shape[-1] != b.shape[-1]:
        raise InputError(f"paired prompts are needed: {a.shape[-1]} against {b.shape[-1]}")
    value, lower, upper = bounded_mean(0.5 * (1.0 + a - b), confidence, pseudo=PAIRED_PSEUDO)
    return Interval(2.0 * value - 1.0, 2.0 * lower - 1.0, 2.0 * upper - 1.0)


def per_prompt(n: ArrayLike, c: ArrayLike, k: int) -> Float:
    """Unbiased pass@k of each prompt: n, c [..., X] -> [..., X]."""
    tries, successes = np.broadcast_arrays(np.asarray(n, dtype=np.float64), np.asarray(c, dtype=np.float64))
    if tries.ndim == 0:
        raise InputError("counts need a prompt axis")
    if np.any(successes != np.round(successes)):
        raise InputError("successes must be whole numbers")
    return np.asarray(prompt_pass_at_k(tries, successes, k))
