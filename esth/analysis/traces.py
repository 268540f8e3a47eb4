"""tr F of a base, tensor by tensor, from score gradients of its own responses: where information lies in it.

tr F = E‖∇ log π(y)‖², y ~ π (L1.4), splits exactly into a sum over tensors. A backward pass a response: this, unlike
the rest of a comparison, needs the model in memory, in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esth.analysis.pair import Weights
from esth.diversity.config import check_least
from esth.diversity.sampling import Progress, quiet
from esth.errors import InputError
from esth.estimators.intervals import Estimate
from esth.estimators.linearised import ratio
from esth.models.engine import Sampling
from esth.models.groups import kind
from esth.models.workers import load_workers
from esth.noise import hashed
from esth.tasks import load_task
from esth.tasks.task import encode
from esth.training.problem_sets import TASK_SEED

if TYPE_CHECKING:
    from esth.models.engine import Engine


PROMPTS = 32
"""Problems that are answered where nothing else is said."""


@dataclass(frozen=True)
class TraceConfig:
    """What a base answers for its Fisher information.

    Attributes:
        task: a task's name, or NAME:DIFFICULTY.
        prompts: problems of its test split, at least 2; if none, PROMPTS or all where there are fewer.
        samples: responses to each.
        temperature: of the policy, above 0.
        seed: of the responses.
        threads: of torch.
    """

    task: str
    prompts: int | None = None
    samples: int = 2
    temperature: float = 1.0
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        check_least(self, samples=1, seed=0, threads=1, **({} if self.prompts is None else {"prompts": 2}))


@dataclass(frozen=True)
class Traces:
    """Estimates of tr F by tensor.

    Attributes:
        config: what was answered.
        per_prompt: tensor -> [X] mean of ‖∇ log π‖² over a prompt's responses, nats² per squared unit of the weights.
    """

    config: TraceConfig
    per_prompt: dict[str, NDArray[np.float64]] = field(repr=False)

    def mean(self) -> dict[str, float]:
        """tr F_τ of every tensor."""
        return {name: float(values.mean()) for name, values in self.per_prompt.items()}

    def shares(self, of: Callable[[str], str]) -> dict[str, Estimate]:
        """Of tr F in the tensors that `of` gives one name; standard errors over prompts, linearised."""
        total = np.sum(list(self.per_prompt.values()), axis=0)
        sums: dict[str, NDArray[np.float64]] = {}
        for name, values in self.per_prompt.items():
            sums[of(name)] = sums.get(of(name), np.zeros_like(total)) + values
        return {name: ratio(values, total) for name, values in sums.items()}

    def to_dict(self) -> dict[str, Any]:
        """Settings, and tr F by tensor, as JSON types."""
        return {**vars(self.config), "traces": self.mean()}


def fisher_traces(base: Weights, config: TraceConfig, names: Sequence[str], progress: Progress = quiet) -> Traces:
    """tr F of a base on a task.

    Args:
        names: the tensors that are compared. A head that is the embedding to the bit, though the model trains both,
            counts there; whatever has no gradient has 0.

    Raises:
        InputError: whatever is wrong with task or model; a policy without gradient.
    """
    name, _, difficulty = config.task.partition(":")
    wanted = config.prompts or PROMPTS
    task = load_task(name, n=config.prompts, seed=TASK_SEED, split="test", difficulty=difficulty or None)
    if len(task) < (config.prompts or 2):
        raise InputError(f"task {config.task} has {len(task)} problems: --fisher asked for {config.prompts or 2}")
    task = replace(task, problems=task.problems[:wanted])
    sampling = Sampling(config.temperature, task.max_tokens)
    embedding = next((n for n in names if kind(n) == "token"), None)
    with load_workers(base.folder, threads=config.threads, dtype="float32") as workers:
        prompts = [encode(workers.checkpoint.tokenizer, problem) for problem in task.problems]
        rows: dict[int, dict[str, float]] = {}
        for x, found in workers.map(partial(_of_prompt, config, sampling), list(enumerate(prompts))):
            rows[x] = found
            progress("Fisher information", len(rows), len(prompts), 0)
    per_prompt = {n: np.zeros(len(prompts)) for n in names}
    for x, row in rows.items():
        for tensor, value in row.items():
            at = embedding if tensor not in per_prompt and kind(tensor) in ("head", "token") else tensor
            if at not in per_prompt:
                raise InputError(f"{base.name} has a parameter {tensor} that its files do not name")
            per_prompt[at][x] += value
    if not np.sum(list(per_prompt.values())) > 0:
        raise InputError(f"{base.name} has no gradient on {config.task}: its responses are certain")
    return Traces(replace(config, prompts=len(task)), per_prompt)


def _of_prompt(
    config: TraceConfig, sampling: Sampling, engine: "Engine", item: tuple[int, list[int]]
) -> dict[str, float]:
    """Mean of ‖∇ log π‖² over the responses to one prompt, tensor by tensor."""
    from esth.models.gradients import squared_norms

    x, prompt = item
    engine.restore()
    said = engine.sample([prompt], config.samples, sampling, hashed("traces", config.seed), prompt_ids=[x])
    norms = squared_norms(engine, [prompt], said, sampling).mean(0)
    return dict(zip(engine.center, norms.tolist(), strict=True))
