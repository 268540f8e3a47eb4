"""Sequence-JS estimators: exact means by enumeration of every response, z-tests of samples, counterexamples, torch."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from esth import divergence
from esth._array import safe_log
from esth.errors import InputError
from esth.estimators import js
from esth.estimators.intervals import Estimate
from esth.lemmas import fisher_rate
from esth.policies import Autoregressive, LinearSoftmax
from esth.policies.autoregressive import count_prefixes

UNIFORM = np.full(4, 0.25)
SKEWED = np.array([0.55, 0.3, 0.15, 0.0])


def fixed_length_bigram():
    """Strings of exactly 5 of 4 tokens, drawn from a bigram table: the end token has probability e^-800."""
    last = np.full(count_prefixes(5, 5), 4)
    last[1:] = np.arange(len(last) - 1) % 4
    features = np.einsum("pw,vu->pvwu", np.eye(5)[last], np.eye(5)[:, :4]).reshape(len(last), 5, 20)
    offset = np.zeros((len(last), 5))
    offset[:, 4] = -800.0
    return Autoregressive(LinearSoftmax(features, offset), 5)


POLICIES = {
    "bigram": Autoregressive.bigram(4, 5),
    "bigram, temperature 0.6": Autoregressive.bigram(3, 4, temperature=0.6),
    "top-k": Autoregressive.bigram(4, 4, top_k=2),
    "tanh": Autoregressive.tanh(np.random.default_rng(0), 4, 4, temperature=1.4),
    "mostly truncated": Autoregressive.random(np.random.default_rng(1), 4, 2, 5),
    "fixed length": fixed_length_bigram(),
}
ALL = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
WEIGHTED = pytest.mark.parametrize("weights", [UNIFORM, SKEWED], ids=["uniform", "skewed"])


def members(policy, sigma=0.6, n=4, seed=2):
    rng = np.random.default_rng(seed)
    center = rng.standard_normal(policy.dimension)
    return center + sigma * rng.standard_normal((n, policy.dimension))


def values(policy, thetas, member, outcome, weights):
    """All estimators of the responses `outcome` [R] drawn from members `member` [R], and their bracket terms."""
    tokens, mask, prefix, _ = policy.sequences(outcome)
    next_log_p = policy.next_token.population_log_p(thetas)[prefix]
    scores = js.sequence_scores(js.token_scores(next_log_p, tokens), mask)
    terms = js.response_terms(next_log_p, tokens, mask, weights=weights, member=member)
    estimators = {
        "mc": js.mc(scores, member, weights),
        "post": js.post(scores, weights),
        "rb": terms.rb,
        "chain": terms.chain,
    }
    return estimators, terms


def every_response(policy, thetas, weights):
    """All pairs (member of positive weight, response it can give) and their probabilities w·π(y)."""
    joint = weights[:, None] * np.exp(policy.log_p(thetas))
    member, outcome = np.nonzero(joint)
    return member, outcome, joint[member, outcome]


def sample(policy, thetas, m, seed):
    """(member, outcome) of m responses a member, flat; reshape values to [N, m]."""
    outcome = policy.sample(np.random.default_rng(seed), thetas, m)
    return np.repeat(np.arange(len(thetas)), m), outcome.reshape(-1)


@ALL
@WEIGHTED
def test_every_estimator_is_unbiased(policy, weights):
    """Summed over every response of every member the four estimators give the JS of the sequence distributions."""
    thetas = members(policy)
    exact = divergence.js(policy.population_log_p(thetas), weights)
    member, outcome, probability = every_response(policy, thetas, weights)
    estimators, terms = values(policy, thetas, member, outcome, weights)
    assert exact > 0.01
    for name, value in estimators.items():
        assert probability @ value == pytest.approx(exact, rel=1e-10), name
    assert probability @ terms.lower <= exact * (1 + 1e-12) and probability @ terms.upper >= exact * (1 - 1e-12)
    assert probability @ terms.lower > 0.2 * exact
    if policy.top_k is None:
        assert probability @ terms.upper < min(3.5 * exact, divergence.weight_entropy(weights))


@ALL
@WEIGHTED
def test_samples_agree_with_the_exact_value(policy, weights):
    """z-test of every estimator from token-by-token samples, and of `post` − `chain`; fixed seed."""
    thetas, m = members(policy), 400
    exact = divergence.js(policy.population_log_p(thetas), weights)
    estimators, _ = values(policy, thetas, *sample(policy, thetas, m, seed=11), weights)
    for name, value in estimators.items():
        estimate = js.stratified(value.reshape(4, m), weights)
        assert abs(estimate.value - exact) < 3.5 * estimate.se, name
        assert estimate.se < 0.3 * exact
    test = js.zero_mean(estimators["post"].reshape(4, m), estimators["chain"].reshape(4, m), weights)
    assert test.p_value > 1e-3 and test.p_value == pytest.approx(2 * stats.norm.sf(abs(test.z)))


def test_standard_errors_of_the_theory_table():
    """Exact values and standard deviations of 16 responses on strings of 5 tokens, by enumeration of all 1024."""
    policy = POLICIES["fixed length"]
    expected = {
        0.5: (0.259, {"mc": 0.16, "post": 0.052, "rb": 0.028, "chain": 0.0128}),
        0.05: (0.00302, {"mc": 0.0195, "post": 0.00070, "rb": 0.00021, "chain": 0.00012}),
    }
    for sigma, (exact, deviations) in expected.items():
        thetas = members(policy, sigma)
        assert divergence.js(policy.population_log_p(thetas)) == pytest.approx(exact, rel=2e-3)
        member, outcome, probability = every_response(policy, thetas, UNIFORM)
        estimators, _ = values(policy, thetas, member, outcome, UNIFORM)
        for name, value in estimators.items():
            own = [4 * probability[member == i] for i in range(4)]
            variance = np.mean([p @ (value[member == i] - p @ value[member == i]) ** 2 for i, p in enumerate(own)])
            assert math.sqrt(variance / 16) == pytest.approx(deviations[name], rel=0.12), (sigma, name)


@ALL
@WEIGHTED
def test_post_is_the_mean_of_mc_given_the_response(policy, weights):
    """E[mc | y] = post, so the variance of i.i.d. draws of `post` is at most that of `mc`."""
    thetas = members(policy, sigma=1.5)
    member, outcome, probability = every_response(policy, thetas, weights)
    estimators, _ = values(policy, thetas, member, outcome, weights)
    mass = np.bincount(outcome, probability)
    seen = mass > 0
    given = np.bincount(outcome, probability * estimators["mc"])[seen] / mass[seen]
    post = np.zeros(len(mass))
    post[outcome] = estimators["post"]
    assert np.allclose(given, post[seen], atol=1e-11)
    exact = probability @ estimators["post"]
    variance = {name: probability @ (value - exact) ** 2 for name, value in estimators.items()}
    assert variance["post"] < variance["mc"]


def test_prior_weights_are_biased_and_the_check_sees_it():
    policy, m = POLICIES["bigram"], 400
    thetas = members(policy, sigma=1.0)
    table = policy.next_token.population_log_p(thetas)

    def chain_with_prior(outcome):
        _, mask, prefix, _ = policy.sequences(outcome)
        terms = js.position_terms(table[prefix], np.broadcast_to(np.log(UNIFORM), (*prefix.shape, 4)))
        return js.sum_positions(terms, mask).chain

    member, outcome, probability = every_response(policy, thetas, UNIFORM)
    exact = divergence.js(policy.population_log_p(thetas))
    assert probability @ chain_with_prior(outcome) > 1.05 * exact
    member, outcome = sample(policy, thetas, m, seed=3)
    estimators, _ = values(policy, thetas, member, outcome, UNIFORM)
    wrong = chain_with_prior(outcome).reshape(4, m)
    assert js.zero_mean(estimators["post"].reshape(4, m), wrong).p_value < 1e-3
    assert js.zero_mean(estimators["post"].reshape(4, m), estimators["chain"].reshape(4, m)).p_value > 0.01


def test_dropping_truncated_responses_or_end_tokens_is_biased():
    policy = POLICIES["bigram"]
    thetas = members(policy, sigma=1.0)
    exact = divergence.js(policy.population_log_p(thetas))
    member, outcome, probability = every_response(policy, thetas, UNIFORM)
    tokens, mask, prefix, truncated = policy.sequences(outcome)
    estimators, _ = values(policy, thetas, member, outcome, UNIFORM)
    assert 0.1 < probability @ truncated < 0.9
    kept = ~truncated
    assert abs(probability[kept] @ estimators["mc"][kept] / probability[kept].sum() - exact) > 0.02
    without_end = mask & (tokens != policy.vocabulary - 1)
    scores = js.token_scores(policy.next_token.population_log_p(thetas)[prefix], tokens)
    assert abs(probability @ js.post(js.sequence_scores(scores, without_end)) - exact) > 0.02


def test_data_processing_does_not_hold_token_by_token():
    """The first token tells nothing about the member, the verifier of the whole response does (L1.4)."""
    policy = Autoregressive.bigram(3, 2)
    tables = np.zeros((2, 3, 3))
    tables[:, 2, 2] = -50.0
    tables[0, :2, 0], tables[1, :2, 1] = 2.0, 2.0
    thetas = tables.reshape(2, 9)
    second_is_zero = policy.enumerate().tokens[:, 1] == 0
    projected = divergence.projected_js(policy.population_success(thetas, second_is_zero))
    first = divergence.js(policy.next_token.population_log_p(thetas)[0])
    assert first < 1e-12 < 0.1 < projected
    assert projected <= divergence.js(policy.population_log_p(thetas))


def test_mixture_and_bracket_follow_the_temperature():
    """Scores at another temperature than the samples' are not those of the sampled policy: the estimate moves."""
    table = members(POLICIES["bigram"])
    hot, cold = (Autoregressive.bigram(4, 5, temperature=t) for t in (1.0, 0.5))
    member, outcome, probability = every_response(cold, table, UNIFORM)
    right, _ = values(cold, table, member, outcome, UNIFORM)
    wrong, _ = values(hot, table, member, outcome, UNIFORM)
    exact = divergence.js(cold.population_log_p(table))
    assert probability @ right["chain"] == pytest.approx(exact, rel=1e-10)
    assert abs(probability @ wrong["chain"] - exact) > 0.05 * exact


