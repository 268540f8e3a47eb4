"""The pipeline of `esth diversity` on a tiny real model, against enumeration of every response it can give."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from pyarrow import parquet

from esth.check import Verdict
from esth.cli import main
from esth.divergence import js as exact_js
from esth.diversity import DiversityConfig, compare, measure, report
from esth.diversity.journal import Journal
from esth.diversity.sampling import Jobs, Spoken, sample_population
from esth.errors import InputError
from esth.estimators import js
from esth.models import load_checkpoint
from esth.models.engine import Response, Sampling
from esth.models.transformers_engine import TransformersEngine
from esth.models.workers import Local
from esth.noise import population
from esth.sample import PopulationSample
from tests.conftest import STOP, VOCABULARY

WEIGHTS = [0.5, 0.3, 0.2]
QUESTIONS = ["t5 t9", "t30", "t7 t7 t8 t40"]


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return TransformersEngine(load_checkpoint(str(tiny_folder("llama"))))


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": "12"}) + "\n" for q in QUESTIONS))
    return str(path)


def configuration(questions, **changes):
    return DiversityConfig(
        **(
            {
                "sigma": 0.1,
                "members": 3,
                "samples": 40,
                "prompts": len(QUESTIONS),
                "task": "file",
                "data": questions,
                "weights": WEIGHTS,
                "max_tokens": 2,
            }
            | changes
        )
    )


@pytest.fixture(scope="module")
def sample(engine, questions):
    config = configuration(questions)
    return sample_population(Local(engine), config.load_task(), config)


def every_response():
    """All outcomes of at most two tokens: the stop token, or two tokens of which the second may be it."""
    out = [Response((STOP,), False)]
    for a, b in itertools.product(range(VOCABULARY), repeat=2):
        if a != STOP:
            out.append(Response((a, b), b != STOP))
    return out


@pytest.fixture(scope="module")
def enumerated(engine, sample):
    """[prompts, N, outcomes] log-probabilities of every response under every member."""
    sampling = Sampling(0.7, 2)
    prompts = [engine.checkpoint.encode(q) for q in sample.prompts]
    scores = []
    for member in population(0, 3):
        engine.set_member(member, 0.1)
        rows = engine.score(prompts, [every_response()] * len(prompts), sampling)
        scores.append([[float(s.sum()) for s in row] for row in rows])
    engine.restore()
    return np.array(scores).transpose(1, 0, 2)


def test_enumeration_is_complete(enumerated):
    assert np.exp(enumerated).sum(-1) == pytest.approx(np.ones((3, 3)), abs=1e-5)


@pytest.mark.parametrize("name", ["chain", "rb", "post", "mc"])
def test_estimators_agree_with_enumeration(sample, enumerated, name):
    exact = exact_js(enumerated, np.array(WEIGHTS))
    said = sample.population
    values = {
        "chain": said.chain,
        "rb": said.rb,
        "post": js.post(said.scores, sample.weights),
        "mc": js.mc(said.scores, said.member, sample.weights),
    }[name]
    estimate = js.stratified(sample.grid(values), sample.weights)
    assert np.all(estimate.se < 0.5 * exact), "the test must be able to fail"
    assert np.all(np.abs(estimate.value - exact) < 4 * estimate.se)


def test_scores_are_those_of_the_enumeration(sample, enumerated):
    table = {r.tokens: k for k, r in enumerate(every_response())}
    said = sample.population
    expected = np.stack([enumerated[x, :, table[tuple(t)]] for x, t in zip(said.prompt, said.tokens, strict=True)])
    assert said.scores == pytest.approx(expected, abs=1e-4)


def test_bracket_holds_in_expectation(sample, enumerated):
    exact = exact_js(enumerated, np.array(WEIGHTS)).mean()
    lower, upper = (
        js.stratified(sample.grid(v), sample.weights) for v in (sample.population.lower, sample.population.upper)
    )
    assert lower.value.mean() - 3 * lower.se.mean() < exact < upper.value.mean() + 3 * upper.se.mean()
    assert lower.value.mean() > 0.3 * exact and upper.value.mean() < 3 * exact


@pytest.mark.parametrize("sigma", [0.001])
def test_rate_from_the_center_is_exact_in_expectation(engine, questions, sigma):
    """Averaged over every response of the center, the directional form predicts the exact JS of the very members."""
    config = configuration(questions, sigma=sigma)
    sampling, prompts = Sampling(0.7, 2), [engine.checkpoint.encode(QUESTIONS[0])]
    everything = Spoken()
    everything.add(-1, [every_response()])
    members = population(0, 3)
    forms = Jobs(prompts, members, config, sampling).center_block(engine, everything)
    scores = []
    for member in (None, *members):
        if member is None:
            engine.restore()
        else:
            engine.set_member(member, sigma)
        scores.append([float(s.sum()) for s in engine.score(prompts, [every_response()], sampling)[0]])
    engine.restore()
    center = np.exp(scores[0])
    exact = float(exact_js(np.array(scores[1:]), np.array(WEIGHTS)))
    assert center @ forms["rate"] == pytest.approx(exact, rel=0.05)
    # JS is half the weighted variance of the directions: for one direction, KL(center‖member) = σ² εᵀFε/2.
    divergences = [float(center @ (np.array(scores[0]) - np.array(s))) for s in scores[1:]]
    assert 0.5 * sigma**2 * (center @ forms["forms"]) == pytest.approx(divergences, rel=0.05)


def test_result_does_not_depend_on_the_blocks(engine, questions, sample):
    config = configuration(questions, block_gib=20 * 3 * VOCABULARY * 4 / 2**30)
    other = sample_population(Local(engine), config.load_task(), config)
    assert other.population.tokens == sample.population.tokens
    for name in ("scores", "chain", "rb", "lower", "upper"):
        assert getattr(other.population, name) == pytest.approx(getattr(sample.population, name), abs=1e-5)
    assert other.center.forms == pytest.approx(sample.center.forms, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("positions", [1, 4])
def test_a_response_longer_than_the_memory_is_scored_in_parts(engine, questions, positions, monkeypatch):
    config = configuration(questions, samples=3, max_tokens=9)
    whole = sample_population(Local(engine), config.load_task(), config)
    held = []
    inner = Jobs._logits
    monkeypatch.setattr(Jobs, "_logits", lambda *a: held.append(inner(*a)) or held[-1])
    config = configuration(questions, samples=3, max_tokens=9, block_gib=positions * 4 * VOCABULARY * 4 / 2**30)
    parts = sample_population(Local(engine), config.load_task(), config)
    assert max(x.numel() for x in held) <= positions * 4 * VOCABULARY * (4 / 3)  # 3 members; 4 with the center
    assert parts.population.tokens == whole.population.tokens and max(whole.population.lengths) == 9
    for name in ("scores", "chain", "rb", "lower", "upper"):
        assert getattr(parts.population, name) == pytest.approx(getattr(whole.population, name), abs=1e-4)
    assert parts.center.forms == pytest.approx(whole.center.forms, rel=1e-2, abs=1e-3)
    assert parts.center.rate == pytest.approx(whole.center.rate, rel=1e-2, abs=1e-5)


def test_saved_sample_gives_the_same_report(sample, tmp_path):
    sample.save(tmp_path / "s")
    again = PopulationSample.load(tmp_path / "s")
    assert report(again).to_dict() == report(sample).to_dict()
    sample.save(tmp_path / "s")  # an older sample is replaced
    assert json.dumps(report(sample).to_dict(), allow_nan=True)
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_interrupted_measurement_goes_on(tiny_folder, questions, tmp_path):
    config = configuration(questions, samples=4)
    whole = measure(str(tiny_folder("llama")), config, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    for last in (("sampling", 2), ("scoring", 1), ("center", 1)):

        def progress(stage, done, total, tokens, last=last):
            if stage == last[0] and done >= last[1]:
                raise Stop

        with pytest.raises(Stop):
            measure(str(tiny_folder("llama")), config, out=tmp_path / "parts", progress=progress)
        assert (tmp_path / "parts" / "sample-unfinished").is_dir() and not (tmp_path / "parts" / "sample").exists()
    parts = measure(str(tiny_folder("llama")), config, out=tmp_path / "parts")
    assert parts.population.tokens == whole.population.tokens
    assert np.array_equal(parts.population.scores, whole.population.scores)
    assert np.array_equal(parts.population.chain, whole.population.chain)
    assert np.array_equal(parts.center.forms, whole.center.forms)
    assert not (tmp_path / "parts" / "sample-unfinished").exists()


def test_only_the_first_responses_are_scored(engine, questions, sample):
    config = configuration(questions, samples=40, scored=2)
    few = sample_population(Local(engine), config.load_task(), config)
    whole, part = sample.first(2), few.first(few.scored)
    assert few.population.tokens == sample.population.tokens
    assert part.population.scores == pytest.approx(whole.population.scores, abs=1e-5)
    assert part.center.forms == pytest.approx(whole.center.forms, rel=1e-3)
    rest = few.population.pick(few.population.sample >= 2)
    assert len(rest) == 38 * 3 * len(QUESTIONS) and np.isnan(rest.chain).all() and np.isnan(rest.scores).all()
    assert report(few)["JS chain"] == report(part)["JS chain"]
    assert report(few)["success of the members"] == report(sample)["success of the members"]


def test_unscored_samples_say_what_they_can(engine, questions, sample, tmp_path):
    config = configuration(questions, samples=4, scored=0)
    unscored = sample_population(Local(engine), config.load_task(), config)
    unscored.save(tmp_path / "s")
    again = report(PopulationSample.load(tmp_path / "s"))
    assert "JS chain" not in again.quantities and "success of the members" in again.quantities
    with pytest.raises(InputError, match="not scored"):
        compare(sample, unscored)


def test_paired_comparison(engine, questions, sample):
    wider = configuration(questions, sigma=0.2)
    other = sample_population(Local(engine), wider.load_task(), wider)
    difference = compare(sample, other).quantities[0]
    assert difference.lower < difference.value < difference.upper and difference.value > 0
    with pytest.raises(InputError, match="different prompts"):
        fewer = configuration(questions, prompts=2, samples=2)
        compare(sample, sample_population(Local(engine), fewer.load_task(), fewer))


def test_restricted_policies_have_no_rate_but_a_diversity(engine, questions, sample):
    config = configuration(questions, top_k=5)
    top = sample_population(Local(engine), config.load_task(), config)
    assert np.isnan(top.center.rate).all() and np.isfinite(top.population.chain).all()
    assert "JS from the center" not in report(top).quantities
    estimate = {n: report(top)[f"JS {n}"] for n in ("chain", "rb", "post")}
    assert estimate["post"].lower < estimate["chain"].value < estimate["post"].upper


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": -0.1}, "sigma"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"members": 0}, "members"),
        ({"samples": 1}, "samples"),
        ({"weights": [0.5, 0.3, 0.3]}, "sum to 1"),
        ({"weights": [0.5, 0.5]}, "one weight a member"),
        ({"family": "cauchy"}, "family"),
        ({"family": "antithetic"}, "even"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"rank": 0}, "rank"),
        ({"workers": 0}, "workers"),
        ({"scored": 1}, "scored"),
        ({"scored": 41}, "scored"),
        ({"prompts": 10}, "problems"),
        ({"task": "arithmetics"}, "arithmetic"),
    ],
)
def test_bad_configurations_are_one_line(questions, change, message):
    with pytest.raises(InputError, match=message) as caught:
        configuration(questions, **change).load_task()
    assert "\n" not in str(caught.value)


def test_members_that_do_not_differ_are_no_diversity(engine, questions):
    config = configuration(questions, sigma=1e-30, samples=2)
    with pytest.raises(InputError, match="do not differ"):
        sample_population(Local(engine), config.load_task(), config)


def test_one_member_has_no_diversity_to_check(engine, questions):
    config = configuration(questions, members=1, weights=None, samples=2)
    alone = report(sample_population(Local(engine), config.load_task(), config))
    assert alone["JS chain"].value == 0 and alone.checks == []


def test_nothing_solved_tests_nothing(engine, questions):
    config = configuration(questions, weights=None, samples=4)
    unsolved = report(sample_population(Local(engine), config.load_task(), config))
    assert unsolved["success of the members"].value == 0
    assert [c.verdict for c in unsolved.checks if c.statement == "L2.4"] == [Verdict.VACUOUS]


@pytest.mark.parametrize("limit", [1 << 9, 1 << 12])
def test_a_full_disk_is_one_line(tiny_folder, questions, tmp_path, limit):
    """A limit on the size of files fails as a full disk does: in the journal, or later in the sample."""
    code = f"""
