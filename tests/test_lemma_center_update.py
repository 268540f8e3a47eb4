"""P4 against exact policies, quadrature and enumeration of the noise, 60-digit arithmetic, and itself."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from esth.check import Verdict
from esth.coverage import at_least_one, mixture_success, population_success
from esth.errors import InputError
from esth.lemmas import center_update
from esth.lemmas.center_update import (
    LOGIT_LIPSCHITZ,
    bookkeeping,
    center_step,
    check,
    check_prediction,
    drift,
    lipschitz_remainder,
    matching_success,
    members_needed,
    predict,
    remainder,
    softmax_remainder,
    step_square,
    survival_gain,
    transfer_bound,
    typical_remainder,
)
from esth.lemmas.reward_weighting import correlation, spread
from esth.policies import Categorical
from esth.weighting import linear_tilt, price_gain, zscore
from tests.populations import MP, approx, exact

thousand = settings(derandomize=True, deadline=None, max_examples=1000)
some = settings(derandomize=True, deadline=None, max_examples=300)


@st.composite
def updates(draw):
    """(policy, accepted [V], θ [V], noise [N, V], fitness [N], σ, β) of a softmax in its logits."""
    n, v = draw(st.integers(2, 5)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    accepted = np.arange(v) < draw(st.integers(1, v - 1))
    theta = rng.normal(size=v) * draw(st.sampled_from([0.0, 1.0, 10.0]))
    noise = rng.choice([rng.normal(size=(n, v)), rng.choice([-1.0, 1.0], size=(n, v))])
    fitness = rng.choice([rng.normal(size=n), rng.integers(0, 2, size=n).astype(float)])
    sigma, beta = draw(st.sampled_from([1e-2, 0.3, 3.0, 100.0])), draw(st.sampled_from([1e-3, 0.5, 10.0]))
    return Categorical(v), accepted, theta, noise, fitness, sigma, beta


def quantities(update):
    """Successes and remainders around a center: p, members' p [N], p(θ⁺), R [N], r_Δ, z [N]."""
    policy, accepted, theta, noise, fitness, sigma, beta = update
    z = zscore(fitness)
    step = center_step(z, noise, beta * sigma)
    p, gradient = policy.success(theta, accepted), policy.success_gradient(theta, accepted)
    members, updated = policy.success(theta + sigma * noise, accepted), policy.success(theta + step, accepted)
    r = remainder(members, p, gradient, sigma * noise)
    return p, members, updated, r, remainder(updated, p, gradient, step), z


# P4, the update


def test_the_step_is_the_tilted_mean_less_the_plain_mean():
    rng = np.random.default_rng(0)
    noise, fitness, theta, sigma, alpha = rng.normal(size=(6, 4)), rng.normal(size=6), rng.normal(size=4), 0.3, 0.12
    step = center_step(zscore(fitness), noise, alpha)
    weights = linear_tilt(fitness, alpha / sigma)
    tilted = weights @ (theta + sigma * noise)
    assert theta + step == approx(tilted - sigma * noise.mean(axis=0), rel=1e-9, abs=1e-14)
    by_hand = alpha / 6 * sum(z * e for z, e in zip(zscore(fitness), noise, strict=True))
    assert step == approx(by_hand, rel=1e-12, abs=1e-15)
    assert center_step(np.zeros(6), noise, alpha).tolist() == [0.0] * 4


# P4.1


@thousand
@given(updates())
def test_the_center_follows_the_mixture_within_the_transfer_bound(update):
    *_, sigma, beta = update
    p, members, updated, r, r_step, z = quantities(update)
    mixture = price_gain((1 + beta * z) / len(z), members)
    error = (updated - p) - mixture
    bound = transfer_bound(r, r_step, beta)
    # The linear parts are rounded at the size of σβ‖∇p‖.
    assert abs(error) <= bound * (1 + 1e-9) + 1e-13 * (1 + sigma * (1 + beta))
    assert predict(beta, correlation(update[4], members), spread(members)) == pytest.approx(
        mixture, rel=1e-7, abs=1e-12
    )


def test_the_transfer_bound_is_attained():
    """Two members whose remainders differ, and a step whose remainder has the other sign: nothing can be smaller."""
    r, r_step, beta = np.array([0.02, -0.03]), -0.01, 0.7
    z = np.array([1.0, -1.0])
    assert abs(r_step - beta * np.mean(z * r)) == approx(float(transfer_bound(r, r_step, beta)), rel=1e-12)
    assert transfer_bound(r, r_step, -beta) == transfer_bound(r, r_step, beta) == approx(0.7 * 0.025 + 0.01, rel=1e-12)
    assert transfer_bound(np.full(3, 0.4), 0.0, 2.0) == pytest.approx(0, abs=1e-15)


