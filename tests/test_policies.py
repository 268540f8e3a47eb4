"""Exact policies against finite differences, brute-force enumeration, closed forms and sampling."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from esth import divergence, fisher
from esth.errors import InputError
from esth.policies import Autoregressive, Categorical, LinearSoftmax, Policy, TanhSoftmax

RNG = np.random.default_rng(20240611)

POLICIES: dict[str, Policy] = {
    "categorical": Categorical(5, temperature=0.7),
    "affine": Categorical(4, RNG.standard_normal((4, 3)), RNG.standard_normal(4)),
    "one category": Categorical(1),
    "top-k": Categorical(5, top_k=3),
    "linear": LinearSoftmax.random(RNG, 3, 4, 5, scale=2.0, shared=0.5, temperature=1.3),
    "linear, two prompt axes": LinearSoftmax(RNG.standard_normal((2, 3, 4, 2))),
    "tanh": TanhSoftmax(RNG.standard_normal((3, 2)), 4, 3, temperature=0.8),
    "bigram": Autoregressive.bigram(3, 3, temperature=0.6),
    "random autoregressive": Autoregressive.random(RNG, 4, 2, 6),
    "autoregressive, top-k": Autoregressive.random(RNG, 4, 3, 5, top_k=2),
    "autoregressive tanh": Autoregressive.tanh(RNG, 3, 3, n_inputs=2, hidden=2, temperature=1.5),
    "autoregressive, prompts": Autoregressive(LinearSoftmax(RNG.standard_normal((2, 3, 3, 4))), 2),
    "one ordinary token": Autoregressive.bigram(2, 4),
}
ALL = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
# With top-k a sequence policy's logits are log-probabilities, some of them -inf: they have no derivative.
FINITE = [name for name, p in POLICIES.items() if not (isinstance(p, Autoregressive) and p.top_k is not None)]


def central_difference(function, theta, step=1e-5):
    """d function/dθ with the derivative axis last."""
    columns = [(function(theta + step * e) - function(theta - step * e)) / (2 * step) for e in np.eye(len(theta))]
    return np.stack(columns, axis=-1)


def some_theta(policy):
    return np.random.default_rng(5).standard_normal(policy.dimension)


def some_verifier(policy):
    return np.random.default_rng(6).random((*policy.prompts, policy.n_outcomes)) < 0.4


@ALL
def test_shapes_and_normalisation(policy):
    thetas = np.random.default_rng(1).standard_normal((2, 3, policy.dimension))
    outcomes, d = (*policy.prompts, policy.n_outcomes), policy.dimension
    assert policy.log_p(thetas).shape == (2, 3, *outcomes)
    assert np.allclose(np.exp(policy.log_p(thetas)).sum(-1), 1, atol=1e-14)
    assert policy.jacobian(thetas).shape == policy.score(thetas).shape == (2, 3, *outcomes, d)
    assert policy.logit_hessian(thetas).shape == (2, 3, *outcomes, d, d)
    assert policy.fisher(thetas).shape == (2, 3, *policy.prompts, d, d)
    assert policy.population_log_p(thetas).shape == (2, *policy.prompts, 3, policy.n_outcomes)
    assert policy.population_success(thetas, some_verifier(policy)).shape == (2, *policy.prompts, 3)


@ALL
def test_batch_is_a_loop(policy):
    """Every function of a batch of θ is the stack of its values one θ at a time."""
    thetas = np.random.default_rng(2).standard_normal((2, policy.dimension))
    accepted = some_verifier(policy)
    functions = [policy.logits, policy.log_p, policy.jacobian, policy.logit_hessian, policy.fisher]
    functions += [lambda t: policy.success(t, accepted), lambda t: policy.success_gradient(t, accepted)]
    functions += [lambda t: policy.success_hessian(t, accepted)]
    for function in functions:
        assert np.allclose(function(thetas), np.stack([function(t) for t in thetas]), atol=1e-13)
    members = np.stack([policy.log_p(t) for t in thetas], axis=-2)
    assert np.allclose(np.exp(policy.population_log_p(thetas)), np.exp(members), atol=1e-14)


@ALL
def test_derivatives_are_those_of_finite_differences(policy):
    theta, accepted = some_theta(policy), some_verifier(policy)
    finite = np.isfinite(policy.log_p(theta))

    def possible_log_p(t):
        return np.where(finite, policy.log_p(t), 0.0)

    assert np.allclose(policy.score(theta)[finite], central_difference(possible_log_p, theta)[finite], atol=1e-8)
    hessian = central_difference(policy.score, theta)
    assert np.allclose(policy.log_p_hessian(theta)[finite], hessian[finite], atol=1e-7)
    gradient = central_difference(lambda t: policy.success(t, accepted), theta)
    assert np.allclose(policy.success_gradient(theta, accepted), gradient, atol=1e-9)
    hessian = central_difference(lambda t: policy.success_gradient(t, accepted), theta)
    assert np.allclose(policy.success_hessian(theta, accepted), hessian, atol=1e-8)


@pytest.mark.parametrize("name", FINITE)
def test_jacobian_and_hessian_of_the_logits(name):
    policy = POLICIES[name]
    theta = some_theta(policy)
    assert np.allclose(policy.jacobian(theta), central_difference(policy.logits, theta), atol=1e-8)
    assert np.allclose(policy.logit_hessian(theta), central_difference(policy.jacobian, theta), atol=1e-7)


@ALL
def test_fisher_is_the_curvature_of_kl(policy):
    """KL(π_θ‖π_{θ+δ}) = ½ δᵀFδ + O(|δ|³), the cubic term removed by averaging ±δ."""
    theta, delta = some_theta(policy), 1e-3 * np.random.default_rng(3).standard_normal(policy.dimension)
    center = policy.log_p(theta)
    both = divergence.kl(center, policy.log_p(theta + delta)) + divergence.kl(center, policy.log_p(theta - delta))
    quadratic = delta @ policy.fisher(theta) @ delta
    assert np.allclose(both, quadratic, rtol=2e-4, atol=1e-13)
    assert np.allclose(policy.fisher(theta), fisher.fisher(center, policy.jacobian(theta)), atol=1e-12)


@ALL
def test_sampling_frequencies(policy):
    theta, m = some_theta(policy), 20_000
    outcome = policy.sample(np.random.default_rng(4), theta, m)
    assert outcome.shape == (*policy.prompts, m)
    p = np.exp(policy.log_p(theta))
    for counts_of, probabilities in zip(outcome.reshape(-1, m), p.reshape(-1, policy.n_outcomes), strict=True):
        counts, expected = np.bincount(counts_of, minlength=policy.n_outcomes), m * probabilities
        assert np.all(counts[expected == 0] == 0)
        often = expected >= 5
        if often.sum() > 1:
            pooled_counts = np.append(counts[often], counts[~often].sum())
            pooled_expected = np.append(expected[often], expected[~often].sum())
            keep = pooled_expected > 0
            assert stats.chisquare(pooled_counts[keep], pooled_expected[keep]).pvalue > 1e-3


def test_categorical_is_softmax():
    theta = np.array([1e4, -1e4, 0.5, 0.0])
    assert np.allclose(Categorical(4).log_p(theta), special.log_softmax(theta))
    assert np.allclose(Categorical(4, temperature=2e4).log_p(theta), special.log_softmax(theta / 2e4))
    assert Categorical(1).log_p([3.0]) == 0.0


def test_temperature_limits():
    theta = np.array([0.3, 2.0, 2.0, -1.0])
    assert np.allclose(Categorical(4, temperature=np.inf).log_p(theta), np.log(0.25))
    assert np.array_equal(np.exp(Categorical(4, temperature=0).log_p(theta)), [0, 1, 0, 0])
    near_zero = np.exp(Categorical(4, temperature=1e-3).log_p(theta))
    assert np.allclose(near_zero, [0, 0.5, 0.5, 0])


def test_top_k_keeps_the_largest():
    theta = np.array([0.0, 3.0, 1.0, 3.0, 1.0])
    log_p = Categorical(5, top_k=3).log_p(theta)
    assert np.allclose(log_p[[1, 3, 2]], special.log_softmax([3.0, 3.0, 1.0]))
    assert np.all(np.isneginf(log_p[[0, 4]]))
    assert np.allclose(Categorical(5, top_k=5).log_p(theta), Categorical(5).log_p(theta))


def test_shared_features_couple_the_prompts():
    """A gradient step on one prompt's success moves the other prompts, all alike when shared = 1."""
    accepted = np.array([1, 0, 0, 0])

    def change(shared):
        policy = LinearSoftmax.random(np.random.default_rng(0), 3, 4, 6, shared=shared)
        theta = some_theta(policy)
        step = 1e-2 * policy.success_gradient(theta, accepted)[0]
        return policy.success(theta + step, accepted) - policy.success(theta, accepted)

    assert np.all(np.abs(change(0.5)) > 1e-6) and change(0.5)[0] > 0
    assert np.ptp(change(1.0)) < 1e-15
    own = LinearSoftmax(np.eye(8).reshape(2, 4, 8))
    gradient = own.success_gradient(some_theta(own), accepted)
    assert np.all(gradient[0, 4:] == 0) and np.all(gradient[1, :4] == 0)


