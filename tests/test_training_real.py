"""The real world on a tiny random Llama: rewards, updates, evaluations and centers against what engines do by hand."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from esth.errors import InputError  # noqa: E402
from esth.models import Sampling, load_checkpoint, load_engine  # noqa: E402
from esth.noise import Keyed, population  # noqa: E402
from esth.training import es  # noqa: E402
from esth.training.config import ESConfig  # noqa: E402
from esth.training.real_world import RealWorld  # noqa: E402
from esth.training.worlds import Decoding  # noqa: E402

SIGMA = 0.03
MEMBERS = population(7, 4, "antithetic")
PROBLEMS = np.broadcast_to(np.array([3, 0, 7]), (4, 3))
TOKENS = 6


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with stop tokens that it says now and then."""
    path = tmp_path_factory.mktemp("real") / "model"
    transformers.AutoModelForCausalLM.from_pretrained(tiny_folder("llama")).save_pretrained(path)
    transformers.AutoTokenizer.from_pretrained(tiny_folder("llama")).save_pretrained(path)
    stops = json.dumps({"eos_token_id": list(range(2, 61, 9))})
    (path / "generation_config.json").write_text(stops)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions in the model's words; each answer is a word that about half of all responses contain."""
    rng = np.random.default_rng(0)
    lines = []
    for i in range(10):
        words = [f"t{t}" for t in rng.integers(3, 61, 3)]
        lines.append(json.dumps({"question": " ".join(words[: 2 + i % 2]), "answer": f"t{3 + i}"}))
    file = tmp_path_factory.mktemp("data") / "words.jsonl"
    file.write_text("\n".join(lines))
    return file


def config_of(folder: Path, file: Path, **options) -> ESConfig:
    given = {
        "model": str(folder),
        "task": "file",
        "data": str(file),
        "verifier": "text",
        "problems": 8,
        "prompts": 3,
        "population": 4,
        "sigma": SIGMA,
        "max_tokens": TOKENS,
        "evaluation_prompts": 5,
        "fitness": "sampled",
    }
    return ESConfig(**(given | options))


@pytest.fixture
def world(folder: Path, data: Path) -> Iterator[RealWorld]:
    made = RealWorld(config_of(folder, data))
    made.training = made.training._replace(
        task=dataclasses.replace(made.training.task, verifier=says_an_even_word)
    )  # a random model is hardly ever right
    yield made
    made.close()


def says_an_even_word(text: str, problem) -> bool:
    words = [w for w in text.split() if w.startswith("t")]
    return bool(words) and int(words[-1][1:]) % 2 == len(problem.prompt.split()) % 2


