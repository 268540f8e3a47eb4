"""Rules of the claims on the updates themselves: C5 from llm.sparsity, C6 from esth compare."""

import math
import re
from collections.abc import Callable, Iterator

from esth.analysis.claims.claim import SEEDS, UNLEARNED, Part, Row, Verdict, judge, one_seed, over_seeds, ratio
from esth.analysis.claims.sources import Found
from esth.analysis.sparsity_curve import PAPER
from esth.errors import InputError

STEPS = {"1 step": "an update's rms in a coordinate (P4.4)", "1 sigma": "σ"}
"""Both readings of "one ES step" (`esth.analysis.sparsity`)."""

MOST = 0.5
"""Share of ES's largest coordinates in norms and attention projections, above which the claim puts it (C6)."""

ALL = 0.9
"""Share of GRPO's largest coordinates in embeddings and head that is called all of them."""

ORDER = math.sqrt(10.0)
"""A ratio above this is nearer to an order of magnitude than to none."""


def sparsity(found: Found, scale: str) -> Iterator[Row]:
    """C5, its two halves. Zeroed: the study's own rule (`sparsity_curve.verdict`): up to the paper's least share, a
    loss of the study's margin in pass@1 is excluded. Within a step: more than that share lies below one step, in both
    readings of it.
    """
    seeds, title, name = int(found.number("evaluated", "seeds")), found.text("title"), found.name
    model = title.partition(",")[0]
    verdict, _, why = found.text("verdict").partition(": ")
    if verdict not in tuple(Verdict):
        raise InputError(f"{found.file} is damaged or from another version: its verdict is {verdict!r}")
    loss = next(
        (
            found.interval("rows", i, "effects", "pass@1", "less child")
            for i in range(found.count("rows"))
            if (found.text("rows", i, "order"), found.text("rows", i, "cut")) == ("smallest", f"{PAPER[0]:g}")
        ),
        None,
    )
    judged = Verdict(verdict)
    why = UNLEARNED if why else ""
    if seeds < SEEDS and not why:
        judged, why = Verdict.UNDECIDED, one_seed(judged)
    largest = found.number("largest", "smallest", "within margin")
    margin = found.number("margin")
    notes = (f"with a loss of {margin:g} excluded, {largest:.1%} can be zeroed",)
    yield Row("C5", scale, model, "can be zeroed", title, (Part(f"pass@1, smallest {PAPER[0]:.1%} zeroed", loss),),
              judged, why, notes, seeds, name)  # fmt: skip
    learned = found.truth("learned")
    for i in range(found.count("thresholds")):
        step = found.text("thresholds", i, "name")
        if step in STEPS:
            share = over_seeds(found.numbers("thresholds", i, "share"))
            parts = [Part(f"share of |Δ| below {step}", share, above=PAPER[0], signed=False)]
            verdict_, why_ = judge(parts, learned=learned, seeds=seeds)
            yield Row("C5", scale, model, f"within {step}", title, tuple(parts), verdict_, why_,
                      (f"one step read as {STEPS[step]}",), seeds, name)  # fmt: skip


def landing(found: Found, scale: str, model: str) -> Iterator[Row]:
    """C6. Seen: of the largest coordinates of ES more than MOST are in norms and attention projections, and more than
    exchangeable changes would put there; of those of GRPO more than ALL are in embeddings and head; and the largest
    change of ES is more than ORDER times that of GRPO's.
    """
    names = [found.text("runs", i, "name") for i in range(found.count("runs"))]
    es, grpo = ([i for i, name in enumerate(names) if _method(name, found) == method] for method in ("es", "grpo"))
    if len(set(names)) < len(names):
        raise InputError(f"{found.file} compares one run twice, which would count as two seeds (C6)")
    if not es or not grpo:
        raise InputError(f"{found.file} must compare runs of ES and of GRPO with their base (C6)")
    inner, chance = _shares(found, es, _inner), _shares(found, es, _inner, "expected_by_size", "mean")
    largest = [[found.number("runs", i, "magnitudes", "whole", "largest") for i in runs] for runs in (es, grpo)]
    more = over_seeds([share - by_size for share, by_size in zip(inner, chance, strict=True)])
    parts = [
        Part("of ES's largest, in norms and attention", over_seeds(inner), above=MOST, signed=False),
        Part("less what exchangeable changes would put there", more, above=0),
        Part("of GRPO's, in embeddings and head", over_seeds(_shares(found, grpo, _outer)), above=ALL, signed=False),
        Part("largest change, ES over GRPO", ratio(largest[0], largest[1]), above=ORDER, signed=False),
    ]
    seeds = min(len(es), len(grpo))
    verdict, why = judge(parts, seeds=seeds)
    yield Row("C6", scale, model, "largest changes", "ES; GRPO", tuple(parts), verdict, why, (), seeds, found.name)


def _inner(kind: str) -> bool:
    return kind == "norm" or kind.startswith("attention")


def _outer(kind: str) -> bool:
    return kind.startswith("embedding") or kind == "head"


def _shares(
    found: Found, runs: list[int], of: Callable[[str], bool], name: str = "top_by_kind", *field: str
) -> list[float]:
    """Of the largest coordinates of each run, those of some kinds; none where a run changed nothing."""

    def count(run: int, name: str, of: Callable[[str], bool], *field: str) -> float:
        at = ("runs", run, "landing", name)
        return sum(found.number(*at, kind, *field) for kind in found.names(*at) if of(kind))

    tops = [count(run, "top_by_kind", lambda kind: True) for run in runs]
    if min(tops) <= 0:
        return []
    return [count(run, name, of, *field) / top for run, top in zip(runs, tops, strict=True)]


def _method(name: str, found: Found) -> str:
    """es or grpo, by the last of these words in a run's path."""
    words = [word for word in re.findall(r"[a-z]+", name.lower()) if word in ("es", "grpo")]
    if not words:
        raise InputError(f"{found.file}: {name!r} names neither ES nor GRPO")
    return words[-1]
