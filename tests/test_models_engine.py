"""The transformers engine: members, restoring, updates; sampling and scoring against plain forward passes."""

import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from esth.errors import InputError  # noqa: E402
from esth.models import Response, Sampling, load_checkpoint, load_engine  # noqa: E402
from esth.models.transformers_engine import InverseCDF, TransformersEngine, policy_logits  # noqa: E402
from esth.noise import FAMILIES, Combination, Member, parameter_noise, population  # noqa: E402

KINDS = ("llama", "llama-untied", "qwen2", "gpt2")
PROMPTS = [[5, 6, 7, 8], [9], [10, 11, 3, 4, 20, 21, 22, 30, 31], [5, 6, 7, 8]]
MEMBER = population(3, 2)[1]

Folder = Callable[[str], Path]


def engine_of(folder: Path, *, stop_every: int = 0, **options) -> TransformersEngine:
    """An engine; with `stop_every`, every so many tokens one ends a response (a random model rarely says its own)."""
    checkpoint = load_checkpoint(folder)
    if stop_every:
        checkpoint = dataclasses.replace(checkpoint, stop_tokens=frozenset(range(2, 61, stop_every)))
    engine = load_engine(checkpoint, device="cpu", **options)
    assert isinstance(engine, TransformersEngine)
    return engine


def bits(engine: TransformersEngine) -> dict:
    return {name: p.detach().clone().view(torch.uint8) for name, p in engine.model.state_dict().items()}


