"""Bounds of P4: the transfer bound, the remainder of a softmax, the survival of pass@K."""

import math
from decimal import Decimal

import numpy as np

from esth.attack import exact as ex
from esth.attack.bound import Bound, Exact, Float, Instances, Setting, Sides
from esth.attack.spaces import Updates
from esth.coverage import at_least_one
from esth.divergence import log_softmax
from esth.lemmas.center_update import (
    LOGIT_LIPSCHITZ,
    center_step,
    lipschitz_remainder,
    predict,
    remainder,
    softmax_remainder,
    survival_gain,
    transfer_bound,
)
from esth.lemmas.reward_weighting import correlation, spread
from esth.weighting import price_gain, zscore

SHARP = 8.0 / (12.0 * math.sqrt(3.0))
"""The sharp constants over the classical ones: span²/(12√3) over span²/8, and L = 1/(3√3) over ½, are the same."""


def _success(setting: Setting, logits: Float) -> Float:
    accepted = np.sum(np.exp(log_softmax(logits))[..., : setting["accepted"]], axis=-1)
    return np.clip(accepted, 0.0, 1.0)


def _gradient(setting: Setting, logits: Float) -> Float:
    """∇p in the logits: q_y (v_y − p)."""
    verifier = (np.arange(setting["v"]) < setting["accepted"]).astype(np.float64)
    return np.exp(log_softmax(logits)) * (verifier - _success(setting, logits)[..., None])


def _remainder(setting: Setting, logits: Float, move: Float) -> Float:
    """R at moves [n, …, V] of the logits [n, V]."""
    center = logits.reshape(len(logits), *[1] * (move.ndim - 2), setting["v"])
    return remainder(_success(setting, center + move), _success(setting, center), _gradient(setting, center), move)


def _update(setting: Setting, x: Instances) -> tuple[Float, Float, Float, Float]:
    """Members' moves [n, N, V], the center's move [n, V], z [n, N] and β [n]."""
    z, beta = zscore(x["fitness"]), x["beta"]
    moves = x["sigma"][:, None, None] * x["noise"]
    return moves, beta[:, None] * center_step(z, moves, 1.0), z, beta


def _transfer(setting: Setting, x: Instances) -> tuple[Float, Float, Float, Float, Float]:
    """p, members' successes, p(θ⁺) and the transfer bound; last the size of what cancels."""
    moves, step, _, beta = _update(setting, x)
    p, members = _success(setting, x["logits"]), _success(setting, x["logits"][:, None, :] + moves)
    r, r_step = _remainder(setting, x["logits"], moves), _remainder(setting, x["logits"], step)
    bound = beta * transfer_bound(r, np.zeros_like(p), 1.0) + np.abs(r_step)
    # ∇p·δ is rounded relative to its largest term, in R and in the step.
    largest = 1.0 + np.max(np.abs(x["logits"]), axis=-1) + np.max(np.abs(moves), axis=(-2, -1))
    return p, members, _success(setting, x["logits"] + step), bound, (1.0 + beta) * largest


def transfer(setting: Setting, x: Instances) -> Sides:
    p, members, updated, bound, cancelled = x.once(_transfer, setting)
    # Signed weights are allowed: only the weighted mean of the successes enters.
    weights = (1.0 + x["beta"][:, None] * zscore(x["fitness"])) / setting["n"]
    return Sides(np.abs((updated - p) - price_gain(weights, members)), bound, cancelled)


def survival(setting: Setting, x: Instances) -> Sides:
    p, members, updated, bound, cancelled = x.once(_transfer, setting)
    k = setting["k"]
    gain = predict(x["beta"], correlation(x["fitness"], members), spread(members))
    return Sides(survival_gain(p, gain, bound, k), at_least_one(updated, k) - at_least_one(p, k), k * cancelled)


def _softmax(setting: Setting, x: Instances) -> tuple[Float, Float, Float]:
    """|R| of the first member's move, the move, and the size of what cancels."""
    move = x["sigma"][:, None] * x["noise"][:, 0]
    largest = 1.0 + np.max(np.abs(x["logits"]), axis=-1) + np.max(np.abs(move), axis=-1)
    return np.abs(_remainder(setting, x["logits"], move)), move, largest


def softmax_span(setting: Setting, x: Instances) -> Sides:
    r, move, cancelled = x.once(_softmax, setting)
    return Sides(r, softmax_remainder(move), cancelled)


def softmax_span_eighth(setting: Setting, x: Instances) -> Sides:
    r, move, cancelled = x.once(_softmax, setting)
    return Sides(r, softmax_remainder(move) / SHARP, cancelled)


