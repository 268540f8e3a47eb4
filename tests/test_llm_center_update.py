"""The study of P4: on a tiny real model end to end, and its values and verdicts in a world of known successes."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra esth[plot]")

from esth.check import Verdict
from esth.estimators.intervals import Estimate
from esth.lemmas import center_update as lemma
from esth.models import load_checkpoint
from esth.models.transformers_engine import TransformersEngine
from esth.noise import population
from esth.sample import PopulationSample
from esth.weighting import linear_tilt, price_gain, zscore
from llm import center_update as study
from llm.__main__ import main
from llm.samples import Samples
from tests.llm_samples import saved, synthetic_sample
from tests.test_llm_two_point import SIGMA, easy_questions, options

BETAS = (0.5, 1.0, 2.0)


@pytest.fixture(scope="module")
def ran(tiny_folder, tmp_path_factory):
    """The study on a tiny model: its folder."""
    out, folder = tmp_path_factory.mktemp("p4"), tiny_folder("llama")
    data = easy_questions(folder, out / "questions.jsonl")
    assert main(["center_update", *options(folder, data), f"--keep={out / 'kept'}"]) in (0, 1)
    return out / "kept"


def record(folder):
    return json.loads((folder / "center_update.json").read_text(encoding="utf-8"))


def test_study_runs_and_is_found_again_without_the_model(ran, tmp_path):
    first = record(ran)
    assert (ran / "center_update.png").read_bytes().startswith(b"\x89PNG")
    assert main(["P4", f"--from={ran}", f"--out={tmp_path}"]) in (0, 1)
    again = record(tmp_path)
    assert again["checks"] == first["checks"] and again["data"] == first["data"]
    assert first["data"]["betas"] == list(BETAS)
    assert 0.05 < first["data"]["coverage"]["center"]["value"][0] < 0.95, "rewards vary: the test must be able to fail"
    statements = [c["statement"] for c in first["checks"]]
    assert {"P4.1", "P4.2", "P4.3", "P4.4"} == set(statements)
    told = [c["detail"] for c in first["checks"] if c["verdict"] == "undecided"]
    assert all("would decide it" in text for text in told)


def test_step_is_the_update_of_the_engine(ran, tiny_folder):
    """‖Δ‖² against the weights that `apply_update` moves; the directions that were sampled have its coefficients."""
    engine = TransformersEngine(load_checkpoint(str(tiny_folder("llama"))))
    with Samples(ran, None) as samples:
        iid, found = samples.iid(), samples.arrays("step", None)
    updated = PopulationSample.load(ran / "updated")
    directions, success = updated.settings["directions"], updated.grid(updated.population.reward).mean(axis=(0, 2))
    fitness = iid.grid(iid.population.reward)[0::2].mean(axis=(0, 2))
    z, members, beta = zscore(fitness), population(0, 3), 2.0
    assert np.ptp(z) > 0 and set(np.abs(z).round(6)) != {1.0}, "the test must be able to fail"
    before = {name: p.clone() for name, p in engine.parameters.items()}
    coefficients = [beta * SIGMA * float(x) / 3 for x in z]
    engine.apply_update(list(zip(members, coefficients, strict=True)))
    moved = sum(float(((p - before[name]).double() ** 2).sum()) for name, p in engine.parameters.items())
    assert moved == pytest.approx((beta * SIGMA) ** 2 * float(found["square"]), rel=1e-4)
    assert int(found["size"]) == sum(p.numel() for p in engine.parameters.values())
    center = updated.center.reward.mean()
    for name, first in (("θ + Δ", 0), ("θ − Δ", 1)):
        assert record(ran)["data"]["change"][name]["value"] == pytest.approx(success[first:-2:2] - center)
    assert len(directions) == 2 * len(BETAS) + 2
    assert all(repr(c) in directions[4] and repr(-c) in directions[5] for c in coefficients)


@pytest.mark.parametrize(("change", "message"), [({"betas": "[-1.0]"}, "betas"), ({"prompts": 3}, "prompts")])
def test_wrong_input_is_one_line(tiny_folder, ran, tmp_path, capsys, change, message):
    data = ran.parent / "questions.jsonl"
    arguments = ["center_update", *options(tiny_folder("llama"), data, **change), f"--keep={tmp_path / 'k'}"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "k" / "center_update.json").exists()


# A world of known successes


class World:
    """Success expit(level + θ·g) of each prompt in d dimensions; gradients partly shared by prompts."""

    def __init__(self, rng, prompts, n=8, pairs=16, d=400, sigma=0.05, level=None, shared=0.6):
        self.sigma, self.n = sigma, n
        self.level = rng.normal(0.8, 0.5, prompts) if level is None else np.full(prompts, level)
        self.gradients = (shared * rng.standard_normal((d, 1)) + rng.standard_normal((d, prompts))) * 0.7
        self.epsilon = rng.standard_normal((n, d))
        fresh = rng.standard_normal((pairs, d))
        self.pairs = np.stack([fresh, -fresh], axis=1).reshape(2 * pairs, d)
        self.members = self.success(sigma * self.epsilon)
        # Fitness without noise; the study itself takes it from the train half's rewards.
        self.z = zscore(self.members[:, 0::2].mean(axis=1))

    def success(self, theta):
        return 1 / (1 + np.exp(-(self.level + theta @ self.gradients)))

    @property
    def center(self):
        return self.success(np.zeros(len(self.gradients)))

    def step(self, beta):
        return lemma.center_step(self.z, self.epsilon, beta * self.sigma)


def draw(rng, p, m):
    """Rewards [X, ..., m] of successes [..., X]."""
    p = np.moveaxis(p, -1, 0)
    return (rng.random((*p.shape, m)) < p[..., None]).astype(float)


def observed(rng, world, m=8, updated=24, pair_samples=4, scale=1.0):
    """What the study sees of a world: (held, updated, remainder); `scale` lengthens the sampled update."""
    steps = [scale * world.step(beta) for beta in BETAS]
    plus, minus = (world.success(sign * np.stack(steps)) for sign in (1, -1))
    held = study.Held(draw(rng, world.members[:, 1::2], m), draw(rng, world.center[1::2], m))
    moved = study.Updated(*(draw(rng, p[..., 1::2], updated) for p in (plus, minus, world.center)))
    pairs = draw(rng, world.success(world.sigma * world.pairs), pair_samples)
    return held, moved, study.Remainder.of(pairs, draw(rng, world.center, m))


def test_values_are_unbiased():
    """Over repeated draws of the rewards, every curve of the figure has the exact value as its mean."""
    world = World(np.random.default_rng(0), 16)
    steps = np.stack([world.step(beta) for beta in BETAS])
    plus, minus, center = (p[..., 1::2] for p in (world.success(steps), world.success(-steps), world.center))
    p = world.members[:, 1::2]
    gain = np.array([price_gain(linear_tilt(world.z, beta), p.mean(axis=1)) for beta in BETAS])
    exact = {
        ("change", "θ + Δ"): np.mean(plus - center, axis=1),
        ("change", "θ − Δ"): np.mean(minus - center, axis=1),
        ("change", "tilt"): gain,
        ("change", "odd"): np.mean(plus - minus, axis=1) / 2,
        ("change", "even"): np.mean(plus + minus, axis=1) / 2 - center.mean(),
        ("transfer", "error"): np.mean(plus - center, axis=1) - gain,
        ("transfer", "left"): np.mean(plus - minus, axis=1) / 2 - gain,
        ("books", "population"): (1 - np.prod(1 - p, axis=0) - 1 + (1 - center) ** 8).mean(),
        ("books", "mixture"): ((1 - center) ** 8 - (1 - p.mean(axis=0)) ** 8).mean(),
        ("books", "stratification"): ((1 - p.mean(axis=0)) ** 8 - np.prod(1 - p, axis=0)).mean(),
        ("books", "β = 2"): ((1 - center) ** 8 - (1 - plus[2]) ** 8).mean(),
        ("remainder", "mean"): (world.success(world.sigma * world.pairs) - world.center).mean(),
    }
    found = {key: [] for key in exact}
    rng = np.random.default_rng(1)
    for _ in range(60):
        held, moved, remainder = observed(rng, world)
        _, data = study.transfers(held, moved, world.z, remainder, BETAS)
        _, books = study.bookkeeping(held, moved, BETAS)
        for part, name in exact:
            value = np.array((data | books)[part][name]["value"])
            found[part, name].append(value[-1] if part == "books" else value)
    for key, value in exact.items():
        mean, se = np.mean(found[key], axis=0), np.std(found[key], axis=0, ddof=1) / math.sqrt(60)
        assert np.all(np.abs(mean - value) < 4.5 * se), key


def test_remainder_is_that_of_the_pairs():
    """sd and mean of R over directions, of the mean success and on single prompts, against exact successes."""
    world = World(np.random.default_rng(2), 40, pairs=60, sigma=0.1)
    p = world.success(world.sigma * world.pairs)
    even = 0.5 * (p[0::2] + p[1::2]) - world.center
    values = []
    for seed in range(6):
        values.append(study.Remainder.of(draw(np.random.default_rng(seed), p, 16), np.tile(world.center[:, None], 2)))
    between = np.cov(even.T)
    exact = (between.sum() - np.trace(between)) / (40 * 39)  # of different prompts: of their mean, were they many
    assert np.mean([float(v.sd.value) ** 2 for v in values]) == pytest.approx(exact, rel=0.15)
    assert np.mean([float(v.mean.value) for v in values]) == pytest.approx(even.mean(), rel=0.05)
    assert np.mean([v.prompt_sd for v in values]) == pytest.approx(
        math.sqrt(np.mean(even.var(axis=0, ddof=1))), rel=0.1
    )


def judged(check_list, statement, word):
    return [c.verdict for c in check_list if c.statement == statement and word in c.what]


def test_transfer_is_judged():
    """With many prompts and responses the true step transfers within its bound; a step three times as long does not."""
    world = World(np.random.default_rng(3), 240, pairs=8, sigma=0.03)
    held, moved, remainder = observed(np.random.default_rng(4), world, m=64, updated=256, pair_samples=16)
    checks, _ = study.transfers(held, moved, world.z, remainder, BETAS)
    assert judged(checks, "P4.1", "leading order") == [Verdict.HOLDS] * 3
    assert Verdict.VIOLATED not in [c.verdict for c in checks]
    held, moved, remainder = observed(np.random.default_rng(5), world, m=64, updated=256, scale=3.0)
    wrong, _ = study.transfers(held, moved, world.z, remainder, BETAS)
    assert Verdict.VIOLATED in judged(wrong, "P4.1", "leading order")


def test_few_samples_do_not_violate():
    """Error bars: at the study's own sizes a true step is called violated at most once in very many rows."""
    rng, bad, rows = np.random.default_rng(6), 0, 0
    for seed in range(15):
        world = World(np.random.default_rng(100 + seed), 20, pairs=6)
        held, moved, remainder = observed(rng, world, m=8, updated=8, pair_samples=2)
        checks, _ = study.transfers(held, moved, world.z, remainder, BETAS)
        more, _ = study.survivals(held, moved, world.z, remainder, BETAS)
        bad += sum(c.verdict is Verdict.VIOLATED for c in checks + more)
        rows += len(checks + more)
    assert bad <= 0.02 * rows


