"""P4 on a checkpoint: what of the population's gain one ES update of the center keeps.

Fitness, and so the update Δ = (α/N)Σzᵢεᵢ, comes from the even prompts; all is measured on the odd ones, held out.
The population's gain comes from the members' own responses, the updated centers θ ± Δ are sampled anew at several
β = α/σ, and the remainder R that P4.1 asks for is estimated to leading order, which is even in the noise, from
antithetic pairs of other directions: R is nowhere known, so P4 is an estimate here and no guarantee. No response enters
both sides of a comparison. Standard errors are over held-out prompts, of predictions from the pairs also over these.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esth import plots
from esth.check import Bracket, Check, Verdict, Z, judge_bracket, judge_identity, number
from esth.estimators import advantage, intervals, pass_at_k
from esth.estimators.intervals import Estimate
from esth.estimators.pair_covariance import parity_variances, prompt_means, unlike
from esth.estimators.size import magnitude, root
from esth.lemmas import center_update as lemma
from esth.models.workers import Workers
from esth.noise import Combination, Member, population
from esth.weighting import linear_tilt, price_gain, tilt_range, zscore
from llm.judging import as_columns, needs, rewards
from llm.samples import Arrays, Progress, Samples, sized, test, train

TITLE = "P4 · Center-update coverage"

# Allowed relative errors, fixed beforehand.
THIRD = 0.25  # of the gain: the odd orders of R, which pairs cannot tell from its linear part
GROWTH = 0.25  # one more order in β between its two largest values
DRIFT = 0.25  # the fourth order in σ, and that Δ is one direction, not an average over them

FLAT = "no member's fitness differs from another's: Δ = 0, nothing to transfer"

CHUNK = 1 << 20  # positions of a parameter whose noise is held at a time

Float = NDArray[np.float64]
Data = dict[str, Any]


def study(samples: Samples) -> tuple[list[Check], Data]:
    """Transfer, survival, books and drift of one update."""
    s = samples.settings
    iid, pairs = samples.iid(), samples.antithetic()
    members, antithetic = rewards(iid), rewards(pairs)
    z = zscore(train(members).mean(axis=(0, 2)))
    held = Held(test(members), test(iid.center_grid(iid.center.reward)))
    least = {"pairs": 3, "updated_samples": 4}  # R's spread is jackknifed over pairs, responses are halved
    few = [f"{name} >= {size}" for name, size in least.items() if getattr(s, name) < size]
    if few or not z.any():
        flat = Check("P4.1", "sd of the fitness over members", Verdict.VACUOUS, 0.0, detail=FLAT)
        books, data = bookkeeping(held, None, ())
        return [needs("P4.1", "transfer of the gain", few[0]) if few else flat, *books], {"betas": [], **data}
    updated, control = _updated(samples, z, len(held.members))
    remainder = Remainder.of(antithetic, iid.center_grid(iid.center.reward))
    checks, transfer = transfers(held, updated, z, remainder, s.betas)
    survival, signal = survivals(held, updated, z, remainder, s.betas)
    books, data = bookkeeping(held, updated, s.betas)
    drifts, step = drift(samples, control, z, remainder)
    return [*checks, *survival, *books, *drifts], {"betas": list(s.betas), **transfer, **signal, **data, **step}


@dataclass(frozen=True)
class Held:
    """Rewards on held-out prompts: of the members [X, N, m], and of the center [X, m]."""

    members: Float
    center: Float


@dataclass(frozen=True)
class Updated:
    """Rewards on held-out prompts: of θ+Δ and θ−Δ [X, B, n], and of the center [X, n], of responses of their own."""

    plus: Float
    minus: Float
    center: Float

    def odd(self) -> Float:
        """[p(θ+Δ) − p(θ−Δ)]/2 ≈ ∇p·Δ: [X, B]."""
        return 0.5 * (self.plus.mean(axis=-1) - self.minus.mean(axis=-1))

    def even(self, part: slice = slice(None)) -> Float:
        """[p(θ+Δ) + p(θ−Δ)]/2 − p ≈ r_Δ: [X, B], from some of the responses."""
        both = 0.5 * (self.plus[..., part].mean(axis=-1) + self.minus[..., part].mean(axis=-1))
        return both - self.center.mean(axis=-1)[:, None]


@dataclass(frozen=True)
class Remainder:
    """The even part of success along fresh directions, R to leading order: its sd of the mean success, its sd on single
    prompts (root mean square over these), and its mean p_σ − p.
    """

    sd: Estimate
    prompt_sd: float
    mean: Estimate

    @classmethod
    def of(cls, antithetic: Float, center: Float) -> "Remainder":
        """From rewards of antithetic members [X, 2K, m] and of the center [X, m]."""
        y = _by_pair(antithetic)
        f, m = y.mean(axis=-1), y.shape[-1]
        both = f.mean(axis=2) - center.mean(axis=-1)[:, None]
        unpaired, paired = (v.mean() for v in unlike(f))  # even + odd + noise, and 2 odd + noise, on single prompts
        even = unpaired - 0.5 * paired - 0.5 * _noise(y).mean()
        mean = prompt_means(lambda k: both[:, k].mean(axis=1), *both.shape)
        sd = root(parity_variances(f)[1])
        one = 1.0 / (2 * len(f) * m)  # what one response changes in the mean of a pair
        return cls(Estimate(sd.value, np.maximum(sd.se, one)), math.sqrt(max(0.0, float(even))), mean)


def _by_pair(antithetic: Float) -> Float:
    """[X, 2K, m] -> [X, K, 2, m]."""
    x, n, m = antithetic.shape
    return antithetic.reshape(x, n // 2, 2, m)


def _updated(samples: Samples, z: Float, prompts: int) -> tuple[Updated, Updated]:
    """The updated centers, and as a control one at the largest β whose z are drawn, not earned."""
    s = samples.settings
    config = s.population(
        sigma=1.0, members=2 * len(s.betas) + 2, samples=s.updated_samples, scored=0, prompts=prompts, seed=s.stream(2)
    )
    members = population(s.stream(0), s.members)
    random = zscore(np.random.default_rng(s.seed).standard_normal(len(z)))
    steps = [*(beta * s.sigma * z for beta in s.betas), max(s.betas) * s.sigma * random]
    directions = [_step(members, sign * step) for step in steps for sign in (1, -1)]
    sample = samples.population("updated", config, samples.held_out, directions)
    moved, center = rewards(sample), sample.center_grid(sample.center.reward)
    plus, minus = moved[:, 0::2], moved[:, 1::2]
    return Updated(plus[:, :-1], minus[:, :-1], center), Updated(plus[:, -1:], minus[:, -1:], center)


def _step(members: list[Member], coefficients: Float) -> Combination:
    """(1/N) Σ coefficient · ε."""
    return Combination(tuple((m, float(c) / len(members)) for m, c in zip(members, coefficients, strict=True)))


def over_prompts(values: Float, responses: int) -> Estimate:
    """Mean over prompts [X, …] -> […], each value of so many responses.

    The error is at least what one response more or less would change: prompts that are all alike show no spread.
    """
    value, se = intervals.mean(np.moveaxis(values, 0, -1))
    return Estimate(value, np.maximum(se, 1.0 / (len(values) * responses)))


def transfers(
    held: Held, updated: Updated, z: Float, remainder: Remainder, betas: tuple[float, ...]
) -> tuple[list[Check], Data]:
    """P4.1: the transfer error under its estimated bound; what is left without r_Δ; growth of both parts in β."""
    x, n, m = held.members.shape
    responses = updated.plus.shape[-1]
    gain = np.stack([price_gain(linear_tilt(z, beta), held.members.mean(axis=-1)) for beta in betas], axis=1)
    # r_Δ from every second response and the center's new ones, the error from the others and the center's old ones.
    error = updated.plus[..., 1::2].mean(axis=-1) - held.center.mean(axis=-1)[:, None] - gain
    errors = over_prompts(error, min(responses // 2, m))
    own = magnitude(over_prompts(updated.even(slice(0, None, 2)), (responses + 1) // 2))
    left = over_prompts(updated.odd() - gain, responses)
    gains = over_prompts(gain, n * m)
    sd, sd_se = (math.sqrt((n - 1) / n) * float(v) for v in remainder.sd)  # of N members, and with 1/N
    checks, bounds = [], []
    for b, beta in enumerate(betas):
        bound = float(lemma.transfer_bound([-sd, sd], own.value[b], beta))
        bound_se = math.hypot(beta * sd_se, own.se[b])
        bounds.append((bound, bound_se))
        share = _over(abs(float(errors.value[b])), bound)
        tilt = "" if beta <= tilt_range(z)[1] else "; the tilt has negative weights"
        whole = lemma.check(
            errors.value[b], 0.0, bound, se=math.hypot(errors.se[b], bound_se),
            what=f"[p(θ⁺) − p] − [p̄_w − p̄], held-out prompts, β={beta:g}",
            detail=f"R estimated to leading order, not guaranteed: |error|/bound = {share}{tilt}",
        )  # fmt: skip
        allowed = beta * sd + THIRD * abs(float(gains.value[b]))
        without = lemma.check(
            left.value[b], 0.0, allowed, se=math.hypot(left.se[b], beta * sd_se, THIRD * float(gains.se[b])),
            what=f"[p(θ+Δ) − p(θ−Δ)]/2 − [p̄_w − p̄], leading order, β={beta:g}",
            detail=f"r_Δ is not in it; allowed β sd(R) = {beta * sd:.2g} and {THIRD:g} of the gain for R's odd orders",
        )  # fmt: skip
        checks += [whole, without]
    odd, even = over_prompts(updated.odd(), responses), over_prompts(updated.even(), responses)
    checks += _growth("∇p·Δ, odd part", "linear in β", odd, betas, 1)
    checks += _growth("r_Δ, even part", "quadratic in β", even, betas, 2)
    change = {
        "θ + Δ": over_prompts(updated.plus.mean(-1) - updated.center.mean(-1)[:, None], responses),
        "θ − Δ": over_prompts(updated.minus.mean(-1) - updated.center.mean(-1)[:, None], responses),
        "tilt": gains,
        "odd": odd,
        "even": even,
    }
    data = {
        "change": {name: as_columns(e) for name, e in change.items()},
        "transfer": {
            "error": as_columns(errors),
            "bound": as_columns(Estimate(*np.transpose(bounds))),
            "own": as_columns(own),
            "left": as_columns(left),
            "spread": as_columns(Estimate(*(np.array(betas) * v for v in (sd, sd_se)))),
        },
        "remainder": {"mean": as_columns(remainder.mean), "sd": as_columns(remainder.sd)},
    }
    return [sized(check, x, "held-out prompts") for check in checks], data


def _growth(what: str, way: str, part: Estimate, betas: tuple[float, ...], order: int) -> list[Check]:
    """The part at the largest β, predicted from that at the next one: their responses are different ones."""
    if len(betas) < 2:
        return []
    low, high = np.argsort(betas)[-2:]
    ratio = (betas[high] / betas[low]) ** order
    check = lemma.check_prediction(
        part.value[high], ratio * part.value[low], statement="P4.1", tolerance=GROWTH,
        what=f"{what} at β={betas[high]:g} from that at β={betas[low]:g}",
        measured_se=part.se[high], predicted_se=ratio * part.se[low], detail=way,
    )  # fmt: skip
    return [check]


def survivals(
    held: Held, updated: Updated, z: Float, remainder: Remainder, betas: tuple[float, ...]
) -> tuple[list[Check], Data]:
    """P4.2: success rises on the prompts whose signal βρ sd(p) clearly exceeds R."""
    (x, n, m), responses = held.members.shape, updated.plus.shape[-1] // 2
    p = held.members.mean(axis=-1)
    noise = p * (1.0 - p) / (m - 1)  # of the mean of m responses
    # r_Δ and the rise again from different responses.
    own = _prompt_square(updated, slice(0, None, 2))
    rise = updated.plus[..., 1::2].mean(axis=-1) - held.center.mean(axis=-1)[:, None]
    checks, counts = [], []
    for b, beta in enumerate(betas):
        weights = linear_tilt(z, beta)
        signal = price_gain(weights, p)
        signal_variance = np.sum((weights - 1.0 / n) ** 2 * noise, axis=-1)
        typical = float(lemma.transfer_bound([-remainder.prompt_sd, remainder.prompt_sd], math.sqrt(own[b]), beta))
        clear = signal - Z * np.sqrt(signal_variance) > typical
        nominal = int(np.sum(signal > typical))
        counts.append((nominal, int(clear.sum())))
        size = math.sqrt(max(0.0, float(np.mean(signal**2 - signal_variance))))
        told = f"signal/R = {_over(size, typical)} (rms, R estimated), signal > R on {nominal} of {x} prompts by value"
        what = f"rise of success where βρ sd(p) > R, β={beta:g}"
        if clear.sum() < 2:
            detail = f"{told}, clearly on {clear.sum()}: too few to test what is promised there"
            checks.append(Check("P4.2", what, Verdict.VACUOUS, size, detail=detail))
            continue
        found = over_prompts(rise[clear, b], min(responses, m))
        check = judge_bracket(
            "P4.2", what, float(found.value), Bracket(0.0, 1.0), measured_se=float(found.se),
            detail=f"{told}, clearly on {clear.sum()}, where it is measured",
        )  # fmt: skip
        checks.append(sized(check, int(clear.sum()), "such prompts"))
    return checks, {"survival": {"nominal": [c[0] for c in counts], "clear": [c[1] for c in counts], "prompts": x}}


def _prompt_square(updated: Updated, part: slice) -> Float:
    """Mean over prompts of r_Δ², from some of the responses, without what their noise adds: [B]."""
    noise = 0.25 * (_noise(updated.plus[..., part]) + _noise(updated.minus[..., part]))
    noise = noise + _noise(updated.center)[:, None]
    return np.asarray(np.maximum(np.mean(updated.even(part) ** 2 - noise, axis=0), 0.0))


def _noise(y: Float) -> Float:
    """Variance of the mean of the responses on the last axis."""
    return np.asarray(y.var(axis=-1, ddof=1) / y.shape[-1])


def bookkeeping(held: Held, updated: Updated | None, betas: tuple[float, ...]) -> tuple[list[Check], Data]:
    """P4.3: coverage of the updated center, and of the population split into its two parts, less the center's."""
    x, n, m = held.members.shape
    center = held.center if updated is None else np.concatenate([held.center, updated.center], axis=-1)
    responses = m if updated is None else min(m, updated.plus.shape[-1])
    most = min(n, responses)
    ks = sorted({1, *(2**i for i in range(most.bit_length()) if 2**i <= most), most})
    coverage: dict[str, list[Float]] = {"center": [], "mixture": [], "population": []}
    coverage |= {f"β = {beta:g}": [] for beta in betas}
    counts = held.members.sum(axis=-1)
    for k in ks:
        coverage["center"].append(_passed(center, k))
        coverage["mixture"].append(advantage.mixture(counts, m, k))
        coverage["population"].append(advantage.population(counts, m, k))
        for b, beta in enumerate(betas):
            assert updated is not None
            coverage[f"β = {beta:g}"].append(_passed(updated.plus[:, b], k))
    curves = {name: np.stack(c, axis=1) for name, c in coverage.items()}  # [X, K]
    gains = {name: over_prompts(c - curves["center"], responses) for name, c in curves.items() if name != "center"}
    gains["stratification"] = over_prompts(curves["population"] - curves["mixture"], responses)

    def last(name: str) -> str:
        return number(float(gains[name].value[-1]), float(gains[name].se[-1]))

    k, whole = ks[-1], gains["population"]
    told = f"population {last('population')} = mixture {last('mixture')} + stratification {last('stratification')}"
    for beta in betas:
        own = gains[f"β = {beta:g}"]
        # A ratio only where its denominator is clearly positive.
        clear = whole.value[-1] > Z * whole.se[-1]
        told += f"; center at β={beta:g}: {last(f'β = {beta:g}')}"
        told += f" ({own.value[-1] / whole.value[-1]:.2g} of it)" if clear else ""
    parts = gains["mixture"].value[-1] + gains["stratification"].value[-1]
    what = f"C_{k}(population) − C_{k}(θ), the sum of its two parts, held-out prompts"
    checks = [judge_identity("P4.3", what, float(whole.value[-1]), float(parts), detail=told)]
    strata = gains["stratification"]
    what = f"stratification part of it, C_{k}(population) − C_{k}(mixture), never negative"
    check = judge_bracket("P4.3", what, float(strata.value[-1]), Bracket(0.0, 1.0), measured_se=float(strata.se[-1]))
    checks.append(sized(check, x, "held-out prompts"))
    return checks, {
        "k": ks,
        "members": n,
        "books": {name: as_columns(e) for name, e in gains.items()},
        "coverage": {name: as_columns(over_prompts(c, responses)) for name, c in curves.items()},
    }


