"""An op that writes to part of a tensor works in memory of its own where it would spoil another's.

Inductor lets an op such as ``index_put`` work in its first operand's memory where nothing reads it
later. It doesn't ask what the op itself reads: ``h.index_copy_(0, i, h[1:].clone())`` lost the
clone, and then rows were overwritten before they were read. Nor does it ask whether the operand's
elements have memory of their own: those of an expanded tensor share it. And it takes the result of
the op that restrides for new memory, which it isn't where the strides are right already. Where it
has no code for what an op computes with, as for complex numbers, it calls torch's op. That one gave
back its operand's memory, which another buffer got while the result was still to be read.

Where Inductor's scheduler puts loops together, torch 2.13 and 2.14 forget that a loop reads what an
op has written to memory that was there before, as the wait for a collective does. The loop then ran
before the wait, and read what the memory happened to hold.
They forget as well whose memory that is: part of what a `cat` makes, all of which was then given to
another buffer while the part was still to be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from funcaot.base.scopes import holding

__all__ = ["TAG", "apart", "restriding_op"]

# What tells modules made with this from others in Inductor's caches.
TAG = " apart 6"


@contextlib.contextmanager
def apart() -> Iterator[str]:
    """Have Inductor keep the first operand where something else may lie in its memory."""
    from torch._inductor.fx_passes import reinplace

    tables = {
        name: _careful(getattr(reinplace, name))
        for name in ("inplaceable_ops", "inplaceable_foreach_ops")
    }
    storage_of = _known_storage(reinplace.get_node_storage)
    with holding(reinplace, **tables, get_node_storage=storage_of), _after_writes(), _kept_whole():
        yield TAG


def _after_writes() -> Any:
    """Have the scheduler remember which writes a loop comes after when its body is made again."""
    from torch._inductor.scheduler import SchedulerNode

    original = SchedulerNode.recompute_size_and_body

    def recompute_size_and_body(
        self: Any,
        extra_indexing_constraints: Any = None,
        recompute_sizes_body_func: Any = None,
    ) -> None:
        original(self, extra_indexing_constraints, recompute_sizes_body_func)
        if self.mutation_renames:
            self.set_read_writes(self.read_writes.rename(self.mutation_renames))

    return holding(SchedulerNode, recompute_size_and_body=recompute_size_and_body)


def _kept_whole() -> Any:
    """Have the scheduler keep all of the memory whose part was written to, until that is read."""
    from torch._inductor.scheduler import BaseSchedulerNode
    from torch._inductor.virtualized import V

    original = BaseSchedulerNode.used_or_aliased_buffer_names

    def used_or_aliased_buffer_names(self: Any) -> Any:
        found = original(self)
        renamed = self.scheduler.mutation_real_name
        waiting = [renamed[name] for name in found if name in renamed]
        while waiting:
            name = waiting.pop()
            found.add(name)
            buffer = V.graph.name_to_buffer.get(name)
            aliases = buffer.get_inputs_that_alias_output() if buffer else ()
            waiting += [alias for alias in aliases if alias not in found]
        return found

    return holding(BaseSchedulerNode, used_or_aliased_buffer_names=used_or_aliased_buffer_names)


def _known_storage(original: Callable[[fx.Node], int | None]) -> Callable[[fx.Node], int | None]:
    """The storage of a node, or None, which keeps it unwritten, where it may lie in another's."""

    def storage_of(node: fx.Node) -> int | None:
        restrided = node.graph.find_nodes(op="call_function", target=restriding_op(), sort=False)
        roots = {_root(other) for other in restrided}
        return None if roots and _root(node) in roots else original(node)

    return storage_of


def restriding_op() -> Any:
    """The op that gives a tensor of Inductor's certain strides, by a copy if it has others."""
    from torch._inductor import inductor_prims  # defines it

    return inductor_prims.force_stride_order


def _careful(table: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        op: dataclasses.replace(entry, extra_check=_check(entry)) for op, entry in table.items()
    }


def _check(entry: Any) -> Callable[[fx.Node], bool]:
    from torch._inductor.lowering import fallback_node_due_to_unsupported_type

    def check(node: fx.Node) -> bool:
        positions = entry.mutated_arg
        positions = (positions,) if isinstance(positions, int) else positions
        if _reads_what_it_writes(node, positions) or _is_expanded(node, positions):
            return False
        if fallback_node_due_to_unsupported_type(node):
            return False
        return entry.extra_check(node)

    return check


def _is_expanded(node: fx.Node, positions: tuple[int, ...]) -> bool:
    """Whether elements of what an op writes to share memory with each other."""
    written = [leaf.meta.get("val") for at in positions for leaf in _nodes(node.args[at])]
    return any(
        step == 0 and size != 1
        for value in written
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        for size, step in zip(value.shape, value.stride(), strict=True)
    )


def _reads_what_it_writes(node: fx.Node, positions: tuple[int, ...]) -> bool:
    # Behind an operator or a token, positions are counted from there; then all are compared.
    written = [leaf for position in positions for leaf in _nodes(node.args[position])]
    others = [
        leaf
        for position, argument in enumerate(node.args)
        if position not in positions
        for leaf in _nodes(argument)
    ]
    others += [leaf for argument in node.kwargs.values() for leaf in _nodes(argument)]
    roots = [_root(leaf) for leaf in written]
    if any(_root(leaf) in roots and leaf not in written for leaf in others):
        return True
    # In lists, each is written to at the place of the other that it is computed from.
    several = isinstance(node.args[positions[0]], list | tuple)
    return not several and any(leaf in written for leaf in others)


def _nodes(argument: Any) -> list[fx.Node]:
    if isinstance(argument, list | tuple):
        return [leaf for item in argument for leaf in _nodes(item)]
    return [argument] if isinstance(argument, fx.Node) else []


def _root(node: fx.Node) -> fx.Node:
    """The node in whose memory another one may lie, as far as views tell."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        source = node.args[0]
        # What gives several views gives them one by one.
        maker = source if node.target is operator.getitem else node
        if not _may_be_a_view(maker.target):
            break
        node = source
    return node


def _may_be_a_view(target: Any) -> bool:
    from torch.fx.passes.reinplace import _is_view_op

    return target is restriding_op() or bool(_is_view_op(target))
