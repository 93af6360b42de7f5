"""Checks that generated calls make on wrappers, in a hurry: what a spec says, without making one.

The plain tensors inside go to torch's C++ guards, with all others of the call. These also say that
no two are one object, which is why an entry whose wrappers share a tensor has no generated call.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.tensors.classes.wrapping import flattened
from funcaot._torch.tensors.sizes.shapes import is_expression
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.attributes import attributes_of
from funcaot.aot.graph.spec_sizes import specs_in
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.subclasses.alike import never_changes
from funcaot.aot.subclasses.metadata import Outer, frozen
from funcaot.aot.subclasses.structure import is_wrapper, leaves_of

__all__ = ["WrapperCheck", "can_be_checked", "open_numbers", "plain_specs"]


def can_be_checked(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these checks and the C++ guards know all about some tensors, wrappers among them."""
    leaves = [leaf for tensor in tensors for leaf in leaves_of(tensor)]
    kinds = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return len(set(map(id, leaves))) == len(leaves) and all(
        type(leaf) in kinds and leaf.layout is torch.strided for leaf in leaves
    )


def plain_specs(spec: TensorSpec) -> list[TensorSpec]:
    """The specs of the plain tensors inside of a wrapper, as a check finds these."""
    return [each for _, each in specs_in(spec) if each.structure is None]


def open_numbers(spec: TensorSpec) -> list[Any]:
    """The open sizes and strides of a wrapper and of those inside, as a check finds these."""
    if spec.structure is None:
        return []
    own = [number for number in (*spec.shape, *spec.stride) if is_expression(number)]
    return own + [number for part in spec.structure.inner for number in open_numbers(part)]


class WrapperCheck:
    """Whether a tensor is a wrapper like the one that a program was made for.

    Open sizes are left to whom it tells them.
    """

    def __init__(self, example: Any, spec: TensorSpec) -> None:
        """Read what is compared.

        Args:
            example: A wrapper of that spec.
            spec: Its spec.
        """
        structure = spec.structure
        if structure is None:
            raise RuntimeError("a tensor that wraps nothing")
        self._spec, self._kind = spec, structure.kind
        self._grad = spec.requires_grad, spec.is_leaf
        self._named = list(flattened(example)[0])
        self._names = set(structure.names)
        self._metadata, self._marks = structure.metadata, structure.marks
        self._attributes = structure.attributes
        self._accepted: tuple[list[Any], Outer | None] = [], None
        wanted = (*spec.shape, *spec.stride)
        self._open = [place for place, number in enumerate(wanted) if is_expression(number)]
        self._closed = [pair for pair in enumerate(wanted) if not is_expression(pair[1])]
        # Sizes that are numbers are compared as they come, and needn't be described.
        self._outer = None
        if all(type(number) is int for number in wanted):
            self._outer = Outer(tuple(spec.shape), tuple(spec.stride))
        self._inner = [
            (inner, WrapperCheck(part, inner) if is_wrapper(part) else None)
            for part, inner in zip(structure.parts(example), structure.inner, strict=True)
        ]

    def __call__(self, wrapper: Any, parts: list[torch.Tensor], numbers: list[Any]) -> bool:
        """Compare all but the plain tensors inside and open sizes, and add these to lists."""
        if type(wrapper) is not self._kind:
            return False
        with tracing.without_torch_function():  # of the class, which each attribute goes through
            outer = self._outer
            if outer is None:
                outer = Outer.of(wrapper.shape, wrapper.stride())
                if not self._has_sizes(outer, numbers):
                    return False
            elif wrapper.shape != outer.shape or wrapper.stride() != outer.stride:
                return False
            return self._looks_alike(wrapper) and self._holds_alike(wrapper, outer, parts, numbers)

    def _holds_alike(
        self, wrapper: Any, outer: Outer, parts: list[torch.Tensor], numbers: list[Any]
    ) -> bool:
        named, context = flattened(wrapper)
        if list(named) != self._named:
            return False
        inner = iter(self._inner)
        others: dict[str, Any] = {}
        for name in named:
            part = getattr(wrapper, name)
            if isinstance(part, torch.Tensor) is not (name in self._names):
                return False
            if name not in self._names:
                others[name] = part
                continue
            spec, check = next(inner)
            if check is not None:
                if not check(part, parts, numbers):
                    return False
                continue
            if part.requires_grad is not spec.requires_grad or part.is_leaf is not spec.is_leaf:
                return False
            parts.append(part)
        return self._has_metadata(context, others, outer)

    def _has_metadata(self, context: Any, others: dict[str, Any], outer: Outer) -> bool:
        """Compare metadata; the very objects that were accepted last aren't looked at again."""
        held = [*_objects(context), *others.values()]
        known, sizes = self._accepted
        if len(held) == len(known) and all(map(operator.is_, held, known)) and sizes == outer:
            return True
        if frozen((context, others), self._kind, outer) != self._metadata:
            return False
        if all(map(never_changes, held)):
            self._accepted = held, outer
        return True

    def _has_sizes(self, outer: Outer, numbers: list[Any]) -> bool:
        spec, found = self._spec, (*outer.shape, *outer.stride)
        if len(outer.shape) != len(spec.shape) or len(outer.stride) != len(spec.stride):
            return False
        numbers += [found[place] for place in self._open]
        return all(found[place] == number for place, number in self._closed)

    def _looks_alike(self, wrapper: Any) -> bool:
        spec = self._spec
        return (
            (wrapper.requires_grad, wrapper.is_leaf) == self._grad
            and wrapper.dtype is spec.dtype
            and wrapper.layout is spec.layout
            and wrapper.device == spec.device
            and self._has_attributes(wrapper)
        )

    def _has_attributes(self, wrapper: Any) -> bool:
        if not self._attributes and not getattr(wrapper, "__dict__", None):
            return True
        attributes = attributes_of(wrapper)
        return attributes.keys() == self._attributes and all(
            attributes[name] == value for name, value in self._marks
        )


def _objects(context: Any) -> list[Any]:
    """What metadata consist of: what is in the outermost container, and its kind."""
    if type(context) is tuple:
        return [tuple, *context]
    return [dict, *context, *context.values()] if type(context) is dict else [context]
