"""Score gradients against the written-out sum, finite differences, and the enumerated Fisher information."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from esth.diversity import DiversityConfig
from esth.diversity.sampling import Jobs, Spoken
from esth.errors import InputError
from esth.estimators import fisher_trace
from esth.models import load_checkpoint, load_engine
from esth.models.engine import Response, Sampling
from esth.models.gradients import squared_norms
from esth.noise import Restricted, population
from tests.conftest import STOP, VOCABULARY

KINDS = ("llama", "llama-untied", "qwen2", "gpt2")
PROMPTS = [[5, 9], [30]]
SAMPLING = Sampling(temperature=0.7, max_tokens=4)
RESPONSES = [[Response((7, 11, 40, 3), True), Response((8, STOP), False)], [Response((STOP,), False)]]


@pytest.fixture(scope="module")
def engines(tiny_folder):
    return {kind: load_engine(load_checkpoint(str(tiny_folder(kind)))) for kind in KINDS}


def bits(engine):
    return {name: p.detach().clone() for name, p in engine.parameters.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_against_the_written_out_sum_in_float64(engines, kind):
    """Every prefix on its own through a float64 copy of the model; tied weights are one tensor there too."""
    engine = engines[kind]
    found = squared_norms(engine, PROMPTS, RESPONSES, SAMPLING)
    assert found.shape == (3, len(engine.parameters)) and found.dtype == np.float64
    model = type(engine.model)(engine.model.config).double()
    model.load_state_dict(engine.model.state_dict())
    model.eval()
    of = {id(p): name for name, p in engine.parameters.items()}
    names = [of[id(p)] for p in engine.model.parameters()]
    row = 0
    for prompt, group in zip(PROMPTS, RESPONSES, strict=True):
        for response in group:
            model.zero_grad()
            total = 0.0
            for t, token in enumerate(response.tokens):
                logits = model(torch.tensor([[*prompt, *response.tokens[:t]]])).logits[0, -1]
                total = total + logits[token] / 0.7 - torch.logsumexp(logits / 0.7, 0)
            total.backward()
            expected = dict(zip(names, (float(p.grad.norm()) ** 2 for p in model.parameters()), strict=True))
            assert found[row] == pytest.approx([expected[name] for name in engine.parameters], rel=1e-4, abs=1e-8)
            row += 1


@pytest.mark.parametrize(
    ("kind", "name"), [("llama", "model.norm.weight"), ("qwen2", "model.layers.0.self_attn.q_proj.bias")]
)
def test_against_finite_differences_along_random_directions(engines, kind, name):
    """From the slopes of the engine's own scores along 40 directions of 32 coordinates, their gradient."""
    engine, step = engines[kind], 2e-3
    members = population(7, 40)
    slopes = []
    for member in members:
        scores = []
        for signed in (member, replace(member, sign=-1)):
            engine.set_member(Restricted(signed, frozenset([name])), step)
            scored = engine.score(PROMPTS, RESPONSES, SAMPLING)
            scores.append(np.array([s.sum() for row in scored for s in row]))
        slopes.append((scores[0] - scores[1]) / (2 * step))
    engine.restore()
    directions = np.array([m.noise(name, engine.parameters[name].shape) for m in members], dtype=np.float64)
    gradient, *_ = np.linalg.lstsq(directions, np.array(slopes), rcond=None)
    column = list(engine.parameters).index(name)
    found = squared_norms(engine, PROMPTS, RESPONSES, SAMPLING)[:, column]
    assert found == pytest.approx((gradient**2).sum(axis=0), rel=5e-3)


def every_response():
    """All outcomes of at most two tokens."""
    pairs = itertools.product(range(VOCABULARY), repeat=2)
    return [Response((STOP,), False)] + [Response((a, b), b != STOP) for a, b in pairs if a != STOP]