def test_random_features_have_the_documented_scale_and_correlation():
    policy = LinearSoftmax.random(np.random.default_rng(0), 2, 2000, 50, scale=3.0, shared=0.36)
    features = policy.jacobian(np.zeros(50))
    assert np.std(features) * np.sqrt(50) == pytest.approx(3.0, rel=0.02)
    assert np.corrcoef(features.reshape(2, -1))[0, 1] == pytest.approx(0.36, abs=0.02)


def brute_force(vocabulary, length):
    """All responses by itertools: those that end, by length and then tokens, then those cut at `length`."""
    ordinary = range(vocabulary - 1)
    ended = [(*s, vocabulary - 1) for t in range(length) for s in itertools.product(ordinary, repeat=t)]
    return ended + list(itertools.product(ordinary, repeat=length))


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 1), (2, 4), (3, 3), (4, 5), (5, 1)])
def test_enumeration_is_complete(vocabulary, length):
    policy = Autoregressive.bigram(vocabulary, length)
    tokens, mask, prefix, truncated = policy.enumerate()
    listed = [tuple(row[keep].tolist()) for row, keep in zip(tokens, mask, strict=True)]
    assert listed == brute_force(vocabulary, length)
    assert np.array_equal(truncated, [s[-1] != vocabulary - 1 for s in listed])
    assert np.all(np.diff(mask.astype(int), axis=1) <= 0)
    for sequence, row in zip(listed, prefix, strict=True):
        assert [policy.prefix_index(sequence[:t]) for t in range(len(sequence))] == row[: len(sequence)].tolist()


