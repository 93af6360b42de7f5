"""What autograd saves for an in-place op on a view, or on lists: it can't be seen afterwards.

The node that autograd makes for a write to a view (``CopySlices``) hides the op's own node, and
with it what that one saved; the node of an op on lists has no names for it. So it is looked at
while it is saved. Hooks take away autograd's check of versions, so this file does that check too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs
from funcaot.aot.tape.memory import views
from funcaot.aot.tape.tape import Tape


class _Saved:
    """A saved tensor with its node at that moment, and whose version autograd would check."""

    def __init__(self, tape: Tape, tensor: torch.Tensor) -> None:
        self.tape = tape
        self.tensor = tensor
        self.node = tape.node_of(tensor)
        self.original: torch.Tensor | None = None
        self.version = 0

    def watch(self, original: torch.Tensor | None, version: int) -> None:
        self.original, self.version = original, version

    def unpack(self) -> torch.Tensor:
        original = self.original
        changed = original is not None and original._version != self.version
        # Through a view the tensor would show what was written to its memory since.
        if changed or self.tape.node_of(self.tensor) is not self.node:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor {list(self.tensor.shape)} that an op on a view or on "
                "lists, saved has been written to since."
            )
        return self.tensor


def is_write(name: str) -> bool:
    """Whether a torch function's name says that it changes its first argument."""
    if name.endswith("__"):
        return name == "__setitem__" or name in _AUGMENTED
    return name.endswith("_")


# What names dimensions only, which mean the same for a batch.
BY_DIMENSIONS = frozenset(("squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"))
RESHAPING = BY_DIMENSIONS | {"as_strided_", "resize_", "resize_as_"}
METADATA_ONLY = RESHAPING | {"requires_grad_", "detach_", "set_", "retain_grad_"}
_AUGMENTED = frozenset(
    f"__i{name}__"
    for names in (
        ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        ("and", "or", "xor", "lshift", "rshift"),
    )
    for name in names
)


def share_memory(targets: Sequence[torch.Tensor]) -> bool:
    """Whether some of a list of tensors live in one storage."""
    storages = [tracing.storage_key(target) for target in targets]
    return len(set(storages)) < len(storages)


def one_by_one(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an in-place op of lists tensor by tensor: each write is seen by those that follow."""
    count = len(args[0])
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
    if any(len(value) != count for value in given):
        return func(*args, **kwargs)  # It raises.

    def part(value: Any, index: int) -> Any:
        several = isinstance(value, list | tuple) and len(value) == count
        return [value[index]] if several else value

    for index in range(count):
        own = [part(value, index) for value in args]
        keywords = {key: part(value, index) for key, value in kwargs.items()}
        counted(own[0], lambda own=own, keywords=keywords: func(*own, **keywords))
    return args[0]


def counted(targets: Sequence[torch.Tensor], write: Callable[[], Any]) -> Any:
    """Run an op that writes to a list of tensors; functional tensors don't count these writes."""
    before = [(target, autograd.version_of(target)) for target in targets]
    result = write()
    for target, version in before:
        if not target.is_inference() and target._version == version:
            torch.autograd.graph.increment_version(target)
    return result


def recorded(
    tape: Tape, view: torch.Tensor, operands: Sequence[torch.Tensor], write: Callable[[], Any]
) -> Any:
    """Run an in-place op on a view, and tell the tape what autograd saved for it.

    Args:
        tape: The tape, recording.
        view: What is written to.
        operands: The op's tensors.
        write: Runs the op.
    """
    if not tracing.saved_tensors_hooks_enabled():
        return write()
    base = view if view._base is None else view._base
    previous = base.grad_fn
    result, saved = _watched(tape, operands, write)
    for item in saved:
        # Its own result: an op on shapes alone, which makes no new value, counts too.
        if item.original is None and item.node is not None and _shows(tape, view, item.node):
            item.watch(view, view._version)
    made = base.grad_fn
    if made is not None and made is not previous and made.name().endswith("CopySlices"):
        tape.saved_by_writes[made] = _nodes_of(saved)
    return result


def recorded_of_lists(tape: Tape, operands: Sequence[torch.Tensor], run: Callable[[], Any]) -> Any:
    """Run an op on lists of tensors, and tell the tape what autograd saved for it.

    Args:
        tape: The tape, recording.
        operands: The op's tensors.
        run: Runs the op, and returns the list of its results, if these are new.
    """
    if not tracing.saved_tensors_hooks_enabled():
        return run()
    previous = {operand.grad_fn for operand in operands}
    results, saved = _watched(tape, operands, run)
    for made in {result.grad_fn for result in (*operands, *(results or ()))} - previous:
        tape.saved_by_writes[made] = _nodes_of(saved)
    return results


def _watched(
    tape: Tape, operands: Sequence[torch.Tensor], run: Callable[[], Any]
) -> tuple[Any, list[_Saved]]:
    """The result of an op, and what autograd saved for it."""
    before = {
        graphs.without_aliases(node): (operand, operand._version)
        for operand in operands
        if (node := tape.node_of(operand)) is not None
    }
    saved: list[_Saved] = []

    def pack(tensor: torch.Tensor) -> _Saved:
        item = _Saved(tape, tensor)
        if item.node is not None:
            item.watch(*before.get(graphs.without_aliases(item.node), (None, 0)))
        saved.append(item)
        return item

    with torch.autograd.graph.saved_tensors_hooks(pack, _Saved.unpack):
        return run(), saved


def _nodes_of(saved: Sequence[_Saved]) -> tuple[fx.Node, ...]:
    return tuple(item.node for item in saved if item.node is not None)


def _shows(tape: Tape, view: torch.Tensor, node: fx.Node) -> bool:
    """Whether a node's value is what a view shows now."""
    now = tape.node_of(view)
    steps = None if now is None else views.chain(node, now)
    return steps is not None and all(step.is_alias for step in steps)
