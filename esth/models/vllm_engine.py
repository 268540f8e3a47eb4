"""vLLM in this process, on CPU or one GPU: its scheduler, paged attention and sampler; members and scores are ours.

Weights go in through the model's own `load_weights`, under the checkpoint's names, so that what vLLM fuses (query, key
and value; gate and up) or ties comes out right. Three things could keep old weights alive, silently:

- On CPU vLLM replaces the weight of a linear layer by a packed copy, which later weights never reach. Layers are kept
  plain (`_plain_linear`); a model in which one is not, or that keeps anything else derived from weights, is refused.
- A parameter that no name in the checkpoint leads to stays as it was. At load all are filled with NaN and written once:
  what is still NaN is named and refused.
- The prefix cache holds keys and values of the member that wrote them. It is emptied before every call.

vLLM's prompt log-probabilities are those of the raw logits. Scores are of the policy, so the hidden states of all
positions are taken at the place where vLLM would compute its own, and only the responses' become logits.
"""

import gc
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from esth.errors import InputError, require
from esth.models.checkpoint import Checkpoint, one_line
from esth.models.displacement import Noise, check_finite, check_update, displace
from esth.models.engine import Engine, Response, Sampling, check_tokens, named_prompts, stream_key
from esth.models.stored import Arrays, check_arrays, slice_of
from esth.models.transformers_engine import parameters_by_checkpoint_name, policy_logits
from esth.noise import Combination, Direction, hashed

# Before vLLM is imported. The model must be in this process, and of vLLM's two model runners only this one has a method
# that sees the hidden states of all positions.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0")
for _name, _default in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_NO_USAGE_STATS", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),  # two engines on a machine would be bound to the same cores
):
    os.environ.setdefault(_name, _default)

logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # that there is none is no news on CPU
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the deprecations in vLLM and below
    vllm = require("vllm", "vllm or vllm-cpu")

_TEMPERATURES = (0.01, 2.0)  # vLLM refuses higher ones, and samples at the lowest for all below that are not 0


