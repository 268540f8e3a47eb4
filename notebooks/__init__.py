"""One notebook a lemma, and two on checkpoints: see README.md."""
