"""Claims: every rule gives each verdict, and turns with its sign and thresholds; tables are what the results say."""

import copy
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from esth.analysis.claims import (
    CLAIMS,
    Part,
    Row,
    Verdict,
    ablations,
    collect,
    comparisons,
    cost,
    judge,
    markdown,
    rows,
    short,
    tables,
    to_json,
    updates,
)
from esth.analysis.claims.claim import interval, less, over_seeds, ratio
from esth.analysis.claims.sources import Found, Study
from esth.cli import main
from esth.errors import InputError
from esth.tasks.load import NAMES
from esth.training.config import CONFIGS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"

ES, GREEDY, GRPO = "ES, sampled fitness", "ES, greedy fitness", "GRPO"
ES_GRPO, GRPO_ES = "ES, then GRPO", "GRPO, then ES"
SEEN, CONTRARY, UNDECIDED, NOT_RUN = Verdict
ZERO = [0.0, -0.01, 0.01]


def gib(values: list[float]) -> list[float]:
    return [value * 2**30 for value in values]


def around(value: float, half: float = 0.01) -> list[float]:
    return [value, value - half, value + half]


# Parts and verdicts


@pytest.mark.parametrize(
    ("bounds", "numbers", "verdict"),
    [
        ((0.0, math.inf), (0.2, 0.1, 0.3), SEEN),
        ((0.0, math.inf), (0.2, -0.1, 0.5), UNDECIDED),
        ((0.0, math.inf), (-0.2, -0.3, -0.1), CONTRARY),
        ((-math.inf, 0.0), (-0.2, -0.3, -0.1), SEEN),
        ((-math.inf, 0.0), (0.2, 0.1, 0.3), CONTRARY),
        ((-0.1, 0.1), (0.0, -0.09, 0.09), SEEN),
        ((-0.1, 0.1), (0.0, -0.11, 0.09), UNDECIDED),
        ((-0.1, 0.1), (0.2, 0.11, 0.3), CONTRARY),
        ((-0.1, 0.1), (-0.2, -0.3, -0.11), CONTRARY),
        ((0.0, math.inf), (0.0, 0.0, 0.0), UNDECIDED),
        ((1.0, math.inf), (33.0, 33.0, 33.0), SEEN),
    ],
)
def test_a_part_is_seen_if_its_whole_interval_is_where_the_claim_puts_it(
    bounds: Any, numbers: Any, verdict: Verdict
) -> None:
    assert Part("x", interval(*numbers), *bounds).verdict is verdict


def test_what_was_not_measured_decides_nothing() -> None:
    missing, seen = Part("pass@32", None, above=0), Part("x", interval(1, 0.5, 1.5), above=0)
    assert missing.verdict is UNDECIDED and missing.told() == "pass@32 not measured"
    assert judge([seen, missing]) == (UNDECIDED, "no pass@32")
    assert judge([Part("x", interval(1, 0.5, 1.5))]) == (UNDECIDED, "")  # told, not judged


def test_a_verdict_needs_all_parts_two_seeds_and_an_es_that_learned() -> None:
    seen, contrary = Part("a", interval(1, 0.5, 1.5), above=0), Part("b", interval(1, 0.5, 1.5), below=0)
    open_ = Part("c", interval(0, -1, 1), above=0)
    assert judge([seen, seen]) == (SEEN, "") and judge([seen, open_]) == (UNDECIDED, "")
    assert judge([seen, contrary, open_]) == (CONTRARY, "")
    assert judge([contrary], learned=False) == (UNDECIDED, "ES did not learn")
    assert judge([seen], seeds=1) == (UNDECIDED, "one seed (these runs alone: seen)")
    assert judge([contrary], seeds=1)[1] == "one seed (these runs alone: contrary)"
    assert judge([seen], seeds=2) == (SEEN, "")
    assert judge([contrary], learned=False, seeds=1)[1] == "ES did not learn"


def test_figures_are_told_with_their_intervals() -> None:
    assert Part("pass@1", interval(0.0641, 0.0376, 0.0909)).told() == "pass@1 +0.064 [+0.038, +0.091]"
    assert Part("ratio", interval(33.3, 33.3, 33.3), signed=False).told() == "ratio 33.3"
    assert Part("x", interval(-0.0001, -0.1, 0.1)).told() == "x +0.000 [-0.100, +0.100]"


