"""Speed of a population on the demo checkpoint, against what cannot be avoided: noise, copies, forward passes.

    python -m pytest -n 0 -s benchmarks/bench_models.py --benchmark-disable-gc --benchmark-columns=min,rounds

For an idle machine; the checkpoint is fetched once. The default test run collects `tests/` only. Every figure is a
ratio of two times that were taken in turns or within one run, with the same number of threads for both: of processor
time with one thread, of wall time with all. A table of them is printed at the end; each test asserts its target.
"""

import dataclasses
import itertools
import os
import time

import pytest
from bench_core import fastest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from esth.check import Bracket  # noqa: E402
from esth.diversity import DiversityConfig  # noqa: E402
from esth.diversity.sampling import Jobs, Spoken  # noqa: E402
from esth.estimators import js  # noqa: E402
from esth.models import Sampling, load_checkpoint, load_engine  # noqa: E402
from esth.models.transformers_engine import _Row  # noqa: E402
from esth.noise import population  # noqa: E402

SIGMA, MEMBERS, PROMPTS, TOKENS = 0.001, 4, 16, 16


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    print("\n\n" + " " * 52 + "threads   figure   target")
    for what, threads, figure, target in rows:
        print(f"{what:52s}{threads:7d}{figure:9.2f}   {target}")


@pytest.fixture(scope="module")
def engine():
    """The demo checkpoint, no token of which ends a response: all have the same length."""
    checkpoint = dataclasses.replace(load_checkpoint("demo"), stop_tokens=frozenset())
    return load_engine(checkpoint, device="cpu")


@pytest.fixture(scope="module")
def prompts(engine):
    questions = [f"What is {a} + {a * a % 7}? Reply with just the number." for a in range(PROMPTS)]
    return [engine.checkpoint.encode(question) for question in questions]


@pytest.fixture(params=sorted({1, os.cpu_count() or 1}))
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def clock(threads):
    return time.process_time if threads == 1 else time.perf_counter


@pytest.fixture
def report(benchmark, table, threads):
    def add(what, figure, target=""):
        benchmark.extra_info[what] = figure
        table.append((what, threads, figure, target))

    return add


# Members


def test_a_member_is_made_in_little_more_than_drawing_and_copying(benchmark, engine, clock, report):
    """Every tensor of the checkpoint: θ + σ ε and back, beside torch.randn's kernel and a copy of the same tensor."""
    members = itertools.cycle(population(0, 1000))
    weights = list(engine.parameters.values())
    scratch = [torch.empty_like(w) for w in weights]

    def change():
        engine.set_member(next(members), SIGMA)

    def draw():  # torch.randn in place: a fresh tensor's memory would take half as long again
        for s in scratch:
            s.normal_()

    def copy():
        for s, w in zip(scratch, weights, strict=True):
            s.copy_(w)

    benchmark.pedantic(change, rounds=3, warmup_rounds=1)
    changed, drawn, copied, restored = fastest(change, draw, copy, engine.restore, clock=clock)
    gigabytes = sum(w.nbytes for w in weights) / 1e9
    for what, seconds in {"a member": changed, "torch.randn": drawn, "copy_": copied, "restore": restored}.items():
        report(f"{what}, GB/s", gigabytes / seconds)
    report("a member / (torch.randn + copy_)", changed / (drawn + copied), "<= 1.3")
    report("restore / copy_", restored / copied, "<= 1.3")
    assert changed <= 1.3 * (drawn + copied)
    assert restored <= 1.3 * copied


# Scoring


@pytest.fixture(scope="module")
def said(engine, prompts):
    """One response to each prompt by each member, a thousand positions in all."""
    said = Spoken()
    for i in range(MEMBERS):
        said.add(i, engine.sample(prompts, 1, Sampling(0.7, TOKENS), seed=i))
    return said.sorted()


def unbracketed(log_p, *_, **__):
    zero = torch.zeros(log_p.shape[0])
    return Bracket(zero, zero)


@pytest.mark.parametrize(("bracketed", "target"), [(False, 1.5), (True, 2.5)], ids=["chain", "chain and bracket"])
def test_scoring_takes_little_more_than_its_forward_passes(
    benchmark, monkeypatch, engine, prompts, said, clock, report, bracketed, target
):
    """A block under all members, switching them included, over the time spent in the model's forward passes."""
    spent = []
    forward = engine.model.forward

    def timed(*arguments, **options):
        start = clock()
        output = forward(*arguments, **options)
        spent.append(clock() - start)
        return output

    monkeypatch.setattr(engine.model, "forward", timed)
    if not bracketed:
        monkeypatch.setattr(js, "bracket", unbracketed)
    config = DiversityConfig(sigma=SIGMA, members=MEMBERS, prompts=PROMPTS)
    jobs = Jobs(prompts, population(0, MEMBERS), config, config.sampling(TOKENS))

    def whole():
        start = clock()
        jobs.population_block(engine, said)
        return clock() - start

    seconds = benchmark.pedantic(whole, rounds=1)
    what = "chain and bracket" if bracketed else "chain"
    report(f"{what} / {MEMBERS} forward passes", seconds / sum(spent), f"<= {target}")
    assert seconds <= target * sum(spent)


# Sampling


def test_sampling_is_as_fast_as_the_engine_s_own_generate(benchmark, engine, prompts, clock, report):
    """The same prompts, temperature and number of tokens as one batch of `generate`, which samples by itself."""
    n, sampling = 4, Sampling(0.7, TOKENS)
    prompts = prompts[:8]
    options = {
        "generation_config": transformers.GenerationConfig(
            do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=TOKENS, pad_token_id=0
        )
    }
    batch = engine.checkpoint.tokenizer.pad({"input_ids": [p for p in prompts for _ in range(n)]}, return_tensors="pt")

    def ours():
        return engine.sample(prompts, n, sampling, seed=0)

    def generate():
        return engine.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **options)

    def generate_from_shared_prefixes():
        """`generate` given what our engine computes once for all responses to a prompt."""
        with torch.no_grad():
            ((_, prefixes),) = engine._prefixes(prompts, range(len(prompts)))
        each = prefixes.of([_Row(i, i, sample) for i in range(len(prompts)) for sample in range(n)])
        return engine.model.generate(
            torch.cat([each.tokens, each.last], dim=1),
            attention_mask=torch.cat([each.mask, torch.ones_like(each.last)], dim=1),
            past_key_values=each.cache,
            **options,
        )

    assert all(len(response.tokens) == TOKENS for group in ours() for response in group)
    for output in (generate(), generate_from_shared_prefixes()):
        assert output.shape == (len(prompts) * n, batch["input_ids"].shape[1] + TOKENS)
    benchmark.pedantic(ours, rounds=1)
    mine, plain, shared = fastest(ours, generate, generate_from_shared_prefixes, rounds=3, clock=clock)
    report("sampling, tokens/s over generate's", plain / mine, ">= 0.95")
    report("sampling, over generate's from shared prefixes", shared / mine, "(told only)")
    assert plain / mine >= 0.95
