"""Bounds of L1: the bracket of JS and every piece of it, its version for sequences, Fᵛ ⪯ F."""

from decimal import Decimal

import numpy as np

from esth._array import times
from esth.attack import exact as ex
from esth.attack.bound import EPS, TINY, Bound, Exact, Float, Instances, Setting, Sides
from esth.attack.spaces import Populations, Tilts, Trees
from esth.check import Bracket
from esth.divergence import js, kl, log_mixture, log_softmax, project, projected_js, renyi2, weight_entropy
from esth.estimators.js import log_posterior, position_terms
from esth.fisher import categorical_variance, outcome_fisher, projected_fisher
from esth.lemmas.fisher_rate import bracket, psi

# Populations


def _grouped(setting: Setting) -> list[int]:
    return [min(y, setting["g"] - 1) for y in range(setting["v"])]


def _population(x: Instances) -> tuple[Float, Float, Float, Float]:
    """JS, its rounding, log-probabilities [n, N, V] and weights [n, N]."""
    weights, log_p = x["weights"], log_softmax(x["logits"])
    log_q = log_mixture(log_p, weights)[:, None, :]
    # JS sums squares of log π − log π̄, which inherit the rounding of the logits' size; of equal members that is all.
    u = np.abs(np.where(np.isinf(log_p), 0.0, log_p - np.where(np.isinf(log_q), 0.0, log_q)))
    first = np.sum(weights[..., None] * np.exp(log_q) * u, axis=(-2, -1))
    largest = np.max(np.where(np.isinf(x["logits"]), 0.0, np.abs(x["logits"])), axis=(-2, -1))
    return js(log_p, weights), first * (1.0 + largest) + EPS * (1.0 + largest) ** 2, log_p, weights


def _compensation(x: Instances) -> tuple[Float, Float, Float, Float, Float]:
    """Var_q(uᵢ), span uᵢ [n, N], weights, log(1+χ²(π̄‖q)) [n] and rounding [n], all 0 where a logit is −inf."""
    weights = x["weights"]
    finite = np.all(np.isfinite(x["logits"]), axis=(-2, -1))[:, None, None]
    logits = np.where(finite, x["logits"], 0.0)
    zbar = np.sum(weights[..., None] * logits, axis=-2, keepdims=True)
    u, log_q = logits - zbar, log_softmax(zbar)
    span = np.max(u, axis=-1) - np.min(u, axis=-1)
    log_mix = log_mixture(log_softmax(logits), weights)
    largest = 1.0 + np.max(np.abs(logits), axis=(-2, -1))
    cancelled = largest * np.sum(weights * span, axis=-1) + EPS * largest**2
    return categorical_variance(log_q, u), span, weights, renyi2(log_mix, log_q[:, 0]), cancelled


def _where_finite(x: Instances, sides: Sides) -> Sides:
    finite = np.all(np.isfinite(x["logits"]), axis=(-2, -1))
    return Sides(*(np.where(finite, side, 0.0) for side in sides))


def _growing(variance: Float, span: Float) -> Float:
    """Var·ψ(s), +inf where the variance underflows and ψ is large: their product is then unknown."""
    return np.where((variance < TINY) & (span > 1.0), np.inf, times(variance, psi(span)))


def js_lower(setting: Setting, x: Instances) -> Sides:
    value, rounding, _, _ = x.once(_population)
    variance, span, weights, order2, cancelled = x.once(_compensation)
    lower = np.sum(weights * variance * psi(-span), axis=-1) - order2
    return _where_finite(x, Sides(lower, value, rounding + cancelled))


def js_psi(setting: Setting, x: Instances) -> Sides:
    value, rounding, _, _ = x.once(_population)
    variance, span, weights, _, cancelled = x.once(_compensation)
    upper = np.sum(times(weights, _growing(variance, span)), axis=-1)
    return _where_finite(x, Sides(value, upper, rounding + cancelled))


def js_span(setting: Setting, x: Instances) -> Sides:
    value, rounding, _, _ = x.once(_population)
    _, span, weights, _, cancelled = x.once(_compensation)
    return _where_finite(x, Sides(value, np.sum(weights * span**2 / 8.0, axis=-1), rounding + cancelled))


def _bracket(x: Instances) -> Bracket:
    return bracket(x["logits"], x["weights"])


def js_bracket_lower(setting: Setting, x: Instances) -> Sides:
    value, rounding, _, _ = x.once(_population)
    return Sides(x.once(_bracket).lower, value, rounding)


