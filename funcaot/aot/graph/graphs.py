"""Subgraphs of a tape: extraction, and ops by kind."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.autograd.nodes import autograd_nodes
from funcaot._torch.distributed import collectives
from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot._torch.tensors.ops import CHECKS, OpOverload, acts
from funcaot._torch.tensors.renamed import ORIGINALS, RENAMED
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.sizes.ragged import names_size
from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.subclasses.nodes import Part, is_part, is_wrapped, parts_inside, parts_of
from funcaot.aot.subclasses.structure import is_wrapper, leaves_of
from funcaot.classes.opaque import is_forgotten
from funcaot.classes.premise import holds, reads_number
from funcaot.errors import GraphError

aten = torch.ops.aten

GETITEM = operator.getitem
_ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}


def closure(
    wanted: Iterable[fx.Node], available: Iterable[fx.Node], plain: Container[fx.Node] = ()
) -> set[fx.Node]:
    """Nodes that must run to get ``wanted`` from ``available`` (which are not in the result).

    Those of ``plain`` are available too, and none of them is a wrapper: there may be many.
    """
    have = with_parts(available)
    needed: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node in needed or node in have or node in plain:
            continue
        needed.add(node)
        pending.extend(node.all_input_nodes)
    return needed


def with_parts(available: Iterable[fx.Node]) -> set[fx.Node]:
    """Nodes that are there if some are: a wrapper has the tensors that it was made of."""
    have = set(available)
    for node in [node for node in have if is_wrapped(node)]:
        have.update(parts_inside(node))
    return have


def _open(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> None:
    """Take a wrapper that is given apart, so that what it was made of is given, too."""
    target: Any = node.target
    for name, argument in zip(target.structure.names, parts_of(node), strict=True):
        part: Any = argument
        if part not in copies:
            copies[part] = graph.call_function(Part(name), (copies[node],))
            copies[part].meta = dict(part.meta)
        if is_wrapped(part):
            _open(graph, part, copies)


def nodes_from(wanted: fx.Node, start: set[fx.Node]) -> set[fx.Node]:
    """Nodes behind ``wanted``, itself among them, that depend on some of ``start``."""
    reached: set[fx.Node] = set()
    for node in sorted(closure([wanted], start)):
        if any(source in reached or source in start for source in node.all_input_nodes):
            reached.add(node)
    return reached


def extract(
    root: torch.nn.Module,
    available: Sequence[fx.Node],
    wanted: Sequence[fx.Node],
    *,
    keep_alive: Iterable[fx.Node] = (),
    since: fx.Node | None = None,
) -> fx.GraphModule:
    """Cut the subgraph from some nodes to others out of a tape.

    Args:
        root: Module that owns the tape's constants.
        available: Nodes that become placeholders, in this order, each once.
        wanted: Nodes that become outputs, in this order.
        keep_alive: Nodes that run even if no output depends on them (random ops).
        since: Nodes run in the tape's order, but those before this one run only where they are
            first used: what a backward computes again shouldn't take up memory earlier.

    Returns:
        A graph module ``(*available) -> tuple(wanted)``; the open sizes that occur in it are
        further inputs.

    Raises:
        GraphError: If an output depends on an input of the tape that isn't available.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in available:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in available:
        if is_wrapped(node):
            _open(graph, node, copies)
    visible = set(wanted)
    needed = closure([*wanted, *keep_alive], available)
    for node in _open_sizes(root, [*available, *needed]):
        if node not in copies:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
    for node in _schedule(needed - set(copies), since):
        if node.op == "placeholder":
            raise GraphError(
                f"A graph needs the tape's input {node.name!r}, which was not kept.\n"
                f"{shown(node.graph)}",
                remedy="save it with ctx.save_for_backward in the Function that uses it.",
            )
        if node.target in _ALIASES and node not in visible:
            # Autograd's own detaches; nobody differentiates an extracted graph.
            copies[node] = copies[node.all_input_nodes[0]]
            continue
        copies[node] = graph.node_copy(node, lambda argument: copies[argument])
        if is_wrapped(node):
            parts = parts_of(node)
            copies[node].meta["detached"] = [
                part.target in _ALIASES and part not in visible for part in parts
            ]
            copies[node].meta["apart"] = [*map(_has_detach, parts)]
        copies[node].target = RENAMED.get(node.target, node.target)
    graph.output(tuple(copies[node] for node in wanted))
    return forget_source_with(fx.GraphModule(root, graph))