@thousand
@given(updates())
def test_the_remainder_of_a_softmax_is_below_the_squared_span_and_the_squared_norm(update):
    _, _, _, noise, _, sigma, _ = update
    _, _, _, r, _, _ = quantities(update)
    rounding = 1e-13 * (1 + sigma)
    assert np.all(np.abs(r) <= softmax_remainder(sigma * noise) * (1 + 1e-9) + rounding)
    assert np.all(np.abs(r) <= lipschitz_remainder(LOGIT_LIPSCHITZ, sigma * noise) * (1 + 1e-9) + rounding)
    assert np.all(np.abs(r) <= 1 + np.ptp(sigma * noise, axis=-1) / 4)


def exact_binary_remainder(p, u):
    """p(θ+u) − p − p(1−p)u of log-odds θ in 400 digits."""
    p, u = exact(p), exact(u)
    odds = p / (1 - p) * MP.exp(u)
    return odds / (1 + odds) - p - p * (1 - p) * u


@pytest.mark.parametrize("sign", [1, -1])
def test_both_constants_are_sharp(sign):
    """One accepted category of two at p = (1 ± 1/√3)/2 and a small move; split evenly, its norm is span/√2."""
    p = (1 - sign / math.sqrt(3)) / 2
    for u in (1e-2, 1e-4):
        r = float(exact_binary_remainder(p, u))
        assert np.sign(r) == sign
        assert abs(r) == approx(float(softmax_remainder(np.array([u, 0.0]))), rel=u**2)
        assert abs(r) <= softmax_remainder(np.array([u, 0.0])) * (1 + 1e-12)
        assert abs(r) == approx(float(lipschitz_remainder(LOGIT_LIPSCHITZ, np.array([u / 2, -u / 2]))), rel=u**2)
    assert softmax_remainder(np.array([1.0, 3.0, 2.0])) == approx(4 / (12 * math.sqrt(3)), rel=1e-14)
    assert lipschitz_remainder(0.5, np.array([3.0, 4.0])) == 6.25
    assert approx(1 / (3 * math.sqrt(3)), rel=1e-14) == LOGIT_LIPSCHITZ


def test_no_line_of_logits_bends_success_more():
    """The largest |p″| over distributions and directions of unit span, from its extreme cases on a grid.

    p″ = E[(v − p)(u − Eu)²]; given the share p of accepted categories and the two conditional means, the best u takes
    the values 0 and 1 on the one side and is constant on the other.
    """
    p, a, b = np.meshgrid(*[np.linspace(0, 1, 201)] * 3, indexing="ij")
    bends = [p * (1 - p) * (m * (1 - m) + (1 - 2 * p) * (a - b) ** 2 * s) for m, s in ((a, 1.0), (b, -1.0))]
    largest = max(float(np.max(np.abs(bend))) for bend in bends)
    assert largest <= 1 / (6 * math.sqrt(3)) and largest == pytest.approx(1 / (6 * math.sqrt(3)), rel=1e-4)


def test_the_typical_remainder_of_a_quadratic():
    """sd of σ²εᵀHε/2 over Gaussian ε, by quadrature that is exact for polynomials."""
    x, mass = np.polynomial.hermite_e.hermegauss(5)
    points = np.array(list(itertools.product(x, repeat=2)))
    probability = np.prod(np.array(list(itertools.product(mass / mass.sum(), repeat=2))), axis=-1)
    hessian, sigma = np.array([[0.3, -0.2], [-0.2, 0.7]]), 0.4
    values = 0.5 * sigma**2 * np.einsum("ki,ij,kj->k", points, hessian, points)
    deviation = math.sqrt(probability @ (values - probability @ values) ** 2)
    assert typical_remainder(hessian, sigma) == approx(deviation, rel=1e-12)


def test_remainders_of_a_policy_at_small_noise():
    policy, accepted, theta = Categorical(4), np.array([1, 0, 1, 0]), np.array([0.3, -0.5, 0.0, 0.8])
    noise, sigma = np.random.default_rng(0).normal(size=(20_000, 4)), 0.01
    r = remainder(
        policy.success(theta + sigma * noise, accepted),
        policy.success(theta, accepted),
        policy.success_gradient(theta, accepted),
        sigma * noise,
    )
    assert np.std(r) == pytest.approx(
        float(typical_remainder(policy.success_hessian(theta, accepted), sigma)), rel=0.03
    )


# P4.2


@thousand
@given(updates(), st.integers(1, 16))
def test_what_survives_is_gained(update, k):
    *_, sigma, beta = update
    p, members, updated, r, r_step, _ = quantities(update)
    gain = predict(beta, correlation(update[4], members), spread(members))
    bound = transfer_bound(r, r_step, beta)
    actual = at_least_one(updated, k) - at_least_one(p, k)
    least = survival_gain(p, gain, bound, k)
    assert least <= actual + 1e-13 * k * (1 + sigma * (1 + beta))
    if abs(gain - bound) > 1e-12:
        assert least >= 0 if gain > bound else least <= 0


