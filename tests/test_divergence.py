"""Divergences against SciPy, 400-digit arithmetic and the identities that define them."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from esth import divergence
from esth.divergence import (
    bernoulli,
    binary_entropy,
    chi_square,
    entropy,
    js,
    kl,
    log_mixture,
    log_softmax,
    project,
    projected_js,
    renyi2,
    safe_log1m,
    total_variation,
    weight_entropy,
)
from esth.errors import InputError
from tests.populations import (
    MP,
    PROBABILITIES,
    approx,
    cheap,
    close,
    costly,
    exact,
    exact_binary_entropy,
    exact_distribution,
    exact_js,
    exact_kl,
    exact_projected_js,
    populations,
    successes,
)

RNG = np.random.default_rng(20)
LOG_P = log_softmax(RNG.normal(size=(3, 5)))
LOG_2 = math.log(2.0)
# What rounding of the mixture leaves of a divergence of 0: the square of a few units in the last place.
ZERO = 1e-30


def log(p):
    """Log-probabilities of a list of probabilities, −inf at 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.array(p, dtype=np.float64))


# Softmax and entropies


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4])
def test_log_softmax_is_scipys(scale):
    logits = scale * RNG.normal(size=(7, 9))
    np.testing.assert_allclose(log_softmax(logits), scipy.special.log_softmax(logits, axis=-1), rtol=1e-14, atol=1e-14)


def test_log_softmax_of_extreme_and_forbidden_logits():
    assert log_softmax([1e4, -1e4, -np.inf]).tolist() == [0.0, -2e4, -np.inf]
    assert log_softmax([-1e4]).tolist() == [0.0]
    assert log_softmax([3, 3]).tolist() == [-LOG_2, -LOG_2]
    assert log_softmax(np.zeros((0, 4))).shape == (0, 4)


@pytest.mark.parametrize("logits", [[0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf], [], 1.0, np.zeros((2, 0))])
def test_log_softmax_refuses_what_is_no_row_of_logits(logits):
    with pytest.raises(InputError, match="logits"):
        log_softmax(logits)


def test_entropy_is_scipys():
    np.testing.assert_allclose(entropy(LOG_P), scipy.stats.entropy(np.exp(LOG_P), axis=-1), rtol=1e-14)
    assert entropy(log([0.0, 1.0, 0.0])) == 0.0
    assert math.copysign(1.0, entropy(log([1.0]))) == 1.0
    assert entropy(log([0.25] * 4)) == approx(2 * LOG_2, rel=1e-15)


@cheap
@given(PROBABILITIES)
def test_binary_entropy_keeps_its_digits(p):
    assert close(binary_entropy(p), exact_binary_entropy(exact(p)), 1e-13, 1e-320)


def test_log_failure_of_small_and_certain_success():
    assert safe_log1m(np.array([0.0, 1e-300, 0.5, 1.0])).tolist() == [0.0, -1e-300, -LOG_2, -np.inf]
    assert bernoulli([0.0, 1.0]).tolist() == [[-np.inf, 0.0], [0.0, -np.inf]]


def test_weight_entropy():
    assert weight_entropy([0.5, 0.0, 0.5]) == approx(LOG_2, rel=1e-15)
    assert weight_entropy([[1.0, 0.0], [0.25, 0.75]]) == approx([0.0, scipy.stats.entropy([0.25, 0.75])], rel=1e-15)


# Kullback–Leibler


@costly
@given(populations(max_members=2))
def test_kl_is_its_definition(population):
    log_p, _ = population
    p, q = exact_distribution(log_p[0]), exact_distribution(log_p[-1])
    # The inputs are normalised up to rounding only; that enters to second order, hence the absolute term.
    assert close(kl(log_p[0], log_p[-1]), exact_kl(p, q), 1e-12, ZERO)


def test_kl_is_scipys():
    p = np.exp(LOG_P)
    np.testing.assert_allclose(kl(LOG_P[0], LOG_P[1:]), scipy.special.rel_entr(p[0], p[1:]).sum(-1), rtol=1e-12)


