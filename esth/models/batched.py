"""A small Llama whose whole population runs in one batched forward pass, written out in plain torch.

    model = BatchedLlama(load_checkpoint(folder))
    weights = model.members(population(seed=0, n=32), sigma=0.01)                # N x parameters: for small models
    said = model.generate(weights, prompts, 1, max_tokens=18)                    # greedy; prompts int64 [1 or N, P, L]
    model.apply_update([(member, alpha * f / n) for member, f in zip(members, fitness)])

    theta = {name: p.clone().requires_grad_() for name, p in model.center.items()}
    log_p, entropy = model.log_probabilities(model.alone(theta), prompts, said.tokens, said.lengths)

The model is the one of transformers' `LlamaForCausalLM`: root-mean-square norms, rotary positions, grouped keys and
values, SwiGLU, no biases. With weights this small the time goes into attention and into calls, not into products, so:

- rows (prompts and their samples) are the innermost axis. A weight [out, in] times activations [in, rows] needs no
  transposition, and attention, a tiny product for each row, becomes elementwise work along that axis.
- features of a head come before heads, [d, heads, rows]: sums over features and over positions run along contiguous
  memory, and the rotation of positions acts on two contiguous halves.
- a norm's gain is a factor of the columns of the product that follows, 1/√d one of the queries' rows: both are
  multiplied into the weights once a population.
- rows are generated in blocks that fit a core's cache, one block to a thread (`side_by_side`). The blocks depend on the
  sizes alone, so results are the same to the bit on any number of threads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch.nn import functional

from esth._threads import side_by_side
from esth.errors import InputError, require
from esth.models.checkpoint import Checkpoint, one_line
from esth.models.displacement import check_finite, check_update
from esth.models.saving import save_center
from esth.models.workers import Local
from esth.noise import Direction, Keyed, Member, Restricted

if TYPE_CHECKING:
    from esth.models.engine import Engine

BLOCK = 256
"""Rows generated together (members x prompts x samples), where a prompt's samples are not more."""


class Layer(NamedTuple):
    """Products of one layer for N members; the norms' gains and 1/√d are in them. Rows: see `BatchedLlama._fused`."""

    qkv: torch.Tensor  # [N, d (H + G) + d G, h]: H heads, G of them with keys and values of their own
    out: torch.Tensor  # [N, h, d H]
    gate_up: torch.Tensor  # [N, 2 I, h]
    down: torch.Tensor  # [N, h, I]


class Weights(NamedTuple):
    """N members' weights, arranged for the forward pass: N times the parameters of one (the head once more if tied)."""

    embedding: torch.Tensor  # [N, V, h]
    layers: tuple[Layer, ...]
    head: torch.Tensor  # [N, V, h]

    @property
    def members(self) -> int:
        """N."""
        return self.embedding.shape[0]

    def part(self, members: slice) -> "Weights":
        """Of some members: views."""
        layers = tuple(Layer(*(tensor[members] for tensor in layer)) for layer in self.layers)
        return Weights(self.embedding[members], layers, self.head[members])


