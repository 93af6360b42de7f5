"""Check, on concrete values, that a rule to be transposed is linear and differentiable."""
from __future__ import annotations
from typing import Any

def check_linear(function: type, rule: Any, zeros: Any, at_zero: Any, transpose: Any) -> None:
    """Placeholder."""