def test_blocks_and_shifts_change_nothing():
    policy = POLICIES["tanh"]
    thetas = members(policy)
    member, outcome = sample(policy, thetas, 5, seed=1)
    tokens, mask, prefix, _ = policy.sequences(outcome)
    next_log_p = policy.next_token.population_log_p(thetas)[prefix]
    whole = js.response_terms(next_log_p, tokens, mask, weights=SKEWED, member=member)
    shift = np.random.default_rng(0).standard_normal((*next_log_p.shape[:-1], 1))
    pieces = js.response_terms(next_log_p + shift, tokens, mask, weights=SKEWED, member=member, block=1)
    for a, b in zip(whole, pieces, strict=True):
        assert np.allclose(a, b, atol=1e-12)
    assert js.response_terms(next_log_p, tokens, mask).rb is None


@WEIGHTED
def test_terms_of_a_position_are_the_functions_they_are_named_after(weights):
    """One mixture for all of them; without the bracket the rest is the same."""
    rng = np.random.default_rng(0)
    log_p = divergence.log_softmax(rng.standard_normal((6, 4, 9)))
    member = rng.integers(0, 3, 6)
    log_w = np.broadcast_to(safe_log(weights), (6, 4))
    terms = js.position_terms(log_p, log_w, member)
    np.testing.assert_allclose(terms.chain, divergence.js(log_p, weights), rtol=1e-13)
    mixture = np.log(np.einsum("n,tnv->tv", weights, np.exp(log_p)))
    np.testing.assert_allclose(terms.rb, divergence.kl(log_p[np.arange(6), member], mixture), rtol=1e-12)
    bounds = fisher_rate.bracket(log_p, weights)
    np.testing.assert_allclose((terms.lower, terms.upper), (bounds.lower, bounds.upper), rtol=1e-13)
    alone = js.position_terms(log_p, log_w, member, bracketed=False)
    assert alone.lower is None and alone.upper is None
    assert np.array_equal(alone.chain, terms.chain) and np.array_equal(alone.rb, terms.rb)
    assert js.sum_positions(alone, np.ones(6, dtype=bool)).chain == pytest.approx(terms.chain.sum())


