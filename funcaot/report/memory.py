"""Memory that the results of a graph take while its ops run one by one: for costs and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from funcaot.aot.graph import graphs


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that a node makes."""
    value = graphs.value_of(node)
    values: Iterable[Any] = value if isinstance(value, tuple | list) else (value,)
    return [each for each in values if isinstance(each, torch.Tensor)]


def bytes_of(node: fx.Node) -> int:
    """Bytes of what a node makes."""
    return sum(map(graphs.bytes_of, tensors_of(node)))


def owns(node: fx.Node) -> bool:
    """Whether a node makes memory of its own: no view, and no item of several results."""
    return (
        node.op == "call_function"
        and node.target is not graphs.GETITEM
        and not (graphs.is_view(node))
    )


def memory_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node's result lives in."""
    root = graphs.view_root(node)
    if root.target is graphs.GETITEM and isinstance(root.args[0], fx.Node):
        return graphs.view_root(root.args[0])
    return root


def live_bytes(nodes: Sequence[fx.Node]) -> list[int]:
    """Bytes of results that are alive while each node runs, its own result among them.

    Inputs count nothing; what the output node returns is alive to the end.
    """
    last: dict[fx.Node, int] = {}
    for index, node in enumerate(nodes):
        for source in (*node.all_input_nodes, node):
            last[memory_of(source)] = index
    dying: dict[int, list[fx.Node]] = {}
    for node, index in last.items():
        dying.setdefault(index, []).append(node)
    live, found = 0, []
    for index, node in enumerate(nodes):
        live += bytes_of(node) if owns(node) else 0
        found.append(live)
        live -= sum(bytes_of(dead) for dead in dying.get(index, ()) if owns(dead))
    return found
