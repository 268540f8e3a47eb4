"""P4 · Center-update coverage: what of the population's gain survives in the updated center.

θ⁺ = θ + Δ, Δ = (α/N)Σzᵢεᵢ with Σzᵢ = 0 and mean z² = 1, β = α/σ. C_K(θ) = E_x[1 − (1−p_θ(x))ᴷ].

P4.1  Rᵢ = pᵢ − p − σ∇p·εᵢ and r_Δ, the same remainder at Δ: |[p_{θ⁺} − p] − [p̄_w − p̄]| <= β·sd(R) + |r_Δ|.
      |Rᵢ| <= (L/2)σ²‖εᵢ‖² for L-Lipschitz ∇p, and in logit space L = 1/(3√3) is sharp;
      |Rᵢ| <= span²/(12√3), sharp, for a categorical policy with logits affine in θ.
P4.2  If βρ sd(p) > R on a prompt, pass@K rises there for every K, by at least φ_K(max(0, p + βρ sd(p) − R)) − φ_K(p).
P4.3  C_K(population) − C_K(θ) = mixture part + stratification part (L2.2); beside it C_K(θ⁺) − C_K(θ).
P4.4  z independent of ε: E‖Δ‖² = α²d/N, and the random part changes C_K by α² tr H/(2N); signal beats it when
      N >> α|tr H|/(2ρ‖∇C_K‖). Linear noiseless fitness, Gaussian noise: E‖Δ‖² = α²(d+N−2)/N.

Members on axis −1 of scalars (successes, fitness, z) and on axis −2 of noise [..., N, d].
"""

import math
from dataclasses import dataclass

from esth._array import Array, check_probability, floating
from esth.check import Bracket, Check, as_identity, judge_bracket, judge_equal
from esth.coverage import at_least_one, mean_success, population_success
from esth.errors import InputError

LOGIT_LIPSCHITZ = 1.0 / (3.0 * math.sqrt(3.0))
"""Sharp Lipschitz constant of ∇p in a softmax's logits: a unit change has span at most √2 (P4.1)."""


def center_step(z: Array, epsilon: Array, alpha: float) -> Array:
    """Δ = (α/N) Σ zᵢεᵢ: z [..., N], epsilon [..., N, d] -> [..., d]."""
    xp, z, epsilon = floating(z, epsilon)
    return alpha / z.shape[-1] * xp.sum(z[..., None] * epsilon, axis=-2)


def predict(beta: Array, rho: Array, deviation: Array) -> Array:
    """Leading order of p_{θ⁺} − p: the population's gain βρ sd(p), transferred whole (P4.1)."""
    _, beta, rho, deviation = floating(beta, rho, deviation)
    return beta * rho * deviation


def remainder(p: Array, center: Array, gradient: Array, displacement: Array) -> Array:
    """R = p(θ+δ) − p(θ) − ∇p·δ: p [...], center [...], gradient [..., d], displacement δ [..., d] -> [...]."""
    xp, p, center, gradient, displacement = floating(p, center, gradient, displacement)
    return p - center - xp.sum(gradient * displacement, axis=-1)


def transfer_bound(remainders: Array, step_remainder: Array, beta: float) -> Array:
    """β·sd(R) + |r_Δ|, bound of |[p_{θ⁺} − p] − [p̄_w − p̄]| under the linear tilt (P4.1); R [..., N], r_Δ [...]."""
    xp, r, step_remainder = floating(remainders, step_remainder)
    centred = r - xp.mean(r, axis=-1, keepdims=True)
    return abs(beta) * xp.sqrt(xp.mean(centred * centred, axis=-1)) + xp.abs(step_remainder)


def lipschitz_remainder(lipschitz: float, displacement: Array) -> Array:
    """|R| <= (L/2)‖δ‖² for an L-Lipschitz gradient (P4.1): displacement [..., d] -> [...].

    Of success as a function of a softmax's logits the smallest L is `LOGIT_LIPSCHITZ`.
    """
    xp, displacement = floating(displacement)
    return 0.5 * lipschitz * xp.sum(displacement * displacement, axis=-1)


def softmax_remainder(logit_change: Array) -> Array:
    """|R| <= span(u)²/(12√3) for a softmax whose logits move by u, affine in θ (P4.1): [..., V] -> [...].

    |p″| <= span²/(6√3) along the line, for any number of categories and any accepted set; a single accepted category
    with p = (1 ± 1/√3)/2 reaches the bound as span -> 0 (proofs/center_update.py).
    """
    xp, u = floating(logit_change)
    return (xp.max(u, axis=-1) - xp.min(u, axis=-1)) ** 2 / (12.0 * math.sqrt(3.0))


