"""What a tape keeps of values that were computed on the way to those that somebody asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import torch
from torch import fx

from funcaot.aot.graph import graphs

__all__ = ["Draws", "Kept"]

# Values are kept up to this many bytes.
_MOST = 2**26


class Kept:
    """Values of nodes on the way, up to a number of bytes: the oldest make room for new ones.

    A solver asks hundreds of times, and each answer is a few nodes further on than the last.

    Attributes:
        values: By node, the oldest first.
    """

    def __init__(self) -> None:
        self.values: dict[fx.Node, torch.Tensor] = {}
        self._bytes = 0

    def chosen(self, running: Iterable[fx.Node]) -> list[fx.Node]:
        """Those of the nodes that are about to run which are kept: the last ones."""
        found: list[fx.Node] = []
        room = _MOST
        for node in sorted(filter(_may_be_kept, running), reverse=True):
            room -= graphs.bytes_of(graphs.value_of(node))
            if room < 0:
                break
            found.append(node)
        return found[::-1]

    def keep(self, values: Mapping[fx.Node, torch.Tensor]) -> None:
        """Keep new values."""
        self.values.update(values)
        self._bytes += sum(map(graphs.bytes_of, values.values()))
        while self._bytes > _MOST:
            self._bytes -= graphs.bytes_of(self.values.pop(next(iter(self.values))))

    def clear(self) -> None:
        """Keep none."""
        self.values.clear()
        self._bytes = 0


class Draws:
    """The nodes of a growing graph that draw random numbers; each node is looked at once."""

    def __init__(self) -> None:
        self._found: list[fx.Node] = []
        self._last: fx.Node | None = None

    def among(self, graph: fx.Graph) -> list[fx.Node]:
        """Those of the graph so far, in its order."""
        backwards = reversed(graph.nodes)
        new = list(itertools.takewhile(lambda node: node is not self._last, backwards))
        if new:
            self._last = new[0]
            self._found += [node for node in reversed(new) if graphs.is_random(node)]
        return self._found


def _may_be_kept(node: fx.Node) -> bool:
    """Whether a node's value is a plain tensor that running the node again would give again.

    A draw runs again, so that the next one draws what it is going to draw in the call.
    """
    value = graphs.value_of(node)
    plain = isinstance(value, torch.Tensor) and not graphs.is_wrapper(value)
    return plain and node.op == "call_function" and not graphs.is_random(node)