def test_bigram_reads_the_table():
    """Sequence probabilities of the bigram, multiplied out token by token from the table of logits."""
    policy = Autoregressive.bigram(4, 5, temperature=0.7)
    theta = some_theta(policy)
    table = special.log_softmax(theta.reshape(4, 4) / 0.7, axis=-1)
    expected = [sum(table[a, b] for a, b in itertools.pairwise((3, *s))) for s in brute_force(4, 5)]
    assert policy.n_outcomes == 364
    assert np.allclose(policy.sequence_log_p(theta), expected, atol=1e-12)
    assert np.allclose(policy.next_log_p(theta, [0, 2]), table[2])
    assert np.allclose(policy.next_log_p(theta, []), table[3])


def test_top_k_applies_at_every_token():
    policy = Autoregressive.random(np.random.default_rng(8), 4, 3, 5, top_k=2)
    theta = some_theta(policy)
    log_p = policy.log_p(theta)
    for s, value in zip(brute_force(4, 3), log_p, strict=True):
        logits = [policy.next_token.logits(theta)[policy.prefix_index(s[:t])] for t in range(len(s))]
        allowed = all(token in np.argsort(z)[-2:] for token, z in zip(s, logits, strict=True))
        assert np.isfinite(value) == allowed
        if allowed:
            pairs = zip(s, logits, strict=True)
            assert value == pytest.approx(sum(z[token] - special.logsumexp(np.sort(z)[-2:]) for token, z in pairs))


