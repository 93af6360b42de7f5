"""A call is made as it is, since the function raised or was refused while ``compiled`` captured it.

What a function does before it raises stays done in eager torch: writes, gradients, what it stored,
random numbers that it drew. A capture does nothing of that, and what it did in Python is undone.
So the function is called as it is, where it raises again, and does all that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcaot._torch.tracing.tracing import is_untraceable
from funcaot.aot.graph.location import warn_user
from funcaot.aot.runtime.transform_stacks import NotCapturedError
from funcaot.aot.state.state_effects import Call
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.classes.premise import PremiseFailed
from funcaot.errors import CaptureWarning, FuncaotError, UnsupportedError

__all__ = ["RaisedInCaptureError", "call_plainly", "is_of_function"]

_OURS = (FuncaotError, NotCapturedError, PremiseFailed)


class RaisedInCaptureError(Exception):
    """The function itself raised, in a capture of a part of it; ``__cause__`` is what it raised."""


def is_of_function(error: Exception) -> bool:
    """Whether an error in a capture is one of the function, not a refusal of the library."""
    return not (isinstance(error, (*_OURS, RaisedInCaptureError)) or is_untraceable(error))


def call_plainly(
    function: Callable[..., Any], name: str, call: Call, raised: BaseException | None
) -> Any:
    """Call a function as it is: it raised in its capture, or can't be captured yet.

    Args:
        function: The user's function.
        name: What it is called, for messages.
        call: Its ``(args, kwargs)``.
        raised: What it raised, or the refusal; None if it is called for another reason.

    Returns:
        Its result, if it doesn't raise now. A warning says so.

    Raises:
        Exception: Whatever the function raises.
    """
    args, kwargs = call
    result = function(*args, **kwargs)
    if raised is not None:
        warn_user(_why(name, raised), CaptureWarning)
    return result


def _why(name: str, raised: BaseException) -> str:
    """Why a call of a function wasn't compiled, in words."""
    if isinstance(raised, EagerOnlyError):
        return (
            f"A call of {name} runs in eager, without being compiled: {raised.what} To have it "
            f"compiled, {raised.remedy}"
        )
    if isinstance(raised, UnsupportedError):
        return f"This call of {name} ran without being compiled, since it can't be: {raised}"
    return (
        f"{name} raised {type(raised).__name__} while it was captured, and doesn't when it is "
        f"called as it is; so this call ran without being compiled: {raised}"
    )
