"""Open sizes of a backward: shown by what its forward kept, and by the gradients that arrive."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.sizes.ragged import numbers_of
from funcaot._torch.tensors.sizes.shapes import is_expression, value_at
from funcaot.aot.graph import graphs
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.spec_sizes import Path, specs_in
from funcaot.aot.graph.tensor_spec import TensorSpec, contiguous_stride, spec_of
from funcaot.aot.segment.segment import Form, Segment
from funcaot.aot.signature.sizes import (
    Conditions,
    SizeError,
    concrete,
    shown_by,
    symbolic_strides,
)
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError


class BackwardSizes:
    """What a segment's backwards need to know about its open sizes.

    Attributes:
        environment: Of the sizes.
        sources: For each size the value that the forward kept which shows it, and where.
    """

    def __init__(self, segment: Segment, form: Form) -> None:
        """Find out which residual shows which size.

        Raises:
            SizeError: If none shows one.
        """
        if segment.tape.sizes is None:
            raise RuntimeError("a segment without open sizes")
        self.environment = segment.tape.sizes
        self._nodes = segment.output_nodes
        shown = shown_by([residual.node for residual in form.residuals], self.environment)
        if len(shown) < len(self.environment.symbols):
            raise SizeError(
                f"Nothing that {segment.settings.name} keeps shows one of its sizes.",
                remedy="compile with dynamic=False.",
            )
        self.sources = tuple(shown.values())
        self._residuals = form.residuals
        self._known: Derived[tuple[fx.Node, tuple[int, ...]], _Known] = Derived()

    def read(self, values: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The sizes of a call, from what its forward kept."""
        return tuple([source.read(values) for source in self.sources])

    def conditions(self) -> Conditions:
        """An empty list of what a backward assumes."""
        return Conditions(self.environment)

    def general(
        self, specs: Sequence[TensorSpec | None], sizes: tuple[int, ...]
    ) -> tuple[TensorSpec | None, ...]:
        """Specs of gradients with the sizes and strides left open that follow from open sizes.

        Args:
            specs: As they arrived.
            sizes: The open sizes of the call.
        """
        return tuple(
            None if spec is None else self._general(index, spec, sizes)
            for index, spec in zip(range(len(self.shapes)), specs, strict=True)
        )

    @cached_property
    def shapes(self) -> tuple[tuple[Any, ...], ...]:
        """The shape of each output."""
        return tuple(tuple(numbers_of(graphs.value_of(node).shape)) for node in self._nodes)

    @cached_property
    def kept(self) -> tuple[TensorSpec, ...]:
        """What the forward keeps looks like this."""
        return tuple(spec_of(graphs.value_of(item.node)) for item in self._residuals)

    def _general(self, index: int, spec: TensorSpec, sizes: tuple[int, ...]) -> TensorSpec:
        if spec.structure is not None:
            return self._known_at(self._nodes[index], sizes).opened(spec, ())
        shape = self.shapes[index]
        if spec.layout is not torch.strided or not any(map(is_expression, shape)):
            return spec
        stride = symbolic_strides(shape, spec.shape, spec.stride)
        return dataclasses.replace(spec, shape=shape, stride=stride)

    def _known_at(self, node: fx.Node, sizes: tuple[int, ...]) -> _Known:
        found = self._known.get((node, sizes))
        if found is None:
            symbols = dict(zip(self.environment.symbols, sizes, strict=True))
            found = self._known[node, sizes] = _Known(spec_of(graphs.value_of(node)), symbols)
        return found

    def expected(self, outputs: Sequence[torch.Tensor]) -> tuple[TensorSpec | None, ...]:
        """Specs of gradients as they usually arrive: laid out like the outputs, and all there."""
        found: list[TensorSpec | None] = [None] * len(self._nodes)
        for index, output in enumerate(outputs):
            value: Any = graphs.value_of(self._nodes[index])
            if output.requires_grad and is_wrapper(value):
                found[index] = spec_of(value).without_grad()
            elif output.requires_grad and value.layout is torch.strided:
                spec = spec_of(value).without_grad()
                stride = contiguous_stride(spec.shape) if 0 in spec.stride else spec.stride
                found[index] = dataclasses.replace(spec, stride=stride)
        return tuple(found)

    def stand_ins(
        self, specs: Sequence[TensorSpec | None], sizes: Sequence[int]
    ) -> list[torch.Tensor | None]:
        """Gradients of ones that look like some specs; for what wraps others, its own value.

        Args:
            specs: What they look like, with open sizes.
            sizes: These sizes.
        """
        by_symbol = dict(zip(self.environment.symbols, sizes, strict=True))

        def made(spec: TensorSpec | None, value: Any) -> torch.Tensor | None:
            if spec is None or is_wrapper(value):
                return None if spec is None else value
            return torch.empty_strided(
                concrete(spec.shape, by_symbol),
                concrete(spec.stride, by_symbol),
                dtype=spec.dtype,
                device=spec.device,
            ).fill_(1)

        values = map(graphs.value_of, self._nodes)
        return [made(spec, value) for spec, value in zip(specs, values, strict=True)]


