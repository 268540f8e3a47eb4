"""Score gradients of a checkpoint: ‖∇ log π(y∣x)‖² of single responses, whose mean over y ~ π is tr F (L1.4).

One response at a time and one gradient in memory besides the weights, which do not change. The log-probability is that
of the generated tokens under the sampled policy, temperature included; every parameter counts once, a tied one with the
sum of the gradients of its uses.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from esth.errors import InputError
from esth.models.engine import Engine, Response, Sampling
from esth.models.transformers_engine import TransformersEngine, policy_logits

_SLICE = 1 << 20  # elements squared at once in float64


def squared_norms(
    engine: Engine, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Response]], sampling: Sampling
) -> NDArray[np.float64]:
    """‖∇_θ log π(y∣x)‖² parameter by parameter: [R, P], nats² per squared unit of the weights.

    Of the policy that the engine is now. Time: a forward and a backward pass over prompt and response for each.

    Args:
        engine: of transformers.
        prompts, responses: as in `Engine.score`; R runs through prompts, then samples.
        sampling: of the policy; at temperature 0 there is no gradient.

    Returns:
        One column a parameter, in the order of `engine.parameters`; sums of squares in float64.

    Raises:
        InputError: an engine without gradients, temperature 0, an empty prompt or response, or a gradient that is not
            finite (float16 overflows).
    """
    if not isinstance(engine, TransformersEngine):
        raise InputError(f"gradients need the transformers engine, not {type(engine).__name__}")
    if sampling.temperature == 0:
        raise InputError("at temperature 0 log π has no gradient: take temperature > 0")
    pairs = [(x, y.tokens) for x, group in zip(prompts, responses, strict=True) for y in group]
    if any(len(x) == 0 or len(y) == 0 for x, y in pairs):
        raise InputError("a gradient needs at least one token of prompt and of response")
    parameters = list(engine.parameters.values())
    norms = np.empty((len(pairs), len(parameters)))
    with _differentiable(parameters):
        for row, (x, y) in zip(norms, pairs, strict=True):
            # A mixture's expert that no token was sent to has no gradient at all.
            gradient = torch.autograd.grad(_log_p(engine, x, y, sampling), parameters, allow_unused=True)
            row[:] = [0.0 if g is None else _squared_norm(g) for g in gradient]
    if not np.isfinite(norms).all():
        raise InputError("gradients of log π are not finite: take a wider dtype")
    return norms


def _log_p(engine: TransformersEngine, prompt: Sequence[int], said: Sequence[int], sampling: Sampling) -> torch.Tensor:
    """Log-probability of a response, nats: Σ over its tokens, each predicted from the position before it."""
    tokens = torch.tensor([*prompt, *said[:-1]], device=engine.device)
    logits = engine.model(tokens[None], use_cache=False, logits_to_keep=len(said)).logits[0]
    log_p = policy_logits(logits.float(), sampling).double().log_softmax(dim=-1)
    return log_p.gather(1, torch.tensor(said, device=engine.device)[:, None]).sum()


def _squared_norm(gradient: torch.Tensor) -> float:
    return sum(float(part.double().square().sum()) for part in gradient.reshape(-1).split(_SLICE))


@contextmanager
def _differentiable(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Parameters require a gradient inside, and what they did before outside."""
    before = [p.requires_grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            yield
    finally:
        for parameter, required in zip(parameters, before, strict=True):
            parameter.requires_grad_(required)
