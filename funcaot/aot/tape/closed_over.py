"""Tensors that a backward reaches by itself; the tape's continuation puts its own in their places.

A Function that is given a callable runs it again in its backward, and a table that its code keeps
somewhere is met there too: as the real tensor, since no capture is in progress then.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.tensors.pytree import is_size, tree_map

__all__ = ["ClosedOver", "Reader", "Replacing"]

Reader: TypeAlias = Callable[[], tuple[torch.Tensor, ...]]


class ClosedOver:
    """The tape's tensors for real ones that a capture met.

    Attributes:
        mode: Puts the tape's tensors in place of real ones, while a capture is in progress.
        readers: What backwards of Functions find by themselves, each when it is asked.
        hooks: What code registered on tensors of the tape, by autograd's node of each.
        of_rules: Rules of Functions, and what they call, that lead to tensors.
        names: Variables and attributes on the way to these.
    """

    def __init__(self) -> None:
        """None, until a Function is called that may reach them."""
        self.mode: TorchFunctionMode | None = None
        self.readers: list[Reader] = []
        self.hooks: dict[Any, list[Any]] = {}
        self.of_rules: weakref.WeakKeyDictionary[FunctionType, None] = weakref.WeakKeyDictionary()
        self.names: set[str] = set()
        self._found: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def add(self, tensors: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take pairs of a real tensor and the tape's."""
        for real, traced in tensors:
            self._found[id(real)] = weakref.ref(real), traced

    def __iter__(self) -> Iterator[torch.Tensor]:
        """The tape's tensors."""
        return (traced for _, traced in self._found.values())

    def __bool__(self) -> bool:
        """Whether a backward may reach any."""
        return bool(self._found or self.hooks)

    def note_hook(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of what ``register_hook`` is given, on a tensor that has a node."""
        tensor, *given = args
        if tensor.grad_fn is not None:
            self.hooks.setdefault(tensor.grad_fn, []).extend([*given, *kwargs.values()])

    def entering(self) -> contextlib.AbstractContextManager[object]:
        """While a Function's backward runs in a capture, where no mode is in force."""
        return self.mode or contextlib.nullcontext()

    def add_reader(self, reader: Reader) -> None:
        """Take note of a backward that finds tensors by itself."""
        self.readers.append(reader)

    def note_path(self, functions: Iterable[FunctionType], names: Iterable[str]) -> None:
        """Take note of what leads to tensors that were made operands of a rule, which runs later.

        Args:
            functions: The rule, and functions that it calls.
            names: Variables and attributes.
        """
        self.of_rules.update(dict.fromkeys(functions))
        self.names.update(names)

    def found(self) -> tuple[torch.Tensor, ...]:
        """What backwards would find now."""
        return tuple(tensor for reader in self.readers for tensor in reader())

    def replace(self, value: Any) -> Any:
        """The tape's tensor for a real one; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        reference, traced = self._found.get(id(value), (None, value))
        return value if reference is None or reference() is not value else traced


class Replacing(TorchFunctionMode):
    """Replaces each real tensor that an op meets, and notes hooks that are registered."""

    def __init__(self, closed_over: ClosedOver) -> None:
        """Start to.

        Args:
            closed_over: What is replaced, and by what.
        """
        super().__init__()
        self._closed_over = closed_over

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an op on the tape's tensors."""
        if func is torch.Tensor.register_hook:
            self._closed_over.note_hook(args, kwargs or {})
        replace = self._closed_over.replace
        replaced: Any = tree_map(replace, (args, kwargs or {}), is_leaf=is_size)
        return func(*replaced[0], **replaced[1])
