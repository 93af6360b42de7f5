"""A graph with nodes that run alone: Functions on real values, ops that act outside of tensors.

What lies between them is compiled in parts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from funcaot._torch.levels.functorch import pytree
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.graph import graphs
from funcaot.aot.graph.sure_ops import is_sure

Run = Callable[[list[Any]], Sequence[Any]]
Group = list[fx.Node]


def between_opaque(module: fx.GraphModule, compile_part: Callable[[fx.GraphModule], Run]) -> Run:
    """Compile what lies between nodes that run alone, and run all in the graph's order.

    Args:
        module: Functional graph with at least one such node.
        compile_part: Compiles a graph without one.

    Returns:
        A callable on a list of the graph's tensors and open sizes.
    """
    return _Builder(module, compile_part).program()


@dataclass(frozen=True)
class _Step:
    """One thing to do: a compiled part, an opaque node, or a number made of sizes.

    Attributes:
        run: From its arguments to its results.
        arguments: Where these are among the values.
        results: Where they are put.
        done: Values that nothing needs afterwards.
    """

    run: Run
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    done: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Program:
    """The steps of a graph.

    Attributes:
        constants: All values, with the constants in their places.
        steps: What to do, in order.
        outputs: Where the results are.
    """

    constants: tuple[Any, ...]
    steps: tuple[_Step, ...]
    outputs: tuple[int, ...]

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run it; empties the list, so that nothing lives longer than it is needed."""
        values = [*inputs, *self.constants[len(inputs) :]]
        inputs.clear()
        for step in self.steps:
            made = step.run([values[place] for place in step.arguments])
            for place, value in zip(step.results, made, strict=True):
                values[place] = value
            del made
            for place in step.done:
                values[place] = None
        return tuple([values[place] for place in self.outputs])


class _Builder:
    """Gives each value of a graph a place, and makes the steps that fill them."""

    def __init__(
        self, module: fx.GraphModule, compile_part: Callable[[fx.GraphModule], Run]
    ) -> None:
        self._module = module
        self._compile = compile_part
        self._values: list[Any] = []
        self._places: dict[fx.Node, int] = {}
        self._steps: list[_Step] = []
        self._sizes: dict[Any, fx.Node] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self._places[node] = self._place()
                if graphs.is_size(node):
                    self._sizes[shapes.expression_of(graphs.value_of(node))] = node

    def program(self) -> _Program:
        """All steps."""
        nodes = list(self._module.graph.nodes)
        results: Any = nodes.pop().args[0]
        for group in _groups(nodes):
            if graphs.runs_alone(group[0]):
                self._call(group)
            else:
                self._part(group)
        outputs = tuple(map(self._at, results))
        return _Program(tuple(self._values), _freeing(self._steps, outputs), outputs)

    def _place(self, constant: Any = None) -> int:
        self._values.append(constant)
        return len(self._values) - 1

    def _at(self, value: Any) -> int:
        """Where an argument or a result is."""
        if not isinstance(value, fx.Node):
            return self._place(value)
        if value not in self._places:
            if value.op == "get_attr":
                self._places[value] = self._place(_attribute(self._module, value))
            else:
                self._number(value)
        return self._places[value]

    def _number(self, node: fx.Node) -> None:
        """A number made of sizes, for an opaque node or as a result; parts compute their own."""
        arguments, target = tuple(map(self._at, node.args)), node.target
        place = self._places[node] = self._place()
        self._steps.append(_Step(lambda given: [target(*given)], arguments, (place,)))  # type: ignore[operator]

    def _call(self, group: Group) -> None:
        """A node that runs alone, and the items of its result."""
        node, *items = group
        leaves, form = pytree.tree_flatten((node.args, node.kwargs))
        arguments, target = tuple(map(self._at, leaves)), node.target
        indices = [item.args[1] for item in items]
        for made in items or [node]:
            self._places[made] = self._place()
        results = tuple(self._places[made] for made in items or [node])

        def run(given: list[Any]) -> Sequence[Any]:
            args, kwargs = pytree.tree_unflatten(given, form)
            made = target(*args, **kwargs)  # type: ignore[operator]
            return [made[index] for index in indices] if indices else [made]

        self._steps.append(_Step(run, arguments, results))

    def _part(self, group: Group) -> None:
        """What is compiled as one graph."""
        inside = set(group)
        made = [node for node in group if any(user not in inside for user in node.users)]
        if not made and not any(map(graphs.has_effect, group)):
            return
        given = dict.fromkeys(
            source
            for node in group
            for source in graphs.tensor_inputs(node)
            if source not in inside
        )
        sizes = self._sizes_in([*given, *group])
        arguments = tuple(map(self._at, (*given, *sizes)))
        piece = _cut(self._module, [*given, *sizes], group, made)
        for node in made:
            self._places[node] = self._place()
        results = tuple(self._places[node] for node in made)
        self._steps.append(_Step(self._compile(piece), arguments, results))

    def _sizes_in(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """The open sizes that occur in the values and among the arguments of some nodes."""
        sources = [source for node in nodes for source in node.all_input_nodes]
        values = [graphs.value_of(node) for node in (*nodes, *filter(graphs.is_size, sources))]
        found = {symbol for value in values for symbol in shapes.symbols_in(value)}
        return [node for symbol, node in self._sizes.items() if symbol in found]


def _groups(nodes: Sequence[fx.Node]) -> Iterator[Group]:
    """The nodes that run, in order: those between opaque ones, and each of these with its items.

    A number that is read may be looked at later, as nothing that a graph does can be seen before
    it ends: where what comes in between fails for no values, all is one part.
    """
    between: Group = []
    waiting: list[Group] = []
    for node in nodes:
        if node.op in ("placeholder", "get_attr") or graphs.is_size(node) or _is_item(node):
            continue
        if graphs.is_premise_of_number(node):
            waiting.append([node])
            continue
        if graphs.runs_alone(node) or (waiting and not is_sure(node)):
            yield from _and_then(between, waiting)
            between, waiting = [], []
        if graphs.runs_alone(node):
            yield [node, *filter(_is_item, node.users)]
        else:
            between.append(node)
    yield from _and_then(between, waiting)


def _and_then(between: Group, waiting: Sequence[Group]) -> Iterator[Group]:
    if between:
        yield between
    yield from waiting


def _is_item(node: fx.Node) -> bool:
    """Whether a node is an item of such a node's result: parts exchange tensors, not tuples."""
    return node.target is graphs.GETITEM and graphs.runs_alone(node.args[0])


def _attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(module)


def _cut(
    module: fx.GraphModule, given: Sequence[fx.Node], group: Group, made: Sequence[fx.Node]
) -> fx.GraphModule:
    """The graph of a part: tensors, then sizes, to a tuple of what the others need."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # a number made of sizes
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in given:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in group:
        copied(node)
    graph.output(tuple(copies[node] for node in made))
    return forget_source_with(fx.GraphModule(module, graph))


def _freeing(steps: Sequence[_Step], outputs: Sequence[int]) -> tuple[_Step, ...]:
    """The steps, each letting go of what none after it needs."""
    needed = set(outputs)
    found: list[_Step] = []
    for step in reversed(steps):
        done = {*step.arguments, *step.results} - needed
        needed |= {*step.arguments}
        found.append(_Step(step.run, step.arguments, step.results, tuple(sorted(done))))
    return tuple(reversed(found))
