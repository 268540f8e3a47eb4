"""The study of L3 on checkpoints: end to end on a tiny real model, and on known successes."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra esth[plot]")

from esth.check import Verdict
from esth.weighting import centered_ranks, linear_tilt, price_gain, softmax_tilt, tilt_range, zscore
from llm import reward_weighting as study
from llm.__main__ import main
from llm.samples import Samples
from llm.samples import test as held_out
from llm.samples import train as learned
from tests.llm_samples import logistic_successes, saved, synthetic_sample, verifiable

QUESTIONS = ["t5 t9", "t30", "t7 t7 t8 t40", "t12 t13", "t50 t3", "t21"]


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    """One run of the command: its folder."""
    model, folder = str(tiny_folder("llama")), tmp_path_factory.mktemp("run")
    task = verifiable(folder, model, QUESTIONS, temperature=0.4)
    options = {
        "task": "file", "data": task, "verifier": "text", "prompts": 6, "samples": 12, "members": 3, "pairs": 2,
        "pair-samples": 6, "scored": 2, "max-tokens": 1, "temperature": 0.4, "sigma": 0.05, "seed": 3,
    }  # fmt: skip
    keep = folder / "samples"
    arguments = ["reward_weighting", *(f"--{k}={v}" for k, v in options.items()), "--model", model]
    assert main([*arguments, "--keep", str(keep)]) in (0, 1)
    return keep


def record(folder):
    return json.loads((folder / "reward_weighting.json").read_text(encoding="utf-8"))


def find(checks, *texts):
    (found,) = [c for c in checks if all(t in c.what for t in texts)]
    return found


def test_the_command_and_the_same_from_the_folder(run, tmp_path, capsys):
    assert main(["L3", "--from", str(run), "--out", str(tmp_path)]) in (0, 1)
    assert record(tmp_path)["checks"] == record(run)["checks"]
    assert record(tmp_path)["data"] == record(run)["data"]
    assert (tmp_path / "reward_weighting.png").stat().st_size > 20_000
    assert "antithetic, N=4" in capsys.readouterr().out
    checks = record(run)["checks"]
    assert [c["verdict"] for c in checks if c["statement"] in ("L3.2", "L3.4")] == ["identity"] * 3


def test_price_identity_is_that_of_the_responses(run):
    """Σ wᵢ pᵢ − p̄ of held-out rates, summed here from the responses one by one."""
    with Samples(run, None) as samples:
        said = samples.iid().population
    rates = np.zeros((6, 3))
    np.add.at(rates, (said.prompt, said.member), said.reward / 12)
    weights = linear_tilt(rates[0::2].mean(0), 0.5)
    gain = np.mean([sum(w * p for w, p in zip(weights, row, strict=True)) - np.mean(row) for row in rates[1::2]])
    (check,) = [c for c in record(run)["checks"] if c["what"].startswith("p̄_w − p̄ of observed rates")]
    assert check["measured"] == pytest.approx(gain, abs=1e-12)


def test_wrong_folder_is_one_line(tmp_path, capsys):
    assert main(["L3", "--from", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def tries(rng, p, m):
    """Rewards [X, N, m] of successes [N, X]."""
    return (rng.random((*p.T.shape, m)) < p.T[..., None]).astype(float)


def successes(rng, x, n=8, **more):
    return logistic_successes(rng, rng.standard_normal(x), n, **({"interaction": 0.8} | more))


def test_with_many_tries_the_batch_gains_are_the_exact_ones():
    """Nearly noiseless fitness: each tilt's own formula, evaluated at the successes themselves."""
    rng = np.random.default_rng(0)
    p = successes(rng, 12, n=5, member=1.2)
    r = tries(rng, p, 1500)
    fitness, held = learned(p.T).mean(0), held_out(p.T)
    exact = {
        "linear, β = 0.5": linear_tilt(fitness, 0.5),
        "softmax, β = 0.5": softmax_tilt(zscore(fitness), 0.5),
        "ranks, β = 0.5": linear_tilt(centered_ranks(fitness), 0.5),
        "largest β": linear_tilt(fitness, float(tilt_range(fitness)[1])),
    }
    checks, _ = study.by_batch(r, rng, "synthetic")
    for label, weights in exact.items():
        found = find(checks, "batch fitness", label)
        assert found.measured == pytest.approx(float(np.mean(price_gain(weights, held))), rel=0.1)
        assert float(found.detail.split("N_eff ")[1].split(";")[0]) == pytest.approx(1 / np.sum(weights**2), rel=0.05)