def kept(folder, world, seed, m=32, updated=128, pair_samples=16):
    """A folder of saved samples of a world, as the command would have made them."""
    rng, n = np.random.default_rng(seed), world.n
    iid = synthetic_sample(rng, world.members, m, center=world.center, sigma=world.sigma)
    pairs = synthetic_sample(
        rng, world.success(world.sigma * world.pairs), pair_samples, center=world.center, family="antithetic"
    )
    samples = saved(folder, iid, pairs, sigma=world.sigma, updated_samples=updated, betas=BETAS)
    z = zscore(iid.grid(iid.population.reward)[0::2].mean(axis=(0, 2)))
    drawn = zscore(np.random.default_rng(samples.settings.seed).standard_normal(n))
    updates = [(z, beta) for beta in BETAS] + [(drawn, max(BETAS))]
    steps = [sign * lemma.center_step(c, world.epsilon, b * world.sigma) for c, b in updates for sign in (1, -1)]
    moved = world.success(np.stack(steps))[:, 1::2]
    synthetic_sample(rng, moved, updated, center=world.center[1::2]).save(folder / "updated")
    (folder / "arrays").mkdir()
    (folder / "arrays" / "identity.json").write_text("{}")
    square = np.sum((z @ world.epsilon / n) ** 2)
    np.savez(folder / "arrays" / "step.npz", square=square, size=world.epsilon.shape[1], seconds=0.0)
    return samples


