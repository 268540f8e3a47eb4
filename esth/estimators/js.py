"""Sequence JS of a population from sampled responses: `mc`, `post`, `rb`, `chain`, and the per-prefix bracket.

Responses are drawn from members i (m from each) and scored under all N members. With w(y) the posterior over members
given a response or a prefix, w_j(y) ∝ w_j π_j(y), and π̄(·∣y<t) = Σ_j w_j(y<t) π_j(·∣y<t), four values of a response
estimate JS_w without bias when averaged as Σ wᵢ·meanᵢ (`stratified`):

    mc     log πᵢ(y) − log π̄_w(y)                              sequence log-probabilities under all members
    post   KL(w(y) ‖ w), the mean of `mc` given y               the same
    rb     Σ_t KL(πᵢ(·∣y<t) ‖ π̄(·∣y<t))                         next-token distributions under all members
    chain  Σ_t JS of the next-token distributions under w(y<t)  the same

The weights of a prefix are the posterior ones: prior weights give a biased estimate. `chain` usually has by far the
smallest variance, `post` − `chain` has mean 0 (`zero_mean`), and the bracket of L1.3 at every prefix, summed and
averaged the same way, brackets the sequence JS (L1.4). Where a policy is cut at a length, the cut response is an
outcome without an end token: sum over the generated tokens and keep it.

Array-API functions: NumPy arrays or torch tensors, any leading axes; steps T, members N and categories V are the last
axes in this order. Logits will do where log-probabilities of the *sampled* distribution (temperature, top-k as −inf)
are asked for. Values in nats.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from esth._array import Array, check_weights, floating, namespace, safe_log
from esth.check import Bracket
from esth.divergence import js, kl, log_mixture, log_softmax, weight_entropy
from esth.errors import InputError
from esth.estimators.intervals import Estimate, Interval, hoeffding, stratified_size
from esth.lemmas.fisher_rate import bracket

BLOCK = 1 << 20
"""Numbers of next-token log-probabilities worked on at a time by `response_terms`: temporary arrays of a few MB, which
the memory allocator hands out again without asking the system, and which a processor's last cache holds."""


class Terms(NamedTuple):
    """Next-token terms in nats, of positions [..., T] or summed over a response [...].

    `rb` is None without members, `lower` and `upper` without the bracket.
    """

    chain: Array
    lower: Array | None
    upper: Array | None
    rb: Array | None


def log_posterior(scores: Array, weights: Array | None = None) -> Array:
    """log w_j(y) from log-probabilities of a response or prefix under all members: [..., N] -> [..., N].

    The prior is returned for a response that no member of positive weight can give.
    """
    xp, scores = floating(scores)
    log_w = safe_log(check_weights(weights, scores))
    joint = log_w + scores
    possible = xp.any(xp.isfinite(joint), axis=-1, keepdims=True)
    return log_softmax(xp.where(possible, joint, log_w))


def mc(scores: Array, member: Array, weights: Array | None = None) -> Array:
    """log πᵢ(y) − log π̄_w(y) of responses drawn from member i = `member`: scores [..., N], member [...] -> [...].

    +inf where only a member of weight 0 can give the response (`stratified` leaves such members out).
    """
    xp, scores = floating(scores)
    own = _pick(scores, member)
    mixture = log_mixture(scores[..., None], weights)[..., 0]
    if bool(xp.any(xp.isinf(own))):
        raise InputError("a response has probability 0 under the member it was drawn from")
    return own - mixture


def post(scores: Array, weights: Array | None = None) -> Array:
    """KL(w(y)‖w), between 0 and log 1/w_min: scores [..., N] -> [...]; never of larger variance than `mc` (i.i.d.)."""
    posterior = log_posterior(scores, weights)
    log_w = safe_log(check_weights(weights, posterior))
    return kl(posterior, log_w)


def token_scores(next_log_p: Array, tokens: Array) -> Array:
    """Log-probability of each token under each member: next_log_p [..., N, V], tokens [...] -> [..., N]."""
    xp, next_log_p = floating(next_log_p)
    index = xp.broadcast_to(xp.asarray(tokens)[..., None, None], (*next_log_p.shape[:-1], 1))
    return xp.take_along_axis(log_softmax(next_log_p), index, axis=-1)[..., 0]


def prefix_log_posterior(scores: Array, weights: Array | None = None) -> Array:
    """log w_j(y<t), the posterior over members before each token: token scores [..., T, N] -> [..., T, N]."""
    xp, scores = floating(scores)
    before = xp.concat([xp.zeros_like(scores[..., :1, :]), xp.cumulative_sum(scores, axis=-2)[..., :-1, :]], axis=-2)
    return log_posterior(before, None if weights is None else floating(weights, scores)[1][..., None, :])


