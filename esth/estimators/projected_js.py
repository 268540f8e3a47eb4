"""Verifier-projected JS of a population from counts of successes: an estimate, an interval, a test.

Member i succeeds in cᵢ of m tries. The plug-in h(p̂) − Σ wᵢ h(p̂ᵢ) is biased upward: by about (1−Σwᵢ²)/(2m) where
m p(1−p) ≫ 1, by far less near p = 0 and 1, so no constant can be taken off. The entropy has the series

    h(p) = Σ_{k>=1} [p(1−p)ᵏ + (1−p)pᵏ]/k,

and m tries estimate its terms up to k = m − 1 without bias (Zhang 2012; Grassberger's digamma formula is their sum).
`estimate` does so for each member, and for the mixture by products in which no try of a member counts twice. It is
therefore unbiased, at every p, m, N and w, for the JS of the truncated entropy h_m (`expected`), which

    is 0 where all members are equal, so equal members are estimated as 0 on average, whatever p and m are;
    falls short of JSᵛ by r(p̄) − Σ wᵢ r(pᵢ), r = h − h_m between 0 and 0.39/m (0.3/m from m = 5): by nothing for p well
    inside (0, 1), noticeably where most members have m pᵢ < 1 and a few stand out.

Bias (exact) and root mean square error of `estimate`, [bias of the plug-in], × 1000, N = 8:

    members                    JSᵛ     m = 4             m = 8             m = 16            m = 64
    all .02                      0      0   9 [ 37]       0   8 [ 31]       0   8 [ 23]       0   4 [ 8]
    all .3                       0      0  76 [138]       0  36 [ 62]       0  16 [ 29]       0   4 [ 7]
    even, .4 to .6               7      2  86 [135]       0  37 [ 60]       0  18 [ 28]       0   6 [ 7]
    even, .02 to .18            12     −6  41 [101]      −2  33 [ 60]       1  22 [ 31]       0   8 [ 7]
    half .3, half .7            82     19 113 [140]       5  64 [ 64]       0  38 [ 30]       0  18 [ 7]
    one .3, others .02          51    −24  56 [ 53]     −10  44 [ 36]       0  33 [ 25]       2  17 [ 8]
    one .5, others 0           147    −67 105 [  8]     −36  71 [  5]     −14  48 [  3]       0  22 [ 0]
    even, .02 to .98           170     26 112 [132]      13  74 [ 64]       3  47 [ 31]       0  21 [ 7]
    half .02, half .98         595     16  69 [ 54]      28  66 [ 40]      18  51 [ 27]       3  25 [ 8]
    half 0, half .5            216    −41 108 [ 64]      −9  59 [ 28]      −1  35 [ 13]       0  18 [ 3]

Coverage in % of the 95 % `interval`, 400 tables each (± 1.1):

    members               N × m =  4 × 8    8 × 4    8 × 8    8 × 16
    all .3 or .5 (JSᵛ = 0)          97.1     97.0     97.1     98.0
    even, .4 to .6                  95.5     95.0     96.8     97.0
    half .3, half .7                96.2     96.2     94.0     96.5
    even, .02 to .98                97.5     96.5     98.0     98.0
    one .5, others 0                96.8     92.8     95.0     95.0
    one .3, others .02              94.8     98.8     99.5     98.2
    half .02, half .98              98.8     99.0     98.8     99.5
    all 0, .001, .02 or .98          100      100      100      100

At JSᵛ = 0 only one end can miss, so 97.5 % is what equal tails give; where few successes (or failures) are expected, or
nearly all-or-nothing members, the interval is conservative, and no interval from so few outcomes could be exact.

Arrays: counts [..., N], members on the last axis; NumPy float64; nats.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from esth._array import check_weights
from esth.divergence import projected_js
from esth.errors import InputError
from esth.estimators.intervals import Float, Interval, skewed, wilson

SPREADS = np.concatenate([[0.0], np.geomspace(0.05, 16.0, 19)])
"""Multiples of the observed spread (in logits) at which `interval` simulates."""

SUCCESS_CONFIDENCE = 0.8
"""`interval` searches its upper end also at the end of this interval of p̄ that lies nearer ½."""

TYPICAL = 0.16
"""Quantile of the plug-in of equal members below which the upper end of `interval` does not follow the observed one."""


def plug_in(c: ArrayLike, m: int, weights: ArrayLike | None = None) -> Float:
    """h(Σ wᵢ cᵢ/m) − Σ wᵢ h(cᵢ/m): biased upward; [..., N] -> [...]."""
    counts, w = _check(c, m, weights)
    return np.asarray(projected_js(counts / m, w))


def estimate(c: ArrayLike, m: int, weights: ArrayLike | None = None) -> Float:
    """Estimate of JSᵛ_w from successes c [..., N] in m tries each, unbiased for `expected`: -> [...].

    It may be negative: its mean is 0 for equal members. O(N m²).

    Raises:
        InputError: m < 2 or m > 1000, counts that are no whole numbers in 0…m, or bad weights.
    """
    counts, w = _check(c, m, weights)
    if not 2 <= m <= 1000:
        raise InputError(f"projected JS needs 2 <= m <= 1000 tries a member, not m = {m}")
    members = _half_entropies(counts, m) + _half_entropies(m - counts, m)
    mixture = _mixture_half_entropy(counts, m, w) + _mixture_half_entropy(m - counts, m, w)
    return mixture - np.sum(w * members, axis=-1)


def truncated_entropy(p: ArrayLike, m: int) -> Float:
    """h_m(p) = Σ_{k<m} [p(1−p)ᵏ + (1−p)pᵏ]/k, what m tries tell of h(p) without bias; shape of `p`."""
    success = np.asarray(p, dtype=np.float64)[..., None]
    k = np.arange(1, m)
    return np.sum((success * (1.0 - success) ** k + (1.0 - success) * success**k) / k, axis=-1)


def expected(p: ArrayLike, m: int, weights: ArrayLike | None = None) -> Float:
    """E[`estimate`] at success probabilities p [..., N]: h_m(p̄_w) − Σ wᵢ h_m(pᵢ) -> [...]."""
    success = np.asarray(p, dtype=np.float64)
    _, w = _check(np.zeros_like(success), m, weights)
    mixture = np.clip(np.sum(w * success, axis=-1), 0.0, 1.0)
    return truncated_entropy(mixture, m) - np.sum(w * truncated_entropy(success, m), axis=-1)


def leading(c: ArrayLike, m: int, weights: ArrayLike | None = None) -> Float:
    """JSᵛ_w to leading order in the members' spread: `estimate` times h''(p̄)/h_m''(p̄); [..., N] -> [...].

    Members of small spread have JS ≈ −½ h''(p̄) Var(p), of the truncated entropy with its own curvature: of 2 to 6 tries
    the mean of `estimate` is 12–25 % off JSᵛ at standard deviations of .07 to .23, that of the corrected value 1–5 %.
    For statements that are of leading order themselves (L2.4). 0 where every try has the same outcome.
    """
    counts, w = _check(c, m, weights)
    mean = np.clip(np.sum(w * counts, axis=-1) / m, 0.0, 1.0)
    inside = (mean > 0) & (mean < 1)
    p = np.where(inside, mean, 0.5)
    return np.where(inside, estimate(counts, m, w) / (p * (1.0 - p) * truncated_curvature(p, m)), 0.0)


def truncated_curvature(p: ArrayLike, m: int) -> Float:
    """−h_m''(p) = Σ_{k<m} [2(1−p)^{k−1} − (k−1)p(1−p)^{k−2}] + the same of 1−p; shape of `p`."""
    success = np.asarray(p, dtype=np.float64)[..., None]
    k = np.arange(1, m)
    sides = (
        2.0 * b ** (k - 1) - (k - 1) * a * b ** np.maximum(k - 2, 0)
        for a, b in ((success, 1.0 - success), (1.0 - success, success))
    )
    return np.asarray(sum(side.sum(-1) for side in sides))


def over_prompts(c: ArrayLike, m: int, weights: ArrayLike | None = None, confidence: float = 0.95) -> Interval:
    """Mean of JSᵛ over the task the prompts were sampled from: counts [..., X, N] -> [...] intervals (`skewed`).

    Simulated coverage of the mean of `expected` over 20 to 300 prompts of Beta-distributed difficulty: 93–97 %, 91 %
    for 20 prompts of which most are nearly never solved (Student's: 90 %).
    """
    return skewed(estimate(c, m, weights), confidence)


def interval(
    c: ArrayLike,
    m: int,
    rng: np.random.Generator,
    weights: ArrayLike | None = None,
    confidence: float = 0.95,
    *,
    tables: int = 400,
) -> Interval:
    """Interval of one prompt's JSᵛ_w, counts [N], about `estimate`; cut at 0.

    Test inversion. The observed log-odds (a half added to successes and failures), spread by a factor τ about a
    constant that keeps p̄, form a family of populations from equal (τ = 0) to all-or-nothing members. The interval
    holds the JSᵛ of those under which the observed plug-in lies between the outer tails of its simulated distribution,
    ties counted half; so the plug-in's bias and its skewness near 0 are accounted for. As p̄ is estimated too, and few
    successes cannot exclude a larger one, the upper end is the larger of those found at p̂ and at the end of its
    interval nearer ½.

    Args:
        c: [N] successes.
        m: tries a member.
        rng: source of the simulated tables.
        weights: [N], uniform if None.
        confidence: two-sided.
        tables: simulated tables of counts at each τ.
    """
    counts, w = _check(c, m, weights)
    if counts.ndim != 1:
        raise InputError("interval takes the counts of one prompt, [N]")
    tail = 0.5 * (1.0 - confidence)
    uniforms = rng.random((tables, len(counts)))
    tries = m / float(np.sum(w * w))
    successes = float(np.clip(np.sum(w * counts) / m, 0.0, 1.0)) * tries
    around = (successes + 0.5) / (tries + 1.0)
    diversity, above, below = _tails(counts, m, w, around, uniforms)
    lower, upper = _first(diversity, above, tail), _last(diversity, below, tail)
    _, low, high = wilson(successes, tries, SUCCESS_CONFIDENCE)
    diversity, _, below = _tails(counts, m, w, float(np.clip(0.5, low, high)), uniforms)
    upper = max(upper, _last(diversity, below, tail))
    return Interval(estimate(counts, m, w), np.asarray(lower), np.asarray(upper))


def permutation_test(
    c: ArrayLike,
    m: int,
    rng: np.random.Generator,
    weights: ArrayLike | None = None,
    *,
    pooled: bool = False,
    permutations: int = 2000,
) -> Float:
    """p-value of JSᵛ_w > 0 against equal members, by exchanging outcomes across the members of a prompt.

    Given a prompt's total, equal members make every allotment of its outcomes to members equally likely (a multivariate
    hypergeometric table), whatever p is. The statistic is the plug-in; the observed table counts as one permutation, so
    the level is valid at any number of them. Weights enter the statistic only.

    Args:
        c: [..., N] successes.
        m: tries a member.
        rng: source of the permutations.
        weights: [..., N], uniform if None.
        pooled: one test of the mean over the prompts [X, N] instead of one a prompt.
        permutations: random tables a prompt.

    Returns:
        p-values [...], or one if pooled.
    """
    counts, w = _check(c, m, weights)
    total = np.broadcast_to(np.sum(counts, axis=-1), (permutations, *counts.shape[:-1])).astype(np.int64)
    columns = []
    for rest in range(counts.shape[-1], 0, -1):
        columns.append(rng.hypergeometric(total, rest * m - total, m))
        total = total - columns[-1]
    permuted, observed = plug_in(np.stack(columns, axis=-1), m, w), plug_in(counts, m, w)
    if pooled:
        axes = tuple(range(observed.ndim))
        permuted, observed = permuted.mean(axis=tuple(a + 1 for a in axes)), np.asarray(observed.mean())
    # Equal tables may differ by rounding: they count as ties.
    at_least = np.sum(permuted >= observed - 1e-12, axis=0)
    return (1.0 + at_least) / (1.0 + permutations)


def _half_entropies(c: Float, m: int) -> Float:
    """Unbiased estimate of Σ_{k<m} p(1−p)ᵏ/k from c of m: (c/m)(ψ(m) − ψ(c)), 0 at c = 0."""
    return np.where(c > 0, c / m * (special.digamma(m) - special.digamma(np.maximum(c, 1.0))), 0.0)


def _mixture_half_entropy(c: Float, m: int, weights: Float) -> Float:
    """Unbiased estimate of Σ_{k<m} p̄(1−p̄)ᵏ/k for p̄ = Σ wᵢpᵢ.

    p̄(1−p̄)ᵏ is the chance of a success and k failures in a row, each from a member drawn by w. Summed over who gives how
    many, a member's part wᵢ^(a+b) pᵢᵃ(1−pᵢ)ᵇ is estimated by falling factorials, and parts multiply: members are
    independent. `none[k]` holds the sum for k failures alone, `one[k]` that with the success, members added one by one.
    """
    k = np.arange(m)
    choose = special.binom(k[:, None], k)
    shape = (*c.shape[:-1], m)
    none, one = np.zeros(shape), np.zeros(shape)
    none[..., 0] = 1.0
    for i in range(c.shape[-1]):
        count, w = c[..., i, None], weights[..., i, None]
        left = np.maximum(m - count - k[:-1], 0.0)
        all_failing = np.cumprod(np.concatenate([np.ones_like(count), left / (m - k[:-1])], axis=-1), axis=-1)
        after_success = np.cumprod(np.concatenate([count / m, left / (m - 1 - k[:-1])], axis=-1), axis=-1)
        failures, success = w**k * all_failing, w ** (k + 1) * after_success
        one = _binomial_convolution(one, failures, choose) + _binomial_convolution(none, success, choose)
        none = _binomial_convolution(none, failures, choose)
    return np.sum(one[..., 1:] / k[1:], axis=-1)


def _binomial_convolution(a: Float, b: Float, choose: Float) -> Float:
    """Σ_s C(r, s) a[r−s] b[s] for r = 0…m−1 on the last axis."""
    terms = [np.sum(choose[r, : r + 1] * a[..., r::-1] * b[..., : r + 1], axis=-1) for r in range(a.shape[-1])]
    return np.stack(terms, axis=-1)


def _tails(c: Float, m: int, w: Float, success: float, uniforms: Float) -> tuple[Float, Float, Float]:
    """JSᵛ of each population of the family, and the chances of a plug-in above and below the observed one (mid-p).

    For the chance below, which sets the upper end, a plug-in below the TYPICAL one of equal members counts as that: a
    table more even than chance makes it is no evidence that JSᵛ is exactly 0.
    """
    p = _family(c, m, w, success)
    observed, entropies = float(plug_in(c, m, w)), special.entr(np.arange(m + 1) / m)
    entropies = entropies + entropies[::-1]
    above, below = np.empty(len(p)), np.empty(len(p))
    for j, row in enumerate(p):
        cumulative = special.bdtr(np.arange(m)[:, None, None], m, row)
        counts = np.sum(uniforms > cumulative, axis=0)
        mean = np.clip(counts @ w / m, 0.0, 1.0)
        statistic = special.entr(mean) + special.entr(1.0 - mean) - entropies[counts] @ w
        if j == 0:
            typical = max(observed, float(np.quantile(statistic, TYPICAL)))
        above[j] = np.mean(statistic > observed + 1e-9) + 0.5 * np.mean(np.abs(statistic - observed) <= 1e-9)
        below[j] = np.mean(statistic < typical - 1e-9) + 0.5 * np.mean(np.abs(statistic - typical) <= 1e-9)
    return np.asarray(projected_js(p, w)), above, below


def _family(c: Float, m: int, w: Float, success: float) -> Float:
    """Populations of mean success `success`, log-odds a + τ·(observed log-odds): -> [len(SPREADS), N]."""
    log_odds = special.logit((c + 0.5) / (m + 1.0))
    if np.ptp(log_odds) == 0:
        # No spread observed: any shape will do, a normal one is the prior guess.
        log_odds = special.ndtri((np.arange(len(c)) + 0.5) / len(c))
    z = SPREADS[:, None] * (log_odds - log_odds @ w)
    center = special.logit(success)
    low, high = center - z.max(axis=-1), center - z.min(axis=-1)
    for _ in range(60):
        middle = 0.5 * (low + high)
        too_low = special.expit(middle[:, None] + z) @ w < success
        low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
    return special.expit(0.5 * (low + high)[:, None] + z)


def _first(x: Float, tail: Float, level: float) -> float:
    """The x where `tail`, growing along x, first exceeds `level`, interpolated; the last x if nowhere."""
    inside = tail > level
    if inside[0] or not inside.any():
        return float(x[0] if inside[0] else x[-1])
    i = int(np.argmax(inside))
    return float(x[i - 1] + (level - tail[i - 1]) / (tail[i] - tail[i - 1]) * (x[i] - x[i - 1]))


def _last(x: Float, tail: Float, level: float) -> float:
    """The x where `tail`, falling along x, last exceeds `level`, interpolated; the first x if nowhere."""
    return _first(x[::-1], tail[::-1], level)


def _check(c: ArrayLike, m: int, weights: ArrayLike | None) -> tuple[Float, Float]:
    counts = np.asarray(c, dtype=np.float64)
    if counts.ndim == 0 or counts.shape[-1] < 1:
        raise InputError("counts need a member axis")
    if m < 1 or not np.all((counts >= 0) & (counts <= m) & (counts == np.round(counts))):
        raise InputError(f"successes must be whole numbers in 0..{m}, the tries of a member")
    return counts, np.asarray(check_weights(weights, counts))
