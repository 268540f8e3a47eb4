"""The default engine: a transformers model in this process, on CPU or GPU, in float32 unless told otherwise.

A prompt's keys and values are computed once and shared by its responses, and those of what prompts begin with in common
once for all of them, in sampling and in scoring: for short answers that is most of the work. Sampling is transformers'
own `generate`, with a logits processor that leaves one token, the inverse of the policy's distribution function at the
next number of the response's own uniform stream.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.utils import logging as transformers_logging

from esth.errors import InputError
from esth.models.checkpoint import Checkpoint, one_line
from esth.models.displacement import Noise, check_finite, check_update, displace
from esth.models.engine import Engine, Response, Sampling, check_tokens, named_prompts, stream_key
from esth.models.stored import Arrays, check_arrays, slice_of
from esth.noise import Combination, Direction, uniforms


class TransformersEngine(Engine):
    """See `esth.models.engine.Engine`.

    Args:
        checkpoint: from `load_checkpoint`.
        device: of the model; a GPU where there is one.
        dtype: of the model and of its center: "float32", "bfloat16" or "float16".
        rows: responses in one batch. Results do not depend on it, up to the rounding of logits.
        block_bytes: next-token logits held at once inside `score` and `next_token_logits`.

    Raises:
        InputError: weights that do not fit the architecture, parameters that the architecture renames or fuses, a
            device or dtype that is not there.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str | None = None,
        dtype: str = "float32",
        rows: int = 64,
        block_bytes: int = 1 << 28,
    ) -> None:
        if dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"dtype must be float32, bfloat16 or float16, not {dtype}")
        if rows < 1:
            raise InputError(f"a batch needs at least one row, not {rows}")
        self.checkpoint = checkpoint
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model = _load(checkpoint, getattr(torch, dtype), device)
        self.device: torch.device = self.model.device
        self.rows = rows
        self.block_bytes = block_bytes
        self.parameters = parameters_by_checkpoint_name(self.model, checkpoint)
        self.vocabulary: int = self.model.get_output_embeddings().weight.shape[0]
        # The center, while the parameters are a member's.
        self._center: dict[str, torch.Tensor] = {}
        self._member: tuple[Direction, float] | None = None

    # The population

    def set_member(self, member: Direction, sigma: float) -> None:
        if not 0 <= sigma < math.inf:
            raise InputError(f"sigma must be finite and at least 0, not {sigma}")
        if self._member != (member, sigma):
            with self._center_if_interrupted():
                self._member = (member, sigma)
                displace(self._center, partial(member.noise, scale=sigma), self.parameters)

    @torch.no_grad()
    def restore(self) -> None:
        for name, center in self._center.items():
            self.parameters[name].copy_(center)
        self._member = None

    @property
    def center(self) -> Mapping[str, torch.Tensor]:
        return self._center or self.parameters

    def apply_update(self, update: Sequence[tuple[Direction, float]], keep: float = 1.0) -> None:
        check_update(update, keep)
        self._move_center(Combination(tuple(update)).noise, keep)

    def load_center(self, weights: Arrays) -> None:
        check_arrays(weights, {name: p.shape for name, p in self.parameters.items()}, self.checkpoint.tensors)
        self._move_center(partial(slice_of, weights), keep=0.0)

    @torch.no_grad()
    def _move_center(self, noise: Noise, keep: float) -> None:
        with self._center_if_interrupted():
            self._member = None
            displace(self._center, noise, self.parameters, keep)
            check_finite(self.parameters)
            self._center = {}  # the parameters are the center now: one step, so that no part of the old one is left

    @contextmanager
    def _center_if_interrupted(self) -> Iterator[None]:
        """The one extra copy of the weights is made when the center is first left; whatever fails leads back to it."""
        if not self._center:
            self._center = {name: parameter.clone() for name, parameter in self.parameters.items()}
        try:
            yield
        except BaseException:
            self.restore()
            raise

    # The policy

    @torch.no_grad()
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
        ids = named_prompts(prompts, n, prompt_ids)
        for i, prompt in enumerate(prompts):
            self._check(f"prompt {i}", prompt, sampling.max_tokens)
        who = stream_key(self._member)
        found: dict[tuple[int, int], Response] = {}
        for group, prefixes in self._prefixes(prompts, range(len(prompts))):
            rows = [_Row(at, prompt, sample) for at, prompt in enumerate(group) for sample in range(n)]
            for start in range(0, len(rows), self.rows):
                batch = rows[start : start + self.rows]
                streams = [
                    uniforms(
                        "response", seed, *who, ids[row.prompt], first_sample + row.sample, count=sampling.max_tokens
                    )
                    for row in batch
                ]
                drawn = self._generate(prefixes.of(batch), sampling, np.stack(streams))
                for row, tokens in zip(batch, drawn, strict=True):
                    found[row.prompt, row.sample] = self._response(tokens)
        return [[found[prompt, sample] for sample in range(n)] for prompt in range(len(prompts))]

    def _generate(self, prefix: "_Prefix", sampling: Sampling, streams: NDArray[np.float64]) -> list[list[int]]:
        width = prefix.tokens.shape[1] + 1
        config = GenerationConfig(
            max_new_tokens=sampling.max_tokens,
            do_sample=False,
            eos_token_id=sorted(self.checkpoint.stop_tokens) or None,
            pad_token_id=0,
        )
        draw = InverseCDF(sampling, torch.from_numpy(streams).to(self.device), width)
        output = self.model.generate(
            torch.cat([prefix.tokens, prefix.last], dim=1),
            attention_mask=torch.cat([prefix.mask, torch.ones_like(prefix.last)], dim=1),
            past_key_values=prefix.cache,
            generation_config=config,
            logits_processor=LogitsProcessorList([draw]),
        )
        return list(output[:, width:].tolist())

    def _response(self, tokens: list[int]) -> Response:
        for t, token in enumerate(tokens):
            if token in self.checkpoint.stop_tokens:
                return Response(tuple(tokens[: t + 1]), truncated=False)
        return Response(tuple(tokens), truncated=True)

    @torch.no_grad()
    def score(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Response]], sampling: Sampling
    ) -> list[list[NDArray[np.float64]]]:
        scores = [[np.empty(len(response.tokens)) for response in group] for group in responses]
        for batch, start, logits in self._logits(prompts, responses):
            for row, row_logits in zip(batch, logits, strict=True):
                tokens = responses[row.prompt][row.sample].tokens[start : start + len(row_logits)]
                policy = policy_logits(row_logits[: len(tokens)], sampling).double()
                chosen = policy.gather(1, torch.tensor(tokens, device=self.device)[:, None])[:, 0]
                log_p = chosen - policy.logsumexp(dim=1)
                scores[row.prompt][row.sample][start : start + len(tokens)] = log_p.cpu().numpy()
        return scores

    @torch.no_grad()
    def next_token_logits(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Response]], sampling: Sampling
    ) -> torch.Tensor:
        first: dict[tuple[int, int], int] = {}
        positions = 0
        for i, group in enumerate(responses):
            for j, response in enumerate(group):
                first[i, j] = positions
                positions += len(response.tokens)
        result = torch.empty(positions, self.vocabulary, device=self.device)
        for batch, start, logits in self._logits(prompts, responses):
            for row, row_logits in zip(batch, logits, strict=True):
                count = min(len(row_logits), len(responses[row.prompt][row.sample].tokens) - start)
                if count > 0:
                    at = first[row.prompt, row.sample] + start
                    result[at : at + count] = policy_logits(row_logits[:count], sampling)
        return result

    def _logits(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Response]]
    ) -> Iterator[tuple["list[_Row]", int, torch.Tensor]]:
        """Batches of rows, the first position of the block, the model's logits there [rows, positions, V]."""
        if len(responses) != len(prompts):
            raise InputError(f"{len(responses)} groups of responses for {len(prompts)} prompts")
        for i, (prompt, group) in enumerate(zip(prompts, responses, strict=True)):
            self._check(f"prompt {i}", prompt, max((len(response.tokens) for response in group), default=0))
            for response in group:
                self._check(f"a response to prompt {i}", response.tokens, 0)
        budget = max(1, self.block_bytes // (4 * self.vocabulary))  # positions in a block
        for indices, prefixes in self._prefixes(prompts, [i for i, group in enumerate(responses) if group]):
            rows = [_Row(at, i, j) for at, i in enumerate(indices) for j in range(len(responses[i]))]
            rows.sort(key=lambda row: -len(responses[row.prompt][row.sample].tokens))  # little padding in a batch
            while rows:
                longest = len(responses[rows[0].prompt][rows[0].sample].tokens)
                size = max(1, min(self.rows, budget // longest))
                batch, rows = rows[:size], rows[size:]
                said = [responses[row.prompt][row.sample].tokens for row in batch]
                yield from ((batch, *block) for block in self._forward(prefixes.of(batch), said, budget // size))

    def _forward(
        self, prefix: "_Prefix", said: Sequence[Sequence[int]], step: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """The logits that each token of a response was drawn from, `step` positions at a time."""
        # Position t reads the token before it; what stands behind a shorter response is masked and never read.
        tokens, mask = _pad([tokens[:-1] for tokens in said], self.device, left=False)
        tokens = torch.cat([prefix.last, tokens], dim=1)
        mask = torch.cat([prefix.mask, torch.ones_like(prefix.last), mask], dim=1)
        positions = _positions(mask)
        width, step = prefix.mask.shape[1], max(1, step)
        for start in range(0, tokens.shape[1], step):
            stop = min(start + step, tokens.shape[1])
            output = self.model(
                tokens[:, start:stop],
                attention_mask=mask[:, : width + stop],
                position_ids=positions[:, width + start : width + stop],
                past_key_values=prefix.cache,
            )
            yield start, _finite(output.logits.float())

    def _prefixes(
        self, prompts: Sequence[Sequence[int]], wanted: Sequence[int]
    ) -> Iterator[tuple[list[int], "_Prefix"]]:
        """Prompts of like length in groups, with the keys and values of all tokens of each but its last.

        What the prompts of a group begin with in common (a chat's system turn) is read once.
        """
        order = sorted(wanted, key=lambda i: len(prompts[i]))
        # A layer that sees a window only counts what stands between a token and another, padding too.
        full = not any(getattr(layer, "is_sliding", False) for layer in DynamicCache(config=self.model.config).layers)
        for start in range(0, len(order), self.rows):
            group = order[start : start + self.rows]
            heads = [list(prompts[i][:-1]) for i in group]
            last = torch.tensor([prompts[i][-1:] for i in group], device=self.device)
            shared = _common_length(heads) if full else 0
            tokens, mask = _pad([head[shared:] for head in heads], self.device, left=True)
            begin = torch.tensor([heads[0][:shared]], dtype=torch.long, device=self.device)
            mask = torch.cat([torch.ones_like(begin).expand(len(group), -1), mask], dim=1)
            cache = DynamicCache(config=self.model.config)
            if shared > 0:
                self.model(begin, past_key_values=cache, logits_to_keep=1)
                cache.batch_repeat_interleave(len(group))
            if tokens.shape[1] > 0:
                self.model(
                    tokens,
                    attention_mask=mask,
                    position_ids=_positions(mask)[:, shared:],
                    past_key_values=cache,
                    logits_to_keep=1,
                )
            yield group, _Prefix(torch.cat([begin.expand(len(group), -1), tokens], dim=1), mask, last, cache)

    def _check(self, what: str, tokens: Sequence[int], room: int) -> None:
        check_tokens(what, tokens, room, self.checkpoint.context, self.vocabulary)


class InverseCDF(LogitsProcessor):
    """Leave the one token at which the policy's distribution function passes the row's next uniform number."""

    def __init__(self, sampling: Sampling, streams: torch.Tensor, width: int) -> None:
        self.sampling = sampling
        self.streams = streams  # [rows, max_tokens]
        self.width = width  # of the prompts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        uniform = self.streams[:, input_ids.shape[1] - self.width, None]
        # Widened first: twice as fast as a cumulative sum that widens as it goes.
        mass = policy_logits(_finite(scores), self.sampling).softmax(dim=1).double().cumsum(dim=1)
        token = torch.searchsorted(mass, uniform * mass[:, -1:], right=True)
        return torch.full_like(scores, -math.inf).scatter_(1, token, 0.0)


def policy_logits(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The model's logits [..., V] as those of the policy: over temperature, -inf outside the top-k and top-p sets."""
    if sampling.temperature == 0:
        best = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter_(-1, best, 0.0)
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -math.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        mass = ordered.double().softmax(dim=-1)
        reached = mass.cumsum(dim=-1) - mass >= sampling.top_p  # by the tokens before it
        reached[..., 0] = False
        logits = logits.masked_fill(reached.scatter(-1, index, reached), -math.inf)
    return logits


def parameters_by_checkpoint_name(model: torch.nn.Module, checkpoint: Checkpoint) -> dict[str, torch.nn.Parameter]:
    """Every parameter once, under the name it has in the checkpoint (tied ones under the name that is stored).

    Raises:
        InputError: the model holds a parameter that the checkpoint does not, renamed beyond a prefix, fused or split:
            its noise would not be the noise of the same member elsewhere.
    """
    prefix = getattr(model, "base_model_prefix", "") + "."
    stored = checkpoint.tensors
    parameters: dict[str, torch.nn.Parameter] = {}
    missing: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases = (name, name.removeprefix(prefix), prefix + name)
        match = next((a for a in aliases if a in stored and stored[a].shape == tuple(parameter.shape)), None)
        if match is None:
            missing[id(parameter)] = name
        elif id(parameter) not in map(id, parameters.values()):
            parameters[match] = parameter
    missing = {key: name for key, name in missing.items() if key not in map(id, parameters.values())}
    if missing:
        raise InputError(f"{checkpoint.name}: the model's {next(iter(missing.values()))} is not stored as such")
    return parameters


def _load(checkpoint: Checkpoint, dtype: torch.dtype, device: str) -> Any:
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # its report of what does not fit becomes our one line
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=checkpoint.trust_remote_code,
            output_loading_info=True,
        )
        model, report = loaded
        model = model.to(device)
    except Exception as error:  # unknown architecture, no such device, memory: one line for the user
        reason = "shapes of weights differ from its config" if "mismatched_sizes" in str(error) else one_line(error)
        raise InputError(f"{checkpoint.name} does not load: {reason}") from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
        transformers_logging.set_verbosity(verbosity)
    lost = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lost:
        raise InputError(f"{checkpoint.name}: its weights do not fit its config, for one {lost[0]}")
    model.generation_config = GenerationConfig()  # the checkpoint's own defaults would change the policy
    return model.eval().requires_grad_(False)


class _Row(NamedTuple):
    at: int  # the prompt's place in its group
    prompt: int
    sample: int


class _Prefix(NamedTuple):
    """Prompts in a batch, padded (before what is their own): all tokens but the last, mask, cache; the last token."""

    tokens: torch.Tensor
    mask: torch.Tensor
    last: torch.Tensor
    cache: DynamicCache

    def of(self, rows: Sequence[_Row]) -> "_Prefix":
        """A prefix for each row, in memory of its own: rows share prompts."""
        index = torch.tensor([row.at for row in rows], device=self.tokens.device)
        cache = copy.deepcopy(self.cache)
        if self.tokens.shape[1] > 0:
            cache.batch_select_indices(index)
        return _Prefix(self.tokens[index], self.mask[index], self.last[index], cache)


def _common_length(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all sequences begin with in common."""
    columns = enumerate(zip(*sequences, strict=False))
    return next((t for t, tokens in columns if len(set(tokens)) > 1), min(map(len, sequences)))


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def _pad(sequences: Sequence[Sequence[int]], device: torch.device, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(sequence) for sequence in sequences)
    tokens = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for i, sequence in enumerate(sequences):
        at = slice(width - len(sequence), width) if left else slice(0, len(sequence))
        tokens[i, at] = torch.tensor(sequence, dtype=torch.long)
        mask[i, at] = 1
    return tokens.to(device), mask.to(device)


def _finite(logits: torch.Tensor) -> torch.Tensor:
    if not logits.amax(dim=-1).isfinite().all():
        raise InputError("the model's logits are not finite: sigma too large for the dtype, or broken weights")
    return logits
