"""The quantities of the theory from their definitions, in decimal arithmetic of any precision.

The judge of a suspicion: it shares no code with the rest of the library, takes no care of speed, and rounds only in
the last of as many digits as the caller asks for. Distributions, weights and successes are lists of `Decimal`; weights
are divided by their sum, which in float64 is 1 only up to rounding.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, InvalidOperation
from typing import Any

import numpy as np

Numbers = Sequence[Decimal]

CONTEXT = Context(Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, DivisionByZero])
ZERO, ONE, HALF, INFINITY = Decimal(0), Decimal(1), Decimal("0.5"), Decimal("Infinity")


def decimals(array: Any) -> Any:
    """A float64 array as nested lists of `Decimal`, to the last bit."""
    return Decimal(float(array)) if np.ndim(array) == 0 else [decimals(item) for item in array]


def times(a: Decimal, b: Decimal) -> Decimal:
    """a·b with 0·∞ = 0."""
    return ZERO if a == 0 or b == 0 else a * b


def log(x: Decimal) -> Decimal:
    """log x, −∞ at 0."""
    return x.ln() if x > 0 else -INFINITY


def dot(a: Iterable[Decimal], b: Iterable[Decimal]) -> Decimal:
    """Σ aᵢbᵢ with 0·∞ = 0."""
    return sum((times(x, y) for x, y in zip(a, b, strict=True)), ZERO)


def normalised(weights: Numbers) -> list[Decimal]:
    """Weights divided by their sum."""
    total = sum(weights, ZERO)
    return [w / total for w in weights]


def uniform(n: int) -> list[Decimal]:
    """n equal weights."""
    return [ONE / n] * n


def softmax(logits: Numbers) -> list[Decimal]:
    """eᶻ/Σeᶻ."""
    top = max(logits)
    return normalised([(z - top).exp() for z in logits])


def sigmoid(x: Decimal) -> Decimal:
    """1/(1 + e⁻ˣ)."""
    return softmax([x, ZERO])[0]


def mixture(weights: Numbers, members: Sequence[Numbers]) -> list[Decimal]:
    """Σ wᵢπᵢ."""
    return [dot(weights, column) for column in zip(*members, strict=True)]


def kl(p: Numbers, q: Numbers) -> Decimal:
    """Σ p log(p/q)."""
    return sum((x * (INFINITY if y == 0 else (x / y).ln()) for x, y in zip(p, q, strict=True) if x > 0), ZERO)


def entropy(p: Numbers) -> Decimal:
    """−Σ p log p."""
    return -sum((x * x.ln() for x in p if x > 0), ZERO)


def js(weights: Numbers, members: Sequence[Numbers]) -> Decimal:
    """Σ wᵢ KL(πᵢ‖π̄)."""
    center = mixture(weights, members)
    return sum((w * kl(p, center) for w, p in zip(weights, members, strict=True) if w > 0), ZERO)


def projected_js(weights: Numbers, success: Numbers) -> Decimal:
    """JS of the two outcomes of a verifier."""
    return js(weights, [[p, 1 - p] for p in success])


def chi_square(p: Numbers, q: Numbers) -> Decimal:
    """Σ (p−q)²/q."""
    return sum(((x - y) ** 2 / y for x, y in zip(p, q, strict=True) if y > 0), ZERO)


def moment(p: Numbers, u: Numbers, order: int) -> Decimal:
    """E_p (u − E u)^order."""
    mean = dot(p, u)
    return sum((x * (v - mean) ** order for x, v in zip(p, u, strict=True)), ZERO)


def covariance(p: Numbers, u: Numbers, v: Numbers) -> Decimal:
    """E_p (u − E u)(v − E v)."""
    a, b = dot(p, u), dot(p, v)
    return sum((x * (y - a) * (z - b) for x, y, z in zip(p, u, v, strict=True)), ZERO)


def span(u: Numbers) -> Decimal:
    """max − min."""
    return max(u) - min(u)


def psi(s: Decimal) -> Decimal:
    """(eˢ(s−1) + 1)/s², ½ at 0."""
    return HALF if s == 0 else (s.exp() * (s - 1) + 1) / s**2


def outcomes(p: Numbers, groups: Sequence[int]) -> list[Decimal]:
    """Probability of each outcome, category y belonging to groups[y]."""
    return [sum((x for x, g in zip(p, groups, strict=True) if g == k), ZERO) for k in range(max(groups) + 1)]


def odds(p: Decimal) -> Decimal:
    """p/(1−p), ∞ at 1."""
    return INFINITY if p == 1 else p / (1 - p)


def at_least_one(p: Decimal, k: int) -> Decimal:
    """1 − (1−p)ᵏ."""
    return 1 - power(1 - p, Decimal(k))


def power(base: Decimal, exponent: Decimal) -> Decimal:
    """baseᵉ for base, e >= 0, 0⁰ = 1."""
    if exponent == 0:
        return ONE
    return ZERO if base == 0 else (exponent * base.ln()).exp()


def stratified(weights: Numbers, success: Numbers) -> Decimal:
    """1 − Π(1−pᵢ)^{N wᵢ}."""
    product = ONE
    for w, p in zip(weights, success, strict=True):
        product *= power(1 - p, len(success) * w)
    return 1 - product


def log_failure_gap(weights: Numbers, success: Numbers) -> Decimal:
    """log(1 − p̄) − Σ wᵢ log(1 − pᵢ), 0 if all succeed."""
    mean = dot(weights, success)
    if all(p == 1 for w, p in zip(weights, success, strict=True) if w > 0):
        return ZERO
    return log(1 - mean) - dot(weights, [log(1 - p) for p in success])


def subset_success(success: Numbers, k: int) -> Decimal:
    """1 − e_k(1−p)/C(N, k), e_k read off the product Π(1 + (1−pᵢ)t)."""
    coefficients = [ONE] + [ZERO] * k
    for p in success:
        for j in range(k, 0, -1):
            coefficients[j] += (1 - p) * coefficients[j - 1]
    return 1 - coefficients[k] / math.comb(len(success), k)


def zscore(f: Numbers) -> list[Decimal]:
    """(f − f̄)/sd(f), 0 without spread."""
    w = uniform(len(f))
    mean, variance = dot(w, f), moment(w, f, 2)
    return [ZERO] * len(f) if span(f) == 0 else [(x - mean) / variance.sqrt() for x in f]
