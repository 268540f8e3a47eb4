"""The vLLM engine beside the transformers engine, always with perturbed weights: old ones are what goes wrong silently.

Its own environment (README): vLLM pins more than the rest of the package allows.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import math
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed: README says how to run these", allow_module_level=True)

import torch
import transformers

from esth.errors import InputError
from esth.models import Checkpoint, Response, Sampling, load_checkpoint, load_engine
from esth.models import vllm_engine as module
from esth.models.saving import save_center
from esth.models.stored import StoredWeights, read_arrays
from esth.models.transformers_engine import TransformersEngine
from esth.models.vllm_engine import VLLMEngine
from esth.models.workers import Local
from esth.noise import Member, Restricted, parameter_noise, population

KINDS = ("llama", "llama-untied", "qwen2")
MEMBERS = population(3, 3)
LONG = [3 + (7 * i * i + i // 5) % 58 for i in range(300)]  # vLLM's blocks have 32 tokens
PROMPTS = [[5, 6, 7, 8], [9], LONG, [10, 11, 3, 4, 20, 21, 22, 30, 31], LONG[:290] + [4] * 10, [5, 6, 7, 8]]
SHORT = [PROMPTS[0], PROMPTS[1], PROMPTS[3]]


@pytest.fixture(scope="session")
def long_folder(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny models, with heads of 32 (vLLM has no smaller ones) and room for 512 tokens."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("vllm") / kind
            shutil.copytree(tiny_folder(kind), made[kind])
            config = transformers.AutoConfig.from_pretrained(made[kind])
            config.update({"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32})
            config.update({"max_position_embeddings": 512, "initializer_range": 0.2})
            torch.manual_seed(1)
            model = transformers.AutoModelForCausalLM.from_config(config)
            for parameter in model.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            model.save_pretrained(made[kind])
        return made[kind]

    return folder


def checkpoint_of(folder: Path) -> Checkpoint:
    """Every twelfth token ends a response: a random model rarely says its own."""
    return dataclasses.replace(load_checkpoint(folder), stop_tokens=frozenset(range(2, 61, 12)))


@contextlib.contextmanager
def engine_of(checkpoint: Checkpoint, **options) -> Iterator[VLLMEngine]:
    options = {"kv_cache_memory_bytes": 1 << 25} | options
    engine = load_engine(checkpoint, "vllm", **options)
    assert isinstance(engine, VLLMEngine)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def kept(long_folder: Callable[[str], Path]) -> Iterator[Callable[[str], VLLMEngine]]:
    with contextlib.ExitStack() as stack:
        engines: dict[str, VLLMEngine] = {}

        def engine(kind: str) -> VLLMEngine:
            if kind not in engines:
                engines[kind] = stack.enter_context(engine_of(checkpoint_of(long_folder(kind))))
            return engines[kind]

        yield engine


@pytest.fixture
def engine(request: pytest.FixtureRequest, kept: Callable[[str], VLLMEngine]) -> Iterator[VLLMEngine]:
    """Of the kind the test names, or the tied Llama; the center is never moved."""
    engine = kept(getattr(request, "param", "llama"))
    engine.restore()
    yield engine


@pytest.fixture
def reference(engine: VLLMEngine) -> TransformersEngine:
    return plain(engine.checkpoint)


def plain(checkpoint: Checkpoint, **options) -> TransformersEngine:
    engine = load_engine(checkpoint, device="cpu", **options)
    assert isinstance(engine, TransformersEngine)
    return engine


def set_members(engines: tuple, member, sigma: float) -> None:
    for engine in engines:
        engine.set_member(member, sigma)


def bits(engine: VLLMEngine) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone().view(torch.uint8) for name, p in engine.model.named_parameters()}


def same_bits(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def flat(scores: list[list[np.ndarray]]) -> np.ndarray:
    return np.concatenate([score for group in scores for score in group])


def log_p(engine, prompts, responses, sampling: Sampling) -> torch.Tensor:
    return engine.next_token_logits(prompts, responses, sampling).double().log_softmax(dim=1)


# Members

each_kind = pytest.mark.parametrize("engine", KINDS, indirect=True)


@each_kind
@pytest.mark.parametrize("sampling", [Sampling(0.7, 6), Sampling(1.3, 6, top_k=5), Sampling(0.9, 6, top_p=0.8)])
def test_members_score_as_on_transformers(
    engine: VLLMEngine, reference: TransformersEngine, sampling: Sampling
) -> None:
    """The same prompts with one member after the other: a cache or a packed weight of the last one would show."""
    before = None
    for member, sigma in zip(MEMBERS, (0.02, 0.1, 0.05), strict=True):
        set_members((engine, reference), member, sigma)
        responses = engine.sample(PROMPTS, 3, sampling, seed=1)
        ends = [[t in engine.checkpoint.stop_tokens for t in r.tokens] for group in responses for r in group]
        assert all(sum(end) == end[-1] for end in ends)
        assert [not end[-1] for end in ends] == [r.truncated for group in responses for r in group]
        assert len({len(end) for end in ends}) > 2
        scores = flat(engine.score(PROMPTS, responses, sampling))
        np.testing.assert_allclose(scores, flat(reference.score(PROMPTS, responses, sampling)), rtol=0, atol=1e-4)
        ours, theirs = (log_p(e, PROMPTS, responses, sampling) for e in (engine, reference))
        assert torch.equal(ours.isneginf(), theirs.isneginf())
        torch.testing.assert_close(ours.exp(), theirs.exp(), rtol=0, atol=1e-4)
        tokens = torch.tensor([t for group in responses for r in group for t in r.tokens])
        np.testing.assert_allclose(ours[range(len(tokens)), tokens], scores, rtol=0, atol=1e-4)
        fixed = [[Response((7, 8, 9, 10), True)]] * len(PROMPTS)
        now = log_p(engine, PROMPTS, fixed, Sampling())
        assert before is None or ((now - before).abs().amax(dim=1) > 0.05).all()
        before = now


@each_kind
def test_every_parameter_alone_moves_what_it_moves_on_transformers(
    engine: VLLMEngine, reference: TransformersEngine
) -> None:
    prompts, responses = [PROMPTS[3], LONG], [[Response((12, 13, 14, 15), True)]] * 2
    center = log_p(engine, prompts, responses, Sampling())
    torch.testing.assert_close(center, log_p(reference, prompts, responses, Sampling()), rtol=0, atol=1e-4)
    for name in reference.parameters:
        set_members((engine, reference), Restricted(MEMBERS[0], frozenset([name])), 0.2)
        moved = log_p(engine, prompts, responses, Sampling())
        assert (moved - center).abs().max() > 2e-3, name
        torch.testing.assert_close(moved, log_p(reference, prompts, responses, Sampling()), rtol=0, atol=1e-4, msg=name)


def assert_same_weights(engine: VLLMEngine, reference: TransformersEngine) -> None:
    """What vLLM multiplies by, bit for bit: its fused parameters are those of transformers, one below the other."""
    fused = engine.model.packed_modules_mapping
    theirs = dict(reference.model.named_parameters())
    for name, ours in engine.model.named_parameters():
        path, layer, kind = name.rsplit(".", 2) if name.count(".") > 1 else ("", *name.split("."))
        parts = [theirs[".".join(filter(None, (path, part, kind)))] for part in fused.get(layer, [layer])]
        assert torch.equal(ours[: sum(map(len, parts))], torch.cat(parts)), name


@each_kind
@pytest.mark.parametrize("member", [Member(17, -1), Member(5, family="rademacher"), Member(6, 1, "low-rank", 2)])
def test_members_have_the_weights_of_transformers(
    engine: VLLMEngine, reference: TransformersEngine, member: Member
) -> None:
    set_members((engine, reference), member, 0.03)
    assert_same_weights(engine, reference)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hundred_members_leave_no_trace(long_folder: Callable[[str], Path], dtype: str) -> None:
    checkpoint = checkpoint_of(long_folder("qwen2"))
    responses = [[Response((7, 8, 9, 10), True)]] * len(PROMPTS)
    with engine_of(checkpoint, dtype=dtype) as engine:
        assert {p.dtype for p in engine.model.parameters()} == {getattr(torch, dtype)}
        before = bits(engine)
        scores = flat(engine.score(PROMPTS, responses, Sampling()))
        for i, member in enumerate(population(0, 100)):
            engine.set_member(member, 10.0 ** (-i % 3 - 1))
            assert not same_bits(bits(engine), before)
            if i % 3 == 0:
                engine.restore()
                assert same_bits(bits(engine), before)
        engine.restore()
        assert same_bits(bits(engine), before)
        assert np.array_equal(flat(engine.score(PROMPTS, responses, Sampling())), scores)


def test_an_interrupted_change_leaves_the_center(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bits(engine)
    center = engine.sample(SHORT, 2, Sampling(), seed=0)
    calls = itertools.count()

    def noise(*arguments, **options):
        if next(calls) == 7:
            raise KeyboardInterrupt
        return parameter_noise(*arguments, **options)

    monkeypatch.setattr("esth.noise.parameter_noise", noise)
    for change in (
        lambda: engine.set_member(MEMBERS[0], 0.1),
        lambda: engine.apply_update([(MEMBERS[0], 0.1)]),
    ):
        engine.set_member(Restricted(MEMBERS[1], frozenset()), 0.1)
        calls = itertools.count()
        with pytest.raises(KeyboardInterrupt):
            change()
        assert same_bits(bits(engine), before)
        assert engine.sample(SHORT, 2, Sampling(), seed=0) == center


# Updates


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_moves_the_center_of_every_engine_alike(
    long_folder: Callable[[str], Path], tmp_path: Path, dtype: str
) -> None:
    checkpoint = checkpoint_of(long_folder("llama"))
    reference = plain(checkpoint, dtype=dtype)
    with engine_of(checkpoint, dtype=dtype) as engine:
        for seed in range(2):
            update = [(member, 0.02 * (i - 0.7)) for i, member in enumerate(population(seed, 3))]
            for either in (engine, reference):
                either.set_member(update[0][0], 0.1)  # members of the past are no part of it
                either.apply_update(update)
            assert_same_weights(engine, reference)
        save_center(Local(engine), tmp_path / "saved")
        update = [(MEMBERS[0], 0.1), (StoredWeights.of(checkpoint), 0.25)]
        for either in (engine, reference):
            either.apply_update(update, keep=0.75)
        assert_same_weights(engine, reference)
        decayed = bits(engine)
        for either in (engine, reference):
            either.set_member(MEMBERS[2], 0.1)
            either.load_center(read_arrays(tmp_path / "saved"))
        assert_same_weights(engine, reference)
        center = bits(engine)
        assert not same_bits(center, decayed)
        with pytest.raises(InputError, match="are not there"):
            engine.load_center({})
        assert same_bits(bits(engine), center)
        assert engine.center.keys() == reference.center.keys()
        assert all(torch.equal(engine.center[name], tensor) for name, tensor in reference.center.items())
        set_members((engine, reference), MEMBERS[1], 0.01)
        assert_same_weights(engine, reference)
        if dtype == "float32":
            responses = engine.sample(PROMPTS, 2, Sampling(), seed=0)
            scores = (flat(either.score(PROMPTS, responses, Sampling())) for either in (engine, reference))
            np.testing.assert_allclose(*scores, rtol=0, atol=1e-4)
        engine.restore()
        assert same_bits(bits(engine), center)


@pytest.mark.parametrize(
    "change",
    [
        lambda engine: engine.set_member(MEMBERS[0], -0.1),
        lambda engine: engine.set_member(MEMBERS[0], math.nan),
        lambda engine: engine.apply_update([(MEMBERS[0], 0.1), (MEMBERS[1], math.inf)]),
    ],
)
def test_bad_changes_are_refused_and_change_nothing(engine: VLLMEngine, change) -> None:
    before = bits(engine)
    with pytest.raises(InputError):
        change(engine)
    assert same_bits(bits(engine), before)


# Sampling and scoring


def all_responses(engine: TransformersEngine, prompt: list[int], sampling: Sampling) -> dict[Response, float]:
    """Every possible response and its log-probability."""
    found: dict[Response, float] = {}
    unfinished: dict[tuple[int, ...], float] = {(): 0.0}
    for length in range(1, sampling.max_tokens + 1):
        longer: dict[tuple[int, ...], float] = {}
        for said, total in unfinished.items():
            row = log_p(engine, [prompt], [[Response((*said, 0), True)]], sampling)[-1]
            for token in row.isfinite().nonzero()[:, 0].tolist():
                tokens, so_far = (*said, token), total + float(row[token])
                stopped = token in engine.checkpoint.stop_tokens
                if stopped or length == sampling.max_tokens:
                    found[Response(tokens, truncated=not stopped)] = so_far
                else:
                    longer[tokens] = so_far
        unfinished = longer
    return found


@pytest.mark.parametrize(
    "sampling", [Sampling(1.5, 3, top_k=4), Sampling(2.0, 2, top_p=0.9), Sampling(2.0, 2, top_k=30, top_p=0.5)]
)
def test_samples_follow_the_distribution_of_transformers(
    engine: VLLMEngine, reference: TransformersEngine, sampling: Sampling
) -> None:
    n = 2000
    set_members((engine, reference), MEMBERS[0], 0.05)
    outcomes = all_responses(reference, PROMPTS[0], sampling)
    assert math.fsum(map(math.exp, outcomes.values())) == pytest.approx(1, abs=1e-9)
    assert len({response.truncated for response in outcomes}) == 2
    drawn = engine.sample(PROMPTS[:1], n, sampling, seed=0)[0]
    assert set(drawn) <= outcomes.keys()
    expected = np.array([n * math.exp(total) for total in outcomes.values()])
    counts = np.array([drawn.count(response) for response in outcomes])
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        counts = np.append(counts[~rare], counts[rare].sum())
    assert len(expected) > 8
    assert stats.chisquare(counts, expected * n / expected.sum()).pvalue > 1e-3


@each_kind
def test_temperature_0_is_the_greedy_policy_of_transformers(engine: VLLMEngine, reference: TransformersEngine) -> None:
    greedy = Sampling(0.0, 8)
    for member in MEMBERS:
        set_members((engine, reference), member, 0.05)
        responses = engine.sample(PROMPTS, 2, greedy, seed=0)
        assert responses == reference.sample(PROMPTS, 2, greedy, seed=0)
        assert (flat(engine.score(PROMPTS, responses, greedy)) == 0).all()
    wrong = Response(((responses[0][0].tokens[0] + 1) % 61,), truncated=True)
    assert engine.score(PROMPTS[:1], [[wrong]], greedy)[0][0] == [-math.inf]


def test_samples_do_not_depend_on_the_batch_or_on_what_came_before(engine: VLLMEngine) -> None:
    sampling = Sampling(1.0, 8)
    engine.set_member(MEMBERS[0], 0.02)
    drawn = engine.sample(PROMPTS, 6, sampling, seed=4)
    engine.set_member(MEMBERS[1], 0.02)
    other = engine.sample(PROMPTS, 6, sampling, seed=4)
    assert other != drawn
    engine.set_member(MEMBERS[0], 0.02)
    assert engine.sample(PROMPTS, 6, sampling, seed=4) == drawn
    shares = [engine.sample([PROMPTS[i]], 6, sampling, seed=4, prompt_ids=[i])[0] for i in (3, 1, 0, 2)]
    assert [shares[2], shares[1], shares[3], shares[0]] == drawn[:4]
    later = engine.sample(PROMPTS, 2, sampling, seed=4, first_sample=4)
    assert later == [group[4:] for group in drawn]


def test_streams_differ_by_seed_member_prompt_and_sample(engine: VLLMEngine) -> None:
    sampling = Sampling(2.0, 8)
    engine.checkpoint, checkpoint = dataclasses.replace(engine.checkpoint, stop_tokens=frozenset()), engine.checkpoint
    drawn = []
    for member in (None, *population(0, 2, "antithetic"), *population(1, 2)):
        if member is not None:
            engine.set_member(member, 0.0)
        for seed in (0, 1):
            drawn += engine.sample([PROMPTS[0], PROMPTS[0]], 2, sampling, seed=seed)
    engine.checkpoint = checkpoint
    said = [response.tokens for group in drawn for response in group]
    assert all(len(tokens) == 8 for tokens in said)
    assert len(set(said)) == len(said) == 5 * 2 * 2 * 2


def test_responses_that_begin_alike_are_scored_as_on_transformers(
    engine: VLLMEngine, reference: TransformersEngine
) -> None:
    """Beyond the prompt they share cached blocks, of which vLLM computes no hidden states."""
    set_members((engine, reference), MEMBERS[2], 0.05)
    prompts = [LONG[:40], LONG[:31], LONG[:32], LONG[:33]]
    said = tuple(LONG[100:180])
    responses = [[Response(said[:n], True) for n in (80, 60, 1, 80, 33)] + [Response((*said[:40], 5), True)]] * 4
    scores = flat(engine.score(prompts, responses, Sampling()))
    np.testing.assert_allclose(scores, flat(reference.score(prompts, responses, Sampling())), rtol=0, atol=1e-4)


def test_a_prompt_is_read_once_for_its_responses(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[int] = []
    forward = engine.model.forward

    def counted(input_ids, *arguments, **options):
        tokens.append(len(input_ids))
        return forward(input_ids, *arguments, **options)

    monkeypatch.setattr(engine.model, "forward", counted)
    prompt = LONG[:97]  # three blocks and one token
    engine.score([prompt], [[Response((i, i + 1), True) for i in range(3, 12)]], Sampling())
    assert sum(tokens) == 97 + 1 + 8 * 2
    tokens.clear()
    engine.sample([prompt], 9, Sampling(1.0, 1), seed=0)
    assert sum(tokens) == 97 + 8


def test_scores_do_not_depend_on_the_memory_they_may_take(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.set_member(MEMBERS[0], 0.05)
    responses = engine.sample(PROMPTS, 3, Sampling(1.0, 8), seed=0)
    responses[1] = []  # a prompt without responses
    scores = flat(engine.score(PROMPTS, responses, Sampling()))
    sizes: list[int] = []
    compute = engine.model.compute_logits
    monkeypatch.setattr(module, "policy_logits", lambda logits, sampling: sizes.append(len(logits)) or logits)
    monkeypatch.setattr(engine, "block_bytes", 4 * 61 * 5)
    np.testing.assert_allclose(flat(engine.score(PROMPTS, responses, Sampling())), scores, rtol=0, atol=1e-5)
    assert max(sizes) == 5 and sum(sizes) == len(scores)
    assert compute is engine.model.compute_logits
    assert engine.score([], [], Sampling()) == [] and engine.next_token_logits([[5]], [[]], Sampling()).shape == (0, 61)


def test_the_checkpoint_s_own_generation_defaults_do_not_change_the_policy(engine: VLLMEngine, tmp_path: Path) -> None:
    folder = shutil.copytree(engine.checkpoint.folder, tmp_path / "m")
    transformers.GenerationConfig(
        do_sample=True, top_k=2, temperature=0.1, repetition_penalty=3.0, max_new_tokens=2, eos_token_id=[2, 40]
    ).save_pretrained(folder)
    checkpoint = load_checkpoint(folder)
    assert checkpoint.stop_tokens == {2, 40}
    with engine_of(dataclasses.replace(checkpoint, stop_tokens=engine.checkpoint.stop_tokens)) as chatty:
        assert chatty.sample(PROMPTS, 8, Sampling(1.0, 8), seed=0) == engine.sample(
            PROMPTS, 8, Sampling(1.0, 8), seed=0
        )


# Bad input


def test_bad_input_to_the_policy(engine: VLLMEngine) -> None:
    sampling = Sampling(1.0, 8)
    with pytest.raises(InputError, match="prompt 1 is empty"):
        engine.sample([[5], []], 1, sampling, seed=0)
    with pytest.raises(InputError, match=r"505 \+ 8 tokens exceed the model's context of 512"):
        engine.sample([[5] * 505], 1, sampling, seed=0)
    engine.sample([[5] * 504], 1, sampling, seed=0)
    with pytest.raises(InputError, match=r"505 \+ 8 tokens exceed the model's context of 512"):
        engine.score([[5] * 505], [[Response((3,) * 8, True)]], sampling)
    engine.score([[5] * 504], [[Response((3,) * 8, True)]], sampling)
    for outside in ([5, 61], [-1]):
        with pytest.raises(InputError, match=r"outside 0\.\.60"):
            engine.sample([outside], 1, sampling, seed=0)
        with pytest.raises(InputError, match=r"outside 0\.\.60"):
            engine.score([[5]], [[Response(tuple(outside), True)]], sampling)
    with pytest.raises(InputError, match="a response to prompt 1 is empty"):
        engine.score([[5], [6]], [[], [Response((), True)]], sampling)
    with pytest.raises(InputError, match="n must be"):
        engine.sample([[5]], 0, sampling, seed=0)
    with pytest.raises(InputError, match="id"):
        engine.sample([[5]], 1, sampling, seed=0, prompt_ids=[1, 2])
    with pytest.raises(InputError, match="1 groups of responses for 2 prompts"):
        engine.score([[5], [6]], [[]], sampling)
    for temperature in (0.005, 2.5):  # vLLM would sample at 0.01; vLLM does not take it
        with pytest.raises(InputError, match=r"0\.01 to 2\.0"):
            engine.sample([[5]], 1, Sampling(temperature), seed=0)


def test_overflow_is_an_error_not_a_number_and_leaves_nothing_behind(engine: VLLMEngine) -> None:
    responses = [[Response((7, 8, 9, 10), True)]] * len(PROMPTS)
    burst = Restricted(Member(5, family="rademacher"), frozenset(["model.layers.0.mlp.down_proj.weight"]))
    engine.set_member(MEMBERS[0], 0.01)
    before = flat(engine.score(PROMPTS, responses, Sampling()))
    for use in (
        lambda: engine.sample(PROMPTS, 4, Sampling(), seed=0),
        lambda: engine.score(PROMPTS, responses, Sampling()),
        lambda: engine.next_token_logits(PROMPTS, responses, Sampling()),
    ):
        engine.set_member(burst, 3e38)
        with pytest.raises(InputError, match="not finite"):
            use()
        engine.set_member(MEMBERS[0], 0.01)
        assert np.array_equal(flat(engine.score(PROMPTS, responses, Sampling())), before)


def test_an_interrupted_call_leaves_nothing_behind(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(1.0, 8)
    engine.set_member(MEMBERS[0], 0.02)
    drawn = engine.sample(PROMPTS, 4, sampling, seed=0)
    calls = itertools.count()
    compute = engine.model.compute_logits

    def interrupted(hidden):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return compute(hidden)

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "compute_logits", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.sample(PROMPTS, 4, sampling, seed=0)
    assert next(calls) == 4
    assert engine.sample(PROMPTS, 4, sampling, seed=0) == drawn


def test_a_parameter_that_would_stay_as_it_was_is_refused(
    long_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_of(long_folder("llama"))
    stored = module._stored
    for lost, named in (
        ("model.layers.1.self_attn.k_proj.weight", r"model\.layers\.1\.self_attn\.qkv_proj\.weight"),
        ("model.norm.weight", r"model\.norm\.weight"),
    ):

        def without(checkpoint: Checkpoint, dtype: torch.dtype, lost: str = lost) -> dict[str, torch.Tensor]:
            return {name: tensor for name, tensor in stored(checkpoint, dtype).items() if name != lost}

        monkeypatch.setattr(module, "_stored", without)
        with pytest.raises(InputError, match=f"written to vLLM's {named}"), engine_of(checkpoint):
            pass


def test_packed_weights_are_refused(long_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own way with linear layers on a CPU; twice: the packed form, and the empty parameter it leaves."""
    checkpoint = checkpoint_of(long_folder("llama"))
    monkeypatch.setattr(module, "_plain_linear", contextlib.nullcontext)
    with pytest.raises(InputError, match=r"embed_tokens .* from a form of its own"), engine_of(checkpoint):
        pass
    monkeypatch.setattr(module, "_check_layers", lambda *_: None)
    with pytest.raises(InputError, match="vLLM loads its weights only once"), engine_of(checkpoint):
        pass


