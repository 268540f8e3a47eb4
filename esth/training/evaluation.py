"""What a policy does on a set of problems: successes, greedy answers, entropy, lengths, with intervals over prompts.

Two evaluations of the same problems are compared in pairs, so what the problems have in common cancels. Streams of
random numbers are named by seed, problem and try, not by the model: a run and its base answer with the same numbers.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from esth._files import write_text
from esth._threads import side_by_side
from esth.check import rich_safe
from esth.coverage import at_least_one
from esth.errors import InputError, require
from esth.estimators.intervals import Interval, bounded_mean, student
from esth.estimators.pass_at_k import PAIRED_PSEUDO
from esth.estimators.pass_at_k import per_prompt as counted

if TYPE_CHECKING:
    from esth.models.engine import Engine, Response, Sampling
    from esth.models.workers import Workers
    from esth.tasks.task import Task

Float = NDArray[np.float64]

CONFIDENCE = 0.95
TRIES = (1, 16, 32)
"""The k of pass@k in a table, as far as there are so many responses."""

FORMAT = "esth evaluations 1"
COLUMNS = ("successes", "greedy", "entropy", "tokens", "truncated")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A policy on P problems.

    Attributes:
        name: "train" (problems trained on), "held-out", or a further task.
        ids: of the problems [P].
        samples: responses n to each; 0: successes are exact probabilities, and the rest exact expectations.
        successes: right responses [P], or the probability of one.
        greedy: whether the greedy response is right [P], 0 or 1.
        entropy: of the sampled policy's next-token distribution, summed over all sampled positions [P], nats.
        tokens: sampled positions [P], stop tokens included.
        truncated: responses that the token limit ended [P].

    Raises:
        InputError: fewer than 2 problems, one of them twice, or values that cannot be such.
    """

    name: str
    ids: tuple[str, ...]
    samples: int
    successes: Float
    greedy: Float
    entropy: Float
    tokens: Float
    truncated: Float

    def __post_init__(self) -> None:
        if len(self.ids) < 2 or len(set(self.ids)) < len(self.ids):
            raise InputError(f"evaluation {self.name!r} needs at least 2 problems, each once")
        if self.samples < 0:
            raise InputError(f"evaluation {self.name!r}: samples must be at least 0, not {self.samples}")
        for column in COLUMNS:
            values = np.asarray(getattr(self, column), dtype=np.float64)
            object.__setattr__(self, column, values)
            highest = {"successes": self.responses, "truncated": self.responses, "greedy": 1}.get(column, math.inf)
            counts = column == "greedy" or (self.samples > 0 and column in ("successes", "truncated"))
            if not (
                values.shape == (len(self.ids),)
                and ((values >= 0) & (values <= highest) & np.isfinite(values)).all()
                and ((values == np.round(values)).all() or not counts)
                and ((values > 0).all() or column != "tokens")
            ):
                raise InputError(f"evaluation {self.name!r}: {column} are none of {len(self.ids)} problems")

    @property
    def responses(self) -> int:
        """Responses to a problem that counts and sums stand for; 1 where they are exact."""
        return max(1, self.samples)

    # Every quantity is the mean of one value a prompt

    def pass_at(self, k: int, confidence: float = CONFIDENCE) -> Interval:
        """pass@k over prompts (`esth.estimators.pass_at_k`), of exact probabilities 1 − (1 − p)ᵏ.

        Raises:
            InputError: k outside 1…n.
        """
        return bounded_mean(self.per_prompt(k), confidence)

    def difference(self, base: "Evaluation", k: int, confidence: float = CONFIDENCE) -> Interval:
        """pass@k less that of `base` on the same prompts, paired.

        Raises:
            InputError: as `pass_at`, or other prompts.
        """
        return bounded_difference(self.per_prompt(k), self._paired(base).per_prompt(k), confidence)

    def greedy_accuracy(self, confidence: float = CONFIDENCE) -> Interval:
        """Share of prompts whose greedy response is right."""
        return bounded_mean(self.greedy, confidence)

    def greedy_difference(self, base: "Evaluation", confidence: float = CONFIDENCE) -> Interval:
        """Greedy accuracy less that of `base`, paired."""
        return bounded_difference(self.greedy, self._paired(base).greedy, confidence)

    def mean_entropy(self, confidence: float = CONFIDENCE) -> Interval:
        """Mean entropy of the next-token distribution over all sampled positions, nats a token: Σ entropy / Σ tokens.

        Student's interval of the ratio's linearisation. Simulated coverage of 95 % intervals where entropy a token is
        gamma-distributed over prompts with shape 2, and long responses have little of it: 94 % over 16 to 128 prompts.
        """
        return student(self.entropy_values(), confidence)

    def entropy_difference(self, base: "Evaluation", confidence: float = CONFIDENCE) -> Interval:
        """Mean entropy less that of `base`, nats a token, paired."""
        return student(self.entropy_values() - self._paired(base).entropy_values(), confidence)

    def mean_length(self, confidence: float = CONFIDENCE) -> Interval:
        """Mean length of a sampled response, tokens, the stop token included."""
        return student(self.tokens / self.responses, confidence)

    def length_difference(self, base: "Evaluation", confidence: float = CONFIDENCE) -> Interval:
        """Mean length less that of `base`, tokens, paired."""
        return student(self.tokens / self.responses - self._paired(base).tokens / base.responses, confidence)

    def truncation(self, confidence: float = CONFIDENCE) -> Interval:
        """Share of sampled responses that the token limit ended."""
        return bounded_mean(self.truncated / self.responses, confidence)

    def truncation_difference(self, base: "Evaluation", confidence: float = CONFIDENCE) -> Interval:
        """Share of truncated responses less that of `base`, paired."""
        a, b = self.truncated / self.responses, self._paired(base).truncated / base.responses
        return bounded_difference(a, b, confidence)

    def per_prompt(self, k: int) -> Float:
        """pass@k of each prompt [P]."""
        if self.samples > 0:
            return counted(self.samples, self.successes, k)
        if k < 1:
            raise InputError(f"pass@k with k = {k} needs k >= 1")
        return np.asarray(at_least_one(self.successes, k))

    def entropy_values(self) -> Float:
        """Of each prompt [P], R + (a − R b)/b̄: their mean is the ratio R = Σa/Σb, their spread its linearised one."""
        value = self.entropy.sum() / self.tokens.sum()
        return np.asarray(value + (self.entropy - value * self.tokens) / self.tokens.mean())

    def _paired(self, base: "Evaluation") -> "Evaluation":
        if base.ids != self.ids:
            raise InputError(f"evaluation {self.name!r} and its base have different prompts: they cannot be paired")
        return base

    # JSON

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types; `from_dict` gives the same bits back."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(self).items()} | {
            "ids": list(self.ids)
        }

    @classmethod
    def from_dict(cls, found: Any) -> Self:
        """What `to_dict` gave.

        Raises:
            InputError: anything else.
        """
        if not isinstance(found, Mapping):
            raise InputError(f"an evaluation must be an object, not {found!r:.50}")
        names = ("name", "ids", "samples", *COLUMNS)
        for name in names:
            if name not in found:
                raise InputError(f"an evaluation has no {name!r}")
        if not isinstance(found["name"], str) or type(found["samples"]) is not int:
            raise InputError("an evaluation's name must be text and its samples a whole number")
        if not _list_of(found["ids"], str):
            raise InputError(f"evaluation {found['name']!r}: ids must be a list of texts")
        for column in COLUMNS:
            if not _list_of(found[column], int, float):
                raise InputError(f"evaluation {found['name']!r}: {column} must be a list of numbers")
        columns: dict[str, Any] = {column: np.array(found[column], dtype=np.float64) for column in COLUMNS}
        return cls(name=found["name"], ids=tuple(found["ids"]), samples=found["samples"], **columns)


