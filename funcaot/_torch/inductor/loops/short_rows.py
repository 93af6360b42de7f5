"""Rows of float64 that are shorter than what Inductor's loops take at a time.

A loop over float64 takes as many numbers at a time as a vector has in float32, which are two
vectors. What is left over is computed one by one, and that is all of a row with fewer: eight
exponentials in a row took half of a small potential's time. Such a row is taken by one vector at a
time here, as Inductor itself does with rows of narrow dtypes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from funcaot._torch.dynamo.compile_lock import replaced_here
from funcaot._torch.tensors.sizes.shapes import integers

__all__ = ["TAG", "mended"]

# What tells modules made with this from others in Inductor's caches.
TAG = " short rows 1"

_WIDE = (torch.float64, torch.int64)
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


@contextlib.contextmanager
def mended() -> Iterator[str]:
    """Let Inductor take such rows by one vector."""
    from torch._inductor.codegen.cpp import TilingSelect

    select_tiling: Any = TilingSelect.select_tiling

    def tiling(chooser: Any, functions: Sequence[Any], sizes: Sequence[Any]) -> Any:
        factors, indices, *rest = select_tiling(chooser, functions, sizes)
        if len(indices) == 1 and _is_short(sizes, indices[0], factors[0]) and _is_wide(functions):
            factors = [factors[0] // 2]
        return factors, indices, *rest

    with replaced_here(TilingSelect, "select_tiling", tiling):
        yield TAG


def _is_short(sizes: Sequence[Any], index: int, factor: int) -> bool:
    """Whether a loop that is to take so many numbers at a time has fewer."""
    group, reduced = max(sizes, key=lambda pair: len(pair[1]))
    ranges = (*group, *reduced)
    if not -len(ranges) <= index < len(ranges):
        return False
    found = integers([ranges[index]])
    return found is not None and 1 < found[0] < factor


def _is_wide(functions: Sequence[Any]) -> bool:
    """Whether what loops compute has eight bytes, but for comparisons that are used at once."""
    from torch._inductor.codegen.common import OptimizationContext
    from torch._inductor.codegen.cpp_utils import _get_loop_body
    from torch._inductor.virtualized import V

    bodies = _get_loop_body(functions)
    blocks = [block for body in bodies for block in (body.root_block, *body.subblocks.values())]
    nodes = [node for block in blocks for node in block.graph.nodes if node.op == "call_method"]
    stored = {V.graph.get_dtype(node.args[1]) for node in nodes if "store" in node.target}
    return all(dtype in _WIDE for dtype in stored) and all(
        node.meta[OptimizationContext.key].dtype in _WIDE or node.target in _COMPARISONS
        for node in nodes
    )
