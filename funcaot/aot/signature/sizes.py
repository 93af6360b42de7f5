"""Sizes that a program leaves open: symbols for them, where a call shows them, what must hold."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot.aot.graph.spec_sizes import Shown, is_like, numbers_in, sizes_shown
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.signature import Signature

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

__all__ = ["Conditions", "SizeError", "Sizes", "concrete", "generalized"]


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
        sources: For each symbol the leaf that shows it, and where.
        conditions: What else must be true of the sizes.
    """

    environment: SizeEnvironment
    signature: Signature
    sources: tuple[Shown, ...]
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
        return tuple([source.read(leaves) for source in self.sources])

    def are_large_enough(self, sizes: Sequence[int]) -> bool:
        """Whether symbols may stand for these sizes: 0 and 1 have programs of their own."""
        least = self.environment.least
        pairs = zip(self.environment.symbols, sizes, strict=True)
        return all(size >= least.get(symbol, 2) for symbol, size in pairs)

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
        if not self.are_large_enough(sizes):
            return False
        by_symbol = dict(zip(self.environment.symbols, sizes, strict=True))
        return all(
            _matches(numbers_in(given), numbers_in(leaf), by_symbol)
            for given, leaf in zip(signature.leaves, known.leaves, strict=True)
            if isinstance(leaf, TensorSpec) and isinstance(given, TensorSpec)
        ) and self.conditions.hold(sizes)


def _is_like(given: Any, known: Any) -> bool:
    """Whether two leaves are equal but for sizes and strides."""
    if not isinstance(given, TensorSpec) or not isinstance(known, TensorSpec):
        return given == known
    return is_like(given, known)


def _matches(given: Sequence[int], known: Sequence[Any], sizes: Mapping[Any, int]) -> bool:
    for number, wanted in zip(given, known, strict=True):
        if isinstance(wanted, int | str):
            if number != wanted:
                return False
        elif number != (sizes[wanted] if wanted in sizes else shapes.value_at(wanted, sizes)):
            return False
    return True


class Symbols:
    """Gives symbols to the sizes of a signature that are left open; equal ones get one.

    Attributes:
        environment: Has the symbols.
        sources: Where each is shown.
        inside: The specs of tensors inside of wrappers, by ``id``: wrappers may share some.
    """

    def __init__(self, alike: Sequence[Sequence[int]], *, bounded: bool) -> None:
        """There is none yet.

        Args:
            alike: For each leaf and place a number; only sizes of one number get one symbol.
            bounded: Whether symbols have bounds: for a call with wrappers.
        """
        from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

        self.environment = SizeEnvironment()
        self.sources: list[Shown] = []
        self.inside: dict[int, TensorSpec] = {}
        self._alike, self._bounded = alike, bounded
        self._known: dict[Any, Any] = {}

    def tied(self, leaf: int, place: int, size: int) -> Any:
        """The symbol that a size has already; None if there is none."""
        return self._known.get(self._key(leaf, place, size))

    def of(
        self, shown: Shown, place: int, size: int, *, marked: bool = False, least: int = 2
    ) -> Any:
        """The symbol of a size.

        Args:
            shown: Where a call shows it.
            place: Which of the leaf's sizes it is.
            size: The size now.
            marked: Whether it gets a symbol of its own.
            least: What it is at least.
        """
        symbol = None if marked else self.tied(shown.index, place, size)
        if symbol is None:
            bounds = None
            if self._bounded:
                # Then ``x[:]`` is x for an open size, too, and not an op that a class is given.
                bounds = least, sys.maxsize - 1
            symbol = self.environment.add_size(size, bounds)
            self.sources.append(shown)
            if not marked:
                self._known[self._key(shown.index, place, size)] = symbol
        return symbol

    def _key(self, leaf: int, place: int, size: int) -> Any:
        return size, self._alike[leaf][place]


def generalized(
    signature: Signature,
    dims: Sequence[frozenset[int]],
    marked: Sequence[frozenset[int]],
    alike: Sequence[Sequence[int]],
    wrapper: Callable[[Symbols, int, TensorSpec, frozenset[int]], TensorSpec] | None = None,
) -> Sizes | None:
    """A signature with symbols for some of its sizes; None if none of them can be open.

    Sizes of 0 and 1 stay as they are, since many ops do something else there. Sizes that are equal,
    and have always been, get one symbol, except those that were marked by hand.

    Args:
        signature: Of the call.
        dims: For each leaf, the dimensions to leave open; of a wrapper, the places.
        marked: Those among them that the user marked.
        alike: What tells equal sizes apart, see `Symbols`.
        wrapper: Opens the spec of a tensor that wraps others.
    """
    symbols = Symbols(alike, bounded=wrapper is not None)
    first = {position: earlier for earlier, position in signature.repeats}
    leaves: list[Any] = []
    if not all(map(_can_be_open, signature.leaves)):
        return None
    for index, leaf in enumerate(signature.leaves):
        if index in first:
            leaves.append(leaves[first[index]])
            continue
        if not dims[index] or not isinstance(leaf, TensorSpec):
            leaves.append(leaf)
            continue
        if leaf.structure is not None and wrapper is not None:
            leaves.append(wrapper(symbols, index, leaf, dims[index]))
            continue
        shape: list[Any] = list(leaf.shape)
        for dim in sorted(dims[index]):
            size = leaf.shape[dim]
            if size >= 2:
                own = dim in marked[index]
                shape[dim] = symbols.of(Shown(index, dim), dim, size, marked=own)
        stride = symbolic_strides(shape, leaf.shape, leaf.stride)
        leaves.append(dataclasses.replace(leaf, shape=tuple(shape), stride=stride))
    if not symbols.sources:
        return None
    general = dataclasses.replace(signature, leaves=tuple(leaves))
    return Sizes(symbols.environment, general, tuple(symbols.sources))


def _can_be_open(leaf: Any) -> bool:
    strided = not isinstance(leaf, TensorSpec) or leaf.layout is torch.strided
    return strided or leaf.structure is not None


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
        number = shapes.value_at(found, sizes) if shapes.is_expression(found) else found
        # SymPy's zero is an integer, whatever it is zero times.
        return float(number) if isinstance(value, torch.SymFloat) else number
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
    elif hasattr(value, "at_sizes"):
        made = value.at_sizes(sizes)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        changed = {name: concrete(part, sizes, memory) for name, part in fields.items()}
        changed = {name: new for name, new in changed.items() if new is not fields[name]}
        made = dataclasses.replace(value, **changed) if changed else value
    else:
        made = value
    memory[id(value)] = made
    return made


def shown_by(nodes: Sequence[fx.Node], environment: SizeEnvironment) -> dict[Any, Shown]:
    """Which of some tensors shows each symbol as one of its sizes, and where."""
    found: dict[Any, Shown] = {}
    for index, node in enumerate(nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for path, dim, size in sizes_shown(value):
                found.setdefault(size, Shown(index, dim, path))
    return {symbol: found[symbol] for symbol in environment.symbols if symbol in found}
