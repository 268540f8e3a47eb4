"""The notebooks: kept outputs are whole and clean, cells define no mathematics, and every cell runs."""

import ast
import base64
import re
from pathlib import Path

import nbformat
import pytest

from notebooks import refresh

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 400_000  # bytes

FIRST_CELL = """\
%matplotlib inline
import os
import sys

sys.path[:0] = [".", ".."]  # the clone's root, from there or from notebooks/
quick = "ESTH_QUICK" in os.environ"""

# What formulas are made of. Sums, means, differences and ratios of results are allowed.
MATHEMATICS = {
    "abs", "clip", "corrcoef", "cosh", "cov", "cumprod", "cumsum", "det", "diff", "divide", "dot", "einsum", "exp",
    "exp2", "expm1", "fabs", "hypot", "inner", "inv", "log", "log10", "log1p", "log2", "logaddexp", "matmul",
    "multiply", "norm", "outer", "power", "prod", "reciprocal", "sinh", "softmax", "sqrt", "square", "std", "subtract",
    "tanh", "tensordot", "trace", "trapezoid", "var", "vdot", "xlogy",
}  # fmt: skip
OF_ARRAYS = {"np", "numpy", "math", "scipy", "sp", "torch"}

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def without_magics(source: str) -> str:
    return re.sub(r"^%.*$", "", source, flags=re.MULTILINE)


def mathematics(source: str) -> list[str]:
    """What in a cell restates a formula."""
    found = []
    for node in ast.walk(ast.parse(without_magics(source))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.MatMult):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and node.attr in MATHEMATICS:
            owner = ast.unparse(node.value).partition(".")[0]
            # x.var() of an array is as much a formula as np.var(x); fisher.trace(F) is a call of the library.
            if owner in OF_ARRAYS or node.attr in {"cumprod", "cumsum", "dot", "prod", "std", "var"}:
                found.append(ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OF_ARRAYS:
            found += [alias.name for alias in node.names if alias.name in MATHEMATICS]
    return found


def test_they_are_numbered_and_the_readme_lists_them():
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"{k:02d}_" for k in range(1, len(NOTEBOOKS) + 1)]
    listed = re.findall(r"\]\((\w+\.ipynb)\)", (FOLDER / "README.md").read_text())
    assert listed == [path.name for path in NOTEBOOKS]


def test_what_counts_as_mathematics():
    for formula in ("sigma**2", "np.log(p)", "F @ e", "p.var(axis=0)", "from math import exp", "np.linalg.norm(x)"):
        assert mathematics(formula), formula
    for call in ("fisher.trace(F)", "measured / predicted", "values.mean()", "lemma.psi(s)", "math.inf", "1 - p"):
        assert not mathematics(call), call


@each
def test_the_first_cell_is_the_agreed_one(path):
    code = cells(path, "code")
    assert code[0].source == FIRST_CELL
    assert FIRST_CELL.replace("\n", "\n  ").replace("\n  \n", "\n\n") in (FOLDER / "README.md").read_text()
    used = [i for i, cell in enumerate(code) if re.search(r"\bquick\b", cell.source)]
    assert set(used) <= {0, 1}, "sizes are chosen in the second cell"


@each
def test_the_library_computes(path):
    code = [cell.source for cell in cells(path, "code")]
    assert any(re.search(r"^(from|import) esth\b", source, re.MULTILINE) for source in code)
    assert [found for source in code for found in mathematics(source)] == []


@each
def test_outputs_are_kept_and_clean(path):
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    figures = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert len(figures) >= 3
    for figure in figures:
        assert base64.b64decode(figure).startswith(b"\x89PNG")
    text = path.read_text()
    assert len(text) < LARGEST
    assert not re.search(r"(?<![\w.)])/(home|root|tmp|var|usr|opt|work|mnt|Users|private)/", strip_figures(text))
    metadata = nbformat.read(path, as_version=4).metadata
    assert set(metadata) == {"kernelspec", "language_info"} and "version" not in metadata.language_info
    assert all(set(cell.metadata) <= {"tags"} for cell in nbformat.read(path, as_version=4).cells)


