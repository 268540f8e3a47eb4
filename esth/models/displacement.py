"""Moving all weights of a center along a direction: one arithmetic, so that engines agree to the bit."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from esth._threads import side_by_side
from esth.errors import InputError
from esth.noise import Direction, Float32

SLICE = 1 << 20
"""Elements of a parameter moved at once: scratch memory of a few MB."""

Noise = Callable[[str, Sequence[int], int, int], Float32]
"""noise(name, shape, start, count): float32 [count], positions start … start+count−1 of a parameter."""


def displace(
    center: Mapping[str, torch.Tensor], noise: Noise, out: Mapping[str, torch.Tensor], keep: float = 1.0
) -> None:
    """out = keep · center + noise in float32, rounded once to the dtype of `out`; contiguous tensors by their names.

    By slices on all of torch's threads: noise is a function of the position, whoever draws it.

    Args:
        keep: taken in float32; 1 multiplies nothing, and 0 leaves the noise alone, with the signs of its zeros.
    """

    @torch.no_grad()  # of this thread alone, hence in each
    def move(piece: tuple[str, int, int]) -> None:
        name, start, stop = piece
        old, new = center[name], out[name]
        step = torch.from_numpy(noise(name, old.shape, start, stop - start)).to(new.device)
        before, after = old.view(-1)[start:stop], new.view(-1)[start:stop]
        if keep == 0:
            after.copy_(step)
        else:
            torch.add(before if keep == 1 else before.float() * keep, step, out=after)

    sizes = {name: tensor.numel() for name, tensor in center.items()}
    side_by_side(move, [(n, i, min(i + SLICE, size)) for n, size in sizes.items() for i in range(0, size, SLICE)])


def check_update(update: Sequence[tuple[Direction, float]], keep: float = 1.0) -> None:
    """Raise InputError unless all coefficients are finite, and `keep` in [0, 1]."""
    if not 0 <= keep <= 1:
        raise InputError(f"the share of the center that an update keeps must be in [0, 1], not {keep}")
    for direction, coefficient in update:
        if not math.isfinite(coefficient):
            raise InputError(f"the coefficient of {direction} is {coefficient}")


def check_finite(weights: Mapping[str, torch.Tensor]) -> None:
    """Raise InputError where a weight is not finite: an update too large for the dtype."""
    name = next((name for name, tensor in weights.items() if not _finite(tensor)), None)
    if name is not None:
        raise InputError(f"{name} overflows its dtype or is not finite: the center stays where it was")


def _finite(tensor: torch.Tensor) -> bool:
    """Without a temporary of the tensor's size: its least and largest values are not finite where any is not."""
    return tensor.numel() == 0 or all(bool(bound.isfinite()) for bound in tensor.aminmax())
