"""Language models of the tiny world: small Llamas pretrained from scratch on Countdown chains (`esth.tasks.chain`).

    python -m esth.models.tiny OUT --numbers 3 --seed 0

pretrains one in minutes on one core and writes it as a Hugging Face folder. Two such folders come with the package:
`load_checkpoint("tiny-3")` and `"tiny-4"` (the easy and the hard setting, seed 0).

They are base models to be trained further, so their demonstrations are imperfect on purpose. A demonstration is a
random true chain (numbers uniform, operators skewed) of a problem of the split "pretrain", and in a fixed share of them
the prompt has a wrong target: the model learns to write true equations, and to reach the target now and then, in
several ways. No problem of another split is ever shown, with a right or a wrong answer.

Every gradient is taken at weights perturbed by Gaussian noise. This is descent on the loss averaged over that noise,
and the model ends where its neighbours are about as good: what evolution strategies need.

The shipped ones on the validation split (temperature 1; 64 responses to each of 95 problems of 3 numbers, of 256 of 4):

            parameters   pass@1   @16     @64     greedy   reward at σ = 0.01 (8 members) / at the center
    tiny-3     83,264    0.277    0.873   0.968   0.400    0.271 / 0.253 (4 responses a problem)
    tiny-4    193,840    0.125    0.559   0.824   0.207    0.121 / 0.128
"""

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from esth._files import write_folder
from esth.errors import InputError, require
from esth.tasks.chain import CHARACTERS, OPERATORS, chain_tokens, code_of, codes_of_split, prompt_tokens, results

END = CHARACTERS.index("$")
HELD_OUT = ("train", "validation", "test")


@dataclass(frozen=True)
class Pretraining:
    """How a tiny model is made.

    Attributes:
        hidden, intermediate, layers, heads: shape of the Llama; embeddings are tied.
        counts: how many numbers the demonstrations of an update have, one of these at random. There are so few problems
            of 3 numbers that a model shown no others learns them by heart, and not how to find a chain.
        steps, batch: updates, demonstrations an update (fresh ones every time).
        learning_rate: the largest of AdamW; it rises over the first hundredth of the steps and falls as a cosine to 0.
        noise: standard deviation of the noise on every weight at which a gradient is taken.
        wrong: share of demonstrations whose prompt has a wrong target.
        operators: probabilities of + - *.
    """

    hidden: int = 64
    intermediate: int = 128
    layers: int = 2
    heads: int = 4
    counts: tuple[int, ...] = (3, 4)
    steps: int = 4500
    batch: int = 128
    learning_rate: float = 0.006
    noise: float = 0.01
    wrong: float = 0.25
    operators: tuple[float, float, float] = (0.5, 0.35, 0.15)


SETTINGS = {
    3: Pretraining(),
    4: Pretraining(hidden=80, intermediate=160, layers=3, counts=(3, 4, 4), noise=0.008),
}
"""By how many numbers the chains have."""


def demonstrations(
    rng: np.random.Generator, count: int, batch: int, wrong: float, operators: tuple[float, float, float]
) -> NDArray[np.int64]:
    """Prompts with chains that begin where the prompt ends: token ids [batch, 6k + 1] for k = `count` numbers."""
    held_out = _held_out(count)
    found: list[NDArray[np.int64]] = []
    while sum(map(len, found)) < batch:
        numbers = rng.integers(1, 10, (4 * batch, count))
        signs = rng.choice(len(OPERATORS), (4 * batch, count - 1), p=operators)
        values = results(numbers, signs)
        targets = values[:, -1]
        kept = (targets >= 0) & ~held_out[code_of(numbers, targets)]
        numbers, signs, values, targets = numbers[kept], signs[kept], values[kept], targets[kept]
        told = targets.copy()
        mistaken = rng.random(len(told)) < wrong
        while mistaken.any():
            told[mistaken] = (targets[mistaken] + rng.integers(1, 100, mistaken.sum())) % 100
            mistaken &= held_out[code_of(numbers, told)]
        prompts = prompt_tokens(rng.permuted(numbers, axis=1), told)
        found.append(np.concatenate([prompts, chain_tokens(numbers, signs, values)], axis=1))
    return np.concatenate(found)[:batch]


@functools.cache
def _held_out(count: int) -> NDArray[np.bool_]:
    """Whether a code is that of a problem of another split than "pretrain"; False for what no chain reaches."""
    table = np.zeros(10 ** (count + 2), dtype=bool)
    for split in HELD_OUT:
        table[codes_of_split(count, split)] = True
    return table