import resource, sys
from esth.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(main())
"""
    options = ["--task", "file", "--data", questions, "--prompts", "3", "--members", "2", "--samples", "2"]
    arguments = ["diversity", str(tiny_folder("llama")), *options, "--max-tokens", "2", "--sigma", "0.1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--out", str(tmp_path / "out")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "cannot write" in done.stderr and not (tmp_path / "out" / "sample").exists()


def damaged(sample, folder):
    """A saved sample of which a row is lost."""
    sample.save(folder)
    path = folder / "population.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.slice(0, table.num_rows - 1), path)
    return folder


def test_mistakes_on_the_command_line_are_one_line(tiny_folder, questions, sample, tmp_path, capsys):
    model = str(tiny_folder("llama"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "sample").mkdir()
    (tmp_path / "taken" / "sample" / "thesis.txt").write_text("precious")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": "t5", "answer": "1"}\n{"query": "t5", "answer": "1"}\n')
    mistakes = [
        ([], "name a model"),
        ([model, "--sigma", "-1"], "sigma"),
        ([model, "--sgma", "1"], "--sgma"),
        ([model, "--weights", "[0.5,0.6]", "--members", "2"], "sum to 1"),
        ([model, "--dtype", "int8"], "dtype"),
        ([model, "--task", "arithmetics"], "arithmetic"),
        ([model, "--task", "file", "--data", str(broken), "--prompts", "2"], "2"),
        ([str(tmp_path / "nowhere")], "no model folder"),
        ([str(tmp_path)], "config.json"),
        ([model, "--out", str(tmp_path / "taken")], "holds no population sample"),
        ([model, "--target-se", "0.1"], "--dry-run"),
        (["--from", str(tmp_path / "taken")], "sample.json"),
        (["--from", str(tmp_path / "taken"), "--sigma", "1"], "--sigma does not go with --from"),
        ([model, "--engine", "onnx"], "unknown engine"),
        (["--from", str(damaged(sample, tmp_path / "damaged"))], "do not fit"),
    ]
    capsys.readouterr()  # what making the model said
    for arguments, message in mistakes:
        assert main(["diversity", *arguments]) == 2, arguments
        told = capsys.readouterr().err
        assert told.startswith("esth: ") and told.count("\n") == 1, (arguments, told)
        assert message in told, (arguments, told)
    assert (tmp_path / "taken" / "sample" / "thesis.txt").read_text() == "precious"
    assert main(["attack", "two_point", "--instances", "10", "--out", "/proc/nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_itself(questions):
    command = [sys.executable, "-m", "esth.cli", "diversity", "--sgma", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("esth: ") and done.stderr.count("\n") == 1


def test_a_damaged_journal_is_done_again(tmp_path):
    journal = Journal(tmp_path / "j", {"a": 1})
    journal.put("x", {"v": np.arange(3)})
    (tmp_path / "j" / "x.npz").write_bytes(b"half")
    assert journal.get("x") is None


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    code = f"""
import pathlib, sys
from esth.diversity.journal import Journal
journal = Journal(pathlib.Path({str(tmp_path / "j")!r}), {{"a": 1}})
print("at work", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "at work\n"
        with pytest.raises(InputError, match="another process is at work there"):
            Journal(tmp_path / "j", {"a": 1})
        other.kill()
    Journal(tmp_path / "j", {"a": 1})  # a killed process holds nothing


def test_other_prompts_are_other_work(tiny_folder, questions, tmp_path):
    """The same command after the file has changed: neither begun nor finished samples are taken for the new prompts."""
    model, path = str(tiny_folder("llama")), tmp_path / "q.jsonl"
    path.write_text('{"question": "t5", "answer": "1"}\n{"question": "t6", "answer": "1"}\n')
    config = configuration(str(path), prompts=2, samples=2)

    def stop(stage, done, total, tokens):
        if stage == "sampling" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(model, config, out=tmp_path / "begun", progress=stop)
    measure(model, config, out=tmp_path / "done")
    path.write_text('{"question": "t7", "answer": "1"}\n{"question": "t6", "answer": "1"}\n')
    with pytest.raises(InputError, match="other settings"):
        measure(model, config, out=tmp_path / "begun")
    with pytest.raises(InputError, match=r"other settings \(problems\)"):
        measure(model, config, out=tmp_path / "done")
    with pytest.raises(InputError, match=r"max_tokens"):
        measure(model, configuration(str(path), prompts=2, samples=2, max_tokens=3), out=tmp_path / "done")


def test_finished_work_is_reported_again_and_never_overwritten(tiny_folder, questions, tmp_path):
    model, config = str(tiny_folder("llama")), configuration(questions, samples=2, prompts=2)
    first = measure(model, config, out=tmp_path / "out")

    def refuse(stage, done, total, tokens):
        assert stage == "loading the model", "nothing is to be sampled again"

    again = measure(model, config, out=tmp_path / "out", progress=refuse)
    assert again.population.tokens == first.population.tokens
    assert report(again).to_dict() == report(first).to_dict()
    with pytest.raises(InputError, match="other settings"):
        measure(model, configuration(questions, samples=2, prompts=2, sigma=0.3), out=tmp_path / "out")
    Journal(tmp_path / "j", {"a": 1})
    with pytest.raises(InputError, match="unfinished"):
        Journal(tmp_path / "j", {"a": 2})
