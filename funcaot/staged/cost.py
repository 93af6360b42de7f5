"""What a graph costs: arithmetic, memory traffic and peak memory, read off the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.utils.flop_counter import flop_registry

from funcaot.aot.graph import graphs
from funcaot.report import memory


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

    Example:
        >>> import torch, funcaot
        >>> x = torch.empty(2, 3, device="meta")
        >>> funcaot.lower(lambda x: x @ x.T, x).cost.flops
        24
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
        bytes_read=sum(memory.bytes_of(node) for node in graphs.inputs(module) if node.users),
        bytes_written=sum(memory.bytes_of(node) for node in results if node.op != "placeholder"),
        peak_memory=max(memory.live_bytes(nodes), default=0),
    )


def _flops(node: fx.Node) -> int:
    if not memory.owns(node):
        return 0
    packet = getattr(graphs.op_of(node), "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return sum(tensor.numel() for tensor in memory.tensors_of(node))
    args, kwargs = fx.map_arg((node.args, node.kwargs), graphs.value_of)
    return int(formula(*args, **kwargs, out_val=graphs.value_of(node)))
