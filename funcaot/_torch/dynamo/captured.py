"""Gradients that backwards in progress hand out, by the edges they arrive at; own nodes ask.

``torch.autograd.grad(loss, features)`` takes the gradient by ``features`` out of the engine, which
tells no node of it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.autograd.variable import ImperativeEngine, Variable

from funcaot._torch.dynamo.dynamo import hidden_from_dynamo, is_dynamo_compiling
from funcaot._torch.patches import is_usable

__all__ = ["handed_out", "is_watching"]

_NAME = "captured gradients"
# Of each backward that hands out gradients. Its nodes may run in other threads.
_in_progress: dict[object, frozenset[tuple[Any, int]]] = {}


class _Engine(ImperativeEngine):
    """Torch's engine, which takes note of the inputs of a backward."""

    @hidden_from_dynamo
    def run_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a backward from some tensors."""
        if is_dynamo_compiling():
            return super().run_backward(tensors, *args, **kwargs)
        inputs = args[3] if len(args) > 3 else kwargs.get("inputs")
        edges = frozenset(edge for edge in map(_edge, inputs or ()) if edge is not None)
        if not edges:
            return super().run_backward(tensors, *args, **kwargs)
        token = object()
        _in_progress[token] = edges
        try:
            return super().run_backward(tensors, *args, **kwargs)
        finally:
            del _in_progress[token]


def _edge(given: Any) -> tuple[Any, int] | None:
    """Where the gradient by a tensor or an edge arrives; None for a leaf."""
    if isinstance(given, GradientEdge):
        return given.node, given.output_nr
    if not isinstance(given, torch.Tensor):
        return None  # The engine says what there is to say.
    with torch._C.DisableTorchFunction():
        try:
            node = given.grad_fn
        except RuntimeError:
            return None
        return None if node is None else (node, given.output_nr)


@functools.cache
def is_watching() -> bool:
    """See from now on what backwards hand out; False if that can't be seen."""
    if is_usable(_NAME):
        Variable._execution_engine = _Engine()
        return True
    return False


def handed_out() -> list[tuple[Any, int]]:
    """Edges of which backwards in progress hand out the gradients, by node and its output."""
    return [edge for edges in [*_in_progress.values()] for edge in edges]
