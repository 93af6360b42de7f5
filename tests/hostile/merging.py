"""Equal values become one: what common subexpression elimination and no-op removal may do."""

from __future__ import annotations

import operator
from random import Random
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


def merge(module: fx.GraphModule, random: Random) -> None:
    """Let equal nodes be one and copies be what they copy, most of the time.

    Nothing is said of results: two of them may become one, or an input. A value that is written
    over later is left alone, as by every compiler that is right.
    """
    written = {
        _storage(node.args[0]) for node in module.graph.nodes if node.target is aten.copy_.default
    }
    seen: dict[Any, fx.Node] = {}
    for node in list(module.graph.nodes):
        if not _is_pure(node):
            continue
        source = _copied(node)
        if source is None:
            source = seen.setdefault(_key(node), node)
        apart = _storage(source) in written or _storage(node) in written
        if source is not node and not apart and random.random() < 0.75:
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
    module.recompile()


def _is_pure(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target._schema.name.removeprefix("aten::") not in _EMPTY
        # Each rank has to take part as often as the others, whose graphs may differ.
        and target.namespace != "_c10d_functional"
        and bool(node.users)
    )


def _key(node: fx.Node) -> Any:
    def hashable(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(map(hashable, value))
        if isinstance(value, dict):
            return tuple((key, hashable(value[key])) for key in sorted(value))
        # 1, 1.0 and True are equal, and -0.0 is 0.0; their words differ.
        return value if isinstance(value, fx.Node) else (type(value), str(value))

    return node.target, hashable(node.args), hashable(dict(node.kwargs))


def _copied(node: fx.Node) -> fx.Node | None:
    """What a node copies, if it has the same strides."""
    if node.target not in (aten.clone.default, aten.alias.default, aten.detach.default):
        return None
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return None
    mine, theirs = node.meta.get("val"), source.meta.get("val")
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        if mine.stride() == theirs.stride() and mine.dtype == theirs.dtype:
            return source
    return None


def _storage(node: Any) -> Any:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return node
    return value.untyped_storage()._cdata
