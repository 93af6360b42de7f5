"""Lifting: tensors that a function closes over become inputs while it is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch import functorch, tracing
from funcaot._torch.pytree import tree_map
from funcaot.errors import UnsupportedError


class Lifting(TorchFunctionMode):
    """Replaces each real tensor that an op meets by the tape's input made for it.

    Attributes:
        lifted: The real tensors met so far that weren't arguments, in order.
    """

    def __init__(
        self, known: dict[int, torch.Tensor], add: Callable[[torch.Tensor], torch.Tensor], name: str
    ) -> None:
        """Start with the arguments.

        Args:
            known: The tape's tensor for each real tensor that is an argument, by ``id``.
            add: Makes the tape's input for a real tensor.
            name: The user's function, for messages.
        """
        super().__init__()
        self.lifted: list[torch.Tensor] = []
        self._known = known
        self._real: dict[int, torch.Tensor] = {}
        self._add = add
        self._name = name

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an op on the tape's tensors only."""
        args, kwargs = tree_map(self.replace, (args, kwargs or {}))
        if func in tracing.RECURRENT:
            with tracing.without_fused_recurrence():
                return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            # In place, eager returns the tensor itself, which the caller may assign again.
            return self._real.get(id(result), result)
        return result

    def replace(self, value: Any) -> Any:
        """The tape's tensor for a real one; anything else as it is."""
        if not isinstance(value, torch.Tensor) or isinstance(value, tracing.FunctionalTensor):
            return value
        found = self._known.get(id(value))
        if found is not None:
            return found
        inner = functorch.fully_unwrapped(value)
        if isinstance(inner, tracing.FunctionalTensor | tracing.FakeTensor):
            return value
        if inner is not value and functorch.transforms_active():
            raise UnsupportedError(
                f"Inside {self._name}, a torch.func transform is applied to a tensor that the "
                "function closes over.",
                remedy="pass the tensor as an argument of the compiled function.",
            )
        added = self._add(value)
        self._known[id(value)] = added
        self._real[id(added)] = value
        self.lifted.append(value)
        return added
