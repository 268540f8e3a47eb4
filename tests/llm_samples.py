"""Synthetic populations of known success probabilities, as the studies of `llm/` read them."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from esth.sample import Center, Population, PopulationSample
from llm.samples import Samples, Settings


def synthetic_sample(rng, p, m, *, center=None, scored=0, js=0.0, family="gaussian", sigma=0.004, seed=0):
    """A sample whose member i solves prompt x with probability p[i, x].

    Args:
        rng: of the rewards and of the JS terms.
        p: [members, prompts] success.
        m: responses of each member, and of the center, to each prompt.
        center: [prompts] success of the center; the members' mean if None.
        scored: responses that carry scores, the first ones.
        js: [prompts] or a number: mean of the exponential `chain` values of scored responses, nats.
        family, sigma, seed: entered into the settings only.
    """
    p = np.asarray(p, dtype=np.float64)
    n, x = p.shape
    center = p.mean(0) if center is None else np.broadcast_to(np.asarray(center, dtype=np.float64), (x,))
    prompt, member, sample = (a.ravel() for a in np.meshgrid(np.arange(x), np.arange(n), np.arange(m), indexing="ij"))
    known = sample < scored
    chain = np.where(known, np.broadcast_to(js, (x,))[prompt] * rng.exponential(size=len(prompt)), np.nan)
    said = _responses(prompt, member, sample, rng.random(len(prompt)) < p[member, prompt])
    scores = np.where(known[:, None], -2.0 - 0.01 * np.abs(member[:, None] - np.arange(n)), np.nan)
    terms = {"rb": chain, "chain": chain, "lower": 0.5 * chain, "upper": 2.0 * chain}
    prompt, sample = (a.ravel() for a in np.meshgrid(np.arange(x), np.arange(m), indexing="ij"))
    center_said = _responses(prompt, np.full(x * m, -1), sample, rng.random(x * m) < center[prompt])
    forms = np.where(sample[:, None] < scored, np.ones((x * m, n)), np.nan)
    settings = {
        "prompts": x, "members": n, "samples": m, "scored": scored, "family": family, "sigma": sigma, "seed": seed,
        "task_name": "synthetic", "temperature": 1.0, "max_tokens": 3, "seconds": 0.0,
        "model": "synthetic", "task": "arithmetic", "dtype": "float32",
    }  # fmt: skip
    return PopulationSample(
        settings,
        np.full(n, 1.0 / n),
        [f"prompt {i}" for i in range(x)],
        ["1"] * x,
        Population(**said, scores=scores, **terms),
        Center(**center_said, rate=0.5 * sigma**2 * forms.mean(1), forms=forms),
    )


def _responses(prompt, member, sample, reward):
    return {
        "prompt": prompt.astype(np.int64),
        "member": member.astype(np.int64),
        "sample": sample.astype(np.int64),
        "tokens": [[5, 2]] * len(prompt),
        "text": ["1"] * len(prompt),
        "truncated": np.zeros(len(prompt), dtype=np.bool_),
        "reward": reward.astype(np.float64),
    }


def saved(folder: Path, iid: PopulationSample, pairs: PopulationSample | None = None, **settings) -> Samples:
    """`Samples` that read the given populations from a new `folder`, with no model."""
    s = iid.settings
    sizes = {"members": s["members"], "prompts": s["prompts"], "samples": s["samples"], "scored": s["scored"] or None}
    if pairs is not None:
        sizes |= {"pairs": pairs.settings["members"] // 2, "pair_samples": pairs.settings["samples"]}
    folder.mkdir(parents=True)
    kept = {k: v for k, v in asdict(Settings(**(sizes | settings))).items()}
    (folder / "settings.json").write_text(json.dumps({"model": "synthetic", "settings": kept}))
    iid.save(folder / "population")
    if pairs is not None:
        pairs.save(folder / "pairs")
    return Samples(folder, None)


def logistic_successes(rng, level, n, *, member=0.3, interaction=0.3, antithetic=False, curvature=0.0):
    """[n, x] successes expit(aₓ + bᵢ + cᵢₓ), a = `level` [x]: members differ, and so does what each is good at.

    Antithetic members 2k and 2k+1 have opposite b and c. `curvature` adds a multiple of (b + c)², so that the smoothed
    policy differs from the center, expit(aₓ).
    """
    x = len(level)
    half = n // 2 if antithetic else n
    b, c = member * rng.standard_normal((half, 1)), interaction * rng.standard_normal((half, x))
    shift = b + c
    if antithetic:
        shift = np.stack([shift, -shift], axis=1).reshape(n, x)
    return 1 / (1 + np.exp(-(np.asarray(level) + shift + curvature * shift**2)))


def verifiable(folder: Path, model: str, questions, *, temperature: float) -> Path:
    """A task file whose answers are what the center of `model` says most often in one token: often right."""
    from esth.models import load_checkpoint, load_engine
    from esth.models.engine import Sampling

    engine = load_engine(load_checkpoint(model))
    encode, decode = engine.checkpoint.encode, engine.checkpoint.decode
    said = engine.sample([encode(q) for q in questions], 40, Sampling(temperature, 1), 7)
    lines = []
    for question, row in zip(questions, said, strict=True):
        texts = [t for t in (decode(r.tokens).strip() for r in row) if t]
        lines.append(json.dumps({"question": question, "answer": max(sorted(set(texts)), key=texts.count)}))
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path