def position_terms(
    next_log_p: Array, log_posterior: Array, member: Array | None = None, *, bracketed: bool = True
) -> Terms:
    """Terms of single positions, in any block of them that fits the memory.

    Args:
        next_log_p: [..., N, V] next-token log-probabilities (or logits) of the members after the same prefix.
        log_posterior: [..., N] from `prefix_log_posterior`.
        member: [...] indices of the members the responses were drawn from, for `rb`.
        bracketed: False to leave out the bracket, which takes as long as the rest.

    Returns:
        Terms of shape [...].
    """
    xp, next_log_p, log_posterior = floating(next_log_p, log_posterior)
    log_p, weights = log_softmax(next_log_p), xp.exp(log_posterior)
    log_pbar = log_mixture(log_p, weights)
    chain = js(log_p, weights, log_pbar=log_pbar)
    bounds = bracket(log_p, weights, log_pbar=log_pbar) if bracketed else Bracket(None, None)
    rb = None
    if member is not None:
        index = xp.broadcast_to(xp.asarray(member)[..., None, None], (*log_p.shape[:-2], 1, log_p.shape[-1]))
        rb = kl(xp.take_along_axis(log_p, index, axis=-2)[..., 0, :], log_pbar)
    return Terms(chain, bounds.lower, bounds.upper, rb)


def sum_positions(terms: Terms, mask: Array) -> Terms:
    """Terms summed over the generated tokens, where `mask` is True (end token included): [..., T] -> [...]."""
    xp = namespace(terms.chain)
    return Terms(*(None if t is None else xp.sum(xp.where(mask, t, 0.0), axis=-1) for t in terms))


def sequence_scores(scores: Array, mask: Array) -> Array:
    """Log-probability of each response under each member: token scores [..., T, N], mask [..., T] -> [..., N]."""
    xp, scores = floating(scores)
    return xp.sum(xp.where(mask[..., None], scores, 0.0), axis=-2)


