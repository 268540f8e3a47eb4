"""The proof of L3 goes through, no wrong constant gets through, and what it adds to L3 agrees with simulation."""

import numpy as np
import pytest
import sympy as sp
from proof_mutations import by_name, steps_without_constants, wrong_constants

from proofs import reward_weighting
from proofs.step import ProofError, prove


def test_every_statement_is_proved():
    proved = prove(reward_weighting)
    assert {outcome.step.statement for outcome in proved} == {f"L3.{k}" for k in range(1, 7)}


@pytest.mark.parametrize(("step", "name", "wrong"), wrong_constants(reward_weighting, except_for="negative_weights"))
def test_a_wrong_constant_fails(step, name, wrong):
    with pytest.raises(ProofError):
        step.run(**{name: wrong})


def test_every_step_claims_a_constant():
    assert steps_without_constants(reward_weighting) == set()


def test_share_of_negative_weights_is_no_looser_than_simulation_allows():
    """L3.2: .556 ± .001 of normal populations of 30 have a negative weight, so .56 must not be provable."""
    fitness = np.random.default_rng(5).normal(size=(200_000, 30))
    scores = (fitness - fitness.mean(1, keepdims=True)) / fitness.std(1, keepdims=True)
    assert np.mean(scores.min(axis=1) < -2) == pytest.approx(0.556, abs=0.004)
    with pytest.raises(ProofError):
        by_name(reward_weighting, "negative_weights").run(share=sp.Rational(56, 100))


def test_most_populations_with_uniform_fitness_have_no_negative_weight():
    """The counterexample to L3.2's N = 30 remark without a law for the fitness."""
    fitness = np.random.default_rng(6).random((20_000, 30))
    scores = (fitness - fitness.mean(1, keepdims=True)) / fitness.std(1, keepdims=True)
    assert np.mean(scores.min(axis=1) < -2) < 0.1


@pytest.mark.parametrize("n", [2, 4])
def test_price_of_linear_fitness_in_a_small_population(n):
    """L3.6: the exact factor is β²(1 - 2/N); β² alone would be off by 2 and by 4/3 of it here."""
    rng = np.random.default_rng(7)
    beta, fisher = 0.4, np.diag([3.0, 1.0, 0.5])
    epsilon = rng.normal(size=(400_000, n, 3))
    x = epsilon[..., 0]
    weights = (1 + beta * (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)) / n
    centred = epsilon - np.einsum("rn,rnd->rd", weights, epsilon)[:, None]
    form = np.einsum("rn,rnd,de,rne->r", weights, centred, fisher, centred, optimize=True)
    trace, along = np.trace(fisher), fisher[0, 0]
    predicted = trace * (1 - (1 + beta**2) / n) - beta**2 * (1 - 2 / n) * along
    standard_error = form.std() / len(form) ** 0.5
    assert abs(form.mean() - predicted) < 4 * standard_error
    assert abs(form.mean() - (predicted - beta**2 * 2 / n * along)) > 20 * standard_error