def strip_figures(text: str) -> str:
    return re.sub(r'"image/png": ".*?"', "", text)


@each
def test_links_lead_somewhere(path):
    for cell in cells(path, "markdown"):
        for link in re.findall(r"\]\(([^)\s]+)\)", cell.source):
            assert not link.startswith("/"), link
            if not re.match(r"https?://", link):
                target, _, anchor = link.partition("#")
                place = (FOLDER / target).resolve() if target else path
                assert place.exists() and ROOT in (place, *place.parents), link
                if anchor and place.suffix == ".md":
                    assert anchor in anchors(place), link


def anchors(path: Path) -> set[str]:
    """Of a Markdown file's headings, as hosting sites form them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A kernel's own settings and history, and a font list that no kernel has to make (and to announce)."""
    import matplotlib.font_manager  # noqa: F401

    return {"IPYTHONDIR": str(tmp_path_factory.mktemp("ipython"))}


@pytest.mark.slow
@each
def test_it_runs_top_to_bottom(path, environment):
    before = path.read_bytes()
    run = refresh.execute(path, quick=True, **environment)
    assert path.read_bytes() == before
    for kept, now in zip(cells(path, "code"), (c for c in run.cells if c.cell_type == "code"), strict=True):
        # Warnings go to stderr: there are none.
        assert kinds(now) == kinds(kept), f"{now.source}\n{[o.get('text', '') for o in now.outputs]}"


def kinds(cell) -> list:
    """What a cell puts out: names of streams, formats of results. Quick mode changes sizes, and so nothing of this."""
    return [sorted(o.data) if "data" in o else o.get("name", o.output_type) for o in cell.outputs]


@pytest.fixture
def folder(tmp_path, monkeypatch, environment):
    """An empty folder of notebooks, and a way to write one."""
    monkeypatch.setattr(refresh, "FOLDER", tmp_path)
    monkeypatch.setenv("IPYTHONDIR", environment["IPYTHONDIR"])

    def write(name: str, *sources: str) -> Path:
        path = tmp_path / name
        code = [nbformat.v4.new_code_cell(source, id=f"cell-{k}") for k, source in enumerate(sources)]
        nbformat.write(nbformat.v4.new_notebook(cells=code), path)
        return path

    return write


@pytest.mark.slow
def test_refresh_writes_what_the_code_says_and_nothing_else(folder, monkeypatch):
    figure = "%matplotlib inline\nfrom esth import plots\nfig, (ax,) = plots.figure('one', 1)\nfig"
    path = folder("01_one.ipynb", "import os\nprint('ESTH_QUICK' in os.environ)", figure)
    monkeypatch.setenv("ESTH_QUICK", "1")
    assert refresh.main(["01"]) == 0
    first = path.read_text()
    assert refresh.main([]) == 0 and path.read_text() == first
    quick, drawn = cells(path, "code")
    assert quick.outputs[0].text == "False\n", "outputs in the repository are those of the full sizes"
    assert base64.b64decode(drawn.outputs[0].data["image/png"]).startswith(b"\x89PNG")
    assert "iopub" not in first and "version" not in nbformat.read(path, as_version=4).metadata.language_info
    (run,) = [c.outputs[0].text for c in refresh.execute(path, quick=True).cells[:1]]
    assert run == "True\n"


@pytest.mark.slow
def test_refresh_leaves_a_failing_notebook_alone(folder, capsys):
    path = folder("02_two.ipynb", "1 / 0")
    before = path.read_bytes()
    assert refresh.main(["02_two"]) == 1
    assert path.read_bytes() == before and "ZeroDivisionError" in capsys.readouterr().err


def test_refresh_refuses_a_name_it_does_not_know(folder, capsys):
    assert refresh.main(["11_eleven"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_kept_table_of_claims_is_that_of_the_results() -> None:
    from esth.analysis.claims import rows, short

    kept = "".join(
        output["data"]["text/markdown"]
        for cell in cells(FOLDER / "07_es_and_grpo.ipynb", "code")
        for output in cell.outputs
        if "text/markdown" in output.get("data", {})
    )
    assert short(rows(ROOT / "results")).replace("](docs", "](../docs") in kept