def test_arithmetic_of_intervals() -> None:
    a, b = interval(1.0, 0.5, 2.0), interval(0.25, 0.0, 0.75)
    assert [float(x) for x in less(a, b) or ()] == [0.75, -0.25, 2.0]
    assert [float(x) for x in less(a, b, -2.0) or ()] == [1.5, 0.5, 3.5]
    assert less(a, None) is None and less(None, b) is None
    # Whatever the dependence, sd(a − b) ≤ sd(a) + sd(b): half-widths add.
    found = ratio([2.0, 8.0], [1.0, 1.0])
    half = float(stats.t.isf(0.025, 1)) * math.log(2.0)  # s/√2 of log 2 and log 8 is log 2
    assert found is not None
    assert [float(x) for x in found] == pytest.approx([4.0, 4.0 * math.exp(-half), 4.0 * math.exp(half)])
    assert [float(x) for x in ratio([6.0], [2.0]) or ()] == pytest.approx([3.0] * 3)
    assert ratio([0.0, 1.0], [1.0, 1.0]) is None and ratio([], []) is None
    assert [float(x) for x in over_seeds([0.25]) or ()] == [0.25] * 3


# A study made by hand

PLACES = ("updates", "responses", "pass@1")
ARMS = (ES, GREEDY, GRPO, GRPO_ES, ES_GRPO, "ES, no z-score", "ES, a tenth of sigma", "ES, three times sigma")
QUANTITIES = ("pass@1", "pass@16", "pass@32", "greedy", "entropy")


def made() -> dict[str, Any]:
    """A study in which all intervals hold 0, but that every arm has learned."""

    def effect(quantity: str) -> dict[str, list[float]]:
        gain = around(0.2) if quantity == "pass@1" else ZERO
        return {"value": around(0.5), "gain": gain, "beyond_drift": gain}

    def row() -> dict[str, Any]:
        sets = {name: {q: effect(q) for q in QUANTITIES} for name in ("train", "held-out", "chain:4")}
        return {"updates": [9, 9, 9], "drift": [1.0, 1.1, 0.9], "peak_memory": gib([100, 101, 99]), "effects": sets}

    def differences() -> dict[str, Any]:
        return {a: {b: {q: ZERO for q in QUANTITIES} for b in ARMS[i + 1 :]} for i, a in enumerate(ARMS[:-1])}

    return copy.deepcopy({
        "margin": 0.05,
        "ends": {arm: row() for arm in ARMS},
        "differences": differences(),
        "matched": {p: {"rows": {arm: row() for arm in ARMS}, "differences": differences()} for p in PLACES},
        "learned": dict.fromkeys(ARMS, True),
    })  # fmt: skip


Change = Callable[[dict[str, Any]], None]


def gain(arm: str, quantity: str, numbers: list[float], evaluated: str = "held-out", field: str = "gain") -> Change:
    def change(study: dict[str, Any]) -> None:
        for place in (study["ends"], *(study["matched"][p]["rows"] for p in PLACES)):
            place[arm]["effects"][evaluated][quantity][field] = numbers

    return change


def difference(a: str, b: str, quantity: str, numbers: list[float]) -> Change:
    """a − b, put where the study has that pair."""

    def change(study: dict[str, Any]) -> None:
        first, second, found = a, b, numbers
        if ARMS.index(a) > ARMS.index(b):
            first, second, found = b, a, [-numbers[0], -numbers[2], -numbers[1]]
        for place in (study["differences"], *(study["matched"][p]["differences"] for p in PLACES)):
            place[first][second][quantity] = found

    return change


def values(arm: str, name: str, numbers: list[float]) -> Change:
    def change(study: dict[str, Any]) -> None:
        for place in (study["ends"], *(study["matched"][p]["rows"] for p in PLACES)):
            place[arm][name] = numbers

    return change