def test_gains_of_noisy_fitness_are_unbiased_and_attenuated():
    """Drawn again and again: raw gain β·Var(p), z-scored gains as simulated from the successes, and the predictions."""
    rng = np.random.default_rng(1)
    p = successes(rng, 180)
    found, simulated = [], []
    for _ in range(25):
        checks, _ = study.by_prompt(tries(rng, p, 8), rng, "synthetic")
        found.append([[c.measured, c.predicted] for c in checks])
        row = [float(np.var(p, axis=0).mean())]
        for a in (1, 2, 4):
            row.append(np.mean(price_gain(linear_tilt(rng.binomial(a, p.T, (20, *p.T.shape)) / a, 0.5), p.T)))
        simulated.append(row)
    mean, se = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / 5
    exact = np.mean(simulated, axis=0)
    assert np.all(np.abs(mean[:, 0] - exact) < 4 * se[:, 0] + 0.01 * exact)
    assert abs(mean[0, 1] - exact[0]) < 4 * se[0, 1]
    assert np.all(np.abs(mean[:, 1] - exact) < 4 * se[:, 1] + 0.06 * exact)
    assert exact[1] < 0.8 * exact[3], "noise attenuates"


def judged(rng, x, factor=1.0, **more):
    """Verdicts on a prediction of which every one is made wrong by a factor."""
    r = tries(rng, successes(rng, x, **more), 8)
    own, held, other = study.partition(r, (2, 3, 3), rng)
    w = linear_tilt(own / 2, 0.5)
    slope = 0.5 * study.variance.tilt_slope(other, 3, 2)
    out = [study._over_prompts(np.asarray(price_gain(w, held / 3)), factor * slope, np.array(8.0))]
    found = study._held_out(study.linear(0.5), study.Halves.draw(r, rng))
    out.append(replace(found, predicted=factor * found.predicted, se=found.se))
    return [g.judge("gain", study.ATTENUATED, "", x, "prompts") for g in out]


def test_predictions_hold_and_wrong_constants_are_caught():
    rng = np.random.default_rng(2)
    assert [c.verdict for c in judged(rng, 3000, interaction=1.5, member=1.0)] == [Verdict.HOLDS] * 2
    for factor in (0.6, 1.5):
        assert [c.verdict for c in judged(rng, 3000, factor, interaction=1.5, member=1.0)] == [Verdict.VIOLATED] * 2


def test_few_prompts_do_not_make_a_wrong_prediction_hold():
    rng = np.random.default_rng(3)
    right, wrong = Counter(), Counter()
    for _ in range(25):
        right.update(c.verdict for c in judged(rng, 16))
        wrong.update(c.verdict for c in judged(rng, 16, 1.8))
    assert right[Verdict.VIOLATED] <= 1
    assert wrong[Verdict.HOLDS] == 0
    check = judged(rng, 8, interaction=0.1, member=0.1)[0]
    assert check.verdict is Verdict.UNDECIDED and "prompts would decide it" in check.detail


def test_without_a_difference_of_members_nothing_holds():
    """Equal members: gain and prediction are noise, of different responses. Were it shared, they would agree."""
    rng = np.random.default_rng(8)
    p = np.broadcast_to(rng.beta(2, 2, 24), (6, 24))
    found, verdicts = {}, Counter()
    for _ in range(120):
        r = tries(rng, p, 8)
        batch = study._held_out(study.linear(0.5), study.Halves.draw(r, rng)).judge("batch", 0.25, "", 24, "prompts")
        for check in [*study.by_prompt(r, rng, "")[0], batch, study._coverage(r, 2, rng, "")]:
            verdicts[check.verdict] += 1
            found.setdefault(check.what, []).append((check.measured, check.predicted, check.measured_se))
    assert verdicts[Verdict.HOLDS] <= 0.01 * verdicts.total()
    for what, rows in found.items():
        measured, predicted, se = np.transpose(rows)
        assert abs(np.corrcoef(measured, predicted)[0, 1]) < 0.35, what
        # A batch gain is a product of two noises, which the jackknife takes for up to √2 times as large.
        assert (0.5 if "batch" in what else 0.75) < np.std((measured - predicted) / se) < 1.2, what


def test_prediction_of_a_batch_gain_reads_no_response_of_the_gain():
    """Every response that makes weights or gain is turned over: the prediction stays. And the reverse."""
    rng = np.random.default_rng(9)
    halves = study.Halves.draw(tries(rng, successes(rng, 20), 8), rng)
    for i, size, kept, changed in (
        (0, halves.own, "predicted", "measured"),
        (1, halves.other, "measured", "predicted"),
    ):
        learn, held = halves.learn.copy(), halves.held.copy()
        learn[:, i], held[:, i] = rng.integers(0, size + 1, learn[:, i].shape), size - held[:, i]
        other = replace(halves, learn=learn, held=held)
        for weigh in (*study.KINDS.values(), study.largest):
            before, after = study._held_out(weigh, halves), study._held_out(weigh, other)
            assert getattr(before, kept) == getattr(after, kept)
            assert abs(getattr(before, changed) - getattr(after, changed)) > 1e-6


