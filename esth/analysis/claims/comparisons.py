"""Rules of the claims that compare ES with GRPO, with the base, and both orders: C1–C4 and C11–C14.

Each function takes runs at one scale and gives its rows. The paper compares ends after equally many updates; an arm
that moves less is flattered by that, so equal responses and equal gain in pass@1 are rows of their own. ES with the
fitness of greedy and of sampled responses are different algorithms, and different rows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from esth.analysis import forgetting
from esth.analysis.claims.claim import Part, Row, judge, less, negative, ratio
from esth.analysis.claims.sources import GRPO, HELD_OUT, TRAIN, Study, Training
from esth.estimators.intervals import Interval

PLACES = {
    "updates": "at equal updates",
    "responses": "at equal responses",
    "pass@1": "at equal gain in pass@1",
    "ends": "at the end",
}

BARELY = 0.5
"""A fall in entropy by less than this share of another is barely one beside it (C1): the reviews give no number."""

PAPER_DRIFT = (40.0, 44.0)
"""Drift of ES over that of GRPO in the paper (C4)."""

KEPT = 0.5
"""The share of GRPO's gain in pass@1 above which "most" of it is kept (C11)."""

FORGOTTEN = forgetting.MARGIN
"""Points of pass@1 on a further task whose loss must be excluded (C12)."""

MEASURABLE = 2**30
"""Bytes of peak memory from which it is more than the libraries' (C14; docs/methods.md)."""

ORDERS = ("ES, then GRPO", "GRPO, then ES")

COUNTDOWN = ("tiny-3", "tiny-4")
"""Models whose task is a Countdown."""


def row(t: Training, claim: str, reading: str, arms: str, parts: list[Part], *, learned: bool, **more: object) -> Row:
    """A judged row of training runs; the arm that the study names first is the one of the short table."""
    verdict, why = judge(parts, learned=learned, seeds=t.seeds)
    shown = Row(claim, t.scale, t.model, reading, arms, tuple(parts), verdict, why, t.notes, t.seeds, t.name)
    return replace(shown, **more)  # type: ignore[arg-type]


def _against(t: Training, claim: str, parts: Callable[[str, str], list[Part]]) -> Iterator[Row]:
    """A row for every ES arm and place where it stands beside GRPO."""
    for arm in t.es:
        for place in t.places:
            yield row(
                t,
                claim,
                PLACES[place],
                f"{arm}; {GRPO}",
                parts(arm, place),
                learned=t.learned(place, arm),
                main=arm == t.es[0],
            )


def entropy(t: Training) -> Iterator[Row]:
    """C1. Seen: GRPO's entropy falls, and that of ES by less than BARELY of it."""
    yield from _against(t, "C1", lambda arm, place: _entropy(t, arm, place))


def _entropy(t: Training, arm: str, place: str) -> list[Part]:
    """ES − BARELY · GRPO as (ES − GRPO) + (1 − BARELY) · GRPO, of which the first is paired."""
    fall, kept = t.effect(place, GRPO, "entropy"), t.difference(place, arm, GRPO, "entropy")
    return [
        Part("entropy (nats/token): GRPO", fall, below=0),
        Part(f"ES less {BARELY:g} of that", less(kept, fall, BARELY - 1.0), above=0),
        Part("ES less GRPO", kept),
        *_beyond(t, arm, place, "entropy", "ES"),
    ]


def _beyond(t: Training, arm: str, place: str, quantity: str, told: str) -> list[Part]:
    """What of the arm's end is not what random steps of its length do as well, told beside equal updates."""
    beyond = t.effect("ends", arm, quantity, "beyond_drift") if place == "updates" else None
    return [] if beyond is None else [Part(f"{told} at its end, less random drift", beyond)]


def coverage(t: Training) -> Iterator[Row]:
    """C2. Seen: GRPO is below the base in pass@16 and pass@32 and above ES in pass@1. At equal gain pass@1 is equal by
    construction: there it is what GRPO loses that must be more than what ES loses, in both.
    """
    yield from _against(t, "C2", lambda arm, place: _coverage(t, arm, place))


def _coverage(t: Training, arm: str, place: str) -> list[Part]:
    lost = [Part(f"GRPO: pass@{k}", t.effect(place, GRPO, f"pass@{k}"), below=0) for k in (16, 32)]
    if place != "pass@1":
        more = Part("GRPO less ES: pass@1", negative(t.difference(place, arm, GRPO, "pass@1")), above=0)
        return [*lost, more, *_beyond(t, GRPO, place, "pass@16", "GRPO: pass@16")]
    kept = [Part(f"ES less GRPO: pass@{k}", t.difference(place, arm, GRPO, f"pass@{k}"), above=0) for k in (16, 32)]
    return [*lost, *kept]


def together(t: Training) -> Iterator[Row]:
    """C3. Seen: ES raises pass@1, @16 and @32 above the base, and each above random drift of the same length."""
    for arm in t.es:
        parts = [Part(f"pass@{k}", t.effect("ends", arm, f"pass@{k}"), above=0) for k in (1, 16, 32)]
        if t.seeds > 1:
            parts += [
                Part(f"pass@{k} less random drift", t.effect("ends", arm, f"pass@{k}", "beyond_drift"), above=0)
                for k in (1, 16, 32)
            ]
        yield row(
            t, "C3", PLACES["ends"], arm, parts, learned=t.learned("ends", arm), main=arm == t.es[0]
        )  # fmt: skip


