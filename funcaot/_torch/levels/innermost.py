"""What can be done at the level in progress."""

from __future__ import annotations

from funcaot._torch.levels.functorch import (
    HigherOrderOperator,
    TransformType,
    peek_interpreter_stack,
)

__all__ = ["differentiates_at_a_new_level", "lacks_a_rule_here"]


def differentiates_at_a_new_level() -> bool:
    """Whether the level in progress is one of a transform that records nothing itself."""
    interpreter = peek_interpreter_stack()
    return interpreter is not None and interpreter.key() == TransformType.Vmap


def lacks_a_rule_here(operator: HigherOrderOperator) -> bool:
    """Whether torch can't run a higher-order operator at the level in progress."""
    interpreter = peek_interpreter_stack()
    return interpreter is not None and interpreter.key() not in operator.functorch_table