def test_survival_at_a_point():
    assert survival_gain(0.2, 0.1, 0.04, 2) == approx(0.8**2 - 0.74**2, rel=1e-12)
    assert survival_gain(0.2, 0.0, 0.5, 3) == approx(0.8**3 - 1, rel=1e-12)
    assert survival_gain(0.9, 0.5, 0.0, 1) == approx(0.1, rel=1e-12)
    assert survival_gain(1e-300, 1e-300, 0.0, 4) == approx(4e-300, rel=1e-12)
    batch = survival_gain(np.array([0.2, 0.4]), 0.1, 0.0, np.array([[1], [4]]))
    assert batch.shape == (2, 2) and batch[1, 0] == approx(0.8**4 - 0.7**4, rel=1e-12)


# P4.3


@some
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_the_books_balance(seed, n):
    rng = np.random.default_rng(seed)
    center, updated, members = rng.random(5), rng.random(5), rng.random((5, n)) ** rng.choice([1, 20])
    books = bookkeeping(center, updated, members)
    assert books.population == pytest.approx(books.mixture + books.stratification, rel=1e-12, abs=1e-15)
    assert books.updated == pytest.approx((1 - center) ** n - (1 - updated) ** n, rel=1e-12, abs=1e-15)
    assert books.population == pytest.approx((1 - center) ** n - np.prod(1 - members, axis=1), rel=1e-9, abs=1e-14)
    assert np.all(books.stratification >= -1e-15)
    assert books.stratification == pytest.approx(population_success(members) - mixture_success(members), abs=1e-15)


@thousand
@given(st.lists(st.sampled_from([0.0, 1.0, 1e-300, 0.3, 0.9, 1 - 1e-12]), min_size=1, max_size=5).map(np.array))
def test_one_center_can_match_the_population(members):
    p = float(matching_success(members))
    assert 0 <= p <= 1
    assert at_least_one(p, len(members)) == pytest.approx(float(population_success(members)), rel=1e-9, abs=1e-300)


def test_matching_success_is_the_geometric_mean_of_the_failures():
    assert matching_success(np.array([0.19, 0.0])) == approx(0.1, rel=1e-12)
    assert matching_success(np.array([[0.5, 0.5], [1.0, 0.2]])) == approx([0.5, 1.0], rel=1e-12)


# P4.4


def test_the_length_of_a_step_of_independent_fitness():
    """Over all signs of ε, for a given z of mean 0 and mean square 1."""
    z, alpha, d = zscore(np.array([0.3, -1.0, 2.0])), 0.7, 2
    noise = np.array(list(itertools.product((-1.0, 1.0), repeat=3 * d))).reshape(-1, 3, d)
    squares = np.sum(center_step(z, noise, alpha) ** 2, axis=-1)
    assert np.mean(squares) == approx(step_square(alpha, d, 3), rel=1e-12)
    assert step_square(alpha, d, 3) == approx(0.49 * 2 / 3, rel=1e-12)


def test_the_length_of_a_step_of_linear_fitness():
    """Gaussian noise by quadrature, off the ties that only a grid has."""
    x, mass = np.polynomial.hermite_e.hermegauss(6)
    points = np.array(list(itertools.product(x, repeat=6))).reshape(-1, 3, 2)
    probability = np.prod(np.array(list(itertools.product(mass / mass.sum(), repeat=6))), axis=-1)
    fitness, alpha = points[..., 0], 0.7
    squares = np.sum(center_step(zscore(fitness), points, alpha) ** 2, axis=-1)
    tied = np.ptp(fitness, axis=-1) == 0
    assert np.all(squares[tied] == 0)
    # Where z = 0 by a tie, the share of the second direction, α²/N, is missing.
    missing = probability[tied].sum() * alpha**2 / 3
    assert probability @ squares + missing == approx(step_square(alpha, 2, 3, linear=True), rel=1e-9)
    assert step_square(alpha, 2, 3, linear=True) == approx(0.49 * 3 / 3, rel=1e-12)


def test_the_drift_of_the_random_part():
    """E of ½ΔᵀHΔ, exactly, for a quadratic coverage; the signal ρα‖∇C‖ equals it at `members_needed`."""
    hessian, alpha, n = np.array([[0.5, 0.2], [0.2, -0.8]]), 0.3, 3
    z = zscore(np.array([1.0, 0.0, 4.0]))
    noise = np.array(list(itertools.product((-1.0, 1.0), repeat=n * 2))).reshape(-1, n, 2)
    steps = center_step(z, noise, alpha)
    mean = np.mean(0.5 * np.einsum("ki,ij,kj->k", steps, hessian, steps))
    assert mean == approx(float(drift(alpha, np.trace(hessian), n)), rel=1e-12) and mean < 0
    needed = members_needed(alpha, np.trace(hessian), 0.4, 0.05)
    assert 0.4 * alpha * 0.05 == approx(float(abs(drift(alpha, np.trace(hessian), 1))) / float(needed), rel=1e-12)


