"""One study a lemma on a real checkpoint: `python -m llm --model PATH --task NAME`."""
