"""The batched population against transformers: the engine's scores, samples, updates; plain passes; autograd."""

import dataclasses
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from esth.errors import InputError  # noqa: E402
from esth.models import Response, Sampling, batched, load_checkpoint, load_engine  # noqa: E402
from esth.models.batched import BatchedLlama, Weights  # noqa: E402
from esth.models.checkpoint import Checkpoint  # noqa: E402
from esth.models.stored import StoredWeights  # noqa: E402
from esth.noise import Combination, Keyed, Member, Restricted, population, uniforms  # noqa: E402

KINDS = ("llama", "llama-untied")  # both with two heads to a group
PROMPTS = torch.tensor([[5, 6, 7, 8, 9], [9, 4, 4, 60, 3], [10, 11, 3, 4, 20], [5, 6, 7, 8, 9]])
MEMBERS = population(3, 4, "antithetic")
SIGMA = 0.05

Folder = Callable[[str], Path]


def checkpoint_of(folder: Path, stop_every: int = 12) -> Checkpoint:
    """Every so many tokens one ends a response: a random model rarely says its own."""
    return dataclasses.replace(load_checkpoint(folder), stop_tokens=frozenset(range(2, 61, stop_every)))


@pytest.fixture(params=KINDS)
def checkpoint(request, tiny_folder: Folder) -> Checkpoint:
    return checkpoint_of(tiny_folder(request.param))


