"""Errors of a capture that the user's code catches; what records code asks.

``try: y = torch.from_numpy(x.numpy())``, ``except Exception: y = x * 3``: eager never comes to the
second line, and a program of it would be another one. So what nobody but a capture raises ends the
capture, whoever catches it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Container
from typing import Any

from funcaot._torch.tracing.tracing import is_untraceable_function
from funcaot.errors import ArgumentError, MissingRuleError, RuleError

__all__ = ["Swallowed"]

_OF_EAGER_TOO = (ArgumentError, MissingRuleError, RuleError)


def _is_of_a_capture(error: BaseException) -> bool:
    """Whether nobody but a capture raises an error."""
    if type(error).__module__.partition(".")[0] == "funcaot":
        return not (isinstance(error, _OF_EAGER_TOO) or getattr(error, "is_looked_for", False))
    return is_untraceable_function(error)


class Swallowed:
    """Notes errors of a capture that come to the user's code, and finds those that end there."""

    def __init__(self) -> None:
        """None has come yet."""
        self._met: list[BaseException] = []

    def noting(self, frame: types.FrameType, inner: Callable[..., Any] | None) -> Any:
        """The trace function of a frame of the user's that starts.

        Args:
            frame: The frame.
            inner: The trace function that it has otherwise.
        """
        if inner is None:
            frame.f_trace_lines = False

        def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
            nonlocal inner
            if event == "exception" and isinstance(argument[1], BaseException):
                self._note(argument[1])
            if inner is not None:
                inner = inner(frame, event, argument)
            return trace

        return trace

    def _note(self, error: BaseException) -> None:
        if not any(error is each for each in self._met) and _is_of_a_capture(error):
            self._met.append(error)

    def refuse(self, users: Container[types.CodeType], raised: BaseException | None) -> None:
        """Raise the first one that the user's code has caught; forget all.

        Args:
            users: That code.
            raised: What ends the block that is recorded, if something does.

        Raises:
            Exception: That error.
        """
        met, self._met = self._met, []
        if raised is not None and _is_of_a_capture(raised):
            return
        for error in met:
            caught = error.__traceback__  # It begins where the error came to.
            if caught is not None and caught.tb_frame.f_code in users:
                raise error