@ALL
def test_torch_gives_what_numpy_gives(policy):
    torch = pytest.importorskip("torch")
    thetas = members(policy)
    member, outcome = sample(policy, thetas, 6, seed=5)
    tokens, mask, prefix, _ = policy.sequences(outcome)
    next_log_p = policy.next_token.population_log_p(thetas)[prefix]
    expected, terms = values(policy, thetas, member, outcome, SKEWED)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 3e-5)):
        logits = torch.tensor(next_log_p, dtype=dtype)
        t_tokens, t_mask, t_member = torch.tensor(tokens), torch.tensor(mask), torch.tensor(member)
        weights = torch.tensor(SKEWED, dtype=dtype)
        scores = js.sequence_scores(js.token_scores(logits, t_tokens), t_mask)
        result = js.response_terms(logits, t_tokens, t_mask, weights=weights, member=t_member)
        computed = {"mc": js.mc(scores, t_member, weights), "post": js.post(scores, weights)}
        computed |= {"rb": result.rb, "chain": result.chain}
        for name, value in computed.items():
            assert value.dtype == dtype
            finite = np.isfinite(expected[name])
            assert np.allclose(value.numpy()[finite], expected[name][finite], atol=tolerance), name
        assert np.allclose(result.upper.numpy(), terms.upper, atol=10 * tolerance)
        estimate = js.stratified(computed["chain"].reshape(4, 6), weights)
        assert float(estimate.se) == pytest.approx(js.stratified(terms.chain.reshape(4, 6), SKEWED).se, rel=1e-3)