def same_bits(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def plain_logits(engine: TransformersEngine, prompt: list[int], tokens: tuple[int, ...]) -> "torch.Tensor":
    """Logits before every token, by one forward pass of the whole, without cache, padding or batch."""
    with torch.no_grad():
        return engine.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double()


def warped(logits: "torch.Tensor", sampling: Sampling) -> "torch.Tensor":
    """Temperature, top-k and top-p as transformers applies them."""
    chain = [transformers.TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        chain.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p:
        chain.append(transformers.TopPLogitsWarper(sampling.top_p))
    for step in chain:
        logits = step(None, logits)
    return logits


# Members


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_is_center_plus_sigma_noise_in_every_parameter(tiny_folder: Folder, kind: str, family: str) -> None:
    engine = engine_of(tiny_folder(kind))
    center = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    member = Member(17, -1, family, rank=2)
    engine.set_member(Member(18), 0.5)  # whatever came before must not matter
    engine.set_member(member, 0.01)
    moved = dict(engine.model.named_parameters())
    stored = engine.checkpoint.tensors
    assert len(stored) == len(moved)
    for name, before in center.items():
        alias = name if name in stored else name.removeprefix("transformer.")
        noise = parameter_noise(17, alias, before.shape, family, rank=2).reshape(before.shape)
        expected = before.numpy() + np.float32(-0.01) * noise
        assert np.array_equal(moved[name].detach().numpy(), expected)
        assert (moved[name] != before).float().mean() > 0.99


def test_tied_parameters_are_perturbed_once(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"))
    engine.set_member(MEMBER, 0.1)
    embedding, head = engine.model.get_input_embeddings().weight, engine.model.get_output_embeddings().weight
    assert embedding.data_ptr() == head.data_ptr()
    assert "lm_head.weight" not in engine.parameters


def test_a_model_whose_parameters_are_not_the_checkpoint_s_is_refused(tiny_folder: Folder) -> None:
    with pytest.raises(InputError, match="not stored as such"):  # transformers fuses the experts
        engine_of(tiny_folder("mixtral"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hundred_members_leave_no_trace(tiny_folder: Folder, dtype: str) -> None:
    engine = engine_of(tiny_folder("qwen2"), dtype=dtype)
    before = bits(engine)
    for i, member in enumerate(population(0, 100)):
        engine.set_member(member, 10.0 ** (-i % 5))
        assert not same_bits(bits(engine), before)
        if i % 3 == 0:
            engine.restore()
            assert same_bits(bits(engine), before)
    engine.restore()
    assert same_bits(bits(engine), before)


def test_sixteen_bits_are_rounded_once(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"), dtype="bfloat16")
    name = "model.layers.1.mlp.up_proj.weight"
    before = engine.parameters[name].float().numpy()
    engine.set_member(MEMBER, 0.01)
    exact = torch.from_numpy(before + MEMBER.noise(name, before.shape, scale=0.01).reshape(before.shape))
    assert torch.equal(engine.parameters[name], exact.bfloat16())


def test_a_member_is_the_same_in_any_slices(tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sliced = engine_of(tiny_folder("llama")), engine_of(tiny_folder("llama"))
    whole.set_member(MEMBER, 0.1)
    monkeypatch.setattr("esth.models.displacement.SLICE", 97)
    sliced.set_member(MEMBER, 0.1)
    assert same_bits(bits(whole), bits(sliced))


def test_a_member_is_the_same_on_any_number_of_threads(tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esth.models.displacement.SLICE", 97)
    engine = engine_of(tiny_folder("llama"))
    threads = torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            engine.set_member(MEMBER, 0.1)
            found.append(bits(engine))
            engine.apply_update([(MEMBER, 0.1), (Member(4), -0.2)])
            found.append(bits(engine))
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(threads)
        engine = engine_of(tiny_folder("llama"))
    assert same_bits(found[0], found[2]) and same_bits(found[1], found[3])


def test_an_interrupted_change_leaves_the_center(tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(tiny_folder("llama"))
    before = bits(engine)
    calls = itertools.count()

    def noise(*arguments, **options):
        if next(calls) == 7:
            raise KeyboardInterrupt
        return parameter_noise(*arguments, **options)

    monkeypatch.setattr("esth.noise.parameter_noise", noise)
    for change in (lambda: engine.set_member(MEMBER, 0.1), lambda: engine.apply_update([(MEMBER, 0.1)])):
        calls = itertools.count()
        with pytest.raises(KeyboardInterrupt):
            change()
        assert same_bits(bits(engine), before)


# Updates


def test_an_update_is_the_sum_of_its_pairs(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("qwen2"))
    center = {name: p.detach().double().numpy() for name, p in engine.parameters.items()}
    members = population(5, 6, "antithetic")
    update = [(member, 0.01 * (i - 1.7)) for i, member in enumerate(members)]
    engine.set_member(members[0], 0.3)  # members of the past are no part of it
    engine.apply_update(update)
    for name, before in center.items():
        step = sum(c * m.sign * parameter_noise(m.seed, name, before.shape).astype(float) for m, c in update)
        np.testing.assert_allclose(engine.parameters[name].numpy().ravel(), before.ravel() + step, rtol=0, atol=1e-6)


def test_an_update_can_be_tried_as_a_member(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"))
    update = tuple((member, 0.02) for member in population(5, 3))
    engine.set_member(Combination(update), 1.0)
    tried = bits(engine)
    engine.apply_update(update)
    assert same_bits(bits(engine), tried)


@pytest.mark.parametrize(("dtype", "size"), [("float16", 1e6), ("float32", 1e39)])
def test_an_update_that_overflows_leaves_the_center(tiny_folder: Folder, dtype: str, size: float) -> None:
    engine = engine_of(tiny_folder("llama"), dtype=dtype)
    before = bits(engine)
    with pytest.raises(InputError, match="overflows"):
        engine.apply_update([(MEMBER, size)])
    assert same_bits(bits(engine), before)
    engine.set_member(MEMBER, 0.1)
    engine.restore()
    assert same_bits(bits(engine), before)


def test_an_update_is_whole_or_not_at_all(tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the last parameter moved: the old center, in the parameters and in the copy."""
    engine = engine_of(tiny_folder("llama"))
    before = bits(engine)

    def interrupt(weights):
        raise KeyboardInterrupt

    monkeypatch.setattr("esth.models.transformers_engine.check_finite", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.apply_update([(MEMBER, 0.1)])
    assert same_bits(bits(engine), before)
    engine.set_member(MEMBER, 0.1)
    engine.restore()
    assert same_bits(bits(engine), before)


def test_the_center_is_where_the_update_went(tiny_folder: Folder) -> None:
    engine, again = engine_of(tiny_folder("llama")), engine_of(tiny_folder("llama"))
    log = [[(member, 0.02) for member in population(seed, 3)] for seed in range(4)]
    for update in log:
        engine.set_member(update[0][0], 0.1)
        engine.sample(PROMPTS, 1, Sampling(max_tokens=2), seed=0)
        engine.apply_update(update)
    after = bits(engine)
    engine.set_member(MEMBER, 0.1)
    engine.restore()
    assert same_bits(bits(engine), after)
    for update in log:  # the log alone rebuilds the center
        again.apply_update(update)
    assert same_bits(bits(again), after)
    assert not same_bits(bits(engine_of(tiny_folder("llama"))), after)


@pytest.mark.parametrize(
    "change",
    [
        lambda engine: engine.set_member(MEMBER, -0.1),
        lambda engine: engine.set_member(MEMBER, math.nan),
        lambda engine: engine.set_member(MEMBER, math.inf),
        lambda engine: engine.apply_update([(MEMBER, 0.1), (MEMBER, math.nan)]),
    ],
)
def test_bad_changes_are_refused_and_change_nothing(tiny_folder: Folder, change) -> None:
    engine = engine_of(tiny_folder("llama"))
    before = bits(engine)
    with pytest.raises(InputError):
        change(engine)
    assert same_bits(bits(engine), before)


# Sampling and scoring


@pytest.mark.parametrize("kind", [*KINDS, "mistral"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7, 6),
        Sampling(1.3, 6, top_k=5),
        Sampling(1.0, 6, top_p=0.8),
        Sampling(0.9, 6, top_k=20, top_p=0.5),
    ],
)
@pytest.mark.parametrize("common", [[], [1, 12, 13]])
def test_scores_are_those_of_a_plain_forward_pass(
    tiny_folder: Folder, kind: str, sampling: Sampling, common: list[int]
) -> None:
    prompts = [common + prompt for prompt in PROMPTS]
    engine = engine_of(tiny_folder(kind), stop_every=10)
    engine.set_member(MEMBER, 0.05)
    responses = engine.sample(prompts, 5, sampling, seed=1)
    scores = engine.score(prompts, responses, sampling)
    logits = engine.next_token_logits(prompts, responses, sampling)
    assert logits.dtype == torch.float32
    rows = iter(logits.double().log_softmax(dim=1))
    lengths = set()
    for prompt, group, group_scores in zip(prompts, responses, scores, strict=True):
        assert len(group) == 5
        for response, score in zip(group, group_scores, strict=True):
            ends = [token in engine.checkpoint.stop_tokens for token in response.tokens]
            assert sum(ends) == ends[-1] == (not response.truncated)
            assert len(response.tokens) == 6 or not response.truncated
            lengths.add(len(response.tokens))
            expected = warped(plain_logits(engine, prompt, response.tokens), sampling).log_softmax(dim=1)
            chosen = expected[range(len(response.tokens)), response.tokens]
            # A plain float32 pass is itself 2e-5 away from float64 on these ill-conditioned weights.
            np.testing.assert_allclose(score, chosen.numpy(), rtol=0, atol=3e-5)
            for position in expected:
                row = next(rows)
                assert torch.equal(row.isneginf(), position.isneginf())
                torch.testing.assert_close(row.exp(), position.exp(), rtol=0, atol=1e-5)
    assert next(rows, None) is None
    assert len(lengths) > 1  # else padding was not tried


def all_responses(engine: TransformersEngine, prompt: list[int], sampling: Sampling) -> dict[Response, float]:
    """Every possible response and its log-probability, by plain forward passes."""
    found: dict[Response, float] = {}
    open_prefixes: dict[tuple[int, ...], float] = {(): 0.0}
    for length in range(1, sampling.max_tokens + 1):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, log_p in open_prefixes.items():
            row = warped(plain_logits(engine, prompt, (*tokens, 0))[-1:], sampling).log_softmax(dim=1)[0]
            for token in row.isfinite().nonzero()[:, 0].tolist():
                said, total = (*tokens, token), log_p + float(row[token])
                if token in engine.checkpoint.stop_tokens:
                    found[Response(said, truncated=False)] = total
                elif length == sampling.max_tokens:
                    found[Response(said, truncated=True)] = total
                else:
                    longer[said] = total
        open_prefixes = longer
    return found


@pytest.mark.parametrize("sampling", [Sampling(1.5, 3, top_k=4), Sampling(0.8, 2, top_p=0.9)])
def test_samples_follow_the_scored_distribution(tiny_folder: Folder, sampling: Sampling) -> None:
    engine = engine_of(tiny_folder("llama"), stop_every=3, rows=500)
    engine.set_member(MEMBER, 0.02)
    prompt, n = PROMPTS[0], 4000
    outcomes = all_responses(engine, prompt, sampling)
    assert math.fsum(math.exp(log_p) for log_p in outcomes.values()) == pytest.approx(1, abs=1e-9)
    assert len({response.truncated for response in outcomes}) == 2
    scores = engine.score([prompt], [list(outcomes)], sampling)[0]
    np.testing.assert_allclose([score.sum() for score in scores], list(outcomes.values()), rtol=0, atol=2e-5)
    drawn = engine.sample([prompt], n, sampling, seed=0)[0]
    assert set(drawn) <= outcomes.keys()
    expected = np.array([n * math.exp(log_p) for log_p in outcomes.values()])
    counts = np.array([drawn.count(response) for response in outcomes])
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        counts = np.append(counts[~rare], counts[rare].sum())
    assert len(expected) > 5
    assert stats.chisquare(counts, expected * n / expected.sum()).pvalue > 1e-3


def test_samples_do_not_depend_on_the_batch_or_on_who_draws_them(tiny_folder: Folder) -> None:
    sampling = Sampling(1.0, 8)
    engine = engine_of(tiny_folder("llama"), stop_every=12)
    engine.set_member(MEMBER, 0.02)
    reference = engine.sample(PROMPTS, 6, sampling, seed=4)
    for rows in (1, 2, 7):
        other = engine_of(tiny_folder("llama"), stop_every=12, rows=rows)
        other.set_member(MEMBER, 0.02)
        assert other.sample(PROMPTS, 6, sampling, seed=4) == reference
    shares = [engine.sample([PROMPTS[i]], 6, sampling, seed=4, prompt_ids=[i])[0] for i in (3, 1, 0, 2)]
    assert [shares[2], shares[1], shares[3], shares[0]] == reference
    later = engine.sample(PROMPTS, 2, sampling, seed=4, first_sample=4)
    assert later == [group[4:] for group in reference]
    longer = engine.sample(PROMPTS, 6, dataclasses.replace(sampling, max_tokens=12), seed=4)
    assert all(
        long.tokens[: len(short.tokens)] == short.tokens
        for pair in zip(longer, reference, strict=True)
        for long, short in zip(*pair, strict=True)
    )


def test_streams_differ_by_seed_member_prompt_and_sample(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"))
    sampling = Sampling(50.0, 8)  # nearly uniform over 61 tokens: equal streams would show
    drawn = []
    for member in (None, *population(0, 2, "antithetic"), *population(1, 2)):
        if member is not None:
            engine.set_member(member, 0.0)
        for seed in (0, 1):
            drawn += engine.sample([PROMPTS[0], PROMPTS[0]], 2, sampling, seed=seed)
    said = [response.tokens for group in drawn for response in group]
    assert len(set(said)) == len(said) == 5 * 2 * 2 * 2


def test_scores_do_not_depend_on_the_memory_they_may_take(tiny_folder: Folder) -> None:
    sampling = Sampling(1.0, 8)
    engine = engine_of(tiny_folder("llama"), stop_every=12)
    responses = engine.sample(PROMPTS, 5, sampling, seed=0)
    responses[1] = []  # a prompt without responses
    reference = engine.next_token_logits(PROMPTS, responses, sampling)
    scores = np.concatenate([s for group in engine.score(PROMPTS, responses, sampling) for s in group])
    for positions in (1, 5, 30):
        small = engine_of(tiny_folder("llama"), stop_every=12, rows=3, block_bytes=4 * 61 * positions)
        sizes = logit_counts(small)
        torch.testing.assert_close(small.next_token_logits(PROMPTS, responses, sampling), reference, rtol=0, atol=2e-5)
        assert max(sizes) <= positions * 61
        again = np.concatenate([s for group in small.score(PROMPTS, responses, sampling) for s in group])
        np.testing.assert_allclose(again, scores, rtol=0, atol=2e-5)


def test_responses_of_like_length_are_scored_together(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"), rows=2)
    sizes = logit_counts(engine)
    engine.score(PROMPTS[:2], [[Response((3,) * length, True) for length in (8, 1)]] * 2, Sampling())
    assert sizes == [2 * 8 * 61, 2 * 1 * 61]


def test_a_prompt_is_read_once_for_all_its_responses(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"), rows=3)
    read = []
    forward = engine.model.forward

    def recorded(input_ids, **options):
        read.append(input_ids.numel())
        return forward(input_ids, **options)

    engine.model.forward = recorded
    engine.score([[5] * 50], [[Response((3, 4), True)] * 9], Sampling())
    assert read == [49, 6, 6, 6]
    read.clear()
    engine.score([[5] * 20 + [6, 7], [5] * 20 + [8, 9, 10]], [[Response((3, 4), True)]] * 2, Sampling())
    assert read == [20, 2 * 2, 2 * 2]  # the common part once, then the longer rest of both


def logit_counts(engine: TransformersEngine) -> list[int]:
    """Grows with the number of logits of every forward pass from now on, prefills left out."""
    sizes: list[int] = []
    forward = engine.model.forward

    def recorded(*arguments, **options):
        output = forward(*arguments, **options)
        if "logits_to_keep" not in options:
            sizes.append(output.logits.numel())
        return output

    engine.model.forward = recorded
    return sizes


def test_temperature_0_is_greedy(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("qwen2"), stop_every=12)
    greedy = Sampling(0.0, 8)
    responses = engine.sample(PROMPTS, 2, greedy, seed=0)
    for prompt, (first, second), scores in zip(
        PROMPTS, responses, engine.score(PROMPTS, responses, greedy), strict=True
    ):
        assert first == second
        assert list(first.tokens) == plain_logits(engine, prompt, first.tokens).argmax(dim=1).tolist()
        assert all((score == 0).all() for score in scores)
    wrong = Response(tuple((token + 1) % 61 for token in responses[0][0].tokens), truncated=True)
    assert engine.score(PROMPTS[:1], [[wrong]], greedy)[0][0][0] == -math.inf


def test_a_draw_inverts_the_distribution_function() -> None:
    p = torch.tensor([0.0, 0.125, 0.5, 0.0, 0.375, 0.0])
    below = 2.0**-40
    expected = {0: 1, 0.125 - below: 1, 0.125: 2, 0.625 - below: 2, 0.625 + 1e-6: 4, 1 - 2.0**-51: 4}
    streams = torch.tensor([[0.5, u] for u in expected], dtype=torch.float64)
    draw = InverseCDF(Sampling(1.0, 2), streams, width=3)
    left = draw(torch.zeros(len(expected), 4, dtype=torch.long), p.log().expand(len(expected), -1).clone())
    assert left.argmax(dim=1).tolist() == list(expected.values())
    assert torch.equal(left.isfinite().sum(dim=1), torch.ones(len(expected), dtype=torch.long))


def test_policy_logits_at_the_limits() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0]])
    assert torch.equal(policy_logits(logits, Sampling(1.0)), logits)
    assert torch.equal(policy_logits(logits, Sampling(2.0)), logits / 2)
    assert policy_logits(logits, Sampling(1.0, top_k=9)).isfinite().all()
    assert policy_logits(logits, Sampling(1.0, top_k=1)).isfinite().tolist() == [[False, True, False, True]]
    assert policy_logits(logits, Sampling(1.0, top_p=1e-9)).isfinite().sum() == 1
    assert policy_logits(logits, Sampling(0.0)).exp().tolist() in ([[0, 1, 0, 0]], [[0, 0, 0, 1]])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"max_tokens": 0},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_bad_sampling_is_refused(options: dict) -> None:
    with pytest.raises(InputError):
        Sampling(**options)


def test_the_checkpoint_s_own_generation_defaults_do_not_change_the_policy(tiny_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "m")
    transformers.GenerationConfig(
        do_sample=True, top_k=2, temperature=0.1, repetition_penalty=3.0, eos_token_id=[2, 40]
    ).save_pretrained(tmp_path / "m")
    plain, chatty = engine_of(tiny_folder("llama")), engine_of(tmp_path / "m")
    assert chatty.checkpoint.stop_tokens == {2, 40}
    drawn = chatty.sample(PROMPTS, 8, Sampling(1.0, 8), seed=0)
    said = plain.sample(PROMPTS, 8, Sampling(1.0, 8), seed=0)
    for group, plain_group in zip(drawn, said, strict=True):
        for response, longer in zip(group, plain_group, strict=True):
            assert longer.tokens[: len(response.tokens)] == response.tokens
            assert (40 in longer.tokens) == (40 in response.tokens)


def test_bad_input_to_the_policy(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"))
    sampling = Sampling(1.0, 8)
    with pytest.raises(InputError, match="prompt 1 is empty"):
        engine.sample([[5], []], 1, sampling, seed=0)
    with pytest.raises(InputError, match="121 \\+ 8 tokens exceed the model's context of 128"):
        engine.sample([[5] * 121], 1, sampling, seed=0)
    engine.sample([[5] * 120], 1, sampling, seed=0)
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


def test_overflow_is_an_error_not_a_number(tiny_folder: Folder) -> None:
    engine = engine_of(tiny_folder("llama"), dtype="float16")
    engine.set_member(MEMBER, 1e5)
    for use in (
        lambda: engine.sample(PROMPTS, 1, Sampling(), seed=0),
        lambda: engine.score(PROMPTS[:1], [[Response((3,), True)]], Sampling()),
        lambda: engine.next_token_logits(PROMPTS[:1], [[Response((3,), True)]], Sampling()),
    ):
        with pytest.raises(InputError, match="not finite"):
            use()


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"rows": 0}, {"device": "nonsense"}])
def test_bad_engine_options(tiny_folder: Folder, options: dict) -> None:
    with pytest.raises(InputError):
        load_engine(tiny_folder("llama"), **options)


def test_weights_that_do_not_fit_the_config_are_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = Path(shutil.copytree(tiny_folder("llama"), tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    for spoiled in ({name: weights[name][:-1]}, {}):
        rest = {other: array for other, array in weights.items() if other != name}
        save_file(rest | spoiled, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(InputError, match=r"does not load|do not fit") as error:
            load_engine(folder, device="cpu")
        assert "\n" not in str(error.value)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("LlamaForCausalLM", "X").replace('"llama"', '"bert-like"'))
    with pytest.raises(InputError, match="does not load"):
        load_engine(folder, device="cpu")


def test_unknown_engine(tiny_folder: Folder) -> None:
    with pytest.raises(InputError, match="unknown engine 'tensorrt': accepted are transformers"):
        load_engine(tiny_folder("llama"), "tensorrt")


@pytest.mark.slow
def test_the_demo_model_as_a_population(demo_checkpoint) -> None:
    engine = load_engine(demo_checkpoint, device="cpu")
    assert isinstance(engine, TransformersEngine)
    prompts = [demo_checkpoint.encode(f"What is {a} + 2? Reply with just the number.") for a in (3, 12)]
    sampling = Sampling(0.7, 4)
    center = engine.sample(prompts, 2, sampling, seed=0)
    before = {name: p.clone() for name, p in engine.parameters.items()}
    engine.set_member(MEMBER, 0.003)
    assert all((p != before[name]).float().mean() > 0.99 for name, p in engine.parameters.items())
    responses = engine.sample(prompts, 2, sampling, seed=0)
    assert responses != center
    scores = engine.score(prompts, responses, sampling)
    for prompt, group, group_scores in zip(prompts, responses, scores, strict=True):
        for response, score in zip(group, group_scores, strict=True):
            log_p = (plain_logits(engine, prompt, response.tokens) / 0.7).log_softmax(dim=1)
            chosen = log_p[range(len(response.tokens)), response.tokens]
            np.testing.assert_allclose(score, chosen.numpy(), rtol=0, atol=1e-4)
    engine.restore()
    assert all(torch.equal(p, before[name]) for name, p in engine.parameters.items())
    assert engine.sample(prompts, 2, sampling, seed=0) == center
