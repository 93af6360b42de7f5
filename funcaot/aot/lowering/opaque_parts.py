"""A graph with opaque nodes: compiled parts and, between them, Functions on real values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch.fx.passes.split_module import split_module

from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.graph import graphs

Run = Callable[[list[Any]], Sequence[Any]]


def between_opaque(module: fx.GraphModule, compile_part: Callable[[fx.GraphModule], Run]) -> Run:
    """Compile what lies between opaque nodes, and run the parts in order.

    Args:
        module: Functional graph with at least one opaque node.
        compile_part: Compiles a graph without opaque nodes.

    Returns:
        A callable on a list of tensors.
    """
    part_of: dict[fx.Node, int] = {}
    part = 0
    for node in module.graph.nodes:
        if graphs.is_opaque(node):
            part_of[node] = part + 1
            part += 2
        else:
            part_of[node] = part
    for node in module.graph.nodes:
        # The items of an opaque node's result belong to it: parts exchange tensors, not tuples.
        if node.target is graphs.GETITEM and graphs.is_opaque(node.args[0]):
            part_of[node] = part_of[node.args[0]]
    whole = split_module(module, module, part_of.__getitem__)
    for node in whole.graph.nodes:
        if node.op == "call_module":
            piece = whole.get_submodule(node.target)
            assert isinstance(piece, fx.GraphModule)
            if not any(graphs.is_opaque(inner) for inner in piece.graph.nodes):
                setattr(whole, node.target, _Part(compile_part(_with_tuple(piece)), piece))
    forward = whole.forward

    def run(inputs: list[Any]) -> Sequence[Any]:
        return forward(*inputs)

    return run


class _Part(fx.GraphModule):
    """A compiled part, called like the graph that it was."""

    def __init__(self, run: Run, piece: fx.GraphModule) -> None:
        super().__init__({}, fx.Graph())
        output = next(iter(reversed(piece.graph.nodes)))
        single = isinstance(output.args[0], fx.Node)

        def forward(*inputs: Any) -> Any:
            made = run(list(inputs))
            return made[0] if single else tuple(made)

        self.forward = forward


def _with_tuple(piece: fx.GraphModule) -> fx.GraphModule:
    """The same graph, returning a tuple also where it returned one tensor."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in piece.graph.nodes:
        if node.op == "output" and isinstance(node.args[0], fx.Node):
            graph.output((copies[node.args[0]],))
        else:
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    return forget_source_with(fx.GraphModule(piece, graph))
