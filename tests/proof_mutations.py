"""Every constant that a proof claims, off by 1 % to either side: what `test_proofs_*` put in and see fail."""

from types import ModuleType

import pytest
import sympy as sp

from proofs.step import Step, steps


def wrong_constants(module: ModuleType, *, except_for: str = "") -> list:
    """pytest parameters (step, name, wrong value); `except_for` names a step whose inequality has room for 1 %."""
    return [
        pytest.param(s, name, value * (1 + sign * sp.Rational(1, 100)), id=f"{s.run.__name__}-{name}{sign:+d}%")
        for s in steps(module)
        for name, value in s.constants.items()
        for sign in (-1, 1)
        if s.run.__name__ != except_for
    ]


def steps_without_constants(module: ModuleType) -> set[str]:
    """Names of the steps that a wrong constant can't test."""
    return {s.run.__name__ for s in steps(module) if not s.constants}


def by_name(module: ModuleType, name: str) -> Step:
    """The step whose function has this name."""
    (found,) = (s for s in steps(module) if s.run.__name__ == name)
    return found
