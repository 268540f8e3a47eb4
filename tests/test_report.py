"""esth report: one HTML file that opens from disk, holds the numbers of the runs, and is the same for the same runs."""

import base64
import json
import resource
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from llm_samples import synthetic_sample

from esth.analysis.report import html, write_report
from esth.analysis.report.runs import experiments, read_run
from esth.cli import main
from esth.errors import InputError
from esth.estimators.intervals import Interval, crossed
from esth.training import ESConfig, GRPOConfig, RunFolder, train
from esth.training.compare import random_drift

SIZES = {"problems": 40, "prompts": 20, "evaluation_prompts": 30}
TOY_ES = {**SIZES, "model": "toy", "updates": 6, "evaluate_every": 2, "sigma": 0.3, "fitness": "sampled"}
TOY_GRPO = {**SIZES, "model": "toy", "updates": 6, "evaluate_every": 2, "learning_rate": 0.1}
TINY = {"model": "tiny-3", "updates": 2, "evaluation_prompts": 8, "evaluation_samples": 4, "held_out": ["chain:4"]}
VOID = {"meta", "br", "wbr", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Start tags in their order, attributes, and every table as rows of lines of text, by its caption."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "caption":
            self.caption = ""
        elif tag == "tr":
            self.tables[self.caption].append([])
        elif tag in ("td", "th"):
            self.tables[self.caption][-1].append([""])
        elif tag == "br":
            self.tables[self.caption][-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        if tag == "caption":  # a later experiment has the same ones
            self.caption += " (2)" * (self.caption in self.tables)
            self.tables[self.caption] = []

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if "caption" in self.open:
            self.caption += data
        elif {"td", "th"} & set(self.open):
            self.tables[self.caption][-1][-1][-1] += data

    def cell(self, caption: str, row: str, column: str) -> list[str]:
        """The lines of a cell, by the beginnings of its row's and its column's name."""
        head, *rows = self.tables[caption]
        number = next(i for i, name in enumerate(head) if name[0].startswith(column))
        return next(r[number] for r in rows if r[0][0].startswith(row))


def shown(interval: Interval, sign: str = "") -> str:
    """As the report writes it, to three decimals."""
    value, lower, upper = (f"{float(x):{sign}.3f}".replace("-", "−") for x in interval)
    return f"{value} [{lower}, {upper}]"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Toy: two seeds of ES and GRPO, and GRPO from the end of each ES; tiny: one of each."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train(ESConfig(**TOY_ES, seed=seed), folder / f"es{seed}")
        train(GRPOConfig(**TOY_GRPO, seed=seed), folder / f"grpo{seed}")
        train(GRPOConfig(**TOY_GRPO, seed=seed, init=str(folder / f"es{seed}")), folder / f"next{seed}")
    train(ESConfig(**TINY, sigma=0.03, population=4, prompts=4), folder / "tiny-es")
    train(GRPOConfig(**{**TINY, "held_out": None}, learning_rate=3e-4, prompts=4), folder / "tiny-grpo")
    return folder


@pytest.fixture(scope="module")
def page(runs) -> Page:
    return Page(html([runs / n for n in ("es0", "es1", "grpo0", "grpo1", "tiny-es", "tiny-grpo")]))


def copy(run: Path, to: Path, *, updates: int = 0, points: int = 1) -> Path:
    """The run as it would be if it had been stopped."""
    shutil.copytree(run, to)
    for file in sorted((to / "evaluations").iterdir())[points:]:
        file.unlink()
    lines = (to / "metrics.jsonl").read_text().splitlines(keepends=True)
    (to / "metrics.jsonl").write_text("".join(lines[:updates]))
    return to


# The page


def test_the_page_needs_no_network_and_no_scripts(page):
    names = Counter(tag for tag, _ in page.tags)
    assert names["script"] == names["link"] == names["iframe"] == 0
    assert names["section"] == 2 and names["h1"] == names["main"] == names["title"] == 1
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    assert "url(" not in page.rawdata and "@import" not in page.rawdata


def test_the_page_can_be_read_aloud(page):
    """A language, a title, alternative texts, captions, and headers that say what they head."""
    assert dict(page.tags)["html"] == {"lang": "en"}
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 6 and all(len(attributes["alt"]) > 60 for attributes in images)
    assert "A ES, B GRPO" in images[0]["alt"] and "C ES, D GRPO" in images[3]["alt"]
    names = Counter(tag for tag, _ in page.tags)
    assert names["table"] == names["caption"] == names["thead"]
    assert {attributes.get("scope") for tag, attributes in page.tags if tag == "th"} == {"col", "row"}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_figures_are_vector_graphics_of_their_own(page):
    for attributes in (a for tag, a in page.tags if tag == "img"):
        kind, _, data = attributes["src"].partition(";base64,")
        svg = ET.fromstring(base64.b64decode(data))
        assert kind == "data:image/svg+xml" and svg.tag.endswith("svg")
        links = [v for e in svg.iter() for name, v in e.attrib.items() if name.endswith("href")]
        assert links and all(link.startswith("#") for link in links)


def test_the_command_writes_the_page_and_the_same_runs_give_the_same_bytes(runs, tmp_path, capsys):
    out = tmp_path / "new" / "report.html"
    assert main(["report", str(runs / "es0"), str(runs / "grpo0"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"written to {out}\n"
    assert out.read_bytes() == html([runs / "es0", runs / "grpo0"]).encode()
    assert list(out.parent.iterdir()) == [out]


# The numbers


def test_one_run_is_reported_with_the_methods_of_its_evaluations(runs):
    page = Page(html([runs / "tiny-es"]))
    start, *_, end = RunFolder(runs / "tiny-es").points()
    tables = {"held-out": "Held-out problems", "train": "Problems trained on", "chain:4": "chain:4: not trained on"}
    for name, caption in tables.items():
        a, b, caption = end.sets[name], start.sets[name], f"{caption}, at the end"
        assert page.cell(caption, "base", "pass@1") == [shown(b.pass_at(1))]
        for k in (1, 4):
            both = [shown(a.pass_at(k)), shown(a.difference(b, k), "+")]
            assert page.cell(caption, "A ES", f"pass@{k}") == both
        expected = {
            "greedy": (a.greedy_accuracy(), a.greedy_difference(b)),
            "entropy": (a.mean_entropy(), a.entropy_difference(b)),
            "length": (a.mean_length(), a.length_difference(b)),
            "truncated": (a.truncation(), a.truncation_difference(b)),
        }
        for column, (value, difference) in expected.items():
            assert page.cell(caption, "A ES", column) == [shown(value), shown(difference, "+")]
    assert "for this one run" in page.text and "other seeds of training and" not in page.text


def test_seeds_are_reported_with_crossed_intervals(runs, page):
    pairs = [RunFolder(runs / f"grpo{seed}").points() for seed in (0, 1)]
    after = np.stack([points[-1].sets["held-out"].successes for points in pairs])
    before = np.stack([points[0].sets["held-out"].successes for points in pairs])
    for k in (1, 16, 32):
        a, b = 1 - (1 - after) ** k, 1 - (1 - before) ** k
        expected = [shown(crossed(a)), shown(crossed(a - b), "+")]
        assert page.cell("Held-out problems, at the end", "B GRPO", f"pass@{k}") == expected
    assert "other seeds of training and other problems" in page.text


def test_cost_is_that_of_the_metrics(runs, page):
    lines = [json.loads(line) for s in (0, 1) for line in (runs / f"es{s}" / "metrics.jsonl").read_text().splitlines()]
    caption = "What it cost, until the last evaluated center"
    for column, name in (("responses", "responses"), ("tokens", "tokens"), ("forward", "forward_passes")):
        assert page.cell(caption, "A ES", column) == [f"{sum(line[name] for line in lines) / 2:,.0f}"]
    drift = np.mean([RunFolder(runs / f"es{s}").points()[-1].drift for s in (0, 1)])
    assert page.cell(caption, "A ES", "drift") == [f"{drift:.3g}"]
    assert page.cell(caption, "B GRPO", "backward")[0] not in ("", "0")
    assert page.cell(caption, "A ES", "backward") == ["0"]


def test_arms_are_compared_at_equal_updates_responses_and_gains(runs, page):
    captions = [c for c in page.tables if c.startswith("At equal")]
    assert [c.split(":")[0] for c in captions][:4] == [
        f"At equal {w}" for w in ("updates", "responses", "pass@1", "greedy")
    ]
    assert captions[0] == "At equal updates: 6 updates"
    responses = 6 * 20 * 8  # GRPO's; ES has 30 members
    assert captions[1] == f"At equal responses: {responses:,} responses"
    # ES spends 600 an update and is evaluated after every second one: 960 of the 1,200 until there.
    assert page.cell(captions[1], "A ES", "responses") == [f"{responses:,}"]
    after, before = (
        np.stack([RunFolder(runs / f"es{s}").points()[i].sets["held-out"].successes for s in (0, 1)]) for i in (1, 0)
    )
    assert page.cell(captions[1], "A ES", "gain in pass@1") == [shown(crossed(0.8 * (after - before)), "+")]


def test_arms_are_compared_on_the_tasks_that_both_have(runs, page):
    """The tiny runs: only one of them was evaluated on chain:4."""
    assert [c for c in page.tables if c.endswith("not trained on, at the end")] == []
    assert page.cell("Settings that differ between arms or from the default (2)", "held_out", "C") == ["chain:4"]


def test_settings_side_by_side(page):
    caption = "Settings that differ between arms or from the default"
    assert page.cell(caption, "sigma", "A") == ["0.3"] and page.cell(caption, "sigma", "B") == [""]
    assert page.cell(caption, "learning_rate", "B") == ["0.1"]
    told = [row[0][0] for row in page.tables[caption]]
    assert "model" in told and "seed" not in told and "beta" not in told
    assert "beta" in [row[0][0] for row in page.tables["All settings"]]


def test_arms_of_one_method_are_told_by_what_differs(runs, tmp_path):
    train(ESConfig(**{**TOY_ES, "sigma": 0.1}), tmp_path / "small")
    page = Page(html([runs / "es0", tmp_path / "small", runs / "grpo0"]))
    rows = [row[0][0] for row in page.tables["What it cost, until the last evaluated center"]]
    assert rows == ["arm", "A ES", "B ES, sigma 0.1", "C GRPO"]


def test_stages_are_one_arm(runs):
    """GRPO from the end of ES: costs, updates and evaluations of both, gains over the base."""
    page = Page(html([runs / f"{name}{seed}" for name in ("next", "es") for seed in (0, 1)]))
    points = [RunFolder(runs / f"next{seed}").points()[-1] for seed in (0, 1)]
    caption = "What it cost, until the last evaluated center"
    assert page.cell(caption, "A ES, then GRPO", "updates") == ["12"]
    spent = np.mean([p.spent.responses for p in points])
    assert page.cell(caption, "A", "responses") == [f"{spent:,.0f}"] and spent == 6 * 600 + 6 * 160
    base = np.stack([RunFolder(runs / f"es{s}").points()[0].sets["held-out"].successes for s in (0, 1)])
    here = np.stack([p.sets["held-out"].successes for p in points])
    cell = page.cell("Held-out problems, at the end", "A", "pass@1")
    assert cell == [shown(crossed(here)), shown(crossed(here - base), "+")]
    assert [row[1][0] for row in page.tables["Along training, held-out"][1:]] == ["0", "2", "4", "6", "8", "10", "12"]


def test_a_stage_alone_is_measured_from_its_own_start(runs):
    page = Page(html([runs / "next0", runs / "grpo0"]))
    start, *_, end = (p.sets["held-out"] for p in RunFolder(runs / "next0").points())
    assert "A GRPO goes on from runs that are not in this report" in page.text
    assert page.cell("Held-out problems, at the end", "start of A GRPO", "pass@1") == [shown(start.pass_at(1))]
    assert page.cell("Held-out problems, at the end", "A", "pass@1")[1] == shown(end.difference(start, 1), "+")
    assert not any(c.startswith("At equal") for c in page.tables)


def test_random_drift_is_shown_where_it_was_made(runs, page, tmp_path):
    caption = "The end less random drift of the same length, held-out problems"
    assert page.cell(caption, "A", "has learned") == ["cannot be said: no random drift beside it"]
    shutil.copytree(runs / "es0", tmp_path / "es")
    run = RunFolder(tmp_path / "es")
    end = run.points()[-1]
    draws = random_drift(run, end.drift)
    drawn = np.mean([next(e for e in draw if e.name == "held-out").successes for draw in draws], axis=0)
    with_control = Page(html([tmp_path / "es"]))
    assert with_control.cell(caption, "A", "has learned")[0] in ("yes", "no")
    shown_value = with_control.cell(caption, "A", "pass@1")[0].split()[0]
    value = (end.sets["held-out"].successes - drawn).mean()
    assert shown_value == f"{value:+.3f}".replace("-", "−")


def test_runs_that_cannot_be_compared_are_apart(runs):
    found = experiments([read_run(runs / n) for n in ("es0", "tiny-es", "grpo0", "tiny-grpo", "es1")])
    assert [[(arm.key, len(arm.chains)) for arm in e.arms] for e in found] == [
        [("A ES", 2), ("C GRPO", 1)],
        [("B ES", 1), ("D GRPO", 1)],
    ]


# Runs that are not over


def test_a_run_that_was_stopped_is_reported_as_far_as_it_got(runs, tmp_path):
    copy(runs / "es0", tmp_path / "run", updates=3, points=2)
    page = Page(html([tmp_path / "run", runs / "grpo0"]))
    assert "is not finished: 3 of 6 updates" in page.text
    assert page.cell("What it cost, until the last evaluated center", "A", "updates") == ["2"]
    assert "At equal updates: 2 updates" in page.tables


def test_a_run_with_one_evaluation_has_no_gain_and_says_so(runs, tmp_path):
    copy(runs / "es0", tmp_path / "run", updates=1)
    page = Page(html([tmp_path / "run"]))
    assert "has one evaluation only, after 0 updates: no gain yet" in page.text
    assert page.cell("Held-out problems, at the end", "A ES", "pass@1") == ["not evaluated after its start"]
    assert not any(c.startswith("At equal") for c in page.tables)


@pytest.mark.parametrize("identity", [True, False])
def test_a_run_without_an_evaluation_is_named(runs, tmp_path, identity):
    run = copy(runs / "es0", tmp_path / "run", points=0)
    if not identity:
        (run / "identity.json").unlink()
    page = Page(html([run]))
    assert "has no evaluation yet" in page.text and page.tables == {}
    assert "has no evaluation yet" in Page(html([run, runs / "grpo0"])).text


# Text of others


def test_names_are_escaped_and_those_that_are_no_text_are_written_all_the_same(runs, tmp_path):
    name = '<b>"x" & {{ 7 * 7 }}<!--'
    shutil.copytree(runs / "es0", tmp_path / name)
    shutil.copytree(runs / "grpo0", Path(f"{tmp_path}/a\udcff"))
    write_report([tmp_path / name, Path(f"{tmp_path}/a\udcff")], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert name in page.text and "b" not in [tag for tag, _ in page.tags]
    assert f"{tmp_path}/a?" in page.text


# A sampled population


def test_a_sample_of_esth_diversity_is_reported_too(tmp_path):
    from esth.diversity import report

    rng = np.random.default_rng(0)
    sample = synthetic_sample(rng, rng.uniform(0.2, 0.8, (4, 12)), 6, scored=4, js=0.1)
    sample.save(tmp_path / "esth-diversity" / "sample")
    for folder in (tmp_path / "esth-diversity", tmp_path / "esth-diversity" / "sample"):
        page = Page(html([folder]))
        q = report(sample)["JS chain"]
        cell = page.cell("Quantities", "JS chain", "value")[0]
        assert cell == f"{q.value:.4g} [{q.lower:.3g}, {q.upper:.3g}]".replace("-", "−")
        assert len(page.tables["Checks"]) == 1 + len(report(sample).checks)


# Bad input


def refused(capsys, *arguments: str) -> str:
    """The one line that the command says before it exits with status 2."""
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("esth: ") and err.count("\n") == 1
    return err


def test_what_is_no_run(runs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "empty", runs / "es0" / "config.json"):
        assert "neither a run of esth train (config.json)" in refused(capsys, str(path), "--out", f"{tmp_path}/r.html")
    assert main(["report", "--out", f"{tmp_path}/r.html"]) == 2
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", '{"method": "es"', "is no JSON"),
        ("config.json", '{"method": "sgd"}', "method 'sgd'"),
        ("identity.json", "[1]", "holds no JSON object"),
        ("evaluations/000002.json", '{"update": 2}', "damaged or from another version"),
        ("evaluations/000002.json", "half a fi", "is no JSON"),
        ("metrics.jsonl", "{nothing}\n", "is damaged"),
        ("metrics.jsonl", '{"reward": 1}\n', "is damaged: a line has no update"),
    ],
)
def test_a_damaged_run(runs, tmp_path, capsys, file, content, said):
    shutil.copytree(runs / "es0", tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    line = refused(capsys, str(tmp_path / "run"), "--out", str(tmp_path / "report.html"))
    assert said in line and str(tmp_path / "run") in line
    assert not (tmp_path / "report.html").exists()


def test_one_run_is_not_two_seeds(runs, tmp_path, capsys):
    shutil.copytree(runs / "es0", tmp_path / "copy")
    for other in (runs / "es0", tmp_path / "copy"):
        assert "are the same run" in refused(capsys, str(runs / "es0"), str(other), "--out", str(tmp_path / "r.html"))


def test_where_the_report_cannot_be_written(runs, tmp_path, capsys):
    run = str(runs / "es0")
    (tmp_path / "folder.html").mkdir()
    before = (runs / "es0" / "config.json").read_bytes()
    for out in (tmp_path, tmp_path / "folder.html", runs / "es0" / "config.json"):
        assert "must be a file that ends in .html" in refused(capsys, run, "--out", str(out))
    assert (runs / "es0" / "config.json").read_bytes() == before
    assert "cannot write" in refused(capsys, run, "--out", str(runs / "es0" / "config.json" / "report.html"))


def test_a_disk_that_refuses_leaves_the_report_that_was_there(runs, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("an earlier report")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*report\.html: File too large"):
            write_report([runs / "es0"], out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.read_text() == "an earlier report" and list(tmp_path.iterdir()) == [out]


# A browser


def rendered(file: Path, profile: Path) -> list[str]:
    """Tags of the page as a browser has understood it."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed: the page is not rendered")
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run([browser, *options, file.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [tag for tag, _ in Page(done.stdout).tags]


@pytest.mark.slow
def test_a_browser_reads_the_page_as_it_was_written(runs, tmp_path):
    """What a browser has to repair (an element in the wrong place, one left open) has other tags afterwards."""
    report = tmp_path / "report.html"
    write_report([runs / "es0", runs / "grpo0", runs / "tiny-es"], report)
    written = [tag for tag, _ in Page(report.read_text(encoding="utf-8")).tags]
    assert rendered(report, tmp_path / "profile") == written
    broken = tmp_path / "broken.html"
    broken.write_text(report.read_text(encoding="utf-8").replace("<tbody>", "<p></p>", 1).replace("</tbody>", "", 1))
    assert rendered(broken, tmp_path / "profile") != written
