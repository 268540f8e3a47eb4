"""Which part of a language model a parameter belongs to, by its name in the checkpoint.

One table for the usual spellings of transformers (Llama, Mistral, Mixtral, Qwen, Gemma, Phi, GPT-2, GPT-NeoX, OPT,
BLOOM, Falcon); whatever it does not know is "other".
"""

import re
from collections.abc import Iterable

GROUPS = ("embeddings", "attention", "mlp", "norms", "head", "other")

# (kind, group, what the dotted name holds); the first row that fits counts. A norm inside attention is a norm.
_TABLE = tuple(
    (kind, group, re.compile(pattern))
    for kind, group, pattern in (
        ("norm", "norms", r"(norm\w*|\bln_\w+)\.(weight|bias)$"),
        ("token", "embeddings", r"\b(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\."),
        ("position", "embeddings", r"\b(wpe|embed_positions|position_embeddings)\."),
        ("head", "head", r"\b(lm_head|embed_out)\."),
        ("q", "attention", r"att\w*\.q_proj\."),
        ("k", "attention", r"att\w*\.k_proj\."),
        ("v", "attention", r"att\w*\.v_proj\."),
        ("qkv", "attention", r"att\w*\.(qkv_proj|c_attn|query_key_value|Wqkv)\."),
        ("o", "attention", r"att\w*\.(o_proj|out_proj|c_proj|dense)\."),
        ("router", "mlp", r"\b(mlp|block_sparse_moe)\.(gate|router)\."),
        ("gate", "mlp", r"\b(gate_proj|w1)\."),
        ("gate and up", "mlp", r"\bgate_up_proj\b"),
        ("up", "mlp", r"\b(up_proj|w3|fc1|c_fc|dense_h_to_4h)\."),
        ("down", "mlp", r"\b(down_proj|w2|fc2|mlp\.c_proj|dense_4h_to_h)\b"),
    )
)


def kind(name: str) -> str:
    """What the parameter `name` does: "q", "k", "v", "qkv", "o", "gate", "up", "down", "norm", "token", …, "other"."""
    return next((kind for kind, _, pattern in _TABLE if pattern.search(name)), "other")


def group(name: str) -> str:
    """The one of GROUPS that the parameter `name` belongs to; its bias goes with a weight."""
    return next((group for _, group, pattern in _TABLE if pattern.search(name)), "other")


def by_group(names: Iterable[str]) -> dict[str, list[str]]:
    """The parameters of each group that has any, in the order of GROUPS.

    A tensor that is both embedding and head (tied) is one parameter, of "embeddings", whichever name it is stored by.
    """
    names = list(names)
    tied = all(kind(name) != "token" for name in names)
    found: dict[str, list[str]] = {}
    for name in names:
        at = "embeddings" if tied and kind(name) == "head" else group(name)
        found.setdefault(at, []).append(name)
    return {g: found[g] for g in GROUPS if g in found}
