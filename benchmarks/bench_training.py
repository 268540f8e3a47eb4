"""Speed of an ES update in the tiny world, against one model that generates the same number of responses in one batch.

    python -m pytest -n 0 -s benchmarks/bench_training.py --benchmark-disable-gc --benchmark-columns=min,rounds

For an idle machine. The default test run collects `tests/` only. Every figure is a ratio of two times that were taken
in turns, with the same number of threads for both: processor time with one thread, wall time with all. The one model
is our own forward pass with N = 1, itself measured against transformers by the last test. No token ends a response: all
have 18 tokens. A table is printed at the end; each test asserts its target.
"""

import os
import time
from dataclasses import replace

import pytest
from bench_core import fastest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from esth.models import load_checkpoint  # noqa: E402
from esth.models.batched import BatchedLlama  # noqa: E402
from esth.noise import population  # noqa: E402

SIGMA, MEMBERS, LENGTH, TOKENS = 0.01, 32, 8, 18


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    print("\n\n" + " " * 60 + "threads   figure   target")
    for what, threads, figure, target in rows:
        print(f"{what:60s}{threads:7d}{figure:9.2f}   {target}")


@pytest.fixture(scope="module")
def model():
    return BatchedLlama(replace(load_checkpoint("tiny-3"), stop_tokens=frozenset()))


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
    def add(what, figure, target="(told only)"):
        benchmark.extra_info[what] = figure
        table.append((what, threads, figure, target))

    return add


@pytest.mark.parametrize("prompts", [16, 64, 128])
def test_an_update_of_a_population_takes_little_more_than_one_model_s_responses(
    benchmark, model, clock, report, prompts
):
    """Noise, one sampled response to every prompt by every member, and the step of the center."""
    generator = torch.Generator().manual_seed(0)
    asked = torch.randint(model.vocabulary, (1, prompts, LENGTH), generator=generator)
    numbers = torch.rand(MEMBERS, prompts, 1, TOKENS, dtype=torch.float64, generator=generator)
    members = population(0, MEMBERS)
    weights, center = model.members(members, SIGMA), model.alone()

    def generate(weights=weights, asked=asked, numbers=numbers):
        return model.generate(weights, asked, max_tokens=TOKENS, uniforms=numbers)

    def update():
        generate(model.members(members, SIGMA))
        model.apply_update([(member, 1e-9) for member in members])

    def one_model():
        return generate(center, asked.repeat(1, MEMBERS, 1), numbers.view(1, -1, 1, TOKENS))

    def loop():
        for i in range(MEMBERS):
            generate(weights.part(slice(i, i + 1)), asked, numbers[i : i + 1])

    assert generate().tokens.shape == numbers.shape and (one_model().lengths == TOKENS).all()
    benchmark.pedantic(update, rounds=1)
    whole, population_s, single, each = fastest(update, generate, one_model, loop, clock=clock)
    what = f"{prompts} prompts: "
    report(what + "an update / one model", whole / single, "<= 1.5")
    report(what + "responses of the population / one model", population_s / single, "<= 1.5")
    report(what + "responses of the population / a loop over members", population_s / each, "<= 1")
    assert population_s <= 1.5 * single
    assert population_s <= each
    assert whole <= 1.5 * single


def test_one_model_is_no_slower_than_transformers(benchmark, model, clock, report):
    """Responses, and the gradient of their log-probabilities, against `generate` and a plain pass without a cache."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(model.checkpoint.folder)
    rows, n = 512, 8
    generator = torch.Generator().manual_seed(0)
    asked = torch.randint(3, model.vocabulary, (rows, LENGTH), generator=generator)
    numbers = torch.rand(1, rows, 1, TOKENS, dtype=torch.float64, generator=generator)
    config = transformers.GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    center = model.alone()
    theta = {name: tensor.clone().requires_grad_() for name, tensor in model.center.items()}
    shared = asked[: rows // n]
    said = torch.randint(model.vocabulary, (1, rows // n, n, TOKENS), generator=generator)
    lengths = torch.full(said.shape[:3], TOKENS)

    def ours():
        return model.generate(center, asked[None], max_tokens=TOKENS, uniforms=numbers)

    def theirs():
        return reference.generate(asked, attention_mask=torch.ones_like(asked), generation_config=config)

    def our_gradient():
        model.log_probabilities(model.alone(theta), shared[None], said, lengths)[0].sum().backward()

    def their_gradient():
        whole = torch.cat([shared[:, None].expand(-1, n, -1), said[0]], dim=2).flatten(0, 1)
        log_p = reference(whole, use_cache=False).logits[:, LENGTH - 1 : -1].log_softmax(dim=-1)
        log_p.gather(2, whole[:, LENGTH:, None]).sum().backward()

    assert theirs().shape == (rows, LENGTH + TOKENS)
    benchmark.pedantic(ours, rounds=1)
    a, b, c, d = fastest(ours, theirs, our_gradient, their_gradient, rounds=3, clock=clock)
    report(f"{rows} responses, transformers' generate / ours", b / a, ">= 1")
    report(f"{rows} responses, transformers' gradient / ours", d / c, ">= 1")
    assert a <= b and c <= d


# The real world


@pytest.fixture(scope="module")
def demo():
    """The demo checkpoint as a world, with as many prompts as an update may have before it is called large."""
    from esth.training.config import ESConfig
    from esth.training.real_world import RealWorld

    sizes = {"problems": PROMPTS, "prompts": PROMPTS, "evaluation_prompts": 2, "population": 4}
    config = ESConfig(model="demo", task="arithmetic", difficulty="2+", sigma=1e-3, **sizes)
    world = RealWorld(config)
    yield world, config
    world.close()


PROMPTS = 128


def test_all_but_generation_is_a_tenth_of_an_update(benchmark, demo, clock, report, monkeypatch):
    """Of the demo checkpoint, greedy, at most 16 tokens: members made and left, answers judged, the center moved."""
    from esth.training import es

    world, config = demo
    engine, generated = world.workers.engine, []
    sample = engine.sample

    def timed(*arguments, **options):
        start = clock()
        said = sample(*arguments, **options)
        generated.append(clock() - start)
        return said

    monkeypatch.setattr(engine, "sample", timed)

    def update():
        world.apply_update(es.step(world, config, 1).update)

    update()
    generated.clear()
    start = clock()
    benchmark.pedantic(update, rounds=1)
    share = 1 - sum(generated) / (clock() - start)
    report(f"demo, {PROMPTS} prompts: share of an update that is not generation", share, "<= 0.1")
    assert share <= 0.1


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the kernel does not tell peak memory anew")
def test_an_update_needs_one_more_copy_of_the_weights(benchmark, demo, report):
    """Resident memory at most, over making two members and moving the center, in copies of the weights."""
    world, config = demo
    engine = world.workers.engine
    weights = sum(p.numel() * p.element_size() for p in engine.parameters.values())

    def resident(field):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

    engine.apply_update([])  # the center alone
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    members = population(3, 30)

    def update():
        for member in members[:2]:
            engine.set_member(member, config.sigma)
        engine.apply_update([(member, 1e-9) for member in members])

    benchmark.pedantic(update, rounds=1)
    copies = (resident("VmHWM") - before) / weights
    report("demo, N = 30: memory of an update beyond the model, in copies of its weights", copies, "<= 1.1")
    assert copies <= 1.1
