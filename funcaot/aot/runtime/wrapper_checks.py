"""Checks that generated calls make on wrappers, in a hurry: what a spec says, without making one.

The plain tensors inside go to torch's C++ guards, with all others of the call. These also say that
no two are one object, which is why an entry whose wrappers share a tensor has no generated call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.attributes import attributes_of
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.subclasses.metadata import frozen
from funcaot.aot.subclasses.structure import is_wrapper, leaves_of

__all__ = ["WrapperCheck", "can_be_checked"]


def can_be_checked(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these checks and the C++ guards know all about some tensors, wrappers among them."""
    leaves = [leaf for tensor in tensors for leaf in leaves_of(tensor)]
    kinds = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return len(set(map(id, leaves))) == len(leaves) and all(
        type(leaf) in kinds and leaf.layout is torch.strided for leaf in leaves
    )


class WrapperCheck:
    """Whether a tensor is a wrapper like the one that a program was made for."""

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
        self._named = list(example.__tensor_flatten__()[0])
        self._names = set(structure.names)
        self._metadata, self._marks = structure.metadata, structure.marks
        self._attributes = structure.attributes
        self._inner = [
            (inner, WrapperCheck(part, inner) if is_wrapper(part) else None)
            for part, inner in zip(structure.parts(example), structure.inner, strict=True)
        ]

    def __call__(self, wrapper: Any, parts: list[torch.Tensor]) -> bool:
        """Compare all but the plain tensors inside, and add these to a list."""
        if type(wrapper) is not self._kind:
            return False
        with tracing.without_torch_function():  # of the class, which each attribute goes through
            return self._looks_alike(wrapper) and self._holds_alike(wrapper, parts)

    def _holds_alike(self, wrapper: Any, parts: list[torch.Tensor]) -> bool:
        named, context = wrapper.__tensor_flatten__()
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
                if not check(part, parts):
                    return False
                continue
            if part.requires_grad is not spec.requires_grad or part.is_leaf is not spec.is_leaf:
                return False
            parts.append(part)
        return frozen((context, others), self._kind) == self._metadata

    def _looks_alike(self, wrapper: Any) -> bool:
        spec, attributes = self._spec, attributes_of(wrapper)
        return (
            (wrapper.requires_grad, wrapper.is_leaf) == self._grad
            and wrapper.dtype is spec.dtype
            and wrapper.layout is spec.layout
            and _numbers(wrapper.shape) == spec.shape
            and _numbers(wrapper.stride()) == spec.stride
            and wrapper.device == spec.device
            and attributes.keys() == self._attributes
            and all(attributes[name] == value for name, value in self._marks)
        )


def _numbers(sizes: Any) -> tuple[Any, ...]:
    return tuple([size if isinstance(size, int) else "ragged" for size in sizes])
