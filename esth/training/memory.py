"""How much memory this process has needed at most (claim C14)."""

import resource
import sys


def peak_memory() -> int:
    """Bytes: of the accelerator where torch has used one, else resident bytes of the process, the largest so far."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
