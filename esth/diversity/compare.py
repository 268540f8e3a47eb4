"""Two populations on the same prompts and seeds: the paired difference of their diversity."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from esth.diversity.report import Quantity, over_prompts, per_prompt
from esth.errors import InputError
from esth.estimators.pass_at_k import difference
from esth.sample import PopulationSample


@dataclass(frozen=True)
class Comparison:
    """Differences second − first, paired by prompt, with 95 % intervals over prompts."""

    first: str
    second: str
    quantities: list[Quantity]

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


def compare(first: PopulationSample, second: PopulationSample) -> Comparison:
    """Paired differences of JS, response length and member success.

    Raises:
        InputError: other prompts, or fewer than 2.
    """
    if first.prompts != second.prompts:
        raise InputError("the two samples have different prompts: take the same task, seed and number of prompts")
    if len(first.prompts) < 2:
        raise InputError("a paired comparison needs at least 2 prompts")
    if min(first.scored, second.scored) < 2:
        raise InputError("samples whose responses are not scored (scored = 0) have no JS to compare")
    out = []

    def add(name: str, unit: str, interval: tuple[Any, Any, Any]) -> None:
        value, lower, upper = (float(x) for x in interval)
        out.append(Quantity(name, unit, value, lower, upper, note="paired by prompt"))

    scored = [s.first(s.scored) for s in (first, second)]
    chains = [per_prompt(s, s.population.chain).value for s in scored]
    add("difference of JS", "nats", over_prompts(chains[1] - chains[0]))
    lengths = [per_prompt(s, s.population.lengths.astype(np.float64)).value for s in (first, second)]
    add("difference of length", "tokens", over_prompts(lengths[1] - lengths[0]))
    if first.verified and second.verified:
        wins = [s.grid(s.population.reward).sum((1, 2)) for s in (first, second)]
        draws = [s.grid(s.population.reward)[0].size for s in (first, second)]
        add("difference of success", "share", difference(draws[1], wins[1], draws[0], wins[0], 1))
    return Comparison(str(first.settings["model"]), str(second.settings["model"]), out)
