"""What a tokenizer makes of a prompt, with real tokenizers built here."""

from typing import Any

import pytest

from esth.tasks import encode, load_task, render

transformers = pytest.importorskip("transformers", reason="extra llm is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="extra llm is not installed")

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if calm %}calm{% endif %}"
)


def tokenizer(chat_template: str | None) -> Any:
    """Bytes as tokens, and a beginning token that is added to plain text, as Llama's is."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", *alphabet])}
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>")
    made.chat_template = chat_template
    return made


PROBLEM = load_task(n=1).problems[0]


def test_plain_text_without_a_chat_template() -> None:
    plain = tokenizer(None)
    assert render(plain, PROBLEM) == PROBLEM.prompt
    assert render(plain, PROBLEM, system="Be brief.") == f"Be brief.\n\n{PROBLEM.prompt}"
    assert encode(plain, PROBLEM) == plain(PROBLEM.prompt)["input_ids"]
    assert plain.decode(encode(plain, PROBLEM)) == "<s>" + PROBLEM.prompt


def test_chat_template_where_there_is_one() -> None:
    chat = tokenizer(TEMPLATE)
    assert render(chat, PROBLEM) == f"<s><user>{PROBLEM.prompt}<assistant>"
    assert render(chat, PROBLEM, system="Be brief.") == f"<s><system>Be brief.<user>{PROBLEM.prompt}<assistant>"
    assert render(chat, PROBLEM, calm=True).endswith("<assistant>calm")


def test_special_tokens_stand_exactly_once() -> None:
    chat = tokenizer(TEMPLATE)
    tokens = encode(chat, PROBLEM)
    assert tokens[0] == chat.bos_token_id and tokens.count(chat.bos_token_id) == 1
    messages = [{"role": "user", "content": PROBLEM.prompt}]
    own = chat.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokens == own