def pretrain(setting: Pretraining, seed: int, report: Callable[[int, float], None] | None = None) -> Any:
    """A LlamaForCausalLM in float32, in one thread: on one machine a function of setting and seed.

    Args:
        report: told after every update how many are done, and the loss in nats a token of the response.
    """
    torch = require("torch", "llm")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # sums depend on how they are shared out
        return _pretrain(torch, setting, seed, report)
    finally:
        torch.set_num_threads(threads)


def _pretrain(torch: Any, setting: Pretraining, seed: int, report: Callable[[int, float], None] | None) -> Any:
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(setting)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=setting.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, setting.steps))
    for step in range(setting.steps):
        count = int(rng.choice(setting.counts))
        batch = demonstrations(rng, count, setting.batch, setting.wrong, setting.operators)
        optimizer.zero_grad()
        with _perturbed(torch, parameters, setting.noise, generator):
            loss = _loss(torch, model, torch.from_numpy(batch), prompt=count + 4)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if report is not None:
            report(step + 1, loss.item())
    return model.eval()


@contextmanager
def _perturbed(torch: Any, parameters: list[Any], sigma: float, generator: Any) -> Iterator[None]:
    """Within, every parameter is p + sigma · ε; afterwards it is p again, bit for bit."""
    center = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p in parameters:
            p.add_(torch.randn(p.shape, generator=generator), alpha=sigma)
    yield
    with torch.no_grad():
        for p, value in zip(parameters, center, strict=True):
            p.copy_(value)


def _loss(torch: Any, model: Any, tokens: Any, prompt: int) -> Any:
    """Mean negative log-likelihood of the tokens that follow the prompt's, in nats: tokens [batch, T] -> scalar."""
    logits = model(tokens[:, :-1], use_cache=False).logits[:, prompt - 1 :]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, prompt:].flatten())


def _rate(step: int, steps: int) -> float:
    return min(1.0, 100 * (step + 1) / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _model(setting: Pretraining) -> Any:
    transformers = require("transformers", "llm")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(CHARACTERS),
            hidden_size=setting.hidden,
            intermediate_size=setting.intermediate,
            num_hidden_layers=setting.layers,
            num_attention_heads=setting.heads,
            num_key_value_heads=setting.heads,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            attn_implementation="eager",
            initializer_range=setting.hidden**-0.5,
            bos_token_id=None,
            eos_token_id=END,
            pad_token_id=END,
            dtype="float32",
        )
    )


def tokenizer() -> Any:
    """One token a character, ids as in CHARACTERS. `$` ends a text, and fills up what is shorter than its batch.

    Responses to problems of one size are equally long when they are right, so nothing needs filling up in training; a
    mask must be made from the first `$`, which belongs to the response, not from all of them.
    """
    tokenizers, transformers = require("tokenizers", "llm"), require("transformers", "llm")
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="$",
        pad_token="$",
        padding_side="left",
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def save(model: Any, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face folder, whole or not at all.

    Raises:
        InputError: something is there already, or the disk refuses.
    """
    _refuse_existing(folder)

    def fill(half: Path) -> None:
        model.save_pretrained(half)
        tokenizer().save_pretrained(half)

    write_folder(folder, fill)


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise InputError(f"{folder} is there already: name a new folder")


def _setting(numbers: int, seed: int, steps: int | None) -> Pretraining:
    if numbers not in SETTINGS:
        raise InputError(f"--numbers is {numbers}; {' or '.join(map(str, SETTINGS))} is accepted")
    for what, value, least in (("seed", seed, 0), ("steps", steps, 1)):
        if value is not None and value < least:
            raise InputError(f"--{what} is {value}; at least {least} is accepted")
    return SETTINGS[numbers] if steps is None else replace(SETTINGS[numbers], steps=steps)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def main(arguments: list[str] | None = None) -> int:
    """The command line: pretrain a checkpoint into a folder; the exit status."""
    parser = _Parser(prog="python -m esth.models.tiny", description="Pretrain a tiny language model.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write; it must not exist")
    parser.add_argument("--numbers", type=int, default=3, help="numbers of a chain: 3 (easy, the default) or 4 (hard)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="updates, in place of the setting's own number")
    try:
        options = parser.parse_args(arguments)
        setting = _setting(options.numbers, options.seed, options.steps)
        _refuse_existing(options.out)
        save(_with_progress(setting, options.seed), options.out)
    except InputError as error:
        print(f"tiny: {error}", file=sys.stderr)
        return 2
    print(f"written to {options.out}")
    return 0


def _with_progress(setting: Pretraining, seed: int) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("loss", total=setting.steps)

        def report(done: int, loss: float) -> None:
            bar.update(row, completed=done, description=f"loss {loss:.3f} nats a token")

        return pretrain(setting, seed, report)


if __name__ == "__main__":
    sys.exit(main())
