"""The documentation: its commands parse, its links lead somewhere, and every public name says what it is."""

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from esth.cli import parse
from esth.diversity.config import DiversityConfig
from esth.training.config import CONFIGS, ESConfig, from_json, to_json
from esth.training.evaluate import EvaluationConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [p for p in sorted((ROOT / "esth").rglob("*.py")) if not p.stem.startswith("_") or p.stem == "__init__"]


# Commands


def commands(text: str) -> Iterator[list[str]]:
    """The commands of fenced bash blocks, without variables before them."""
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|")
            lexer.whitespace_split = True
            words = list(lexer)
            start = 0
            for i, word in enumerate([*words, ";"]):
                if word in (";", "&&", "||", "|"):
                    found = words[start:i]
                    while found and re.fullmatch(r"[A-Z_]+=\S*", found[0]):
                        found = found[1:]
                    if found:
                        yield found
                    start = i + 1


COMMANDS = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:60]}")
    for page in PAGES
    for words in commands(page.read_text(encoding="utf-8"))
    if Path(words[0]).name in ("esth", "python", "python3")
]


def check_esth(arguments: list[str]) -> None:
    """Parse a command of esth, and make its configuration."""
    options = parse(arguments)
    given = options[options.subcommand]
    kind = {"diversity": DiversityConfig, "evaluate": EvaluationConfig}.get(options.subcommand)
    if options.subcommand == "train":
        given, kind = given[given.subcommand], CONFIGS[given.subcommand]
    if kind is not None:
        kind(**{f.name: getattr(given, f.name) for f in fields(kind)})


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help texts of modules, by their names."""
    return {}


def check_module(arguments: list[str], helps: dict[str, str], capsys) -> None:
    """Whether a module has the options that a command gives it."""
    module, *rest = arguments
    if module in ("pytest", "venv"):
        return
    if module == "notebooks.refresh":
        assert set(rest) <= {f"{number:02}" for number in range(1, 8)}
        return
    if module not in helps:
        name = module if (ROOT / Path(*module.split("."))).with_suffix(".py").is_file() else f"{module}.__main__"
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(name).main(["--help"])
        assert ended.value.code == 0
        helps[module] = capsys.readouterr().out.replace("-", "_")
    for word in rest:
        if word.startswith("--"):
            assert re.search(rf"{word.partition('=')[0].replace('-', '_')}\b", helps[module]), f"{module} has no {word}"


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_parse(words, tmp_path, monkeypatch, helps, capsys):
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "config.json").write_text(json.dumps(to_json(ESConfig())))
    name, *rest = words
    if Path(name).name == "esth":
        monkeypatch.chdir(tmp_path)
        check_esth(rest)
    elif rest[0] == "-m":
        check_module(rest[1:], helps, capsys)
    else:
        assert (ROOT / rest[0]).is_file()


def test_commands_are_found_and_wrong_ones_refused():
    text = "```bash\nA=1 esth train es --sigma 1 && x \\\n  y # esth no\n```\n```\nesth nothing\n```"
    assert list(commands(text)) == [["esth", "train", "es", "--sigma", "1"], ["x", "y"]]
    assert len(COMMANDS) > 30
    for wrong in (
        "train es --sgima 1",
        "train es --sigma one",
        "train grpo --preset qwen2.5-1.5b --engine vllm",
        "trian",
    ):
        with pytest.raises(Exception, match=r"\S"):
            check_esth(wrong.split())


def test_presets_of_the_paper_spend_what_the_page_says():
    """6,000 responses an update, 300 updates, both methods."""
    from esth.training.presets import PRESETS

    for preset in ("qwen2.5-1.5b", "llama-3.2-3b"):
        es, grpo = (from_json(PRESETS[method][preset], method) for method in ("es", "grpo"))
        assert es.population * es.prompts * es.samples == grpo.num_generations * grpo.prompts == 6000
        assert (es.updates, grpo.updates, es.sigma, es.step) == (300, 300, 1e-3, 5e-4)


# Links


def anchors(page: Path) -> set[str]:
    """The names that a hosting site gives to headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "notebooks" / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}; there are {sorted(anchors(target))}"


def test_names_in_the_glossary_are_where_it_says():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", text)
    assert len(named) > 15
    for name, path in named:
        last = name.split(".")[-1]
        assert re.search(rf"^\s*(class|def) {last}\b", (ROOT / path).read_text(), re.MULTILINE), f"{name} in {path}"
    terms = re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE)
    assert len(terms) == len(set(terms)) > 50


# Docstrings


def undocumented() -> Iterator[str]:
    """Public names of esth without a docstring; a method may have that of its base or of a protocol of its package."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCES}
    classes = {n.name: n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}

    def inherits(kind: ast.ClassDef, method: str) -> bool:
        for base in kind.bases:
            name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
            if name not in classes:
                if name not in ("Protocol", "NamedTuple", "object", "ABC"):
                    return True  # of another package
                continue
            own = [n for n in classes[name].body if isinstance(n, ast.FunctionDef) and n.name == method]
            if any(ast.get_docstring(n) for n in own) or inherits(classes[name], method):
                return True
        return False

    def agreed(package: Path, method: str) -> bool:
        kinds = [n for path, tree in trees.items() if path.parent == package for n in tree.body]
        return any(
            isinstance(n, ast.FunctionDef) and n.name == method and ast.get_docstring(n)
            for kind in kinds
            if isinstance(kind, ast.ClassDef) and any(getattr(b, "id", "") == "Protocol" for b in kind.bases)
            for n in kind.body
        )

    for path, tree in trees.items():
        where = str(path.relative_to(ROOT))
        if ast.get_docstring(tree) is None:
            yield where
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            # The functions of an attack are the sides of its bounds, which say what they are (Bound.what).
            if ast.get_docstring(node) is None and not (isinstance(node, ast.FunctionDef) and "attack" in path.parts):
                yield f"{where}: {node.name}"
            for n in node.body if isinstance(node, ast.ClassDef) else ():
                bare = isinstance(n, ast.FunctionDef) and not n.name.startswith("_") and ast.get_docstring(n) is None
                if bare and not inherits(node, n.name) and not agreed(path.parent, n.name):
                    yield f"{where}: {node.name}.{n.name}"


def test_every_public_name_has_a_docstring():
    assert list(undocumented()) == []


@pytest.mark.slow
def test_the_reference_has_a_page_of_every_module(tmp_path):
    """It is built without a warning, and shows what modules define."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:pdoc", ROOT / "docs" / "reference.py", tmp_path / "api"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for path in SOURCES:
        module = path.relative_to(ROOT).with_suffix("")
        page = tmp_path / "api" / (module.parent if module.name == "__init__" else module).with_suffix(".html")
        assert page.is_file(), module
    page = (tmp_path / "api" / "esth" / "estimators" / "intervals.html").read_text(encoding="utf-8")
    assert "Satterthwaite" in page and 'id="crossed"' in page
