"""Exact policies, small enough that every expectation is a sum: the worlds in which the theory is checked."""

from esth.policies.autoregressive import Autoregressive, Sequences
from esth.policies.base import Policy
from esth.policies.categorical import Categorical
from esth.policies.linear import LinearSoftmax
from esth.policies.network import TanhSoftmax

__all__ = ["Autoregressive", "Categorical", "LinearSoftmax", "Policy", "Sequences", "TanhSoftmax"]
