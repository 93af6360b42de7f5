"""Backends that a user gives as a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from funcaot.backends.compiler import Compiler, CompilerFunction, boxed


def from_functions(
    forward: CompilerFunction,
    backward: CompilerFunction | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Compiler:
    """Make a compiler of functions ``(graph_module, example_inputs) -> callable``.

    Args:
        forward: Compiles forward and inference graphs.
        backward: Compiles backward graphs; ``forward`` by default.
        decompositions: Decompositions to apply before.
    """

    def compile_graph(
        module: fx.GraphModule, examples: Sequence[Any], kind: str
    ) -> Callable[[list[Any]], Sequence[Any]]:
        chosen = backward if kind == "backward" and backward is not None else forward
        return boxed(chosen(module, examples))

    name = getattr(forward, "__name__", type(forward).__name__)
    table = None if decompositions is None else lambda: dict(decompositions)
    return Compiler(name=name, compile=compile_graph, decompositions=table)
