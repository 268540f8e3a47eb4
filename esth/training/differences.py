"""Arms less each other at the same place, paired by seed and problem: what two of them have in common cancels.

Gains over the base of two arms have intervals that are mostly those of the problems, which are the same ones: their
difference is known several times as well as either.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from esth.estimators.intervals import Interval, crossed
from esth.training.compare import Stop, quantities
from esth.training.evaluation import Evaluation

Values = Callable[[Evaluation], NDArray[np.float64]]


def differences(
    places: Mapping[str, Sequence[Stop | None]], ks: Sequence[int], names: Sequence[str], evaluated: str = "held-out"
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """{a: {b: {quantity: [a − b, lower, upper]}}} of arms a, b in their order, over the seeds that both have.

    Args:
        places: one a seed, in the order of the seeds; arms without a place for each seed are left out.
        ks: of pass@k.
        names: quantities wanted, of those there are (`compare.quantities`).
        evaluated: name of the evaluation set.
    """
    wanted = {name: of for name, of in quantities(ks).items() if name in names}
    reached = {arm: [s for s in stops if s is not None] for arm, stops in places.items() if None not in stops}
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for a, b in combinations(reached, 2):
        pairs = list(zip(reached[a], reached[b], strict=False))
        if len(pairs) > 1:
            found.setdefault(a, {})[b] = {name: _less(pairs, of, evaluated).rounded() for name, of in wanted.items()}
    return found


def _less(pairs: Sequence[tuple[Stop, Stop]], of: Values, evaluated: str) -> Interval:
    def at(stop: Stop) -> NDArray[np.float64]:
        return np.asarray(stop.between(lambda p: of(p.sets[evaluated])))

    return crossed(np.stack([at(here) - at(there) for here, there in pairs]))
