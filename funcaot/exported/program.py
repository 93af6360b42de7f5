"""The graph of an artifact: tensors in, tensors out, with the parameters inside or beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.fx.proxy import GraphAppendingTracer

from funcaot._torch.tensors.ops import OpOverload
from funcaot._torch.tensors.sizes import shapes
from funcaot.aot.capture.capture import Capture
from funcaot.aot.graph import graphs
from funcaot.aot.segment.segment import Form
from funcaot.aot.signature.sizes import Sizes

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Program:
    """What is compiled.

    Attributes:
        module: The graph, from tensors to tensors; baked parameters are its buffers.
        inputs: The slot of the capture that each input is.
        baked: For each baked slot that is returned as it is, the output that is a copy of it.
    """

    module: fx.GraphModule
    inputs: tuple[int, ...]
    baked: dict[int, int]


def make_program(
    module: fx.GraphModule,
    form: Form,
    captured: Capture,
    sizes: Sizes | None,
    baked: Mapping[int, torch.Tensor],
    returned: Sequence[int],
) -> Program:
    """Turn a captured graph into one that takes tensors only.

    Args:
        module: The graph, decomposed; inputs are tensors, then open sizes.
        form: What says which slot each input is.
        captured: The capture.
        sizes: Its open sizes.
        baked: Slots that become constants, with their tensors.
        returned: Slots that the function returns, or views of them.
    """
    root = torch.nn.Module()
    graph = fx.Graph()
    maker = _Maker(module, form, captured, root, graph, baked)
    maker.write_inputs(sizes)
    copies = maker.copies
    for node in module.graph.nodes:
        if node.op == "get_attr":
            _keep_constant(root, module, str(node.target))
        if node.op not in ("placeholder", "output"):
            copies[node] = maker.copied(node)
            maker.give_tensors(node, copies[node])
    output: Any = next(iter(reversed(module.graph.nodes)))
    results = [copies[node] for node in output.args[0]]
    outputs: dict[int, int] = {}
    for slot in dict.fromkeys(returned):
        if slot in baked:
            outputs[slot] = len(results)
            value = maker.constant(slot)
            results.append(graph.call_function(aten.clone.default, (value,)))
    graph.output(tuple(results))
    return Program(fx.GraphModule(root, graph), tuple(maker.inputs), outputs)


class _Maker:
    """Writes the inputs of an artifact's graph."""

    def __init__(
        self,
        module: fx.GraphModule,
        form: Form,
        captured: Capture,
        root: torch.nn.Module,
        graph: fx.Graph,
        baked: Mapping[int, torch.Tensor],
    ) -> None:
        self.copies: dict[fx.Node, fx.Node] = {}
        self.inputs: list[int] = []
        self._module, self._captured = module, captured
        self._root, self._graph, self._baked = root, graph, baked
        nodes = graphs.inputs(module)
        self._slots = dict(zip(form.positions, nodes, strict=True))
        self._constants: dict[int, fx.Node] = {}
        self._sizes: dict[Any, fx.Node] = {}

    def write_inputs(self, sizes: Sizes | None) -> None:
        """Write the inputs that are used, and read the open sizes off them."""
        taken = [
            node for node in self._module.graph.nodes if graphs.is_size_input(node) and node.users
        ]
        sources: dict[Any, tuple[int, int]] = {}
        if sizes is not None:
            arguments = {slot.argument: i for i, slot in enumerate(self._captured.inputs)}
            sources = {
                symbol: (arguments[leaf], dim)
                for symbol, (leaf, dim, _) in zip(
                    sizes.environment.symbols, sizes.sources, strict=True
                )
            }
        symbols = {node: shapes.expression_of(graphs.value_of(node)) for node in taken}
        # Passes write sizes as they are, not as nodes.
        written = {
            symbol
            for node in self._module.graph.nodes
            if node.op == "call_function"
            for symbol in _written_in((node.args, node.kwargs))
        }
        showing = {sources[symbol][0] for symbol in {*symbols.values(), *written}}
        shown: dict[int, fx.Node] = {}
        for slot in sorted({*self._slots, *showing}):
            node = self._slots.get(slot)
            if slot not in showing and (node is None or not node.users):
                continue
            shown[slot] = self.constant(slot) if slot in self._baked else self._input(slot)
            if node is not None:
                self.copies[node] = shown[slot]
        for node, symbol in symbols.items():
            self.copies[node] = self._size(symbol, shown, sources)
        for symbol in sorted(written, key=str):
            self._size(symbol, shown, sources)

    def _size(
        self,
        symbol: Any,
        shown: Mapping[int, fx.Node],
        sources: Mapping[Any, tuple[int, int]],
    ) -> fx.Node:
        """The node of an open size, which some tensor shows."""
        if symbol not in self._sizes:
            slot, dim = sources[symbol]
            self._sizes[symbol] = self._graph.call_function(aten.sym_size.int, (shown[slot], dim))
        return self._sizes[symbol]

    def copied(self, node: fx.Node) -> fx.Node:
        """A node in the new graph, with nodes for sizes that stand in its arguments as they are."""
        if not _written_in((node.args, node.kwargs)):
            return self._graph.node_copy(node, self.copies.__getitem__)
        from funcaot._torch.tensors.sizes.size_environment import recorded  # It imports SymPy.

        tracer = GraphAppendingTracer(self._graph)
        known = {symbol: fx.Proxy(size, tracer) for symbol, size in self._sizes.items()}

        def now(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return self.copies[value]
            number = shapes.expression_of(value)
            return recorded(number, known).node if shapes.is_expression(number) else number

        args: Any = map_aggregate(node.args, now)
        kwargs: Any = map_aggregate(node.kwargs, now)
        made = self._graph.create_node(node.op, node.target, args, kwargs)
        made.meta = dict(node.meta)
        return made

    def _input(self, slot: int) -> fx.Node:
        self.inputs.append(slot)
        return self._graph.placeholder(f"input_{slot}")

    def constant(self, slot: int) -> fx.Node:
        """The node of a baked tensor."""
        found = self._constants.get(slot)
        if found is None:
            name = f"constant_{slot}"
            self._root.register_buffer(name, self._baked[slot].detach())
            found = self._constants[slot] = self._graph.get_attr(name)
        return found

    def give_tensors(self, node: fx.Node, copied: fx.Node) -> None:
        """Give an op with complex results tensors for numbers.

        Inductor has no kernels for these and calls torch's own. A package does that by the op's
        schema, without complex numbers, and without numbers in the place of tensors.
        """
        value: Any = graphs.value_of(node)
        op = _ON_TENSORS.get(graphs.op_of(node), graphs.op_of(node))
        if not (
            isinstance(value, torch.Tensor) and value.is_complex() and isinstance(op, OpOverload)
        ):
            return
        wanted = [str(argument.type) for argument in op._schema.arguments]
        with self._graph.inserting_before(copied):
            for i, given in enumerate(node.args):
                if wanted[i] == "Tensor" and isinstance(given, int | float | complex):
                    copied.target = op
                    copied.update_arg(i, self._number(given, value.dtype))

    def _number(self, number: Any, dtype: torch.dtype) -> fx.Node:
        name = f"number_{len(list(self._root.buffers()))}"
        self._root.register_buffer(name, torch.tensor(number, dtype=dtype))
        return self._graph.get_attr(name)


# Ops that take a number and a tensor, each with the overload that takes two tensors.
_ON_TENSORS = {
    packet.Scalar: packet.Tensor for packet in (aten.add, aten.sub, aten.rsub, aten.mul, aten.div)
}


def _written_in(arguments: Any) -> set[Any]:
    """The symbols of sizes that stand in arguments as they are."""
    found: set[Any] = set()

    def look(value: Any) -> Any:
        if isinstance(value, shapes.SYMBOLIC_NUMBERS):
            found.update(shapes.symbols_in(value))
        return value

    map_aggregate(arguments, look)
    return found


def _keep_constant(root: torch.nn.Module, module: fx.GraphModule, target: str) -> None:
    """Give a graph's new root a constant of the tape."""
    found: Any = module
    for part in target.split("."):
        found = getattr(found, part)
    if isinstance(found, torch.Tensor):
        found = torch.nn.Buffer(found.detach())
    setattr(root, target, found)