def test_drift_is_judged(tmp_path, monkeypatch):
    """A random step among very many prompts, successes exact: drift along it, the curvature from other directions."""
    world = World(np.random.default_rng(7), 3000, pairs=6, sigma=0.05, level=1.2, shared=0.0)
    samples = kept(tmp_path / "k", World(np.random.default_rng(8), 4, pairs=3), 9, m=8, updated=4, pair_samples=2)
    drawn = zscore(np.random.default_rng(10).standard_normal(8))
    delta = lemma.center_step(drawn, world.epsilon, 2.0 * world.sigma)
    plus, minus, center = (np.tile(world.success(x)[:, None, None], 2) for x in (delta, -delta, 0 * delta))
    control = study.Updated(plus, minus, center[:, 0])
    both = world.success(world.sigma * world.pairs).mean(axis=0) - world.center
    mean = Estimate(both.mean(), both.std() / math.sqrt(3000))
    remainder = study.Remainder(Estimate(0.0, 0.0), 0.0, mean)
    length, change = study.drift(samples, control, drawn, remainder)[0]
    assert [length.verdict, change.verdict] == [Verdict.HOLDS] * 2
    assert change.measured < -0.01
    right = lemma.drift
    for wrong in (0.5, 1.6):
        monkeypatch.setattr(lemma, "drift", lambda *a, wrong=wrong: wrong * right(*a))
        assert study.drift(samples, control, drawn, remainder)[0][1].verdict is Verdict.VIOLATED
    monkeypatch.setattr(lemma, "step_square", lambda alpha, d, n: 1.6 * alpha**2 * d / n)
    assert study.drift(samples, control, drawn, remainder)[0][0].verdict is Verdict.VIOLATED


