"""Generated checks of tensors whose sizes a program leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from funcaot._torch.tensors import guards
from funcaot._torch.tensors.sizes import shapes
from funcaot.aot.graph.source import Source
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.sizes import Conditions

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

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
        functions: That the conditions call.
    """

    names: tuple[tuple[str, str], ...]
    conditions: tuple[str, ...]
    functions: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        environment: SizeEnvironment | None,
        tensors: Sequence[Named],
        assumed: Iterable[Conditions | None],
        numbers: Sequence[tuple[str, Any]] = (),
    ) -> OpenChecks:
        """Find where tensors show the symbols, and what else they must satisfy.

        Args:
            environment: Of the symbols, if there are any.
            tensors: Variables of tensors, with their specs.
            assumed: What must be true of the symbols besides.
            numbers: Variables of numbers, with what they are.
        """
        shown = [(name, dim, size) for name, spec in tensors for dim, size in enumerate(spec.shape)]
        pairs = [(f"{name}.shape[{dim}]", size) for name, dim, size in shown] + [*numbers]
        symbols = () if environment is None else environment.symbols
        least = {} if environment is None else environment.least
        read: dict[Any, str] = {}
        for where, size in pairs:
            if shapes.is_expression(size) and size in symbols:
                read.setdefault(size, where)
        conditions = [f"{symbol} > {least.get(symbol, 2) - 1}" for symbol in read]
        steps = [(name, dim, s) for name, spec in tensors for dim, s in enumerate(spec.stride)]
        pairs += [(f"{name}.stride({dim})", step) for name, dim, step in steps]
        conditions += [
            f"{where} == {shapes.python_source(number)}"
            for where, number in pairs
            if shapes.is_expression(number) and read.get(number) != where
        ]
        functions: dict[str, Any] = {}
        for each in assumed:
            if each is not None:
                expressions = each.expressions()
                conditions += [shapes.python_source(item) for item in expressions]
                functions |= shapes.functions_in(expressions)
        names = tuple((str(symbol), where) for symbol, where in read.items())
        return OpenChecks(names, tuple(dict.fromkeys(conditions)), functions)

    def write(self, source: Source, indent: int = 1) -> None:
        """Write the lines that give the symbols their values."""
        source.namespace.update(shapes.NAMESPACE | self.functions)
        for name, where in self.names:
            source.line(f"{name} = {where}", indent)

    def __str__(self) -> str:
        """One condition."""
        return " and ".join(f"({condition})" for condition in self.conditions) or "True"