def _passed(y: Float, k: int) -> Float:
    """Unbiased pass@k of each prompt from rewards [X, n]."""
    return pass_at_k.per_prompt(y.shape[-1], y.sum(axis=-1), k)


def drift(samples: Samples, control: Updated, z: Float, remainder: Remainder) -> tuple[list[Check], Data]:
    """P4.4: the length of the step, and what a step of that length changes that no fitness chose.

    Its change of success is predicted from the pairs: p_σ − p = (σ²/2) tr ∇²p.
    """
    s, n = samples.settings, len(z)
    x, _, responses = control.plus.shape
    found = samples.arrays("step", partial(_unit_step_square, z=z, seed=s.stream(0)))
    square, d = float(found["square"]), int(found["size"])
    beta = max(s.betas)
    alpha = beta * s.sigma
    length = lemma.check_prediction(
        alpha**2 * square, lemma.step_square(alpha, d, n), statement="P4.4", what=f"‖Δ‖², β={beta:g}, d={d:,}",
        # One realisation of a χ² of d degrees of freedom.
        tolerance=Z * math.sqrt(2.0 / d),
        detail=f"realised; steps vary by {math.sqrt(2 / d):.1g} of it, α²(d+N−2)/N differs by {(n - 2) / d:.1g}",
    )  # fmt: skip
    # Of +Δ and −Δ together, from which what is odd in Δ drops out.
    even = over_prompts(control.even()[:, 0], responses)
    traces = (2.0 * v / s.sigma**2 for v in remainder.mean)
    predicted = Estimate(*(np.array([lemma.drift(b * s.sigma, trace, n) for b in s.betas]) for trace in traces))
    largest = int(np.argmax(s.betas))
    change = lemma.check_prediction(
        float(even.value), predicted.value[largest], statement="P4.4", tolerance=DRIFT,
        what=f"change of success by a random step, β={beta:g}, against α² tr H/(2N)",
        measured_se=float(even.se), predicted_se=predicted.se[largest],
        detail="±Δ with drawn z; tr H from p_σ − p by antithetic pairs of other directions",
    )  # fmt: skip
    return [length, sized(change, x, "held-out prompts")], {
        "step": {"square": square, "size": d},
        "drift": as_columns(predicted),
        "control": {"beta": beta, **as_columns(even)},
    }