def verdicts(claim: str, *changes: Change, model: str = "tiny-3", scale: str = "tiny") -> dict[str, str]:
    """What the rules say of a changed study, by reading, of the first ES arm."""
    study = made()
    for change in changes:
        change(study)
    found = Study(Found(Path("study.json"), "results/study.json", study), scale, model)
    rule = {**comparisons.RULES, **ablations.RULES}[claim]
    return {row.reading: row.told for row in rule(found) if row.main}


def drops(arm: str) -> tuple[Change, ...]:
    return tuple(gain(arm, f"pass@{k}", around(-0.2)) for k in (16, 32))


CASES = {
    "C1": (
        "at equal updates",
        (gain(GRPO, "entropy", around(-0.2)), difference(ES, GRPO, "entropy", around(0.15))),
        (
            (gain(GRPO, "entropy", around(0.2)),),  # GRPO's rises
            (difference(ES, GRPO, "entropy", around(0.05)),),  # ES falls by .75 of GRPO's
        ),
        (gain(GRPO, "entropy", ZERO),),
    ),
    "C2": (
        "at equal updates",
        (*drops(GRPO), difference(GRPO, ES, "pass@1", around(0.1))),
        (
            (difference(GRPO, ES, "pass@1", around(-0.1)),),
            (gain(GRPO, "pass@16", around(0.1)),),
            (gain(GRPO, "pass@32", around(0.1)),),
        ),
        (gain(GRPO, "pass@32", ZERO),),
    ),
    "C3": (
        "at the end",
        tuple(
            gain(ES, f"pass@{k}", around(0.2), field=field) for k in (1, 16, 32) for field in ("gain", "beyond_drift")
        ),
        tuple(
            (gain(ES, f"pass@{k}", around(-0.2), field=field),) for k in (16, 32) for field in ("gain", "beyond_drift")
        ),
        (gain(ES, "pass@32", ZERO, field="beyond_drift"),),
    ),
    "C4": (
        "at equal gain in pass@1",
        (values(ES, "drift", [4.0, 4.1, 3.9]),),
        ((values(ES, "drift", [0.5, 0.6, 0.4]),),),
        (values(ES, "drift", [0.5, 4.0, 1.0]),),
    ),
    "C7": (
        "at the end",
        (difference(ES, "ES, no z-score", "pass@1", around(0.1)),),
        ((difference(ES, "ES, no z-score", "pass@1", around(-0.1)),),),
        (difference(ES, "ES, no z-score", "pass@1", ZERO),),
    ),
    "C8": (
        "sigma / 10",
        (gain("ES, a tenth of sigma", "pass@1", around(0.4), "train"),),
        ((gain("ES, a tenth of sigma", "pass@1", around(0.1), "train"),), (gain(ES, "pass@1", around(0.9), "train"),)),
        (gain(ES, "pass@1", around(0.4), "train"),),
    ),
    "C12": (
        "at the end",
        (gain(ES, "pass@1", around(-0.005), "chain:4"),),
        ((gain(ES, "pass@1", around(-0.07), "chain:4"),),),
        (gain(ES, "pass@1", around(-0.02), "chain:4"),),
    ),
    "C13": (
        "pass@1 at equal responses",
        (difference(ES, GRPO, "pass@1", around(0.1)),),
        ((difference(ES, GRPO, "pass@1", around(-0.1)),),),
        (difference(ES, GRPO, "pass@1", ZERO),),
    ),
    "C14": (
        "at the end",
        (values(ES, "peak_memory", gib([50, 51, 49])),),
        ((values(ES, "peak_memory", gib([150, 151, 149])),),),
        (values(ES, "peak_memory", gib([50, 151, 100])),),
    ),
}
"""Of each claim a reading, changes that show it, and what on top of them shows the contrary, or leaves it open."""


@pytest.mark.parametrize("claim", CASES)
def test_every_rule_gives_every_verdict(claim: str) -> None:
    reading, shown, turned, opened = CASES[claim]
    assert verdicts(claim, *shown)[reading] == "seen"
    for changes in turned:
        assert verdicts(claim, *shown, *changes)[reading] == "contrary"
    assert verdicts(claim, *shown, *opened)[reading] == "undecided"

    def unlearned(study: dict[str, Any]) -> None:
        study["learned"][ES] = False

    assert verdicts(claim, *shown, unlearned)[reading] == "undecided: ES did not learn"
    if claim not in ("C3", "C8"):  # there the gain itself is what is shown
        less_than_margin = gain(ES, "pass@1", around(0.04))
        assert verdicts(claim, *shown, less_than_margin)[reading] == "undecided: ES did not learn"


