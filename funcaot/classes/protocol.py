"""What a compiled program offers the operator.

A compiled program is called through a Function class that carries it as ``funcaot_program``. Its
value alone needs no residuals; its derivative does. So where a call is about to be differentiated
in reverse (the Grad rule, and base autograd when an operand needs a gradient), the operator asks
the program for the class to differentiate, and for what to do with that class's output:

    function, finish = program.differentiable(function, operands)
    return finish(apply(function, operands))

``function`` returns residuals next to the outputs; ``finish`` drops them.

Forward mode uses the class's own ``jvp``, or one fused program for values and tangents, in which
the values are computed once and random numbers are drawn once: if the program has
``pushed_forward``, the Jvp rule calls it one level down,

    outputs, tangents = program.pushed_forward(primals, tangents)

Under vmap alone, with nothing to differentiate, the class isn't needed. If the program has
``values``, the Vmap rule returns

    values(operands)

and what its rules return isn't checked: it is a tuple of tensors that are none of the operands.

A program whose ``draws`` is true draws random numbers, so a Vmap level concerns it whether or not
an operand is batched.

Such classes do their own functionalization: they never call ``mark_dirty``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["DifferentiableProgram", "program_of", "pushed_forward_of", "values_of"]

ATTRIBUTE = "funcaot_program"

PushedForward = Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]


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


def values_of(function: type) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
    """What computes a program's outputs at the level of its operands, if the program offers it."""
    return getattr(program_of(function), "values", None)


def program_of(function: type) -> DifferentiableProgram | None:
    """The compiled program behind a Function class, or None for a user's own Function."""
    return getattr(function, ATTRIBUTE, None)


def pushed_forward_of(function: type) -> PushedForward | None:
    """The program's fused forward mode, if it offers one.

    Its arguments are the operands, one level below the one that carries tangents, and a tangent
    or None for each; it returns the outputs and a tangent or None for each.
    """
    return getattr(program_of(function), "pushed_forward", None)