def _unit_step_square(workers: Workers, progress: Progress, *, z: Float, seed: int) -> Arrays:
    """‖Δ‖²/α² of the very noise, and the number d of parameters."""
    direction = _step(population(seed, len(z)), z)
    square, size, tensors = 0.0, 0, workers.checkpoint.tensors
    for done, (name, tensor) in enumerate(tensors.items()):
        count = math.prod(tensor.shape)
        for start in range(0, count, CHUNK):
            part = direction.noise(name, tensor.shape, start, min(CHUNK, count - start)).astype(np.float64)
            square += float(part @ part)
        size += count
        progress("length of the step", done + 1, len(tensors), 0)
    return {"square": np.array(square), "size": np.array(size)}


def _over(a: float, b: float) -> str:
    return f"{a / b:.2g}" if b > 0 else "∞"


def figure(title: str, data: Data) -> Any:
    """Success of the moved centers, the transfer error under its bound, the books, and pass@k."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    betas = np.array(data["betas"])
    if len(betas) > 0:
        for style, name in enumerate(("θ + Δ", "θ − Δ", "tilt")):
            shown = "population's gain p̄_w − p̄" if name == "tilt" else f"p({name}) − p"
            _points(a, betas * 1.03 ** (style - 1), data["change"][name], style, shown)
        control = data["control"]
        plots.measured(
            a, [control["beta"]], [control["value"]], [control["se"]], style=3, name="random step, mean of ±"
        )
        _line(a, betas, data["drift"], 3, "drift α² tr H/(2N), predicted")
        transfer = data["transfer"]
        plots.band(
            b, betas, *(sign * np.array(transfer["bound"]["value"]) for sign in (-1, 1)), name="±(β sd(R) + |r_Δ|)"
        )
        _points(b, betas, transfer["error"], 0, "[p(θ⁺) − p] − [p̄_w − p̄]")
        _points(b, betas, transfer["left"], 1, "odd part − [p̄_w − p̄]")
        _line(b, betas, transfer["spread"], 2, "β sd(R)")
        for ax in (a, b):
            plots.level(ax, 0.0)
            plots.ticks(ax, betas)
    else:
        for ax in (a, b):
            ax.text(0.5, 0.5, "no update: see the table", ha="center", transform=ax.transAxes)
    plots.label(a, "(a) one update, held-out prompts", "β = α/σ", "change of success")
    plots.label(b, "(b) transfer error and its estimated bound", "β = α/σ", "difference of success")
    k = np.array(data["k"])
    updates = [f"β = {beta:g}" for beta in betas]
    for style, name in enumerate(("population", "mixture", "stratification", *updates[-1:])):
        shown = {"population": "population", **{u: f"updated center, {u}" for u in updates}}.get(name, f"of it: {name}")
        _points(c, k * 1.03 ** (style - 1.5), data["books"][name], style, shown)
    plots.level(c, 0.0)
    plots.label(c, f"(c) books, N = {data['members']}", "tries K", "C_K − C_K(center)", log="x")
    for style, name in enumerate(("center", "population", *updates)):
        shown = name if name in ("center", "population") else f"updated center, {name}"
        _points(d, k * 1.03 ** (style - 2), data["coverage"][name], style % len(plots.MARKERS), shown)
    plots.label(d, "(d) pass@K, held-out prompts", "tries K", "coverage C_K", log="x")
    d.set_ylim(-0.02, 1.02)
    for ax in (c, d):
        plots.ticks(ax, k)
    for ax in (a, b, c, d):
        if ax.get_legend_handles_labels()[0]:
            plots.legend(ax)
    return fig


def _points(ax: Any, x: Float, points: Data, style: int, name: str) -> None:
    plots.measured(ax, x, points["value"], points["se"], style=style, name=name)


def _line(ax: Any, x: Float, points: Data, style: int, name: str) -> None:
    plots.predicted(ax, x, points["value"], style=style, name=name)