def test_memory_that_is_mostly_libraries_is_told_and_not_judged() -> None:
    small = [values(ES, "peak_memory", gib([0.5, 0.5, 0.51])), values(GRPO, "peak_memory", gib([1.5, 1.5, 1.5]))]
    assert verdicts("C14", *small)["at the end"] == "undecided"


def test_runs_that_are_not_paired_have_no_ratio() -> None:
    assert ratio([4.0, 5.0, 6.0], [1.0]) is None


def test_large_sigma_is_judged_by_itself() -> None:
    def of(numbers: list[float]) -> str:
        return verdicts("C8", difference("ES, three times sigma", ES, "pass@1", numbers))["sigma × 3"]

    assert [of(x) for x in (around(-0.1), around(0.1), ZERO)] == ["seen", "contrary", "undecided"]


def test_at_equal_gain_it_is_the_loss_that_is_compared() -> None:
    kept = [difference(ES, GRPO, f"pass@{k}", around(0.1)) for k in (16, 32)]
    reading = "at equal gain in pass@1"
    assert verdicts("C2", *drops(GRPO), *kept)[reading] == "seen"
    assert verdicts("C2", *drops(GRPO), kept[0])[reading] == "undecided"
    for k in (16, 32):
        assert (
            verdicts("C2", *drops(GRPO), *kept, difference(ES, GRPO, f"pass@{k}", around(-0.1)))[reading] == "contrary"
        )


@pytest.mark.parametrize(("order", "other"), [(ES_GRPO, GRPO_ES), (GRPO_ES, ES_GRPO)])
def test_orders(order: str, other: str) -> None:
    shown = [difference(order, rival, "pass@32", around(0.1)) for rival in (other, GRPO)]
    shown += [gain(GRPO, "pass@1", around(0.4)), difference(order, GRPO, "pass@1", around(-0.1))]
    found = verdicts("C11", *shown)
    assert found[f"{order}, at equal updates"] == "seen"
    assert found[f"{other}, at equal updates"] == "contrary"
    # It keeps 1/4 of GRPO's gain of .4, which is not most.
    found = verdicts("C11", *shown, difference(order, GRPO, "pass@1", around(-0.3)))
    assert found[f"{order}, at equal updates"] == "contrary"
    for rival in (other, GRPO):
        found = verdicts("C11", *shown, difference(order, rival, "pass@32", around(-0.1)))
        assert found[f"{order}, at equal updates"] == "contrary"


def test_the_size_of_the_drift_is_told_beside_the_papers() -> None:
    def notes(drifts: list[float]) -> tuple[str, ...]:
        study = made()
        values(ES, "drift", drifts)(study)
        values(GRPO, "drift", [1.0, 1.0, 1.0])(study)
        row = next(comparisons.distance(Study(Found(Path("s"), "s", study), "tiny", "tiny-3")))
        return row.notes

    assert notes([42.0, 41.0, 43.0]) == ("the paper's 40 to 44 meet it",)
    assert notes([4.0, 4.1, 3.9]) == ("the paper's 40 to 44 lie outside it",)


def test_what_a_scale_cannot_show_has_no_row() -> None:
    assert verdicts("C13", model="toy", scale="toy") == {} and verdicts("C14", model="toy", scale="toy") == {}
    study = made()
    for place in (study["ends"], *(study["matched"][p]["rows"] for p in PLACES)):
        for row in place.values():
            del row["effects"]["chain:4"]
    assert not list(comparisons.not_forgotten(Study(Found(Path("s"), "s", study), "toy", "toy")))


def test_an_arm_that_did_not_get_there_leaves_it_undecided() -> None:
    study = made()
    study["matched"]["pass@1"]["rows"][GREEDY] = None
    for pairs in study["matched"]["pass@1"]["differences"].values():
        pairs.pop(GREEDY, None)
    del study["matched"]["pass@1"]["differences"][GREEDY]
    found = [r for r in comparisons.entropy(Study(Found(Path("s"), "s", study), "tiny", "tiny-3")) if not r.main]
    assert [row.told for row in found][-1] == "undecided: ES did not learn"
    assert found[-1].parts[2].interval is None


