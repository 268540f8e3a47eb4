"""The study of L2 on checkpoints: end to end on a tiny real model against enumeration, and on known successes."""

import json
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra esth[plot]")

from esth.check import Verdict
from esth.coverage import at_least_one, mean_success, mixture_success, subset_success
from esth.divergence import projected_js
from esth.errors import InputError
from esth.models import load_checkpoint, load_engine
from esth.models.engine import Response, Sampling
from esth.noise import population
from llm import population_advantage as study
from llm.__main__ import main
from llm.samples import Samples
from tests.llm_samples import logistic_successes, saved, synthetic_sample, verifiable

QUESTIONS = ["t5 t9", "t30", "t7 t7 t8 t40", "t12 t13", "t50 t3", "t21"]
SIGMA, TEMPERATURE, MEMBERS = 0.05, 0.4, 3


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    """One run of the command: its folder, and the exact successes [members, prompts] of its members."""
    model, folder = str(tiny_folder("llama")), tmp_path_factory.mktemp("run")
    task = verifiable(folder, model, QUESTIONS, temperature=TEMPERATURE)
    options = {
        "task": "file", "data": task, "verifier": "text", "prompts": 6, "samples": 40, "members": MEMBERS, "pairs": 4,
        "pair-samples": 6, "scored": 3, "max-tokens": 1, "temperature": TEMPERATURE, "sigma": SIGMA, "seed": 3,
    }  # fmt: skip
    keep = folder / "samples"
    arguments = ["population_advantage", *(f"--{k}={v}" for k, v in options.items()), "--model", model]
    assert main([*arguments, "--keep", str(keep)]) in (0, 1)
    engine, sampling = load_engine(load_checkpoint(model)), Sampling(TEMPERATURE, 1)
    with Samples(keep, None) as samples:
        iid, seed = samples.iid(), samples.settings.stream(0)
    rewards = {}
    for prompt, text, reward in zip(iid.population.prompt, iid.population.tokens, iid.population.reward, strict=True):
        rewards.setdefault(int(prompt), {})[tuple(text)] = reward
    exact = []
    for member in population(seed, MEMBERS):
        engine.set_member(member, SIGMA)
        row = []
        for x, question in enumerate(iid.prompts):
            right = [Response(t, True) for t, solved in rewards[x].items() if solved]
            scores = engine.score([engine.checkpoint.encode(question)], [right], sampling)[0] if right else []
            row.append(sum(float(np.exp(s.sum())) for s in scores))
        exact.append(row)
    return keep, np.array(exact)


def record(folder):
    return json.loads((folder / "population_advantage.json").read_text(encoding="utf-8"))


def find(checks, text):
    (found,) = [c for c in checks if text in c.what]
    return found


def test_coverage_is_that_of_the_enumerated_members(run):
    folder, exact = run
    p, curves = exact.T, record(folder)["data"]["curves"]
    assert 0.2 < p.mean() < 0.9 and np.all(p < 1)
    noise = np.sqrt(np.mean(p * (1 - p)) / (40 * p.size))
    for k in range(1, MEMBERS + 1):
        assert curves["population"]["value"][k - 1] == pytest.approx(subset_success(p, k).mean(), abs=4 * k * noise)
        assert curves["mixture"]["value"][k - 1] == pytest.approx(mixture_success(p, k).mean(), abs=4 * k * noise)
    assert record(folder)["data"]["diversity"]["projected"] == pytest.approx(projected_js(p).tolist(), abs=0.15)


def test_the_same_from_the_folder_with_no_model(run, tmp_path, capsys):
    folder, _ = run
    assert main(["L2", "--from", str(folder), "--out", str(tmp_path)]) in (0, 1)
    assert record(tmp_path)["checks"] == record(folder)["checks"]
    assert record(tmp_path)["data"] == record(folder)["data"]
    assert (tmp_path / "population_advantage.png").stat().st_size > 20_000
    assert "P_pop(2) − P_mix(2)" in capsys.readouterr().out


def test_samples_without_answers_are_one_line(run, tmp_path, capsys):
    rng = np.random.default_rng(0)
    sample = synthetic_sample(rng, np.full((2, 4), 0.5), 4)
    sample.population.reward[:] = np.nan
    folder = tmp_path / "unverified"
    saved(folder, sample, synthetic_sample(rng, np.full((4, 4), 0.5), 2, family="antithetic"))
    assert main(["L2", "--from", str(folder)]) == 2
    assert capsys.readouterr().err.strip() == (
        "llm: this study needs verified responses: the task has no answers to verify"
    )


def known(rng, x, n=4, pairs=4, spread=0.8, **more):
    level = rng.standard_normal(x)
    successes = logistic_successes(rng, level, n, interaction=spread, **more)
    fresh = logistic_successes(rng, level, 2 * pairs, interaction=spread, antithetic=True, **more)
    return successes, fresh, 1 / (1 + np.exp(-level))


