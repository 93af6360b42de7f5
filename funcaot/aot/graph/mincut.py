"""Minimum cuts of directed graphs with capacities (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60


class Network:
    """A directed graph with a capacity on each edge.

    Vertices are integers from 0; edges are stored in pairs, an edge and its reverse.
    """

    def __init__(self) -> None:
        """Start without vertices."""
        self._edges: list[list[int]] = []
        self._heads: list[int] = []
        self._room: list[int] = []

    def vertex(self) -> int:
        """Add a vertex."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge; one without capacity is left out."""
        if capacity <= 0:
            return
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._room.append(room)

    def sink_side(self, source: int, sink: int) -> set[int]:
        """Vertices on the sink's side of the minimum cut that lies nearest to the sink."""
        while True:
            levels = self._levels(source, sink)
            if levels[sink] < 0:
                return self._reaching(sink)
            self._block(source, sink, levels)

    def _levels(self, source: int, sink: int) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[source] = 0
        pending = deque([source])
        while pending and levels[sink] < 0:
            vertex = pending.popleft()
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._room[edge] and levels[head] < 0:
                    levels[head] = levels[vertex] + 1
                    pending.append(head)
        return levels

    def _block(self, source: int, sink: int, levels: list[int]) -> None:
        """Send flow along shortest paths until each of them is blocked."""
        edges, heads, room = self._edges, self._heads, self._room
        position = [0] * len(edges)
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                amount = min(room[edge] for edge in path)
                first = 0
                for index, edge in enumerate(path):
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                    if room[edge] == 0 and first == 0:
                        first = index + 1
                # Go on from where the first edge on the path is full now.
                vertex = heads[path[first - 1] ^ 1]
                del path[first - 1 :]
                continue
            while position[vertex] < len(edges[vertex]):
                edge = edges[vertex][position[vertex]]
                head = heads[edge]
                if room[edge] and levels[head] == levels[vertex] + 1:
                    path.append(edge)
                    vertex = head
                    break
                position[vertex] += 1
            else:
                if vertex == source:
                    return
                vertex = heads[path.pop() ^ 1]
                position[vertex] += 1

    def _reaching(self, sink: int) -> set[int]:
        found = {sink}
        pending = [sink]
        while pending:
            vertex = pending.pop()
            for edge in self._edges[vertex]:
                tail = self._heads[edge]
                if self._room[edge ^ 1] and tail not in found:
                    found.add(tail)
                    pending.append(tail)
        return found
