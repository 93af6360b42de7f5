"""Open sizes of a backward: shown by what its forward kept, and by the gradients that arrive."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.shapes import expression_of, is_expression
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import TensorSpec, contiguous_stride, spec_of
from funcaot.aot.segment.segment import Form, Segment
from funcaot.aot.signature.sizes import (
    Conditions,
    SizeError,
    concrete,
    shown_by,
    symbolic_strides,
)
from funcaot.errors import UnsupportedError


class BackwardSizes:
    """What a segment's backwards need to know about its open sizes."""

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
        self._sources = tuple(shown.values())

    def read(self, values: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The sizes of a call, from what its forward kept."""
        return tuple(values[index].shape[dim] for index, dim in self._sources)

    def conditions(self) -> Conditions:
        """An empty list of what a backward assumes."""
        return Conditions(self.environment)

    def general(self, specs: Sequence[TensorSpec | None]) -> tuple[TensorSpec | None, ...]:
        """Specs of gradients with the sizes and strides left open that follow from open sizes."""
        return tuple(
            None if spec is None else self._general(node, spec)
            for node, spec in zip(self._nodes, specs, strict=True)
        )

    def _general(self, node: fx.Node, spec: TensorSpec) -> TensorSpec:
        shape = tuple(map(expression_of, graphs.value_of(node).shape))
        if spec.layout is not torch.strided or not any(map(is_expression, shape)):
            return spec
        stride = symbolic_strides(shape, spec.shape, spec.stride)
        return dataclasses.replace(spec, shape=shape, stride=stride)

    def expected(self, outputs: Sequence[torch.Tensor]) -> tuple[TensorSpec | None, ...]:
        """Specs of gradients as they usually arrive: laid out like the outputs, and all there."""
        found: list[TensorSpec | None] = [None] * len(self._nodes)
        for index, output in enumerate(outputs):
            value: Any = graphs.value_of(self._nodes[index])
            if output.requires_grad and value.layout is torch.strided:
                spec = spec_of(value).without_grad()
                stride = contiguous_stride(spec.shape) if 0 in spec.stride else spec.stride
                found[index] = dataclasses.replace(spec, stride=stride)
        return tuple(found)

    def stand_ins(
        self, specs: Sequence[TensorSpec | None], sizes: Sequence[int]
    ) -> list[torch.Tensor | None]:
        """Gradients of ones that look like some specs.

        Args:
            specs: What they look like, with open sizes.
            sizes: These sizes.
        """
        by_symbol = dict(zip(self.environment.symbols, sizes, strict=True))
        return [
            None
            if spec is None
            else torch.empty_strided(
                concrete(spec.shape, by_symbol),
                concrete(spec.stride, by_symbol),
                dtype=spec.dtype,
                device=spec.device,
            ).fill_(1)
            for spec in specs
        ]


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
