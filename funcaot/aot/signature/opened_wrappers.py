"""Open sizes of tensors that wrap others: which symbols a wrapper and what is inside of it show.

``dynamic`` asks, for a signature with symbols. The tensors inside get symbols first. What the
wrapper's own sizes follow from is then asked of its class, which makes one of such tensors: those
of a jagged tensor are the sizes of its offsets and values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.tensors.sizes.ragged import is_ragged, numbers_of
from funcaot._torch.tensors.sizes.shapes import is_expression
from funcaot._torch.tracing import tracing
from funcaot.aot.graph.spec_sizes import Path, Shown, places_of, specs_in
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.sizes import SizeError, Symbols, symbolic_strides
from funcaot.aot.subclasses.structure import inside

__all__ = ["Opener", "with_batches"]


def with_batches(
    leaves: Sequence[Any], dims: Sequence[frozenset[int]], alike: Sequence[Sequence[int]]
) -> list[frozenset[int]]:
    """Open sizes, and with one of a jagged batch all that vary from batch to batch.

    Args:
        leaves: Those of a signature.
        dims: For each the sizes that are open.
        alike: For each size a number, equal for sizes that have always been equal.
    """
    found: list[frozenset[int]] = []
    batches: set[int] = set()
    for leaf, opened, numbers in zip(leaves, dims, alike, strict=True):
        jagged = opened and isinstance(leaf, TensorSpec) and _ragged(leaf) is not None
        # Torch's ragged strides are products with numbers, so other sizes stay as they are.
        found.append(_of_batch(leaf) if jagged else opened)
        batches |= {numbers[0]} if jagged else set()
    for at, (leaf, numbers) in enumerate(zip(leaves, alike, strict=True)):
        if getattr(leaf, "structure", None) is None:
            equal = (place for place, number in enumerate(numbers) if number in batches)
            found[at] |= frozenset(equal)
    return found


def _ragged(spec: TensorSpec) -> int | None:
    """A jagged tensor's ragged dimension."""
    return spec.shape.index("ragged") if "ragged" in spec.shape else None  # type: ignore[arg-type]


def _of_batch(spec: TensorSpec) -> frozenset[int]:
    """The sizes of a jagged tensor that are a batch's: its number of rows, their lengths."""
    ragged = _ragged(spec)
    if ragged is None:
        return frozenset()
    found = [0]
    for place, (path, dim) in enumerate(places_of(spec)):
        if len(path) == 1 and spec.structure is not None:
            shape = spec.structure.inner[spec.structure.names.index(path[0])].shape
            number = dim == 0 and (len(shape) == 1 or shape[1:] == (0,))
            if number or (len(shape) == len(spec.shape) - 1 and dim == ragged - 1):
                found.append(place)
    return frozenset(found)


class Opener:
    """Opens the sizes of a call's wrappers."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        """Of a call.

        Args:
            leaves: Its leaves.
        """
        self._leaves = leaves

    def __call__(
        self, symbols: Symbols, index: int, spec: TensorSpec, places: frozenset[int]
    ) -> TensorSpec:
        """The spec of a wrapper with symbols for some sizes.

        Args:
            symbols: Gives them.
            index: Which leaf it is.
            spec: Its spec.
            places: Which of its sizes are open (see ``spec_sizes.places_of``).
        """
        first: dict[Path, int] = {}
        count = 0
        for path, each in specs_in(spec):
            first[path] = count
            if each.layout is torch.strided or each.structure is not None:
                count += len(each.shape)
        return _Opening(symbols, index, self._leaves[index], places, first).opened(spec, ())


@dataclasses.dataclass(frozen=True)
class _Opening:
    symbols: Symbols
    index: int
    leaf: torch.Tensor
    places: frozenset[int]
    first: dict[Path, int]

    def opened(self, spec: TensorSpec, path: Path) -> TensorSpec:
        if spec.structure is None:
            part = id(inside(self.leaf, path))
            known = self.symbols.inside.get(part)
            if known is None:
                known = self.symbols.inside[part] = self._plain(spec, path)
            return known
        names, inner = spec.structure.names, spec.structure.inner
        parts = tuple(
            self.opened(part, (*path, name)) for name, part in zip(names, inner, strict=True)
        )
        if parts == inner and not any(self._is_open(spec, path, d) for d in range(len(spec.shape))):
            return spec
        structure = dataclasses.replace(spec.structure, inner=parts)
        shape, stride = self._asked(dataclasses.replace(spec, structure=structure), path)
        for dim, size in enumerate(spec.shape):
            if not is_expression(shape[dim]) and self._is_open(spec, path, dim):
                place = self.first[path] + dim
                shape[dim] = self.symbols.of(Shown(self.index, dim, path), place, size)
        if spec.layout is torch.strided:
            stride = symbolic_strides(shape, spec.shape, spec.stride)
        return dataclasses.replace(
            spec, shape=tuple(shape), stride=tuple(stride), structure=structure
        )

    def _plain(self, spec: TensorSpec, path: Path) -> TensorSpec:
        if spec.layout is not torch.strided:
            return spec
        shape: list[Any] = list(spec.shape)
        for dim, size in enumerate(spec.shape):
            # Of a tensor without elements it is a number that is kept as a size: any number.
            least = 0 if dim == 0 and spec.shape[1:] == (0,) else 2
            if self._is_open(spec, path, dim, least=least):
                place = self.first[path] + dim
                shown = Shown(self.index, dim, path)
                shape[dim] = self.symbols.of(shown, place, size, least=least)
        stride = symbolic_strides(shape, spec.shape, spec.stride)
        return dataclasses.replace(spec, shape=tuple(shape), stride=stride)

    def _is_open(self, spec: TensorSpec, path: Path, dim: int, *, least: int = 2) -> bool:
        size = spec.shape[dim]
        return self.first[path] + dim in self.places and isinstance(size, int) and size >= least

    def _asked(self, spec: TensorSpec, path: Path) -> tuple[list[Any], tuple[Any, ...]]:
        """A wrapper's sizes and strides, where they follow from those of the tensors inside."""
        environment, real = self.symbols.environment, inside(self.leaf, path)
        with tracing.disable_current_modes(), environment.answering({}, {}):
            made = _made(spec, real, tracing.fake_mode(environment), environment.number)
        shape, stride = numbers_of(made.shape), numbers_of(made.stride())
        now = [environment.at_present(size) if is_expression(size) else size for size in shape]
        if tuple(now) != spec.shape:
            raise SizeError(
                f"A {type(real).__name__} of sizes {list(spec.shape)} is one of {now} when made "
                "again.",
                remedy="compile with dynamic=False.",
            )
        return list(shape), stride


def _made(spec: TensorSpec, real: Any, mode: Any, number: Any) -> torch.Tensor:
    """A tensor without data of a spec, around others if it wraps some."""
    if spec.structure is None:
        shape, stride = tuple(map(number, spec.shape)), tuple(map(number, spec.stride))
        with mode:
            return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
    parts = [
        _made(inner, part, mode, number)
        for inner, part in zip(spec.structure.inner, spec.structure.parts(real), strict=True)
    ]
    shape = [
        own if is_ragged(own) else number(size)
        for own, size in zip(real.shape, spec.shape, strict=True)
    ]
    stride = [
        own if is_ragged(own) else number(size)
        for own, size in zip(real.stride(), spec.stride, strict=True)
    ]
    return spec.structure.made_of(parts, shape, stride)