def studied(rng, folder, p, q, center, m=6, pair_m=4, **options):
    samples = saved(
        folder,
        synthetic_sample(rng, p, m, center=center, scored=2, js=options.pop("js", 0.6)),
        synthetic_sample(rng, q, pair_m, center=center, family="antithetic"),
        seed=int(rng.integers(1000)),
    )
    return study.study(samples)


def tries(rng, p, m):
    """Rewards [X, N, m] of successes [N, X]."""
    return (rng.random((*p.T.shape, m)) < p.T[..., None]).astype(float)


def test_means_over_repeated_sampling_are_the_exact_values(tmp_path):
    """One population, sampled again and again: every curve, and the prediction L2.4, in the mean."""
    rng = np.random.default_rng(1)
    p, q, center = known(rng, 12)
    found = []
    for i in range(25):
        _, data = studied(rng, tmp_path / str(i), p, q, center)
        curve = data["curves"]
        values = [curve[name]["value"][-1] for name in ("population", "mixture", "smoothed", "pairs", "center")]
        found.append([*values, data["gap"]["value"][0], data["gap"]["predicted"][0]])
    mean, se = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / 5
    pairs = q.reshape(4, 2, 12)
    failures = np.prod(1 - pairs, axis=1)
    exact = [
        subset_success(p.T, 4).mean(),
        mixture_success(p.T, 4).mean(),
        subset_success(pairs.mean(1).T, 4).mean(),
        1 - np.mean((failures.sum(0) ** 2 - (failures**2).sum(0)) / 12),
        at_least_one(center, 4).mean(),
        (subset_success(p.T, 2) - mixture_success(p.T, 2)).mean(),
    ]
    assert np.all(np.abs(mean[:6] - exact) < 4 * se[:6])
    leading = study.lemma.predict(mean_success(p.T), projected_js(p.T), 4, 2).mean()
    assert abs(mean[6] - leading) < 4 * se[6] + 0.1 * leading


def leading(rng, x, spread, k=2, factor=1.0):
    p, _, _ = known(rng, x, n=6, spread=spread)
    values = study._leading(tries(rng, p, 8), rng)[k]
    values[:, 1] *= factor
    return study._against_leading(values, 8, k)


def test_the_leading_order_holds_and_a_wrong_constant_is_caught():
    rng = np.random.default_rng(2)
    assert leading(rng, 1500, 1.0).verdict is Verdict.HOLDS
    assert leading(rng, 1500, 1.0, k=4).verdict is Verdict.HOLDS
    assert leading(rng, 1500, 1.0, factor=1.5).verdict is Verdict.VIOLATED
    assert leading(rng, 1500, 1.0, factor=0.6).verdict is Verdict.VIOLATED


def test_few_prompts_never_make_a_wrong_prediction_hold():
    rng = np.random.default_rng(3)
    wrong = Counter(leading(rng, 20, 0.6, factor=1.7).verdict for _ in range(40))
    right = Counter(leading(rng, 20, 0.6).verdict for _ in range(40))
    assert wrong[Verdict.HOLDS] == 0 and right[Verdict.VIOLATED] <= 1
    undecided = leading(rng, 10, 0.3)
    assert undecided.verdict is Verdict.UNDECIDED and "prompts would decide it" in undecided.detail


def test_beyond_the_leading_order_nothing_is_claimed():
    p = np.array([[0.02] * 40, [0.98] * 40, [0.02] * 40, [0.98] * 40, [0.02] * 40, [0.02] * 40])
    rng = np.random.default_rng(4)
    check = study._against_leading(study._leading(tries(rng, p, 8), rng)[4], 8, 4)
    assert check.verdict is Verdict.VACUOUS and "beyond the leading order" in check.detail


def test_without_a_difference_of_members_nothing_holds():
    """Equal members: gap and prediction are noise, of different responses. Were it shared, they would agree."""
    rng = np.random.default_rng(10)
    p = np.broadcast_to(rng.beta(2, 2, 40), (6, 40))
    found, z, verdicts = [], [], Counter()
    for _ in range(200):
        for k, values in study._leading(tries(rng, p, 8), rng).items():
            check = study._against_leading(values, 8, k)
            verdicts[check.verdict] += 1
            if k == 2:
                found.append((check.measured, check.predicted))
                z.append((check.measured - check.predicted) / check.measured_se)
    assert verdicts[Verdict.HOLDS] <= 0.01 * verdicts.total()
    assert abs(np.corrcoef(np.transpose(found))[0, 1]) < 0.25
    assert 0.8 < np.std(z) < 1.2


def fresh(rng, p, q, center, m=6):
    center_tries, beside = (tries(rng, center[None], k)[:, 0] for k in (m, 4))
    return study.fresh(study.Tries(tries(rng, p, m), tries(rng, q, 4), center_tries, beside), rng)[0]


def test_smoothed_policy_is_met_on_average_and_another_is_not():
    """Members and fresh members of one law: rarely violated. Fresh members that are better: caught, whatever K."""
    rng = np.random.default_rng(5)
    verdicts, caught = Counter(), 0
    for _ in range(25):
        p, q, center = known(rng, 30, member=0.5)
        verdicts.update(c.verdict for c in fresh(rng, p, q, center) if "of i.i.d. members" in c.what)
        checks = fresh(rng, p, 1 - (1 - q) ** 3, center)
        caught += find(checks, "P_pop(2) of i.i.d.").verdict is Verdict.VIOLATED
        assert find(checks, "P_pop(2) of i.i.d.").verdict is not Verdict.HOLDS
    assert verdicts[Verdict.VIOLATED] <= 1
    assert caught > 12


