"""The frame of the llm studies: settings, samples kept and found again, and what is said of mistakes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from esth.check import Verdict, judge_equal
from esth.errors import InputError
from esth.lemmas import LEMMAS
from llm import samples as frame
from llm.__main__ import main
from llm.samples import Samples, Settings, sized

QUESTIONS = [f"t{5 + i} t{9 + i}" for i in range(4)]


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": "12"}) + "\n" for q in QUESTIONS))
    return Settings(
        task="file", data=str(path), members=2, samples=2, pairs=2, pair_samples=2, prompts=4, sigma=0.1, max_tokens=2
    )


def refuse(*arguments):
    raise AssertionError("nothing is to be made again")


def test_samples_are_made_once_and_read_without_a_model(tiny_folder, settings, tmp_path):
    folder, model = tmp_path / "samples", str(tiny_folder("llama"))
    with Samples(folder, model, settings) as samples:
        iid, pairs = samples.iid(), samples.antithetic()
        made = samples.arrays("norms", lambda workers, progress: {"v": np.arange(workers.vocabulary)})
    assert iid.n == 2 and pairs.n == 4 and iid.prompts == pairs.prompts and set(iid.prompts) == set(QUESTIONS)
    assert iid.population.tokens != pairs.population.tokens[: len(iid.population)]
    with Samples(folder, None) as again:
        assert again.settings == settings and again.name == model
        assert again.iid().population.tokens == iid.population.tokens
        assert np.array_equal(again.arrays("norms", refuse)["v"], made["v"])
        with pytest.raises(InputError, match="give --model to make it"):
            again.population("other", settings.population(), again.task)
        with pytest.raises(InputError, match="give --model to make them"):
            again.arrays("other", refuse)
    with pytest.raises(InputError, match="of other settings"):
        Samples(folder, model, replace(settings, sigma=0.2))
    with Samples(folder, model, settings) as same:
        assert np.array_equal(same.arrays("norms", refuse)["v"], made["v"])
        assert same.iid().population.tokens == iid.population.tokens


def test_an_interrupted_run_goes_on(tiny_folder, settings, tmp_path):
    class Stop(Exception):
        pass

    def stop(stage, done, total, tokens):
        if stage == "population: sampling" and done == 2:
            raise Stop

    model = str(tiny_folder("llama"))
    with Samples(tmp_path / "whole", model, settings) as samples:
        whole = samples.iid()
    with pytest.raises(Stop), Samples(tmp_path / "parts", model, settings, stop) as samples:
        samples.iid()
    with Samples(tmp_path / "parts", model, settings) as samples:
        parts = samples.iid()
    assert parts.population.tokens == whole.population.tokens
    assert np.array_equal(parts.population.chain, whole.population.chain)


def test_the_halves_share_no_prompt(settings):
    x = np.arange(7)
    assert sorted([*frame.train(x), *frame.test(x)]) == list(x)
    task = settings.population().load_task()
    with_task = Samples.__new__(Samples)
    with_task.settings = settings
    assert [p.prompt for p in with_task.held_out().problems] == [p.prompt for p in task.problems[1::2]]


def test_undecided_checks_say_how_many_prompts_would_decide(settings):
    undecided = judge_equal("L1.1", "JS", 1.0, 1.05, measured_se=0.1, tolerance=0.1)
    assert undecided.verdict is Verdict.UNDECIDED
    needed = int(sized(undecided, 10).detail.split("≈ ")[1].split(" ")[0].replace(",", ""))
    # With so many prompts the error bar shrinks to what the deviation leaves of the tolerance.
    decided = judge_equal("L1.1", "JS", 1.0, 1.05, measured_se=0.1 * np.sqrt(10 / needed), tolerance=0.1)
    just_not = judge_equal("L1.1", "JS", 1.0, 1.05, measured_se=0.1 * np.sqrt(10 / (0.9 * needed)), tolerance=0.1)
    assert decided.verdict is Verdict.HOLDS and just_not.verdict is Verdict.UNDECIDED
    exact = int(sized(undecided, 10).detail.split("≈ ")[2].split(" ")[0])
    assert exact < needed
    supposed = [
        judge_equal("L1.1", "JS", 1.05, 1.05, measured_se=0.1 * np.sqrt(10 / n), tolerance=0.1)
        for n in (exact, 0.9 * exact)
    ]
    assert [c.verdict for c in supposed] == [Verdict.HOLDS, Verdict.UNDECIDED]
    holds = judge_equal("L1.1", "JS", 1.0, 1.0, tolerance=0.1)
    assert sized(holds, 10) == holds
    never = judge_equal("L1.1", "JS", 0.0, 0.0, measured_se=0.1, tolerance=0.1)
    assert "no number of prompts" in sized(never, 10).detail


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 7}, "samples >= members"),
        ({"sigma_low": 0.0}, "sigma_low"),
        ({"sigma": -1.0}, "sigma"),
        ({"pairs": 1}, "pairs"),
        ({"betas": ()}, "betas"),
        ({"betas": (0.5, -1.0)}, "betas"),
        ({"temperature": -0.5}, "temperature"),
        ({"workers": 0}, "workers"),
    ],
)
def test_bad_settings_are_one_line(change, message):
    with pytest.raises(InputError, match=message):
        Settings(**change)


def test_mistakes_on_the_command_line_are_one_line(tiny_folder, tmp_path, capsys):
    model = str(tiny_folder("llama"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("precious")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "settings.json").write_text('{"model": "demo", "settings": {"gamma": 1}}')
    mistakes = [
        ([], "name a model"),
        (["L9", "--model", model], "unknown lemma 'L9': accepted are fisher_rate"),
        (["--model", model, "--from", str(tmp_path)], "name a model"),
        (["--model", model, "--sgma", "1"], "--sgma"),
        (["--model", model, "--sigma", "much"], "sigma"),
        (["--model", model, "--samples", "4"], "samples >= members"),
        (["--model", model, "--task", "arithmetics", "--keep", str(tmp_path / "new")], "did you mean arithmetic"),
        (["--model", str(tmp_path / "nowhere"), "--keep", str(tmp_path / "newer")], "no model folder"),
        (["--model", model, "--engine", "onnx", "--keep", str(tmp_path / "newest")], "unknown engine"),
        (["--model", model, "--keep", str(tmp_path / "taken")], "name another folder"),
        (["--from", str(tmp_path / "nothing")], "no samples of the studies"),
        (["--from", str(tmp_path / "old")], "another version"),
        (["--from", str(tmp_path / "old"), "--seed", "1"], "--seed does not go with --from"),
    ]
    capsys.readouterr()  # what making the model said
    for arguments, message in mistakes:
        assert main(arguments) == 2, arguments
        told = capsys.readouterr().err
        assert told.startswith("llm: ") and told.count("\n") == 1 and message in told, (arguments, told)
    assert (tmp_path / "taken" / "thesis.txt").read_text() == "precious"
    for made in ("new", "newer", "newest"):
        assert not (tmp_path / made).exists(), "a folder is begun only when its settings can be met"


def test_every_lemma_has_a_study():
    import importlib

    for name in LEMMAS:
        module = importlib.import_module(f"llm.{name}")
        assert module.TITLE and callable(module.study) and callable(module.figure)
