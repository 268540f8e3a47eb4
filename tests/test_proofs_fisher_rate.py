"""The proof of L1 goes through, no wrong constant gets through, and its fourth order agrees with
quadrature."""

import numpy as np
import pytest
import sympy as sp

from proofs import fisher_rate
from proofs.step import ProofError, prove
from tests.proof_mutations import by_name, steps_without_constants, wrong_constants

# An inequality over a box away from its limit cases has room on one side.
LOOSE = {"two_categories_by_intervals-upper+1%", "two_categories_by_intervals-lower-1%"}


@pytest.mark.slow
def test_every_statement_is_proved():
    proved = prove(fisher_rate)
    assert {outcome.step.statement for outcome in proved} == {f"L1.{k}" for k in range(1, 5)}


@pytest.mark.parametrize(("step", "name", "wrong"), [p for p in wrong_constants(fisher_rate) if p.id not in LOOSE])
def test_a_wrong_constant_fails(step, name, wrong):
    with pytest.raises(ProofError):
        step.run(**{name: wrong})


def test_every_step_but_one_claims_a_constant():
    assert steps_without_constants(fisher_rate) == {"bracket_by_intervals"}


@pytest.mark.parametrize(("factor", "side"), [(sp.Rational(7, 10), "upper"), (sp.Rational(3, 2), "lower")])
def test_the_step_without_a_constant_sees_a_wrong_psi(monkeypatch, factor, side):
    """Away from the limit of small spans the bracket has less than a half of itself to spare."""
    monkeypatch.setattr(fisher_rate, "psi", fisher_rate.psi * factor)
    with pytest.raises(ProofError, match=f"{side} side is refuted"):
        by_name(fisher_rate, "bracket_by_intervals").run()


def _mean_js(p: float, sigma: float, weights: np.ndarray) -> float:
    """E[JS_w] of two categories over Gaussian log odds, by Gauss-Hermite quadrature in every member."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(48)
    mass = mass / mass.sum()
    success = p * np.exp(sigma * nodes) / (1 - p + p * np.exp(sigma * nodes))
    grid = np.meshgrid(*[success] * len(weights), indexing="ij")
    probability = np.prod(np.meshgrid(*[mass] * len(weights), indexing="ij"), axis=0)

    def entropy(x: np.ndarray) -> np.ndarray:
        return -x * np.log(x) - (1 - x) * np.log1p(-x)

    mixture = sum(w * x for w, x in zip(weights, grid, strict=True))
    js = entropy(mixture) - sum(w * entropy(x) for w, x in zip(weights, grid, strict=True))
    return float((probability * js).sum())


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.8, 0.2), (0.5, 0.3, 0.2)])
@pytest.mark.parametrize("p", [0.5, 0.2, 0.03])
def test_fourth_order_against_quadrature(p, weights):
    """The proved coefficient of σ⁴ (two categories, Gaussian), by Richardson extrapolation of exact
    expectations."""
    weights = np.array(weights)
    v = p * (1 - p)
    power = [float((weights**k).sum()) for k in (2, 3, 4)]
    proved = fisher_rate.fourth_order(v, *power, 0)

    def beyond_the_rate(sigma: float) -> float:
        return (_mean_js(p, sigma, weights) - sigma**2 / 2 * (1 - power[0]) * v) / sigma**4

    measured = (4 * beyond_the_rate(0.1) - beyond_the_rate(0.2)) / 3  # the σ⁶ term cancels
    assert measured == pytest.approx(proved, rel=5e-3)
    assert measured != pytest.approx(1.01 * proved, rel=2e-3)


def test_the_rate_errs_on_both_sides():
    """Order 4 is positive for rare categories and negative for equal ones: the rate is no bound."""
    for n in range(2, 9):
        power = [sp.Rational(1, n**k) for k in (1, 2, 3)]
        zero = sp.Rational(n - 1, 7 * n - 5)  # v at which it changes sign
        assert 0 < zero < sp.Rational(1, 4)
        assert fisher_rate.fourth_order(zero, *power, 0) == 0
        assert fisher_rate.fourth_order(zero / 2, *power, 0) > 0
        assert fisher_rate.fourth_order(sp.Rational(1, 4), *power, 0) < 0


def test_definition_of_js_against_scipy():
    from scipy.spatial.distance import jensenshannon

    members = [(sp.Rational(1, 2), sp.Rational(1, 2), 0), (sp.Rational(1, 5), sp.Rational(1, 5), sp.Rational(3, 5))]
    expected = jensenshannon(*np.array(members, dtype=float)) ** 2
    assert float(fisher_rate.js(fisher_rate.uniform(2), members)) == pytest.approx(expected, rel=1e-14)