@pytest.mark.parametrize("policy", [POLICIES["bigram"], POLICIES["autoregressive tanh"]], ids=["bigram", "tanh"])
def test_fisher_information_obeys_the_chain_rule(policy):
    """F of the sequences is Σ_t E_{y<t} F_t (L1.4), and the directional form agrees with εᵀFε."""
    theta = some_theta(policy)
    reach = np.exp(policy.prefix_log_p(theta))
    step = policy.next_token
    assert np.allclose(np.einsum("p,pij->ij", reach, step.fisher(theta)), policy.fisher(theta), atol=1e-12)
    epsilon = np.random.default_rng(9).standard_normal(policy.dimension)
    directional = fisher.categorical_variance(step.log_p(theta), step.jacobian(theta) @ epsilon)
    assert reach @ directional == pytest.approx(epsilon @ policy.fisher(theta) @ epsilon, rel=1e-12)


def test_js_obeys_the_chain_rule():
    """JS of the sequences is the sum over prefixes of their JS under posterior weights; prior weights are wrong."""
    policy = Autoregressive.bigram(3, 4)
    thetas = 0.8 * np.random.default_rng(10).standard_normal((4, policy.dimension))
    weights = np.array([0.5, 0.3, 0.2, 0.0])
    js = divergence.js(policy.population_log_p(thetas), weights)
    reach = weights[:, None] * np.exp(policy.prefix_log_p(thetas))
    mixture = reach.sum(0)
    next_log_p = policy.next_token.population_log_p(thetas)
    chain = mixture @ divergence.js(next_log_p, (reach / mixture).T)
    assert chain == pytest.approx(js, rel=1e-12)
    assert abs(mixture @ divergence.js(next_log_p, weights) - js) > 0.05 * js


def test_sequences_of_sampled_outcomes():
    policy = Autoregressive.bigram(3, 4)
    outcome = policy.sample(np.random.default_rng(0), np.zeros((2, policy.dimension)), 7)
    tokens, mask, prefix, truncated = policy.sequences(outcome)
    assert tokens.shape == mask.shape == prefix.shape == (2, 7, 4) and truncated.shape == (2, 7)
    assert np.array_equal(tokens[1, 3], policy.enumerate().tokens[outcome[1, 3]])


BAD = {
    "theta of shape": lambda: Categorical(3).log_p(np.zeros(4)),
    "theta must be finite": lambda: Categorical(3).log_p([0, np.nan, 1]),
    "temperature": lambda: Categorical(3, temperature=-1.0),
    "top_k": lambda: Categorical(3, top_k=4),
    "features": lambda: LinearSoftmax(np.zeros(3)),
    "features of": lambda: LinearSoftmax(np.full((2, 2), np.nan)),
    "offset": lambda: LinearSoftmax(np.zeros((2, 3, 4)), np.zeros(3)),
    "directions": lambda: Categorical(3, np.zeros((2, 3))),
    "0 categories": lambda: Categorical(0),
    "shared": lambda: LinearSoftmax.random(RNG, 2, 2, 2, shared=1.5),
    "hidden unit": lambda: TanhSoftmax(np.zeros((2, 2)), 3, 0),
    "inputs": lambda: TanhSoftmax(np.array([[np.inf]]), 3, 1),
    "verifier of shape": lambda: Categorical(3).success(np.zeros(3), [1, 0]),
    "accepts an outcome or not": lambda: Categorical(3).success(np.zeros(3), [1, 0, 0.5]),
    "prefixes": lambda: Autoregressive(LinearSoftmax(np.zeros((5, 3, 2))), 3),
    "needed: a vocabulary": lambda: Autoregressive.bigram(1, 3),
    "more than": lambda: Autoregressive.bigram(10, 40),
    "prefix": lambda: Autoregressive.bigram(3, 3).next_log_p(np.zeros(9), [0, 2]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(message):
    with pytest.raises(InputError, match=message) as error:
        BAD[message]()
    assert "\n" not in str(error.value)