def js_bracket_upper(setting: Setting, x: Instances) -> Sides:
    value, rounding, _, _ = x.once(_population)
    # Where the upper side is H(w): see `js_entropy`.
    entropy = weight_entropy(x["weights"])
    upper = x.once(_bracket).upper
    return Sides(value, upper, rounding + np.where(upper >= entropy, 1.0, 0.0))


def js_entropy(setting: Setting, x: Instances) -> Sides:
    value, _, _, weights = x.once(_population)
    # The weights' sum is known up to rounding, and H(w) changes as much.
    return Sides(value, weight_entropy(weights), 1.0)


def js_pinsker(setting: Setting, x: Instances) -> Sides:
    value, rounding, log_p, weights = x.once(_population)
    distance = np.sum(np.abs(np.exp(log_p) - np.exp(log_mixture(log_p, weights))[:, None, :]), axis=-1)
    return Sides(0.5 * np.sum(weights * distance**2, axis=-1), value, rounding)


def js_projected(setting: Setting, x: Instances) -> Sides:
    value, rounding, log_p, weights = x.once(_population)
    outcome = np.array(_grouped(setting))
    return Sides(js(project(log_p, outcome, setting["g"]), weights), value, rounding)


def weights_entropy(setting: Setting, x: Instances) -> Sides:
    return Sides(weight_entropy(x["weights"]), np.full(len(x["weights"]), np.log(setting["n"])))


def _exact_population(x: Exact) -> tuple[list[Decimal], list[list[Decimal]], Decimal]:
    weights, members = ex.normalised(x["weights"]), [ex.softmax(z) for z in x["logits"]]
    return weights, members, ex.js(weights, members)


def _exact_finite(x: Exact) -> bool:
    return all(z.is_finite() for row in x["logits"] for z in row)


def _exact_moves(x: Exact, weights: list[Decimal]) -> tuple[list[Decimal], list[list[Decimal]]]:
    """q and the uᵢ of L1.3."""
    zbar = ex.mixture(weights, x["logits"])
    return ex.softmax(zbar), [[a - b for a, b in zip(z, zbar, strict=True)] for z in x["logits"]]


def exact_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    weights, members, value = _exact_population(x)
    if not _exact_finite(x):
        return ex.ZERO, ex.ZERO
    q, moves = _exact_moves(x, weights)
    first = ex.dot(weights, [ex.moment(q, u, 2) * ex.psi(-ex.span(u)) for u in moves])
    return first - (1 + ex.chi_square(ex.mixture(weights, members), q)).ln(), value