def test_books_give_a_ratio_only_where_it_means_something():
    world = World(np.random.default_rng(13), 300, pairs=4, sigma=0.05, level=-2.5)
    held, moved, _ = observed(np.random.default_rng(14), world, m=32)
    (books, part), _ = study.bookkeeping(held, moved, BETAS)
    assert books.verdict is Verdict.IDENTITY and "of it)" in books.detail
    assert part.verdict is Verdict.HOLDS
    flat = study.Held(np.ones((6, 8, 8)), np.ones((6, 8)))
    (book, part), _ = study.bookkeeping(flat, None, ())
    assert "of it)" not in book.detail and part.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_to_update_is_said(p, tmp_path):
    rng = np.random.default_rng(9)
    iid, pairs = (synthetic_sample(rng, np.full((n, 6), p), 4) for n in (4, 6))
    samples = saved(tmp_path / "k", iid, pairs)
    checks, data = study.study(samples)
    assert checks[0].verdict is Verdict.VACUOUS and "Δ = 0" in checks[0].detail
    json.dumps([[c.to_dict() for c in checks], data], allow_nan=False)
    study.figure(study.TITLE, data)


def test_prompts_that_are_all_alike_show_an_error():
    found = study.over_prompts(np.ones((5, 2)), 4)
    assert found == Estimate(pytest.approx([1.0, 1.0]), pytest.approx([1 / 20, 1 / 20]))


@pytest.mark.parametrize(("pairs", "updated", "word"), [(2, 8, "pairs >= 3"), (4, 2, "updated_samples >= 4")])
def test_sizes_too_small_are_said(tmp_path, pairs, updated, word):
    rng = np.random.default_rng(10)
    p = rng.random((4, 6))
    samples = saved(
        tmp_path / "k", synthetic_sample(rng, p, 4), synthetic_sample(rng, np.ones((2 * pairs, 6)), 2),
        updated_samples=updated,
    )  # fmt: skip
    checks, data = study.study(samples)
    assert checks[0].verdict is Verdict.VACUOUS and word in checks[0].detail
    study.figure(study.TITLE, data)


def test_half_of_the_prompts_that_says_nothing(tmp_path):
    """Held-out prompts always failed, by everyone: rows, no NaN, nothing violated."""
    world = World(np.random.default_rng(11), 12, pairs=4)
    world.level[1::2] = -60.0
    world.members = world.success(world.sigma * world.epsilon)
    checks, data = study.study(kept(tmp_path / "k", world, 12, m=8, updated=6, pair_samples=2))
    json.dumps([[c.to_dict() for c in checks], data], allow_nan=False)
    assert Verdict.VIOLATED not in [c.verdict for c in checks]
    study.figure(study.TITLE, data)
