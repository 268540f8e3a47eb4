"""Causal language models as policies: checkpoints, seeded members, engines."""