# Other result files


def sweep() -> dict[str, Any]:
    sizes = {"small": 10, "middle": 20, "large": 30}

    def density(share: float) -> list[dict[str, Any]]:
        return [{"sigma": 0.03, "share": around(share)}]

    return {
        "margin": 0.03,
        "reference": 30,
        "sizes": sizes,
        "ends": {f"{name}, N = {n}": {"updates": [9, 9]} for name in sizes for n in (10, 20, 30)},
        "learned": {f"{name}, N = {n}": True for name in sizes for n in (10, 20, 30)},
        "against the reference": {
            name: {n: {"difference": {"pass@1": around(-0.1 if name == "small" else 0.0)}} for n in ("10", "20")}
            for name in sizes
        },
        "density": {"small": density(0.3), "middle": density(0.4), "large": density(0.5)},
    }


def told(rule: Any, content: dict[str, Any], *more: str) -> dict[str, str]:
    return {row.reading: row.told for row in rule(Found(Path("file.json"), "results/file.json", content), *more)}


def test_population_size() -> None:
    assert told(ablations.population_size, sweep()) == {"members needed": "seen", "density at sigma 0.03": "seen"}
    for name, shown in (("small", 0.0), ("middle", -0.1), ("large", 0.1)):
        changed = sweep()
        changed["against the reference"][name]["20"]["difference"]["pass@1"] = around(shown)
        assert told(ablations.population_size, changed)["members needed"] == "contrary"
    changed = sweep()
    changed["against the reference"]["small"]["10"]["difference"]["pass@1"] = around(-0.03)
    assert told(ablations.population_size, changed)["members needed"] == "undecided"
    changed["learned"]["large, N = 30"] = False
    assert told(ablations.population_size, changed)["members needed"] == "undecided: ES did not learn"
    changed["density"]["large"][0]["share"] = around(0.35)
    assert told(ablations.population_size, changed)["density at sigma 0.03"] == "contrary"
    changed["density"]["large"][0]["share"] = around(0.4)
    assert told(ablations.population_size, changed)["density at sigma 0.03"] == "undecided"


def pairs() -> dict[str, Any]:
    fitness = ("common numbers", "own numbers")
    arms = [f"{estimator}, {name}" for name in fitness for estimator in ("one-point", "two-point")]
    return {
        "margin": 0.03,
        "ends": {arm: {"updates": [9, 9, 9]} for arm in arms},
        "learned": dict.fromkeys(arms, True),
        "two-point less one-point": {name: {"pass@1": ZERO} for name in fitness},
        "measured": [
            {
                "update": u,
                "kinds": {"scoring": {"batch": {"ratio": [0.5, 0.05]}}, "own": {"batch": {"ratio": [1.0, 0.01]}}},
            }
            for u in (0, 60)
        ],
    }


def test_two_point() -> None:
    assert told(ablations.two_point_training, pairs()) == {
        "variance saved": "seen",
        "training, common numbers": "seen",
        "training, own numbers": "seen",
    }
    for kind, shown in (("scoring", [1.1, 0.01]), ("own", [0.7, 0.01])):
        changed = pairs()
        changed["measured"][1]["kinds"][kind]["batch"]["ratio"] = shown
        assert told(ablations.two_point_training, changed)["variance saved"] == "contrary"
    changed = pairs()
    changed["measured"][0]["kinds"]["own"]["batch"]["ratio"] = [0.93, 0.03]
    changed["two-point less one-point"]["own numbers"]["pass@1"] = around(0.1)
    changed["learned"]["one-point, common numbers"] = False
    assert told(ablations.two_point_training, changed) == {
        "variance saved": "undecided",
        "training, common numbers": "undecided: ES did not learn",
        "training, own numbers": "contrary",
    }


