"""Effects: what a captured function does besides computing fresh tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot._torch import tracing
from funcaot.aot import graphs, views
from funcaot.aot.capture import Capture
from funcaot.errors import UnsupportedError


@dataclass(frozen=True)
class Mutation:
    """An input whose data the function overwrites.

    Attributes:
        index: Position among the capture's inputs.
        value: Position of its new value among the graph's results.
        with_grad: Whether autograd sees the write; if not, it is replayed with grad mode off.
        hidden: Whether it went through ``.data``, so that not even the version counts it.
    """

    index: int
    value: int
    with_grad: bool
    hidden: bool


@dataclass(frozen=True)
class Output:
    """Where one flat output of the function comes from; exactly one of these is set.

    Attributes:
        value: A non-tensor, returned as it is.
        result: Position among the graph's results.
        source: Position of the input that it is or is a view of.
        view: The chain of views from the input or the result; None for the thing itself.
    """

    value: Any = None
    result: int | None = None
    source: int | None = None
    view: views.View | None = None

    def __str__(self) -> str:
        """``result 0``, ``input 1`` or ``input 1.t()`` style."""
        if self.result is None and self.source is None:
            return repr(self.value)
        name = f"result {self.result}" if self.source is None else f"input {self.source}"
        return name if self.view is None else f"{name}.{self.view}"


@dataclass(frozen=True)
class Effects:
    """A function's outputs and mutations in terms of its functional graph.

    Attributes:
        results: The tape's tensors that the functional graph computes.
        mutations: Inputs that are overwritten.
        outputs: One entry per flat output.
    """

    results: tuple[torch.Tensor, ...]
    mutations: tuple[Mutation, ...]
    outputs: tuple[Output, ...]


def analyse(capture: Capture, name: str) -> Effects:
    """Find a captured function's mutations and aliases.

    Raises:
        UnsupportedError: For an effect that isn't supported, naming the input.
    """
    return _Analysis(capture, name).run()


class _Analysis:
    """Results are collected in order; each node is computed once."""

    def __init__(self, capture: Capture, name: str) -> None:
        self.capture = capture
        self.tape = capture.tape
        self.name = name
        self.results: list[torch.Tensor] = []
        self.positions: dict[tuple[fx.Node, bool], int] = {}
        self.storages = {
            tracing.storage_key(entry.tensor): index
            for index, entry in reversed(list(enumerate(capture.inputs)))
            if entry.spec.layout is torch.strided
        }

    def run(self) -> Effects:
        with self.tape.recording(grad_mode=False):
            for index in range(len(self.capture.inputs)):
                self._refuse_metadata_mutation(index)
            outputs = tuple(self._output(value) for value in self.capture.outputs)
            mutations = tuple(
                self._mutation(index)
                for index, entry in enumerate(self.capture.inputs)
                if tracing.has_data_mutation(entry.tensor)
            )
        return Effects(tuple(self.results), mutations, outputs)

    def _describe(self, index: int) -> str:
        entry = self.capture.inputs[index]
        kind = "a tensor it closes over" if entry.argument is None else f"argument {entry.argument}"
        return f"{kind} ({entry.spec})"

    def _refuse_metadata_mutation(self, index: int) -> None:
        tensor = self.capture.inputs[index].tensor
        if tracing.has_storage_change(tensor) or tracing.has_metadata_mutation(tensor):
            raise UnsupportedError(
                f"{self.name} changes the shape, strides or storage of {self._describe(index)} in "
                "place.",
                remedy="return the changed tensor instead (x.t() for x.t_(), and so on).",
            )

    def _mutation(self, index: int) -> Mutation:
        tensor = self.capture.inputs[index].tensor
        hidden = tracing.mutation_hidden_from_autograd(tensor)
        silent = hidden or tracing.mutation_under_no_grad(tensor)
        return Mutation(index, self._result(tensor), not silent, hidden)

    def _result(self, tensor: torch.Tensor) -> int:
        node = self._node(tensor)
        key = (node, tensor.requires_grad)
        if key not in self.positions:
            self.positions[key] = len(self.results)
            self.results.append(tensor)
        return self.positions[key]

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        node = self.tape.node_of(tensor)
        if node is None:
            raise UnsupportedError(
                f"{self.name} returns a tensor that wasn't computed while it was captured.",
                remedy="compute it inside the function, or keep it out of the outputs.",
            )
        return node

    def _output(self, value: Any) -> Output:
        if not isinstance(value, torch.Tensor):
            return Output(value=value)
        for index, entry in enumerate(self.capture.inputs):
            if value is entry.tensor:
                return Output(source=index)
        node = self._node(value)
        if value.layout is not torch.strided:
            return Output(result=self._result(value))
        index = self.storages.get(tracing.storage_key(value))
        if index is not None:
            base = self._node(self.capture.inputs[index].tensor)
            steps = views.chain(base, node) or views.strided(value)
            return Output(source=index, view=views.View(steps, value.requires_grad))
        return self._fresh(value, node)

    def _fresh(self, value: torch.Tensor, node: fx.Node) -> Output:
        """An output with a storage of its own; a view of an intermediate is replayed from it.

        So the caller's tensor and what is kept for the backward share one version counter, and
        two views of one intermediate alias each other as in eager.
        """
        root = graphs.view_root(node)
        base = self._tensor_at(value, root) if root is not node else None
        steps = views.chain(root, node) if base is not None else None
        if base is None or steps is None:
            return Output(result=self._result(value))
        return Output(result=self._result(base), view=views.View(steps, value.requires_grad))

    def _tensor_at(self, value: torch.Tensor, root: fx.Node) -> torch.Tensor | None:
        """The tape's tensor at the start of a view's chain, if autograd still knows it."""
        base = value._base
        if base is not None and self.tape.node_of(base) is root:
            return base
        return None
