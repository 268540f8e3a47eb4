"""Machine-checked proofs of the five lemmas of `docs/theory.md`, one module a lemma: `python -m proofs`."""
