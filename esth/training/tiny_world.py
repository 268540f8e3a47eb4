"""The tiny world: a small Llama whose whole population answers in one batched forward pass."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esth.errors import InputError
from esth.models import load_checkpoint
from esth.models.batched import BatchedLlama, Generated, Weights
from esth.models.checkpoint import SHIPPED
from esth.models.engine import check_tokens
from esth.models.stored import StoredWeights
from esth.noise import Direction, hashed, uniforms
from esth.tasks.task import Task, encode
from esth.training.config import TrainConfig
from esth.training.evaluation import Evaluation
from esth.training.problem_sets import problem_sets
from esth.training.worlds import Decoding, DifferentiableWorld, Responses, Rewards, Spent, Update, anchored

KNOWN = 1 << 18
"""Judged responses remembered, some 100 MB at most."""


class TinyWorld(DifferentiableWorld):
    """A checkpoint of the package (`esth.models.tiny`) or a folder like it, on problems whose prompts are equally long.

    Raises:
        InputError: an unknown model, or a task whose prompts its tokenizer cannot read.
    """

    def __init__(self, config: TrainConfig) -> None:
        checkpoint = load_checkpoint(config.model)
        self.model = BatchedLlama(checkpoint)
        self.start = {name: tensor.clone() for name, tensor in self.model.center.items()}
        self.temperature = config.temperature
        sets = problem_sets(config, config.model[-1] if config.model in SHIPPED and config.task == "chain" else None)
        self.training = _Set(self.model, sets.training)
        self.evaluated = {name: _Set(self.model, task) for name, task in sets.evaluated.items()}
        self.n_problems = len(sets.training)
        self.max_tokens = sets.training.max_tokens
        self._name = config.model

    @property
    def identity(self) -> dict[str, Any]:
        evaluated = {name: problems.digest for name, problems in self.evaluated.items()}
        weights = self.model.checkpoint.fingerprint
        return {"model": self._name, "weights": weights, "problems": self.training.digest, "evaluated": evaluated}

    def rewards(
        self, members: Sequence[Direction], sigma: float, problems: NDArray[np.int64], decoding: Decoding, seed: int
    ) -> Rewards:
        shape = (len(members), problems.shape[1], decoding.samples, self.training.max_tokens)
        numbers = None
        if decoding.kind == "sampled":
            names = [("common",) if decoding.common else member.key for member in members]
            streams = [uniforms("response", seed, *name, count=math.prod(shape[1:])) for name in names]
            numbers = torch.from_numpy(np.stack(streams)).view(shape)
        said = self._generate(self.model.members(members, sigma), self.training, problems, decoding.samples, numbers)
        tokens = int(said.lengths.sum())
        return Rewards(
            self.training.judged(said, problems),
            float(said.entropy.sum()) / tokens,
            float(said.truncated.double().mean()),
            Spent(said.lengths.numel(), tokens, said.lengths.numel(), 0),
        )

    def apply_update(self, update: Update, decay: float = 0.0) -> None:
        self.model.apply_update(*anchored(update, decay, StoredWeights.of(self.model.checkpoint)))

    def evaluate(self, samples: int, seed: int) -> list[Evaluation]:
        return [self._evaluate(name, problems, samples, seed) for name, problems in self.evaluated.items()]

    @torch.no_grad()
    def _evaluate(self, name: str, problems: "_Set", samples: int, seed: int) -> Evaluation:
        center, everything = self.model.alone(), np.arange(len(problems.task))[None]
        count = samples * problems.max_tokens
        streams = [uniforms("evaluation", seed, x, count=count) for x in range(len(problems.task))]
        numbers = torch.from_numpy(np.stack(streams)).view(1, len(streams), samples, problems.max_tokens)
        said = self._generate(center, problems, everything, samples, numbers)
        greedy = self._generate(center, problems, everything, 1, None)
        return Evaluation(
            name,
            tuple(problem.id for problem in problems.task.problems),
            samples,
            problems.judged(said, everything)[0].sum(axis=-1),
            problems.judged(greedy, everything)[0, :, 0],
            said.entropy[0].sum(dim=-1).numpy(),
            said.lengths[0].sum(dim=-1).double().numpy(),
            said.truncated[0].sum(dim=-1).double().numpy(),
        )

    def _generate(
        self, weights: Weights, problems: "_Set", which: NDArray[np.int64], n: int, numbers: torch.Tensor | None
    ) -> Generated:
        shared = which[:1] if (which == which[:1]).all() else which
        return self.model.generate(
            weights,
            problems.prompts[torch.tensor(shared)],
            n,
            max_tokens=problems.max_tokens,
            uniforms=numbers,
            temperature=self.temperature,
        )

    @torch.no_grad()
    def drift(self) -> float:
        center = self.model.center
        moved = sum(float((center[name] - theta).double().square().sum()) for name, theta in self.start.items())
        return math.sqrt(moved / sum(float(theta.double().square().sum()) for theta in self.start.values()))

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        loaded = BatchedLlama(load_checkpoint(folder)).center
        shapes = {name: theta.shape for name, theta in self.start.items()}
        if {name: theta.shape for name, theta in loaded.items()} != shapes:
            raise InputError(f"{folder}: its weights are not of the shapes of {self._name}")
        for name, theta in self.model.center.items():
            theta.copy_(loaded[name])

    def close(self) -> None:
        pass

    # For GRPO

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        return self.model.center

    def respond(self, problems: NDArray[np.int64], n: int, seed: int) -> Responses:
        count = len(problems) * n * self.training.max_tokens
        numbers = torch.from_numpy(uniforms("response", seed, "center", count=count))
        with torch.no_grad():
            weights = self.model.alone()
            said = self._generate(
                weights, self.training, problems[None], n, numbers.view(1, -1, n, self.training.max_tokens)
            )
            longest = int(said.lengths.max())
            said = said._replace(tokens=said.tokens[..., :longest])
            prompts = self.training.prompts[torch.from_numpy(problems)][None]
            log_p, _ = self.model.log_probabilities(weights, prompts, said.tokens, said.lengths, self.temperature)
        tokens = int(said.lengths.sum())
        return Responses(
            (prompts, said.tokens, said.lengths),
            (torch.arange(longest) < said.lengths[..., None]).float().flatten(0, 2),
            log_p.flatten(0, 2),
            self.training.judged(said, problems[None])[0],
            float(said.entropy.sum()) / tokens,
            float(said.truncated.double().mean()),
            Spent(said.lengths.numel(), tokens, 2 * said.lengths.numel(), 0),  # drawn, and scored
        )

    def log_probabilities(self, responses: Responses, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        weights = self.model.alone(parameters)
        prompts, tokens, lengths = responses.tokens
        return self.model.log_probabilities(weights, prompts, tokens, lengths, self.temperature)[0].flatten(0, 2)


class _Set:
    """A task's problems as one block of prompts, int64 [P, L], and its verifier."""

    def __init__(self, model: BatchedLlama, task: Task) -> None:
        encoded = [encode(model.checkpoint.tokenizer, problem) for problem in task.problems]
        if len({len(tokens) for tokens in encoded}) > 1:
            example = task.problems[0].prompt[:40]
            raise InputError(f"task {task.name}: a tiny model reads chains, all of one length, not {example!r}")
        for problem, tokens in zip(task.problems, encoded, strict=True):
            check_tokens(f"problem {problem.id}", tokens, task.max_tokens, model.checkpoint.context, model.vocabulary)
        self.task = task
        self.prompts = torch.tensor(encoded)
        self.max_tokens = task.max_tokens
        self.digest = f"{hashed(*(p.prompt for p in task.problems)):016x}"
        self._decode = model.checkpoint.decode
        self._known: dict[tuple[int, ...], bool] = {}

    def judged(self, said: Generated, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Rewards [N, P, n] of responses to the problems [N, P]: members give the same answers often, judged once."""
        n, p, m, width = said.tokens.shape
        problems = np.broadcast_to(which[..., None], (n, p, m)).reshape(-1, 1)
        rows = np.concatenate(
            [problems, said.lengths.reshape(-1, 1).numpy(), said.tokens.reshape(-1, width).numpy()], 1
        )
        return np.array([self._right(row) for row in map(tuple, rows.tolist())], dtype=np.float64).reshape(n, p, m)

    def _right(self, row: tuple[int, ...]) -> bool:
        if len(self._known) > KNOWN:
            self._known.clear()
        if row not in self._known:
            problem, length, *tokens = row
            self._known[row] = self.task.verify(self._decode(tokens[:length]), self.task.problems[problem])
        return self._known[row]
