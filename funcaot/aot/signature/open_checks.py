"""Generated checks of tensors whose sizes a program leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tensors import guards, shapes
from funcaot.aot.graph.source import Source
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.sizes import Conditions

Named = tuple[str, TensorSpec]


def tensor_check(
    tensors: Sequence[torch.Tensor], specs: Sequence[TensorSpec]
) -> Callable[..., bool]:
    """The C++ check of tensors like these, without the sizes and strides that are open."""
    return guards.tensor_check(
        tensors,
        sizes=[_numbers(spec.shape) for spec in specs],
        strides=[_numbers(spec.stride) for spec in specs],
    )


def _numbers(values: Iterable[Any]) -> list[int | None]:
    return [value if isinstance(value, int) else None for value in values]


@dataclass(frozen=True)
class OpenChecks:
    """What generated code has to compare about open sizes, besides the C++ check.

    Attributes:
        names: For each symbol its name in the code and where to read it.
        conditions: Source of what must be true then.
    """

    names: tuple[tuple[str, str], ...]
    conditions: tuple[str, ...]

    @staticmethod
    def of(
        symbols: Sequence[Any], tensors: Sequence[Named], assumed: Iterable[Conditions | None]
    ) -> OpenChecks:
        """Find where tensors show the symbols, and what else they must satisfy."""
        read: dict[Any, tuple[str, int]] = {}
        for name, spec in tensors:
            for dim, size in enumerate(spec.shape):
                if shapes.is_expression(size) and size in symbols:
                    read.setdefault(size, (name, dim))
        conditions = [f"{symbol} > 1" for symbol in read]
        conditions += _layouts(tensors, read)
        for each in assumed:
            if each is not None:
                conditions += [shapes.python_source(item) for item in each.expressions()]
        names = tuple((str(symbol), f"{name}.shape[{dim}]") for symbol, (name, dim) in read.items())
        return OpenChecks(names, tuple(dict.fromkeys(conditions)))

    def write(self, source: Source, indent: int = 1) -> None:
        """Write the lines that give the symbols their values."""
        source.namespace.update(shapes.NAMESPACE)
        for name, where in self.names:
            source.line(f"{name} = {where}", indent)

    def __str__(self) -> str:
        """One condition."""
        return " and ".join(f"({condition})" for condition in self.conditions) or "True"


def _layouts(tensors: Sequence[Named], read: dict[Any, tuple[str, int]]) -> Iterator[str]:
    for name, spec in tensors:
        for dim, size in enumerate(spec.shape):
            if shapes.is_expression(size) and read.get(size) != (name, dim):
                yield f"{name}.shape[{dim}] == {shapes.python_source(size)}"
        for dim, step in enumerate(spec.stride):
            if shapes.is_expression(step):
                yield f"{name}.stride({dim}) == {shapes.python_source(step)}"