def test_kl_at_the_edges():
    assert kl(log([1.0, 0.0]), log([0.5, 0.5])) == approx(LOG_2, rel=1e-15)
    assert kl(log([0.5, 0.5]), log([1.0, 0.0])) == np.inf
    assert kl(log([0.5, 0.5, 0.0]), log([0.5, 0.5, 0.0])) == 0.0
    assert kl([0.0, -1e4], [-1e4, 0.0]) == 1e4
    assert kl(log([1.0]), log([1.0])) == 0.0
    assert kl(np.zeros((0, 3)), LOG_P[0, :3]).shape == (0,)


@cheap
@given(st.integers(0, 2**32), st.sampled_from([1e-9, 1e-3, 1.0, 20.0]))
def test_kl_chain_rule(seed, scale):
    """KL of a joint distribution = KL of the first marginal + mean KL of the conditionals."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(3, 4))
    joint_p, joint_q = (log_softmax((base + scale * rng.normal(size=(3, 4))).ravel()).reshape(3, 4) for _ in range(2))
    first_p, first_q = (scipy.special.logsumexp(j, axis=1) for j in (joint_p, joint_q))
    conditional = kl(joint_p - first_p[:, None], joint_q - first_q[:, None])
    total = kl(first_p, first_q) + np.sum(np.exp(first_p) * conditional)
    assert kl(joint_p.ravel(), joint_q.ravel()) == approx(total, rel=1e-5 if scale == 1e-9 else 1e-11)


# Jensen–Shannon


@costly
@given(populations())
def test_js_is_its_definition(population):
    log_p, weights = population
    # A member of weight 1e-310 adds w·log(1/w) ~ 1e-307 and may be neglected.
    assert close(js(log_p, weights), exact_js(log_p, weights), 1e-12, ZERO)
    assert close(js(log_p), exact_js(log_p), 1e-12, ZERO)


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-11])
def test_small_js_keeps_its_digits(scale):
    """Down to 1e-23, far below the rounding of 1: the error is that of the mixture, to second order."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        log_p = log_softmax(rng.normal(size=6) + scale * rng.normal(size=(4, 6)))
        assert close(js(log_p), exact_js(log_p), 1e-14 + 1e-30 / scale**2)


def test_js_of_two_members_is_scipys():
    p = np.exp(LOG_P)
    assert js(LOG_P[:2]) == approx(jensenshannon(p[0], p[1]) ** 2, rel=1e-13)


@cheap
@given(populations())
def test_js_lies_between_zero_and_the_entropy_of_the_weights(population):
    log_p, weights = population
    value = js(log_p, weights)
    assert 0.0 <= value <= weight_entropy(weights) * (1 + 1e-12) + ZERO


@cheap
@given(populations())
def test_js_is_the_mutual_information_read_from_the_other_side(population):
    """I(I;Y) = Σ_y π̄(y) KL(w(·|y)‖w): the posterior over the members instead of the members' distributions."""
    log_p, weights = population
    log_w = log(weights)
    log_q = log_mixture(log_p, weights)
    possible = np.isfinite(log_q)
    posterior = (log_p + log_w[:, None])[:, possible] - log_q[possible]
    value = np.sum(np.exp(log_q[possible]) * kl(posterior.T, log_w))
    assert value == approx(js(log_p, weights), rel=1e-9, abs=1e-15)


@cheap
@given(populations())
def test_compensation_identity(population):
    """Σ wᵢ KL(πᵢ‖q) = JS_w + KL(π̄_w‖q) for every q."""
    log_p, weights = population
    q = log_softmax(np.linspace(-1.0, 1.0, log_p.shape[-1]))
    left = np.sum(weights * kl(log_p, q))
    assert js(log_p, weights) + kl(log_mixture(log_p, weights), q) == approx(left, rel=1e-11, abs=1e-15)


@cheap
@given(populations(), st.randoms(use_true_random=False))
def test_js_does_not_depend_on_the_order_of_members_or_categories(population, random):
    log_p, weights = population
    members, categories = list(range(log_p.shape[0])), list(range(log_p.shape[1]))
    random.shuffle(members)
    random.shuffle(categories)
    permuted = js(log_p[members][:, categories], weights[members])
    assert permuted == approx(js(log_p, weights), rel=1e-8, abs=ZERO)


