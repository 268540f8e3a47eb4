"""Runs in processes of their own, to be killed.

From a server that was started anew and has loaded what a run needs: to fork the tests' own process is not safe once
other libraries (Ray) have started threads in it, and to start Python each time takes seconds.
"""

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esth.training import train

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [f"esth.training.{name}" for name in ("toy_world", "tiny_world", "real_world", "grpo", "trl_grpo")]
)


def killed(config: Any, folder: Path, new_lines: int, delay: float = 0.0, target: Callable[..., Any] = train) -> bool:
    """Run; kill it `delay` seconds after so many new lines of metrics. Whether it was still running."""
    metrics = folder / "metrics.jsonl"

    def lines() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    child = _server.Process(target=target, args=(config, folder))
    before = lines()
    child.start()
    while child.is_alive() and lines() < before + new_lines:
        time.sleep(0.002)
    time.sleep(delay)
    alive = child.is_alive()
    child.kill()
    child.join()
    return alive