class _Known:
    """The sizes of an output and of what is inside of it, for a call."""

    def __init__(self, spec: TensorSpec, symbols: Mapping[Any, int]) -> None:
        """Evaluate them.

        Args:
            spec: The output's, with expressions.
            symbols: The open sizes.
        """

        def pairs(numbers: Sequence[Any]) -> list[tuple[Any, Any]]:
            return [(n, value_at(n, symbols) if is_expression(n) else n) for n in numbers]

        self._sizes = {path: pairs(each.shape) for path, each in specs_in(spec)}
        self._strides = {path: pairs(each.stride) for path, each in specs_in(spec)}

    def opened(self, spec: TensorSpec, path: Path) -> TensorSpec:
        """A gradient's spec with an expression for each size that is the output's.

        A gradient of another class has the output's sizes, and so have most tensors inside of it.

        Args:
            spec: Of the gradient, or of a tensor inside of it.
            path: The attributes that lead to it.
        """
        shape = self._named(self._sizes.get(path, self._sizes[()]), spec.shape)
        if "ragged" in spec.stride:
            stride = self._named(self._strides.get(path, ()), spec.stride)
        elif spec.layout is torch.strided:
            stride = symbolic_strides(shape, spec.shape, spec.stride)
        else:
            stride = spec.stride
        structure = spec.structure
        if structure is not None:
            named = zip(structure.names, structure.inner, strict=True)
            inner = tuple(self.opened(part, (*path, name)) for name, part in named)
            structure = dataclasses.replace(structure, inner=inner)
        return dataclasses.replace(spec, shape=shape, stride=stride, structure=structure)

    def _named(self, known: Sequence[tuple[Any, Any]], found: Sequence[Any]) -> tuple[Any, ...]:
        if len(known) != len(found):
            return tuple(found)
        pairs = zip(known, found, strict=True)
        return tuple(name if value == number else number for (name, value), number in pairs)


def refuse_opaque(segment: Segment) -> None:
    """Refuse Functions that run on real values: they know the sizes that they were traced with.

    Numbers that are read know none.

    Raises:
        SizeError: If there is one on the segment's tape, and the tape has open sizes.
    """
    if segment.tape.sizes is None:
        return
    for node in segment.tape.graph.nodes:
        if graphs.is_opaque(node) and not graphs.is_premise_of_number(node):
            raise SizeError(
                f"{segment.settings.name} has a backward that runs on real values, and sizes that "
                "are left open.",
                remedy="compile with dynamic=False.",
            )


def refuse_forward_mode(segment: Segment) -> None:
    """Refuse forward mode of a program with open sizes: its tangents would fix them.

    Calls inside forward mode have programs of their own; only a backward gets here, of a call that
    was made before.

    Raises:
        UnsupportedError: If the segment has open sizes.
    """
    if segment.tape.sizes is not None:
        raise UnsupportedError(
            f"Forward mode through a backward of {segment.settings.name}, which was called outside "
            "of it and has a program with open sizes.",
            remedy="compile with dynamic=False, or call the function inside forward mode.",
        )