def distance(t: Training) -> Iterator[Row]:
    """C4. Seen: ES moves further, the ratio's interval above 1. The size is told: whether 40 to 44 lies in it."""
    for found in _against(t, "C4", lambda arm, place: _distance(t, arm, place)):
        (part,) = found.parts
        yield replace(found, notes=(*found.notes, *_paper_drift(part.interval)))


def _distance(t: Training, arm: str, place: str) -> list[Part]:
    es, grpo = (t.values(place, a, "drift") for a in (arm, GRPO))
    return [Part("relative drift, ES over GRPO", ratio(es, grpo), above=1, signed=False)]


def _paper_drift(found: Interval | None) -> tuple[str, ...]:
    if found is None:
        return ()
    low, high = PAPER_DRIFT
    meets = found.lower <= high and low <= found.upper
    return (f"the paper's {low:g} to {high:g} {'meet' if meets else 'lie outside'} it",)


def orders(t: Study) -> Iterator[Row]:
    """C11, of each order, where both have spent the split budget of updates. Seen: its pass@32 is above that of the
    other order and of GRPO alone, and of GRPO's gain in pass@1 it keeps more than KEPT. At equal gain an order may
    still be in its first stage, which is the other method alone: nothing sequential is compared there.
    """
    place = "updates"
    for order, other in (ORDERS, ORDERS[::-1]):
        parts = [
            Part(f"pass@32 less {rival}", t.difference(place, order, rival, "pass@32"), above=0)
            for rival in (other, GRPO)
        ]
        parts.append(Part(f"pass@1 kept, less {KEPT:g} of GRPO's gain", _kept(t, place, order), above=0))
        learned = t.learned(place, order) and t.learned(place, other)
        yield row(t, "C11", f"{order}, {PLACES[place]}", f"{order}; {other}; {GRPO}", parts, learned=learned)


def _kept(t: Training, place: str, order: str) -> Interval | None:
    """Gain of an order − KEPT · gain of GRPO, as (order − GRPO) + (1 − KEPT) · gain of GRPO: the first is paired."""
    return less(t.difference(place, order, GRPO, "pass@1"), t.effect(place, GRPO, "pass@1"), KEPT - 1.0)


def not_forgotten(t: Training) -> Iterator[Row]:
    """C12, of ES on each task that was not trained on. Seen: a loss of FORGOTTEN in pass@1 is excluded. What the
    training set gained more than held-out problems of its task is told.
    """
    for arm in t.es:
        for task in t.further:
            parts = [
                Part(f"{task}: pass@1", t.effect("ends", arm, "pass@1", evaluated=task), above=-FORGOTTEN),
                Part("gain on trained less held-out problems", gap(t, arm)),
            ]
            yield row(
                t, "C12", PLACES["ends"], arm, parts, learned=t.learned("ends", arm), main=arm == t.es[0]
            )  # fmt: skip


def gap(t: Training, arm: str) -> Interval | None:
    """Gain in pass@1 on trained problems less that on held-out ones; other problems, so unpaired."""
    trained, held_out = (t.effect("ends", arm, "pass@1", evaluated=name) for name in (TRAIN, HELD_OUT))
    return less(trained, held_out)


def countdown(t: Training) -> Iterator[Row]:
    """C13, where the task is a Countdown. Seen: ES is above GRPO, in pass@1 and (another row) in greedy accuracy."""
    if t.model not in COUNTDOWN:
        return
    for quantity in ("pass@1", "greedy"):
        for found in _against(t, "C13", lambda arm, place, q=quantity: _accuracy(t, arm, place, q)):  # type: ignore[misc]
            if found.reading != PLACES["pass@1"]:
                yield replace(found, reading=f"{quantity} {found.reading}")


def _accuracy(t: Training, arm: str, place: str, quantity: str) -> list[Part]:
    return [Part(f"{quantity}, ES less GRPO", t.difference(place, arm, GRPO, quantity), above=0)]


def memory(t: Training) -> Iterator[Row]:
    """C14. Seen: the ratio of peak memories is below 1. It is told and not judged where a peak is below MEASURABLE, as
    the libraries are most of it; in the toy world nothing else would be measured.
    """
    if t.scale == "toy":
        return
    for arm in t.es:
        peaks = [t.values("ends", a, "peak_memory") for a in (arm, GRPO)]
        large = min(*peaks[0], *peaks[1]) >= MEASURABLE
        part = Part(
            "peak memory, ES over GRPO", ratio(peaks[0], peaks[1]), below=1 if large else math.inf, signed=False
        )
        gib = " and ".join(f"{np.mean(p) / 2**30:.2f}" for p in peaks)
        notes = (*t.notes, f"{gib} GiB, resident bytes of the process: its libraries too")
        yield row(
            t, "C14", PLACES["ends"], f"{arm}; {GRPO}", [part], learned=t.learned("ends", arm), notes=notes,
            main=arm == t.es[0],
        )  # fmt: skip


RULES = {
    "C1": entropy,
    "C2": coverage,
    "C3": together,
    "C4": distance,
    "C12": not_forgotten,
    "C13": countdown,
    "C14": memory,
}