def test_guaranteed_interval_of_post():
    """Covers at least 95 % of samples of 2 responses a member, and never leaves [0, H(w)]."""
    policy = POLICIES["bigram"]
    thetas = members(policy, sigma=2.0)
    exact = divergence.js(policy.population_log_p(thetas), SKEWED)
    outcome = policy.sample(np.random.default_rng(0), thetas, 2 * 2000).reshape(4, 2000, 2)
    scores = np.moveaxis(policy.log_p(thetas)[:, outcome], 0, -1)
    post = np.moveaxis(js.post(scores, SKEWED), 0, 1)
    value, lower, upper = js.post_interval(post, SKEWED)
    assert np.mean((lower <= exact) & (exact <= upper)) >= 0.95
    assert np.all(lower >= 0) and np.all(upper <= divergence.weight_entropy(SKEWED))
    many = js.post_interval(np.tile(post[0], 2000), SKEWED)
    assert many.upper - many.lower < 0.1 and many.lower < value[0] < many.upper


def test_stratified_estimate_and_its_standard_error():
    """Against the formula written out, and against the spread of many repetitions."""
    rng = np.random.default_rng(0)
    scale, weights = np.array([1.0, 3.0, 0.5]), np.array([0.2, 0.5, 0.3])
    draws = scale[:, None] * rng.standard_normal((20_000, 3, 6)) + np.array([1.0, 2.0, 3.0])[:, None]
    estimate = js.stratified(draws, weights)
    first = sum(w * v.mean() for w, v in zip(weights, draws[0], strict=True))
    assert estimate.value[0] == pytest.approx(first)
    assert np.mean(estimate.value) == pytest.approx(weights @ [1, 2, 3], abs=0.02)
    assert np.sqrt(np.mean(estimate.se**2)) == pytest.approx(np.std(estimate.value), rel=0.02)
    assert np.std(estimate.value) == pytest.approx(math.sqrt(weights**2 @ scale**2 / 6), rel=0.02)


def test_members_of_weight_zero_do_not_count():
    """Even where they alone can give a response: its `mc` is infinite, its share of the estimate is 0."""
    scores = np.array([[-1.0, -np.inf], [-1.0, -np.inf], [-np.inf, -2.0], [-np.inf, -3.0]])
    member = np.array([0, 0, 1, 1])
    values_ = js.mc(scores, member, np.array([1.0, 0.0]))
    assert np.array_equal(values_, [0.0, 0.0, np.inf, np.inf])
    assert js.stratified(values_.reshape(2, 2), np.array([1.0, 0.0])) == Estimate(0.0, 0.0)
    assert np.array_equal(np.exp(js.log_posterior(scores, np.array([1.0, 0.0])))[2], [1.0, 0.0])
    assert np.all(js.post(scores, np.array([1.0, 0.0])) == 0)


