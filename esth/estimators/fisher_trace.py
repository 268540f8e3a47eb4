"""Fisher information of a sequence policy from samples of the center alone: it predicts a population's JS (L1.1, L1.4).

Two forms of one number. From score gradients, tr F = E‖∇ log π(y)‖², y ~ π_θ, the gradient that of the
sampled sequence's log-probability over the generated tokens. From forward passes only, along directions ε of mean 0 and
covariance I, εᵀFε = E_y Σ_t Var_{π(·∣y<t)}(J_t ε), J_t ε the derivative of the logits along ε; its mean over ε is
tr F.
For one realised population the centred directions are its own, and `population_rate` is the prediction of its JS.

Array-API functions; steps T, members or directions N, categories V are the last axes in this order.
"""

from esth._array import Array, check_weights, floating
from esth.errors import InputError
from esth.estimators.intervals import Estimate
from esth.fisher import categorical_variance
from esth.lemmas.fisher_rate import predict_population


def from_gradients(squared_norms: Array) -> Estimate:
    """tr F from ‖∇ log π(y)‖² of responses y drawn from the center: [..., m] -> [...], with standard error.

    Raises:
        InputError: fewer than 2 responses.
    """
    xp, squared_norms = floating(squared_norms)
    m = squared_norms.shape[-1]
    if m < 2:
        raise InputError("a standard error needs at least 2 responses")
    return Estimate(xp.mean(squared_norms, axis=-1), xp.std(squared_norms, axis=-1, correction=1) / m**0.5)


def directional_terms(next_log_p: Array, change: Array, mask: Array) -> Array:
    """Σ_t Var(J_t ε) of responses drawn from the center, along each of N directions.

    Args:
        next_log_p: [..., T, V] next-token log-probabilities of the center along the response.
        change: [..., T, N, V] derivatives J_t ε of the logits (a JVP, or a difference quotient).
        mask: [..., T] True at the generated tokens.

    Returns:
        [..., N], unbiased for εᵀFε.
    """
    xp, next_log_p, change = floating(next_log_p, change)
    terms = categorical_variance(next_log_p[..., None, :], change)
    return xp.sum(xp.where(mask[..., None], terms, 0.0), axis=-2)


def from_directions(terms: Array) -> Estimate:
    """tr F from `directional_terms` of m responses along the same N random directions: [..., m, N] -> [...].

    Responses and directions are both sampled and crossed: the spreads of both means add up, the residual counts once.

    Raises:
        InputError: fewer than 2 responses or directions.
    """
    xp, terms = floating(terms)
    m, n = terms.shape[-2:]
    if min(m, n) < 2:
        raise InputError("a standard error needs at least 2 responses and 2 directions")
    mean = xp.mean(terms, axis=(-2, -1), keepdims=True)
    row, column = xp.mean(terms, axis=-1, keepdims=True), xp.mean(terms, axis=-2, keepdims=True)
    residual = terms - row - column + mean
    interaction = xp.sum(residual**2, axis=(-2, -1)) / ((m - 1) * (n - 1))
    rows, columns = (xp.var(part[..., 0], axis=-1, correction=1) for part in (row, xp.matrix_transpose(column)))
    variance = rows / m + columns / n - interaction / (m * n)
    # Sampling noise may carry the difference below what the residual alone contributes.
    return Estimate(mean[..., 0, 0], xp.sqrt(xp.maximum(variance, interaction / (m * n))))


def population_rate(next_log_p: Array, displacement: Array, mask: Array, weights: Array | None = None) -> Array:
    """Leading order of this population's sequence JS, one value a response of the center: -> [...], nats (L1.1, L1.4).

    Args:
        next_log_p: [..., T, V] next-token log-probabilities of the center along the response.
        displacement: [..., T, N, V] first-order changes σ J_t εᵢ of the members' logits.
        mask: [..., T] True at the generated tokens.
        weights: [N], uniform if None: the prior weights, since the rate is about those.

    Returns:
        Values whose mean over y ~ π_θ is (σ²/2) Σ wᵢ (εᵢ−ε̄_w)ᵀF(εᵢ−ε̄_w); `from_gradients` averages them too.
    """
    xp, next_log_p, displacement = floating(next_log_p, displacement)
    weights = check_weights(weights, displacement[..., 0])
    return xp.sum(xp.where(mask, predict_population(next_log_p, displacement, weights), 0.0), axis=-1)
