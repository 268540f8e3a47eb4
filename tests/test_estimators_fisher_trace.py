"""tr F and the predicted JS from samples of the center, against the exact Fisher matrix of enumerable policies."""

import math

import numpy as np
import pytest

from esth import divergence, fisher
from esth.errors import InputError
from esth.estimators import fisher_trace, js
from esth.lemmas import fisher_rate
from esth.policies import Autoregressive

POLICIES = {
    "bigram": Autoregressive.bigram(3, 4, temperature=0.8),
    "top-k": Autoregressive.bigram(4, 3, top_k=3),
    "tanh": Autoregressive.tanh(np.random.default_rng(0), 3, 4),
}
ALL = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


def center(policy):
    return np.random.default_rng(1).standard_normal(policy.dimension)


def along(policy, theta, outcome, epsilon):
    """Next-token log-probabilities [R, T, V], logit changes J_t ε [R, T, N, V] and mask along responses."""
    _, mask, prefix, _ = policy.sequences(outcome)
    changes = np.einsum("pvd,nd->pnv", policy.next_token.jacobian(theta), epsilon)
    return policy.next_token.log_p(theta)[prefix], changes[prefix], mask


@ALL
def test_both_forms_are_the_trace_of_the_fisher_matrix(policy):
    """By enumeration: E‖score‖² = tr F, and the directional form averages to εᵀFε for every direction."""
    theta = center(policy)
    p, matrix = np.exp(policy.log_p(theta)), policy.fisher(theta)
    possible = np.flatnonzero(p)
    norms = np.sum(policy.score(theta)[possible] ** 2, axis=-1)
    assert p[possible] @ norms == pytest.approx(fisher.trace(matrix), rel=1e-12)
    epsilon = np.random.default_rng(2).standard_normal((5, policy.dimension))
    terms = fisher_trace.directional_terms(*along(policy, theta, possible, epsilon))
    assert np.allclose(p[possible] @ terms, np.einsum("nd,de,ne->n", epsilon, matrix, epsilon), rtol=1e-12)
    basis = fisher_trace.directional_terms(*along(policy, theta, possible, np.eye(policy.dimension)))
    assert (p[possible] @ basis).sum() == pytest.approx(fisher.trace(matrix), rel=1e-12)


@ALL
def test_samples_agree_within_their_errors(policy):
    theta, m = center(policy), 600
    trace = fisher.trace(policy.fisher(theta))
    outcome = policy.sample(np.random.default_rng(3), theta, m)
    gradients = fisher_trace.from_gradients(np.sum(policy.score(theta)[outcome] ** 2, axis=-1))
    epsilon = np.random.default_rng(4).standard_normal((200, policy.dimension))
    directions = fisher_trace.from_directions(fisher_trace.directional_terms(*along(policy, theta, outcome, epsilon)))
    for value, se in (gradients, directions):
        assert abs(value - trace) < 3.5 * se and se < 0.15 * trace


def test_standard_error_of_crossed_samples():
    """Rows, columns and residual of known variances: se² is their exact combination on average, whichever leads."""
    rng = np.random.default_rng(0)
    for a, b, e in ((1.0, 0.5, 2.0), (0.2, 1.5, 0.3), (1.0, 0.0, 0.0)):
        m, n, reps = 6, 5, 4000
        rows, columns = a * rng.standard_normal((reps, m, 1)), b * rng.standard_normal((reps, 1, n))
        estimate = fisher_trace.from_directions(rows + columns + e * rng.standard_normal((reps, m, n)))
        variance = a**2 / m + b**2 / n + e**2 / (m * n)
        assert np.var(estimate.value) == pytest.approx(variance, rel=0.1)
        assert np.mean(estimate.se**2) == pytest.approx(variance, rel=0.1)


