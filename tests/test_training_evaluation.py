"""Evaluations: every quantity against enumeration or another library; JSON; language models against plain passes."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from esth.errors import InputError
from esth.training import evaluation as module
from esth.training.evaluation import Evaluation, evaluate_workers, load, quantities, response_entropies, save, table


def some(name: str = "held-out", p: int = 24, n: int = 6, seed: int = 0, **changed) -> Evaluation:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(n, 5 * n, p).astype(float)
    fields = {
        "name": name,
        "ids": tuple(f"p{i}" for i in range(p)),
        "samples": n,
        "successes": rng.binomial(n, rng.beta(1, 2, p)).astype(float),
        "greedy": rng.integers(0, 2, p).astype(float),
        "entropy": tokens * rng.gamma(2, 0.2, p),
        "tokens": tokens,
        "truncated": rng.binomial(n, 0.1, p).astype(float),
    }
    return Evaluation(**(fields | changed))


def test_pass_at_k_is_the_mean_over_subsets_of_responses() -> None:
    e = some()
    for k in (1, 3, 6):
        by_prompt = []
        for c in e.successes:
            tries = [1] * int(c) + [0] * (6 - int(c))
            by_prompt.append(np.mean([max(s) for s in itertools.combinations(tries, k)]))
        assert e.pass_at(k).value == pytest.approx(np.mean(by_prompt), abs=1e-12)


def test_exact_successes_are_those_of_independent_tries() -> None:
    p = np.array([0.0, 0.25, 1.0, 0.5])
    e = Evaluation("x", tuple("abcd"), 0, p, np.array([0.0, 0, 1, 1]), np.full(4, 0.7), np.ones(4), np.zeros(4))
    assert e.pass_at(3).value == pytest.approx((0 + (1 - 0.75**3) + 1 + 0.875) / 4, abs=1e-15)
    assert e.mean_entropy().value == pytest.approx(0.7) and e.mean_length().value == 1
    with pytest.raises(InputError, match="k = 0"):
        e.pass_at(0)


def test_differences_are_paired() -> None:
    a = some(n=1)
    gained = a.successes.copy()
    (wrong,) = np.nonzero(gained == 0)
    gained[wrong[:2]] = 1
    b = dataclasses.replace(a, successes=gained, greedy=gained)
    value, lower, upper = b.difference(a, 1)
    assert value == pytest.approx(2 / 24, abs=1e-12)
    unpaired = b.pass_at(1).upper - b.pass_at(1).lower
    assert 0 < upper - lower < 0.75 * unpaired  # what the other 22 prompts have in common cancels
    assert a.difference(b, 1).value == pytest.approx(-2 / 24, abs=1e-12)
    assert b.greedy_difference(a).value == pytest.approx(gained.mean() - a.greedy.mean())


def test_entropy_a_token_is_a_ratio_of_sums_with_its_jackknife_s_error() -> None:
    e, b = some(p=60), some(p=60, seed=1)

    def rate(of: Evaluation, keep: np.ndarray) -> float:
        return of.entropy[keep].sum() / of.tokens[keep].sum()

    def jackknife(statistic) -> float:
        left = np.array([statistic(np.arange(60) != i) for i in range(60)])
        return math.sqrt(59 / 60 * np.sum((left - left.mean()) ** 2))

    everyone = np.arange(60) >= 0
    t = stats.t.ppf(0.975, 59)
    for interval, statistic in (
        (e.mean_entropy(), lambda keep: rate(e, keep)),
        (e.entropy_difference(b), lambda keep: rate(e, keep) - rate(b, keep)),
    ):
        assert interval.value == pytest.approx(statistic(everyone), rel=1e-12)
        assert (interval.upper - interval.lower) / (2 * t) == pytest.approx(jackknife(statistic), rel=0.04)


def test_length_and_truncation_are_a_response() -> None:
    e, b = some(), some(seed=1)
    lengths = e.tokens / 6
    expected = stats.t.interval(0.95, 23, loc=lengths.mean(), scale=stats.sem(lengths))
    assert e.mean_length() == pytest.approx((lengths.mean(), *expected), rel=1e-12)
    assert e.truncation().value == pytest.approx(e.truncated.sum() / (24 * 6))
    assert e.length_difference(b).value == pytest.approx((e.tokens.sum() - b.tokens.sum()) / (24 * 6))
    assert e.truncation_difference(b).value == pytest.approx((e.truncated.sum() - b.truncated.sum()) / (24 * 6))


def test_other_prompts_and_too_many_tries_are_one_line() -> None:
    e = some()
    with pytest.raises(InputError, match="k = 7 needs 1 <= k <= n"):
        e.pass_at(7)
    for other in (some(p=23), dataclasses.replace(e, ids=e.ids[::-1])):
        for difference in (
            lambda b: e.difference(b, 1),
            e.greedy_difference,
            e.entropy_difference,
            e.length_difference,
            e.truncation_difference,
        ):
            with pytest.raises(InputError, match="different prompts"):
                difference(other)


@pytest.mark.parametrize(
    "changed",
    [
        {"ids": ("a",) * 24},
        {"samples": -1},
        {"successes": np.full(24, 7.0)},
        {"successes": np.full(24, 0.5)},
        {"successes": np.full(23, 1.0)},
        {"greedy": np.full(24, 0.5)},
        {"entropy": np.full(24, -0.1)},
        {"entropy": np.full(24, math.nan)},
        {"tokens": np.zeros(24)},
        {"truncated": np.full(24, 6.5)},
    ],
)
def test_values_that_cannot_be_are_refused(changed: dict) -> None:
    with pytest.raises(InputError):
        some(**changed)


def test_json_gives_the_same_bits_back(tmp_path: Path) -> None:
    saved = [some("train"), some("held-out", seed=1)]
    save(tmp_path / "e.json", saved)
    for a, b in zip(saved, load(tmp_path / "e.json"), strict=True):
        assert (a.name, a.ids, a.samples) == (b.name, b.ids, b.samples)
        for column in module.COLUMNS:
            assert np.array_equal(getattr(a, column), getattr(b, column))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("greedy"), "no 'greedy'"),
        (lambda d: d.update(samples=True), "whole number"),
        (lambda d: d.update(samples=2.0), "whole number"),
        (lambda d: d.update(name=3), "must be text"),
        (lambda d: d.update(ids="abc"), "ids must be a list"),
        (lambda d: d.update(entropy=["1"] * 24), "entropy must be a list of numbers"),
        (lambda d: d.update(tokens=[True] * 24), "tokens must be a list of numbers"),
        (lambda d: d.update(tokens=d["tokens"][1:]), "tokens are none of 24"),
    ],
)
def test_json_of_something_else_is_refused(tmp_path: Path, change, message: str) -> None:
    content = some().to_dict()
    change(content)
    file = tmp_path / "e.json"
    file.write_text(json.dumps({"format": module.FORMAT, "evaluations": [content]}))
    with pytest.raises(InputError, match=message) as raised:
        load(file)
    assert "\n" not in str(raised.value) and str(file) in str(raised.value)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"format": "other"}', '{"evaluations": 3}'])
def test_files_of_something_else_are_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "e.json").write_text(text)
    with pytest.raises(InputError, match=r"e\.json"):
        load(tmp_path / "e.json")


def test_the_table_shows_values_and_differences() -> None:
    e, b = some(), some(seed=1)
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table([e], [b], ks=[1, 6]))
    console.file.close()
    text = console.export_text()
    for value in (e.pass_at(6), e.mean_entropy(), e.difference(b, 6), e.entropy_difference(b)):
        assert f"{float(value.value):.3f}" in text
    assert [q.name for q in quantities(e)] == ["pass@1", "greedy accuracy", "entropy", "length", "truncated"]
    with pytest.raises(InputError, match="k = 7"):
        table([e], ks=[7])


# Language models

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from esth.models import Sampling, load_checkpoint, load_engine  # noqa: E402
from esth.models.engine import Response  # noqa: E402
from esth.models.workers import Local  # noqa: E402
from esth.noise import Member, hashed  # noqa: E402
from esth.tasks import load_task  # noqa: E402
from esth.tasks.task import Problem, Task, encode  # noqa: E402
from esth.training.evaluate import EvaluationConfig, evaluate  # noqa: E402

WORDS = [f"t{i}" for i in range(3, 61)]


def even(text: str, problem: Problem) -> bool:
    """Whether the response's first word is of even number: about half of what a random model says."""
    words = text.split()
    return bool(words) and words[0].startswith("t") and int(words[0][1:]) % 2 == int(problem.answer)