class VLLMEngine(Engine):
    """See `esth.models.engine.Engine`. It samples with vLLM's generators: other engines agree in distribution only.

    The center is held in CPU memory, twice while it moves.

    Args:
        checkpoint: from `load_checkpoint`.
        dtype: of the model and of its center: "float32", "bfloat16" or "float16".
        block_bytes: next-token logits held at once inside `score` and `next_token_logits`.
        options: of `vllm.LLM`, such as gpu_memory_utilization, max_model_len, kv_cache_memory_bytes (on CPU 1 GiB
            unless given here or as VLLM_CPU_KVCACHE_SPACE) or enforce_eager (True unless given).

    Raises:
        InputError: what vLLM does not load, and what it keeps in a form that cannot be set by the checkpoint's names:
            quantised weights, mixtures of experts, latent attention, a model on several GPUs.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, dtype: str = "float32", block_bytes: int = 1 << 28, **options: Any
    ) -> None:
        if dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"dtype must be float32, bfloat16 or float16, not {dtype}")
        self.checkpoint = checkpoint
        self.block_bytes = block_bytes
        self._center = _stored(checkpoint, getattr(torch, dtype))
        self._member: tuple[Direction, float] | None = None
        self._llm = _load(checkpoint, dtype, options)
        self._core: Any = self._llm.llm_engine
        self._core.engine_core._finalizer.detach()  # it would tear down what all engines in a process share
        worker = self._core.model_executor.driver_worker
        self._runner: Any = getattr(worker, "worker", worker).model_runner
        self.model: Any = self._runner.get_model()
        self.device: torch.device = next(self.model.parameters()).device
        self.vocabulary: int = self._llm.model_config.get_vocab_size()
        self._finite = torch.ones((), dtype=torch.bool, device=self.device)  # all logits so far
        self._take: Callable[[list[int], torch.Tensor], None] | None = None  # takes logits while scoring
        try:
            self._watch()
            _check_layers(checkpoint, self.model)
            self._check_names()
            self._try()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the memory back; the engine cannot be used any more. Others in the process can."""
        self._core.vllm_config.compilation_config.static_forward_context.clear()  # weights and cache hang on it too
        for name in ("_llm", "_core", "_runner", "model", "_center"):
            delattr(self, name)
        gc.unfreeze()  # vLLM freezes what is there when it has started, itself included
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # The population

    def set_member(self, member: Direction, sigma: float) -> None:
        if not 0 <= sigma < math.inf:
            raise InputError(f"sigma must be finite and at least 0, not {sigma}")
        if self._member == (member, sigma):
            return
        noise = partial(member.noise, scale=sigma)
        with self._center_if_interrupted():
            self._write((name, _displaced(name, center, noise)) for name, center in self._center.items())
        self._member = (member, sigma)

    def restore(self) -> None:
        self._member = None
        self._write(iter(self._center.items()))

    @property
    def center(self) -> Mapping[str, torch.Tensor]:
        return self._center

    def apply_update(self, update: Sequence[tuple[Direction, float]], keep: float = 1.0) -> None:
        check_update(update, keep)
        self._move_center(Combination(tuple(update)).noise, keep)

    def load_center(self, weights: Arrays) -> None:
        check_arrays(weights, {name: center.shape for name, center in self._center.items()}, self.checkpoint.tensors)
        self._move_center(partial(slice_of, weights), keep=0.0)

    def _move_center(self, noise: Noise, keep: float) -> None:
        with self._center_if_interrupted():
            moved = {name: _displaced(name, center, noise, keep) for name, center in self._center.items()}
            check_finite(moved)
            self._write(iter(moved.items()))
        self._center = moved

    @contextmanager
    def _center_if_interrupted(self) -> Iterator[None]:
        self._member = None
        try:
            yield
        except BaseException:
            self.restore()
            raise

    @torch.no_grad()
    def _write(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        written = self.model.load_weights(weights)
        if written is not None:  # some architectures do not say
            self._refuse(name for name, _ in self.model.named_parameters() if name not in written)

    @torch.no_grad()
    def _check_names(self) -> None:
        """Every element of every parameter comes from the center."""
        for parameter in self.model.parameters():
            parameter.fill_(math.nan)
        try:
            self._write(iter(self._center.items()))
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{self.checkpoint.name}: vLLM loads its weights only once: {one_line(error)}") from error
        parameters = self.model.named_parameters()
        self._refuse(name for name, p in parameters if p.numel() == 0 or p.isnan().any())

    def _try(self) -> None:
        """One token: what attention or kernels do not support is known only when they run."""
        try:
            self._generate([([0], vllm.SamplingParams(temperature=0, max_tokens=1, detokenize=False))])
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{self.checkpoint.name} does not run in vLLM: {one_line(error)}") from error

    def _refuse(self, unwritten: Iterator[str]) -> None:
        name = next(unwritten, None)
        if name is not None:
            raise InputError(f"{self.checkpoint.name}: no parameter of the checkpoint is written to vLLM's {name}")

    # The policy

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
        lowest, highest = _TEMPERATURES
        if sampling.temperature != 0 and not lowest <= sampling.temperature <= highest:
            raise InputError(f"vLLM samples at temperature 0 or {lowest} to {highest}, not {sampling.temperature}")
        for i, prompt in enumerate(prompts):
            self._check(f"prompt {i}", prompt, sampling.max_tokens)
        who = stream_key(self._member)
        requests = [
            (
                prompt,
                vllm.SamplingParams(
                    temperature=sampling.temperature,
                    top_k=min(sampling.top_k or 0, self.vocabulary),
                    top_p=1.0 if sampling.top_p is None else sampling.top_p,
                    max_tokens=sampling.max_tokens,
                    seed=hashed("response", seed, *who, i, first_sample + j) >> 1,  # vLLM's seeds have a sign
                    ignore_eos=True,  # of the config; the checkpoint's stop tokens have them all
                    stop_token_ids=sorted(self.checkpoint.stop_tokens),
                    detokenize=False,
                ),
            )
            for i, prompt in zip(ids, prompts, strict=True)
            for j in range(n)
        ]
        said = self._generate(requests)
        stop = self.checkpoint.stop_tokens
        drawn = iter([Response(tuple(tokens), truncated=tokens[-1] not in stop) for tokens in said])
        return [[next(drawn) for _ in range(n)] for _ in prompts]

    def score(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Response]], sampling: Sampling
    ) -> list[list[NDArray[np.float64]]]:
        tokens = torch.tensor([t for group in responses for r in group for t in r.tokens], device=self.device)
        scores = torch.empty(len(tokens), dtype=torch.float64, device=self.device)

        def take(positions: torch.Tensor, logits: torch.Tensor) -> None:
            policy = policy_logits(logits, sampling).double()
            scores[positions] = policy.gather(1, tokens[positions, None])[:, 0] - policy.logsumexp(dim=1)

        self._logits(prompts, responses, take)
        parts = iter(np.split(scores.cpu().numpy(), np.cumsum([len(r.tokens) for g in responses for r in g])))
        return [[next(parts).copy() for _ in group] for group in responses]

    def next_token_logits(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Response]], sampling: Sampling
    ) -> torch.Tensor:
        count = sum(len(response.tokens) for group in responses for response in group)
        result = torch.empty(count, self.vocabulary, device=self.device)

        def take(positions: torch.Tensor, logits: torch.Tensor) -> None:
            result[positions] = policy_logits(logits, sampling)

        self._logits(prompts, responses, take)
        return result

    def _logits(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[Response]],
        take: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> None:
        """Hand all positions (they run through all responses) and the model's logits there, [rows, V], to `take`."""
        if len(responses) != len(prompts):
            raise InputError(f"{len(responses)} groups of responses for {len(prompts)} prompts")
        said = [(i, response.tokens) for i, group in enumerate(responses) for response in group]
        for i, tokens in said:
            self._check(f"prompt {i}", prompts[i], len(tokens))
            self._check(f"a response to prompt {i}", tokens, 0)
        first = np.cumsum([0] + [len(tokens) for _, tokens in said])
        missing = np.ones(first[-1], bool)

        def note(positions: list[int], logits: torch.Tensor) -> None:
            missing[positions] = False
            take(torch.tensor(positions, device=self.device), logits)

        self._take = note
        try:
            # Responses that begin alike share cached blocks, and those have no hidden states: once more, without.
            for cached in (True, False):
                requests = [
                    (
                        # The token at a position has the logits of the position before it.
                        [*prompts[i], *tokens[:-1]],
                        vllm.SamplingParams(
                            temperature=0,
                            max_tokens=1,
                            ignore_eos=True,
                            detokenize=False,
                            skip_reading_prefix_cache=not cached,
                            extra_args={"wanted from": len(prompts[i]) - 1, "which is": int(first[k])},
                        ),
                    )
                    for k, (i, tokens) in enumerate(said)
                    if missing[first[k] : first[k + 1]].any()
                ]
                self._generate(requests)
        finally:
            self._take = None

    def _generate(self, requests: Sequence[tuple[Sequence[int], Any]]) -> list[list[int]]:
        """What vLLM says to prompts with parameters; nothing is left of it in the engine."""
        if not requests:
            return []
        self._llm.reset_prefix_cache()  # of another member, or in another order
        self._finite = torch.ones((), dtype=torch.bool, device=self.device)
        prompts = [vllm.TokensPrompt(prompt_token_ids=list(prompt)) for prompt, _ in requests]
        try:
            outputs = self._llm.generate(prompts, [parameters for _, parameters in requests], use_tqdm=False)
        except BaseException:
            self._core.abort_request(list(self._core.output_processor.request_states), internal=True)
            self._runner.execute_model_state = None
            raise
        if not self._finite:
            for cache in self._runner.kv_caches:  # attention multiplies what it masks by zero, and that is NaN again
                cache.zero_()
            raise InputError("the model's logits are not finite: sigma too large for the dtype, or broken weights")
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _watch(self) -> None:
        """See every logit that vLLM computes, and, where it would compute prompt log-probabilities, hidden states."""
        compute, runner = self.model.compute_logits, self._runner

        def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = compute(hidden)
            self._finite &= logits.amax(dim=-1).isfinite().all()
            return logits

        def hidden_states(hidden: torch.Tensor, scheduled: dict[str, int]) -> dict[str, Any]:
            if self._take is None:
                return {}
            rows: list[int] = []
            positions: list[int] = []
            for name, count in scheduled.items():
                request = runner.requests[name]
                wanted, position = request.sampling_params.extra_args.values()
                start = request.num_computed_tokens
                row = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
                for t in range(max(start, wanted), start + count):
                    rows.append(row + t - start)
                    positions.append(position + t - wanted)
            step = max(1, self.block_bytes // (4 * self.vocabulary))
            for part in (slice(at, at + step) for at in range(0, len(rows), step)):
                self._take(positions[part], compute_logits(hidden[rows[part]]).float())
            return {}

        self.model.compute_logits = compute_logits
        if not hasattr(runner, "_get_prompt_logprobs_dict"):
            raise InputError(f"vLLM {vllm.__version__} computes prompt log-probabilities in another place: use 0.32")
        runner._get_prompt_logprobs_dict = hidden_states

    def _check(self, what: str, tokens: Sequence[int], room: int) -> None:
        check_tokens(what, tokens, room, self._llm.model_config.max_model_len, self.vocabulary)


def _displaced(name: str, center: torch.Tensor, noise: Noise, keep: float = 1.0) -> torch.Tensor:
    moved = torch.empty_like(center)
    displace({name: center}, noise, {name: moved}, keep)
    return moved


def _stored(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The parameters in the checkpoint, those and by those names that the transformers engine perturbs."""
    safetensors = require("safetensors", "llm")
    options = {"local_files_only": True, "trust_remote_code": checkpoint.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(checkpoint.folder, **options)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=checkpoint.trust_remote_code)
    except Exception as error:
        raise InputError(f"{checkpoint.name} does not load: {one_line(error)}") from error
    tensors = {}
    for name in parameters_by_checkpoint_name(model, checkpoint):
        with safetensors.safe_open(checkpoint.tensors[name].file, framework="pt") as file:
            tensors[name] = file.get_tensor(name).to(dtype)
    return tensors


def _load(checkpoint: Checkpoint, dtype: str, options: dict[str, Any]) -> Any:
    from vllm.platforms import current_platform

    arguments: dict[str, Any] = {
        "runner": "generate",
        "dtype": dtype,
        "enforce_eager": True,
        "generation_config": "vllm",  # the checkpoint's own defaults would change the policy
        "trust_remote_code": checkpoint.trust_remote_code,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "use_tqdm_on_load": False,
    }
    if current_platform.is_cpu():
        # A prompt in parts needs generators that can be set back, which those of the CPU cannot.
        longest = options.get("max_model_len") or checkpoint.context or 0
        arguments |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(8192, longest), "block_size": 32}
        if not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            arguments["kv_cache_memory_bytes"] = 1 << 30
    set_num_threads = torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _plain_linear():
                return vllm.LLM(str(checkpoint.folder), **(arguments | options))
    except Exception as error:  # unknown architecture or option, memory: one line for the user
        raise InputError(f"{checkpoint.name} does not load in vLLM: {one_line(error)}") from error
    finally:
        torch.set_num_threads = set_num_threads  # vLLM makes it do nothing


@contextmanager
def _plain_linear() -> Iterator[None]:
    """Linear layers of models loaded meanwhile multiply by their `weight`, not by a packed copy (on CPU)."""
    from vllm.model_executor.layers import utils

    pack = utils.dispatch_cpu_unquantized_gemm

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = plain
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = pack


def _check_layers(checkpoint: Checkpoint, model: torch.nn.Module) -> None:
    """Every layer computes with its parameters themselves, not with something made of them when they were loaded.

    Raises:
        InputError: names the first layer that does not.
    """
    from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    plain = (type(None), UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    for name, module in model.named_modules():
        if is_deferred_attention_layer(module):
            after_loading = type(module).process_weights_after_loading
            fresh = after_loading is Attention.process_weights_after_loading
        else:
            fresh = not hasattr(module, "process_weights_after_loading")
        fresh &= type(getattr(module, "quant_method", None)) in plain
        fresh &= getattr(module, "cpu_linear", torch.nn.functional.linear) is torch.nn.functional.linear
        if not fresh:
            raise InputError(
                f"{checkpoint.name}: vLLM computes {name or 'the model'} ({type(module).__name__}) from a form of its "
                "own of the weights, which members would not reach"
            )