def altered(source: Path, folder: Path, **config) -> Path:
    """A random model of another config beside the tokenizer of `source`."""
    shutil.copytree(source, folder)
    changed = transformers.LlamaConfig(**(transformers.LlamaConfig.from_pretrained(source).to_dict() | config))
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(changed)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def random_responses(members: int, n: int, width: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(61, (members, len(PROMPTS), n, width), generator=generator)
    lengths = torch.randint(1, width + 1, tokens.shape[:3], generator=generator)
    return tokens, lengths


def plain_log_softmax(model, tokens: "torch.Tensor", temperature: float = 1.0) -> "torch.Tensor":
    """[P, n, T, V] before every token of [P, n, T] responses to PROMPTS: one pass of each whole, without a cache."""
    whole = torch.cat([PROMPTS[:, None].expand(-1, tokens.shape[1], -1), tokens], dim=2)
    logits = model(whole.flatten(0, 1), use_cache=False).logits[:, PROMPTS.shape[1] - 1 : -1]
    return (logits / temperature).log_softmax(dim=-1).view(*tokens.shape, -1)


def streams(members: list[Member], n: int, width: int, seed: int) -> "torch.Tensor":
    """The numbers that the engine draws from, in its own naming."""
    drawn = [
        [[uniforms("response", seed, *m.key, i, j, count=width) for j in range(n)] for i in range(len(PROMPTS))]
        for m in members
    ]
    return torch.from_numpy(np.array(drawn))


def responses(tokens: "torch.Tensor", lengths: "torch.Tensor", stops: frozenset[int]) -> list[list[Response]]:
    """Of one member, [P, n, T] and [P, n], as the engine has them."""
    said = [
        [tuple(row[:length]) for row, length in zip(rows, ends, strict=True)]
        for rows, ends in zip(tokens.tolist(), lengths.tolist(), strict=True)
    ]
    return [[Response(row, row[-1] not in stops) for row in rows] for rows in said]


def same_bits(a: Weights, b: Weights) -> bool:
    ours, theirs = ([w.embedding, w.head, *(tensor for layer in w.layers for tensor in layer)] for w in (a, b))
    return all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


# The population and its center


def test_members_and_updates_have_the_bits_of_the_engine_s(checkpoint: Checkpoint) -> None:
    model, engine = BatchedLlama(checkpoint), load_engine(checkpoint, device="cpu")
    assert model.center.keys() == engine.parameters.keys()
    for seed, family in enumerate(("gaussian", "antithetic", "rademacher", "low-rank")):
        members = population(seed, 4, family, rank=2)
        moved = frozenset(["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
        directions = [
            *members[:3],
            Keyed(members[3], ("a", 1)),
            Restricted(members[1], moved),
            Combination(((members[0], 0.3), (members[2], -1.7))),
        ]
        weights = model.members(directions, SIGMA)
        for i, direction in enumerate(directions):
            engine.set_member(direction, SIGMA)
            assert same_bits(weights.part(slice(i, i + 1)), model.alone(engine.parameters))
        # Of directions just drawn, of one that was not, in an order that is not theirs.
        update = [(d, 0.01 * (i - 1.3)) for i, d in enumerate([*directions[::-1], Member(99), directions[0]])]
        update.append((StoredWeights.of(checkpoint), 0.1))
        keep = (1.0, 0.9, 0.0, 0.9)[seed]
        engine.apply_update(update, keep)
        model.apply_update(update, keep)
        for name, parameter in engine.parameters.items():
            assert torch.equal(model.center[name], parameter)
            assert model.center[name].is_contiguous()


def test_an_update_does_not_depend_on_what_was_drawn_before(checkpoint: Checkpoint) -> None:
    one, other = BatchedLlama(checkpoint), BatchedLlama(checkpoint)
    one.members(MEMBERS, SIGMA)
    update = [(member, 0.03 / (7 + i)) for i, member in enumerate(MEMBERS)]
    one.apply_update(update)
    other.apply_update(update)
    assert same_bits(one.alone(), other.alone())
    assert not same_bits(one.alone(), BatchedLlama(checkpoint).alone())


@pytest.mark.parametrize("size", [math.nan, math.inf, 1e39])
def test_a_bad_update_leaves_the_center(checkpoint: Checkpoint, size: float) -> None:
    model = BatchedLlama(checkpoint)
    before = model.alone()
    with pytest.raises(InputError) as error:
        model.apply_update([(MEMBERS[0], 0.1), (MEMBERS[1], size)])
    assert "\n" not in str(error.value)
    assert same_bits(model.alone(), before)


# The policy


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_every_member_scores_as_the_engine_does(checkpoint: Checkpoint, temperature: float) -> None:
    model, engine = BatchedLlama(checkpoint), load_engine(checkpoint, device="cpu")
    tokens, lengths = random_responses(len(MEMBERS), 3, 7)
    sampling = Sampling(temperature, 7)
    log_p, entropy = model.log_probabilities(model.members(MEMBERS, SIGMA), PROMPTS[None], tokens, lengths, temperature)
    for i, member in enumerate(MEMBERS):
        engine.set_member(member, SIGMA)
        said = responses(tokens[i], lengths[i], checkpoint.stop_tokens)
        for p, group in enumerate(engine.score(PROMPTS.tolist(), said, sampling)):
            for s, scores in enumerate(group):
                found = log_p[i, p, s]
                np.testing.assert_allclose(found[: len(scores)], scores, rtol=0, atol=3e-5)
                assert (found[len(scores) :] == 0).all() and (entropy[i, p, s, len(scores) :] == 0).all()
        logits = engine.next_token_logits(PROMPTS.tolist(), said, sampling).double()
        expected = -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
        inside = torch.arange(7) < lengths[i][..., None]
        torch.testing.assert_close(entropy[i][inside].double(), expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 30.0}},
        {"head_dim": 6, "rms_norm_eps": 0.3, "num_hidden_layers": 3},
        {"hidden_size": 48, "intermediate_size": 20, "num_attention_heads": 6, "tie_word_embeddings": False},
    ],
    ids=["a key for each head", "one key for all", "narrow heads", "untied"],
)
def test_any_plain_llama_is_what_transformers_computes(tiny_folder: Folder, tmp_path: Path, config: dict) -> None:
    folder = altered(tiny_folder("llama"), tmp_path / "m", **config)
    model = BatchedLlama(checkpoint_of(folder))
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens, lengths = random_responses(1, 2, 20)
    lengths.fill_(20)
    log_p, _ = model.log_probabilities(model.alone(), PROMPTS[None], tokens, lengths)
    with torch.no_grad():
        expected = plain_log_softmax(reference, tokens[0]).gather(-1, tokens[0][..., None])[..., 0]
    torch.testing.assert_close(log_p[0], expected, rtol=0, atol=5e-5)
    greedy = model.generate(model.alone(), PROMPTS[None], max_tokens=20)
    with torch.no_grad():
        best = plain_log_softmax(reference, greedy.tokens[0]).argmax(dim=-1)
    inside = torch.arange(20) < greedy.lengths[..., None]
    assert torch.equal(greedy.tokens[inside], best[None][inside])


