"""What functorch refuses at its levels, refused below them too."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["requires_grad_refused"]


class _Refusal(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.requires_grad_:
            raise RuntimeError(
                "You are attempting to call Tensor.requires_grad_() where a transform asks for a "
                "derivative."
            )
        return func(*args, **(kwargs or {}))


def requires_grad_refused() -> TorchFunctionMode:
    """Refuse ``Tensor.requires_grad_``, in the words that ``is_level_failure`` knows."""
    return _Refusal()
