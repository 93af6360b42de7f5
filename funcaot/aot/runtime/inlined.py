"""Which calls of a compiled function are calls of the user's function; ``compiled`` asks.

Inside of another capture and on fake tensors there is nothing to run. Under a dispatch mode of the
user, tensors that wrap others show it the ops that their classes are given, which know better than
a graph what is inside; a torch-function mode is shown the functions that are called. Classes of
tensors that say themselves what ops do are in eager what they say; so are wrappers at a level of a
transform.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from funcaot._torch.levels.situation import Situation, situation
from funcaot._torch.tensors import guards
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing import tracing
from funcaot.aot.graph.location import warn_user
from funcaot.aot.graph.lru import Derived
from funcaot.aot.signature.signature import Signature
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import CaptureWarning, UnsupportedError

__all__ = ["EagerCalls", "inline", "is_inlined"]


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
        leaves = tree_flatten((args, kwargs))[0]
        if tracing.is_abstract() or any(map(is_wrapper, leaves)):
            return True
    # An operator's kernel may be given fake tensors, with no mode around.
    return any(isinstance(value, tracing.FakeTensor) for value in (*args, *kwargs.values()))


class EagerCalls:
    """Calls of one compiled function that are calls of the user's function."""

    def __init__(self) -> None:
        """None so far."""
        self._known: Derived[tuple[Signature, bool], EagerOnlyError] = Derived()
        self._warned = False

    def check(self, signature: Signature) -> None:
        """Refuse again what a capture has refused: it wouldn't find anything else.

        Raises:
            EagerOnlyError: If calls like this one were.
        """
        known = self._known.get((signature, situation().derives))
        if known is not None:
            raise known.with_traceback(None)

    def note(self, signature: Signature, error: Exception) -> None:
        """Remember what was raised in a capture, if it is such a refusal."""
        if isinstance(error, EagerOnlyError):
            self._known[signature, situation().derives] = error

    def call(
        self,
        function: Callable[..., Any],
        name: str,
        error: EagerOnlyError,
        call: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> Any:
        """Call the function as it is; the first time a warning says so.

        Args:
            function: The user's function.
            name: What it is called, for messages.
            error: Why it isn't compiled.
            call: The arguments, ``(args, kwargs)``.
        """
        if not self._warned:
            self._warned = True
            warn_user(
                f"A call of {name} runs in eager, without being compiled: {error.what} To have it "
                f"compiled, {error.remedy}",
                CaptureWarning,
            )
        args, kwargs = call
        return inline(function, name, args, kwargs)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


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