# Batches, extremes, checks, errors


def test_torch_gives_the_same_numbers():
    rng = np.random.default_rng(1)
    z, noise, p = rng.normal(size=(2, 5)), rng.normal(size=(2, 5, 3)), rng.random((2, 5))
    tz, tnoise, tp = (torch.asarray(a) for a in (z, noise, p))
    pairs = [
        (center_step(z, noise, 0.3), center_step(tz, tnoise, 0.3)),
        (transfer_bound(z, p[:, 0], 0.4), transfer_bound(tz, tp[:, 0], 0.4)),
        (softmax_remainder(noise), softmax_remainder(tnoise)),
        (lipschitz_remainder(0.5, noise), lipschitz_remainder(0.5, tnoise)),
        (survival_gain(p, z / 10, 0.01, 3), survival_gain(tp, tz / 10, 0.01, 3)),
        (matching_success(p), matching_success(tp)),
        (bookkeeping(p[:, 0], p[:, 1], p).stratification, bookkeeping(tp[:, 0], tp[:, 1], tp).stratification),
        (remainder(p, p[:, :1], noise, noise), remainder(tp, tp[:, :1], tnoise, tnoise)),
    ]
    for by_numpy, by_torch in pairs:
        assert np.asarray(by_torch) == approx(by_numpy, rel=1e-11, abs=1e-15)


def test_extremes_are_finite_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert softmax_remainder(np.array([1e4, -1e4])) == approx(4e8 / (12 * math.sqrt(3)), rel=1e-12)
        assert softmax_remainder(np.array([5.0])) == 0
        far = expit(1e4)
        assert abs(remainder(far, 0.5, np.array([0.25, -0.25]), np.array([1e4, 0.0]))) <= softmax_remainder([1e4, 0.0])
        assert members_needed(0.1, 0.0, 0.5, 1.0) == 0
        assert drift(0.0, 3.0, 4) == 0 and transfer_bound(np.zeros(1), 0.0, 0.5) == 0


def test_checks():
    assert check(0.10, 0.09, 0.02).verdict is Verdict.IDENTITY  # true of any exact numbers
    assert check(0.10, 0.09, 0.02, se=0.001).verdict is Verdict.HOLDS
    assert check(0.10, 0.05, 0.02).verdict is Verdict.VIOLATED
    assert check(0.10, 0.09, 0.02, se=0.05).verdict is Verdict.UNDECIDED
    assert check(0.10, 0.09, 1.5).verdict is Verdict.VACUOUS
    judged = check_prediction(0.101, 0.1, statement="P4.4", what="drift", tolerance=0.02)
    assert judged.verdict is Verdict.HOLDS and judged.statement == "P4.4"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check(0.1, 0.1, -0.1), "not negative"),
        (lambda: survival_gain(1.2, 0.1, 0.0, 3), r"\[0, 1\]"),
        (lambda: survival_gain(0.2, 0.1, 0.0, -1), "not be negative"),
        (lambda: matching_success(np.array([0.5, np.nan])), r"\[0, 1\]"),
        (lambda: bookkeeping(np.array([0.5]), np.array([0.5]), np.array([[1.5]])), r"\[0, 1\]"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


TRANSFER, SPAN, NORM = transfer_bound, softmax_remainder, lipschitz_remainder
TRIES, STEP, DRIFT = center_update.at_least_one, center_step, drift
MUTANTS = {
    "transfer bound 1 % too small": ("transfer_bound", lambda r, s, beta: 0.99 * TRANSFER(r, s, beta)),
    "remainder of span 1 % too small": ("softmax_remainder", lambda u: 0.99 * SPAN(u)),
    "remainder of norm 1 % too small": ("lipschitz_remainder", lambda lip, u: 0.99 * NORM(lip, u)),
    "one try more": ("at_least_one", lambda p, k: TRIES(p, k + 1)),
    "step by N − 1": ("center_step", lambda z, e, a: STEP(z, e, a) * z.shape[-1] / (z.shape[-1] - 1)),
    "drift 1 % too large": ("drift", lambda a, t, n: 1.01 * DRIFT(a, t, n)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_constant_is_noticed(monkeypatch, name):
    attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(center_update, attribute, mutant)
    monkeypatch.setitem(globals(), attribute, mutant)
    with pytest.raises(AssertionError):
        test_the_transfer_bound_is_attained()
        test_both_constants_are_sharp(1)
        test_survival_at_a_point()
        test_the_length_of_a_step_of_independent_fitness()
        test_the_drift_of_the_random_part()
