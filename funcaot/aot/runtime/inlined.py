"""Which calls of a compiled function are calls of the user's function; ``compiled`` asks.

Inside of another capture and on fake tensors there is nothing to run. Under a dispatch mode of the
user, tensors that wrap others show it the ops that their classes are given, which know better than
a graph what is inside.
"""

from __future__ import annotations

from typing import Any

from funcaot._torch.levels.situation import Situation
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing import tracing
from funcaot.aot.subclasses.structure import is_wrapper

__all__ = ["is_inlined"]


def is_inlined(around: Situation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call runs the function as it is.

    Args:
        around: What is in progress.
        args: The call's arguments.
        kwargs: Its keywords.
    """
    if around.modes:
        leaves = tree_flatten((args, kwargs))[0]
        if tracing.is_abstract() or any(map(is_wrapper, leaves)):
            return True
    # An operator's kernel may be given fake tensors, with no mode around.
    return any(isinstance(value, tracing.FakeTensor) for value in (*args, *kwargs.values()))
