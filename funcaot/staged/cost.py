"""What a graph costs: arithmetic, memory traffic and peak memory, read off the graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from funcaot.aot.graph import graphs


@dataclass(frozen=True)
class Cost:
    """What a call of a graph costs.

    Attributes:
        flops: Operations on numbers: those of products, convolutions and attention by torch's
            formulas, and one for each element that another op makes.
        bytes_read: Bytes of the inputs that it uses, each once.
        bytes_written: Bytes of the outputs that it makes.
        peak_memory: The most bytes that results of ops, outputs among them, take up together, if
            the ops run one by one; a compiler that fuses them needs less.
    """

    flops: int
    bytes_read: int
    bytes_written: int
    peak_memory: int

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.flops:,} flops, {self.bytes_read:,} bytes read, {self.bytes_written:,} bytes "
            f"written, {self.peak_memory:,} bytes at the peak"
        )


def cost_of(module: fx.GraphModule) -> Cost:
    """The cost of a graph of ops, without Functions that are kept whole."""
    nodes = list(module.graph.nodes)
    output: Any = nodes[-1]
    results = {node for node in output.args[0] if isinstance(node, fx.Node)}
    return Cost(
        flops=sum(_flops(node) for node in nodes if node.op == "call_function"),
        bytes_read=sum(_bytes(node) for node in graphs.inputs(module) if node.users),
        bytes_written=sum(_bytes(node) for node in results if node.op != "placeholder"),
        peak_memory=_peak(nodes),
    )


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that a node makes."""
    value = graphs.value_of(node)
    values: Iterable[Any] = value if isinstance(value, tuple | list) else (value,)
    return [each for each in values if isinstance(each, torch.Tensor)]


def _bytes(node: fx.Node) -> int:
    return sum(map(graphs.bytes_of, _tensors(node)))


def _owns(node: fx.Node) -> bool:
    """Whether a node makes memory of its own: no view, and no item of several results."""
    return (
        node.op == "call_function"
        and node.target is not graphs.GETITEM
        and not (graphs.is_view(node))
    )


def _flops(node: fx.Node) -> int:
    if not _owns(node):
        return 0
    packet = getattr(graphs.op_of(node), "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return sum(tensor.numel() for tensor in _tensors(node))
    args, kwargs = fx.map_arg((node.args, node.kwargs), graphs.value_of)
    return int(formula(*args, **kwargs, out_val=graphs.value_of(node)))


def _memory(node: fx.Node) -> fx.Node:
    """The node whose memory a node's result lives in."""
    root = graphs.view_root(node)
    if root.target is graphs.GETITEM and isinstance(root.args[0], fx.Node):
        return graphs.view_root(root.args[0])
    return root


def _peak(nodes: list[fx.Node]) -> int:
    last: dict[fx.Node, int] = {}
    for index, node in enumerate(nodes):
        for source in (*node.all_input_nodes, node):
            last[_memory(source)] = index
    dying: dict[int, list[fx.Node]] = {}
    for node, index in last.items():
        dying.setdefault(index, []).append(node)
    live = peak = 0
    for index, node in enumerate(nodes):
        live += _bytes(node) if _owns(node) else 0
        peak = max(peak, live)
        live -= sum(_bytes(dead) for dead in dying.get(index, ()) if _owns(dead))
    return peak