@ALL
def test_population_rate_predicts_the_population(policy):
    """Its exact mean is the quadratic form of L1.1, and the JS of the population at small σ follows."""
    theta, sigma, weights = center(policy), 1e-3, np.array([0.5, 0.3, 0.2])
    epsilon = np.random.default_rng(5).standard_normal((3, policy.dimension))
    p = np.exp(policy.log_p(theta))
    possible = np.flatnonzero(p)
    next_log_p, changes, mask = along(policy, theta, possible, epsilon)
    predicted = p[possible] @ fisher_trace.population_rate(next_log_p, sigma * changes, mask, weights)
    quadratic = fisher_rate.predict_quadratic(policy.fisher(theta), epsilon, sigma, weights)
    assert predicted == pytest.approx(quadratic, rel=1e-12)
    measured = divergence.js(policy.population_log_p(theta + sigma * epsilon), weights)
    assert predicted == pytest.approx(measured, rel=0.02)


def test_torch_gives_what_numpy_gives():
    torch = pytest.importorskip("torch")
    policy = POLICIES["tanh"]
    theta = center(policy)
    outcome = policy.sample(np.random.default_rng(3), theta, 7)
    arrays = along(policy, theta, outcome, np.random.default_rng(4).standard_normal((3, policy.dimension)))
    tensors = [torch.tensor(a) for a in arrays]
    terms = fisher_trace.directional_terms(*tensors)
    assert np.allclose(terms.numpy(), fisher_trace.directional_terms(*arrays), rtol=1e-12)
    assert np.allclose(fisher_trace.population_rate(*tensors), fisher_trace.population_rate(*arrays), rtol=1e-12)
    estimate = fisher_trace.from_directions(terms)
    assert float(estimate.se) == pytest.approx(fisher_trace.from_directions(terms.numpy()).se, rel=1e-12)
    assert float(fisher_trace.from_gradients(terms[:, 0]).se) == pytest.approx(
        float(np.std(terms[:, 0].numpy(), ddof=1) / math.sqrt(7))
    )


def test_only_generated_tokens_count():
    """Garbage behind the end of a response changes neither form."""
    policy = POLICIES["bigram"]
    theta = center(policy)
    outcome = policy.sample(np.random.default_rng(3), theta, 20)
    next_log_p, changes, mask = along(policy, theta, outcome, np.eye(policy.dimension)[:2])
    assert not mask.all()
    garbled = np.where(mask[..., None], next_log_p, np.log(1 / 3))
    wild = np.where(mask[..., None, None], changes, 1e3 * np.random.default_rng(0).standard_normal(changes.shape))
    assert np.array_equal(
        fisher_trace.directional_terms(garbled, wild, mask),
        fisher_trace.directional_terms(next_log_p, changes, mask),
    )
    assert np.array_equal(
        fisher_trace.population_rate(garbled, wild, mask), fisher_trace.population_rate(next_log_p, changes, mask)
    )


def test_rate_bracket_and_estimate_agree_on_one_population():
    """Prediction from center samples against `chain` from member samples: disjoint samples, one number."""
    policy, sigma, m = POLICIES["bigram"], 0.05, 400
    theta = center(policy)
    epsilon = np.random.default_rng(7).standard_normal((4, policy.dimension))
    outcome = policy.sample(np.random.default_rng(8), theta, m)
    next_log_p, changes, mask = along(policy, theta, outcome, epsilon)
    predicted = fisher_trace.from_gradients(fisher_trace.population_rate(next_log_p, sigma * changes, mask))
    thetas = theta + sigma * epsilon
    responses = policy.sequences(policy.sample(np.random.default_rng(9), thetas, m).reshape(-1))
    table = policy.next_token.population_log_p(thetas)
    terms = js.response_terms(table[responses.prefix], responses.tokens, responses.mask)
    measured = js.stratified(terms.chain.reshape(4, m))
    error = math.hypot(predicted.se, measured.se)
    assert abs(predicted.value - measured.value) < 3.5 * error < 0.2 * measured.value
    assert terms.lower.mean() < measured.value < terms.upper.mean() < 1.5 * measured.value


def test_bad_input_is_one_line():
    with pytest.raises(InputError, match="2 responses"):
        fisher_trace.from_gradients(np.ones(1))
    with pytest.raises(InputError, match="2 directions"):
        fisher_trace.from_directions(np.ones((3, 1)))