def words_task(n: int) -> Task:
    rng = np.random.default_rng(5)
    prompts = [" ".join(rng.choice(WORDS, 2 + i % 4)) for i in range(n)]
    return Task("words", "test", tuple(Problem(f"w{i}", p, str(i % 2)) for i, p in enumerate(prompts)), even, 7)


@pytest.fixture(scope="module")
def workers(tiny_folder):
    checkpoint = dataclasses.replace(
        load_checkpoint(tiny_folder("llama")), stop_tokens=frozenset(range(2, 61, 7))
    )  # a random model rarely says its own
    return Local(load_engine(checkpoint, device="cpu"))


SAMPLING = Sampling(0.8, 7)


def plain_entropy(model, prompt: list[int], tokens: tuple[int, ...], temperature: float) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double().numpy()
    return sum(stats.entropy(np.exp(row - row.max())) for row in logits / temperature)


def test_a_model_is_evaluated_as_plain_passes_say(workers, monkeypatch: pytest.MonkeyPatch) -> None:
    task, engine = words_task(9), workers.engine
    found = evaluate_workers(workers, task, 4, SAMPLING, 11, "held-out")
    prompts = [encode(engine.checkpoint.tokenizer, p) for p in task.problems]
    engine.restore()
    said = engine.sample(prompts, 4, SAMPLING, 11)
    for x, (prompt, problem, group) in enumerate(zip(prompts, task.problems, said, strict=True)):
        assert found.tokens[x] == sum(len(r.tokens) for r in group)
        assert found.truncated[x] == sum(r.truncated for r in group)
        assert found.successes[x] == sum(even(engine.checkpoint.decode(r.tokens), problem) for r in group)
        expected = sum(plain_entropy(engine.model, prompt, r.tokens, 0.8) for r in group)
        assert found.entropy[x] == pytest.approx(expected, rel=1e-5)
        best = list(prompt)  # greedy by hand
        while len(best) < len(prompt) + 7 and not (
            len(best) > len(prompt) and best[-1] in engine.checkpoint.stop_tokens
        ):
            with torch.no_grad():
                best.append(int(engine.model(torch.tensor([best])).logits[0, -1].argmax()))
        assert found.greedy[x] == even(engine.checkpoint.decode(best[len(prompt) :]), problem)
    assert 0 < found.successes.sum() < 36 and 0 < found.truncated.sum() < 36 and 0 < found.greedy.sum() < 9
    monkeypatch.setattr(module, "BLOCK", 8)  # 5 pieces of work in place of 1
    again = evaluate_workers(workers, task, 4, SAMPLING, 11, "held-out")
    for column in ("successes", "greedy", "tokens", "truncated"):
        assert np.array_equal(getattr(found, column), getattr(again, column))
    assert again.entropy == pytest.approx(found.entropy, rel=1e-5)


