"""The study of L1 on checkpoints: end to end on a tiny real model against enumeration, and on samples of known laws."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra esth[plot]")

from esth.check import Verdict
from esth.divergence import js as exact_js
from esth.errors import InputError
from esth.models import load_checkpoint, load_engine
from esth.models.engine import Response, Sampling
from esth.noise import population
from esth.sample import Center, Population, PopulationSample
from llm import fisher_rate as study
from llm.__main__ import main
from llm.samples import Samples, Settings
from tests.conftest import STOP, VOCABULARY

QUESTIONS = ["t5 t9", "t30", "t7 t7 t8 t40", "t12 t13", "t50 t3"]
MEMBERS = 3


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": "t5"}) + "\n" for q in QUESTIONS))
    return path


def arguments(questions, **changes):
    options = {
        "task": "file", "data": str(questions), "verifier": "text", "prompts": 4, "samples": 8, "members": 2,
        "rate-prompts": 5, "rate-members": MEMBERS, "sigmas": 4, "sigma-low": 5e-4, "sigma-high": 5e-2,
        "max-tokens": 2, "temperature": 1.0, "seed": 3,
    } | changes  # fmt: skip
    return ["fisher_rate", *(f"--{name}={value}" for name, value in options.items())]


@pytest.fixture(scope="module")
def run(tiny_folder, questions, tmp_path_factory):
    """One run of the command: its folder."""
    keep = tmp_path_factory.mktemp("run") / "samples"
    assert main([*arguments(questions), "--model", str(tiny_folder("llama")), "--keep", str(keep)]) in (0, 1)
    return keep


def record(folder):
    return json.loads((folder / "fisher_rate.json").read_text(encoding="utf-8"))


def find(checks, text):
    (found,) = [c for c in checks if text in c["what"]]
    return found


@pytest.fixture(scope="module")
def exact(tiny_folder):
    """σ -> exact JS of the very members at every prompt, from all 3,661 responses."""
    engine, sampling = load_engine(load_checkpoint(str(tiny_folder("llama")))), Sampling(1.0, 2)
    pairs = itertools.product(range(VOCABULARY), repeat=2)
    responses = [Response((STOP,), False)] + [Response((a, b), b != STOP) for a, b in pairs if a != STOP]
    prompts = [engine.checkpoint.encode(q) for q in QUESTIONS]

    def of(sigma):
        scores = []
        for member in population(Settings(seed=3).stream(0), MEMBERS):
            engine.set_member(member, sigma)
            scores.append([[float(s.sum()) for s in row] for row in engine.score(prompts, [responses] * 5, sampling)])
        return exact_js(np.array(scores).transpose(1, 0, 2))

    return of


@pytest.mark.slow
def test_measured_js_and_its_prediction_agree_with_enumeration(run, exact):
    found = record(run)
    data = found["data"]
    assert data["range"] in (2, 3) and len(data["sigma"]) == 4
    k = data["range"] - 1
    expected = exact(data["sigma"][k]).mean()
    js, se = data["js"]["value"][k], data["js"]["se"][k]
    assert se < 0.6 * expected and abs(js - expected) < 4 * se
    assert data["lower"][k] < 1.2 * expected and expected < 1.2 * data["upper"][k]
    check = find(found["checks"], "JS/σ² of this population")
    slack = 4 * check["measured_se"] + 0.1 * check["predicted"]
    assert abs(check["predicted"] - expected / data["sigma"][k] ** 2) < slack


def test_rows_and_what_they_may_not_say(run):
    found = record(run)
    checks = found["checks"]
    names = [c["what"] for c in checks]
    assert len(set(names)) == len(names)
    for text in ("log-log slope", "tr F, nats: gradients against directions", "E[JS]/σ² of fresh members"):
        assert any(text in name for name in names)
    groups = found["data"]["groups"]
    assert groups["names"] == ["embeddings", "attention", "mlp", "norms"] and groups["tied"]
    for g in groups["names"]:
        assert find(checks, f"JS of {g} alone") and find(checks, f"tr F of {g}, nats: gradients")
    assert find(checks, "sum over groups, gradients")["verdict"] == "identity"
    assert find(checks, f"JS of this population, nats: σ = {found['data']['sigma'][-1]:.2g}")["verdict"] == "vacuous"
    for shares in groups["shares"].values():
        assert sum(s["share"] for s in shares.values()) == pytest.approx(1, abs=1e-9)
    assert sum(groups["parameters"].values()) == pytest.approx(1, abs=1e-12)
    undecided = [c for c in checks if c["verdict"] == "undecided"]
    assert undecided and all("would decide it" in c["detail"] for c in undecided)
    assert not any(c["verdict"] == "violated" for c in checks)
    assert (run / "fisher_rate.png").read_bytes().startswith(b"\x89PNG")


def test_saved_samples_give_the_same_without_a_model_or_a_task(run, tmp_path):
    assert main(["fisher_rate", "--from", str(run), "--out", str(tmp_path)]) in (0, 1)
    again, first = record(tmp_path), record(run)
    assert again["checks"] == first["checks"] and again["data"] == first["data"]


def test_the_same_command_makes_nothing_again(run, questions, tiny_folder):
    """Restricted directions have one name in every process; samples of the groups are found again."""
    stamp = {p: p.stat().st_mtime_ns for p in run.glob("rate-*/*.parquet")}
    model = str(tiny_folder("llama"))
    assert len(stamp) == 8 * 3
    assert main([*arguments(questions), "--model", model, "--keep", str(run)]) in (0, 1)
    assert {p: p.stat().st_mtime_ns for p in run.glob("rate-*/*.parquet")} == stamp


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0}, "temperature > 0"),
        ({"rate-prompts": 9}, "problems"),
        ({"sigma-low": 1.0}, "sigma_low"),
        ({"sigma-low": 1e-30, "sigmas": 2}, "do not differ"),
    ],
)
def test_mistakes_are_one_line(tiny_folder, questions, tmp_path, capsys, changes, message):
    model, keep = str(tiny_folder("llama")), str(tmp_path / "keep")
    assert main([*arguments(questions, **changes), "--model", model, "--keep", keep]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("llm: ") and message in said
    assert not (tmp_path / "keep" / "fisher_rate.json").exists()


# Samples of known laws


class Known:
    """Samples whose every mean is known: JS(σ) = rate/(1 + bend·σ² tr F), with the spread of responses and prompts.

    `wrong` multiplies what is measured, `wrong_gradients` the gradients' norms; `exponent` is that of σ.
    """

    def __init__(self, rng, settings, *, trace=50.0, bend=0.0, wrong=1.0, wrong_gradients=1.0, exponent=2.0, rank=400):
        self.rng, self.settings, self.model = rng, settings, None
        self.trace, self.bend, self.wrong, self.wrong_gradients = trace, bend, wrong, wrong_gradients
        self.exponent = exponent
        self.difficulty = rng.gamma(16, 1 / 16, settings.rate_prompts)
        self.along = 1 + math.sqrt(2 / rank) * rng.standard_normal(settings.rate_members)  # εᵢᵀFεᵢ/tr F
        self.fresh = 1 + math.sqrt(2 / rank) * rng.standard_normal(study.DIRECTIONS)
        self.spoken = {}

    def columns(self, members, samples):
        x, i, s = np.meshgrid(range(self.settings.rate_prompts), members, range(samples), indexing="ij")
        n = x.size
        tokens = [[1, 2]] * n
        return x.ravel(), i.ravel(), s.ravel(), tokens, [""] * n, np.zeros(n, bool), np.full(n, np.nan)

    def population(self, name, config, task, directions=None):
        k = int(name.split("-")[1])
        part = {"embeddings": 0.7, "mlp": 0.3}[name.split("-")[2]] if name.count("-") == 2 else 1.0
        n, m, x = config.members, config.samples, config.prompts
        rng, square = self.rng, config.sigma**2
        rate = 0.5 * (1 - 1 / n) * part * self.trace * self.difficulty * self.along.mean()
        if k not in self.spoken:  # the center says the same in the groups' samples as in the whole's
            self.spoken[k] = rng.gamma(3, 1 / 3, (x, m))
        size = self.spoken[k]
        forms = (part * self.trace * self.difficulty[:, None] * size)[..., None] * self.along
        js = self.wrong * config.sigma**self.exponent * rate / (1 + self.bend * square * self.trace)
        chain = (js[:, None, None] * rng.gamma(3, 1 / 3, (x, n, m))).ravel()
        # One posterior log-odds pattern of which `post` is near `chain`.
        pattern = np.linspace(-1, 1, n)
        scores = np.sqrt(2 * chain / pattern.var())[:, None] * rng.permuted(np.tile(pattern, (len(chain), 1)), axis=1)
        return PopulationSample(
            {"sigma": config.sigma, "scored": m, "samples": m, "members": n, "prompts": x, "family": "gaussian"},
            np.full(n, 1 / n), ["?"] * x, [""] * x,
            Population(*self.columns(range(n), m), scores, chain, chain, 0.8 * chain, (1.2 + square * 400) * chain),
            Center(*self.columns([-1], m), (square * rate[:, None] * size).ravel(), forms.reshape(x * m, n)),
        )  # fmt: skip

    def arrays(self, name, make):
        if name == "rate-parameters":
            return {"names": np.array(["model.embed_tokens.weight", "mlp.up_proj.weight"]), "sizes": np.array([30, 70])}
        size = self.spoken[int(name.split("-")[2])]
        if name.startswith("rate-directions"):
            forms = (self.trace * self.difficulty[:, None] * size)[..., None] * self.fresh
            return {"forms": forms.reshape(-1, study.DIRECTIONS)}
        own = self.rng.gamma(4, 1 / 4, size.shape)
        norms = self.wrong_gradients * self.trace * self.difficulty[:, None] * size * own
        return {"norms": norms[..., None] * np.array([0.7, 0.3])}


# σ² tr F from 5e-5 to 5
LAW = Settings(sigma_low=1e-3, sigma_high=0.316, sigmas=6, rate_prompts=40, rate_members=4, seed=1)


def verdicts(repeats, text, settings=LAW, **law):
    rng = np.random.default_rng(5)
    found = Counter()
    for _ in range(repeats):
        checks, _ = study.study(Known(rng, settings, **law))
        (check,) = [c for c in checks if text in c.what]
        found[check.verdict] += 1
    return found


@pytest.fixture(scope="module")
def repeated():
    """Checks of 40 studies of one law that agrees with the theory."""
    rng = np.random.default_rng(0)
    return [study.study(Known(rng, LAW, bend=0.1))[0] for _ in range(40)]


def test_standard_errors_are_those_of_repeated_studies(repeated):
    """z-scores of measured − predicted have mean 0 and at most the standard deviation that the widening leaves."""
    rows = {
        "JS/σ² of this population": 1 / 1.05,  # widened for 40 prompts
        "JS of this population, nats: σ = 0.001": 1 / 1.05,
        "tr F, nats: gradients": 1 / 1.05,
        "log-log slope": 1 / 1.05,
        "JS of mlp alone": 1 / 1.05,
    }
    for text, expected in rows.items():
        found = [next(c for c in checks if text in c.what) for checks in repeated]
        z = np.array([(c.measured - c.predicted) / math.hypot(c.measured_se, c.predicted_se) for c in found])
        assert abs(z.mean()) < 4 * expected / math.sqrt(len(z)) + 0.3, text  # 0.3: a bend of 0.1·σ² tr F
        assert z.std() == pytest.approx(expected, rel=0.35), text


def test_a_law_that_agrees_is_not_violated(repeated):
    said = Counter(c.verdict for checks in repeated for c in checks if c.statement == "L1.1")
    assert said[Verdict.VIOLATED] <= 0.005 * sum(said.values())
    assert said[Verdict.HOLDS] > 0 and said[Verdict.VACUOUS] > 0


def test_enough_prompts_decide():
    many = replace(LAW, rate_prompts=800)
    rng = np.random.default_rng(5)
    rows = ("JS/σ² of this", "E[JS]/σ² of fresh", "log-log slope", "tr F, nats: gradients", "JS of mlp", "tr F of mlp")
    for _ in range(4):
        checks, _ = study.study(Known(rng, many, rank=1e6))
        assert {text: next(c for c in checks if text in c.what).verdict for text in rows} == dict.fromkeys(
            rows, Verdict.HOLDS
        )


@pytest.mark.parametrize(
    ("law", "text"),
    [
        ({"wrong": 1.2}, "JS/σ² of this population"),
        ({"wrong": 1 / 1.25}, "JS/σ² of this population"),
        ({"wrong_gradients": 1.25}, "tr F, nats: gradients"),
        ({"wrong_gradients": 1.25}, "E[JS]/σ² of fresh members"),
        ({"exponent": 1.85}, "log-log slope"),
    ],
)
def test_a_wrong_constant_never_holds_and_is_caught(law, text):
    few = verdicts(10, text, **law)
    assert few[Verdict.HOLDS] == 0
    assert verdicts(2, text, replace(LAW, rate_prompts=3000), rank=1e6, **law) == {Verdict.VIOLATED: 2}


def test_range_and_informative_bounds():
    checks, data = study.study(Known(np.random.default_rng(2), LAW, bend=0.5))
    signal = np.array(data["signal"])
    assert data["range"] == (signal <= 0.3).sum() == 4
    rows = [c for c in checks if "JS of this population" in c.what]
    assert [c.verdict is Verdict.VACUOUS for c in rows] == list(signal > 0.3)
    # upper/JS is 1.2 + 400 σ²: 1.2, 1.2, 1.24, 1.6, 5.2, so the bound informs at the first four.
    assert data["informs"]["above"] == pytest.approx(LAW.sweep()[3])
    assert data["informs"]["below"] == pytest.approx(LAW.sweep()[5])
    assert study.figure("L1", data) and study.figure("L1", {k: v for k, v in data.items() if k != "groups"})


def test_a_bound_at_the_largest_possible_js_does_not_inform():
    """JS is 1.18 of log 4 = 1.39 nats, and the bound 1.2 times that: near, and yet it excludes nothing."""
    sigma, rng = 7.94e-3, np.random.default_rng(0)
    law = Known(rng, replace(LAW, rate_prompts=400), trace=5e4, rank=1e6)
    point = study.Point(sigma, law.population("rate-0", study._config(law.settings, 0, sigma), None))
    assert study._tightness(point)[1].value > 0.7 and study._informs(point) == (True, False)


def test_shares_are_those_of_the_law():
    _, data = study.study(Known(np.random.default_rng(3), replace(LAW, rate_prompts=400)))
    groups = data["groups"]
    assert groups["parameters"] == {"embeddings": 0.3, "mlp": 0.7}
    assert groups["sigma"] == pytest.approx(LAW.sweep()[3]) or groups["sigma"] ** 2 * 50 <= 0.1
    for shares in groups["shares"].values():
        assert shares["embeddings"]["share"] == pytest.approx(0.7, abs=max(4 * shares["embeddings"]["se"], 1e-9))
    assert groups["shares"]["JS"]["embeddings"]["se"] > 0.001


def test_without_gradients_or_groups():
    settings = replace(LAW, groups=False, sigmas=3)
    object.__setattr__(settings, "engine", "vllm")
    checks, data = study.study(Known(np.random.default_rng(4), settings))
    (row,) = [c for c in checks if "gradients" in c.what]
    assert row.verdict is Verdict.VACUOUS and "vllm" in row.detail
    assert "groups" not in data and "gradients, fresh members" not in data["predicted"]
    assert study.figure("L1", data)


def test_the_smallest_study_says_what_it_can():
    smallest = replace(LAW, rate_prompts=2, rate_members=2, sigmas=2)
    checks, data = study.study(Known(np.random.default_rng(4), smallest))
    json.dumps([[c.to_dict() for c in checks], data], allow_nan=False)
    said = {c.verdict for c in checks if c.statement == "L1.1"}
    assert said <= {Verdict.UNDECIDED, Verdict.VACUOUS}, "two prompts decide nothing"
    assert study.figure("L1", data)


def test_a_sweep_beyond_the_range_is_vacuous_not_wrong():
    far = replace(LAW, sigma_low=0.2, sigma_high=0.4, sigmas=2)
    checks, _ = study.study(Known(np.random.default_rng(4), far, bend=1.0))
    assert {c.verdict for c in checks if c.statement == "L1.1" and "alone" not in c.what} == {Verdict.VACUOUS}


def test_members_that_do_not_differ_are_refused():
    with pytest.raises(InputError, match="JS is 0"):
        study.study(Known(np.random.default_rng(4), LAW, wrong=0.0))


def test_samples_are_needed(tmp_path):
    with pytest.raises(InputError, match="no samples"):
        Samples(tmp_path / "none", None)
