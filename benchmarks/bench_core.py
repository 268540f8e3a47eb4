"""Speed of the core, against one NumPy log of the same array and against the loops one would otherwise write.

    OMP_NUM_THREADS=1 python -m pytest -n 0 -v -s benchmarks/bench_core.py --benchmark-columns=min,median,rounds

The default test run collects `tests/` only. Ratios are of processor time, the fastest of a few runs that take
turns; each test asserts the target it is named after and stores the ratio in `extra_info` (-s prints them).
"""

import time

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from esth.coverage import log_failure_gap, subset_success
from esth.divergence import js, kl, log_mixture, log_softmax, projected_js
from esth.lemmas import fisher_rate

POPULATIONS, MEMBERS, CATEGORIES = 10_000, 32, 64


@pytest.fixture(scope="module")
def log_p():
    """Log-probabilities of 10,000 populations of 32 members over 64 categories, 164 MB."""
    return log_softmax(np.random.default_rng(0).normal(size=(POPULATIONS, MEMBERS, CATEGORIES)))


@pytest.fixture(scope="module")
def success():
    return np.random.default_rng(1).random((64, 1024)) ** 8


def fastest(*functions, rounds=5, clock=time.process_time):
    """Seconds (of the processor, by default) of the fastest call of each function, the functions taking turns."""
    times = []
    for _ in range(rounds):
        times.append([])
        for function in functions:
            start = clock()
            function()
            times[-1].append(clock() - start)
    return np.min(times, axis=0)


def report(benchmark, **figures):
    benchmark.extra_info.update(figures)
    print("  " + ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in figures.items()))


def pairwise(p):
    """Mean squared Jensen–Shannon distance over all pairs of members: what is often computed in place of JS."""
    n = len(p)
    return np.mean([jensenshannon(p[i], p[j]) ** 2 for i in range(n) for j in range(i)])


def one_by_one(p):
    """JS of one population, a call of SciPy a member."""
    mixture = p.mean(axis=0)
    return np.mean([rel_entr(member, mixture).sum() for member in p])


@pytest.mark.parametrize("spread", [1.0, 1e-4], ids=["distant", "close"])
def test_js_within_ten_logs(benchmark, log_p, spread):
    """Close members take the series as well as the direct form."""
    log_p = log_softmax(spread * log_p)
    p = np.exp(log_p)
    benchmark.pedantic(js, (log_p,), rounds=3, warmup_rounds=1)
    ours, log = fastest(lambda: js(log_p), lambda: np.log(p))
    report(benchmark, times_one_log=ours / log)
    assert ours / log <= 10


def test_js_a_hundred_times_faster_than_a_loop_over_pairs(benchmark, log_p):
    """The loops are timed on four populations; each further one would cost them the same."""
    benchmark.pedantic(js, (log_p,), rounds=3, warmup_rounds=1)
    few = np.exp(log_p[:4])
    ours, pairs, members = fastest(
        lambda: js(log_p), lambda: [pairwise(p) for p in few], lambda: [one_by_one(p) for p in few]
    )
    np.testing.assert_allclose(js(log_p[:4]), [one_by_one(p) for p in few], rtol=1e-10)
    pairs, members = (loop / len(few) * POPULATIONS / ours for loop in (pairs, members))
    report(benchmark, faster_than_pairs=pairs, faster_than_members_one_by_one=members)
    assert pairs >= 100


def test_js_of_pairs_against_scipy(benchmark, log_p):
    """The same number from both: 160,000 pairs, and a loop over a thousand of them."""
    two = log_p.reshape(-1, 2, CATEGORIES)
    benchmark.pedantic(js, (two,), rounds=3, warmup_rounds=1)
    few = np.exp(two[:1000])
    ours, loop = fastest(lambda: js(two), lambda: [jensenshannon(a, b) ** 2 for a, b in few])
    np.testing.assert_allclose(js(two[:1000]), [jensenshannon(a, b) ** 2 for a, b in few], rtol=1e-10)
    report(benchmark, faster_than_a_loop=loop / len(few) * len(two) / ours)


@pytest.mark.parametrize("k", [128, 256, 512, 1024])
def test_subset_success_of_a_thousand_members(benchmark, success, k):
    """64 prompts, N = 1024: in (0, 1) for every K, where C(N, K) would overflow."""
    value = benchmark.pedantic(subset_success, (success, k), rounds=5, warmup_rounds=1)
    assert np.all((value > 0) & (value <= 1))


def test_subset_success_takes_time_in_proportion_to_members_and_size(benchmark, success):
    benchmark.pedantic(subset_success, (success, 1024), rounds=3, warmup_rounds=1)
    whole, quarter, small = fastest(
        lambda: subset_success(success, 1024),
        lambda: subset_success(success, 256),
        lambda: subset_success(success[:, :512], 512),
    )
    in_k, in_n = whole / quarter, whole / small
    report(benchmark, four_times_k=in_k, twice_n_and_k=in_n)
    # Four times the work takes four times as long, or less where calls, not numbers, take the time.
    assert in_k < 6 and in_n < 6


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda log_p: kl(log_p, log_mixture(log_p)[:, None, :]), id="kl"),
        pytest.param(log_mixture, id="log_mixture"),
        pytest.param(fisher_rate.bracket, id="bracket L1.3"),
    ],
)
def test_a_thousand_populations(benchmark, log_p, function):
    benchmark.pedantic(function, (log_p[:1000],), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("function", [projected_js, log_failure_gap], ids=lambda f: f.__name__)
def test_64_prompts_of_1024_members(benchmark, success, function):
    benchmark.pedantic(function, (success,), rounds=5, warmup_rounds=1)
