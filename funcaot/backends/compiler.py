"""What a backend is: a function from graphs to callables, with what it can take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

CompilerFunction = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def _takes_anything(value: Any) -> bool:
    return True


@dataclass(frozen=True)
class Compiler:
    """What turns a graph into a callable.

    Attributes:
        name: Shown by the report.
        compile: ``(graph_module, example_inputs, kind) -> callable on a list of tensors``.
        decompositions: Table of decompositions applied before, or None to leave ops alone.
        inline: Whether nodes of user Functions are replaced by their forward first.
        accepts: Whether the compiler takes an input like this one; a graph with another input
            runs as it is.
        compiles: Whether making an executable takes time, so that equal graphs share one.
        writes_inputs: Whether a graph may end by copying new values into its inputs.
        checks_layouts: Whether what it makes looks at its inputs' shapes and strides by itself.
        runs_eager_ops: Whether it runs the ops of the capture as eager does, so that strides are
            eager's by themselves.
        chooses_layouts: Whether it may be left to it how outputs that nobody sees lie in memory.
        settles: Whether what an executable returns has the same structure in each run: objects,
            memory and strides. Otherwise that is looked at each time.
    """

    name: str
    compile: Callable[[fx.GraphModule, Sequence[Any], str], Callable[[list[Any]], Any]]
    decompositions: Callable[[], dict[Any, Callable[..., Any]]] | None = None
    inline: bool = True
    accepts: Callable[[Any], bool] = _takes_anything
    checks_layouts: bool = True
    compiles: bool = True
    writes_inputs: bool = False
    chooses_layouts: bool = False
    runs_eager_ops: bool = False
    settles: bool = False

    def handles(self, examples: Sequence[Any]) -> bool:
        """Whether the compiler takes all of these inputs."""
        return all(self.accepts(value) for value in examples)


def boxed(function: Callable[..., Any]) -> Callable[[list[Any]], Sequence[Any]]:
    """Give a compiler's result the calling convention of a list of tensors."""
    if getattr(function, "_boxed_call", False):
        return function

    def run(inputs: list[Any]) -> Sequence[Any]:
        return function(*inputs)

    return run