@pytest.mark.parametrize("temperature", [0.8, 1.5])
def test_the_same_numbers_draw_the_engine_s_responses(checkpoint: Checkpoint, temperature: float) -> None:
    model, engine = BatchedLlama(checkpoint), load_engine(checkpoint, device="cpu")
    numbers = streams(MEMBERS, 3, 10, seed=7)
    said = model.generate(
        model.members(MEMBERS, SIGMA), PROMPTS[None], 3, max_tokens=10, uniforms=numbers, temperature=temperature
    )
    ends = set()
    for i, member in enumerate(MEMBERS):
        engine.set_member(member, SIGMA)
        expected = engine.sample(PROMPTS.tolist(), 3, Sampling(temperature, 10), seed=7)
        assert responses(said.tokens[i], said.lengths[i], checkpoint.stop_tokens) == expected
        assert said.truncated[i].tolist() == [[response.truncated for response in group] for group in expected]
        ends |= {(len(r.tokens), r.truncated) for group in expected for r in group}
    assert len(ends) > 4 and (10, True) in ends
    assert (said.tokens.masked_fill(torch.arange(10) < said.lengths[..., None], 0) == 0).all()


def test_greedy_is_the_engine_s(checkpoint: Checkpoint) -> None:
    model, engine = BatchedLlama(checkpoint), load_engine(checkpoint, device="cpu")
    said = model.generate(model.members(MEMBERS, SIGMA), PROMPTS[None], 2, max_tokens=12, temperature=0.5)
    for i, member in enumerate(MEMBERS):
        engine.set_member(member, SIGMA)
        expected = engine.sample(PROMPTS.tolist(), 2, Sampling(0.0, 12), seed=0)
        assert responses(said.tokens[i], said.lengths[i], checkpoint.stop_tokens) == expected


def test_a_token_without_mass_is_never_drawn(checkpoint: Checkpoint) -> None:
    """At a temperature where all but the best underflow, the number 0 too draws the best, as the engine's draw does."""
    model = BatchedLlama(checkpoint)
    weights = model.members(MEMBERS, SIGMA)
    greedy = model.generate(weights, PROMPTS[None], max_tokens=6)
    cold = {"max_tokens": 6, "temperature": 1e-5}
    for number in (0.0, 1 - 2.0**-51):
        numbers = torch.full((len(MEMBERS), len(PROMPTS), 1, 6), number, dtype=torch.float64)
        said = model.generate(weights, PROMPTS[None], uniforms=numbers, **cold)
        assert torch.equal(said.tokens, greedy.tokens)
        assert (said.entropy.abs() < 1e-6).all()


@pytest.mark.parametrize("greedy", [False, True])
def test_entropy_is_summed_over_the_response_at_the_policy_s_temperature(checkpoint: Checkpoint, greedy: bool) -> None:
    model = BatchedLlama(checkpoint)
    numbers = None if greedy else streams(MEMBERS, 2, 10, seed=1)
    weights = model.members(MEMBERS, SIGMA)
    said = model.generate(weights, PROMPTS[None], 2, max_tokens=10, uniforms=numbers, temperature=1.4)
    assert said.entropy.dtype == torch.float64
    _, entropy = model.log_probabilities(weights, PROMPTS[None], said.tokens, said.lengths, 1.4)
    torch.testing.assert_close(said.entropy, entropy.double().sum(dim=-1), rtol=0, atol=1e-4)
    engine = load_engine(checkpoint, device="cpu")
    engine.set_member(MEMBERS[2], SIGMA)
    first = responses(said.tokens[2], said.lengths[2], checkpoint.stop_tokens)[0][:1]
    logits = engine.next_token_logits(PROMPTS[:1].tolist(), [first], Sampling(1.4, 10)).double()
    expected = -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum()
    assert float(said.entropy[2, 0, 0]) == pytest.approx(float(expected), abs=1e-4)


