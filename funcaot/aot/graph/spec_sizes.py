"""The sizes in a tensor's spec, and in those of the tensors that it wraps, each with its place.

Signatures, graphs and backwards use it to read sizes that a program leaves open, and to compare
what a call is given with specs that have expressions for them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch

from funcaot._torch.tensors.classes.wrapping import flattened
from funcaot._torch.tensors.sizes.ragged import number_of
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.subclasses.structure import inside, is_wrapper

__all__ = [
    "Path",
    "Shown",
    "is_like",
    "is_open",
    "numbers_in",
    "opened_like",
    "places_of",
    "sizes_of",
    "sizes_shown",
    "skeleton",
    "specs_in",
    "tensors_in",
]

Path: TypeAlias = tuple[str, ...]


class Shown(NamedTuple):
    """Where some tensors show a size.

    Attributes:
        index: Which tensor.
        dim: Which of its dimensions, or of those of the tensor inside of it.
        path: Attributes that lead to the tensor inside.
    """

    index: int
    dim: int
    path: Path = ()

    def read(self, tensors: Any) -> Any:
        """The size, of tensors or of their specs."""
        value = tensors[self.index]
        if not self.path:
            return value.shape[self.dim]
        if isinstance(value, TensorSpec):
            for name in self.path:
                structure: Any = value.structure
                value = structure.inner[structure.names.index(name)]
            return value.shape[self.dim]
        return inside(value, self.path).shape[self.dim]

    def source(self, name: str) -> str:
        """The code that reads it off the tensor in a variable."""
        return f"{'.'.join((name, *self.path))}.shape[{self.dim}]"


def specs_in(spec: TensorSpec, path: Path = ()) -> Iterator[tuple[Path, TensorSpec]]:
    """A spec and those of the tensors inside, at every depth, with the attributes on the way."""
    yield path, spec
    if spec.structure is not None:
        for name, inner in zip(spec.structure.names, spec.structure.inner, strict=True):
            yield from specs_in(inner, (*path, name))


def tensors_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """A tensor and those inside, likewise."""
    yield path, value
    if is_wrapper(value):
        for name in flattened(value)[0]:
            part = getattr(value, name)
            if isinstance(part, torch.Tensor):
                yield from tensors_in(part, (*path, name))


def sizes_shown(value: Any) -> Iterator[tuple[Path, int, Any]]:
    """The sizes of a tensor and of those inside: the attributes, the dimension, the size."""
    for path, tensor in tensors_in(value):
        for dim, size in enumerate(tensor.shape):
            yield path, dim, number_of(size)


def places_of(spec: TensorSpec) -> tuple[tuple[Path, int], ...]:
    """Where a spec has sizes: the attributes and the dimension."""
    return tuple(
        (path, dim)
        for path, each in specs_in(spec)
        if _has_sizes(each)
        for dim in range(len(each.shape))
    )


def _has_sizes(spec: TensorSpec) -> bool:
    return spec.layout is torch.strided or spec.structure is not None


def sizes_of(spec: TensorSpec) -> tuple[Any, ...]:
    """The sizes at these places."""
    return tuple(size for _, each in specs_in(spec) if _has_sizes(each) for size in each.shape)


def numbers_in(spec: TensorSpec) -> tuple[Any, ...]:
    """All sizes and strides of a spec and of those inside."""
    return tuple(number for _, each in specs_in(spec) for number in (*each.shape, *each.stride))


def skeleton(spec: TensorSpec) -> Hashable:
    """A spec without its sizes and strides."""
    structure = spec.structure
    if structure is None and spec.layout is not torch.strided:
        return spec
    looks = (spec.dtype, spec.device, spec.layout, len(spec.shape), spec.requires_grad)
    looks = (*looks, spec.is_leaf, spec.flags)
    if structure is None:
        return looks
    inner = tuple(map(skeleton, structure.inner))
    held = (structure.kind, structure.names, structure.metadata, structure.marks)
    return looks, held, structure.attributes, inner


def is_like(given: TensorSpec, known: TensorSpec) -> bool:
    """Whether two specs are equal but for sizes and strides."""
    if given.structure is None and known.structure is None:
        return (
            len(given.shape) == len(known.shape)
            and given.dtype is known.dtype
            and given.requires_grad == known.requires_grad
            and given.is_leaf == known.is_leaf
            and given.device == known.device
            and given.layout is known.layout
            and given.flags == known.flags
        )
    return skeleton(given) == skeleton(known)


def is_open(spec: TensorSpec) -> bool:
    """Whether a program leaves some of the sizes open."""
    return not all(isinstance(number, int) for number in sizes_of(spec))


def opened_like(spec: TensorSpec, opened: TensorSpec, closed: TensorSpec) -> TensorSpec:
    """A spec with the open sizes of another tensor's, which has the same sizes and strides now.

    Args:
        spec: With numbers.
        opened: The other's, with expressions.
        closed: The other's, with numbers.

    Returns:
        The spec as it is if the tensors lie in memory in other ways, or wrap something.
    """
    wraps = spec.structure is not None or opened.structure is not None
    if wraps or (spec.shape, spec.stride) != (closed.shape, closed.stride):
        return spec
    return replace(spec, shape=opened.shape, stride=opened.stride)
