"""What runs instead of which function that is given an open float, as one table."""

from __future__ import annotations

from funcaot.aot.capture.numbers import activations, arithmetic, draws, losses
from funcaot.aot.capture.numbers.given import Rule

__all__ = ["RULES"]

RULES: dict[str, Rule] = {
    **arithmetic.RULES,
    **activations.RULES,
    **losses.RULES,
    **draws.RULES,
}