def test_each_member_may_have_prompts_of_its_own(checkpoint: Checkpoint) -> None:
    model = BatchedLlama(checkpoint)
    weights = model.members(MEMBERS[:2], SIGMA)
    prompts = torch.stack([PROMPTS, PROMPTS.flip(0)])
    numbers = streams(MEMBERS[:2], 2, 6, seed=2)
    said = model.generate(weights, prompts, 2, max_tokens=6, uniforms=numbers)
    log_p, _ = model.log_probabilities(weights, prompts, said.tokens, said.lengths)
    for i in range(2):
        part = weights.part(slice(i, i + 1))
        own = model.generate(part, prompts[i : i + 1], 2, max_tokens=6, uniforms=numbers[i : i + 1])
        assert torch.equal(said.tokens[i], own.tokens[0]) and torch.equal(said.lengths[i], own.lengths[0])
        alone, _ = model.log_probabilities(part, prompts[i : i + 1], own.tokens, own.lengths)
        torch.testing.assert_close(log_p[i], alone[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("block", [1, 5, 7, 24, 1000])
def test_responses_do_not_depend_on_what_is_generated_beside_them(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    model = BatchedLlama(checkpoint)
    weights = model.members(MEMBERS, SIGMA)
    numbers = streams(MEMBERS, 3, 8, seed=5)

    def run():
        return model.generate(weights, PROMPTS[None], 3, max_tokens=8, uniforms=numbers)

    whole = run()
    monkeypatch.setattr(batched, "BLOCK", block)
    parts = run()
    assert torch.equal(parts.tokens, whole.tokens) and torch.equal(parts.lengths, whole.lengths)
    torch.testing.assert_close(parts.entropy, whole.entropy, rtol=0, atol=1e-4)


def test_results_are_the_same_to_the_bit_on_any_number_of_threads(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "BLOCK", 6)
    threads = torch.get_num_threads()
    found = []
    for count in (1, 1, 3):
        torch.set_num_threads(count)
        try:
            model = BatchedLlama(checkpoint)
            weights = model.members(MEMBERS, SIGMA)
            said = model.generate(weights, PROMPTS[None], 3, max_tokens=8, uniforms=streams(MEMBERS, 3, 8, seed=5))
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(threads)
        found.append(said)
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))


def test_scores_are_deterministic_to_the_bit(checkpoint: Checkpoint) -> None:
    model = BatchedLlama(checkpoint)
    tokens, lengths = random_responses(1, 3, 7)

    def run() -> list["torch.Tensor"]:
        theta = {name: tensor.clone().requires_grad_() for name, tensor in model.center.items()}
        log_p, entropy = model.log_probabilities(model.alone(theta), PROMPTS[None], tokens, lengths)
        (log_p.sum() + entropy.sum()).backward()
        return [log_p, entropy, *(tensor.grad for tensor in theta.values())]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_gradients_are_those_through_transformers(checkpoint: Checkpoint) -> None:
    """Of a function of both outputs, in which every token and every entropy has a weight of its own."""
    model, engine = BatchedLlama(checkpoint), load_engine(checkpoint, device="cpu")
    tokens, lengths = random_responses(1, 3, 6)
    a, b = torch.randn(2, *tokens.shape, generator=torch.Generator().manual_seed(2))
    theta = {name: tensor.clone().requires_grad_() for name, tensor in model.center.items()}
    log_p, entropy = model.log_probabilities(model.alone(theta), PROMPTS[None], tokens, lengths, 1.3)
    (a * log_p + b * entropy).sum().backward()

    engine.model.requires_grad_(True)
    every = plain_log_softmax(engine.model, tokens[0], 1.3)
    chosen = every.gather(-1, tokens[0][..., None])[..., 0]
    spread = -(every.exp() * every).sum(dim=-1)
    ((a[0] * chosen + b[0] * spread) * (torch.arange(6) < lengths[0][..., None])).sum().backward()
    for name, parameter in engine.parameters.items():
        scale = float(parameter.grad.abs().max())
        assert scale > 0.1
        torch.testing.assert_close(theta[name].grad, parameter.grad, rtol=0, atol=2e-5 * max(scale, 1))


def test_a_prompt_of_one_token(checkpoint: Checkpoint) -> None:
    model, engine = BatchedLlama(checkpoint), load_engine(checkpoint, device="cpu")
    said = model.generate(model.alone(), torch.tensor([[[7]]]), max_tokens=5)
    log_p, _ = model.log_probabilities(model.alone(), torch.tensor([[[7]]]), said.tokens, said.lengths)
    group = responses(said.tokens[0], said.lengths[0], checkpoint.stop_tokens)
    assert group == engine.sample([[7]], 1, Sampling(0.0, 5), seed=0)
    np.testing.assert_allclose(
        log_p[0, 0, 0, : int(said.lengths)], engine.score([[7]], group, Sampling())[0][0], rtol=0, atol=3e-5
    )


# Folders


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_center_loads_everywhere_with_the_same_bits(tiny_folder: Folder, tmp_path: Path, kind: str) -> None:
    """From a checkpoint in 16 bits, whose config must not have the float32 weights rounded."""
    source = Path(shutil.copytree(tiny_folder(kind), tmp_path / "bf16"))
    transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(source)
    model = BatchedLlama(load_checkpoint(source))
    model.apply_update([(MEMBERS[0], 0.01)])
    model.save(tmp_path / "new" / "folder")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "folder")
    assert loaded.dtype == torch.float32
    for name, tensor in loaded.named_parameters():
        assert torch.equal(tensor, model.center[name])
    again = BatchedLlama(load_checkpoint(tmp_path / "new" / "folder"))
    assert same_bits(again.alone(), model.alone())
    assert again.checkpoint.encode("t5 t6") == model.checkpoint.encode("t5 t6") == [5, 6]
    assert again.checkpoint.stop_tokens == model.checkpoint.stop_tokens