def lipschitz(setting: Setting, x: Instances) -> Sides:
    r, move, cancelled = x.once(_softmax, setting)
    return Sides(r, lipschitz_remainder(LOGIT_LIPSCHITZ, move), cancelled)


def lipschitz_half(setting: Setting, x: Instances) -> Sides:
    r, move, cancelled = x.once(_softmax, setting)
    return Sides(r, lipschitz_remainder(0.5, move), cancelled)


def _exact_success(setting: Setting, logits: list[Decimal]) -> Decimal:
    return sum(ex.softmax(logits)[: setting["accepted"]], ex.ZERO)


def _exact_remainder(setting: Setting, logits: list[Decimal], move: list[Decimal]) -> Decimal:
    q, p = ex.softmax(logits), _exact_success(setting, logits)
    slope = ex.dot([a * ((1 if y < setting["accepted"] else 0) - p) for y, a in enumerate(q)], move)
    return _exact_success(setting, [a + b for a, b in zip(logits, move, strict=True)]) - p - slope


def _exact_transfer(setting: Setting, x: Exact) -> tuple[Decimal, Decimal, Decimal, Decimal]:
    """p, p(θ⁺), gain of the mixture and transfer bound."""
    logits, n = x["logits"], setting["n"]
    w, z = ex.uniform(n), ex.zscore(x["fitness"])
    moves = [[x["sigma"] * e for e in row] for row in x["noise"]]
    step = [x["beta"] * ex.covariance(w, z, column) for column in zip(*moves, strict=True)]
    members = [_exact_success(setting, [a + b for a, b in zip(logits, move, strict=True)]) for move in moves]
    r = [_exact_remainder(setting, logits, move) for move in moves]
    bound = x["beta"] * ex.moment(w, r, 2).sqrt() + abs(_exact_remainder(setting, logits, step))
    updated = _exact_success(setting, [a + b for a, b in zip(logits, step, strict=True)])
    return _exact_success(setting, logits), updated, x["beta"] * ex.covariance(w, z, members), bound


def exact_transfer(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, updated, gain, bound = _exact_transfer(setting, x)
    return abs((updated - p) - gain), bound


def exact_survival(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    p, updated, gain, bound = _exact_transfer(setting, x)
    k = setting["k"]
    before, least = ex.at_least_one(p, k), min(max(ex.ZERO, p + gain - bound), ex.ONE)
    return ex.at_least_one(least, k) - before, ex.at_least_one(updated, k) - before


def _exact_softmax(setting: Setting, x: Exact) -> tuple[Decimal, list[Decimal]]:
    move = [x["sigma"] * e for e in x["noise"][0]]
    return abs(_exact_remainder(setting, x["logits"], move)), move


def exact_softmax_span_eighth(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    r, move = _exact_softmax(setting, x)
    return r, ex.span(move) ** 2 / 8


def exact_softmax_span(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    r, move = _exact_softmax(setting, x)
    return r, ex.span(move) ** 2 / (12 * Decimal(3).sqrt())


def exact_lipschitz_half(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    r, move = _exact_softmax(setting, x)
    return r, ex.dot(move, move) / 4


def exact_lipschitz(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    r, move = _exact_softmax(setting, x)
    return r, ex.dot(move, move) / (6 * Decimal(3).sqrt())


_SPACE = Updates()

BOUNDS = (
    Bound("transfer", "P4.1", "|(p(θ⁺)−p) − (p̄_w−p̄)| <= β·sd(R) + |r_Δ|", _SPACE, transfer, exact_transfer, "larger"),
    Bound("span", "P4.1", "|R| <= span²/(12√3)", _SPACE, softmax_span, exact_softmax_span, "larger"),
    Bound(
        "span/8", "P4.1", "|R| <= span²/8",
        _SPACE, softmax_span_eighth, exact_softmax_span_eighth, "larger", limit=SHARP,
    ),
    Bound("Lipschitz", "P4.1", "|R| <= (L/2)‖δ‖², L = 1/(3√3)", _SPACE, lipschitz, exact_lipschitz, "larger"),
    Bound(
        "Lipschitz 1/2", "P4.1", "the same, L = ½",
        _SPACE, lipschitz_half, exact_lipschitz_half, "larger", limit=SHARP,
    ),
    Bound(
        "survival", "P4.2", "φ(p + βρ sd(p) − R) − φ(p) <= φ(p(θ⁺)) − φ(p)",
        _SPACE, survival, exact_survival, "smaller",
    ),
)  # fmt: skip
