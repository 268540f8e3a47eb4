"""Settings by name; an option given beside a preset wins.

`qwen2.5-1.5b` and `llama-3.2-3b` are the paper's models and sizes, for a GPU node: not yet run by us.
"""

from typing import Any

_PAPER: dict[str, Any] = {
    "task": "gsm8k",
    "problems": 7000,
    "updates": 300,
    "temperature": 1.0,
    "max_tokens": 1024,
    "evaluate_every": 50,
    "evaluation_prompts": 256,
    "engine": "vllm",
    "dtype": "bfloat16",
}
_QWEN = {"model": "Qwen/Qwen2.5-1.5B-Instruct"}
_LLAMA = {"model": "meta-llama/Llama-3.2-3B-Instruct"}
_DEMO: dict[str, Any] = {
    "model": "demo",
    "task": "arithmetic",
    "difficulty": "1+",
    "problems": 54,
    "temperature": 0.7,
    "evaluation_prompts": 30,
    "evaluation_samples": 16,
    "held_out": ["arithmetic:2+"],
    "updates": 24,
    "evaluate_every": 12,
    "save_every": 4,
}
_ES: dict[str, Any] = {"population": 30, "sigma": 1e-3, "prompts": 200}
_GRPO: dict[str, Any] = {"num_generations": 30, "prompts": 200, "learning_rate": 1e-6, "engine": "transformers"}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "es": {
        "default": {},
        "demo": {
            **_DEMO,
            "population": 16,
            "prompts": 32,
            "sigma": 0.003,
            "alpha": 0.003,
            "fitness": "sampled",
            "common_random_numbers": True,
        },
        "qwen2.5-1.5b": {**_PAPER, **_QWEN, **_ES},
        "llama-3.2-3b": {**_PAPER, **_LLAMA, **_ES},
    },
    "grpo": {
        "default": {},
        "demo": {**_DEMO, "prompts": 8, "learning_rate": 2e-5, "lr_scheduler_type": "constant"},
        "qwen2.5-1.5b": {**_PAPER, **_QWEN, **_GRPO},
        "llama-3.2-3b": {**_PAPER, **_LLAMA, **_GRPO},
    },
}
