"""What ``torch.distributed`` does around a module, inside of a captured function: refused.

What a wrapper does around its module it does in each call, outside of any graph; a program would
leave it out from the second call on. Context parallelism replaces attention for a while. The mode
that lifts tensors asks here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from funcaot._torch.distributed.wrapped import (
    DistributedDataParallel,
    exchanges_parts_of_sequences,
)
from funcaot.errors import UnsupportedError

__all__ = ["WrappedInside"]

_FSDP = "torch.distributed.fsdp"
_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel"


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
        if starts or (name == "untyped_storage" and _called_by(_FSDP)):
            raise self._fully_sharded()
        resized = name == "resize_" and _called_by(_CONTEXT_PARALLEL)
        if resized or exchanges_parts_of_sequences(func, args):
            raise UnsupportedError(
                f"{self._name} computes attention under context_parallel, which exchanges parts "
                "of the sequence outside of any program.",
                remedy="call the function uncompiled there; or share heads among the ranks "
                "instead, by parallelize_module.",
            )

    def _fully_sharded(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self._name} calls a module under fully_shard, whose parameters have to be gathered "
            "in each call, outside of a program.",
            remedy="compile the module itself, funcaot.compile(module), and call it outside; or "
            "use funcaot.distributed.shard(module) instead of fully_shard.",
        )


def _called_by(package: str) -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(package):
            return True
        frame = frame.f_back
    return False
