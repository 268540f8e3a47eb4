"""What Ba et al. (2026, arXiv 2608.27351) claim of training, as far as reviews of the paper tell, in our words."""

CLAIMS = {
    "C1": "GRPO lowers token entropy sharply, ES barely.",
    "C2": "GRPO ends below the base on pass@16 and pass@32 (15 of 18 comparisons, easy setting) and has the larger "
    "pass@1.",
    "C3": "ES improves pass@1, pass@16 and pass@32 together.",
    "C4": "ES moves the weights further than GRPO, relative to their norm (in the paper 40 to 44 times as far).",
    "C5": "77.6 to 93.0 % of the nonzero updates of ES lie below a threshold within one ES step and can be zeroed.",
    "C6": "The largest updates of ES are in norms and attention projections; those of GRPO are an order smaller, and "
    "all in the embeddings and the head.",
    "C7": "Rewards turned into z-scores beat raw ones.",
    "C8": "With σ too small ES overfits the rewards that it observes; with σ too large it is unstable.",
    "C9": "A small model needs N = 30 members; larger ones do with 10 or 20, as perturbations that improve the task "
    "get denser with size.",
    "C10": "Two-point estimates lower the raw variance where labels are scored, not where responses are regenerated, "
    "and training gains nothing.",
    "C11": "Sequential training under one split budget trades pass@1 for pass@k: ES, then GRPO has the highest "
    "pass@32 and keeps most of GRPO's pass@1 (by another review: GRPO, then ES).",
    "C12": "Held-out benchmarks are not forgotten; what was reported as forgetting is overfitting of the training set.",
    "C13": "On Countdown ES is more accurate than GRPO (Qiu et al. 2025).",
    "C14": "ES needs less memory than GRPO.",
}
