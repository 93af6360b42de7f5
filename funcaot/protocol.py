"""What a compiled program offers the operator.

A compiled program is called through a Function class that carries it as ``funcaot_program``. Its
value alone needs no residuals; its derivative does. So where a call is about to be differentiated
in reverse (the Grad rule, and base autograd when an operand needs a gradient), the operator asks
the program for the class to differentiate, and for what to do with that class's output:

    function, finish = program.differentiable(function, operands)
    return finish(apply(function, operands))

``function`` returns residuals next to the outputs; ``finish`` drops them.

Forward mode uses the class's own ``jvp``, or one fused program for values and tangents: if the
program has ``fused_jvp(function, mask)``, where ``mask`` says which operands have a tangent, and it
returns a Function class and not None, that class is called one level down on ``(*operands,
*tangents)``, the tangents being those that exist. It returns a tuple of all values and then one
tangent or None for each.

Such classes do their own functionalization: they never call ``mark_dirty``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["DifferentiableProgram", "fused_jvp_of", "has_fused_jvp", "program_of"]

ATTRIBUTE = "funcaot_program"


class DifferentiableProgram(Protocol):
    """The object at ``FunctionClass.funcaot_program``."""

    def differentiable(
        self, function: type, operands: tuple[Any, ...]
    ) -> tuple[type, Callable[[Any], Any]]:
        """Return the class to differentiate in place of ``function``, and the end of the call.

        Args:
            function: The Function class of the call.
            operands: Its operands at the level that differentiates.

        Returns:
            A Function class on the same operands, and a function of its output that returns the
            output of ``function``.
        """
        ...


def program_of(function: type) -> DifferentiableProgram | None:
    """The compiled program behind a Function class, or None for a user's own Function."""
    return getattr(function, ATTRIBUTE, None)


def has_fused_jvp(function: type) -> bool:
    """Whether the class's program offers a fused forward mode."""
    return hasattr(program_of(function), "fused_jvp")


def fused_jvp_of(function: type, mask: tuple[bool, ...]) -> type | None:
    """The class that computes values and tangents together; None to use ``jvp``."""
    program: Any = program_of(function)
    return program.fused_jvp(function, mask)
