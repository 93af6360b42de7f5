"""Modules that ``torch.distributed`` has wrapped, called inside of a captured function: refused.

What a wrapper does around its module it does in each call, outside of any graph; a program would
leave it out from the second call on. The mode that lifts tensors asks here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from funcaot._torch.distributed.wrapped import DistributedDataParallel
from funcaot.errors import UnsupportedError

__all__ = ["WrappedInside"]

_FSDP = "torch.distributed.fsdp"


class WrappedInside:
    """Notices that a wrapper runs which didn't when the capture began."""

    def __init__(self, name: str) -> None:
        """Remember what runs around the capture.

        Args:
            name: The user's function, for messages.
        """
        self._name = name
        self._outside = DistributedDataParallel._active_ddp_module

    def refuse(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Refuse to go on where a wrapper called a function of torch.

        Raises:
            UnsupportedError: It is inside of a wrapper.
        """
        if DistributedDataParallel._active_ddp_module is not self._outside:
            raise UnsupportedError(
                f"{self._name} calls a DistributedDataParallel, whose reducer has to be prepared "
                "in each call, outside of a program.",
                remedy="compile the module itself, funcaot.compile(ddp), and call it outside; or "
                "call all_reduce on the gradients inside.",
            )
        name = getattr(func, "__name__", "")
        starts = name == "_record_function_enter_new" and str(args[0]).startswith("FSDP::")
        if starts or (name == "untyped_storage" and _called_by_fsdp()):
            raise self._fully_sharded()

    def _fully_sharded(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self._name} calls a module under fully_shard, whose parameters have to be gathered "
            "in each call, outside of a program.",
            remedy="compile the module itself, funcaot.compile(module), and call it outside; or "
            "use funcaot.distributed.shard(module) instead of fully_shard.",
        )


def _called_by_fsdp() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_FSDP):
            return True
        frame = frame.f_back
    return False
