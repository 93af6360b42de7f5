"""Dynamo beside a capture: neither captures the other."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch.compiler import is_dynamo_compiling

from funcaot.scopes import SharedPatch

__all__ = ["is_dynamo_compiling", "without_dynamo"]


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


_aside = SharedPatch(_step_aside, _step_back)


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """What ``torch.compile`` compiled runs as written, so that it's recorded; it isn't entered.

    The stance is torch's for the whole process: what other threads call meanwhile runs as written
    too, which means the same.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    set_eval_frame = sys.modules["torch._C._dynamo.eval_frame"].set_eval_frame
    before = set_eval_frame(None)
    try:
        with _aside.used():
            yield
    finally:
        set_eval_frame(before)