def test_two_point_around_a_checkpoint() -> None:
    def content(scoring: float, own: float) -> dict[str, Any]:
        def kind(wins: float) -> dict[str, Any]:
            return {"single": {"wins": {"value": wins, "se": 0.01}, "one_point": {"value": 0.5, "se": 0.1}}}

        return {"model": "demo", "data": {"pairs": 12, "kinds": {"scoring": kind(scoring), "own": kind(own)}}}

    found = [told(ablations.two_point_measured, content(*x))["variance saved"] for x in
             ((0.2, 0.0), (0.2, 0.2), (0.0, 0.0), (0.2, 0.05))]  # fmt: skip
    # One center and one draw of its pairs decide nothing.
    assert found == [
        f"undecided: one seed (these runs alone: {v})" for v in ("seen", "contrary", "contrary", "undecided")
    ]


def zeroed(verdict: str = "seen", seeds: int = 3, share: float = 0.9) -> dict[str, Any]:
    return {
        "title": "tiny-3, ES",
        "margin": 0.02,
        "verdict": verdict,
        "learned": not verdict.startswith("undecided:"),
        "evaluated": {"seeds": seeds},
        "rows": [{"order": "smallest", "cut": "0.776", "effects": {"pass@1": {"less child": ZERO}}}],
        "largest": {"smallest": {"within margin": 0.93}},
        "thresholds": [
            {"name": name, "share": [share, share + 0.001, share - 0.001][:seeds]} for name in ("0.5 step", "1 step")
        ],
    }


def test_sparsity_has_the_verdict_of_its_study() -> None:
    assert told(updates.sparsity, zeroed(), "tiny") == {"can be zeroed": "seen", "within 1 step": "seen"}
    assert told(updates.sparsity, zeroed("contrary", share=0.1), "tiny") == {
        "can be zeroed": "contrary",
        "within 1 step": "contrary",
    }
    one = told(updates.sparsity, zeroed(seeds=1), "real")
    assert one == {
        "can be zeroed": "undecided: one seed (these runs alone: seen)",
        "within 1 step": "undecided: one seed (these runs alone: seen)",
    }
    unlearned = told(updates.sparsity, zeroed("undecided: the run did not learn"), "tiny")
    assert set(unlearned.values()) == {"undecided: ES did not learn"}
    with pytest.raises(InputError, match=r"file\.json is damaged .* 'maybe'"):
        told(updates.sparsity, zeroed("maybe"), "tiny")


def test_several_arms_of_one_claim_are_rows_of_which_the_first_is_shown(tmp_path: Path) -> None:
    for arm, verdict in (("es", "seen"), ("es-half-step", "contrary")):
        file = tmp_path / "sparsity" / f"tiny-3-{arm}" / "study.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(zeroed(verdict)))
    found = [row for row in rows(tmp_path) if row.claim == "C5" and row.reading == "can be zeroed"]
    assert [(str(row.verdict), row.main) for row in found] == [("seen", True), ("contrary", False)]
    assert found[1].source == f"{tmp_path.name}/sparsity/tiny-3-es-half-step/study.json"
    (line,) = [line for line in short(rows(tmp_path)).splitlines() if line.startswith("| C5 ")]
    assert line.endswith("| – | seen | not run |")


def compared(inner: int = 90, outer: int = 99, largest: float = 10.0, chance: float = 10.0) -> dict[str, Any]:
    def run(name: str, kinds: dict[str, int], size: float) -> dict[str, Any]:
        expected = {kind: {"mean": chance, "lower": 5, "upper": 15} for kind in kinds}
        landing = {"top_by_kind": kinds, "expected_by_size": expected}
        return {"name": name, "magnitudes": {"whole": {"largest": size}}, "landing": landing}

    es = {"norm": inner - 40, "attention q": 40, "mlp up": 100 - inner}
    grpo = {"embedding": outer - 1, "head": 1, "mlp up": 100 - outer}
    return {
        "runs": [
            *(run(f"runs/ES, sampled fitness/{seed}", es, largest) for seed in range(2)),
            *(run(f"runs/GRPO/{seed}", grpo, 1.0) for seed in range(2)),
        ]
    }