def response_terms(
    next_log_p: Array,
    tokens: Array,
    mask: Array,
    *,
    weights: Array | None = None,
    member: Array | None = None,
    block: int = BLOCK,
) -> Terms:
    """`chain`, bracket and `rb` of whole responses, a block of positions at a time.

    Args:
        next_log_p: [R, T, N, V] next-token log-probabilities (or logits) along each response.
        tokens: [R, T] the responses; any token where masked.
        mask: [R, T] True at the generated tokens.
        weights: [N], uniform if None.
        member: [R] the members the responses were drawn from, for `rb`.
        block: entries of `next_log_p` worked on at a time.

    Returns:
        Terms of shape [R].
    """
    xp, next_log_p = floating(next_log_p)
    responses, steps, n, v = next_log_p.shape
    rows = next_log_p.reshape((-1, n, v))
    member = None if member is None else xp.broadcast_to(xp.asarray(member)[:, None], (responses, steps)).reshape((-1,))
    tokens = xp.asarray(tokens).reshape((-1,))
    size = max(1, block // (n * v))
    blocks = [slice(start, start + size) for start in range(0, rows.shape[0], size)]
    scores = xp.concat([token_scores(rows[b], tokens[b]) for b in blocks]).reshape((responses, steps, n))
    posterior = prefix_log_posterior(xp.where(mask[..., None], scores, 0.0), weights).reshape((-1, n))
    parts = [position_terms(rows[b], posterior[b], None if member is None else member[b]) for b in blocks]
    whole = [
        None if field[0] is None else xp.concat(field).reshape((responses, steps)) for field in zip(*parts, strict=True)
    ]
    return sum_positions(Terms(*whole), mask)


def stratified(values: Array, weights: Array | None = None) -> Estimate:
    """Σ wᵢ·meanᵢ of m values from each member, with its standard error: values [..., N, m] -> [...].

    The standard error is that of drawing other responses from the same members to the same prompts: intervals from it
    cover the JS of this population, not its mean over the noise. Members of weight 0 are left out.

    Raises:
        InputError: fewer than 2 values a member.
    """
    xp, values = floating(values)
    m = values.shape[-1]
    if m < 2:
        raise InputError("the standard error needs at least 2 responses from each member")
    weights = check_weights(weights, values[..., 0])
    values = xp.where((weights > 0)[..., None], values, 0.0)
    value = xp.sum(weights * xp.mean(values, axis=-1), axis=-1)
    variance = xp.var(values, axis=-1, correction=1) / m
    return Estimate(value, xp.sqrt(xp.sum(weights * weights * variance, axis=-1)))


def post_interval(values: Array, weights: Array | None = None, confidence: float = 0.95) -> Interval:
    """Guaranteed interval of JS_w from `post` values [..., N, m], cut to [0, H(w)]: -> [...], NumPy.

    Hoeffding's, since `post` lies in [0, log 1/w_min]: valid at any m and any distribution, and wide, for it does not
    use how little the values vary.
    """
    value = np.asarray(stratified(values, weights).value)
    w = np.asarray(check_weights(weights, values[..., 0]), dtype=np.float64)
    smallest = np.min(np.where(w > 0, w, 1.0))
    ceiling = max(-math.log(smallest), 1e-300)  # 0 for a single member
    _, lower, upper = hoeffding(value, stratified_size(values.shape[-1], w), 0.0, ceiling, confidence)
    return Interval(value, lower, np.minimum(upper, np.asarray(weight_entropy(w))))


def over_prompts(estimates: Estimate, *, fixed: bool) -> Estimate:
    """Mean over prompts [..., X] of unbiased estimates with its standard error: -> [...].

    Args:
        estimates: one estimate a prompt, with independent errors.
        fixed: True for an interval about these X prompts (other responses would be drawn, their standard errors add
            up); False for one about the task they were sampled from (the spread between prompts, which holds the
            former already). The population is fixed in both.
    """
    xp, value, se = floating(estimates.value, estimates.se)
    n = value.shape[-1]
    if fixed:
        return Estimate(xp.mean(value, axis=-1), xp.sqrt(xp.sum(se * se, axis=-1)) / n)
    if n < 2:
        raise InputError("the spread between prompts needs at least 2 prompts")
    return Estimate(xp.mean(value, axis=-1), xp.std(value, axis=-1, correction=1) / n**0.5)


class ZTest(NamedTuple):
    """An estimate of something that is 0, its standard error, z = value/se and the two-sided p-value."""

    value: Array
    se: Array
    z: Array
    p_value: Array


def zero_mean(a: Array, b: Array, weights: Array | None = None) -> ZTest:
    """Test that two unbiased estimators of one JS agree, on the same responses: values [..., N, m] -> [...].

    `post` against `chain` tests the whole scoring path: both rest on the same scores, only `chain` on all next-token
    distributions. Wrong (prior) weights, a dropped end token or a dropped truncated response show here.
    """
    xp, a, b = floating(a, b)
    value, se = stratified(a - b, weights)
    z = value / xp.where(se > 0, se, 1.0)
    z = xp.where((se > 0) | (value == 0), z, xp.copysign(xp.full_like(value, xp.inf), value))
    return ZTest(value, se, z, 2.0 * stats.norm.sf(np.abs(np.asarray(z))))


def control_variate(target: Array, zero: Array, weights: Array | None = None) -> Estimate:
    """Unbiased target − c·zero of least variance, `zero` of mean 0 (`post` − `chain`): [..., N, m] -> [...].

    The coefficient c used for one half of each member's responses is fitted on the other half, so it is independent of
    what it multiplies and no bias enters.

    Raises:
        InputError: fewer than 4 responses a member.
    """
    xp, target, zero = floating(target, zero)
    m = target.shape[-1]
    if m < 4:
        raise InputError("a control variate needs at least 4 responses from each member")
    weights = check_weights(weights, target[..., 0])
    halves = [slice(0, m // 2), slice(m // 2, m)]
    coefficients = [_coefficient(target[..., h], zero[..., h], weights) for h in reversed(halves)]
    adjusted = [target[..., h] - c[..., None, None] * zero[..., h] for h, c in zip(halves, coefficients, strict=True)]
    return stratified(xp.concat(adjusted, axis=-1), weights)


def _coefficient(target: Array, zero: Array, weights: Array) -> Array:
    """Cov/Var of the stratified means: within members, weighted as their variances enter."""
    xp = namespace(target)
    squared = (weights * weights)[..., None]
    centred = zero - xp.mean(zero, axis=-1, keepdims=True)
    covariance = xp.sum(squared * centred * (target - xp.mean(target, axis=-1, keepdims=True)), axis=(-2, -1))
    variance = xp.sum(squared * centred * centred, axis=(-2, -1))
    return xp.where(variance > 0, covariance / xp.where(variance > 0, variance, 1.0), 0.0)


def _pick(scores: Array, member: Array) -> Array:
    xp = namespace(scores)
    index = xp.broadcast_to(xp.asarray(member)[..., None], (*scores.shape[:-1], 1))
    return xp.take_along_axis(scores, index, axis=-1)[..., 0]