def exact_psi(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    weights, _, value = _exact_population(x)
    if not _exact_finite(x):
        return ex.ZERO, ex.ZERO
    q, moves = _exact_moves(x, weights)
    return value, ex.dot(weights, [ex.moment(q, u, 2) * ex.psi(ex.span(u)) for u in moves])


def exact_span(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    weights, _, value = _exact_population(x)
    if not _exact_finite(x):
        return ex.ZERO, ex.ZERO
    return value, ex.dot(weights, [ex.span(u) ** 2 / 8 for u in _exact_moves(x, weights)[1]])


def exact_entropy(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    weights, _, value = _exact_population(x)
    return value, ex.entropy(weights)


def exact_pinsker(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    weights, members, value = _exact_population(x)
    center = ex.mixture(weights, members)
    distances = [sum((abs(a - b) for a, b in zip(p, center, strict=True)), ex.ZERO) for p in members]
    return ex.HALF * ex.dot(weights, [d**2 for d in distances]), value


def exact_projected(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    weights, members, value = _exact_population(x)
    return ex.js(weights, [ex.outcomes(p, _grouped(setting)) for p in members]), value


def exact_bracket_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    pinsker, value = exact_pinsker(setting, x)
    supported = _supported(x)
    return (max(pinsker, exact_lower(setting, supported)[0]) if _exact_finite(supported) else pinsker), value


def exact_bracket_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    value, ceiling = exact_entropy(setting, x)
    supported = _supported(x)
    if not _exact_finite(supported):
        return value, ceiling
    weights = ex.normalised(supported["weights"])
    q, moves = _exact_moves(supported, weights)
    terms = [min(ex.moment(q, u, 2) * ex.psi(ex.span(u)), ex.span(u) ** 2 / 8) for u in moves]
    return value, min(ex.dot(weights, terms), ceiling)


def _supported(x: Exact) -> Exact:
    """The members of positive weight."""
    kept = [(w, z) for w, z in zip(x["weights"], x["logits"], strict=True) if w > 0]
    return {"weights": [w for w, _ in kept], "logits": [z for _, z in kept]}


def exact_weights(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    return ex.entropy(ex.normalised(x["weights"])), Decimal(setting["n"]).ln()


# One distribution and one tilt of it


def _tilt(x: Instances) -> tuple[Float, Float, Float, Float, Float]:
    """log q, u, span u, KL(softmax(log q + u)‖q) and rounding."""
    log_q, u = log_softmax(x["logits"]), x["change"]
    span = np.max(u, axis=-1) - np.min(u, axis=-1)
    log_p = log_softmax(x["logits"] + u)
    largest = 1.0 + np.max(np.abs(x["logits"]), axis=-1) + np.max(np.abs(u), axis=-1)
    cancelled = largest * np.sum(np.exp(log_q) * np.abs(log_p - log_q), axis=-1) + EPS * largest**2
    return log_q, u, span, kl(log_p, log_q), cancelled


def tilt_psi(setting: Setting, x: Instances) -> Sides:
    log_q, u, span, value, rounding = x.once(_tilt)
    return Sides(value, _growing(categorical_variance(log_q, u), span), rounding)


def tilt_lower(setting: Setting, x: Instances) -> Sides:
    log_q, u, span, value, rounding = x.once(_tilt)
    return Sides(categorical_variance(log_q, u) * psi(-span), value, rounding)


def tilt_span(setting: Setting, x: Instances) -> Sides:
    _, _, span, value, rounding = x.once(_tilt)
    return Sides(value, span**2 / 8.0, rounding)


def cumulant(setting: Setting, x: Instances) -> Sides:
    log_q, u, span, _, _ = x.once(_tilt)
    q = np.exp(log_q)
    centred = u - np.sum(q * u, axis=-1, keepdims=True)
    variance = categorical_variance(log_q, u)
    third = np.sum(q * centred**3, axis=-1)
    return Sides(np.abs(third), span * variance, np.max(np.abs(u), axis=-1) * variance)


def _gradients(log_q: Float, group: list[int]) -> tuple[Float, Float]:
    """Outcome probabilities [n, k] and their gradients in the logits [n, k, V]: q_y (1{y in k} − p_k)."""
    q = np.exp(log_q)
    belongs = np.equal.outer(np.arange(max(group) + 1), np.array(group)).astype(np.float64)
    p = q @ belongs.T
    return p, q[:, None, :] * (belongs - p[..., None])


def fisher_verifier(setting: Setting, x: Instances) -> Sides:
    log_q, u, _, _, _ = x.once(_tilt)
    group = [0 if y < setting["accepted"] else 1 for y in range(setting["v"])]
    p, gradient = _gradients(log_q, group)
    projected = projected_fisher(np.clip(p[:, 0], 0.0, 1.0), gradient[:, 0])
    return _quadratic(projected, log_q, u)


def fisher_outcomes(setting: Setting, x: Instances) -> Sides:
    log_q, u, _, _, _ = x.once(_tilt)
    return _quadratic(outcome_fisher(*_gradients(log_q, _grouped(setting))), log_q, u)


def _quadratic(matrix: Float, log_q: Float, u: Float) -> Sides:
    form = np.einsum("ni,nij,nj->n", u, matrix, u)
    return Sides(form, categorical_variance(log_q, u), np.max(np.abs(u), axis=-1) ** 2)


def _exact_tilt(x: Exact) -> tuple[list[Decimal], list[Decimal], Decimal]:
    q = ex.softmax(x["logits"])
    p = ex.softmax([z + u for z, u in zip(x["logits"], x["change"], strict=True)])
    return q, x["change"], ex.kl(p, q)


def exact_tilt_psi(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    q, u, value = _exact_tilt(x)
    return value, ex.moment(q, u, 2) * ex.psi(ex.span(u))


def exact_tilt_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    q, u, value = _exact_tilt(x)
    return ex.moment(q, u, 2) * ex.psi(-ex.span(u)), value


def exact_tilt_span(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    _, u, value = _exact_tilt(x)
    return value, ex.span(u) ** 2 / 8


def exact_cumulant(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    q, u = ex.softmax(x["logits"]), x["change"]
    return abs(ex.moment(q, u, 3)), ex.span(u) * ex.moment(q, u, 2)


def _exact_explained(q: list[Decimal], u: list[Decimal], group: list[int]) -> tuple[Decimal, Decimal]:
    """Variance of E[u | outcome] and of u: the two Fisher informations along u."""
    p = ex.outcomes(q, group)
    sums = ex.outcomes([a * b for a, b in zip(q, u, strict=True)], group)
    means = [s / total if total > 0 else ex.ZERO for s, total in zip(sums, p, strict=True)]
    return ex.moment(p, means, 2), ex.moment(q, u, 2)


def exact_verifier(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    group = [0 if y < setting["accepted"] else 1 for y in range(setting["v"])]
    return _exact_explained(ex.softmax(x["logits"]), x["change"], group)


def exact_outcomes(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    return _exact_explained(ex.softmax(x["logits"]), x["change"], _grouped(setting))


# Sequences of two tokens


def _tree(setting: Setting, x: Instances) -> tuple[Float, Float, Float, Float]:
    """Scores of first tokens [n, V, N], log-probabilities of sequences [n, N, V·V], weights, rounding."""
    v, log_p = setting["v"], log_softmax(x["logits"])
    first, second = log_p[:, :, 0, :], log_p[:, :, 1:, :]
    leaves = (first[..., None] + second).reshape(len(log_p), -1, v * v)
    _, rounding, _, _ = _population(Instances({"logits": leaves, "weights": x["weights"]}))
    return np.swapaxes(first, -1, -2), leaves, x["weights"], rounding


def _tree_terms(setting: Setting, x: Instances) -> tuple[Float, Float, Float, Float]:
    """JS of the sequences, lower and upper side of L1.4, rounding: prefixes averaged under the mixture."""
    scores, leaves, weights, rounding = x.once(_tree, setting)
    root = position_terms(x["logits"][:, :, 0, :], log_posterior(np.zeros_like(weights), weights))
    below = position_terms(np.swapaxes(x["logits"][:, :, 1:, :], 1, 2), log_posterior(scores, weights[:, None, :]))
    mass = np.exp(log_mixture(np.swapaxes(scores, -1, -2), weights))
    lower = root.lower + np.sum(mass * below.lower, axis=-1)
    upper = root.upper + np.sum(mass * below.upper, axis=-1)
    return js(leaves, weights), lower, upper, rounding


def tree_lower(setting: Setting, x: Instances) -> Sides:
    value, lower, _, rounding = x.once(_tree_terms, setting)
    return Sides(lower, value, rounding)


def tree_upper(setting: Setting, x: Instances) -> Sides:
    value, _, upper, rounding = x.once(_tree_terms, setting)
    # Posterior weights below rounding: see `js_entropy`.
    return Sides(value, upper, rounding + 1.0)


def _accepted(setting: Setting) -> list[bool]:
    return [bool(setting["accepted"] >> leaf & 1) for leaf in range(setting["v"] ** 2)]


def tree_processing(setting: Setting, x: Instances) -> Sides:
    """I(I;v∣y₁) <= I(I;y₂∣y₁)."""
    scores, _, weights, rounding = x.once(_tree, setting)
    posterior = np.exp(log_posterior(scores, weights[:, None, :]))
    mass = np.exp(log_mixture(np.swapaxes(scores, -1, -2), weights))
    second = np.swapaxes(log_softmax(x["logits"][:, :, 1:, :]), 1, 2)
    accepted = np.array(_accepted(setting)).reshape(setting["v"], 1, setting["v"])
    success = np.clip(np.sum(np.exp(second) * accepted, axis=-1), 0.0, 1.0)
    verdict = np.sum(mass * projected_js(success, posterior), axis=-1)
    coming = np.sum(mass * js(second, posterior), axis=-1)
    # A success of 1 is a sum known up to rounding, and JSᵛ changes as much.
    return Sides(verdict, coming, rounding + 1.0)


def _exact_tree(x: Exact) -> tuple[list[Decimal], list[list[list[Decimal]]]]:
    return ex.normalised(x["weights"]), [[ex.softmax(z) for z in member] for member in x["logits"]]


def _exact_sequence(x: Exact) -> Decimal:
    weights, members = _exact_tree(x)
    return ex.js(weights, [[a * b for a, row in zip(m[0], m[1:], strict=True) for b in row] for m in members])


def _exact_prefixes(x: Exact) -> list[tuple[Decimal, Exact]]:
    """Every prefix the mixture can give: its probability, and posterior weights and logits there."""
    weights, members = _exact_tree(x)
    prefixes = [(ex.ONE, {"weights": weights, "logits": [z[0] for z in x["logits"]]})]
    for y in range(len(x["logits"][0][0])):
        joint = [w * m[0][y] for w, m in zip(weights, members, strict=True)]
        if sum(joint) > 0:
            at = {"weights": ex.normalised(joint), "logits": [z[1 + y] for z in x["logits"]]}
            prefixes.append((sum(joint, ex.ZERO), at))
    return prefixes


def exact_tree_lower(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    terms = [mass * exact_bracket_lower(setting, at)[0] for mass, at in _exact_prefixes(x)]
    return sum(terms, ex.ZERO), _exact_sequence(x)


def exact_tree_upper(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    terms = [mass * exact_bracket_upper(setting, at)[1] for mass, at in _exact_prefixes(x)]
    return _exact_sequence(x), sum(terms, ex.ZERO)


def exact_tree_processing(setting: Setting, x: Exact) -> tuple[Decimal, Decimal]:
    weights, members = _exact_tree(x)
    v, accepted = setting["v"], _accepted(setting)
    verdict = coming = ex.ZERO
    for y in range(v):
        joint = [w * m[0][y] for w, m in zip(weights, members, strict=True)]
        mass = sum(joint, ex.ZERO)
        if mass > 0:
            rows = [m[1 + y] for m in members]
            success = [sum((p for p, a in zip(row, accepted[y * v :], strict=False) if a), ex.ZERO) for row in rows]
            verdict += mass * ex.projected_js(ex.normalised(joint), success)
            coming += mass * ex.js(ex.normalised(joint), rows)
    return verdict, coming


_POPULATIONS, _TILTS, _TREES = Populations(), Tilts(), Trees()

BOUNDS = (
    Bound("lower", "L1.3", "Σw Var_q(u)ψ(−s) − log(1+χ²) <= JS", _POPULATIONS, js_lower, exact_lower, "smaller"),
    Bound("psi", "L1.3", "JS <= Σw Var_q(u)ψ(s)", _POPULATIONS, js_psi, exact_psi, "larger"),
    Bound("span", "L1.3", "JS <= Σw s²/8", _POPULATIONS, js_span, exact_span, "larger"),
    Bound("entropy", "L1.3", "JS <= H(w)", _POPULATIONS, js_entropy, exact_entropy, "larger"),
    Bound("weights", "Setting", "H(w) <= log N", _POPULATIONS, weights_entropy, exact_weights, "larger"),
    Bound("pinsker", "L1.3", "½Σw‖π−π̄‖₁² <= JS", _POPULATIONS, js_pinsker, exact_pinsker, "smaller"),
    Bound("projected", "Setting", "JSᵛ <= JS", _POPULATIONS, js_projected, exact_projected, "smaller"),
    Bound(
        "bracket lower", "L1.3", "bracket().lower <= JS", _POPULATIONS, js_bracket_lower, exact_bracket_lower, "smaller"
    ),
    Bound(
        "bracket upper", "L1.3", "JS <= bracket().upper", _POPULATIONS, js_bracket_upper, exact_bracket_upper, "larger"
    ),
    Bound("cumulant", "L1.3", "|κ₃(u)| <= span·Var(u)", _TILTS, cumulant, exact_cumulant, "larger"),
    Bound("tilt psi", "L1.3", "KL <= Var_q(u)ψ(s)", _TILTS, tilt_psi, exact_tilt_psi, "larger"),
    Bound("tilt lower", "L1.3", "Var_q(u)ψ(−s) <= KL", _TILTS, tilt_lower, exact_tilt_lower, "smaller"),
    Bound("tilt span", "L1.3", "KL <= s²/8", _TILTS, tilt_span, exact_tilt_span, "larger"),
    Bound("verifier Fisher", "Setting", "uᵀFᵛu <= uᵀFu", _TILTS, fisher_verifier, exact_verifier, "smaller"),
    Bound("outcome Fisher", "Setting", "the same, k outcomes", _TILTS, fisher_outcomes, exact_outcomes, "smaller"),
    Bound("sequence lower", "L1.4", "E Σ_t lower(y<t) <= JS", _TREES, tree_lower, exact_tree_lower, "smaller"),
    Bound("sequence upper", "L1.4", "JS <= E Σ_t upper(y<t)", _TREES, tree_upper, exact_tree_upper, "larger"),
    Bound("processing", "L1.4", "I(I;v|y₁) <= I(I;y₂|y₁)", _TREES, tree_processing, exact_tree_processing, "smaller"),
)
