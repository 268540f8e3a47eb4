"""The API reference, from the docstrings: python docs/reference.py [FOLDER] writes HTML into docs/api, or FOLDER.

Every public module of esth has a page; shapes, units, errors and numbers of statements are where the code has them.
Needs pdoc (extra `dev`).
"""

import importlib
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def public_modules() -> list[str]:
    """Names of all modules of esth without a leading underscore."""
    paths = sorted((ROOT / "esth").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def build(folder: Path) -> None:
    """Write the reference; a warning of pdoc is an error."""
    import pdoc
    from pdoc import render

    if find_spec("vllm") is None:  # the docstrings of its engine can be read without it
        sys.modules["vllm"] = ModuleType("vllm")
        importlib.import_module("esth.models.vllm_engine")
        del sys.modules["vllm"]
    render.configure(docformat="google", show_source=False, footer_text="esth")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A package brings those of its modules that its __all__ does not hide: these are then named twice.
        warnings.filterwarnings("ignore", "The module specification .* has already been added", UserWarning)
        pdoc.pdoc(*public_modules(), output_directory=folder)


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "api"
    build(out)
    print(f"written to {out}: open {out / 'esth.html'}")
