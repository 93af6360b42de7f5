"""Out-of-place scatters into tensors whose elements share memory, as an expanded one's do.

Inductor makes them in place where nobody reads the target afterwards, and does not ask whether
the target is an expanded tensor: what is then written to one row is written to all. A copy that
has memory for each element, which is what the op makes anyway, keeps them apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# What Inductor makes in place by replacing the op; a view in memory of its own isn't affected.
_SCATTERS = {aten.index_put.default, aten._unsafe_index_put.default}


def with_targets_apart(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, with copies of the targets whose elements share memory."""
    changed = False
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _SCATTERS:
            continue
        target = node.args[0]
        value = target.meta.get("val")
        if not isinstance(value, torch.Tensor) or not may_overlap(value):
            continue
        with module.graph.inserting_before(node):
            copy = module.graph.call_function(aten.clone.default, (target,))
        # Laid out as the result is: eager copies first, too.
        copy.meta["val"] = node.meta["val"]
        node.update_arg(0, copy)
        changed = True
    if changed:
        module.recompile()
    return module


def may_overlap(tensor: torch.Tensor) -> bool:
    """Whether two elements may lie in one place; sizes that are open are taken to be large."""
    steps = [
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if not (isinstance(size, int) and size <= 1)
    ]
    fixed: list[tuple[int, Any]] = [(s, size) for s, size in steps if isinstance(s, int)]
    strides = [stride for stride, _ in fixed]
    if 0 in strides or len(set(strides)) < len(strides):
        return True
    reach = 0
    for stride, size in sorted(fixed, key=lambda step: step[0]):
        if not isinstance(size, int):
            # The next stride is made of this size, or the tensor isn't one that ops make.
            return False
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