class Generated(NamedTuple):
    """Responses of N members to P prompts, n each.

    Attributes:
        tokens: int64 [N, P, n, max_tokens], the stop token included; 0 after a response's end.
        lengths: int64 [N, P, n], in tokens.
        truncated: bool [N, P, n]: no stop token came.
        entropy: float64 [N, P, n], nats: of the policy's next-token distribution, summed over the response's positions.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    truncated: torch.Tensor
    entropy: torch.Tensor


class BatchedLlama:
    """A Llama's center, and its policy under the weights of any population, in float32.

    Args:
        checkpoint: from `load_checkpoint`.
        device: of the center and of everything computed.

    Attributes:
        center: name in the checkpoint -> float32 tensor; the embedding only, where the head is tied to it.
        vocabulary: V, the width of the logits.

    Raises:
        InputError: another architecture than `LlamaForCausalLM` with plain rotary positions and without biases, or
            weights that do not fit the config.
    """

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu") -> None:
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        config = _config(checkpoint)
        self.vocabulary: int = config.vocab_size
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.groups: int = config.num_key_value_heads
        self.head_width: int = config.head_dim
        self.epsilon: float = config.rms_norm_eps
        self.tied: bool = config.tie_word_embeddings
        self._frequencies = config.rope_parameters["rope_theta"] ** -(
            torch.arange(0, self.head_width, 2, dtype=torch.float32, device=self.device) / self.head_width
        )
        self._stops = torch.zeros(self.vocabulary, dtype=torch.bool, device=self.device)
        self._stops[[token for token in checkpoint.stop_tokens if token < self.vocabulary]] = True
        self.center = _center(checkpoint, _shapes(config), self.device)
        self._drawn: dict[Direction, torch.Tensor] = {}  # ε [D] of the members last made

    # The population

    @torch.no_grad()
    def members(self, directions: Sequence[Direction], sigma: float) -> Weights:
        """Weights of θ + sigma · ε for each direction ε, to the bit those of `Engine.set_member`.

        All members stand in memory at once, three times over with their noise, which is kept for the update that
        follows: to bound it, give fewer directions at a time.

        Raises:
            InputError: no directions, or sigma negative or not finite.
        """
        if not directions or not 0 <= sigma < math.inf:
            raise InputError(f"members need directions and a finite sigma >= 0, not {len(directions)} and {sigma}")
        plain = [d.direction if isinstance(d, Keyed) else d for d in directions]
        self._drawn = {d: self._draw(d, 1.0) for d in plain if isinstance(d, Member | Restricted)}
        flat = torch.stack([self._noise(direction, sigma) for direction in directions])
        flat += self._flat_center()
        return self._fused(self._parts(flat))

    def _noise(self, direction: Direction, scale: float) -> torch.Tensor:
        """scale · ε in all parameters [D]; of a member drawn before, the same rounded product as its `noise` makes."""
        drawn = self._drawn.get(direction.direction if isinstance(direction, Keyed) else direction)
        if drawn is None:
            return self._draw(direction, scale)
        return drawn * torch.tensor(scale, dtype=torch.float32, device=self.device)

    def _draw(self, direction: Direction, scale: float) -> torch.Tensor:
        parts = [direction.noise(name, tensor.shape, scale=scale) for name, tensor in self.center.items()]
        return torch.from_numpy(np.concatenate(parts)).to(self.device)

    def _flat_center(self) -> torch.Tensor:
        return torch.cat([tensor.view(-1) for tensor in self.center.values()])

    def _parts(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters [..., *shape] in flat ones [..., D]: views."""
        sizes = [tensor.numel() for tensor in self.center.values()]
        parts = zip(self.center.items(), flat.split(sizes, dim=-1), strict=True)
        return {name: part.unflatten(-1, tensor.shape) for (name, tensor), part in parts}

    def alone(self, parameters: Mapping[str, torch.Tensor] | None = None) -> Weights:
        """The weights of one model, N = 1: of the center, or of `parameters` in its names and shapes, differentiably.

        Raises:
            InputError: parameters of other names or shapes.
        """
        parameters = self.center if parameters is None else parameters
        for name in self.center.keys() | parameters.keys():
            ours, given = self.center.get(name), parameters.get(name)
            if ours is None or given is None or ours.shape != given.shape:
                sizes = [None if tensor is None else tuple(tensor.shape) for tensor in (ours, given)]
                raise InputError(f"{name}: shape {sizes[0]} in the center, {sizes[1]} in the parameters given")
        return self._fused({name: tensor[None] for name, tensor in parameters.items()})

    def _fused(self, stacked: Mapping[str, torch.Tensor]) -> Weights:
        """Weights [N, *shape] by name in the checkpoint, arranged.

        Head k·H/G + j reads the keys of group k. Features of queries are ordered (d, j, k), those of keys and values
        (d, k); `qkv` holds for each of the d the queries' and the keys' heads, and then the values.
        """
        width, groups = self.head_width, self.groups
        each = self.heads // groups
        layers = []
        for i in range(self.layers):

            def of(name: str, layer: str = f"model.layers.{i}.") -> torch.Tensor:
                return stacked[f"{layer}{name}.weight"]

            q, k, v = (of(f"self_attn.{letter}_proj") for letter in "qkv")
            n, _, h = q.shape
            q = q.view(n, groups, each, width, h).permute(0, 3, 2, 1, 4).reshape(n, width, -1, h) * width**-0.5
            k, v = (w.view(n, groups, width, h).transpose(1, 2) for w in (k, v))
            qkv = torch.cat([torch.cat([q, k], dim=2).flatten(1, 2), v.flatten(1, 2)], dim=1)
            out = of("self_attn.o_proj").view(n, h, groups, each, width).permute(0, 1, 4, 3, 2).reshape(n, h, -1)
            gate_up = torch.cat([of("mlp.gate_proj"), of("mlp.up_proj")], dim=1)
            layers.append(
                Layer(
                    qkv * of("input_layernorm")[:, None],
                    out,
                    gate_up * of("post_attention_layernorm")[:, None],
                    of("mlp.down_proj"),
                )
            )
        embedding = stacked["model.embed_tokens.weight"]
        head = embedding if self.tied else stacked["lm_head.weight"]
        return Weights(embedding, tuple(layers), head * stacked["model.norm.weight"][:, None])

    @torch.no_grad()
    def apply_update(self, update: Sequence[tuple[Direction, float]], keep: float = 1.0) -> None:
        """θ ← keep · θ + Σ coefficient · ε, to the bit as `Engine.apply_update`: whole or not at all.

        Raises:
            InputError: a coefficient that is not finite, keep outside [0, 1], or an update that overflows; the center
                stays.
        """
        check_update(update, keep)
        flat = self._flat_center()
        total = torch.zeros_like(flat)
        for direction, coefficient in update:
            total += self._noise(direction, coefficient)
        moved = self._parts(total if keep == 0 else (flat if keep == 1 else flat * keep) + total)
        check_finite(moved)
        self.center = {name: tensor.clone() for name, tensor in moved.items()}

    def save(self, folder: Path) -> None:
        """Write the center as a model folder in Hugging Face format: see `save_center`."""
        save_center(Local(cast("Engine", self)), folder)  # of an engine it needs the center alone

    # The policy

    @torch.no_grad()
    def generate(
        self,
        weights: Weights,
        prompts: torch.Tensor,
        n: int = 1,
        *,
        max_tokens: int,
        uniforms: torch.Tensor | None = None,
        temperature: float = 1.0,
    ) -> Generated:
        """n responses of every member to every prompt.

        Args:
            weights: of N members.
            prompts: int64 [N, P, L], or [1, P, L] for all members alike; all of one length.
            n: responses to each prompt.
            max_tokens: a response with this many tokens and no stop token is truncated.
            uniforms: float64 [N, P, n, max_tokens] in [0, 1): a token is the inverse of the policy's distribution
                function at its number, as in `TransformersEngine`. Without them, the most likely token (greedy).
            temperature: of the policy; for a greedy response it only enters the entropy.

        Raises:
            InputError: shapes that do not fit, a token outside the vocabulary, responses that exceed the context, a
                temperature that is not finite and positive, or logits that are not finite.
        """
        self._check(weights, prompts, max_tokens, temperature)
        shape = (weights.members, prompts.shape[1], n, max_tokens)
        if n < 1 or max_tokens < 1 or (uniforms is not None and uniforms.shape != shape):
            given = None if uniforms is None else tuple(uniforms.shape)
            raise InputError(
                f"[N, P, n, max_tokens] = {shape} must be positive, and the shape of uniforms, not {given}"
            )
        prompts = prompts.expand(weights.members, -1, -1)
        tokens = torch.zeros(shape, dtype=torch.long, device=self.device)
        entropy = torch.zeros(shape, device=self.device)

        @torch.no_grad()  # of this thread alone, hence in each
        def run(block: tuple[slice, slice]) -> None:
            numbers = None if uniforms is None else uniforms[block].to(self.device)
            self._generate(weights.part(block[0]), prompts[block], numbers, temperature, tokens[block], entropy[block])

        side_by_side(run, _blocks(*shape[:3]))
        stopped = self._stops[tokens].cumsum(dim=-1)
        said = stopped - self._stops[tokens].long() == 0  # up to and including the first stop token
        return Generated(
            tokens.where(said, 0),
            said.sum(dim=-1),
            stopped[..., -1] == 0,
            entropy.double().where(said, 0).sum(dim=-1),
        )

    def _generate(
        self,
        weights: Weights,
        prompts: torch.Tensor,
        uniforms: torch.Tensor | None,
        temperature: float,
        tokens: torch.Tensor,
        entropy: torch.Tensor,
    ) -> None:
        """One block: tokens and entropies [N, P, n, T] of all positions up to where the last row ends."""
        members, _, n, longest = tokens.shape
        length = prompts.shape[2]
        cache = [self._empty(layer, length, prompts.shape[1]) for layer in weights.layers]
        logits = self._forward(weights, prompts.transpose(1, 2), _Cached(self, cache, 0), 1)[:, 0]
        logits = logits.repeat_interleave(n, dim=1)  # [N, R, V], R = P n
        room = [self._empty(layer, length + longest - 1, logits.shape[1]) for layer in weights.layers]
        for new, old in zip(room, cache, strict=True):
            new[:, :, :length] = old.repeat_interleave(n, dim=-1)
        alive = torch.ones(logits.shape[:2], dtype=torch.bool, device=self.device)
        for t in range(longest):
            scaled = logits / temperature
            p = scaled.softmax(dim=-1)
            spread = -(p * scaled.log_softmax(dim=-1)).sum(dim=-1)
            if not spread.isfinite().all():
                raise InputError("the model's logits are not finite: sigma too large, or broken weights")
            if uniforms is None:
                token = logits.argmax(dim=-1)
            else:
                mass = p.double().cumsum(dim=-1)
                number = uniforms[..., t].reshape(members, -1, 1)
                token = torch.searchsorted(mass, number * mass[..., -1:], right=True)[..., 0]
            tokens[..., t] = token.view(tokens.shape[:3])
            entropy[..., t] = spread.view(tokens.shape[:3])
            alive &= ~self._stops[token]
            if t + 1 == longest or not alive.any():
                return
            logits = self._forward(weights, token[:, None], _Cached(self, room, length + t), 1)[:, 0]

    def log_probabilities(
        self,
        weights: Weights,
        prompts: torch.Tensor,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        temperature: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of every token, and entropy of the distribution it was drawn from; differentiable.

        Args:
            weights: of N members.
            prompts: int64 [N, P, L], or [1, P, L] for all members alike.
            tokens: int64 [N, P, n, T], as generated; after its end a response may have any token of the vocabulary.
            lengths: int64 [N, P, n], at least 1.
            temperature: of the policy.

        Returns:
            Two float32 [N, P, n, T], nats, 0 after the end of a response.

        Raises:
            InputError: as `generate`.
        """
        self._check(weights, prompts, tokens.shape[-1], temperature)
        members, count, n, width = tokens.shape
        if lengths.shape != tokens.shape[:3] or (members, count) != (weights.members, prompts.shape[1]):
            raise InputError(
                f"tokens and lengths must be [N, P, n, T] and [N, P, n] for N = {weights.members} members and "
                f"P = {prompts.shape[1]} prompts, not {list(tokens.shape)} and {list(lengths.shape)}"
            )
        self._check_vocabulary("tokens", tokens)
        longest = int(lengths.max())
        if not 1 <= int(lengths.min()) <= longest <= width:
            raise InputError(f"lengths must be in 1..{width}, not {int(lengths.min())}..{longest}")
        prompts = prompts.expand(members, -1, -1)
        heads, last = prompts[:, :, :-1], prompts[:, :, -1:]
        prefix = _Sequence(self, None)
        if heads.shape[2] > 0:
            self._forward(weights, heads.transpose(1, 2), prefix, 0)
        # Position t reads the token before it.
        said = torch.cat([last[:, :, None].expand(-1, -1, n, -1), tokens[..., : longest - 1]], dim=-1)
        said = said.reshape(members, count * n, longest).transpose(1, 2)
        logits = self._forward(weights, said, _Sequence(self, prefix.repeated(n)), longest)
        log_p = (logits / temperature).log_softmax(dim=-1)  # [N, T, R, V]
        drawn = tokens[..., :longest].reshape(members, count * n, longest).transpose(1, 2)
        chosen = log_p.gather(-1, drawn[..., None])[..., 0]
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        said = torch.arange(longest, device=self.device) < lengths[..., None]

        def finished(values: torch.Tensor) -> torch.Tensor:
            values = values.transpose(1, 2).reshape(members, count, n, longest).where(said, 0)
            return functional.pad(values, (0, width - longest))

        return finished(chosen), finished(entropy)

    # The forward pass: x [N, h, S R], S positions of R rows

    def _forward(
        self, weights: Weights, tokens: torch.Tensor, attention: "_Cached | _Sequence", keep: int
    ) -> torch.Tensor:
        """Logits [N, keep, R, V] at the last `keep` positions of tokens [N, S, R]; 0: attention sees them only."""
        members, positions, rows = tokens.shape
        embedding = weights.embedding.transpose(1, 2)
        at = tokens.reshape(members, 1, -1).expand(-1, embedding.shape[1], -1)
        x = embedding.gather(2, at)
        start = attention.start
        angle = self._frequencies[:, None] * torch.arange(start, start + positions, device=self.device)
        turn = angle.cos()[:, None, :, None], angle.sin()[:, None, :, None]  # [d/2, 1, S, 1]
        for i, layer in enumerate(weights.layers):
            wanted = keep if i == self.layers - 1 else positions
            qkv = torch.bmm(layer.qkv, self._normed(x))
            width, heads, groups = self.head_width, self.heads, self.groups
            qk, v = qkv.split([width * (heads + groups), width * groups], dim=1)
            qk = _turned(qk.view(members, width, heads + groups, positions, rows), turn)
            v = v.view(members, width, groups, positions, rows)
            q, k = qk.split([heads, groups], dim=2)
            q = q.reshape(members, width, heads // groups, groups, positions, rows)[..., positions - wanted :, :]
            heard = attention.attend(i, q, k, v)
            if wanted == 0:
                return x
            x = x[:, :, (positions - wanted) * rows :]
            x = torch.baddbmm(x, layer.out, heard)
            gate, up = torch.bmm(layer.gate_up, self._normed(x)).chunk(2, dim=1)
            x = torch.baddbmm(x, layer.down, functional.silu(gate) * up)
        logits = torch.bmm(weights.head, self._normed(x))
        return logits.transpose(1, 2).reshape(members, keep, rows, self.vocabulary)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.square().mean(dim=1, keepdim=True).add(self.epsilon).rsqrt()

    def _empty(self, layer: Layer, positions: int, rows: int) -> torch.Tensor:
        """Keys and values [2, N, positions, d, G, R]."""
        shape = (2, layer.qkv.shape[0], positions, self.head_width, self.groups, rows)
        return torch.empty(shape, device=self.device)

    # What is refused

    def _check(self, weights: Weights, prompts: torch.Tensor, room: int, temperature: float) -> None:
        if prompts.dim() != 3 or prompts.shape[0] not in (1, weights.members) or 0 in prompts.shape:
            raise InputError(f"prompts must be [1 or {weights.members}, P, L], not {list(prompts.shape)}")
        self._check_vocabulary("prompts", prompts)
        context = self.checkpoint.context
        if context is not None and prompts.shape[2] + room > context:
            raise InputError(f"prompts of {prompts.shape[2]} + {room} tokens exceed the model's context of {context}")
        if not 0 < temperature < math.inf:
            raise InputError(f"temperature must be finite and positive, not {temperature}")

    def _check_vocabulary(self, what: str, tokens: torch.Tensor) -> None:
        if tokens.dtype != torch.long:
            raise InputError(f"{what} must be int64, not {tokens.dtype}")
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
            raise InputError(f"{what} have a token outside 0..{self.vocabulary - 1}: is it of another tokenizer?")


class _Cached:
    """Attention for generation: keys and values of all positions so far in memory of their own; not differentiable."""

    def __init__(self, model: BatchedLlama, cache: list[torch.Tensor], start: int) -> None:
        self.cache = cache
        self.start = start

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [N, d, H/G, G, S', R], k and v [N, d, G, S, R] -> [N, d H, S' R]; the last S' positions ask."""
        keys, values = self.cache[layer]
        stop = self.start + k.shape[3]
        keys[:, self.start : stop] = k.permute(0, 3, 1, 2, 4)
        values[:, self.start : stop] = v.permute(0, 3, 1, 2, 4)
        asking = q.shape[4]
        heard = []
        for s in range(asking):
            end = stop - asking + s + 1
            scores = (keys[:, :end, :, None] * q[:, None, ..., s, :]).sum(dim=2)  # [N, T, H/G, G, R]
            p = scores.softmax(dim=1)
            heard.append((values[:, :end, :, None] * p[:, :, None]).sum(dim=1))
        result = heard[0] if asking == 1 else torch.stack(heard, dim=4)
        return result.reshape(q.shape[0], -1, asking * q.shape[5])


class _Sequence:
    """Attention for scoring: whole sequences after keys and values of what came before; differentiable."""

    def __init__(self, model: BatchedLlama, past: list[tuple[torch.Tensor, torch.Tensor]] | None) -> None:
        self.past = past
        self.start = 0 if not past else past[0][0].shape[3]
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # [N, G, R, T, d] of each layer

    def repeated(self, n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What was seen, each row n times."""
        return [(k.repeat_interleave(n, dim=2), v.repeat_interleave(n, dim=2)) for k, v in self.seen]

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As `_Cached.attend`."""
        k, v = (tensor.permute(0, 2, 4, 3, 1) for tensor in (k, v))
        if self.past:
            before = self.past[layer]
            k, v = torch.cat([before[0], k], dim=3), torch.cat([before[1], v], dim=3)
        self.seen.append((k, v))
        members, width, each, groups, asking, rows = q.shape
        if asking == 0:
            return q.flatten()
        q = q.permute(0, 2, 3, 5, 4, 1)  # [N, H/G, G, R, S', d]
        reach = torch.ones(asking, k.shape[3], dtype=torch.bool, device=q.device).tril(k.shape[3] - asking)
        heard = functional.scaled_dot_product_attention(
            q.flatten(0, 2),
            k[:, None].expand(-1, each, -1, -1, -1, -1).flatten(0, 2),
            v[:, None].expand(-1, each, -1, -1, -1, -1).flatten(0, 2),
            attn_mask=reach,
            scale=1.0,
        )
        heard = heard.view(members, each, groups, rows, asking, width).permute(0, 5, 1, 2, 4, 3)
        return heard.reshape(members, -1, asking * rows)


def _turned(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions: features i and i + d/2 of every head, turned by the angle of the position and i."""
    cos, sin = turn
    a, b = x.chunk(2, dim=1)
    return torch.cat([torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)], dim=1)


def _blocks(members: int, prompts: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Members and prompts in blocks of about BLOCK rows: several members with all prompts, or one with some."""
    width = min(prompts, max(1, BLOCK // n))
    height = max(1, BLOCK // (width * n))
    for i in range(0, members, height):
        for j in range(0, prompts, width):
            yield slice(i, i + height), slice(j, j + width)


def _config(checkpoint: Checkpoint) -> Any:
    """The checkpoint's config; InputError unless this file computes what it describes."""
    transformers = require("transformers", "llm")
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    except Exception as error:  # whatever a config's own checks raise
        raise InputError(f"{checkpoint.name}: its config does not load: {one_line(error)}") from error
    if config.model_type != "llama":
        raise InputError(f"{checkpoint.name} is a {config.model_type}: a batched population needs a llama")
    rope = config.rope_parameters["rope_type"]
    for what, has in {
        "biases": config.attention_bias or config.mlp_bias,
        f"activation {config.hidden_act}": config.hidden_act != "silu",
        f"rotary positions of type {rope}": rope != "default",
        "quantised weights": getattr(config, "quantization_config", None) is not None,
        f"{config.num_attention_heads} heads on {config.num_key_value_heads}": config.num_attention_heads
        % config.num_key_value_heads,
        f"heads of odd width {config.head_dim}": config.head_dim % 2,
    }.items():
        if has:
            raise InputError(f"{checkpoint.name} has {what}: a batched population needs a plain llama")
    return config


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Name in the checkpoint -> shape, in the model's order; a tied head has none of its own."""
    h, intermediate, width = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * width, config.num_key_value_heads * width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, h)}
    for i in range(config.num_hidden_layers):
        for name, shape in {
            "self_attn.q_proj": (q, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q),
            "mlp.gate_proj": (intermediate, h),
            "mlp.up_proj": (intermediate, h),
            "mlp.down_proj": (h, intermediate),
            "input_layernorm": (h,),
            "post_attention_layernorm": (h,),
        }.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    shapes["model.norm.weight"] = (h,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, h)
    return shapes


def _center(
    checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]], device: torch.device
) -> dict[str, torch.Tensor]:
    safe_open = require("safetensors", "llm").safe_open
    center = {}
    for name, shape in shapes.items():
        stored = checkpoint.tensors.get(name)
        if stored is None or stored.shape != shape:
            found = "no such tensor" if stored is None else f"shape {list(stored.shape)}"
            raise InputError(f"{checkpoint.name}: {name} must have shape {list(shape)}, found {found}")
        with safe_open(stored.file, framework="pt") as file:
            center[name] = file.get_tensor(name).to(device, torch.float32).contiguous()
    return center
