"""What a sampled population says: JS with intervals, its bracket, its prediction, and what diversity buys.

Needs no model. Prediction and measurement never share responses: the rate L1.1 comes from responses of the center and
JS from responses of the members; P_pop − P_mix is predicted from one half of the members' tries, measured on the other.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth.check import Bracket, Check, as_identity, as_vacuous, estimated, judge_equal
from esth.divergence import weight_entropy
from esth.estimators import advantage, intervals, js, projected_js
from esth.estimators.intervals import Interval
from esth.estimators.pass_at_k import per_prompt as pass_at_k_per_prompt
from esth.lemmas import fisher_rate, population_advantage
from esth.sample import Floats, PopulationSample

CONFIDENCE = 0.95

ADVANTAGE_TOLERANCE = 0.25
"""The same for L2.4, whose remainder is of the order of N·G."""

RATE_TOLERANCE = 0.1
"""Share of the leading order that its remainder may have where a check says "holds"."""


@dataclass(frozen=True)
class Quantity:
    """A number with its 95 % interval.

    Attributes:
        name, unit: what it is.
        value, lower, upper: estimate and interval; the interval is the point where the number is exact.
        kind: "estimated", "exact" or "predicted" (an estimate, from other responses than the measured ones).
        note: how it was made.
    """

    name: str
    unit: str
    value: float
    lower: float
    upper: float
    kind: str = "estimated"
    note: str = ""


@dataclass
class Report:
    """Quantities by name, checks, and one row a prompt; `to_dict` has JSON types only."""

    settings: dict[str, Any]
    quantities: dict[str, Quantity] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, name: str, unit: str, interval: tuple[Any, Any, Any], kind: str = "estimated", note: str = ""
    ) -> None:
        """Enter a quantity."""
        value, lower, upper = (float(x) for x in interval)
        self.quantities[name] = Quantity(name, unit, value, lower, upper, kind, note)

    def __getitem__(self, name: str) -> Quantity:
        return self.quantities[name]

    def to_dict(self) -> dict[str, Any]:
        """Settings, quantities, checks and prompts as JSON types."""
        return {
            "settings": self.settings,
            "quantities": [asdict(q) for q in self.quantities.values()],
            "checks": [c.to_dict() for c in self.checks],
            "prompts": self.prompts,
        }


def report(sample: PopulationSample) -> Report:
    """Everything one sampled population says."""
    out = Report(sample.settings, prompts=[{"prompt": text} for text in sample.prompts])
    if sample.scored > 0:
        scored = sample.first(sample.scored)
        _diversity(out, scored)
        _rate(out, scored)
    if sample.verified:
        _success(out, sample)
    out.checks = [estimated(check) for check in out.checks]
    return out


def per_prompt(sample: PopulationSample, values: NDArray[Any]) -> intervals.Estimate:
    """Σ wᵢ·meanᵢ prompt by prompt, with its standard error over responses: values [R] -> [X]."""
    return js.stratified(sample.grid(values), sample.weights)


def over_prompts(values: NDArray[Any], within: NDArray[Any] | float = 0.0) -> Interval:
    """Mean over prompts [X] with the interval of the spread between prompts; of one prompt, of `within`.

    From 20 prompts the interval follows their skewness: few prompts carry much of a JS. Below, none can be estimated.
    """
    if len(values) == 1:
        return intervals.normal(intervals.Estimate(np.asarray(values[0]), np.asarray(np.ravel(within)[0])), CONFIDENCE)
    return intervals.skewed(values, CONFIDENCE) if len(values) >= 20 else intervals.student(values, CONFIDENCE)


def _standard_error(values: Floats, within: Floats) -> float:
    fixed = len(values) < 2
    return float(js.over_prompts(intervals.Estimate(values, within), fixed=fixed).se)


def _diversity(out: Report, sample: PopulationSample) -> None:
    said, n = sample.population, sample.n
    values = {
        "chain": said.chain,
        "rb": said.rb,
        "post": js.post(said.scores, sample.weights),
        "mc": js.mc(said.scores, said.member, sample.weights),
    }
    estimates = {name: per_prompt(sample, v) for name, v in values.items()}
    ceiling = float(weight_entropy(sample.weights))
    for name, e in estimates.items():
        mean, low, high = (float(x) for x in over_prompts(e.value, e.se))
        out.add(f"JS {name}", "nats", (mean, max(low, 0.0), min(high, max(ceiling, mean))))
    chain, within = estimates["chain"]
    length = per_prompt(sample, said.lengths.astype(np.float64)).value
    out.add("JS per token", "nats", _ratio(chain, length), note="chain / tokens of a response")
    if ceiling > 0:
        share = Interval(*(x / ceiling for x in over_prompts(chain, within)))
        out.add("JS share of H(w)", "", share, note=f"H(w) = {ceiling:.4g} nats, the largest possible")
    lower, upper = (per_prompt(sample, v) for v in (said.lower, said.upper))
    out.add("bracket lower", "nats", over_prompts(lower.value, lower.se), note="L1.4, guaranteed in expectation")
    capped = Interval(*(np.minimum(x, ceiling) for x in over_prompts(upper.value, upper.se)))
    out.add("bracket upper", "nats", capped, note="L1.4, guaranteed in expectation; at most H(w)")
    out.add("tokens", "tokens", over_prompts(length), note="of a response, stop token included")
    cut = per_prompt(sample, said.truncated.astype(np.float64)).value
    out.add("truncated", "share", over_prompts(cut), note="kept: an outcome of the truncated policy")

    for row, v, s, t in zip(out.prompts, chain, within, length, strict=True):
        row |= {"JS chain": float(v), "JS chain se": float(s), "tokens": float(t)}
    if ceiling == 0:  # one member: JS is 0 whatever it says
        return
    # L1.3 at every prefix of every response: true of any numbers, and so of their means.
    bounds = Bracket(float(lower.value.mean()), float(upper.value.mean()))
    out.checks.append(as_identity(fisher_rate.check_bracket(float(chain.mean()), bounds, n, sequence=True)))
    difference = per_prompt(sample, values["post"] - values["chain"])
    out.checks.append(
        judge_equal(
            "L1.4", "JS post = JS chain, nats", float(estimates["post"].value.mean()),
            float(chain.mean()), measured_se=_standard_error(difference.value, difference.se), tolerance=0.1,
            detail="two estimators, paired: tests the scoring",
        )
    )  # fmt: skip


def _ratio(numerator: Floats, denominator: Floats) -> Interval:
    """Ratio of means over prompts, its interval by linearisation."""
    value = numerator.mean() / denominator.mean()
    spread = over_prompts((numerator - value * denominator) / denominator.mean())
    return Interval(value, value + spread.lower - spread.value, value + spread.upper - spread.value)


def _rate(out: Report, sample: PopulationSample) -> None:
    center = sample.center
    if np.isnan(center.rate).any() or np.count_nonzero(sample.weights) < 2:
        return
    rate = sample.center_grid(center.rate)
    forms = sample.center_grid(center.forms).mean(1)
    sigma = float(sample.settings["sigma"])
    predicted = rate.mean(1)
    # A difference quotient at σ/4 moves 16-bit weights by less than their spacing, or by a whole step.
    rounded = (
        ""
        if sample.settings.get("dtype", "float32") == "float32"
        else "; not to be trusted in 16 bits: σ/4 is rounded away"
    )
    out.add(
        "JS from the center", "nats", over_prompts(predicted, rate.std(1, ddof=1) / math.sqrt(rate.shape[1])),
        "predicted", "L1.1 for these members: directional Fisher on the center's own responses" + rounded,
    )  # fmt: skip
    out.add("tr F", "nats", over_prompts(forms.mean(1)), note="mean of εᵀFε over the members, L1.4")
    chain, within = per_prompt(sample, sample.population.chain)
    se = _standard_error(chain - predicted, np.hypot(within, rate.std(1, ddof=1) / math.sqrt(rate.shape[1])))
    trace = float(forms.mean())
    out.checks.append(
        fisher_rate.check(
            float(chain.mean()), float(predicted.mean()), js_se=se, tolerance=RATE_TOLERANCE,
            signal=sigma**2 * trace, what="JS of this population, nats",
            detail=f"σ² tr F = {sigma**2 * trace:.3g} (predicts up to {fisher_rate.SMALL_SIGNAL:g}); paired by prompt",
        )
    )  # fmt: skip
    if sample.settings["family"] == "gaussian" and sample.n > 2:
        rank = effective_rank(forms.mean(0))
        spread = math.sqrt(2.0 / ((sample.n - 1) * rank))
        out.add(
            "spread between populations", "share of JS", (spread,) * 3,
            "predicted", f"L1.2 with r_eff ≈ {rank:.3g} from {sample.n} directions; not in the intervals above",
        )  # fmt: skip


def effective_rank(forms: Floats) -> float:
    """r_eff = (tr F)²/tr F² from εᵢᵀFεᵢ along Gaussian directions [N], of mean tr F and variance 2 tr F².

    A ratio of noisy moments: with few directions an order of magnitude, no more.
    """
    variance = float(forms.var(ddof=1))
    if variance == 0:
        return math.inf
    return max(1.0, 2.0 * (float(forms.mean()) ** 2 - variance / len(forms)) / variance)


def _success(out: Report, sample: PopulationSample) -> None:
    rewards = sample.grid(sample.population.reward)
    m, n = rewards.shape[-1], sample.n
    center = sample.center_grid(sample.center.reward)
    members = rewards.mean(-1) @ sample.weights
    out.add("success of the center", "share", _share(center.mean(1)), note="one try, pass@1")
    out.add("success of the members", "share", _share(members), note="one try of the mixture")
    by_member = rewards.mean((0, 2))
    spread = float(np.sqrt(sample.weights @ (by_member - sample.weights @ by_member) ** 2))
    out.add("success spread", "share", (spread,) * 3, note="sd over members of mean success, sampling noise included")
    for row, c, p in zip(out.prompts, center.mean(1), members, strict=True):
        row |= {"success of the center": float(c), "success of the members": float(p)}
    _projected(out, sample, rewards)
    if n > 1 and np.ptp(sample.weights) == 0 and m >= 4:
        _advantage(out, rewards, center)


def _cut(interval: Interval) -> Interval:
    """A success and its interval, cut to [0, 1]; unbiased estimates of single prompts may lie outside."""
    return Interval(*(np.clip(x, 0.0, 1.0) for x in interval))


def _projected(out: Report, sample: PopulationSample, rewards: NDArray[Any]) -> None:
    counts, m = rewards.sum(-1), rewards.shape[-1]
    rng = np.random.default_rng(int(sample.settings["seed"]))
    values = projected_js.estimate(counts, m, sample.weights)
    single = len(counts) == 1
    interval = projected_js.interval(counts[0], m, rng, sample.weights, CONFIDENCE) if single else over_prompts(values)
    out.add("JSᵛ", "nats", interval, note="verifier-projected; its bias: docs/methods.md")
    if sample.n > 1:
        p_value = float(projected_js.permutation_test(counts, m, rng, sample.weights, pooled=True))
        out.add("p-value of JSᵛ > 0", "", (p_value,) * 3, note="outcomes permuted across members within a prompt")
    for row, value in zip(out.prompts, values, strict=True):
        row["JSᵛ"] = float(value)


def _share(values: Floats) -> tuple[Any, Any, Any]:
    """Mean over prompts of values in [0, 1]; of a single prompt without an interval."""
    return intervals.bounded_mean(values, CONFIDENCE) if len(values) > 1 else (float(values[0]), math.nan, math.nan)


def _advantage(out: Report, rewards: NDArray[Any], center: Floats) -> None:
    """P_pop − P_mix at K tries: predicted from even tries (L2.4), measured without bias on odd ones."""
    even, odd = rewards[..., 0::2], rewards[..., 1::2]
    n, m = odd.shape[-2:]
    k = min(n, m)
    wins = odd.sum(-1)
    note = f"K = {k} tries, unbiased, odd tries"
    out.add(
        f"P_pop({k})",
        "share",
        _cut(over_prompts(advantage.population(wins, m, k))),
        note=f"K of {n} members, one response each; {note}",
    )
    out.add(
        f"P_mix({k})",
        "share",
        _cut(over_prompts(advantage.mixture(wins, m, k))),
        note=f"draws of the realised mixture; {note}",
    )
    tries = center.shape[1]
    if k <= tries:
        out.add(
            f"P_center({k})",
            "share",
            _share(pass_at_k_per_prompt(tries, center.sum(1), k)),
            note="draws of the center",
        )
    measured = advantage.gap(wins, m, k)
    half = even.shape[-1]
    projected = projected_js.estimate(even.sum(-1), half)
    predicted = np.asarray(population_advantage.predict(even.mean((1, 2)), projected, n, k))
    out.add(f"P_pop − P_mix ({k})", "share", over_prompts(measured), note="measured on odd tries")
    out.add(f"P_pop − P_mix ({k}), L2.4", "share", over_prompts(predicted), "predicted", "from even tries")
    if len(measured) > 1:
        se = _standard_error(measured - predicted, np.zeros_like(measured))
        judged = population_advantage.check_prediction(
            float(measured.mean()), float(predicted.mean()), measured_se=se, tolerance=ADVANTAGE_TOLERANCE,
            what=f"P_pop − P_mix at K = {k}", detail="paired by prompt",
        )  # fmt: skip
        if not measured.any() and not predicted.any():  # nothing solved, or everything: 0 = 0 tests nothing
            judged = as_vacuous(judged)
        out.checks.append(judged)
