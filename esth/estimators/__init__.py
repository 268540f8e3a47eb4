"""Estimates from sampled responses, with standard errors and intervals.

NumPy; the estimators that read a language model's scores and logits take torch tensors too.
"""