def test_mean_over_every_response_is_the_trace_of_the_fisher_information(engines):
    """E‖∇ log π‖² over all responses of any weight, and the directional form averaged over directions and the same."""
    engine, prompt, sampling = engines["llama"], PROMPTS[0], Sampling(0.3, 2)
    responses = every_response()
    probability = np.exp([s.sum() for s in engine.score([prompt], [responses], sampling)[0]])
    assert probability.sum() == pytest.approx(1, abs=1e-5)
    heavy = probability > 3e-6
    responses, probability = list(itertools.compress(responses, heavy)), probability[heavy]
    assert len(responses) > 50 and probability.sum() > 1 - 1e-3
    norms = squared_norms(engine, [prompt], [responses], sampling).sum(axis=1)
    trace = probability @ norms
    everything = Spoken()
    everything.add(-1, [responses])
    n = 256
    config = DiversityConfig(sigma=1e-3, members=n, prompts=1)
    forms = Jobs([prompt], list(population(3, n)), config, sampling).center_block(engine, everything)["forms"]
    engine.restore()
    along = probability @ forms
    error = along.std(ddof=1) / math.sqrt(n)
    assert error < 0.1 * trace, "the test must be able to fail"
    assert along.mean() == pytest.approx(trace, abs=4 * error)
    # Fewer responses, drawn from the policy: the estimator that the study uses.
    drawn = np.random.default_rng(0).choice(len(responses), size=2000, p=probability / probability.sum())
    estimate = fisher_trace.from_gradients(norms[drawn])
    assert estimate.se < 0.1 * trace
    assert estimate.value == pytest.approx(trace, abs=4 * estimate.se)


def test_a_center_moved_to_a_member_has_the_member_s_gradient(engines):
    engine = engines["llama"]
    center = squared_norms(engine, PROMPTS, RESPONSES, SAMPLING)
    engine.set_member(population(0, 1)[0], 0.1)
    moved = squared_norms(engine, PROMPTS, RESPONSES, SAMPLING)
    engine.restore()
    assert np.abs(moved.sum(axis=1) / center.sum(axis=1) - 1).min() > 0.01
    assert np.array_equal(squared_norms(engine, PROMPTS, RESPONSES, SAMPLING), center)


def test_nothing_of_the_engine_changes(engines):
    engine = engines["qwen2"]
    before, mode = bits(engine), torch.is_grad_enabled()
    squared_norms(engine, PROMPTS, RESPONSES, SAMPLING)
    assert all(torch.equal(before[name], p) for name, p in engine.parameters.items())
    assert not any(p.requires_grad or p.grad is not None for p in engine.model.parameters())
    assert torch.is_grad_enabled() == mode
    broken = [[Response((VOCABULARY + 5,), True)], []]  # an index error in the middle of it
    with pytest.raises((IndexError, RuntimeError)):
        squared_norms(engine, PROMPTS, broken, SAMPLING)
    assert not any(p.requires_grad for p in engine.model.parameters())


def test_temperature_is_part_of_the_policy(engines):
    """At a temperature of 100 the policy is all but uniform, and the gradient of its logits a hundredth."""
    engine, one = engines["llama-untied"], [[Response((7,), True)]]
    hot = squared_norms(engine, PROMPTS[:1], one, Sampling(100.0, 1)).sum()
    hotter = squared_norms(engine, PROMPTS[:1], one, Sampling(200.0, 1)).sum()
    assert hot / hotter == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("responses", "sampling", "message"),
    [
        ([[Response((7,), True)]], Sampling(0.0, 4), "temperature"),
        ([[Response((), True)]], SAMPLING, "at least one token"),
    ],
)
def test_mistakes_are_one_line(engines, responses, sampling, message):
    with pytest.raises(InputError, match=message):
        squared_norms(engines["llama"], PROMPTS[:1], responses, sampling)


def test_other_engines_have_no_gradients(engines):
    class Other:
        pass

    with pytest.raises(InputError, match="transformers engine, not Other"):
        squared_norms(Other(), PROMPTS, RESPONSES, SAMPLING)
