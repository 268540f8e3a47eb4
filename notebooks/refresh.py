"""`python -m notebooks.refresh [NAME ...]`: execute notebooks in place, so that their outputs agree with the code.

A NAME is a file's stem or its beginning, as `01`; by default all are executed. What is written depends on the code and
its seeds alone: no times, no machine, no paths.
Exit status: 0 all ran, 1 a cell failed (that notebook is left as it was), 2 bad usage.
"""

import base64
import io
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from esth._files import write_text

FOLDER = Path(__file__).parent


def main(names: list[str]) -> int:
    """Run the command; returns the exit status."""
    found = {path for name in names or [""] for path in FOLDER.glob(f"{name}*.ipynb")}
    if unknown := [name for name in names if not list(FOLDER.glob(f"{name}*.ipynb"))]:
        print(f"notebooks.refresh: no notebook is named {unknown[0]}…", file=sys.stderr)
        return 2
    failed = 0
    for path in sorted(found):
        started = time.perf_counter()
        try:
            notebook = execute(path)
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            failed += 1
            continue
        write_text(path, nbformat.writes(notebook) + "\n")
        print(f"{path.name}: {time.perf_counter() - started:.0f} s, {path.stat().st_size / 1000:.0f} kB")
    return int(failed > 0)


def execute(path: Path, *, quick: bool = False, **environment: str) -> nbformat.NotebookNode:
    """The notebook with its outputs from a fresh kernel, working in the notebook's folder; the file is not written.

    `quick` sets ESTH_QUICK, by which notebooks choose smaller sizes; `environment` is added to the kernel's.

    Raises:
        CellExecutionError: at the first cell that fails.
    """
    notebook = nbformat.read(path, as_version=4)
    variables = {k: v for k, v in os.environ.items() if k != "ESTH_QUICK"} | environment
    # The inline backend: another that the caller's environment names would show no figure.
    variables |= {"MPLBACKEND": "module://matplotlib_inline.backend_inline"} | ({"ESTH_QUICK": "1"} if quick else {})
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources, record_timing=False, coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # not a word about the loopback ports it listens on
    )  # fmt: skip
    client.execute(env=variables)
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode({k: v for k, v in cell.metadata.items() if k == "tags"})
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.NotebookNode()
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = small(output.data["image/png"])
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
        }
    )
    return notebook


def small(png: str) -> str:
    """A figure, a PNG in base64, in a palette: it looks the same at a third of the size."""
    out = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(255).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