def test_where_the_largest_updates_lie() -> None:
    def of(content: dict[str, Any]) -> str:
        return told(updates.landing, content, "tiny", "tiny-3")["largest changes"]

    assert of(compared()) == "seen"
    assert of(compared(inner=45)) == of(compared(outer=85)) == of(compared(largest=3.0)) == "contrary"
    assert of(compared(inner=50)) == "undecided"
    assert of(compared(chance=46.0)) == "contrary" and of(compared(chance=45.0)) == "undecided"  # of two kinds each
    one = compared()
    one["runs"] = one["runs"][1:3]
    assert of(one) == "undecided: one seed (these runs alone: seen)"
    one["runs"] = one["runs"][:1]
    with pytest.raises(InputError, match="must compare runs of ES and of GRPO"):
        of(one)


# Files


def test_what_was_not_run_says_what_would_run_it(tmp_path: Path) -> None:
    found = rows(tmp_path)
    assert {row.verdict for row in found} == {NOT_RUN} and {row.claim for row in found} == set(CLAIMS)
    assert all(row.command and row.cost and row.source is None for row in found)
    shutil.copytree(RESULTS / "training" / "demo", tmp_path / "training" / "demo")
    there = [row for row in rows(tmp_path) if row.verdict is not NOT_RUN]
    assert {row.model for row in there} == {"demo"} and {row.seeds for row in there} == {1}
    assert {row.verdict for row in there} == {UNDECIDED}
    assert all("one seed" in row.why and "intervals over prompts only" in row.notes for row in there)
    assert {row.source for row in there} == {f"{tmp_path.name}/training/demo"}


def test_damaged_files_are_named(tmp_path: Path) -> None:
    study = tmp_path / "training" / "tiny-3" / "study.json"
    study.parent.mkdir(parents=True)
    good = json.loads((RESULTS / "training" / "tiny-3" / "study.json").read_text())
    old = {name: value for name, value in good.items() if name != "differences"}
    for content in ("{", "[]", json.dumps(old), json.dumps({**good, "learned": {}}), "\udcff"):
        study.write_text(content, errors="surrogateescape")
        with pytest.raises(InputError, match=f"^{study} "):
            rows(tmp_path)
    study.unlink()
    demo = tmp_path / "training" / "demo"
    shutil.copytree(RESULTS / "training" / "demo", demo)
    point = demo / "es" / "evaluations" / "000012.json"
    for content in ("{}", point.read_text().replace('"greedy"', '"other"')):
        point.write_text(content)
        with pytest.raises(InputError, match=f"^{demo}/es/evaluations"):
            rows(tmp_path)
    point.unlink()
    with pytest.raises(InputError, match=f"^{demo}/es/evaluations .* no held-out start and end"):
        rows(tmp_path)


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "updates").mkdir()
    (tmp_path / "updates" / "tiny-3.json").write_text("{}")
    none = str(tmp_path / "none")
    for arguments in (["--results", str(tmp_path)], ["--results", none], ["--short"], ["--out", str(tmp_path)]):
        assert main(["claims", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (made(), lambda found: list(collect._of_study(Study(found, "tiny", "tiny-3")))),
        (sweep(), lambda found: list(ablations.population_size(found))),
        (pairs(), lambda found: list(ablations.two_point_training(found))),
        (zeroed(), lambda found: list(updates.sparsity(found, "tiny"))),
        (compared(), lambda found: list(updates.landing(found, "tiny", "tiny-3"))),
    ],
    ids=["study", "population size", "two-point", "sparsity", "updates"],
)
def test_anything_in_the_place_of_anything_is_a_message_or_a_row(content: Any, read: Any) -> None:
    rng = random.Random(0)

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path, *(p for key, entry in inside for p in places(entry, (*path, key)))]

    refused = 0
    for path in rng.choices([p for p in places(content) if p], k=80):
        changed = copy.deepcopy(content)
        here = changed
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = rng.choice([None, "text", -1, [], {}, float("nan"), [1], True])
        try:
            found = read(Found(Path("file.json"), "results/file.json", changed))
            assert all(isinstance(row, Row) for row in found)
        except InputError as error:
            refused += 1
            assert "file.json" in str(error) and "\n" not in str(error)
    assert refused > 10


# The committed results