@cheap
@given(populations(), st.floats(0.0, 1.0))
def test_splitting_a_member_into_equal_members_changes_nothing(population, share):
    log_p, weights = population
    split = np.concatenate([weights, [weights[0] * (1 - share)]])
    split[0] *= share
    assert js(np.concatenate([log_p, log_p[:1]]), split) == approx(js(log_p, weights), rel=1e-8, abs=ZERO)


@cheap
@given(populations(), st.floats(1e-6, 1.0))
def test_splitting_a_category_alike_for_all_members_changes_nothing(population, share):
    log_p, weights = population
    split = np.concatenate([log_p, log_p[:, :1] + np.log1p(-share / 2)], axis=1)
    split[:, 0] += np.log(share / 2)
    assert js(split, weights) == approx(js(log_p, weights), rel=1e-4, abs=ZERO)


@cheap
@given(populations(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_data_processing(population, outcomes, random):
    """Merging categories loses information, never wins any."""
    log_p, weights = population
    outcome = np.array([random.randrange(outcomes) for _ in range(log_p.shape[1])])
    value = js(log_p, weights)
    assert js(project(log_p, outcome, outcomes), weights) <= value * (1 + 1e-9) + ZERO
    success = np.clip(np.sum(np.exp(log_p) * (outcome == 0), axis=-1), 0.0, 1.0)
    # `success` is a rounded sum: one member may fail with probability 1e-16 where another never does.
    assert projected_js(success, weights) <= value * (1 + 1e-5) + 1e-15


def test_js_is_zero_only_for_equal_members():
    for base in (LOG_P[0], log([0.0, 1.0]), log_softmax([1e4, -1e4, 3.0])):
        assert 0.0 <= js(np.stack([base] * 7)) <= ZERO
    for step in (1e-12, 1e-9, 1e-3):
        assert js(np.stack([LOG_P[0], log_softmax(LOG_P[0] + step * np.eye(5)[0])])) > 1e-3 * step**2


def test_js_of_disjoint_members_is_the_entropy_of_the_weights():
    weights = np.array([0.1, 0.2, 0.7])
    assert js(log(np.eye(3)), weights) == approx(scipy.stats.entropy(weights), rel=1e-14)
    assert js(log_softmax(1e4 * np.eye(32))) == approx(math.log(32), rel=1e-14)


def test_js_of_one_member_or_one_category_is_zero():
    assert js(LOG_P[:1]) == 0.0
    assert js(np.zeros((4, 1))) == 0.0


def test_members_of_weight_zero_do_not_count():
    far = np.concatenate([LOG_P, [[0.0] + [-1e4] * 4, log([0, 0, 0, 0, 1.0])]])
    weights = np.array([0.5, 0.25, 0.25, 0.0, 0.0])
    assert js(far, weights) == approx(js(LOG_P, weights[:3]), rel=1e-14)
    assert js(far.astype(np.float32), weights.astype(np.float32)) == approx(js(LOG_P, weights[:3]), rel=1e-5)


@pytest.mark.parametrize("tiny", [1e-30, 1e-100, 1e-200, 1e-290])
def test_a_rare_member_adds_its_weight_times_its_divergence(tiny):
    """To first order in w, JS = w·KL(rare‖common), or w(1 − log w) at disjoint supports."""
    pair = LOG_P[:2]
    assert js(pair, [1.0, tiny]) == approx(tiny * kl(pair[1], pair[0]), rel=1e-12)
    assert js(log(np.eye(2)), [1.0, tiny]) == approx(tiny * (1 - math.log(tiny)), rel=1e-12)


def test_a_subnormal_weight_is_harmless():
    assert 0.0 <= js(log(np.eye(2)), [1.0, 1e-310]) < 1e-300
    assert 0.0 <= projected_js([1.0, 0.0], [1.0, 1e-310]) < 1e-300
    assert 0.0 <= js(log(np.eye(2)).astype(np.float32), np.float32([1.0, 1e-42])) < 1e-35


def test_batches_are_loops(monkeypatch):
    log_p = log_softmax(3 * RNG.normal(size=(2, 5, 4, 6)))
    weights = RNG.dirichlet(np.ones(4), size=(2, 5))
    one_by_one = [[js(log_p[i, j], weights[i, j]) for j in range(5)] for i in range(2)]
    for block in (divergence.BLOCK, 1, 50):
        monkeypatch.setattr(divergence, "BLOCK", block)
        np.testing.assert_allclose(js(log_p, weights), one_by_one, rtol=1e-13)
    assert js(log_p).shape == (2, 5)
    assert js(np.zeros((3, 0, 4, 6))).shape == (3, 0)
    assert js(np.zeros((0, 4, 6)), np.full((0, 4), 0.25)).shape == (0,)


def test_one_population_under_many_weights():
    weights = RNG.dirichlet(np.ones(3), size=7)
    np.testing.assert_allclose(js(LOG_P, weights), [js(LOG_P, w) for w in weights], rtol=1e-13)
    np.testing.assert_allclose(log_mixture(LOG_P, weights), np.log(weights @ np.exp(LOG_P)), rtol=1e-13)


def test_lists_integers_and_float32():
    assert js([[0, -np.inf], [-np.inf, 0]]) == approx(LOG_2, rel=1e-15)
    single = js(LOG_P.astype(np.float32))
    assert single.dtype == np.float32
    assert single == approx(js(LOG_P), rel=1e-5)
    tiny = log_softmax(np.float32([[0.0, 1.0], [1e-3, 1.0]]))
    assert js(tiny) == approx(float(exact_js(tiny)), rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused_everywhere(bad):
    log_p = np.array(LOG_P)
    log_p[1, 2] = bad
    for call in (
        lambda: js(log_p),
        lambda: entropy(log_p),
        lambda: kl(log_p, LOG_P),
        lambda: kl(LOG_P, log_p),
        lambda: log_mixture(log_p),
        lambda: chi_square(log_p, LOG_P),
        lambda: renyi2(LOG_P, log_p),
        lambda: total_variation(LOG_P, log_p),
        lambda: project(log_p, np.zeros(5, int), 1),
    ):
        with pytest.raises(InputError, match="NaN"):
            call()


@pytest.mark.parametrize("log_p", [np.zeros(3), np.zeros((2, 0)), np.zeros((0, 3))])
def test_js_needs_members_and_categories(log_p):
    with pytest.raises(InputError, match=r"members|member"):
        js(log_p)


def test_torch_gives_the_same_numbers_and_gradients():
    tensor = torch.tensor(LOG_P)
    weights = torch.tensor([0.2, 0.3, 0.5])
    assert js(tensor, weights).dtype == torch.float64
    assert float(js(tensor, weights)) == approx(float(js(LOG_P, weights.numpy())), rel=1e-14)
    for function in (kl, chi_square, renyi2, total_variation):
        assert float(function(tensor[0], tensor[1])) == approx(float(function(LOG_P[0], LOG_P[1])), rel=1e-13)
    logits = torch.tensor(RNG.normal(size=(3, 4)), requires_grad=True)
    for scalar in (
        lambda z: js(log_softmax(z), weights),
        lambda z: 1e4 * js(log_softmax(1e-2 * z), weights),
        lambda z: kl(*log_softmax(z)[:2]),
        lambda z: renyi2(*log_softmax(z)[:2]),
        lambda z: entropy(log_softmax(z)).sum(),
        lambda z: projected_js(torch.sigmoid(z[:, 0])),
        lambda z: project(log_softmax(z), torch.tensor([0, 1, 1, 0]), 2).sum(),
    ):
        # float64 weights: gradcheck compares with finite differences of 1e-6.
        assert torch.autograd.gradcheck(scalar, (logits,))
    forbidden = torch.tensor([[0.0, -np.inf, 1.0], [2.0, -np.inf, 0.0]], dtype=torch.float64, requires_grad=True)
    js(log_softmax(forbidden)).backward()
    assert bool(torch.all(torch.isfinite(forbidden.grad))) and float(forbidden.grad.abs().sum()) > 0


@pytest.mark.parametrize("u", [-700.0, -3.0, -0.0101, -0.0099, -1e-5, 1e-100, 1e-12, 1e-3, 0.0099, 0.0101, 2.0, 30.0])
def test_the_functions_behind_the_divergences_keep_their_digits(u):
    """φ(u) = u·eᵘ − eᵘ + 1 and eᵘ − 1 − u, on both sides of where the series ends."""
    x, value = exact(u), np.array(u)
    assert close(divergence._phi(value, divergence._phi_direct(value)), MP.exp(x) * (x - 1) + 1, 5e-14)
    assert close(divergence.exponential_remainder(value), MP.expm1(x) - x, 5e-14)


# Verifier-projected


@costly
@given(successes())
def test_projected_js_is_its_definition(population):
    p, weights = population
    # 1e-300: what a member of weight 1e-310 may add; 1e-60: what weights of sum 1 − 1e-16 do to equal members.
    assert close(projected_js(p, weights), exact_projected_js(p, weights), 1e-13, 1e-300 + 1e-60 * p.max())


@pytest.mark.parametrize("center", [1e-300, 1e-20, 1e-9, 0.3, 0.5, 0.9999])
@pytest.mark.parametrize("spread", [0.3, 1e-3, 1e-6, 1e-10, 1e-15])
def test_projected_js_keeps_the_digits_of_the_successes(center, spread):
    p = center * (1 - spread * np.array([0.1, 0.5, 0.7, 1.0]))
    assert close(projected_js(p), exact_projected_js(p), 1e-12, 1e-320)


def test_projected_js_at_the_edges():
    assert projected_js([0.0, 1.0]) == approx(LOG_2, rel=1e-15)
    assert projected_js([0.0, 0.0, 1.0], [0.3, 0.7, 0.0]) == 0.0
    assert projected_js([1.0, 1.0]) == 0.0
    assert projected_js([0.1, 0.1, 0.1]) == 0.0
    assert projected_js([0.3]) == 0.0
    assert projected_js([1e-300, 0.0]) == approx(0.5e-300 * LOG_2, rel=1e-13)
    assert projected_js([0, 1]).dtype == np.float64
    assert projected_js(np.zeros((0, 4))).shape == (0,)
    assert projected_js([[0.2, 0.4], [0.4, 0.8]], [[0.5, 0.5], [0.1, 0.9]]).shape == (2,)


@cheap
@given(successes())
def test_projected_js_is_the_js_of_the_outcomes(population):
    p, weights = population
    assert projected_js(p, weights) == approx(js(bernoulli(p), weights), rel=1e-9, abs=1e-24)


def test_diversity_that_the_verifier_does_not_see():
    """L2.5: members that answer wrongly in different ways."""
    log_p = log([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    assert js(log_p) == approx(0.5 * LOG_2, rel=1e-14)
    assert projected_js(np.exp(log_p)[:, 0]) == 0.0


def test_project_sums_the_categories_of_each_outcome():
    outcome = RNG.integers(0, 4, size=5)
    expected = np.stack([np.bincount(outcome, weights=row, minlength=4) for row in np.exp(LOG_P)])
    np.testing.assert_allclose(np.exp(project(LOG_P, outcome, 4)), expected, rtol=1e-14, atol=0)
    assert np.all(project(LOG_P, [0] * 5, 1) <= 0.0)
    many = log_softmax(RNG.normal(size=(2000, 7)))
    assert np.all(np.exp(project(many, np.zeros(7, int), 1)) <= 1.0)
    assert np.all(np.exp(log_mixture(np.zeros((2000, 7, 1)))) <= 1.0)


@pytest.mark.parametrize(("outcome", "n"), [([0, 1], 2), ([0, 0, 0, 0, 2], 2), ([0, 0, 0, 0, -1], 2), (0, 1)])
def test_project_refuses_outcomes_that_do_not_fit(outcome, n):
    with pytest.raises(InputError, match="outcome"):
        project(LOG_P, outcome, n)


# χ², Rényi, total variation


def exact_chi_square(log_p, log_q):
    p, q = exact_distribution(log_p), exact_distribution(log_q)
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return MP.inf
    return MP.fsum((a - b) ** 2 / b for a, b in zip(p, q, strict=True) if b > 0)


@costly
@given(populations(max_members=2))
def test_chi_square_and_renyi_are_their_sums(population):
    log_p, _ = population
    value = exact_chi_square(log_p[0], log_p[-1])
    # Logarithms of 1e4 have 12 digits.
    assert close(renyi2(log_p[0], log_p[-1]), MP.log(1 + value), 1e-11, ZERO)
    if value < 1e300:
        assert close(chi_square(log_p[0], log_p[-1]), value, 1e-10, ZERO)
    else:
        assert chi_square(log_p[0], log_p[-1]) == np.inf or value < 1.8e308


def test_chi_square_of_close_distributions_beside_a_rare_distant_category():
    p, q = log([0.5 + 1e-10, 0.5 - 1e-10, 3e-30]), log([0.5, 0.5, 1e-30])
    assert close(chi_square(p, q), exact_chi_square(p, q), 1e-5)
    assert close(renyi2(p, q), exact_chi_square(p, q), 1e-5)


def test_renyi_is_finite_where_chi_square_overflows():
    p, q = [0.0, -1e4], [-1e4, 0.0]
    assert chi_square(p, q) == chi_square(np.float32(p), np.float32(q)) == np.inf
    assert renyi2(p, q) == approx(1e4, rel=1e-15)
    assert renyi2(log([0.5, 0.5]), log([1.0, 0.0])) == chi_square(log([0.5, 0.5]), log([1.0, 0.0])) == np.inf
    assert renyi2(log([1.0, 0.0]), log([0.5, 0.5])) == approx(LOG_2, rel=1e-15)
    assert chi_square(log([1.0, 0.0]), log([1.0, 0.0])) == 0.0


def test_total_variation_is_half_the_distance():
    p = np.exp(LOG_P)
    np.testing.assert_allclose(total_variation(LOG_P[0], LOG_P[1:]), np.abs(p[0] - p[1:]).sum(-1) / 2, rtol=1e-14)
    assert total_variation(log([1.0, 0.0]), log([0.0, 1.0])) == 1.0
    assert total_variation(log([0.5, 0.5]), log([1.0, 0.0])) == 0.5
    assert total_variation([0.0, -1e4], [-1e4, 0.0]) == 1.0
    assert total_variation(log([0.0, 1.0]), log([0.0, 1.0])) == 0.0


@cheap
@given(populations(max_members=2))
def test_the_divergences_bound_each_other(population):
    """Pinsker 2TV² <= KL, Bretagnolle–Huber TV² <= 1 − e^{−KL}, KL <= log(1 + χ²), 4TV² <= χ²."""
    p, q = population[0][0], population[0][-1]
    distance, divergence_, order2 = total_variation(p, q), kl(p, q), renyi2(p, q)
    slack = 1e-12
    # TV is a difference of probabilities, so it has an absolute error of 1e-16.
    tv = max(distance - 1e-15, 0.0)
    assert 0.0 <= distance <= 1.0 + slack
    assert 2 * tv**2 <= divergence_ * (1 + slack)
    assert tv**2 <= -np.expm1(-divergence_) * (1 + slack)
    assert divergence_ <= order2 * (1 + slack) + ZERO
    assert 4 * tv**2 <= chi_square(p, q) * (1 + slack)


# Wrong constants are noticed

MUTANTS = {
    "phi with a wrong subtrahend": ("_phi_direct", lambda u: (1 + np.expm1(u)) * u - 1.01 * np.expm1(u)),
    "phi a per mille too large": ("_phi_direct", lambda u: 1.001 * ((1 + np.expm1(u)) * u - np.expm1(u))),
    "log(1 + p) for log(1 − p)": ("safe_log1m", lambda p: np.log1p(p)),
    "mixture of unnormalised weights": ("check_weights", lambda w, like: np.full_like(like, 1.01 / like.shape[-1])),
    "no series near 0": ("CLOSE", -1.0),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(divergence, attribute, mutant)
    with pytest.raises(AssertionError):
        test_js_of_two_members_is_scipys()
        test_small_js_keeps_its_digits(1e-8)
        test_projected_js_at_the_edges()
        test_log_failure_of_small_and_certain_success()
        test_kl_at_the_edges()
