"""The protocol of an engine: a causal language model as a policy, and as the members of a population around it.

    engine = TransformersEngine(load_checkpoint("demo"))
    prompts = [engine.checkpoint.encode(question) for question in questions]     # token ids
    sampling = Sampling(temperature=0.7, max_tokens=16)
    members = population(seed=0, n=8)                                            # esth.noise

    responses = []
    for member in members:
        engine.set_member(member, sigma=0.01)
        responses.append(engine.sample(prompts, 4, sampling, seed=0))            # [prompt][sample] -> Response
    for member in members:                                                       # everyone scores everything
        engine.set_member(member, sigma=0.01)
        scores = engine.score(prompts, responses[0], sampling)                   # [prompt][sample] -> float64 [tokens]
        logits = engine.next_token_logits(prompts, responses[0], sampling)       # float32 [positions, V]
    engine.restore()
    engine.apply_update([(member, alpha * f / n) for member, f in zip(members, fitness)])

The policy is the distribution that is sampled: temperature, top-k and top-p (`Sampling`) enter scores and logits
too. A response ends with a stop token, which is an outcome like any other, or is truncated at `max_tokens`, and then
has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from esth.errors import InputError
from esth.noise import Direction

if TYPE_CHECKING:
    import torch

    from esth.models.checkpoint import Checkpoint
    from esth.models.stored import Arrays


@dataclass(frozen=True)
class Sampling:
    """How a policy is sampled; part of the policy.

    Attributes:
        temperature: logits are divided by it; 0 is the limit, all mass on the largest logit.
        max_tokens: a response with this many tokens and no stop token is truncated.
        top_k: only the k largest logits, and all equal to the k-th, have mass.
        top_p: after temperature and top-k, the fewest most likely tokens whose mass reaches top_p.
    """

    temperature: float = 1.0
    max_tokens: int = 16
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-6 <= self.temperature < float("inf")):
            raise InputError(f"temperature must be finite, and 0 or at least 1e-6, not {self.temperature}")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be in (0, 1], not {self.top_p}")


@dataclass(frozen=True)
class Response:
    """What a policy said: token ids, the stop token included, or truncated before one came."""

    tokens: tuple[int, ...]
    truncated: bool


class Engine(Protocol):
    """A checkpoint's policy that can become any member of a population.

    Prompts are token ids without padding. Responses are grouped by prompt: `responses[prompt][sample]`, any number
    for each prompt. The state of an engine is its center and the member it is now (none after `restore` and
    `apply_update`).
    """

    checkpoint: "Checkpoint"  # its name, fingerprint, tokenizer, stop tokens and context length
    vocabulary: int  # V, the width of the logits

    @property
    def center(self) -> "Mapping[str, torch.Tensor]":
        """The center's parameters by their names in the checkpoint, whoever the engine is now: views, no copies."""
        ...

    def set_member(self, member: Direction, sigma: float) -> None:
        """Become θ + sigma · ε, every parameter perturbed once, by its name in the checkpoint.

        `member` is a `Member`, or any other `Direction` ε. Always from the center, whatever member was set before.

        Raises:
            InputError: sigma is negative or not finite.
        """
        ...

    def restore(self) -> None:
        """Become the center again, bit for bit (by copy; adding and subtracting drifts)."""
        ...

    def apply_update(self, update: Sequence[tuple[Direction, float]], keep: float = 1.0) -> None:
        """θ ← keep · θ + Σ coefficient · ε, the sum in float32 in the order given; become the new center.

        `keep` and each product are rounded to float32, the result once to the dtype. A function of the old center, the
        update and `keep` alone, bit for bit, so that a log of updates rebuilds any center. A decay by λ toward stored
        weights is keep = 1 − λ with the term (`StoredWeights`, λ).

        Raises:
            InputError: a coefficient that is not finite, keep outside [0, 1], or an update that overflows the dtype;
                the center stays.
        """
        ...

    def load_center(self, weights: "Arrays") -> None:
        """Make stored weights (`esth.models.stored.read_arrays`) the center and become it; to the bit in one dtype.

        Raises:
            InputError: weights of other names or shapes, or not finite in the dtype; the center stays.
        """
        ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        seed: int,
        *,
        prompt_ids: Sequence[int] | None = None,
        first_sample: int = 0,
    ) -> list[list[Response]]:
        """Draw n responses to each prompt: [prompt][sample].

        Every response has its own stream of uniform numbers, keyed by (seed, member, prompt id, sample index), so
        it does not depend on what else is in the batch or on who draws it. `prompt_ids` are the prompts' indices
        0, 1, … unless given (a worker that holds a share of the prompts names them); samples count from
        `first_sample` (to draw more). Engines that sample with their own generators agree in distribution only.

        Raises:
            InputError: n < 1, an empty prompt or one that leaves no room for max_tokens in the context, or logits that
                are not finite (sigma too large for the dtype).
        """
        ...

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[Response]],
        sampling: Sampling,
    ) -> list[list[NDArray[np.float64]]]:
        """Log-probability of every token of every response, [prompt][sample] -> [tokens], in nats; -inf is possible.

        Raises:
            InputError: as `sample`.
        """
        ...

    def next_token_logits(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[Response]],
        sampling: Sampling,
    ) -> "torch.Tensor":
        """Logits of the policy at every position of every response: float32 [positions, V], on the engine's device.

        Positions run through prompts, then samples, then tokens; row t of a response is the distribution that its
        token t was drawn from. Temperature, top-k and top-p are applied (-inf outside their set); not normalised, so
        that the caller can normalise in float64. The result takes 4 · positions · V bytes: the caller bounds it by
        the size of the block.

        Raises:
            InputError: as `sample`.
        """
        ...


def named_prompts(prompts: Sequence[Sequence[int]], n: int, prompt_ids: Sequence[int] | None) -> Sequence[int]:
    """The ids of the prompts of `Engine.sample`, their indices unless given.

    Raises:
        InputError: n < 1, or another number of ids than of prompts.
    """
    ids = range(len(prompts)) if prompt_ids is None else prompt_ids
    if n < 1 or len(ids) != len(prompts):
        raise InputError(f"n must be at least 1 and every prompt needs its id, not n={n}, {len(ids)} ids")
    return ids


def stream_key(member: tuple[Direction, float] | None) -> tuple[int | str, ...]:
    """What names the random streams of an engine that is this member, or its center."""
    return ("center", 0) if member is None else member[0].key


def check_tokens(what: str, tokens: Sequence[int], room: int, context: int | None, vocabulary: int) -> None:
    """Raise InputError unless the tokens, and `room` more, are such as a model of this context and vocabulary reads."""
    if len(tokens) == 0:
        raise InputError(f"{what} is empty: at least one token is needed")
    if context is not None and len(tokens) + room > context:
        raise InputError(f"{what}: {len(tokens)} + {room} tokens exceed the model's context of {context}")
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise InputError(f"{what} has a token outside 0..{vocabulary - 1}: is it of another tokenizer?")
