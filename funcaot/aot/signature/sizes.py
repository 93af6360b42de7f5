"""Sizes that a program leaves open: symbols for them, where a call shows them, what must hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors import shapes
from funcaot._torch.tensors.shapes import SizeEnvironment, SizeError
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.signature import Signature

__all__ = ["Conditions", "SizeEnvironment", "SizeError", "Sizes", "concrete", "generalized"]


class Conditions:
    """What a trace assumed about sizes; its result is valid for sizes of which it is true.

    Attributes:
        answers: Each question that was asked, with the answer.
    """

    def __init__(self, environment: SizeEnvironment, symbols: Sequence[Any] | None = None) -> None:
        """Nothing is assumed yet.

        Args:
            environment: The symbols.
            symbols: Those whose sizes ``hold`` is given; all by default.
        """
        self.environment = environment
        self.symbols = environment.symbols if symbols is None else tuple(symbols)
        self.answers: dict[Any, Any] = {}
        self._compiled: tuple[int, Any] = (-1, None)

    def __iter__(self) -> Iterator[str]:
        """The conditions, as text."""
        return map(str, self.expressions())

    def expressions(self) -> list[Any]:
        """The conditions, as expressions."""
        return [shapes.as_condition(*pair) for pair in list(self.answers.items())]

    def only_size(self, symbol: Any) -> int | None:
        """The one size that a symbol can stand for, if there is just one."""
        for question, answer in self.answers.items():
            if shapes.fixes(question, answer, symbol):
                return int(self.environment.at_present(symbol))
        return None

    def hold(self, sizes: Sequence[int]) -> bool:
        """Whether all of it is true of some sizes, one for each of ``symbols``."""
        if not self.answers:
            return True
        count, check = self._compiled
        if count != len(self.answers):
            check = shapes.evaluator(self.symbols, self.expressions())
            self._compiled = (len(self.answers), check)
        try:
            return all(check(*sizes))
        except ArithmeticError:
            return False


@dataclass(frozen=True, eq=False)
class Sizes:
    """The open sizes of one entry.

    Attributes:
        environment: The symbols.
        signature: What calls look like, with expressions of the symbols as sizes and strides.
        sources: For each symbol the leaf and the dimension that show it.
        conditions: What else must be true of the sizes.
    """

    environment: SizeEnvironment
    signature: Signature
    sources: tuple[tuple[int, int], ...]
    conditions: Conditions = field(init=False)

    def __post_init__(self) -> None:
        """Answers of the forward hold for everything that is derived from it."""
        object.__setattr__(self, "conditions", Conditions(self.environment))
        self.environment.facts = self.conditions.answers

    @property
    def are_fixed(self) -> bool:
        """Whether what is assumed leaves one value for each of them."""
        symbols = self.environment.symbols
        return all(self.conditions.only_size(symbol) is not None for symbol in symbols)

    def read(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """The sizes of a call."""
        return tuple(leaves[leaf].shape[dim] for leaf, dim in self.sources)

    def match(self, signature: Signature) -> bool:
        """Whether a call looks like this, and its sizes are as they must be."""
        known = self.signature
        if (
            len(signature.leaves) != len(known.leaves)
            or signature.ambient != known.ambient
            or signature.kinds != known.kinds
            or signature.attributes != known.attributes
            or signature.repeats != known.repeats
            or signature.tree != known.tree
        ):
            return False
        if not all(map(_is_like, signature.leaves, known.leaves)):
            return False
        sizes = self.read(signature.leaves)
        if any(size < 2 for size in sizes):
            return False
        by_symbol = dict(zip(self.environment.symbols, sizes, strict=True))
        return all(
            _matches((*given.shape, *given.stride), (*leaf.shape, *leaf.stride), by_symbol)
            for given, leaf in zip(signature.leaves, known.leaves, strict=True)
            if isinstance(leaf, TensorSpec) and isinstance(given, TensorSpec)
        ) and self.conditions.hold(sizes)


def _is_like(given: Any, known: Any) -> bool:
    """Whether two leaves are equal but for sizes and strides."""
    if not isinstance(given, TensorSpec) or not isinstance(known, TensorSpec):
        return given == known
    return (
        len(given.shape) == len(known.shape)
        and given.dtype is known.dtype
        and given.requires_grad == known.requires_grad
        and given.is_leaf == known.is_leaf
        and given.device == known.device
        and given.layout is known.layout
        and given.flags == known.flags
    )


def _matches(given: Sequence[int], known: Sequence[Any], sizes: Mapping[Any, int]) -> bool:
    for number, wanted in zip(given, known, strict=True):
        if isinstance(wanted, int):
            if number != wanted:
                return False
        elif number != (sizes[wanted] if wanted in sizes else shapes.value_at(wanted, sizes)):
            return False
    return True


def generalized(
    signature: Signature, dims: Sequence[frozenset[int]], marked: Sequence[frozenset[int]]
) -> Sizes | None:
    """A signature with symbols for some of its sizes; None if none of them can be open.

    Sizes of 0 and 1 stay as they are, since many ops do something else there. Equal sizes get one
    symbol, except those that were marked by hand.

    Args:
        signature: Of the call.
        dims: For each leaf, the dimensions to leave open.
        marked: Those among them that the user marked.
    """
    environment = SizeEnvironment()
    by_size: dict[int, Any] = {}
    sources: list[tuple[int, int]] = []
    first = {position: earlier for earlier, position in signature.repeats}
    leaves: list[Any] = []
    if any(isinstance(e, TensorSpec) and e.layout is not torch.strided for e in signature.leaves):
        return None
    for index, leaf in enumerate(signature.leaves):
        if index in first:
            leaves.append(leaves[first[index]])
            continue
        if not dims[index] or not isinstance(leaf, TensorSpec):
            leaves.append(leaf)
            continue
        shape: list[Any] = list(leaf.shape)
        for dim in sorted(dims[index]):
            size = leaf.shape[dim]
            if size < 2:
                continue
            symbol = None if dim in marked[index] else by_size.get(size)
            if symbol is None:
                symbol = environment.add_size(size)
                sources.append((index, dim))
                if dim not in marked[index]:
                    by_size[size] = symbol
            shape[dim] = symbol
        stride = symbolic_strides(shape, leaf.shape, leaf.stride)
        leaves.append(dataclasses.replace(leaf, shape=tuple(shape), stride=stride))
    if not sources:
        return None
    general = dataclasses.replace(signature, leaves=tuple(leaves))
    return Sizes(environment, general, tuple(sources))


def symbolic_strides(
    shape: Sequence[Any], sizes: Sequence[int], strides: Sequence[int]
) -> tuple[Any, ...]:
    """Strides as expressions of the sizes, where they are multiples of what lies further in.

    Args:
        shape: Sizes, as expressions.
        sizes: Their values.
        strides: The strides' values.
    """
    found: list[Any] = list(strides)
    known: dict[int, Any] = {}
    for dim in sorted(range(len(sizes)), key=lambda dim: (strides[dim], sizes[dim])):
        if strides[dim] > 1:
            found[dim] = known.get(strides[dim], strides[dim])
        known.setdefault(strides[dim] * sizes[dim], found[dim] * shape[dim])
    return tuple(found)


def concrete(value: Any, sizes: Mapping[Any, int], memory: dict[int, Any] | None = None) -> Any:
    """A value with numbers instead of symbolic ones, in records and containers too.

    An object that occurs twice stays one object.
    """
    memory = {} if memory is None else memory
    if isinstance(value, shapes.SYMBOLIC_NUMBERS):
        found = shapes.expression_of(value)
        return shapes.value_at(found, sizes) if shapes.is_expression(found) else found
    if shapes.is_expression(value):
        return shapes.value_at(value, sizes)
    if isinstance(value, torch.Tensor | type) or id(value) in memory:
        return memory.get(id(value), value)
    memory[id(value)] = value
    if isinstance(value, list | tuple):
        items = [concrete(item, sizes, memory) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        made: Any = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        changed = {name: concrete(part, sizes, memory) for name, part in fields.items()}
        changed = {name: new for name, new in changed.items() if new is not fields[name]}
        made = dataclasses.replace(value, **changed) if changed else value
    else:
        made = value
    memory[id(value)] = made
    return made


def shown_by(nodes: Sequence[fx.Node], environment: SizeEnvironment) -> dict[Any, tuple[int, int]]:
    """Which of some tensors shows each symbol as one of its sizes, and in which dimension."""
    found: dict[Any, tuple[int, int]] = {}
    for index, node in enumerate(nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                found.setdefault(shapes.expression_of(size), (index, dim))
    return {symbol: found[symbol] for symbol in environment.symbols if symbol in found}
