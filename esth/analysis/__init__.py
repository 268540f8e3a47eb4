"""What training did to the weights of a model: how far they moved, which of them, and where."""
