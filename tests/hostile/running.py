"""Running a graph node by node, with memory that is spoiled where a compiler would use it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from funcaot._torch.inductor.reinplacing import restriding_op

_EMPTY = {
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
}


class Plan:
    """The order of a graph's nodes, and what nobody needs after each.

    Attributes:
        module: The graph.
        last: For each node, the nodes that it is the last to read.
        poisons: Whether memory of the graph's own is spoiled.
    """

    def __init__(self, module: fx.GraphModule, *, poisons: bool) -> None:
        self.module = module
        self.poisons = poisons
        self.last: dict[fx.Node, list[fx.Node]] = {}
        seen: set[fx.Node] = set()
        for node in reversed(module.graph.nodes):
            for source in dict.fromkeys((*node.all_input_nodes, node)):
                if source not in seen:
                    seen.add(source)
                    self.last.setdefault(node, []).append(source)


def _restrided(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """What torch's own kernel does, and for strides with gaps, too: itself if they are right."""
    if tensor.stride() == tuple(stride):
        return tensor
    made = torch.empty_strided(tensor.shape, tuple(stride), dtype=tensor.dtype)
    return made.copy_(tensor)


def run_nodes(plan: Plan, inputs: list[Any]) -> tuple[Sequence[Any], set[int]]:
    """Compute the outputs; the list of inputs is emptied, as Inductor's code does.

    Returns:
        The outputs, and the storages that the graph didn't make.
    """
    given = iter(list(inputs))
    inputs.clear()
    values: dict[fx.Node, Any] = {}
    foreign: set[int] = set()
    for node in plan.module.graph.nodes:
        if node.op == "output":
            results: Any = fx.map_arg(node.args[0], values.__getitem__)
            if plan.poisons:
                _spoil(values, list(values), foreign | _storages(results))
            return results, foreign
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = _attribute(plan.module, node.target)
        else:
            arguments = fx.map_arg(node.args, values.__getitem__)
            keywords = fx.map_arg(node.kwargs, values.__getitem__)
            run = _restrided if node.target is restriding_op() else node.target
            values[node] = run(*arguments, **keywords)
            if getattr(node.target, "namespace", "") == "_c10d_functional":
                # Until then, what it was given is read, as compilers know.
                for tensor in _tensors(values[node]):
                    torch.ops._c10d_functional.wait_tensor(tensor)
            if values[node] is None and arguments and isinstance(arguments[0], list):
                # A foreach op that a pass has put in place: its results are what it wrote to.
                values[node] = arguments[0]
        if node.op != "call_function":
            foreign |= _storages(values[node])
        elif plan.poisons and getattr(node.target, "overloadpacket", None) in _EMPTY:
            poison(values[node])
        dead = plan.last.get(node, [])
        if plan.poisons and node.op == "call_function":
            alive = [value for key, value in values.items() if key not in dead]
            _spoil(values, dead, foreign | _storages(alive))
        for key in dead:
            del values[key]
    return (), foreign


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with what nobody can take for a number."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(77)


def _spoil(values: dict[fx.Node, Any], dead: Sequence[fx.Node], kept: set[int]) -> None:
    """Overwrite the memory of dead values that no other value lies in."""
    for node in dead:
        for tensor in _tensors(values[node]):
            if tensor.untyped_storage()._cdata not in kept and not _overlaps_itself(tensor):
                poison(tensor)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    ]


def _storages(value: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in _tensors(value)}


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found
