"""What a wrapper consists of: its class, its inner tensors and its metadata.

``graph.tensor_spec`` makes it a part of a tensor's spec, so of each signature and of each key of a
backward. The tape and the graphs take wrappers apart with it, and make them again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.distributed import made_alike
from funcaot._torch.tensors.classes.wrapping import (
    flattened,
    is_wrapper_class,
    names_of_functions,
    unflattened,
)
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.attributes import attributes_of
from funcaot.aot.subclasses.metadata import Outer, frozen, refuse_hidden_sizes, resized
from funcaot.errors import UnsupportedError

__all__ = [
    "Structure",
    "added_attributes",
    "inside",
    "is_wrapper",
    "leaves_of",
    "metadata_of",
    "metadata_without_grad",
    "paths_inside",
    "paths_of",
    "structure_again",
    "structure_of",
]

_OTHERS = (
    torch.Tensor,
    torch.nn.Parameter,
    torch.nn.Buffer,
    tracing.FakeTensor,
    tracing.FunctionalTensor,
)
# What torch itself sets on wrappers that are parameters and buffers.
_MARKS = ("_is_param", "_is_buffer", "persistent")


@dataclass(frozen=True, slots=True)
class Structure:
    """What a wrapper consists of; wrappers with equal ones run the same program.

    Attributes:
        kind: Its class.
        names: Attributes that hold its inner tensors.
        inner: A spec for each of these.
        metadata: What else ``__tensor_flatten__`` gave, objects that aren't tensors among it, to
            compare; the wrapper's own sizes aren't in it.
        marks: What torch sets on parameters and buffers.
        attributes: Names of all its attributes.
        context: The metadata itself; equal metadata make equal wrappers of equal sizes.
    """

    kind: type
    names: tuple[str, ...]
    inner: tuple[Any, ...]
    metadata: Hashable
    marks: tuple[tuple[str, bool], ...]
    attributes: frozenset[str]
    context: _Held

    def parts(self, wrapper: torch.Tensor) -> list[torch.Tensor]:
        """The inner tensors of a wrapper of this structure."""
        return [getattr(wrapper, name) for name in self.names]

    def made_of(
        self,
        parts: Sequence[torch.Tensor],
        shape: Any,
        stride: Any,
        carried: Callable[[Any], Any] | None = None,
    ) -> torch.Tensor:
        """A wrapper around other inner tensors; it doesn't require grad.

        Args:
            parts: One for each name.
            shape: The wrapper's own.
            stride: The wrapper's own.
            carried: Puts objects of a call among the metadata.
        """
        held = self.context
        if held.again is not None and held.again[0] is shape and held.again[1] is stride:
            made = held.again[2](parts)
            if made is not None:
                return made
        kind: Any = self.kind
        pair = held.sized(shape, stride)
        context, others = pair if carried is None else carried(pair)
        named = {**dict(zip(self.names, parts, strict=True)), **others}
        made = unflattened(kind, named, context, torch.Size(shape), tuple(stride))
        if type(made) is not kind:
            raise _of_another_class(kind, type(made))
        with tracing.without_torch_function():
            graded = made.requires_grad
        if graded:
            made = made.requires_grad_(False) if made.is_leaf else made.detach()
        for name, value in self.marks:
            setattr(made, name, value)
        again = None if self.attributes else made_alike.maker_of(made)
        held.again = None if again is None else (shape, stride, again)
        return made

    def refuse_changed(self) -> None:
        """Refuse to go on with objects that were described when they held something else.

        Raises:
            UnsupportedError: If an object among the metadata has been changed since.
        """
        held = self.context
        if frozen(held.pair, self.kind, held.outer) != self.metadata:
            raise UnsupportedError(
                f"An object among the metadata of a {self.kind.__name__} was changed after a "
                "function was captured with it, and before this derivative is asked for the first "
                "time: its class would compute with what the object holds now.",
                remedy="give the tensors of later calls a new object, or ask for the derivative "
                "once before the change.",
            )

    def refuse_hidden_sizes(self, shape: Sequence[int], stride: Sequence[int]) -> None:
        """Refuse metadata that can't be made for other sizes.

        Args:
            shape: The wrapper's sizes in the call that is traced.
            stride: Its strides there.

        Raises:
            SizeError: If there is an open size in them that isn't the wrapper's own.
        """
        refuse_hidden_sizes(self.context.sized(shape, stride), self.kind)

    def traced_of(self, parts: Sequence[torch.Tensor], shape: Any, stride: Any) -> torch.Tensor:
        """The same around tensors of a tape, as if none of them required grad.

        A class may insist that all of them do or none, which is asked when one is made.
        """
        marked = [part for part in parts if part.requires_grad and part.is_leaf]
        for part in marked:
            part.requires_grad_(False)
        try:
            return self.made_of(parts, shape, stride)
        finally:
            for part in marked:
                part.requires_grad_()


class _Held:
    """What a structure holds and doesn't compare: the metadata are there to be compared."""

    __slots__ = ("again", "last", "outer", "pair")

    def __init__(self, value: Any, others: dict[str, Any], outer: Outer) -> None:
        self.pair = value, others
        self.outer = outer
        self.last: tuple[Any, Any, Any] = None, None, None
        # What makes the next wrapper of the sizes that the last one had, by these very tuples.
        self.again: tuple[Any, Any, made_alike.Maker] | None = None

    def sized(self, shape: Sequence[Any], stride: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """The metadata of a wrapper of some sizes."""
        known, steps, pair = self.last
        if known is shape and steps is stride and pair is not None:
            return pair
        if Outer.of(shape, stride) == self.outer:
            self.last = shape, stride, self.pair  # Tuples: a program's own are always the same.
            return self.pair
        return resized(self.pair, self.outer, tuple(shape), tuple(stride))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


def _of_another_class(kind: type, made: type) -> UnsupportedError:
    again = names_of_functions(kind)[1]
    return UnsupportedError(
        f"{again} makes a {made.__name__}, so programs would lose the class.",
        remedy=f"let it make a {kind.__name__}: a class that inherits it defines its own.",
    )


def is_wrapper(value: Any) -> bool:
    """Whether it is a tensor that wraps others and can be taken apart."""
    kind = type(value)
    return kind not in _OTHERS and issubclass(kind, torch.Tensor) and is_wrapper_class(kind)


def structure_of(
    wrapper: Any, spec_of: Callable[[torch.Tensor], Any], outer: Outer | None = None
) -> Structure:
    """Take a wrapper apart.

    Args:
        wrapper: The wrapper.
        spec_of: Describes an inner tensor.
        outer: Its sizes and strides, if they have been read.

    Raises:
        UnsupportedError: If there is a tensor among its metadata.
    """
    named, context = flattened(wrapper)
    kind = type(wrapper)
    outer = Outer.of(wrapper.shape, wrapper.stride()) if outer is None else outer
    values = {name: getattr(wrapper, name) for name in named}
    parts = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    others = {name: value for name, value in values.items() if name not in parts}
    attributes = attributes_of(wrapper)
    marks = tuple((name, attributes[name]) for name in _MARKS if name in attributes)
    return Structure(
        kind,
        tuple(parts),
        tuple(map(spec_of, parts.values())),
        frozen((context, others), kind, outer),
        marks,
        frozenset(attributes),
        _Held(context, others, outer),
    )


def structure_again(
    kind: type,
    parts: dict[str, Any],
    pair: tuple[Any, dict[str, Any]],
    outer: Outer,
    marks: tuple[tuple[str, bool], ...],
    attributes: frozenset[str],
) -> Structure:
    """What a wrapper consisted of that was described in another process.

    Args:
        kind: Its class.
        parts: A spec for each of its inner tensors.
        pair: Its metadata, and what else it names that isn't a tensor.
        outer: Its sizes and strides.
        marks: What torch had set on it.
        attributes: Names of its attributes.
    """
    frozen_pair = frozen(pair, kind, outer)
    held = _Held(*pair, outer)
    names, inner = tuple(parts), tuple(parts.values())
    return Structure(kind, names, inner, frozen_pair, marks, attributes, held)


def metadata_of(wrapper: Any) -> tuple[Any, dict[str, Any]] | None:
    """A wrapper's metadata, and what it names besides tensors; None for another tensor."""
    if not is_wrapper(wrapper):
        return None
    named, context = flattened(wrapper)
    values = {name: getattr(wrapper, name) for name in named}
    others = {k: value for k, value in values.items() if not isinstance(value, torch.Tensor)}
    return context, others


def metadata_without_grad(structure: Structure, wrapper: torch.Tensor) -> Hashable:
    """The metadata that a tape's wrapper would have if it didn't require grad.

    A class may tell that among them.

    Args:
        structure: The metadata.
        wrapper: What the wrapper is made of.
    """
    with tracing.disable_current_modes():
        parts = structure.parts(wrapper)
        again = structure.traced_of(parts, wrapper.shape, wrapper.stride())
    return structure_of(again, lambda part: None).metadata


def added_attributes(wrapper: torch.Tensor) -> list[str]:
    """Attributes of a tape's wrapper that its class itself doesn't give it."""
    structure = structure_of(wrapper, lambda part: None)
    with tracing.disable_current_modes():
        again = structure.traced_of(structure.parts(wrapper), wrapper.shape, wrapper.stride())
    return sorted(attributes_of(wrapper).keys() - attributes_of(again).keys())


def leaves_of(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors inside a wrapper of wrappers; a tensor that is none is its own."""
    for _, leaf in paths_of(value):
        yield leaf


def paths_of(value: Any) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The plain tensors inside a wrapper of wrappers, with the attributes that lead to each."""
    if not is_wrapper(value):
        yield (), value
    else:
        yield from (found for found in paths_inside(value) if not is_wrapper(found[1]))


def paths_inside(wrapper: Any) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The tensors inside a wrapper, wrappers among them, with the attributes that lead to each."""
    for name in flattened(wrapper)[0]:
        part = getattr(wrapper, name)
        if isinstance(part, torch.Tensor):
            yield (name,), part
            if is_wrapper(part):
                yield from (((name, *path), leaf) for path, leaf in paths_inside(part))


def inside(wrapper: torch.Tensor, path: Sequence[str]) -> torch.Tensor:
    """The tensor that some attributes lead to."""
    for name in path:
        wrapper = getattr(wrapper, name)
    return wrapper
