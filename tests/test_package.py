"""The package as others meet it: what importing it needs, which way imports go inside it, what the wheel holds."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "esth").rglob("*.py"))

# A room may import from the rooms of earlier lines, and from its own line as long as there is no circle.
LAYERS = [
    {"errors"},
    {"_array", "_files", "_threads"},
    {"divergence", "fisher", "coverage", "weighting", "noise", "check"},
    {"lemmas"},
    {"policies", "estimators", "attack"},
    {"tasks", "models", "sample", "plots"},
    {"training", "diversity"},
    {"analysis"},
    {"cli", "__main__"},
]
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}

# Rooms that need NumPy and SciPy alone.
THEORY = ["esth"] + [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES
    if path.relative_to(ROOT / "esth").parts[0].removesuffix(".py")
    in {*LAYERS[0], *LAYERS[1], *LAYERS[2], "lemmas", "policies", "estimators"}
]

BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in {"numpy", "scipy", "esth", *sys.stdlib_module_names} and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def python(code):
    """Run `code` in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room(module):
    """The part of esth a module belongs to: "esth.lemmas.two_point" -> "lemmas"."""
    return module.split(".")[1] if "." in module else ""


def imported(tree):
    """Absolute names of the modules that a syntax tree imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports inside esth are absolute"
            # `from esth import divergence` imports the room, not only the package.
            yield from (f"{node.module}.{a.name}" for a in node.names) if node.module == "esth" else [node.module]


def test_importing_the_theory_needs_numpy_and_scipy_only():
    code = BLOCKER + f"import importlib\nfor name in {THEORY!r}: importlib.import_module(name)\n"
    code += "print(*{name.split('.')[0] for name in sys.modules})"
    assert {"torch", "transformers", "rich", "matplotlib", "pyarrow", "sympy"}.isdisjoint(python(code).split())
    assert {"esth.divergence", "esth.lemmas.fisher_rate", "esth.policies.categorical"} <= set(THEORY)


def test_the_blocker_blocks():
    with pytest.raises(AssertionError, match="blocked: hypothesis"):
        python(BLOCKER + "import hypothesis")


def test_importing_is_quick():
    """Seconds of processor time, which other programs on the machine do not lengthen."""
    code = "import time; start = time.process_time(); import esth; print(time.process_time() - start)"
    assert min(float(python(code)) for _ in range(2)) < 0.5


def test_torch_is_loaded_only_for_torch_tensors():
    code = BLOCKER + "from esth.divergence import js\nprint(js([[0.0], [0.0]]), 'torch' in sys.modules)"
    assert python(code).split() == ["0.0", "False"]


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_inside_esth_go_one_way(path):
    own = room(module_name(path))
    for name in imported(ast.parse(path.read_text())):
        top, *rest = name.split(".")
        assert top not in {"proofs", "toy", "llm", "notebooks", "tests", "benchmarks"}, name
        if top == "esth" and rest and own and room(name) not in {own, "__version__"}:
            assert room(name) in LAYER and own in LAYER, f"{own} -> {name}: give the room a layer"
            assert LAYER[room(name)] <= LAYER[own], f"{own} imports {name}"


def test_there_is_no_circle_of_rooms():
    graph = {}
    for path in SOURCES:
        own = room(module_name(path))
        names = (name for name in imported(ast.parse(path.read_text())) if name.startswith("esth."))
        graph.setdefault(own, set()).update({room(name) for name in names} & LAYER.keys() - {own})
    finished = set()
    while rest := graph.keys() - finished:
        ready = {own for own in rest if graph[own] & graph.keys() <= finished}
        assert ready, f"a circle among {sorted(rest)}"
        finished |= ready


@pytest.mark.parametrize("path", [p for p in SOURCES if module_name(p) in THEORY], ids=module_name)
def test_optional_packages_are_imported_where_they_are_used(path):
    """At the top of a module of the theory: the standard library, NumPy and SciPy."""
    for node in ast.parse(path.read_text()).body:
        for name in imported(node) if isinstance(node, ast.Import | ast.ImportFrom) else ():
            assert name.split(".")[0] in sys.stdlib_module_names | {"numpy", "scipy", "esth"}, name


@pytest.mark.slow
def test_the_wheel_holds_esth_only(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out", "shared")
    )
    assert (copy / "proofs").is_dir() and (copy / "toy").is_dir()
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", copy],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = (tmp_path / "dist").glob("esth-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"esth"}
    assert {str(path.relative_to(ROOT)) for path in SOURCES} <= set(names)
    assert "esth/py.typed" in names
    (entry,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "esth = esth.cli:main" in zipfile.ZipFile(wheel).read(entry).decode()
    code = f"import sys; sys.path.insert(0, {str(wheel)!r}); import esth, esth.lemmas.two_point; print(esth.__file__)"
    assert python(code).startswith(str(wheel))
