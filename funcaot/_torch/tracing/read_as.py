"""What tensors say of autograd, answered for others that stand in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["ReadAs"]

_REQUIRES_GRAD = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_IS_LEAF = torch.Tensor.is_leaf.__get__  # type: ignore[attr-defined]
_GRAD_FN = torch.Tensor.grad_fn.__get__  # type: ignore[attr-defined]
_GETTERS = frozenset({_REQUIRES_GRAD, _IS_LEAF, _GRAD_FN})


class ReadAs(TorchFunctionMode):
    """Inside, ``requires_grad``, ``is_leaf`` and ``grad_fn`` of some tensors have other values.

    Attributes:
        was_read: Whether something was asked for.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], answers: Sequence[tuple[bool, bool]]
    ) -> None:
        """Answer for each tensor whether it requires grad and whether it is a leaf."""
        super().__init__()
        self.was_read = False
        self._answers = {
            id(tensor): answer for tensor, answer in zip(tensors, answers, strict=True)
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Answer what is asked of one of the tensors."""
        if func in _GETTERS and id(args[0]) in self._answers:
            self.was_read = True
            requires_grad, is_leaf = self._answers[id(args[0])]
            if func == _GRAD_FN:
                return None if is_leaf or not requires_grad else _some_node()
            return requires_grad if func == _REQUIRES_GRAD else is_leaf
        return func(*args, **(kwargs or {}))


def _some_node() -> Any:
    with torch.enable_grad():
        return torch.empty(0, requires_grad=True).view_as(torch.empty(0)).grad_fn