def test_a_closed_engine_is_gone_and_others_are_not(engine: VLLMEngine) -> None:
    engine.set_member(MEMBERS[0], 0.02)
    drawn = engine.sample(PROMPTS, 2, Sampling(), seed=0)
    with engine_of(engine.checkpoint) as other:
        assert other.sample(PROMPTS, 2, Sampling(), seed=0) != drawn
        other.set_member(MEMBERS[0], 0.02)
        assert other.sample(PROMPTS, 2, Sampling(), seed=0) == drawn
        left = [weakref.ref(other.model), weakref.ref(other._runner.kv_caches[0])]
    assert [reference() for reference in left] == [None, None]
    assert engine.sample(PROMPTS, 2, Sampling(), seed=0) == drawn
    torch.set_num_threads(1)  # vLLM would make this a warning


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype must be"),
        ({"nonsense": 1}, "does not load in vLLM"),
        ({"max_model_len": 100_000}, "does not load in vLLM"),
    ],
)
def test_bad_engine_options(long_folder: Callable[[str], Path], options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as error, engine_of(checkpoint_of(long_folder("llama")), **options):
        pass
    assert "\n" not in str(error.value)


def test_mixtures_of_experts_are_refused(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match="not stored as such"), engine_of(load_checkpoint(tiny_folder("mixtral"))):
        pass


@pytest.mark.slow
def test_the_demo_model_as_a_population(demo_checkpoint: Checkpoint) -> None:
    prompts = [demo_checkpoint.encode(f"What is {a} + 2? Reply with just the number.") for a in (3, 12)]
    story = "Once there was a number that could not be added to any other. " * 25
    prompts.append(demo_checkpoint.encode(story))
    assert len(prompts[-1]) > 300
    reference = plain(demo_checkpoint)
    with engine_of(demo_checkpoint, max_model_len=1024, kv_cache_memory_bytes=1 << 28) as engine:
        before = bits(engine)
        center = engine.sample(prompts, 2, Sampling(0.0, 6), seed=0)
        for member, sigma in zip(MEMBERS[:2], (0.003, 0.01), strict=True):
            set_members((engine, reference), member, sigma)
            assert_same_weights(engine, reference)
            assert not any(torch.equal(p.view(torch.uint8), before[n]) for n, p in engine.model.named_parameters())
            responses = engine.sample(prompts, 2, Sampling(0.7, 6), seed=0)
            scores = (flat(either.score(prompts, responses, Sampling(0.7))) for either in (engine, reference))
            np.testing.assert_allclose(*scores, rtol=0, atol=1e-4)
        engine.restore()
        assert same_bits(bits(engine), before)
        assert engine.sample(prompts, 2, Sampling(0.0, 6), seed=0) == center


def test_what_vllm_cannot_run_is_refused_when_it_is_loaded(tiny_folder: Callable[[str], Path]) -> None:
    """Heads of 8: its kernels for CPU know no such attention, and say so only when they run."""
    with pytest.raises(InputError, match=r"llama\d* does not run in vLLM: .*head_dim=8"):
        load_engine(tiny_folder("llama"), "vllm")
