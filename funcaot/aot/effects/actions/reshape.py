"""The input gets another shape in place: ``t_``, ``squeeze_``, ``as_strided_``, ``resize_``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tracing import tracing
from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.errors import UnsupportedError


@dataclass(frozen=True)
class Reshape(Action):
    """Metadata that an input is given in place.

    Attributes:
        shape: Its new sizes.
        stride: Its new strides.
        offset: Its new storage offset, relative to the old one.
        resized: Whether it was resized, so that its storage may have to grow.
        with_grad: Whether autograd records the change.
        of_view: Whether only a view of it was changed, which nobody has.
        calls: The methods that the function changed it by, with their arguments, if these say it
            all (``t_`` and the like); a batch can't be given strides, but these.
    """

    reshapes: ClassVar[bool] = True

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    resized: bool
    with_grad: bool
    of_view: bool = False
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def changes_looks(self, spec: TensorSpec) -> bool:
        """It does."""
        return True

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Change it, with autograd where the function did.

        Raises:
            UnsupportedError: The input is a batch, whose strides can't be given.
        """
        with torch.set_grad_enabled(self.with_grad):
            if self.calls and (self.with_grad or functorch.transforms_active()):
                for name, arguments in self.calls:
                    getattr(target, name)(*arguments)
                return
            self._restride(target)

    def _restride(self, target: torch.Tensor) -> None:
        offset = target.storage_offset() + self.offset
        if self.resized:
            target.resize_(self.shape)
        now = (tuple(target.shape), tuple(target.stride()), target.storage_offset())
        unchanged = now == (self.shape, self.stride, offset)
        if unchanged and self.with_grad and not self.resized:
            (target.view_as(target) if self.of_view else target).transpose_(0, 0)
        elif not unchanged:
            if tracing.is_batched(target):
                raise UnsupportedError(
                    f"A compiled function changes the shape of {list(now[0])} that an input has "
                    "under vmap, by more than t_, transpose_, squeeze_ and unsqueeze_.",
                    remedy="return a view of the new shape.",
                )
            target.as_strided_(self.shape, self.stride, offset)

    def __str__(self) -> str:
        """``shape [3, 2] stride [1, 3]`` style."""
        text = f"shape {list(self.shape)} stride {list(self.stride)}"
        if self.offset:
            text += f" offset {self.offset:+d}"
        return text + (" resized" if self.resized else "")
