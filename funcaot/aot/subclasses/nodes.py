"""Targets of graph nodes that take a wrapper apart and make one.

A graph as the tape has it holds wrappers as values: a placeholder with a ``Part`` for each inner
tensor that is read, and a ``Wrapped`` for each wrapper that goes out. Run as it is, it does what it
says. ``lowering.wrappers`` takes these nodes off before a compiler sees the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.sizes.ragged import is_ragged
from funcaot.aot.subclasses.structure import Structure

__all__ = ["Part", "Wrapped", "is_part", "is_wrapped", "parts_inside", "parts_of", "way_to"]


class Part:
    """Takes one inner tensor out of a wrapper."""

    __module__ = __name__

    def __init__(self, name: str) -> None:
        """Remember which.

        Args:
            name: The attribute.
        """
        self.attribute = name
        self.__name__ = self.__qualname__ = f"part_{name}"

    def __call__(self, wrapper: torch.Tensor) -> Any:
        """The inner tensor."""
        return getattr(wrapper, self.attribute)

    def __repr__(self) -> str:
        """For graph printouts."""
        return f"funcaot.part({self.attribute})"


class Wrapped:
    """Makes a wrapper of inner tensors, and of open sizes if its own are made of these.

    Attributes:
        brought: Which of its metadata are objects that the call was given, by their keys.
    """

    __module__ = __name__

    def __init__(
        self, structure: Structure, shape: Any, stride: Any, count: int, symbols: Sequence[Any]
    ) -> None:
        """Remember all but the tensors.

        Args:
            structure: What it consists of.
            shape: Its own.
            stride: Its own.
            count: Of how many tensors it is made.
            symbols: The open sizes that it is given after these.
        """
        self.structure = structure
        self.shape = shape
        self.stride = stride
        self.count = count
        self.brought: Mapping[Any, int] = {}
        self._symbols = tuple(symbols)
        self._numbers: Any = None
        if symbols:
            self._numbers = shapes.evaluator(
                self._symbols,
                [None if is_ragged(n) else shapes.expression_of(n) for n in (*shape, *stride)],
            )
        self.__name__ = self.__qualname__ = f"wrapped_{structure.kind.__name__}"

    def __call__(self, *given: Any, carried: Callable[[Any], Any] | None = None) -> torch.Tensor:
        """The wrapper, with what puts objects of a call among the metadata."""
        parts, sizes = given[: self.count], given[self.count :]
        shape, stride = self.shape, self.stride
        if sizes:
            found = [
                own if number is None else number
                for own, number in zip((*shape, *stride), self._numbers(*sizes), strict=True)
            ]
            shape, stride = tuple(found[: len(shape)]), tuple(found[len(shape) :])
        return self.structure.made_of(parts, shape, stride, carried)

    def __repr__(self) -> str:
        """For graph printouts."""
        return f"funcaot.wrapped({self.structure.kind.__name__})"


def is_part(node: Any) -> bool:
    """Whether a node takes an inner tensor out of a wrapper."""
    return isinstance(node, fx.Node) and isinstance(node.target, Part)


def is_wrapped(node: fx.Node) -> bool:
    """Whether a node makes a wrapper."""
    return isinstance(node.target, Wrapped)


def parts_of(node: fx.Node) -> list[fx.Node]:
    """The nodes of the tensors that a wrapper is made of; the open sizes come after them."""
    return list(node.args[: node.target.count])  # type: ignore


def way_to(node: fx.Node) -> tuple[fx.Node, tuple[str, ...]]:
    """The input that a node takes an inner tensor out of, and the attributes on the way."""
    names: list[str] = []
    while is_part(node):
        names.append(node.target.attribute)  # type: ignore[union-attr]
        (node,) = node.all_input_nodes
    return node, tuple(reversed(names))


def parts_inside(node: fx.Node) -> list[fx.Node]:
    """The nodes of the tensors that a wrapper was made of, at every depth; else none."""
    if not is_wrapped(node):
        return []
    found: list[fx.Node] = []
    for part in parts_of(node):
        found += [part, *parts_inside(part)]
    return found
