"""Checkpoints for the tests: the demo model, and tiny random ones in Hugging Face format."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Tests run side by side, one process a core: before NumPy or torch start threads of their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

VOCABULARY = 61
STOP = 2


@pytest.fixture(scope="session")
def demo_checkpoint():
    """The demo checkpoint, fetched and converted into the user's cache on first use."""
    from esth.models import load_checkpoint

    return load_checkpoint("demo")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of random two-layer models: "llama" (tied), "llama-untied", "qwen2" (tied, biases), "gpt2", "mistral" (a
    window of 8 tokens), "mixtral"."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            _write(kind, made[kind])
        return made[kind]

    return folder


def _write(kind: str, folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    common = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": STOP, "initializer_range": 0.3}
    shape = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    config = {
        "llama": lambda: transformers.LlamaConfig(**common, **shape, tie_word_embeddings=True),
        "llama-untied": lambda: transformers.LlamaConfig(**common, **shape, tie_word_embeddings=False),
        "qwen2": lambda: transformers.Qwen2Config(**common, **shape, tie_word_embeddings=True),
        "gpt2": lambda: transformers.GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, n_positions=128),
        "mistral": lambda: transformers.MistralConfig(**common, **shape, sliding_window=8, tie_word_embeddings=True),
        "mixtral": lambda: transformers.MixtralConfig(**common, **shape, num_local_experts=2),
    }[kind]()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # norms and biases too differ from one and zero
        parameter.data += 0.1 * torch.randn_like(parameter)
    if kind == "gpt2":
        model = model.transformer  # as on the hub: names without the prefix
    model.save_pretrained(folder)
    tokens = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == VOCABULARY
