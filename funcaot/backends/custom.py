"""Backends that a user gives as a function."""

from __future__ import annotations

import functools
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
    name = getattr(forward, "__name__", type(forward).__name__)
    table = None if decompositions is None else functools.partial(dict, decompositions)
    compile_graph = functools.partial(_compile, forward, backward)
    return Compiler(name=name, compile=compile_graph, decompositions=table)


def _compile(
    forward: CompilerFunction,
    backward: CompilerFunction | None,
    module: fx.GraphModule,
    examples: Sequence[Any],
    kind: str,
) -> Callable[[list[Any]], Sequence[Any]]:
    chosen = backward if kind == "backward" and backward is not None else forward
    return boxed(chosen(module, examples))