def _has_detach(view: fx.Node) -> bool:
    """Whether autograd doesn't know what a node is a view of."""
    node: fx.Node | None = view
    while node is not None and node.target is not aten.detach.default:
        node = view_source(node)
    return node is not None


def _open_sizes(root: torch.nn.Module, nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The inputs of a tape that are sizes and occur in the values of some nodes."""
    sizes: Sequence[fx.Node] = getattr(root, "size_nodes", ())
    if not sizes:
        return []
    found = {symbol for node in nodes for symbol in shapes.symbols_in(value_of(node))}
    return [node for node in sizes if shapes.expression_of(value_of(node)) in found]


def inputs(module: fx.GraphModule) -> list[fx.Node]:
    """The inputs of a graph that are tensors; its open sizes come after them."""
    return [node for node in module.graph.nodes if node.op == "placeholder" and not is_size(node)]


def is_size(node: fx.Node) -> bool:
    """Whether a node's value is a number made of open sizes, and not a tensor."""
    return isinstance(value_of(node), shapes.SYMBOLIC_NUMBERS)


def is_size_input(node: fx.Node) -> bool:
    """Whether a node is an input of a graph that stands for a size."""
    return node.op == "placeholder" and is_size(node)


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """The nodes that a node reads, without sizes."""
    return [source for source in node.all_input_nodes if not is_size(source)]


def shape_of(value: Any) -> tuple[int, ...]:
    """A fake tensor's shape; where sizes are open, that of the call that was traced last."""
    shape = tuple(map(shapes.expression_of, value.shape))
    if not any(map(shapes.is_expression, shape)):
        return shape
    environment = value.fake_mode.shape_env
    return tuple(int(environment.at_present(size)) for size in shape)


def bytes_of(value: torch.Tensor) -> int:
    """Bytes of a tensor's elements; for open sizes, of the call that was traced last."""
    if is_wrapper(value):
        return sum(map(bytes_of, leaves_of(value)))
    return math.prod(shape_of(value)) * value.element_size()


def _schedule(needed: set[fx.Node], since: fx.Node | None) -> list[fx.Node]:
    """Nodes in the order in which they run."""
    ordered = sorted(needed)
    if since is None or not ordered or not ordered[0] < since:
        return ordered
    scheduled: dict[fx.Node, None] = {}
    late = [node for node in ordered if node < since]
    for target in [node for node in ordered if not node < since] + late:
        pending = [target]
        while pending:
            node = pending[-1]
            first = [
                source
                for source in node.all_input_nodes
                if source in needed and source not in scheduled
            ]
            if first:
                pending.extend(reversed(first))
                continue
            scheduled.setdefault(pending.pop())
    return list(scheduled)


def is_view(node: fx.Node) -> bool:
    """Whether a node's result shares the storage of its first argument."""
    if node.op != "call_function":
        return False
    return is_part(node) or (isinstance(node.target, OpOverload) and _makes_view(node.target))


@functools.cache
def _makes_view(op: OpOverload) -> bool:
    # A schema makes new objects of its parts whenever it is asked, so each op is looked at once.
    if op in _ALIASES:
        return True
    returns = op._schema.returns
    arguments = op._schema.arguments
    if not returns or not arguments or arguments[0].alias_info is None:
        return False
    return not arguments[0].alias_info.is_write and returns[0].alias_info is not None


def view_source(node: fx.Node) -> fx.Node | None:
    """The node that this one is a view of, or None if it made its own storage."""
    if (
        node.target is operator.getitem
        and isinstance(node.args[0], fx.Node)
        and is_view(node.args[0])
    ):
        node = node.args[0]
    if is_view(node) and isinstance(node.args[0], fx.Node):
        return node.args[0]
    return None


def without_aliases(node: fx.Node) -> fx.Node:
    """The node behind ``detach`` and ``alias``, which autograd adds whenever it reads."""
    while node.op == "call_function" and node.target in _ALIASES:
        node = node.args[0]  # type: ignore[assignment]
    return node


def view_root(node: fx.Node) -> fx.Node:
    """The node whose storage this one's result lives in."""
    source = view_source(node)
    while source is not None:
        node, source = source, view_source(source)
    return node


def memory_roots(node: fx.Node) -> set[fx.Node]:
    """The nodes whose storages this one's result lives in: several for a wrapper."""
    return {view_root(each) for each in (node, *parts_inside(node))}


def op_of(node: fx.Node) -> Any:
    """What a node calls, also where it has another name there."""
    return ORIGINALS.get(node.target, node.target)


def is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers (so that running it again gives other values)."""
    if node.op != "call_function":
        return False
    op = op_of(node)
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def needed_for(found: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """All nodes that some are computed from, and these."""
    waiting = list(found)
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        new = [each for each in node.all_input_nodes if each not in seen]
        seen.update(new)
        waiting += new


def has_effect(node: fx.Node) -> bool:
    """Whether a node runs even if nobody uses its result: draws, checks, premises, and the like."""
    if is_forgotten(node):
        return False
    return is_random(node) or node.target in CHECKS or is_premise(node) or _reaches_out(node)


def acts_outside(node: Any) -> bool:
    """Whether a node calls an op for what it does outside of tensors."""
    return isinstance(node, fx.Node) and acts(node.target)


def _reaches_out(node: fx.Node) -> bool:
    return is_collective(node) or acts_outside(node) or (is_opaque(node) and not is_premise(node))


def is_collective(node: fx.Node) -> bool:
    """Whether a node waits for other ranks, each of which runs it as often."""
    return node.op == "call_function" and collectives.is_collective(node.target)


def places_in_groups(nodes: Iterable[fx.Node]) -> tuple[tuple[str, Any], ...]:
    """The groups that some nodes wait for: how many ranks they have, and which this one is."""
    found = {collectives.group_in(node.target, node.args) for node in nodes} - {None}
    return tuple((name, collectives.place_in(name)) for name in sorted(map(str, found)))


def premises(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """A tensor that each premise among some nodes makes."""
    return tuple(
        node if isinstance(value_of(node), torch.Tensor) else next(iter(node.users))
        for node in nodes
        if is_premise(node)
    )


def premises_after(node: fx.Node) -> tuple[fx.Node, ...]:
    """The premises that a tape recorded after a node."""
    return tuple(filter(is_premise, _after(node)))


def that_must_run(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """A tensor of each premise, draw and call of others or the outside, the premises' last."""
    listed = tuple(nodes)
    found = ((node, *node.users) for node in listed if is_random(node) or _reaches_out(node))
    tensors = [
        [node for node in near if isinstance(value_of(node), torch.Tensor)] for near in found
    ]
    return (*(near[0] for near in tensors if near), *premises(listed))


def reaching_out_after(node: fx.Node) -> tuple[fx.Node, ...]:
    """The collectives, and what acts outside of tensors, that a tape recorded after a node."""
    return tuple(filter(_reaches_out, _after(node)))


def _after(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        if not is_forgotten(node):
            yield node


def is_premise(node: fx.Node) -> bool:
    """Whether a node leaves the program if values aren't what it was made for."""
    return is_function_node(node) and holds(node.target.function)  # type: ignore[union-attr]


def keeps_values(node: fx.Node) -> bool:
    """Whether a Function on real values leaves the program if it hands on other values."""
    return is_opaque(node) and node.target.opaque.keeps  # type: ignore[union-attr]


def is_premise_of_number(node: fx.Node) -> bool:
    """Whether it does if a number isn't what was read, so that no tensor comes out of it."""
    return is_premise(node) and reads_number(node.target.function)  # type: ignore[union-attr]


def is_function_node(node: fx.Node) -> bool:
    """Whether a node is a user's Function, kept whole."""
    return node.op == "call_function" and hasattr(node.target, "inline")


def is_opaque(node: Any) -> bool:
    """Whether a node is a user's Function that runs on real values, since it can't be traced."""
    return isinstance(node, fx.Node) and getattr(node.target, "opaque", None) is not None


def runs_alone(node: Any) -> bool:
    """Whether a node runs between compiled parts, in its place among others that do."""
    return is_opaque(node) or acts_outside(node)


def leads_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether autograd leads from a tensor to another one, a leaf or not."""
    return any(
        node is other.grad_fn or getattr(node, "variable", None) is other
        for node in autograd_nodes([tensor])
    )


def value_of(node: fx.Node) -> Any:
    """The fake value that a node had when it was traced."""
    return node.meta.get("val")


def shown(graph: fx.Graph, limit: int = 60) -> str:
    """A graph as text, for a message."""
    lines = str(graph).splitlines()
    if len(lines) > limit:
        lines = [*lines[:limit], f"... ({len(lines) - limit} more lines)"]
    return "\n".join(lines)


def _is_returned_operand(node: fx.Node) -> bool:
    """Whether a Function returned an operand as it is."""
    value, given = value_of(node), _operands_of_function(node)
    return any(
        _storage(value) == _storage(operand)
        and value.shape == operand.shape
        and value.stride() == operand.stride()
        and value.storage_offset() == operand.storage_offset()
        for operand in given
        if _storage(operand) is not None
    )


def is_in_memory_of_operand(node: fx.Node) -> bool:
    """Whether a node's result lies in memory that a Function was given, and returned."""
    node = view_root(node)
    given = {_storage(operand) for operand in _operands_of_function(node)}
    return _storage(value_of(node)) in given - {None}


def memory_of(node: fx.Node) -> Hashable:
    """Whose memory a node's result lives in; a Function may return memory that it was given."""
    root = view_root(node)
    made = _function_behind(root)
    storage = _storage(value_of(root))
    if made is None or storage is None:
        return root
    for operand in made.all_input_nodes:
        if _storage(value_of(operand)) == storage:
            return memory_of(operand)
    return made, storage


def _operands_of_function(node: fx.Node) -> list[Any]:
    """The values that a Function was given, if a node is its result; else none."""
    made = _function_behind(node)
    return [] if made is None else [value_of(operand) for operand in made.all_input_nodes]


def _function_behind(node: fx.Node) -> fx.Node | None:
    """The call of a user's Function that a node is a result of."""
    made = node.args[0] if node.target is GETITEM else node
    return made if isinstance(made, fx.Node) and is_function_node(made) else None


def _storage(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or is_functorch_wrapped_tensor(value):
        return None
    return value.untyped_storage()._cdata if value.layout is torch.strided else None


def with_own_outputs(
    module: fx.GraphModule, copied: Iterable[int] = (), *, detached: bool = False
) -> fx.GraphModule:
    """Change a graph so that no output is one of its inputs: such an output becomes a copy.

    A graph returns its input only where the caller overwrites that input afterwards, so that
    what is kept has to be a copy made before.

    Args:
        module: The graph; it is changed.
        copied: Positions of further outputs that must not share storage with anything.
        detached: Whether an operand that a Function returns is detached, as in ``no_grad``.
    """
    output = next(iter(reversed(module.graph.nodes)))
    values = list(output.args[0])  # type: ignore[arg-type]
    chosen = set(copied)
    for position, value in enumerate(values):
        if isinstance(value, fx.Node) and (value.op == "placeholder" or position in chosen):
            with module.graph.inserting_before(output):
                copy = module.graph.call_function(aten.clone.default, (value,))
            copy.meta = dict(value.meta)
            values[position] = copy
            chosen.add(position)
        elif (isinstance(value, fx.Node) and not names_size(value_of(value))) and (
            view_source(value) is not None or (detached and _is_returned_operand(value))
        ):
            # Run op by op, it would be a view for autograd, of a tensor that nobody has.
            with module.graph.inserting_before(output):
                alias = module.graph.call_function(aten.detach.default, (value,))
            alias.meta = dict(value.meta)
            values[position] = alias
            chosen.add(position)
    if chosen:
        output.args = (tuple(values),)
        module.recompile()
        forget_source_with(module)
    return module