def typical_remainder(hessian: Array, sigma: float) -> Array:
    """sd(Rᵢ) ≈ σ²‖∇²p‖_F/√2, leading order for Gaussian noise only (P4.1): hessian [..., d, d] -> [...]."""
    xp, hessian = floating(hessian)
    return sigma**2 * xp.sqrt(xp.sum(hessian * hessian, axis=(-2, -1)) / 2.0)


def survival_gain(p: Array, gain: Array, bound: Array, k: Array | int) -> Array:
    """φ_K(max(0, p + gain − R)) − φ_K(p): at least this much pass@K is gained by the center (P4.2), of either sign.

    Args:
        p: success of the center; gain: p̄_w − p̄ = βρ sd(p); bound: R of `transfer_bound`; k: tries. All broadcast.
    """
    xp, p, gain, bound = floating(check_probability(p), gain, bound)
    return at_least_one(xp.clip(p + gain - bound, 0.0, 1.0), k) - at_least_one(p, k)


@dataclass(frozen=True)
class Bookkeeping:
    """Where coverage at K = N tries came from, each a difference to the center's C_K(θ) (P4.3), arrays [prompts].

    `population` = `mixture` + `stratification`: N draws of the population's mixture, and what one response from each
    member adds to it (L2.2). `updated` is the new center's.
    """

    updated: Array
    population: Array
    mixture: Array
    stratification: Array


def bookkeeping(center: Array, updated: Array, members: Array) -> Bookkeeping:
    """P4.3 prompt by prompt: successes of the center [X], the updated center [X] and the members [X, N]."""
    _, center, updated, members = floating(center, updated, members)
    n = members.shape[-1]
    base = at_least_one(center, n)
    mixture = at_least_one(mean_success(members), n)
    population = population_success(members)
    return Bookkeeping(at_least_one(updated, n) - base, population - base, mixture - base, population - mixture)


def matching_success(members: Array) -> Array:
    """1 − Π(1−pᵢ)^{1/N}: the success at which one center covers as much as the population (P4.3): [..., N] -> [...]."""
    return at_least_one(population_success(members), 1.0 / floating(members)[1].shape[-1])


def step_square(alpha: float, d: int, n: int, *, linear: bool = False) -> float:
    """E‖Δ‖²: α²d/N for z independent of ε, α²(d+N−2)/N for linear noiseless fitness and Gaussian noise (P4.4)."""
    return alpha**2 * (d + n - 2 if linear else d) / n


def drift(alpha: float, hessian_trace: Array, n: int) -> Array:
    """Mean change of C_K by the random part of the step, α² tr H/(2N), H = ∇²C_K, of either sign (P4.4)."""
    _, hessian_trace = floating(hessian_trace)
    return alpha**2 * hessian_trace / (2.0 * n)


def members_needed(alpha: float, hessian_trace: Array, rho: Array, gradient_norm: Array) -> Array:
    """α|tr H|/(2ρ‖∇C_K‖): the N beyond which the signal ρα‖∇C_K‖ outweighs the drift (P4.4)."""
    xp, trace, rho, norm = floating(hessian_trace, rho, gradient_norm)
    return alpha * xp.abs(trace) / (2.0 * rho * norm)


def check(
    center_gain: float,
    population_gain: float,
    bound: float,
    *,
    se: float = 0.0,
    what: str = "[p(θ⁺) − p] − [p̄_w − p̄]",
    detail: str = "",
) -> Check:
    """Compare p_{θ⁺} − p with p̄_w − p̄ within the transfer bound (P4.1); with exact remainders an identity."""
    if bound < 0:
        raise InputError("a transfer bound is not negative")
    judged = judge_bracket(
        "P4.1", what, center_gain - population_gain, Bracket(-bound, bound),
        measured_se=se, floor=-1.0, ceiling=1.0, detail=detail,
    )  # fmt: skip
    return as_identity(judged) if se == 0 else judged


def check_prediction(
    measured: float,
    predicted: float,
    *,
    statement: str,
    what: str,
    measured_se: float = 0.0,
    predicted_se: float = 0.0,
    tolerance: float = 0.1,
    detail: str = "",
) -> Check:
    """Compare a measured drift or gain with its leading order (P4.1, P4.4)."""
    return judge_equal(
        statement, what, measured, predicted,
        measured_se=measured_se, predicted_se=predicted_se, tolerance=tolerance, detail=detail,
    )  # fmt: skip
