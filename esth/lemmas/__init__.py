"""One module a lemma: the statement, its prediction, its bracket, and the check that compares both with numbers."""

LEMMAS = ("fisher_rate", "population_advantage", "reward_weighting", "center_update", "two_point")
"""Names of the lemmas, the same in `esth.lemmas`, `proofs`, `toy`, `llm` and `notebooks`."""
