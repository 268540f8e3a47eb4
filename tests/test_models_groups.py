"""Groups of parameters: names of known architectures, and every parameter of real ones."""

import pytest
import torch
import transformers

from esth.models.groups import GROUPS, by_group, group, kind

KNOWN = {
    # Llama, Mistral, Qwen, Gemma
    "model.embed_tokens.weight": ("embeddings", "token"),
    "model.layers.3.self_attn.q_proj.weight": ("attention", "q"),
    "model.layers.3.self_attn.k_proj.bias": ("attention", "k"),
    "model.layers.3.self_attn.v_proj.weight": ("attention", "v"),
    "model.layers.3.self_attn.o_proj.weight": ("attention", "o"),
    "model.layers.3.self_attn.q_norm.weight": ("norms", "norm"),
    "model.layers.3.mlp.gate_proj.weight": ("mlp", "gate"),
    "model.layers.3.mlp.up_proj.weight": ("mlp", "up"),
    "model.layers.3.mlp.down_proj.weight": ("mlp", "down"),
    "model.layers.3.input_layernorm.weight": ("norms", "norm"),
    "model.layers.3.post_attention_layernorm.weight": ("norms", "norm"),
    "model.layers.3.pre_feedforward_layernorm.weight": ("norms", "norm"),
    "model.norm.weight": ("norms", "norm"),
    "lm_head.weight": ("head", "head"),
    # Phi
    "model.layers.0.self_attn.dense.weight": ("attention", "o"),
    "model.layers.0.self_attn.qkv_proj.weight": ("attention", "qkv"),
    "model.layers.0.mlp.gate_up_proj.weight": ("mlp", "gate and up"),
    "model.layers.0.mlp.fc1.bias": ("mlp", "up"),
    "model.layers.0.mlp.fc2.weight": ("mlp", "down"),
    "model.final_layernorm.bias": ("norms", "norm"),
    "lm_head.bias": ("head", "head"),
    # GPT-2
    "wte.weight": ("embeddings", "token"),
    "transformer.wpe.weight": ("embeddings", "position"),
    "h.11.ln_1.bias": ("norms", "norm"),
    "h.11.attn.c_attn.weight": ("attention", "qkv"),
    "h.11.attn.c_proj.bias": ("attention", "o"),
    "h.11.mlp.c_fc.weight": ("mlp", "up"),
    "h.11.mlp.c_proj.weight": ("mlp", "down"),
    "ln_f.weight": ("norms", "norm"),
    # GPT-NeoX, Mixtral, OPT
    "gpt_neox.embed_in.weight": ("embeddings", "token"),
    "gpt_neox.layers.0.attention.query_key_value.weight": ("attention", "qkv"),
    "gpt_neox.layers.0.attention.dense.weight": ("attention", "o"),
    "gpt_neox.layers.0.mlp.dense_4h_to_h.weight": ("mlp", "down"),
    "embed_out.weight": ("head", "head"),
    "model.layers.0.block_sparse_moe.gate.weight": ("mlp", "router"),
    "model.layers.0.block_sparse_moe.experts.1.w2.weight": ("mlp", "down"),
    "model.decoder.layers.0.self_attn.out_proj.bias": ("attention", "o"),
    "model.vision_tower.patch.weight": ("other", "other"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_names(name):
    assert (group(name), kind(name)) == KNOWN[name]


def test_a_tied_tensor_is_an_embedding_under_either_name():
    body = ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
    untied = by_group(["lm_head.weight", *body, "model.embed_tokens.weight"])
    assert untied["embeddings"] == ["model.embed_tokens.weight"] and untied["head"] == ["lm_head.weight"]
    assert list(untied) == ["embeddings", "mlp", "norms", "head"]
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tied = by_group([*body, name])
        assert tied["embeddings"] == [name] and "head" not in tied


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", {}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 8}),
        ("gemma", {"head_dim": 8}),
        ("gemma2", {"head_dim": 8}),
        ("phi", {}),
        ("phi3", {"pad_token_id": 0}),
        ("gpt2", {}),
        ("gpt_neox", {}),
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    ],
)
def test_every_parameter_of_real_architectures_has_a_group(architecture, config):
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = transformers.AutoConfig.for_model(architecture, vocab_size=61, **shape, **config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    names = [name for name, _ in model.named_parameters()]
    groups = by_group(names)
    assert {"embeddings", "attention", "mlp", "norms"} <= set(groups) <= set(GROUPS) - {"other"}
    assert sorted(n for found in groups.values() for n in found) == sorted(names)
    assert ("head" in groups) == (not made.tie_word_embeddings)
    layers = {g: sum(".0." in n for n in found) for g, found in groups.items()}
    assert all(layers[g] > 0 for g in ("attention", "mlp", "norms"))
