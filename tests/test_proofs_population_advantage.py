"""The proof of L2 goes through, no wrong constant gets through, and its rarer claims agree with plain numbers."""

from itertools import combinations

import numpy as np
import pytest
import sympy as sp
from proof_mutations import steps_without_constants, wrong_constants
from scipy.special import xlog1py, xlogy

from proofs import population_advantage
from proofs.averages import Average, expected_product_of_sums
from proofs.step import ProofError, prove


def test_every_statement_is_proved():
    proved = prove(population_advantage)
    assert {outcome.step.statement for outcome in proved} == {f"L2.{k}" for k in range(1, 9)}


@pytest.mark.parametrize(("step", "name", "wrong"), wrong_constants(population_advantage))
def test_a_wrong_constant_fails(step, name, wrong):
    with pytest.raises(ProofError):
        step.run(**{name: wrong})


def test_only_general_facts_claim_no_constant():
    assert steps_without_constants(population_advantage) == {"jensen", "smoothed_against_center"}


def test_leading_order_of_subsets_against_enumeration():
    """L2.4: every K-subset summed in floating point, members 1e-4 apart."""
    p = 0.3 + 1e-4 * np.array([-2.0, 1.0, -1.0, 2.0, 0.0])
    n, mean = len(p), p.mean()
    projected_js = (xlogy(p, p) + xlog1py(1 - p, -p)).mean() - (xlogy(mean, mean) + xlog1py(1 - mean, -mean))
    for k in range(2, n + 1):
        failing = np.mean([np.prod(1 - p[list(members)]) for members in combinations(range(n), k)])
        predicted = k * (k - 1) / (n - 1) * (1 - mean) ** (k - 1) * mean * projected_js
        assert (1 - mean) ** k - failing == pytest.approx(predicted, rel=2e-3)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_products_of_sums_against_expansion(n):
    """The partition formula of `expected_product_of_sums` against summing n members out, one value at a time."""
    values, chances = (sp.Integer(-1), sp.Integer(2)), (sp.Rational(1, 4), sp.Rational(3, 4))
    x = sp.Symbol("x")
    moments = {x**k: sum(c * v**k for v, c in zip(values, chances, strict=True)) for k in range(1, 6)}
    found = expected_product_of_sums(n, Average(x, known=moments), x, x**2, x)
    expected = sp.S.Zero
    for kinds in np.ndindex(*(2,) * n):
        population = [values[kind] for kind in kinds]
        chance = sp.Mul(*(chances[kind] for kind in kinds))
        expected += chance * sum(population) ** 2 * sum(v**2 for v in population)
    assert found == expected


def test_an_average_knows_only_what_it_is_told():
    x, y = sp.symbols("x y")
    average = Average(x, y, known={x: 0, x * y: 3})
    assert average(2 + 5 * x + 7 * x * y) == 23
    assert average(x**2) != 0
    assert average(y) ** 2 != average(y**2)
