"""Hypothesis strategies for populations, and slow references in 400-digit arithmetic."""

import mpmath
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from esth.divergence import log_softmax

# Digits enough for 1 − 1e-300, in a context of its own.
MP = mpmath.mp.clone()
MP.dps = 400

cheap = settings(derandomize=True, deadline=None, max_examples=300)
costly = settings(derandomize=True, deadline=None, max_examples=100)

# Scales of the differences between members: from equal up to rounding to as good as deterministic.
SCALES = st.sampled_from([0.0, 1e-13, 1e-10, 1e-7, 1e-3, 0.1, 1.0, 10.0, 1e4])


@st.composite
def weight_vectors(draw, n):
    """Weights of `n` members: uniform, random, with zeros, with one of 1e-310, or all on one member."""
    kind = draw(st.sampled_from(["uniform", "random", "zeros", "tiny", "one"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "uniform" or n == 1:
        return np.full(n, 1.0 / n)
    if kind == "one":
        return np.eye(n)[rng.integers(n)]
    w = rng.dirichlet(np.ones(n))
    if kind == "zeros":
        w[rng.integers(n)] = 0.0
    elif kind == "tiny":
        w[rng.integers(n)] = 1e-310
    return w / w.sum()


@st.composite
def populations(draw, max_members=5, max_categories=6, forbidden=True):
    """(log_p [N, V], weights [N]): a common base plus differences of some scale, and categories of probability 0."""
    n, v = draw(st.integers(1, max_members)), draw(st.integers(1, max_categories))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.normal(size=v) * draw(st.sampled_from([0.0, 1.0, 30.0])) + rng.normal(size=(n, v)) * draw(SCALES)
    if forbidden and draw(st.booleans()):
        kept = rng.random((n, v)) < 0.7
        kept[np.arange(n), rng.integers(v, size=n)] = True
        logits[~kept] = -np.inf
    return log_softmax(logits), draw(weight_vectors(n))


PROBABILITIES = st.one_of(
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 1.0, 1e-300, 1e-17, 1e-9, 1.0 - 2**-53, 1.0 - 1e-9, 0.5]),
)


@st.composite
def successes(draw, max_members=6):
    """(p [N], weights [N]): unrelated successes, or successes about a common one."""
    n = draw(st.integers(1, max_members))
    if draw(st.booleans()):
        p = np.array(draw(st.lists(PROBABILITIES, min_size=n, max_size=n)))
    else:
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        center = draw(PROBABILITIES)
        p = np.clip(center * (1 + draw(st.sampled_from([1e-12, 1e-9, 1e-4, 0.3])) * rng.normal(size=n)), 0, 1)
    return p, draw(weight_vectors(n))


def approx(expected, rel=0.0, abs=0.0):
    """pytest.approx without its absolute tolerance of 1e-12, which would pass any small number."""
    return pytest.approx(expected, rel=rel, abs=abs)


def exact(x):
    """The double `x` as a 400-digit number."""
    return MP.mpf(float(x))


def exact_weights(weights, n):
    w = [MP.mpf(1) / n] * n if weights is None else [exact(x) for x in weights]
    total = MP.fsum(w)
    return [x / total for x in w]


def exact_distribution(log_p):
    """exp of one row of log-probabilities, normalised exactly."""
    p = [MP.exp(exact(x)) if x > -np.inf else MP.mpf(0) for x in log_p]
    total = MP.fsum(p)
    return [x / total for x in p]


def exact_kl(p, q):
    """KL of two lists of 400-digit numbers."""
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return MP.inf
    return MP.fsum(a * MP.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def exact_js(log_p, weights=None):
    """JS by its definition Σ wᵢ KL(πᵢ‖π̄), in 400 digits, of the normalised rows."""
    p = [exact_distribution(row) for row in log_p]
    w = exact_weights(weights, len(p))
    mixture = [MP.fsum(wi * row[y] for wi, row in zip(w, p, strict=True)) for y in range(len(p[0]))]
    return MP.fsum(wi * exact_kl(row, mixture) for wi, row in zip(w, p, strict=True) if wi > 0)


def exact_binary_entropy(p):
    if p in (0, 1):
        return MP.mpf(0)
    return -p * MP.log(p) - (1 - p) * MP.log1p(-p)


def exact_projected_js(p, weights=None):
    """h(p̄) − Σ wᵢ h(pᵢ), in 400 digits."""
    w, p = exact_weights(weights, len(p)), [exact(x) for x in p]
    mean = MP.fsum(wi * x for wi, x in zip(w, p, strict=True))
    return exact_binary_entropy(mean) - MP.fsum(
        wi * exact_binary_entropy(x) for wi, x in zip(w, p, strict=True) if wi > 0
    )


def exact_log_failure_gap(p, weights=None):
    """log(1−p̄) − Σ wᵢ log(1−pᵢ) over the members of positive weight, in 400 digits."""
    pairs = [(wi, exact(x)) for wi, x in zip(exact_weights(weights, len(p)), p, strict=True) if wi > 0]
    certain = [x == 1 for _, x in pairs]
    if any(certain):
        return MP.mpf(0) if all(certain) else MP.inf
    mean = MP.fsum(wi * x for wi, x in pairs)
    return MP.log1p(-mean) - MP.fsum(wi * MP.log1p(-x) for wi, x in pairs)


def close(value, reference, relative, absolute=0.0):
    """Whether a double agrees with a 400-digit reference."""
    value = float(value)
    if MP.isinf(reference):
        return value == float(reference)
    return abs(exact(value) - reference) <= relative * abs(reference) + absolute