def center(world: RealWorld) -> dict[str, "torch.Tensor"]:
    return {name: tensor.detach().clone() for name, tensor in world.workers.engine.center.items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


# Rewards


@pytest.mark.parametrize(
    ("decoding", "temperature"),
    [(Decoding("greedy"), 0.0), (Decoding("sampled", 3), 1.0), (Decoding("sampled", 2, common=True), 1.0)],
    ids=["greedy", "sampled", "common"],
)
def test_rewards_are_those_of_each_member(world: RealWorld, decoding: Decoding, temperature: float) -> None:
    problems = np.array([[3, 0, 7], [3, 0, 7], [1, 2, 3], [5, 4, 6]])
    found = world.rewards(MEMBERS, SIGMA, problems, decoding, seed=5)
    engine = load_engine(world.workers.checkpoint, device="cpu")
    lengths, cut = [], 0
    for i, member in enumerate(MEMBERS):
        engine.set_member(Keyed(member, ("common",)) if decoding.common else member, SIGMA)
        for j, x in enumerate(problems[i]):
            problem = world.training.task.problems[x]
            prompt = engine.checkpoint.tokenizer(problem.prompt)["input_ids"]
            sampling = Sampling(temperature, TOKENS)
            ((*said,),) = engine.sample([prompt], decoding.samples, sampling, 5, prompt_ids=[int(x)])
            for s, response in enumerate(said):
                assert found.values[i, j, s] == says_an_even_word(engine.checkpoint.decode(response.tokens), problem)
                lengths.append(len(response.tokens))
                cut += response.truncated
    assert found.values.shape == (4, 3, decoding.samples) and 0 < found.values.mean() < 1
    assert math.isnan(found.entropy)
    assert 0 < found.truncated < 1 and found.truncated == cut / len(lengths)
    spent = found.spent
    assert (spent.responses, spent.tokens, spent.forward_passes) == (len(lengths), sum(lengths), len(lengths))
    assert spent.backward_passes == 0


def test_common_numbers_make_members_of_one_policy_alike(world: RealWorld) -> None:
    tiny = 1e-7
    common = world.rewards(MEMBERS, tiny, PROBLEMS, Decoding("sampled", 8, common=True), 0).values
    own = world.rewards(MEMBERS, tiny, PROBLEMS, Decoding("sampled", 8), 0).values
    assert (common == common[:1]).all() and not (own == own[:1]).all()


def test_a_step_is_a_function_of_its_number(world: RealWorld, folder: Path, data: Path) -> None:
    config = config_of(folder, data)
    first = es.step(world, config, 1)
    world.rewards(MEMBERS, 0.2, PROBLEMS, Decoding("greedy"), 3)  # whatever comes between
    again, other = es.step(world, config, 1), es.step(world, config, 2)
    assert first.update == again.update != other.update
    assert np.array_equal(first.rewards.values, again.rewards.values)


def test_expected_fitness_is_of_the_toy_world(world: RealWorld) -> None:
    with pytest.raises(InputError, match="greedy or sampled"):
        world.rewards(MEMBERS, SIGMA, PROBLEMS, Decoding("expected"), 0)


# The center


def test_decay_is_toward_the_start_and_ends_there(world: RealWorld) -> None:
    start = center(world)
    world.apply_update([(MEMBERS[0], 0.1)])
    far = center(world)
    world.apply_update([(MEMBERS[1], 0.02)], 0.3)
    keep = np.float32(0.7)
    for name, theta in far.items():
        noise = np.float32(0.02) * MEMBERS[1].noise(name, theta.shape).reshape(theta.shape)
        pulled = keep * theta.numpy() + (noise + (np.float32(1) - keep) * start[name].numpy())
        assert np.array_equal(center(world)[name].numpy(), pulled)
    for _ in range(120):  # 0.7^120 = 3e-19
        world.apply_update([], 0.3)
    for name, theta in center(world).items():
        np.testing.assert_allclose(theta.numpy(), start[name].numpy(), rtol=5e-7, atol=1e-12)


def test_shares_sum_to_one(world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded one by one to float32, 0.9999 and 0.0001 would draw the center to another point, by 1.7e-4 of it."""
    seen = []
    monkeypatch.setattr(world.workers, "apply_update", lambda update, keep: seen.append((update, keep)))
    world.apply_update([], 1e-4)
    (([(stored, share)], keep),) = seen
    assert stored.fingerprint == world.workers.checkpoint.fingerprint
    assert share == np.float32(share) and keep == np.float32(keep) and share + keep == 1
    assert share == pytest.approx(1e-4, rel=1e-3)
    world.apply_update([], 0.0)
    assert seen[1] == ([], 1.0)


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_a_decay_that_is_none_is_refused(world: RealWorld, decay: float) -> None:
    with pytest.raises(InputError, match="decay must be in"):
        world.apply_update([], decay)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drift_is_relative_to_the_start(folder: Path, data: Path, dtype: str) -> None:
    world = RealWorld(config_of(folder, data, dtype=dtype))
    start = center(world)
    assert world.drift() == 0
    world.apply_update([(MEMBERS[0], 0.1)])
    world.workers.engine.set_member(MEMBERS[1], 0.3)  # the center's, whoever the engine is
    moved = np.concatenate([(center(world)[n].double() - t.double()).numpy().ravel() for n, t in start.items()])
    whole = np.concatenate([t.double().numpy().ravel() for t in start.values()])
    assert world.drift() == pytest.approx(np.linalg.norm(moved) / np.linalg.norm(whole), rel=1e-12)


def test_a_saved_center_is_taken_up_to_the_bit(world: RealWorld, folder: Path, data: Path, tmp_path: Path) -> None:
    config = config_of(folder, data, decay=0.01)
    for t in (1, 2):
        world.apply_update(es.step(world, config, t).update, config.decay)
    world.save(tmp_path / "2")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "2")
    assert all(torch.equal(dict(model.named_parameters())[n], t) for n, t in center(world).items())
    third = es.step(world, config, 3)
    world.apply_update(third.update, config.decay)

    other = RealWorld(config)
    other.training = world.training
    other.load(tmp_path / "2")
    again = es.step(other, config, 3)
    assert again.update == third.update
    other.apply_update(again.update, config.decay)
    assert same(center(other), center(world))
    assert other.drift() == world.drift() > 0


def test_a_center_of_another_model_is_one_line(world: RealWorld, tiny_folder, tmp_path: Path) -> None:
    before = center(world)
    for bad in (tiny_folder("gpt2"), tmp_path):
        with pytest.raises(InputError, match="is no center of") as raised:
            world.load(bad)
        assert "\n" not in str(raised.value)
    assert same(center(world), before)


# Evaluation and identity


def test_evaluations_are_of_the_center_and_their_own_numbers(world: RealWorld) -> None:
    (train,) = world.evaluate(4, 3)
    assert train.name == "train" and train.ids == tuple(p.id for p in world.training.task.problems[:5])
    world.rewards(MEMBERS, 0.2, PROBLEMS, Decoding("greedy"), 3)
    assert world.evaluate(4, 3)[0].to_dict() == train.to_dict() != world.evaluate(4, 4)[0].to_dict()
    world.apply_update([(MEMBERS[0], 0.2)])
    assert train.entropy_difference(world.evaluate(4, 3)[0]).value != 0


def test_held_out_sets_come_by_name(folder: Path, data: Path) -> None:
    config = config_of(
        folder, data, evaluation_data=str(data), held_out=["arithmetic:1+", "chain"], evaluation_prompts=3
    )
    world = RealWorld(config)
    assert list(world.evaluated) == ["train", "held-out", "arithmetic:1+", "chain"]
    assert world.evaluated["arithmetic:1+"].task.max_tokens == 16


def test_what_a_run_started_from(world: RealWorld, folder: Path, data: Path, tmp_path: Path) -> None:
    base = RealWorld(config_of(folder, data)).identity
    assert base["weights"] == load_checkpoint(folder).fingerprint and base["model"] == str(folder)
    (tmp_path / "other.jsonl").write_text(data.read_text().replace('"answer": "t', '"answer": "no t'))
    for changed in ({"data": str(tmp_path / "other.jsonl")}, {"problems": 7}, {"max_tokens": 5}):
        assert RealWorld(config_of(folder, data, **changed)).identity["problems"] != base["problems"]
    assert json.loads(json.dumps(base)) == base


def test_problems_without_answers_are_refused(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from esth.training import real_world as module

    sets = module.problem_sets(config_of(folder, data))
    blank = tuple(dataclasses.replace(p, answer="") for p in sets.training.problems)
    without = dataclasses.replace(sets, training=dataclasses.replace(sets.training, problems=blank))
    monkeypatch.setattr(module, "problem_sets", lambda config: without)
    with pytest.raises(InputError, match="has no answer"):
        RealWorld(config_of(folder, data))


@pytest.mark.slow
def test_the_same_numbers_from_many_workers(folder: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    config = config_of(folder, data, verifier="number", task="arithmetic", data=None, decay=0.1, max_tokens=8)
    alone, many = RealWorld(config), RealWorld(dataclasses.replace(config, workers=2))
    try:
        for world, where in ((alone, "1"), (many, "2")):
            world.apply_update([(member, 0.01 * i) for i, member in enumerate(MEMBERS)], 0.1)
            world.save(tmp_path / where)
            world.apply_update([(MEMBERS[0], 0.5)])
            world.load(tmp_path / where)
        a, b = (safetensors.load_file(tmp_path / where / "model.safetensors") for where in "12")
        assert same(a, b)
        assert alone.drift() == many.drift() > 0
        for x, y in zip(alone.evaluate(3, 0), many.evaluate(3, 0), strict=True):
            assert x.to_dict() == y.to_dict()
        for kind in (Decoding("greedy"), Decoding("sampled", 2, common=True)):
            x, y = (world.rewards(MEMBERS, SIGMA, PROBLEMS, kind, 1) for world in (alone, many))
            assert x.spent == y.spent and np.array_equal(x.values, y.values)
    finally:
        many.close()


@pytest.mark.slow
def test_the_demo_checkpoint_earns_rewards(demo_checkpoint) -> None:
    config = ESConfig(
        model="demo", task="arithmetic", problems=16, prompts=8, population=2, sigma=1e-3, evaluation_prompts=4
    )
    world = RealWorld(config)
    step = es.step(world, config, 1)
    assert 0 < step.fitness.mean() <= 1
    train, held_out = world.evaluate(4, 0)
    assert train.pass_at(4).value >= train.pass_at(1).value > 0
    assert 0 < held_out.mean_entropy().value < math.log(49152)
    assert not set(train.ids) & set(held_out.ids)
    assert list(itertools.islice(train.ids, 4)) == [p.id for p in world.training.task.problems[:4]]
