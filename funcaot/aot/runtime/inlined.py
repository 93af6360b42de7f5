"""Which calls of a compiled function are calls of the user's function; ``compiled`` asks.

Inside of another capture and on fake tensors there is nothing to run. Under a dispatch mode of the
user, tensors that wrap others show it the ops that their classes are given, which know better than
a graph what is inside; one with hooks for all modules, as torch's counter of operations has, is
shown the modules that run; a torch-function mode is shown the functions that are called. Wrappers
at a level of a transform are in eager what their classes say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from funcaot._torch.levels.situation import Situation
from funcaot._torch.tensors import guards
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing import tracing
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError

__all__ = ["inline", "is_inlined"]


def is_inlined(around: Situation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call runs the function as it is.

    Args:
        around: What is in progress.
        args: The call's arguments.
        kwargs: Its keywords.
    """
    if around.function_modes and guards.users_function_mode_active():
        return True
    if around.modes:
        if any(guards.hooks_of_all_modules()):
            return True
        leaves = tree_flatten((args, kwargs))[0]
        if tracing.is_abstract() or any(map(is_wrapper, leaves)):
            return True
    # An operator's kernel may be given fake tensors, with no mode around.
    return any(isinstance(value, tracing.FakeTensor) for value in (*args, *kwargs.values()))


class _Inlined(threading.local):
    """How many compiled functions are being inlined into a capture, one in another."""

    depth = 0


_inlined = _Inlined()


def inline(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function as a part of another one's capture.

    Args:
        function: The user's function.
        name: What it is called, for messages.
        args: Its arguments.
        kwargs: Its keyword arguments.

    Raises:
        UnsupportedError: If it calls itself without an end.
    """
    _inlined.depth += 1
    try:
        return function(*args, **kwargs)
    except RecursionError:
        if _inlined.depth == 1:
            raise
        raise UnsupportedError(
            f"{name} calls itself without an end while it is captured.",
            remedy="end the recursion by a Python value, or by a branch on one; a branch on a "
            "tensor's value isn't taken in a capture.",
        ) from None
    finally:
        _inlined.depth -= 1