def test_other_architectures_are_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    for kind in ("qwen2", "gpt2", "mistral"):
        with pytest.raises(InputError, match="needs a llama"):
            BatchedLlama(load_checkpoint(tiny_folder(kind)))
    for i, (config, message) in enumerate(
        [
            ({"attention_bias": True}, "biases"),
            ({"mlp_bias": True}, "biases"),
            ({"hidden_act": "gelu"}, "activation gelu"),
            (
                {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
                "positions of type linear",
            ),
        ]
    ):
        folder = altered(tiny_folder("llama"), tmp_path / str(i), **config)
        with pytest.raises(InputError, match=message) as error:
            BatchedLlama(load_checkpoint(folder))
        assert "\n" not in str(error.value)


def test_weights_that_do_not_fit_the_config_are_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(tiny_folder("llama"), tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    for spoiled, found in (({name: weights[name][:-1]}, r"\[31, 32\]"), ({}, "no such tensor")):
        rest = {other: tensor for other, tensor in weights.items() if other != name}
        save_file(rest | spoiled, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(InputError, match=rf"q_proj.weight must have shape \[32, 32\], found .*{found}"):
            BatchedLlama(load_checkpoint(folder))


@pytest.fixture(scope="module")
def model(tiny_folder: Folder) -> BatchedLlama:
    return BatchedLlama(checkpoint_of(tiny_folder("llama")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": PROMPTS}, "prompts must be"),
        ({"prompts": PROMPTS[None].expand(3, -1, -1)}, r"\[1 or 2, P, L\]"),
        ({"prompts": PROMPTS[None, :, :0]}, "prompts must be"),
        ({"prompts": PROMPTS[None] + 5}, r"outside 0\.\.60"),
        ({"prompts": PROMPTS[None] - 6}, r"outside 0\.\.60"),
        ({"prompts": PROMPTS[None].double()}, "int64"),
        ({"n": 0}, "must be positive"),
        ({"max_tokens": 0}, "must be positive"),
        ({"max_tokens": 124}, r"5 \+ 124 tokens exceed the model's context of 128"),
        ({"uniforms": torch.zeros(2, 4, 1, 3, dtype=torch.float64)}, "shape of uniforms"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
    ],
)
def test_bad_requests_are_refused(model: BatchedLlama, options: dict, message: str) -> None:
    weights = model.members(MEMBERS[:2], SIGMA)
    prompts = options.get("prompts", PROMPTS[None])
    rest = {"max_tokens": 4} | {name: value for name, value in options.items() if name != "prompts"}
    with pytest.raises(InputError, match=message) as error:
        model.generate(weights, prompts, **rest)
    assert "\n" not in str(error.value)


def test_bad_scoring_and_bad_members_are_refused(model: BatchedLlama) -> None:
    tokens, lengths = random_responses(1, 2, 6)
    for bad_tokens, bad_lengths, message in (
        (tokens, lengths[:, :, :1], "must be"),
        (tokens[:, :2], lengths[:, :2], "must be"),
        (tokens, lengths * 0, r"lengths must be in 1\.\.6"),
        (tokens, lengths + 6, r"lengths must be in 1\.\.6"),
        (tokens + 40, lengths, r"outside 0\.\.60"),
    ):
        with pytest.raises(InputError, match=message):
            model.log_probabilities(model.alone(), PROMPTS[None], bad_tokens, bad_lengths)
    for directions, sigma in (([], 0.1), (MEMBERS, -0.1), (MEMBERS, math.nan), (MEMBERS, math.inf)):
        with pytest.raises(InputError, match="members need"):
            model.members(directions, sigma)
    name = "model.norm.weight"
    for parameters in (
        {other: t for other, t in model.center.items() if other != name},
        model.center | {name: torch.ones(3)},
        model.center | {"more": torch.ones(3)},
    ):
        with pytest.raises(InputError, match="in the center"):
            model.alone(parameters)
    with pytest.raises(InputError, match="not finite"):
        model.generate(model.members(MEMBERS, 1e38), PROMPTS[None], max_tokens=3)
