"""The graphs of an entry as boxes and arrows with places: what ``draw`` draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import fx

from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.report import memory

if TYPE_CHECKING:
    from funcaot.report.records import DerivativeReport, EntryReport


@dataclass(frozen=True)
class Part:
    """One graph of a step.

    Attributes:
        title: The forward's name, or what it is a derivative of.
        graph: The graph.
    """

    title: str
    graph: fx.GraphModule


@dataclass(frozen=True)
class Box:
    """A value.

    Attributes:
        key: Its graph and its name there.
        label: The op that makes it; the name of an input or of a value that is kept.
        shape: Element type and sizes.
        bytes: Of its elements; 0 for views.
        kind: ``"op"``, ``"input"`` or ``"kept"``.
        part: Position of its graph; that of the graph that makes it, for what is kept.
        row: From the top of its graph.
        place: In its row, from the left.
    """

    key: str
    label: str
    shape: str
    bytes: int
    kind: str
    part: int
    row: int = 0
    place: float = 0.0


@dataclass(frozen=True)
class Picture:
    """Boxes and arrows, the graphs of a step from left to right.

    Attributes:
        title: The entry's signature.
        parts: The titles of the graphs.
        boxes: All values, by key.
        arrows: Keys of a value and of what is computed from it.
    """

    title: str
    parts: tuple[str, ...]
    boxes: dict[str, Box]
    arrows: tuple[tuple[str, str], ...]


def parts_of(entry: EntryReport) -> tuple[Part, ...]:
    """The graph that ran forward, and those of its derivatives, each before its own."""
    names = {residual.name for residual in entry.residuals if residual.origin != "input"}
    keeping = [graph for graph in entry.graphs if names <= _made(graph.graph)] or entry.graphs
    forward = [Part(graph.name, graph.graph) for graph in keeping[-1:]]
    return (*forward, *_derivatives((*entry.backwards, *entry.pushforwards)))


def _made(module: fx.GraphModule) -> set[str]:
    return {node.name for node in module.graph.nodes}


def _derivatives(derivatives: tuple[DerivativeReport, ...]) -> Iterator[Part]:
    for derivative in derivatives:
        if derivative.graph is not None:
            yield Part(derivative.graphs[0].name, derivative.graph)
        yield from _derivatives(derivative.derivatives)


def picture_of(entry: EntryReport) -> Picture:
    """The picture of an entry."""
    parts = parts_of(entry)
    boxes: dict[str, Box] = {}
    arrows: list[tuple[str, str]] = []
    makers: dict[str, int] = {}
    for index, part in enumerate(parts):
        found = _Graph(index, part.graph, makers)
        boxes |= found.boxes()
        arrows += found.arrows
        for name in found.kept:
            box = boxes[f"{makers[name]}.{name}"]
            key = f"kept.{name}"
            boxes[key] = replace(box, key=key, label=name, kind="kept")
            arrows.append((box.key, key))
        makers |= {node.name: index for node in found.ops if node.name not in makers}
    unique = tuple(dict.fromkeys(arrows))
    return Picture(f"({entry.signature})", tuple(part.title for part in parts), boxes, unique)


class _Graph:
    """One graph: its values in rows, and which of them an earlier graph kept."""

    def __init__(self, index: int, module: fx.GraphModule, makers: dict[str, int]) -> None:
        """Find the arrows.

        Args:
            index: Position among the parts.
            module: The graph.
            makers: Positions of the graphs that made what earlier graphs made, by name.
        """
        self.index, self._makers = index, makers
        nodes = list(module.graph.nodes)
        self.ops = [node for node in nodes if node.op == "call_function" and not _hidden(node)]
        self.arrows: list[tuple[str, str]] = []
        self.kept: list[str] = []
        self._rows: dict[fx.Node, int] = {}
        for node in self.ops:
            sources = [_seen(source) for source in graphs.tensor_inputs(node)]
            self._rows[node] = 1 + max((self._rows.get(source, 0) for source in sources), default=0)
            self.arrows += [(self._key(source), self._key(node)) for source in sources]
        used = {_seen(source) for node in self.ops for source in graphs.tensor_inputs(node)}
        self._inputs = [node for node in graphs.inputs(module) if node in used]
        self.kept = [node.name for node in self._inputs if node.name in makers]

    def _key(self, node: fx.Node) -> str:
        if node.op == "placeholder" and node.name in self._makers:
            return f"kept.{node.name}"
        return f"{self.index}.{node.name}"

    def boxes(self) -> dict[str, Box]:
        """The values, the inputs above what first uses them."""
        inputs = [node for node in self._inputs if node.name not in self._makers]
        for node in inputs:
            users = [self._rows[user] for user in node.users if user in self._rows]
            self._rows[node] = min(users, default=1) - 1
        rows: dict[int, list[fx.Node]] = {}
        for node in (*inputs, *self.ops):
            rows.setdefault(self._rows[node], []).append(node)
        return {
            self._key(node): self._box(node, row, place - (len(in_row) - 1) / 2)
            for row, in_row in rows.items()
            for place, node in enumerate(in_row)
        }

    def _box(self, node: fx.Node, row: int, place: float) -> Box:
        made = memory.tensors_of(node)
        kinds = [
            f"{str(each.dtype).removeprefix('torch.')}[{', '.join(map(str, spec_of(each).shape))}]"
            for each in made[:2]
        ]
        size = memory.bytes_of(node) if node.op == "placeholder" or memory.owns(node) else 0
        kind = "input" if node.op == "placeholder" else "op"
        label = node.name if kind == "input" else _name(node)
        return Box(self._key(node), label, ", ".join(kinds), size, kind, self.index, row, place)


def _hidden(node: fx.Node) -> bool:
    """An item of several results, and what only stands for another value."""
    return node.target is graphs.GETITEM or graphs.without_aliases(node) is not node


def _seen(node: fx.Node) -> fx.Node:
    """The value that is drawn for a node."""
    while _hidden(node):
        node = node.all_input_nodes[0]
    return node


def _name(node: fx.Node) -> str:
    target = graphs.op_of(node)
    name = str(target) if hasattr(target, "_schema") else getattr(target, "__name__", str(target))
    return name.removeprefix("aten.").removesuffix(".default")
