"""Where the largest changes lie: against sorting everything, and against chances counted out."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import transformers

from esth.analysis import landing
from esth.analysis.landing import Coordinate, Largest
from esth.analysis.pair import Weights
from esth.analysis.traces import TraceConfig, fisher_traces
from esth.errors import InputError
from esth.models import Sampling, load_engine
from esth.models.checkpoint import SHIPPED
from esth.noise import hashed
from esth.tasks import load_task
from esth.tasks.task import encode
from esth.training.problem_sets import TASK_SEED

TENSORS = {"a": 40, "b": 1, "c": 300, "d": 7}


BASE = {name: np.random.default_rng(n).normal(size=n).astype(np.float32) for name, n in TENSORS.items()}


def updates(values):
    """A Δ a tensor, drawn from the values: few values make many ties."""
    rng = np.random.default_rng(0)
    return {name: rng.choice(values, n) * rng.choice([-1, 1], n) for name, n in TENSORS.items()}


def seen(found, k, count):
    largest = Largest(k)
    for name, update in found.items():
        for start in range(0, len(update), count):
            part = slice(start, start + count)
            largest.add(name, start, BASE[name][part], update[part])
    return largest


@pytest.mark.parametrize("count", [1, 3, 64, 1000])
@pytest.mark.parametrize("k", [1, 5, 100, 348, 1000])
@pytest.mark.parametrize("values", [[0.0, 1.0, 2.0], [0.0, 0.0, 1e-30, 1e30], np.random.default_rng(1).random(999)])
def test_the_largest_are_those_of_sorting_everything(values, k, count):
    found = updates(values)
    everything = [
        Coordinate(n, i, float(BASE[n][i]), float(v)) for n, update in found.items() for i, v in enumerate(update)
    ]
    moved = [c for c in everything if c.update != 0]
    largest = seen(found, k, count)
    assert largest.top == sorted(moved, key=lambda c: -abs(c.update))[:k], "ties by tensor, then position"
    for name in TENSORS:
        own = [c for c in moved if c.name == name]
        assert largest.peaks.get(name) == max(own, key=lambda c: abs(c.update), default=None)
    top = max(abs(c.update) for c in moved)
    ties = landing.count_by([c.name for c in moved if abs(c.update) == top], lambda name: name)
    assert largest.ties == ties


def test_what_did_not_change_has_no_largest():
    assert seen({"a": np.zeros(9)}, 3, 2) == Largest(3)


def test_layer_peaks():
    peaks = {
        name: Coordinate(name, 0, 1.0, update)
        for name, update in {
            "model.layers.0.mlp.up_proj.weight": -3.0,
            "model.layers.0.input_layernorm.weight": 3.0,
            "model.layers.1.input_layernorm.weight": 1.0,
            "model.norm.weight": 9.0,
        }.items()
    }
    found = {at: c.name for at, c in landing.layer_peaks(peaks).items()}
    assert found == {
        "model.layers.0": "model.layers.0.mlp.up_proj.weight",
        "model.layers.1": "model.layers.1.input_layernorm.weight",
        "model.norm.weight": "model.norm.weight",
    }


def test_single_steps_of_a_dtype():
    """Next to 1 bfloat16 is 2⁻⁷ apart above and half as much below, float32 2⁻²³."""
    moves = [2**-7, -(2**-8), 2**-7 + 2**-20, 2**-23, 2**-22]
    found = [Coordinate("a", i, 1.0, move) for i, move in enumerate(moves)]
    assert landing.single_steps(found, {"a": "BF16"}) == 4
    assert landing.single_steps(found, {"a": "F32"}) == 1
    assert landing.single_steps([Coordinate("a", 0, -40.0, 0.25)], {"a": "BF16"}) == 1


# Expectations


def quantiles(pmf):
    """Mean, and the narrowest ends with at most 2.5 % beyond each, of {count: probability}."""
    counts = sorted(pmf)
    below = list(itertools.accumulate(pmf[c] for c in counts))
    lower = next(c for c, p in zip(counts, below, strict=True) if p >= Fraction(1, 40))
    upper = next(c for c, p in zip(counts, below, strict=True) if p >= Fraction(39, 40))
    return float(sum(c * p for c, p in pmf.items())), lower, upper


def test_by_size_against_counting_subsets():
    sizes = {"norm": 2, "q": 5, "mlp": 6}
    owners = [kind for kind, n in sizes.items() for _ in range(n)]
    subsets = list(itertools.combinations(owners, 4))
    found = landing.by_size(sizes, 4)
    for kind in sizes:
        counts = [subset.count(kind) for subset in subsets]
        pmf = {c: Fraction(counts.count(c), len(subsets)) for c in set(counts)}
        assert tuple(found[kind]) == pytest.approx(quantiles(pmf))


def test_by_size_of_none_and_of_all():
    assert landing.by_size({"a": 3, "b": 5}, 0) == {"a": (0, 0, 0), "b": (0, 0, 0)}
    assert landing.by_size({"a": 3, "b": 5}, 8) == {"a": (3, 3, 3), "b": (5, 5, 5)}


def test_by_variance_with_one_variance_is_by_size():
    sizes = {"a": 100, "b": 300, "c": 600}
    found = landing.by_variance(sizes, {name: 3.0 * n for name, n in sizes.items()}, str.upper, 50)
    assert {k: e.mean for k, e in found.items()} == pytest.approx({"A": 5, "B": 15, "C": 30})


def test_by_variance_counts_what_exceeds_a_level():
    """Sizes made so that 3 standard deviations of the narrow tensor are exceeded by 27 and 200 coordinates."""
    beyond = [1 - math.erf(z / math.sqrt(2)) for z in (3.0, 1.5)]
    sizes = {"narrow": round(27 / beyond[0]), "wide": round(200 / beyond[1]), "still": 5000}
    traces = {"narrow": 7.0 * sizes["narrow"], "wide": 28.0 * sizes["wide"], "still": 0.0}
    found = landing.by_variance(sizes, traces, lambda name: name, 227)
    assert found["narrow"].mean == pytest.approx(27, rel=1e-3)
    assert found["wide"].mean == pytest.approx(200, rel=1e-3)
    assert found["still"] == (0, 0, 0)


def test_by_variance_against_a_simulation():
    rng = np.random.default_rng(0)
    sizes, deviations, k = {"a": 2000, "b": 500, "c": 100}, {"a": 1.0, "b": 1.3, "c": 2.0}, 60
    traces = {name: n * deviations[name] ** 2 for name, n in sizes.items()}
    found = landing.by_variance(sizes, traces, lambda name: name, k)
    owners = np.repeat(list(sizes), list(sizes.values()))
    scales = np.repeat(list(deviations.values()), list(sizes.values()))
    top = np.argpartition(abs(rng.normal(size=(2000, len(owners))) * scales), -k, axis=1)[:, -k:]
    for name, expected in found.items():
        counts = (owners[top] == name).sum(1)
        assert expected.mean == pytest.approx(counts.mean(), rel=0.02)
        inside = np.mean((counts >= expected.lower) & (counts <= expected.upper))
        assert inside > 0.95


def test_by_variance_where_all_that_can_move_is_among_the_top():
    found = landing.by_variance({"a": 3, "b": 5}, {"a": 1.0, "b": 0.0}, lambda name: name, 3)
    assert found["a"].mean == 3 and found["b"].mean == 0


def test_of_layers_against_every_outcome():
    sizes = {
        "model.embed_tokens.weight": 99,
        "model.layers.0.self_attn.q_proj.weight": 4,
        "model.layers.0.norm.weight": 1,
        "model.layers.1.self_attn.q_proj.weight": 3,
        "model.layers.1.norm.weight": 1,
        "model.layers.1.mlp.up_proj.weight": 6,
        "model.layers.2.norm.weight": 5,
    }
    found = landing.of_layers(sizes, lambda name: name.split(".")[-2], ["model.layers.0", "model.layers.1"])
    for kind, chances in {
        "q_proj": (Fraction(4, 5), Fraction(3, 10)),
        "norm": (Fraction(1, 5), Fraction(1, 10)),
    }.items():
        pmf = {}
        for outcome in itertools.product([0, 1], repeat=2):
            p = math.prod(c if o else 1 - c for c, o in zip(chances, outcome, strict=True))
            pmf[sum(outcome)] = pmf.get(sum(outcome), 0) + p
        assert tuple(found[kind]) == pytest.approx(quantiles(pmf))
    assert found["embed_tokens"] == (0, 0, 0)


def test_of_layers_has_the_intervals_of_a_binomial_where_chances_are_equal():
    from scipy import stats

    names = [f"model.layers.{i}" for i in range(30)]
    sizes = {f"{name}.{part}": n for name in names for part, n in (("norm.weight", 1), ("up_proj.weight", 3))}
    found = landing.of_layers(sizes, lambda name: name.split(".")[-2], names)["norm"]
    assert found == (7.5, stats.binom(30, 0.25).ppf(0.025), stats.binom(30, 0.25).ppf(0.975))


# Fisher information of the base


def test_traces_are_the_squared_score_gradients_of_each_tensor():
    """Of transformers' own model, by autograd of the summed log-probabilities of the same responses."""
    folder, config = SHIPPED["tiny-3"], TraceConfig("chain:3", prompts=3, samples=2, temperature=0.8)
    base = Weights.open("tiny-3")
    found = fisher_traces(base, config, list(base.tensors))
    task = load_task("chain", n=3, seed=TASK_SEED, split="test", difficulty="3")
    engine = load_engine("tiny-3", dtype="float32")
    prompts = [encode(engine.checkpoint.tokenizer, problem) for problem in task.problems]
    said = engine.sample(prompts, 2, Sampling(0.8, task.max_tokens), hashed("traces", 0))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    squares = {name: np.zeros((3, 2)) for name in base.tensors}
    for x, prompt in enumerate(prompts):
        for s, response in enumerate(said[x]):
            model.zero_grad()
            tokens = torch.tensor([*prompt, *response.tokens])
            log_p = (model(tokens[None]).logits[0, len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
            log_p.gather(1, tokens[len(prompt) :, None]).sum().backward()
            for name, parameter in model.named_parameters():
                squares[name][x, s] = float(parameter.grad.double().square().sum())
    for name, values in squares.items():
        assert found.per_prompt[name] == pytest.approx(values.mean(1), rel=1e-3)
        assert found.mean()[name] == pytest.approx(values.mean(), rel=1e-3)
    shares = found.shares(lambda name: "norm" if "norm" in name else "rest")
    norms = sum(v.mean() for n, v in squares.items() if "norm" in n) / sum(v.mean() for v in squares.values())
    assert float(shares["norm"].value) == pytest.approx(norms, rel=1e-3)
    assert float(shares["norm"].value + shares["rest"].value) == pytest.approx(1)
    assert float(shares["norm"].se) == pytest.approx(float(shares["rest"].se)) and float(shares["norm"].se) > 0


def test_a_head_that_is_dropped_counts_with_its_embedding(tiny_folder):
    base = Weights.open(tiny_folder("llama-untied"))
    names = [name for name in base.tensors if name != "lm_head.weight"]
    config = TraceConfig("arithmetic", prompts=2)
    whole = fisher_traces(base, config, list(base.tensors)).mean()
    found = fisher_traces(base, config, names).mean()
    both = whole["model.embed_tokens.weight"] + whole["lm_head.weight"]
    assert found["model.embed_tokens.weight"] == pytest.approx(both) and whole["lm_head.weight"] > 0
    assert found["model.norm.weight"] == whole["model.norm.weight"]


def test_what_traces_refuse():
    base = Weights.open("tiny-3")
    with pytest.raises(InputError, match="prompts"):
        TraceConfig("chain:3", prompts=1)
    with pytest.raises(InputError, match="not_a_task"):
        fisher_traces(base, TraceConfig("not_a_task"), list(base.tensors))
    with pytest.raises(InputError, match="temperature"):
        fisher_traces(base, TraceConfig("chain:3", prompts=2, temperature=0.0), list(base.tensors))