def test_the_member_that_was_set_before_does_not_matter(workers) -> None:
    task = words_task(4)
    first = evaluate_workers(workers, task, 2, SAMPLING, 0, "train").to_dict()
    workers.engine.set_member(Member(3), 0.5)
    assert evaluate_workers(workers, task, 2, SAMPLING, 0, "train").to_dict() == first
    assert evaluate_workers(workers, task, 2, SAMPLING, 1, "train").to_dict() != first


def test_entropy_does_not_depend_on_what_is_held_at_a_time(workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 1 and of 3 tokens cut responses in pieces."""
    engine = workers.engine
    prompts = [[5, 6, 7], [5, 6, 7], [9, 10]]
    said = [
        [Response((11, 12, 13, 14, 15, 16, 20), True), Response((30, 2), False)],
        [],
        [Response((40, 41, 42, 9), False)] * 2,
    ]
    expected = [[plain_entropy(engine.model, p, r.tokens, 0.8) for r in g] for p, g in zip(prompts, said, strict=True)]
    for positions in (1, 3, 5, 1000):
        monkeypatch.setattr(module, "BYTES", positions * 4 * engine.vocabulary)
        found = response_entropies(engine, prompts, said, SAMPLING)
        assert [len(group) for group in found] == [2, 0, 2]
        for a, b in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
            assert a == pytest.approx(b, rel=1e-5)


def test_entropy_is_of_the_distribution_that_is_sampled(workers) -> None:
    engine, prompts = workers.engine, [[5, 6, 7]]
    said = [[Response((11, 12), True)]]
    ((top_1,),) = response_entropies(engine, prompts, said, Sampling(0.8, 7, top_k=1))
    ((greedy,),) = response_entropies(engine, prompts, said, Sampling(0.0, 7))
    ((hot,),) = response_entropies(engine, prompts, said, Sampling(1e5, 7))
    assert top_1 == greedy == 0
    assert hot == pytest.approx(2 * math.log(61), rel=1e-6)


def test_what_cannot_be_evaluated_is_one_line(workers) -> None:
    task = words_task(4)
    with pytest.raises(InputError, match="samples"):
        evaluate_workers(workers, task, 0, SAMPLING, 0, "train")
    unanswered = dataclasses.replace(task, problems=(*task.problems, Problem("w9", "t5", "")))
    with pytest.raises(InputError, match="w9 has no answer"):
        evaluate_workers(workers, unanswered, 1, SAMPLING, 0, "train")


def test_progress_is_told(workers) -> None:
    told: list[tuple[int, int, int]] = []
    found = evaluate_workers(workers, words_task(4), 200, SAMPLING, 0, "train", lambda *a: told.append(a))
    assert [t[:2] for t in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert sum(t[2] for t in told) == found.tokens.sum()


# esth evaluate


@pytest.fixture(scope="module")
def model(tiny_folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a word of its own for each digit, so that it reads sums and answers them now and then."""
    from esth.models.saving import save_center

    folder = tmp_path_factory.mktemp("evaluate") / "model"
    save_center(Local(load_engine(load_checkpoint(tiny_folder("llama")), device="cpu")), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    for digit in range(10):
        words[str(digit)] = words.pop(f"t{digit + 20}")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One update of ES."""
    from esth.training import ESConfig
    from esth.training.run import train

    folder = tmp_path_factory.mktemp("evaluate") / "run"
    config = ESConfig(
        model=str(model), task="arithmetic", problems=8, prompts=4, population=4, updates=1, sigma=0.3, max_tokens=5,
        fitness="sampled", samples=8, temperature=0.9, evaluation_prompts=4, evaluation_samples=2,
    )  # fmt: skip
    train(config, folder)
    return folder


def test_a_run_is_evaluated_at_its_last_center_beside_its_base(run: Path, model: Path) -> None:
    config = EvaluationConfig(prompts=12, samples=8, held_out=["arithmetic:1-"])
    found = evaluate(str(run), config, str(model))
    assert [e.name for e in found.model] == [e.name for e in found.base] == ["arithmetic", "arithmetic:1-"]
    center = load_engine(load_checkpoint(run / "checkpoints" / "000001"), device="cpu")
    start = load_engine(load_checkpoint(model), device="cpu")
    task = load_task("arithmetic", split="test", n=12, max_tokens=5)
    seed = hashed("evaluation", 0)
    for engine, e in ((center, found.model[0]), (start, found.base[0])):
        expected = evaluate_workers(Local(engine), task, 8, Sampling(0.9, 5), seed, "arithmetic")  # the run's policy
        assert e.to_dict() == expected.to_dict()
    assert found.model[0].to_dict() != found.base[0].to_dict()
    assert found.model[0].entropy_difference(found.base[0]).value != 0


def test_what_a_model_is_evaluated_on(model: Path) -> None:
    """The problems are those that a run evaluates: the first of the test split by one seed."""
    told: list[tuple] = []
    ((first,), none) = evaluate(str(model), EvaluationConfig(prompts=5, samples=2), progress=lambda *a: told.append(a))
    assert none is None and first.name == "arithmetic" and first.tokens.max() <= 2 * 16
    assert told[-1][1:3] == (5, 5)
    tiny = EvaluationConfig(prompts=4, samples=1)
    ((chains,), _) = evaluate("tiny-3", tiny)
    assert chains.name == "chain:3"
    assert chains.ids == tuple(p.id for p in load_task("chain", split="test", n=4, difficulty="3").problems)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples must be at least 1"),
        ({"prompts": 1}, "prompts must be at least 2"),
        ({"samples": 8, "k": [1, 9]}, "k = 9 needs 1 <= k <= samples = 8"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"difficulty": "3"}, "need the task"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EvaluationConfig(**change)


def test_models_that_cannot_be_evaluated_are_one_line(model: Path, tmp_path: Path) -> None:
    from esth.training import ESConfig
    from esth.training.folder import RunFolder

    with pytest.raises(InputError, match="no model folder"):
        evaluate(str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="no model folder"):  # before the model is evaluated
        evaluate(str(model), EvaluationConfig(prompts=2, samples=1), str(tmp_path / "nothing"), lambda *a: 1 / 0)
    with pytest.raises(InputError, match="toy world"):
        evaluate("toy")
    RunFolder(tmp_path / "begun").begin(ESConfig(model=str(model)), {})
    with pytest.raises(InputError, match="has no checkpoint yet"):
        evaluate(str(tmp_path / "begun"))
    RunFolder(tmp_path / "toys").begin(ESConfig(model="toy"), {})
    with pytest.raises(InputError, match="is a run of the toy world"):
        evaluate(str(tmp_path / "toys"))
