"""Follows the code of a Function's rule; what looks at what rules change starts it."""

from __future__ import annotations

import types
from typing import Any

from funcaot.aot.closure.ran import Recorder

__all__ = ["Follower"]

# Where torch calls kernels that are written in Python.
_OPERATORS = "torch._library.custom_ops"


class Follower(Recorder):
    """Tells what code of rules runs inside its block.

    Imports are those of the capture around it, if any. A custom operator's kernel, which calls a
    large library, isn't followed: what it changes is the operator's, as outside of Functions.
    """

    _kernel: types.FrameType | None = None

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        """Note the code of a frame that starts, unless a kernel runs it."""
        if self._kernel is not None:
            return None
        is_kernel = frame.f_code.co_name == "backend_impl"
        if (
            not is_kernel
            or self.before is not None
            or frame.f_globals.get("__name__") != _OPERATORS
        ):
            return super().trace(frame, event, argument)
        self._kernel, frame.f_trace_lines = frame, False
        return self._in_kernel

    def _in_kernel(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "return":
            self._kernel = None
        return self._in_kernel

    def _is_importing(self, frame: types.FrameType) -> bool:
        """Whether a frame belongs to an import, as the recorder around this one sees it."""
        found = self._outer is not None and self._outer._is_importing(frame)
        if found:
            self.ran.forget(frame.f_code)
        return found
