"""Dynamo beside a capture: neither captures the other."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)
from torch.compiler import is_dynamo_compiling

from funcaot._torch.dynamo.compile_lock import import_dynamo
from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch

__all__ = ["hidden_from_dynamo", "is_dynamo_compiling", "without_dynamo"]

Function = TypeVar("Function", bound=Callable[..., Any])


class _Stance:
    """What ``torch.compile`` was to do before a capture began in some thread."""

    before: Any = None


# Not ``torch.compiler.set_stance``, from the middle of which an interrupt leaves no way back.
def _step_aside() -> None:
    dynamo = sys.modules["torch._dynamo.eval_frame"]
    if _Stance.before is None:
        _Stance.before = dynamo._stance
    dynamo._set_stance(dynamo.DynamoStance("force_eager"))


def _step_back() -> None:
    if _Stance.before is not None:
        sys.modules["torch._dynamo.eval_frame"]._set_stance(_Stance.before)
        _Stance.before = None


_aside = SharedPatch(_step_aside, _step_back, lasts=True)


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """What ``torch.compile`` compiled runs as written, so that it's recorded; it isn't entered.

    The stance is torch's for the whole process: what other threads call meanwhile runs as written
    too, which means the same.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import_dynamo()  # Another thread may be doing that.
    require("stepping aside")
    set_eval_frame = sys.modules["torch._C._dynamo.eval_frame"].set_eval_frame
    before = set_eval_frame(None)
    try:
        with _aside.used():
            yield
    finally:
        set_eval_frame(before)


def hidden_from_dynamo(function: Function) -> Function:
    """Let Dynamo look neither into calls of a function nor into what it calls; at no cost.

    For what the engine calls: a backward that runs inside of a function that ``torch.compile``
    compiles. A frame that Dynamo inlines isn't concerned.
    """
    skip = _FrameAction.SKIP
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(skip, skip))
    return function