def _list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(type(entry) in kinds for entry in value)


def bounded_difference(a: Float, b: Float, confidence: float) -> Interval:
    """Mean of a − b, paired values in [0, 1] [P]."""
    value, lower, upper = bounded_mean(0.5 * (1.0 + a - b), confidence, pseudo=PAIRED_PSEUDO)
    return Interval(2.0 * value - 1.0, 2.0 * lower - 1.0, 2.0 * upper - 1.0)


def save(file: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write evaluations as JSON, whole or not at all."""
    content = {"format": FORMAT, "evaluations": [e.to_dict() for e in evaluations]}
    write_text(file, json.dumps(content, ensure_ascii=False) + "\n")


def load(file: Path) -> list[Evaluation]:
    """Evaluations that `save` wrote.

    Raises:
        InputError: no such file, or something else.
    """
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("evaluations"), list):
        raise InputError(f"{file} holds no evaluations of this version ({FORMAT!r})")
    try:
        return [Evaluation.from_dict(entry) for entry in found["evaluations"]]
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


# Tables


class Quantity(NamedTuple):
    """One number of an evaluation.

    Attributes:
        name, unit: what it is.
        value: with its interval.
        difference: less the base's, paired, if there is a base.
    """

    name: str
    unit: str
    value: Interval
    difference: Interval | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        value, difference = ([float(x) for x in i] if i is not None else None for i in (self.value, self.difference))
        return {"name": self.name, "unit": self.unit, "value": value, "difference": difference}


def quantities(
    evaluation: Evaluation, base: Evaluation | None = None, ks: Sequence[int] | None = None
) -> list[Quantity]:
    """pass@k for each k (by default 1, 16 and 32 as far as there are so many responses), greedy, entropy, length, cuts.

    Raises:
        InputError: k outside 1…n, a base of other prompts.
    """
    e, b = evaluation, base
    least = min((x.samples for x in (e, b) if x is not None and x.samples > 0), default=max(TRIES))
    ks = [k for k in TRIES if k <= least] if ks is None else ks
    return [
        *(Quantity(f"pass@{k}", "probability", e.pass_at(k), e.difference(b, k) if b else None) for k in ks),
        Quantity("greedy accuracy", "share", e.greedy_accuracy(), e.greedy_difference(b) if b else None),
        Quantity("entropy", "nats/token", e.mean_entropy(), e.entropy_difference(b) if b else None),
        Quantity("length", "tokens", e.mean_length(), e.length_difference(b) if b else None),
        Quantity("truncated", "share", e.truncation(), e.truncation_difference(b) if b else None),
    ]


def table(
    evaluations: Sequence[Evaluation],
    base: Sequence[Evaluation] | None = None,
    ks: Sequence[int] | None = None,
    against: str = "the base's",
) -> Any:
    """A rich table: each evaluation's quantities with intervals, and their paired differences from the base's.

    Args:
        base: evaluations of the base; those of the same name are compared.
        ks: of pass@k, as `quantities`.
        against: what the differences are called.

    Raises:
        InputError: as `quantities`.
    """
    from rich.table import Table

    bases = {b.name: b for b in base or ()}
    out = Table(title_justify="left")
    out.add_column("problems")
    for column in (f"value [{CONFIDENCE:.0%}]", *([f"less {against} [{CONFIDENCE:.0%}]"] if bases else [])):
        out.add_column(rich_safe(column), no_wrap=True)
    for e in evaluations:
        kind = f"{e.samples} responses" if e.samples else "exact"
        out.add_row(f"[bold]{rich_safe(e.name)}[/]: {len(e.ids)} × {kind}")
        for q in quantities(e, bases.get(e.name), ks):
            difference = "" if q.difference is None else _shown(q.difference, "+")
            unit = f", {q.unit}" if q.unit not in ("probability", "share") else ""
            out.add_row(*map(rich_safe, [f"{q.name}{unit}", _shown(q.value)] + [difference] * bool(bases)))
        out.add_section()
    return out


def _shown(interval: Interval, sign: str = "") -> str:
    value, lower, upper = (float(x) for x in interval)
    return f"{value:{sign}.3f} [{lower:{sign}.3f}, {upper:{sign}.3f}]"


# Language models

BLOCK = 256
"""Responses in a piece of work: enough for a batch, few enough to share out."""
BYTES = 1 << 28
"""Next-token distributions held at a time, float32; a few MB of them in float64."""

Seen = Callable[[int, int, int], None]
"""Called with (problems done, problems in all, tokens sampled since the last call)."""


def evaluate_workers(
    workers: "Workers",
    task: "Task",
    samples: int,
    sampling: "Sampling",
    seed: int,
    name: str,
    seen: Seen | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
) -> Evaluation:
    """The center of workers on all problems of a task.

    In float32 with the engine transformers the numbers are the same for any number of workers.

    Args:
        samples: responses n to each problem, at least 1.
        sampling: of the policy; its entropy is that of the distribution which is sampled.
        seed: names the uniform numbers, with the problem's place and the try.
        seen: told as problems are done.
        prompts: token ids of the problems, if they are at hand.

    Raises:
        InputError: samples < 1, a task without answers, a prompt that does not fit the context.
    """
    from esth.tasks.task import encode

    if samples < 1:
        raise InputError(f"samples of an evaluation must be at least 1, not {samples}")
    unanswered = next((p.id for p in task.problems if not p.answer), None)
    if unanswered is not None:
        raise InputError(f"task {task.name}: problem {unanswered} has no answer to verify responses by")
    if prompts is None:
        prompts = [encode(workers.checkpoint.tokenizer, p) for p in task.problems]
    step = max(1, BLOCK // samples)
    blocks = [range(i, min(i + step, len(prompts))) for i in range(0, len(prompts), step)]
    items = [_Items(block, [prompts[x] for x in block], [task.problems[x] for x in block]) for block in blocks]
    columns = np.zeros((len(prompts), len(COLUMNS)))
    done = 0
    for b, found in workers.map(partial(_evaluate_block, task.verifier, samples, sampling, seed), items):
        columns[blocks[b]] = found
        done += len(found)
        if seen is not None:
            seen(done, len(prompts), int(found[:, COLUMNS.index("tokens")].sum()))
    workers.restore()
    ids = tuple(p.id for p in task.problems)
    return Evaluation(name, ids, samples, **dict(zip(COLUMNS, columns.T.copy(), strict=True)))


class _Items(NamedTuple):
    """Problems of one piece of work: their places in the task, token ids, and what the verifier reads."""

    ids: Sequence[int]
    prompts: list[Sequence[int]]
    problems: list[Any]


def _evaluate_block(
    verifier: Callable[[str, Any], bool], samples: int, sampling: "Sampling", seed: int, engine: "Engine", items: _Items
) -> Float:
    """COLUMNS of some problems [problems, 5]."""
    from esth.models.engine import Sampling

    engine.restore()
    said = engine.sample(items.prompts, samples, sampling, seed, prompt_ids=items.ids)
    greedy = engine.sample(items.prompts, 1, Sampling(0.0, sampling.max_tokens), seed, prompt_ids=items.ids)

    def right(responses: "Sequence[Response]", problem: Any) -> int:
        return sum(verifier(engine.checkpoint.decode(r.tokens), problem) for r in responses)

    entropies = response_entropies(engine, items.prompts, said, sampling)
    rows = [
        (
            right(responses, problem),
            right(best, problem),
            sum(entropy),
            sum(len(r.tokens) for r in responses),
            sum(r.truncated for r in responses),
        )
        for problem, responses, best, entropy in zip(items.problems, said, greedy, entropies, strict=True)
    ]
    return np.array(rows, dtype=np.float64)


def response_entropies(
    engine: "Engine", prompts: Sequence[Sequence[int]], said: "Sequence[Sequence[Response]]", sampling: "Sampling"
) -> list[list[float]]:
    """Σ over positions of the exact entropy of the next-token distribution, nats: [prompt][sample]."""
    sums = [[0.0] * len(group) for group in said]
    for part in _windows(said, max(1, BYTES // (4 * engine.vocabulary))):
        # Responses under one prompt share its keys and values; the rest of a long one has a beginning of its own.
        groups = [list(group) for _, group in groupby(part, lambda w: (w.prompt, w.start, w.start and w.sample))]
        heads = [[*prompts[g[0].prompt], *said[g[0].prompt][g[0].sample].tokens[: g[0].start]] for g in groups]
        values = _entropies(engine.next_token_logits(heads, [[w.response for w in g] for g in groups], sampling))
        ends = np.cumsum([len(w.response.tokens) for w in part])
        for w, of_tokens in zip(part, np.split(values, ends[:-1]), strict=True):
            sums[w.prompt][w.sample] += math.fsum(of_tokens)
    return sums


class _Window(NamedTuple):
    """Tokens of a response from `start` on."""

    prompt: int
    sample: int
    start: int
    response: "Response"


def _windows(said: "Sequence[Sequence[Response]]", positions: int) -> Iterator[list[_Window]]:
    """All responses in parts of at most `positions` tokens; one that is longer comes in pieces."""
    from esth.models.engine import Response

    part: list[_Window] = []
    room = positions
    for x, group in enumerate(said):
        for j, response in enumerate(group):
            for start in range(0, len(response.tokens), positions):
                tokens = response.tokens[start : start + positions]
                if len(tokens) > room:
                    yield part
                    part, room = [], positions
                part.append(_Window(x, j, start, Response(tokens, response.truncated)))
                room -= len(tokens)
    if part:
        yield part


def _entropies(logits: Any) -> Float:
    """Entropy of each row of logits [positions, V], in float64: -> [positions]."""
    torch = require("torch", "llm")
    size = max(1, (1 << 19) // logits.shape[1])  # rows that stay near the processor's cache

    def entropy(start: int) -> Any:
        return torch.special.entr(logits[start : start + size].double().softmax(dim=1)).sum(dim=1)

    return np.asarray(torch.cat(side_by_side(entropy, range(0, logits.shape[0], size))).cpu().numpy())
