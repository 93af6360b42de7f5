"""Rows in a random order, ``x[torch.randperm(n)]``, which Inductor's own pattern fails on.

What the pattern would make of it is an index without a check of its bounds, and so is what stands
here: a permutation of no more numbers than there are rows is within them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def with_unchecked_permutations(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, in which what a permutation picks isn't checked to be there."""
    changed = False
    for node in module.graph.nodes:
        if node.target is aten.index.Tensor and _is_permutation_of_rows(*node.args):
            node.target = aten._unsafe_index.Tensor
            changed = True
    if changed:
        module.recompile()
    return module


def _is_permutation_of_rows(source: Any, indices: Any) -> bool:
    if len(indices) != 1 or not isinstance(indices[0], fx.Node):
        return False
    index = indices[0]
    if index.target is not aten.randperm.default:
        return False
    count, rows = index.args[0], source.meta["val"].shape[0]
    return isinstance(count, int) and isinstance(rows, int) and count <= rows