def test_attenuation_of_a_batch_fitness_is_predicted_for_its_own_tries():
    """Prediction from many tries for a fitness of two: the exact β·E[Cov(f, p)/sd(f)], below that without noise."""
    rng = np.random.default_rng(10)
    p = successes(rng, 12, n=8, member=0.2, interaction=0.2).T
    learn, held = learned(p), held_out(p)
    counts = [rng.binomial(4000, part) for part in (learn, held)]
    slope = study._slope(*counts, 4000, 2)
    fitness = rng.binomial(2, learn, (20_000, *learn.shape)).mean(1) / 2
    exact = np.mean(price_gain(linear_tilt(fitness, 1.0), held.mean(0)))
    assert slope == pytest.approx(exact, rel=0.08)
    assert study._slope(*counts, 4000, 4000) > 1.3 * exact


def test_gain_of_pass_at_k_is_unbiased():
    """Weights fixed by many tries of the train prompts: the exact gain of 1 − (1−p̄)² on the held-out ones."""
    rng = np.random.default_rng(4)
    p = successes(rng, 40, n=4, member=1.0)
    weights = softmax_tilt(zscore(learned(p.T).mean(0)), 0.5)
    held = held_out(p.T)
    exact = float(np.mean((1 - held.mean(-1)) ** 2 - (1 - held @ weights) ** 2))
    leading = float(np.mean(2 * (1 - held.mean(-1)) * (held @ weights - held.mean(-1))))
    checks = [study._coverage(tries(rng, p, 48), 2, rng, "synthetic") for _ in range(40)]
    measured = np.array([[c.measured, c.predicted] for c in checks])
    error = 4 * measured.std(0) / 40**0.5
    assert abs(measured[:, 0].mean() - exact) < error[0] + 0.05 * exact
    assert abs(measured[:, 1].mean() - leading) < error[1] + 0.05 * leading
    assert np.all(error < 0.15 * exact), "the test must be able to fail"


def test_error_of_the_batch_gain_covers_new_prompts():
    """Other train and held-out prompts, the same members: the spread of the gain is its standard error."""
    rng = np.random.default_rng(5)
    traits = 0.5 * rng.standard_normal((6, 3))
    found = []
    for _ in range(60):
        p = 1 / (1 + np.exp(-(rng.standard_normal(24) + traits @ rng.standard_normal((3, 24)) + traits[:, :1])))
        gains = study._held_out(study.linear(0.5), study.Halves.draw(tries(rng, p, 8), rng))
        found.append((gains.measured, gains.measured_se))
    measured, se = np.transpose(found)
    scale = 1.15  # Student's scale at these degrees of freedom, within the error bars
    assert 0.75 < np.sqrt(np.mean((se / scale) ** 2)) / measured.std(ddof=1) < 1.5


def test_negative_weights_are_counted():
    """One member far behind seven: z = −√7 there, so β = ½ makes its weight negative."""
    p = np.full((8, 20), 0.9)
    p[0] = 0.0
    checks = study.identities(tries(np.random.default_rng(6), p, 8))
    assert "1 of 8 weights negative at β = 0.5, none up to β = 0.3" in checks[0].detail
    assert all(c.verdict is Verdict.IDENTITY for c in checks)
    assert find(checks, "has a negative weight").measured > 0.8


@pytest.mark.parametrize("success", [0.0, 1.0, 0.5])
def test_degenerate_data_give_sensible_rows(tmp_path, success):
    """The smallest sizes, and nothing or everything solved: no verdict is claimed from a spread of zero."""
    rng = np.random.default_rng(7)
    p = np.full((2, 4), success)
    pairs = synthetic_sample(rng, np.repeat(p, 2, axis=0), 4, family="antithetic")
    checks, data = study.study(saved(tmp_path / "x", synthetic_sample(rng, p, 2), pairs))
    json.dumps([data, [c.to_dict() for c in checks]], allow_nan=False)
    study.figure(study.TITLE, data)
    assert Verdict.VIOLATED not in {c.verdict for c in checks}
    if success in (0.0, 1.0):
        assert {c.verdict for c in checks} == {Verdict.IDENTITY, Verdict.VACUOUS}