def test_equal_members_and_one_member_have_no_diversity():
    logits = np.random.default_rng(0).standard_normal((3, 2, 1, 5))
    tokens, mask = np.zeros((3, 2), dtype=int), np.ones((3, 2), dtype=bool)
    for next_log_p in (logits, np.repeat(logits, 3, axis=2)):
        terms = js.response_terms(next_log_p, tokens, mask, member=np.zeros(3, dtype=int))
        for field in terms:
            assert np.all(np.abs(field) < 1e-14)
    assert js.post(np.array([-3.0])) == js.mc(np.array([-3.0]), 0) == 0


@given(
    scores=arrays(np.float64, (3, 5), elements=st.floats(-1e4, 0)),
    raw=arrays(np.float64, 5, elements=st.floats(1e-3, 1)),
)
def test_post_lies_between_zero_and_its_bound(scores, raw):
    weights = raw / raw.sum()
    value = js.post(scores, weights)
    assert np.all(value >= 0) and np.all(value <= math.log(1 / weights.min()) * (1 + 1e-12))
    posterior = np.exp(js.log_posterior(scores, weights))
    assert np.allclose(posterior.sum(-1), 1)
    chosen = posterior.argmax(-1)
    assert np.all(js.mc(scores, chosen, weights) <= math.log(1 / weights.min()) * (1 + 1e-12))


def test_prefix_posterior_is_bayes_rule():
    rng = np.random.default_rng(0)
    scores = np.log(rng.random((2, 4, 3)))
    posterior = np.exp(js.prefix_log_posterior(scores, SKEWED[:3]))
    assert np.allclose(posterior[:, 0], SKEWED[:3])
    joint = SKEWED[:3] * np.exp(scores[:, 0] + scores[:, 1] + scores[:, 2])
    assert np.allclose(posterior[:, 3], joint / joint.sum(-1, keepdims=True))


def test_control_variate_is_unbiased_and_narrower():
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((4000, 3, 8))
    target = 5.0 + 2.0 * shared + 0.3 * rng.standard_normal(shared.shape)
    weights = np.array([0.5, 0.3, 0.2])
    plain, controlled = js.stratified(target, weights), js.control_variate(target, shared, weights)
    assert np.std(controlled.value) < 0.3 * np.std(plain.value)
    assert abs(np.mean(controlled.value) - 5.0) < 3.5 * np.std(controlled.value) / math.sqrt(4000)
    assert np.sqrt(np.mean(controlled.se**2)) == pytest.approx(np.std(controlled.value), rel=0.15)
    # A zero-mean value that depends on the target's tail: a coefficient fitted in sample would bias the estimate.
    skew = rng.exponential(size=shared.shape) - 1.0
    fitted = js.control_variate(skew**2, skew, weights)
    assert abs(np.mean(fitted.value) - 1.0) < 3.5 * np.std(fitted.value) / math.sqrt(4000)
    assert np.all(js.control_variate(np.ones((2, 4)), np.zeros((2, 4))).value == 1.0)


def test_prompts_are_averaged_with_the_error_asked_for():
    estimates = Estimate(np.array([1.0, 2.0, 6.0]), np.array([0.3, 0.4, 1.2]))
    fixed, task = js.over_prompts(estimates, fixed=True), js.over_prompts(estimates, fixed=False)
    assert fixed.value == task.value == 3.0
    assert fixed.se == pytest.approx(1.3 / 3)
    assert task.se == pytest.approx(math.sqrt(7.0 / 3))


def test_zero_mean_without_spread():
    ones = np.ones((2, 3))
    assert js.zero_mean(ones, ones).p_value == 1.0 and js.zero_mean(ones, ones).z == 0
    assert js.zero_mean(ones, 0 * ones).p_value == 0.0


BAD = {
    "at least 2 responses": lambda: js.stratified(np.zeros((3, 1))),
    "at least 4 responses": lambda: js.control_variate(np.zeros((3, 3)), np.zeros((3, 3))),
    "probability 0 under the member": lambda: js.mc(np.array([[-np.inf, -1.0]]), np.array([0])),
    "weights must sum": lambda: js.post(np.zeros((2, 3)), np.array([0.5, 0.2, 0.2])),
    "at least 2 prompts": lambda: js.over_prompts(Estimate(np.ones(1), np.ones(1)), fixed=False),
    "logits must be finite": lambda: js.position_terms(np.full((2, 3), np.nan), np.log(np.full(2, 0.5))),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(message):
    with pytest.raises(InputError, match=message) as error:
        BAD[message]()
    assert "\n" not in str(error.value)
