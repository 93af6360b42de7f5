"""Transforms straight over a compiled function run as one program.

Note [Stacks of transforms]: ``vmap(grad(c))(x)`` of a compiled ``c`` enters and leaves torch's
levels, which alone takes longer than the graphs of a small network. Called where no other level is
active, such a stack is compiled as ``compile(vmap(grad(function)))`` would be, once, and kept under
``c``. Anything between the transforms and ``c`` (a lambda) and any level around them brings back
the way through the levels, where each graph of ``c`` has its rules; so does a function that can't
be captured with the transforms inside.
"""

from __future__ import annotations

import functools
from typing import Any

from funcaot._torch.dynamo.transform_calls import MISS, Transform, TransformCalls
from funcaot._torch.levels.situation import situation
from funcaot._torch.patches import is_usable, switched_off
from funcaot.aot.runtime.cache import has_caches
from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.aot.runtime.transform_stacks import NotCapturedError, stack_of
from funcaot.functions.interception import when_uninstalled

__all__ = ["follow_transforms"]


def _call(transform: Transform, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a transform returns for these arguments; `MISS` where torch is to find that out."""
    if not situation().is_bare or "transform calls" in switched_off():
        return MISS
    found = stack_of(transform)
    if found is None or not isinstance(found[1], CompiledFunction):
        return MISS
    stack, compiled = found
    if stack.in_chunks:
        return MISS  # One program would hold all of them.
    try:
        return compiled.under(stack)(*args, **kwargs)
    except NotCapturedError:
        # If it is the user's mistake, it will be raised again.
        return MISS


@functools.cache
def _calls() -> TransformCalls:
    return TransformCalls(_call)


def follow_transforms() -> None:
    """Have torch's transforms ask here before they begin, as long as something is compiled."""
    if is_usable("transform calls"):
        _calls().install()


def _leave_transforms() -> None:
    """Take that back if nothing compiled is left."""
    if not has_caches() and _calls.cache_info().currsize:
        _calls().undo()


when_uninstalled(_leave_transforms)