def test_the_tables_in_the_documentation_are_those_of_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--results", str(RESULTS), "--markdown"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "claims.md").read_text()
    assert main(["claims", "--results", str(RESULTS), "--markdown", "--short"]) == 0
    _, _, rest = (ROOT / "README.md").read_text().partition("<!-- claims -->\n")
    assert rest.partition("<!-- /claims -->")[0] == capsys.readouterr().out


def test_figures_are_those_of_the_results() -> None:
    study = json.loads((RESULTS / "training" / "tiny-3" / "study.json").read_text())
    every = rows(RESULTS)
    found = [r for r in every if (r.claim, r.model, r.arms) == ("C3", "tiny-3", ES)]
    gains = study["ends"][ES]["effects"]["held-out"]
    shown = [part.to_dict()["interval"] for part in found[0].parts]
    wanted = [gains[f"pass@{k}"][field] for field in ("gain", "beyond_drift") for k in (1, 16, 32)]
    assert shown == wanted
    (drift,) = [r for r in every if (r.claim, r.model, r.reading) == ("C4", "demo", "at equal updates")]
    lines = [
        (RESULTS / "training" / "demo" / name / "evaluations" / "000012.json").read_text() for name in ("es", "grpo")
    ]
    es, grpo = (json.loads(line)["drift"] for line in lines)
    assert drift.parts[0].to_dict()["interval"] == pytest.approx([es / grpo] * 3)


def test_every_claim_is_told_at_every_scale_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(RESULTS)
    assert list(dict.fromkeys(row.claim for row in found)) == list(CLAIMS)
    assert [row for row in found if row.claim == "C1"][-1].verdict is NOT_RUN
    again = rows(RESULTS)
    assert [row.to_dict() for row in again] == [row.to_dict() for row in found] and markdown(again) == markdown(found)
    assert len(short(found).splitlines()) == 2 + len(CLAIMS) + 2
    assert main(["claims", "--results", str(RESULTS), "--out", str(tmp_path / "claims.json")]) == 0
    text = capsys.readouterr().out
    assert len(tables(found)) == len(CLAIMS) + 1 and max(map(len, text.splitlines())) <= 150
    assert all(f"{claim}  " in text for claim in CLAIMS) and "results/training/tiny-3/study.json" in text
    assert json.loads((tmp_path / "claims.json").read_text()) == json.loads(json.dumps(to_json(found)))


# What the paper's size would cost


def test_hours_are_tokens_over_throughput() -> None:
    (es,) = cost.PLANS["C3"].runs
    sampled, evaluated = 30 * 200 * 300 * 300, 7 * 2 * 256 * 32 * 300
    assert cost.tokens(es.config) == (sampled, evaluated)
    noise = 2 * 30 * 300 * 1.54e9 * 4e-9 / 16 / 3600  # each member's numbers twice, on 16 cores
    assert es.hours == pytest.approx((sampled + evaluated) / 20_000 / 3600 + noise)
    grpo = cost.Run("grpo")
    # 6 FLOPs a parameter and token at 30 % of 989 TFLOP/s.
    backward = 6 * 1.54e9 * sampled / (0.3 * 989e12) / 3600
    assert grpo.hours == pytest.approx(es.hours - noise + backward)
    assert cost.PLANS["C3"].cost.startswith(f"{3 * es.hours:,.0f} hours of one H100 80GB")
    assert cost.PLANS["C2"].cost.startswith(f"at least {3 * (es.hours + grpo.hours):,.0f} hours")
    assert sum(run.hours for run in cost.PLANS["C9"].runs) == pytest.approx(
        ((60 * sampled / 30 + 3 * evaluated) / 20_000 / 3600 + 60 * noise / 30) * (0.49 + 1.54 + 3.09) / 1.54
    )


@pytest.mark.parametrize("claim", CLAIMS)
def test_commands_of_the_papers_size_are_accepted(claim: str) -> None:
    for run in cost.PLANS[claim].runs:
        assert isinstance(run.config, CONFIGS[run.method])
        assert run.command.startswith(f"esth train {run.method} --preset qwen2.5-1.5b")
        assert run.config.task in NAMES and all(task in NAMES for task in run.config.held_out or ())
