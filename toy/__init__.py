"""The toy world: each lemma measured on exact policies. Run it with `python -m toy`."""
