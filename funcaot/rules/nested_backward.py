"""``backward()`` called by a backward that runs on real values; ``opaque.backward`` runs it so.

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

__all__ = ["BACKWARDS", "RefuseOutsideGradients", "filled_by", "tensors_in"]

BACKWARDS = (torch.Tensor.backward, torch.autograd.backward)


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
        filled = filled_by(args, options) if func in BACKWARDS else []
        if any(id(leaf) not in self._own for leaf in filled):
            raise UnsupportedError(
                f"The backward of {self._name} calls backward(), which fills .grad of tensors "
                "from outside of it, in a compiled function that calls backward() too.",
                remedy="compile the model or the loss, and call backward() outside; or use "
                "torch.autograd.grad in the Function's backward and return the gradients.",
            )
        result = func(*args, **options)
        self._own.update((id(t), t) for t in tensors_in(result) if t.is_leaf)
        return result


def filled_by(args: tuple[Any, ...], options: dict[str, Any]) -> list[torch.Tensor]:
    """The leaves whose ``.grad`` a call of one of ``BACKWARDS`` fills.

    Args:
        args: What it is called with.
        options: Its keyword arguments.
    """
    reached = options.get("inputs")
    if reached is not None:
        return tensors_in(reached)
    given = tensors_in(args[:1] or (options.get("tensors"),))
    leaves = [value for value in given if value.is_leaf and value.requires_grad]
    return [*leaves, *leaves_behind(given)]


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]