def test_a_pair_gains_its_negative_covariance():
    """Exactly opposed members: P_pop(2) of a pair exceeds two smoothed draws by −Cov; a prediction without it fails."""
    rng = np.random.default_rng(6)
    p, q, center = known(rng, 150, n=8, pairs=16, member=0.1, spread=1.6)
    check = find(fresh(rng, p, q, center, m=8), "antithetic pair")
    pairs = q.reshape(16, 2, 150)
    gain = 1 - np.prod(1 - pairs, axis=1).mean() - (1 - (1 - pairs.mean((0, 1))) ** 2).mean()
    assert gain > 0.03
    assert check.verdict is not Verdict.VIOLATED
    assert check.measured == pytest.approx(1 - np.prod(1 - pairs, axis=1)[0::2].mean(), abs=0.02)
    assert check.measured - check.predicted == pytest.approx(0.0, abs=0.03)
    assert float(check.detail.split("covariance ")[1].split(" ")[0]) == pytest.approx(-gain, abs=0.02)


def test_diversity_that_does_not_reach_the_verifier(tmp_path):
    rng = np.random.default_rng(7)
    p = np.broadcast_to(rng.uniform(0.2, 0.8, 40), (4, 40))
    checks, data = studied(rng, tmp_path / "a", p, np.repeat(p, 2, axis=0), p[0])
    held = find(checks, "JS − JSᵛ")
    assert held.verdict is Verdict.HOLDS and abs(data["diversity"]["share"]) < 0.1
    # Members that always or never succeed, and a JS far below what the verifier then sees of them: impossible.
    p = np.array([[1.0] * 40, [1.0] * 40, [0.0] * 40, [0.0] * 40])
    checks, _ = studied(rng, tmp_path / "b", p, np.repeat(p, 2, axis=0), np.full(40, 0.5), js=0.05)
    assert find(checks, "JS − JSᵛ").verdict is Verdict.VIOLATED


def test_what_the_estimate_of_projected_js_may_be_off_by_is_taken_off(tmp_path):
    """A JS above JSᵛ = 0 by less than 0.39/m, and one below the estimate by less, show nothing."""
    rng = np.random.default_rng(11)
    p = np.full((4, 200), 0.1)
    check = find(studied(rng, tmp_path / "a", p, np.repeat(p, 2, axis=0), p[0], js=0.05)[0], "JS − JSᵛ")
    assert check.verdict is not Verdict.HOLDS and check.measured == pytest.approx(0.05 - 0.39 / 4, abs=0.02)
    assert "too low by at most 0.39/m = 0.098" in check.detail
    # Half never, half always: JSᵛ = log 2 is known, and JS just below it.
    p = np.repeat([[0.0], [1.0]], 2, axis=0) * np.ones(200)
    check = find(studied(rng, tmp_path / "b", p, np.repeat(p, 2, axis=0), p.mean(0), js=0.65)[0], "JS − JSᵛ")
    assert check.verdict is not Verdict.HOLDS and check.verdict is not Verdict.VIOLATED


def test_shared_responses_are_not_judged(tmp_path):
    """Three tries, two of them scored: JSᵛ has to use responses of JS."""
    rng = np.random.default_rng(12)
    p = np.full((3, 40), 0.5)
    for js in (0.6, 1e-4):
        checks, _ = studied(rng, tmp_path / str(js), p, np.repeat(p, 2, axis=0), p[0], m=3, js=js)
        check = find(checks, "JS − JSᵛ")
        assert check.verdict is Verdict.VACUOUS and "share responses" in check.detail


@pytest.mark.parametrize("success", [0.0, 1.0, 0.5])
def test_degenerate_data_give_sensible_rows(tmp_path, success):
    """The smallest sizes, and nothing or everything solved: no verdict is claimed from a spread of zero."""
    rng = np.random.default_rng(8)
    p = np.full((2, 4), success)
    checks, data = studied(rng, tmp_path / "x", p, np.repeat(p, 2, axis=0), p[0], m=2, pair_m=2)
    json.dumps([data, [c.to_dict() for c in checks]], allow_nan=False)
    study.figure(study.TITLE, data)
    verdicts = {c.verdict for c in checks if "JS − JSᵛ" not in c.what}
    assert Verdict.VIOLATED not in verdicts
    if success in (0.0, 1.0):
        assert Verdict.HOLDS not in verdicts and Verdict.UNDECIDED not in verdicts


def test_missing_samples_are_one_line(tmp_path):
    rng = np.random.default_rng(9)
    with pytest.raises(InputError, match="no sample 'pairs'"):
        study.study(saved(tmp_path / "x", synthetic_sample(rng, np.full((2, 4), 0.5), 4, scored=2, js=0.1)))
