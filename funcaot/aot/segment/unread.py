"""What a node is given and doesn't read; forward mode asks whether a derivative is linear.

The gradient of an op by what it is linear in doesn't depend on that. Torch's kernels take it all
the same, for its sizes: those of a pool's backward take the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import getitem
from typing import Any

import torch
from torch import fx

from funcaot.aot.graph import graphs

__all__ = ["UNREAD", "closure_of_read"]

aten = torch.ops.aten

# For an op, positions of arguments that nothing of its result depends on but for sizes.
_SIZES_OF_FIRST = (aten.zeros_like, aten.ones_like, aten.empty_like, aten.full_like)
_SIZES_OF_SECOND = (
    aten.adaptive_max_pool2d_backward,
    aten.adaptive_max_pool3d_backward,
    aten._adaptive_avg_pool2d_backward,
    aten._adaptive_avg_pool3d_backward,
    aten.avg_pool2d_backward,
    aten.avg_pool3d_backward,
    aten.fractional_max_pool2d_backward,
    aten.fractional_max_pool3d_backward,
    aten.max_pool2d_with_indices_backward,
    aten.max_pool3d_with_indices_backward,
    aten.nll_loss_backward,
    aten.nll_loss2d_backward,
    aten.reflection_pad1d_backward,
    aten.reflection_pad2d_backward,
    aten.reflection_pad3d_backward,
    aten.replication_pad1d_backward,
    aten.replication_pad2d_backward,
    aten.replication_pad3d_backward,
)
# The same for single results of an op, by their positions.
_OF_RESULTS = {
    aten.grid_sampler_2d_backward: {0: {1}},
    aten.grid_sampler_3d_backward: {0: {1}},
    aten.convolution_backward: {0: {1}, 1: {2}, 2: {1, 2}},
    # The sum of the weights of the classes.
    aten.nll_loss_forward: {1: {0}},
    aten.nll_loss2d_forward: {1: {0}},
}
UNREAD: dict[Any, dict[int | None, set[int]]] = {
    **{packet: {None: {0}} for packet in _SIZES_OF_FIRST},
    **{packet: {None: {1}} for packet in _SIZES_OF_SECOND},
    **_OF_RESULTS,
}


def closure_of_read(wanted: Iterable[fx.Node], available: Iterable[fx.Node]) -> set[fx.Node]:
    """Nodes whose values decide what ``wanted`` is, where ``available`` is known."""
    have = graphs.with_parts(available)
    needed: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node in needed or node in have:
            continue
        needed.add(node)
        pending.extend(_read(node))
    return needed


def _read(node: fx.Node) -> Iterator[fx.Node]:
    """Inputs of a node, or of what it is a result of, that it depends on."""
    source, result = node, None
    if node.target is getitem and isinstance(node.args[0], fx.Node):
        source, result = node.args[0], node.args[1]
    unread = _known(source).get(result, frozenset())  # type: ignore[arg-type]
    if source is not node and not unread:
        yield source
        return
    for position, argument in enumerate(source.args):
        if position not in unread:
            found: list[fx.Node] = []
            fx.map_arg(argument, found.append)
            yield from found
    found = []
    fx.map_arg(source.kwargs, found.append)
    yield from found


def _known(node: fx.Node) -> dict[Any, Any]:
    """What is unread of a node, by the position of the result; None stands for an only one."""
    if graphs.is_function_node(node):
        target: Any = node.target
        return getattr(target.function, "funcaot_unread", {})
    return UNREAD.get(getattr(node.target, "overloadpacket", None), {})
