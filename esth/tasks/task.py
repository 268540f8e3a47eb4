"""What a task is: problems with reference answers, and a verifier that reads a response."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from esth.errors import InputError


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt and what is known about its answer.

    Attributes:
        id: stable name of the problem, unique within its task.
        prompt: the text the model is given, before any chat template.
        answer: the reference answer: a number as its publisher spells it, a letter, a label, a text.
        choices: the answers to choose from: options of a multiple-choice question, label words of a scoring task.
        numbers: the numbers a Countdown expression may use.
        solution: a worked solution ending in the answer, where one is known.
    """

    id: str
    prompt: str
    answer: str
    choices: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    solution: str | None = None


Verifier = Callable[[str, Problem], bool]


@dataclass(frozen=True)
class Task:
    """Problems of one split with the verifier v(x, y) ∈ {0, 1} that judges responses to them.

    Attributes:
        max_tokens: tokens a response may take unless the user says otherwise.
    """

    name: str
    split: str
    problems: tuple[Problem, ...]
    verifier: Verifier
    max_tokens: int

    def __len__(self) -> int:
        return len(self.problems)

    def verify(self, response: str, problem: Problem) -> bool:
        """Whether `response` answers `problem`; never raises, whatever the text."""
        return self.verifier(response, problem)


def render(tokenizer: Any, problem: Problem, *, system: str | None = None, **template: Any) -> str:
    """The text a model is given: the tokenizer's chat template where it has one, else the plain prompt.

    `template` goes to the chat template, for example `enable_thinking=False`. A chat template writes the special
    tokens itself, so tokenizing its text must not add them again: `encode` takes care of that.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        return problem.prompt if system is None else f"{system}\n\n{problem.prompt}"
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": problem.prompt})
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template)
    except Exception as error:  # whatever a checkpoint's own template raises
        raise InputError(f"the tokenizer's chat template fails: {str(error).splitlines()[0]}") from error


def encode(tokenizer: Any, problem: Problem, *, system: str | None = None, **template: Any) -> list[int]:
    """Token ids of `render(...)`, with the special tokens of a prompt exactly once."""
    text = render(tokenizer, problem, system=system, **template)
    plain = getattr(tokenizer, "chat_template", None) is None
    try:
        return list(tokenizer(text, add_special_tokens=plain)["input_ids"])
    except Exception as error:  # a tokenizer of characters fails at those it does not know
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"the tokenizer cannot read the problem {text[:40]!r}: {reason}") from error
