"""A graph of wrappers as one of the tensors inside, which a compiler can have.

A tape's graph takes wrappers in and gives wrappers out (``subclasses.nodes``). Here it is peeled:
each wrapper that goes in becomes the inner tensors that are read, each one that goes out the inner
tensors that are computed, and the executable takes apart and makes wrappers around that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from torch import fx

from funcaot._torch.tensors.sizes.ragged import names_size
from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.graph import graphs
from funcaot.aot.graph.functional_graph import FunctionalGraph
from funcaot.aot.graph.graph_checks import Roles
from funcaot.aot.graph.layout import Layout
from funcaot.aot.lowering.lower import Lowered
from funcaot.aot.subclasses.carried import Carried, origins_of
from funcaot.aot.subclasses.nodes import Wrapped, is_part, is_wrapped, parts_of
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.aot.tape.memory.views import DETACHED, View, shown_from
from funcaot.errors import GraphError

__all__ = ["Around", "Detached", "Given", "Made", "Outside", "Peeled", "Source", "peeled"]

Run: TypeAlias = Callable[[list[Any]], Sequence[Any]]

ALONE = View((DETACHED,), recorded=False)


@dataclass(frozen=True)
class Given:
    """A tensor that goes in: the operand that it is, or the way to it inside of one.

    Attributes:
        operand: Which one.
        path: The attributes that lead to the tensor.
        again: The name of another object that shows the same memory, one in each call; empty if it
            is the tensor itself.
        view: How that object is made.
    """

    operand: int
    path: tuple[str, ...] = ()
    again: str = ""
    view: View | None = None

    def of(self, operands: Sequence[Any]) -> Any:
        """The tensor itself."""
        value = operands[self.operand]
        for name in self.path:
            value = getattr(value, name)
        return value

    def once(self, operands: Sequence[Any], made: dict[str, Any]) -> Any:
        """The tensor, or the object that stands for it in this call."""
        if self.view is None:
            return self.of(operands)
        if self.again not in made:
            made[self.again] = self.view(self.of(operands))
        return made[self.again]


@dataclass(frozen=True)
class Made:
    """A wrapper that goes out, and where what it is made of comes from.

    Attributes:
        wrapped: Makes it.
        sources: Where the tensors come from.
        sizes: The open sizes that it is given, by position among the operands.
        carried: The objects among its metadata that the operands bring.
    """

    wrapped: Wrapped
    sources: tuple[Source, ...]
    sizes: tuple[int, ...] = ()
    carried: Carried | None = None


@dataclass(frozen=True)
class Detached:
    """A result of the inner graph inside of a wrapper that isn't the object outside of it.

    Attributes:
        position: Its position.
    """

    position: int


# A position among the inner graph's results, an operand or a part of one, or a wrapper of such.
Source: TypeAlias = "int | Detached | Given | Made | None"


@dataclass(frozen=True, eq=False)
class Outside:
    """What the caller of a graph without wrappers has to do around it.

    Attributes:
        given: Where each of the inner graph's inputs comes from.
        results: Where each of the outer graph's results comes from.
        arity: How many tensors the outer graph takes; its open sizes come after them.
    """

    given: tuple[Given, ...]
    results: tuple[Source, ...]
    arity: int

    def around(self, lowered: Lowered) -> Lowered:
        """The outer graph's executable, made of that of the inner one.

        The inner one's layouts are those of what is inside, and are looked at there.
        """
        run, trusting = (
            Around(each, self, lowered.layouts) for each in (lowered.run, lowered.trusting)
        )
        return replace(lowered, run=run, trusting=trusting, layouts=None)


@dataclass(frozen=True, eq=False)
class Peeled:
    """A graph without wrappers, and what is around it.

    Attributes:
        graph: The inner graph.
        outside: What its caller has to do.
    """

    graph: FunctionalGraph
    outside: Outside


@dataclass(frozen=True, eq=False)
class Around:
    """Runs an inner graph on what is inside of wrappers, and makes wrappers of its results.

    Attributes:
        run: The inner graph.
        outside: What is around it.
        layouts: Those of the inner graph's operands, if they matter and are known.
    """

    run: Run
    outside: Outside
    layouts: tuple[Layout, ...] | None = None

    def __call__(self, operands: list[Any]) -> Sequence[Any]:
        """Run it on tensors that may be wrappers."""
        outside = self.outside
        given = [_unrecorded(source.of(operands)) for source in outside.given]
        made = self.run([*given, *operands[outside.arity :]])
        again: dict[Any, Any] = {}
        return tuple(_result(source, operands, made, again) for source in outside.results)


def _unrecorded(value: Any) -> Any:
    """A tensor as ops below autograd see it: one inside of a wrapper may require grad itself."""
    return value.detach() if value.requires_grad else value


def _result(
    source: Source, operands: Sequence[Any], made: Sequence[Any], again: dict[Any, Any]
) -> Any:
    if isinstance(source, int):
        return made[source]
    if isinstance(source, Detached):
        if source not in again:
            again[source] = made[source.position].detach()
        return again[source]
    if isinstance(source, Given):
        return source.once(operands, again)
    if source is None:
        return None
    parts = [_result(part, operands, made, again) for part in source.sources]
    sizes, carried = [operands[position] for position in source.sizes], source.carried
    if carried is None:
        return source.wrapped(*parts, *sizes)
    bring = partial(carried, given=operands, again=again)
    return source.wrapped(*parts, *sizes, carried=bring)


def peeled(graph: FunctionalGraph) -> Peeled | None:
    """A graph without its wrappers; None if it has none.

    Raises:
        GraphError: If something else than taking apart and making happens to one.
    """
    module = graph.module
    if not any(is_wrapper(graphs.value_of(node)) for node in module.graph.nodes):
        return None
    return _Peeling(graph).peel()


class _Peeling:
    def __init__(self, graph: FunctionalGraph) -> None:
        self.outer = graph
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.sources: dict[fx.Node, Given] = {}
        self.given: list[Given] = []
        self.wanted: dict[fx.Node, int] = {}
        self.numbers: dict[fx.Node, int] = {}
        self.held: set[Any] = set()
        given = [graphs.value_of(node) for node in graphs.inputs(graph.module)]
        self.origins = origins_of([each for each in enumerate(given) if is_wrapper(each[1])])

    def peel(self) -> Peeled:
        nodes = list(self.outer.module.graph.nodes)
        arity = len(graphs.inputs(self.outer.module))
        open_sizes = [node for node in nodes if node.op == "placeholder" and graphs.is_size(node)]
        self.numbers = {node: arity + position for position, node in enumerate(open_sizes)}
        for position, node in enumerate(graphs.inputs(self.outer.module)):
            self._enter(node, Given(position))
        for node in nodes:
            if node in self.copies or node.op == "output" or node in self.sources:
                continue
            if is_part(node) and not node.users:
                continue
            if is_wrapped(node):
                self._check(node)
            else:
                self.copies[node] = self.graph.node_copy(node, self._copy_of)
        values = next(iter(reversed(nodes))).args[0]
        shown = self.outer.roles.shown
        # What a wrapper holds gets its own history as a result that nobody is shown.
        self.held = {part for each in values if _makes(each) for part in parts_of(each)}
        found = tuple(self._result(value, shown=i in shown) for i, value in enumerate(values))
        alone = {source for source in found if isinstance(source, int)}
        results = tuple(_only_where_shown(source, alone) for source in found)
        self.graph.output(tuple(self.copies[node] for node in self.wanted))
        module = forget_source_with(fx.GraphModule(self.outer.module, self.graph))
        kept = [i for i, given in enumerate(self.given) if given.operand in self.outer.kept]
        graph = replace(self.outer, module=module, roles=self._roles(results), kept=tuple(kept))
        return Peeled(graph, Outside(tuple(self.given), results, arity))

    def _copy_of(self, node: fx.Node) -> fx.Node:
        if node not in self.copies:
            raise GraphError(
                f"A graph of {self.outer.name} uses the wrapper {node.name!r} as a whole.\n"
                f"{graphs.shown(self.outer.module.graph)}",
                remedy="please report this with the function that was compiled.",
            )
        return self.copies[node]

    def _enter(self, node: fx.Node, given: Given) -> None:
        """Make inputs of what is read of an input."""
        self.sources[node] = given
        if not is_wrapper(graphs.value_of(node)):
            self.copies[node] = self.graph.placeholder(node.name)
            self.copies[node].meta = dict(node.meta)
            self.given.append(given)
            return
        self._check(node)
        for user in node.users:
            if is_part(user) and user.users:  # The sizes of what nobody reads aren't given either.
                name = user.target.attribute  # type: ignore[union-attr]
                self._enter(user, Given(given.operand, (*given.path, name)))

    def _check(self, node: fx.Node) -> None:
        for user in node.users:
            if not (is_part(user) or is_wrapped(user) or user.op == "output"):
                self._copy_of(node)

    def _result(self, value: Any, *, shown: bool) -> Source:
        """A result; what a caller gets of an input's inside is in that memory (``to_local``)."""
        if shown and isinstance(value, fx.Node) and not is_wrapper(graphs.value_of(value)):
            node = graphs.without_aliases(value)  # A graph detaches what it returns.
            found = (node, ALONE) if is_part(node) else shown_from(node)
            if found is not None and is_part(found[0]) and found[0] in self.sources:
                return replace(self.sources[found[0]], again=value.name, view=found[1])
        held = isinstance(value, fx.Node) and not shown and graphs.without_aliases(value)
        return self._source(held if held in self.held else value)

    def _source(self, value: Any) -> Source:
        if not isinstance(value, fx.Node):
            return None
        if is_wrapped(value):
            inside = parts_of(value)
            names = ("detached", "apart")
            told = [value.meta.get(name, ()) or [False] * len(inside) for name in names]
            pairs = zip(inside, *told, strict=False)
            sources = tuple(self._source_inside(part, *known) for part, *known in pairs)
            sizes = tuple(self.numbers[size] for size in value.args[len(sources) :])  # type: ignore
            target: Any = value.target
            carried = Carried.by(target.structure, self.origins, target.brought)
            return Made(target, sources, sizes, carried)
        if is_wrapper(graphs.value_of(value)):
            return self.sources[value]
        if value in self.sources and names_size(graphs.value_of(value)):
            return self.sources[value]
        return self._computed(value)

    def _source_inside(self, value: Any, detached: bool, apart: bool) -> Source:
        """An input, or a view of one, is wrapped as it is, which no graph's result is."""
        if value in self.sources:
            source = self.sources[value]
            if detached and graphs.value_of(value).is_floating_point():
                return replace(source, again=f"{value.name} detached", view=ALONE)
            return source
        shown = shown_from(value) if isinstance(value, fx.Node) else None
        if shown is None or shown[0] not in self.sources:
            source = self._source(value)
            return Detached(source) if detached and isinstance(source, int) else source
        whole, view = shown
        if apart and graphs.value_of(value).is_floating_point() and view != ALONE:
            view = replace(view, steps=(DETACHED, *view.steps))
        name = graphs.without_aliases(value).name
        return replace(self.sources[whole], again=name, view=view)

    def _computed(self, node: fx.Node) -> int:
        return self.wanted.setdefault(node, len(self.wanted))

    def _roles(self, results: Sequence[Source]) -> Roles:
        roles = self.outer.roles

        def inner(places: frozenset[int]) -> frozenset[int]:
            found = [place for position in places for place in _places(results[position])]
            return frozenset(found)

        shown = inner(roles.shown)
        return Roles(shown, inner(roles.copied) - shown, inner(roles.private) - shown)


def _makes(value: Any) -> bool:
    return isinstance(value, fx.Node) and is_wrapped(value)


def _only_where_shown(source: Source, alone: set[int]) -> Source:
    """A source without detached objects of what no result is by itself."""
    if isinstance(source, Detached):
        return source if source.position in alone else source.position
    if isinstance(source, Made):
        parts = tuple(_only_where_shown(part, alone) for part in source.sources)
        return replace(source, sources=parts)
    return source


def _places(source: Source) -> list[int]:
    """The inner graph's results that a result is made of."""
    if isinstance(source, int):
        return [source]
    if isinstance(source, Detached):
        return [source.position]
    if isinstance(source, Made):
        return [place for part in source.sources for place in _places(part)]
    return []
