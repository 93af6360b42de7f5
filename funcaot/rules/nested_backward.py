"""``backward()`` called by a backward that runs on real values; ``opaque_backward`` runs it so.

Inside of a compiled function that itself calls ``backward()``, what becomes of each ``.grad`` is
part of the program. What a nested call adds to a tensor from outside would be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.autograd.nodes import leaves_behind
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot.errors import UnsupportedError

__all__ = ["RefuseOutsideGradients"]


class RefuseOutsideGradients(TorchFunctionMode):
    """While a backward runs: it may accumulate into ``.grad`` of leaves that it makes itself."""

    def __init__(self, name: str) -> None:
        """Note nothing yet.

        Args:
            name: The Function's, for messages.
        """
        super().__init__()
        self._name = name
        self._own: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look at what a call of ``backward`` would reach.

        Raises:
            UnsupportedError: If that is a leaf from outside.
        """
        options = kwargs or {}
        if func in (torch.Tensor.backward, torch.autograd.backward):
            reached = options.get("inputs")
            given = _tensors(args[:1] or (options.get("tensors"),))
            leaves = [value for value in given if value.is_leaf and value.requires_grad]
            wanted = [*leaves, *leaves_behind(given)] if reached is None else _tensors(reached)
            if any(id(leaf) not in self._own for leaf in wanted):
                raise UnsupportedError(
                    f"The backward of {self._name} calls backward(), which fills .grad of tensors "
                    "from outside of it, in a compiled function that calls backward() too.",
                    remedy="compile the model or the loss, and call backward() outside; or use "
                    "torch.autograd.grad in the Function's backward and return the gradients.",
                )
        result = func(*args, **options)
        self._own.update((id(t), t) for t in _tensors(result) if t.is_leaf)
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]
