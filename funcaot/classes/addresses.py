"""What code gets for the address of a tensor that is captured: it can be compared, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from funcaot._torch.tracing import tracing
from funcaot.errors import UnsupportedError

__all__ = ["Address"]

_of: dict[int, tuple[torch.Tensor, str, Callable[[torch.Tensor], bool]]] = {}


class Address:
    """Where a tensor of a capture lies: it is the same place as another one, or it isn't."""

    __slots__ = ()  # Nothing leads from it to the capture, for who looks at what is returned.

    def __init__(
        self, tensor: torch.Tensor, name: str, is_in_an_input: Callable[[torch.Tensor], bool]
    ) -> None:
        """Of a tensor that has elements.

        Args:
            tensor: The tape's tensor.
            name: The user's function, for messages.
            is_in_an_input: Whether a tensor's memory is that of an input.
        """
        _of[id(self)] = tensor, name, is_in_an_input

    def __del__(self) -> None:
        _of.pop(id(self), None)

    @property
    def _tensor(self) -> torch.Tensor:
        return _of[id(self)][0]

    def _place(self) -> tuple[Any, Any]:
        tensor = self._tensor
        with tracing.without_torch_function():
            start = tensor.storage_offset() * tensor.element_size()
            return tracing.storage_key(tensor), start

    def __eq__(self, other: object) -> bool:
        """Whether two tensors lie at one place, which isn't known of two inputs."""
        if not isinstance(other, Address):
            self.refuse()
        (mine, start), (theirs, other_start) = self._place(), other._place()
        if mine == theirs:
            return bool(start == other_start)
        both = (self._tensor, other._tensor)
        with tracing.without_torch_function():
            if all(map(_of[id(self)][2], both)):
                self.refuse()
        return False

    def __hash__(self) -> int:
        return hash(self._place()[0])

    def refuse(self) -> NoReturn:
        """Refuse what needs the number.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"{_of[id(self)][1]} asks for the address of a tensor (data_ptr), which has none while "
            "it is captured; only those of tensors that it makes itself can be compared.",
            remedy="ask outside of the compiled function.",
        )


def _refusing(name: str) -> None:
    def refuse(self: Address, *args: Any) -> NoReturn:
        self.refuse()

    setattr(Address, name, refuse)


for _name in ("add", "sub", "mul", "mod", "floordiv", "and", "or", "xor", "rshift", "lshift"):
    _refusing(f"__{_name}__")
    _refusing(f"__r{_name}__")
for _name in ("int", "index", "float", "bool", "lt", "le", "gt", "ge", "str", "repr", "format"):
    _refusing(f"__{_name}__")
