"""The nodes of autograd's graph, and private names behind those that it makes for a Function."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch._C import _autograd

from funcaot._torch.autograd.node_hooks import without_node_hooks

# The hooks that run on the gradient by a tensor; None or empty if there are none.
hooks_on: Callable[[torch.Tensor], Any] = torch.Tensor._backward_hooks.__get__  # type: ignore[attr-defined]
engine = torch.autograd.Variable._execution_engine
_will_execute = getattr(torch._C, "_will_engine_execute_node", lambda node: True)


def wanted_or_captured(node: Any) -> bool | None:
    """Whether the backward in progress goes on to a node; None if the engine can't say.

    It can't of a leaf whose gradient ``torch.autograd.grad`` hands out, which is wanted; nor if no
    backward is in progress.
    """
    try:
        return _will_execute(node)
    except RuntimeError:
        return None


def is_wanted(node: Any) -> bool:
    """Whether the backward in progress goes on to a node, as far as the engine can say."""
    return wanted_or_captured(node) is not False


def backward_in_progress() -> int:
    """The number of the backward that this thread runs now; -1 if there is none."""
    return torch._C._current_graph_task_id()


def is_leaf(node: Any) -> bool:
    """Whether a node accumulates the gradient of a leaf."""
    return hasattr(node, "variable")


def function_class(node: Any) -> type | None:
    """The Function class whose backward a node runs; None for a node of torch's own."""
    return getattr(node, "_forward_cls", None)


def autograd_nodes(
    outputs: Sequence[torch.Tensor], ends: Sequence[torch.Tensor] = ()
) -> Iterator[Any]:
    """Every node of the autograd graph behind some tensors and before others, each once."""
    closed = {(end.grad_fn, end.output_nr) for end in ends}
    starts = [out.grad_fn for out in reversed(outputs) if out.grad_fn is not None]
    return nodes_behind(starts, closed)


def node_of(tensor: torch.Tensor) -> Any:
    """The node that a gradient of a tensor arrives at; None if it requires no grad."""
    if not tensor.requires_grad:
        return None
    return torch.autograd.graph.get_gradient_edge(tensor).node


def leads_to(result: torch.Tensor, nodes: Sequence[Any]) -> frozenset[int]:
    """The positions of nodes that are in the graph of a result, None being nowhere."""
    start = node_of(result)
    behind = set() if start is None else {*nodes_behind([start])}
    return frozenset(index for index, node in enumerate(nodes) if node in behind)


def nodes_behind(pending: list[Any], closed: Container[Any] = ()) -> Iterator[Any]:
    """Some nodes, of which the last one comes first, and every node behind them, each once.

    Args:
        pending: The nodes.
        closed: Edges that lead no further, by the node and its output.
    """
    seen: set[Any] = set()
    while pending:
        function = pending.pop()
        if function in seen:
            continue
        seen.add(function)
        yield function
        edges = [edge for edge in function.next_functions if edge[0] is not None]
        pending.extend(edge[0] for edge in edges if edge not in closed)


def edges_behind(output: torch.Tensor) -> Iterator[tuple[Any, int]]:
    """Every edge of the autograd graph behind a tensor, by the node and its output."""
    for node in autograd_nodes([output]):
        yield from (edge for edge in node.next_functions if edge[0] is not None)


def leaves_behind(
    outputs: Sequence[torch.Tensor], ends: Sequence[torch.Tensor] = ()
) -> Iterator[torch.Tensor]:
    """The leaves that a backward of some tensors leads to, but for those among them.

    Args:
        outputs: The tensors.
        ends: Tensors through which no way counts.
    """
    for node in autograd_nodes(outputs, ends):
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            yield leaf


def has_grad_fn(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a history that one may look at."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        # A view made in no_grad whose base was written to: autograd forbids to look.
        return False


def met_first(starts: Sequence[torch.Tensor], ends: Sequence[torch.Tensor]) -> list[frozenset[int]]:
    """For each of some tensors the positions of the ends that gradients by it meet first.

    Args:
        starts: The tensors. One that is an end itself is looked behind.
        ends: Tensors beyond which nobody looks.
    """
    places: dict[tuple[Any, int], frozenset[int]] = {}
    none: frozenset[int] = frozenset()
    for index, end in enumerate(ends):
        place = end.grad_fn, end.output_nr
        places[place] = places.get(place, none) | {index}
    behind: dict[Any, frozenset[int]] = {None: none}
    pending: list[Any] = [start.grad_fn for start in starts if start.grad_fn is not None]
    while pending:
        node = pending[-1]
        following = [edge for edge in node.next_functions if edge[0] is not None]
        unknown = [parent for parent, _ in following if parent not in behind]
        if unknown and node not in behind:
            pending += unknown
            continue
        pending.pop()
        met = (places.get(edge) or behind[edge[0]] for edge in following)
        behind[node] = none.union(*met)
    return [behind[start.grad_fn] for start in starts]


def prepare_hooks(tensor: torch.Tensor) -> None:
    """Make the dictionary that ``register_hook`` makes of a tensor with a history, still empty."""
    tensor._backward_hooks = OrderedDict()
    tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]


@contextlib.contextmanager
def stopping_at(ends: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor | None]]:
    """Inside, a backward finds no gradient beyond some tensors; theirs are in the list then."""
    found: list[torch.Tensor | None] = [None] * len(ends)

    def stop(place: int, gradient: torch.Tensor) -> torch.Tensor:
        found[place] = gradient
        return torch.zeros_like(gradient)

    handles = []
    try:
        for place, end in enumerate(ends):
            handles.append(end.register_hook(functools.partial(stop, place)))
            # What the function registered is called with all that arrives, by another node.
            end._backward_hooks.move_to_end(handles[-1].id, last=False)  # type: ignore[union-attr]
        yield found
    finally:
        for handle in handles:
            handle.remove()


def set_node_apply(function: type, apply: Callable[..., Any]) -> None:
    """Make the engine call ``apply(ctx, *gradients)`` for this Function's nodes.

    It is what the engine looks up on a node; the class's own looks up ``backward`` from there.
    """
    function._backward_cls.apply = apply  # type: ignore[attr-defined]


@contextlib.contextmanager
def without_hooks_around() -> Iterator[None]:
    """Leave the caller's hooks for saved tensors and nodes: they are for what runs, not a trace."""
    hooks = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        with without_node_hooks():
            yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


def saved_tensor_hooks_active() -> bool:
    """Whether what autograd saves now goes through hooks."""
    return _autograd._top_saved_tensors_default_hooks(True) is not None


@contextlib.contextmanager
def raising_hook_errors_last() -> Iterator[None]:
    """Raise what a pack hook raises at the end of the block, not where something is saved.

    A checkpoint stops its recomputation in this way, once everything was saved that it wants. The
    ops of eager have written to buffers by then.
    """
    pack, unpack = _autograd._top_saved_tensors_default_hooks(True)
    errors: list[Exception] = []

    def packed(tensor: torch.Tensor) -> Any:
        if errors:
            return None
        try:
            return pack(tensor)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is raised below)
            errors.append(error)
            return None

    with torch.autograd.graph.saved_tensors_hooks(packed, unpack):
        yield
    if errors:
        raise errors[0]
