"""What is in progress around a call, asked once; entries, segments and programs of ``aot`` ask."""

from __future__ import annotations

from typing import NamedTuple

import torch.autograd.forward_ad as forward_ad

from funcaot._torch.levels.functorch import (
    dispatch_mode_count,
    function_mode_active,
    transforms_active,
)

__all__ = ["Situation", "situation"]


class Situation(NamedTuple):
    """What is in progress in this thread.

    Attributes:
        transforms: Whether a transform is: ``grad``, ``vmap``, ``jvp`` or ``functionalize``.
        duals: Whether a ``dual_level`` is open.
        modes: How many dispatch modes are on; those of a capture and of fake tensors count.
        function_modes: Whether a torch-function mode is on.
    """

    transforms: bool
    duals: bool
    modes: int
    function_modes: bool

    @property
    def derives(self) -> bool:
        """Whether somebody besides base autograd may differentiate or batch what runs."""
        return self.transforms or self.duals

    @property
    def is_bare(self) -> bool:
        """Whether nothing at all is in progress, so that no one else looks at what runs."""
        return not (self.transforms or self.duals or self.modes or self.function_modes)


def situation() -> Situation:
    """What is in progress now."""
    return Situation(
        transforms_active(),
        forward_ad._current_level >= 0,
        dispatch_mode_count(),
        function_mode_active(),
    )
