"""The frontier: what autograd declared saved while the forward ran on the tape."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Set
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from funcaot._torch.autograd.nodes import autograd_nodes, function_class, has_grad_fn
from funcaot.aot.tape.masks import Mask, mask_of
from funcaot.aot.tape.tape import Tape
from funcaot.aot.tape.wrappers import is_wrapper
from funcaot.classes.traits import has_backward, reverse_rule
from funcaot.operator.single_level import USER_FUNCTION
from funcaot.rules.operands.reached import may_hold, reached_from

_DEPTH = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """One tensor that some backward will ask for.

    Attributes:
        node: The tape's node that computes it.
        consumer: Name of the autograd node that saved it.
        region: The checkpointed region of the tape that the autograd node belongs to, if any.
        mask: What its backward really asks of the tensor, if that is only where it passes
            gradients on.
        checked: Whether autograd saved it, so that its version is checked; not so for what a
            Function keeps as an attribute.
    """

    node: fx.Node
    consumer: str
    region: int | None = None
    mask: Mask | None = None
    checked: bool = True


def frontier(
    tape: Tape, outputs: Sequence[torch.Tensor], ends: Set[fx.Node] = frozenset()
) -> tuple[Demand, ...]:
    """Walk the autograd graph recorded on the tape and list what it saved.

    Saved-tensor hooks would see the same but are forbidden inside ``torch.func.grad``. A saved
    tensor that was modified in place since is left out: its backward raises eager's error.

    Args:
        tape: The tape.
        outputs: Tensors of the tape to start from.
        ends: What can be kept as it is; a wrapper that can't be is its inner tensors.

    Returns:
        Demands in a deterministic order, each once.
    """
    found: dict[Demand, None] = {}
    last = next(iter(reversed(tape.graph.nodes)))
    with tape.recording(grad_mode=False):
        for function in _nodes_with_code(tape, outputs):
            mask, region = mask_of(function), _region_of(tape, function)
            for written in tape.saved_by_writes.get(function, ()):
                for node in tape.wrappers.saved(written, ends):
                    found.setdefault(Demand(node, function.name(), region))
            held = ((tensor, False) for tensor in _reached_by_code(tape, function))
            for tensor, checked in (*tensors_of(function), *held):
                node = tape.node_of(tensor)
                if node is None:
                    continue
                if not is_wrapper(tensor):
                    asked = mask if checked else None
                    found.setdefault(Demand(node, function.name(), region, asked, checked))
                    continue
                for part in tape.wrappers.saved(node, ends):
                    for each in _made_before(part, last):
                        found.setdefault(Demand(each, function.name(), region, None, checked))
        for tensor in tape.closed_over:
            node = tape.node_of(tensor)
            if node is None:
                continue
            for kept in tape.wrappers.saved(node, ends) if is_wrapper(tensor) else (node,):
                found.setdefault(Demand(kept, "a callable", checked=False))
    return tuple(found)


def _made_before(node: fx.Node, last: fx.Node) -> list[fx.Node]:
    """What a node was made of when autograd saved it.

    Autograd detaches what it saved whenever somebody asks, and a class may copy then.
    """
    if not last < node:
        return [node]
    return [each for source in node.all_input_nodes for each in _made_before(source, last)]


def _nodes_with_code(tape: Tape, outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
    """The nodes behind tensors, and behind those that code of these nodes computes with or keeps.

    A Function may keep a graph that its forward recorded.
    """
    found: dict[Any, None] = {}
    pending: list[torch.Tensor] = list(outputs)
    while pending:
        new = [function for function in autograd_nodes(pending) if function not in found]
        found.update(dict.fromkeys(new))
        pending = [tensor for function in new for tensor in _reached_by_code(tape, function)]
        kept = [tensor for function in new for tensor in _kept_by_users(function)]
        pending += [tensor for tensor in kept if tape.node_of(tensor) is not None]
    yield from found


def _reached_by_code(tape: Tape, function: Any) -> Iterator[torch.Tensor]:
    """Tensors that hooks of an autograd node, and the backward of a user's Function, close over."""
    kind = function_class(function)
    code = (
        *tape.closed_over.hooks.get(function, ()),
        *_backwards(getattr(kind, USER_FUNCTION, kind)),
    )
    return _tensors_in(code, _DEPTH, set())


def _kept_by_users(function: Any) -> list[torch.Tensor]:
    """What the node of a Function keeps that has a graph."""
    if not hasattr(function, "__dict__"):
        return []
    return [tensor for tensor, _ in tensors_of(function) if has_grad_fn(tensor)]


def _backwards(kind: type | None) -> Iterator[Any]:
    """The reverse rule of a Function class, and that of the class that it was made of.

    The node of a compiled function is made of itself.
    """
    seen: set[type] = set()
    while kind is not None and kind not in seen:
        seen.add(kind)
        rule: Any = reverse_rule(kind) if has_backward(kind) else None
        yield rule
        kind = getattr(getattr(rule, "__self__", None), "function", None)


def _region_of(tape: Tape, function: Any) -> int | None:
    """The checkpointed region that an autograd node was made in."""
    if not tape.regions:
        return None
    number = function._sequence_nr()
    for region, (start, end) in enumerate(tape.regions):
        if start <= number < end:
            return region
    return None


def hides_what_is_saved(tape: Tape, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an in-place op on a view is on the way and nobody saw what it saved."""
    return any(
        function.name().endswith("CopySlices") and function not in tape.saved_by_writes
        for function in autograd_nodes(outputs)
    )


def tensors_of(function: Any) -> Iterator[tuple[torch.Tensor, bool]]:
    """Tensors that an autograd node keeps, and whether autograd checks their versions."""
    for name in _saved_attributes(type(function)):
        try:
            value = getattr(function, name)
        except RuntimeError:
            # Modified in place since it was saved; or freed. Running the backward says so.
            continue
        loose = _unchecked(function) if name == "saved_tensors" else ()
        for position, item in enumerate(value if isinstance(value, tuple) else (value,)):
            checked = position not in loose
            yield from ((tensor, checked) for tensor in _tensors_in(item, _DEPTH, set()))
    if hasattr(function, "__dict__"):
        yield from ((tensor, False) for tensor in _tensors_in(vars(function), _DEPTH, set()))


def _unchecked(function: Any) -> Sequence[int]:
    """Positions of saved tensors that the user's forward kept as attributes of its ctx."""
    call = getattr(function, "_funcaot_plan", None)
    return () if call is None else call.unchecked


# By the class of nodes; that of a Function goes with the Function.
_attributes: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def _saved_attributes(kind: type) -> tuple[str, ...]:
    known = _attributes.get(kind)
    if known is None:
        known = tuple(name for name in dir(kind) if name.startswith("_saved_"))
        known = (*known, "saved_tensors") if hasattr(kind, "saved_tensors") else known
        _attributes[kind] = known
    return known


def _tensors_in(value: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth == 0 or id(value) in seen or not may_hold(value):
        return
    seen.add(id(value))
    for child in reached_from(value):
        yield from _tensors_in(child, depth - 1, seen)
