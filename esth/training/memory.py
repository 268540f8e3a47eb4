"""How much memory this process has needed at most (claim C14)."""

import resource
import sys
from contextlib import suppress
from typing import Any


def forget_peak() -> None:
    """What was needed until now no longer counts: of several runs in one process each has a peak of its own.

    On Linux, and of an accelerator; elsewhere resident bytes are the largest of the process so far.
    """
    torch = _with_accelerator()
    if torch is not None:
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_memory() -> int:
    """Bytes: of the accelerator where torch has used one, else resident bytes of the process; since `forget_peak`."""
    torch = _with_accelerator()
    if torch is not None:
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError), open("/proc/self/status") as file:
        # Not ru_maxrss: on Linux a process inherits that of the one it was started from, and keeps it.
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _with_accelerator() -> Any:
    """torch, if it has used one."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None
