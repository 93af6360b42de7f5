"""Bodies of loops that would run no turn aren't written: ``mended`` enters this.

Inductor writes the body of a loop on the CPU for whole vectors, for what is left over, and number
by number; where two loops are computed in vectors, five times. A body whose loop has no turn, such
as that for what is left over of 128 numbers, is written like the others and thrown away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from funcaot._torch.dynamo.compile_lock import replaced_here

__all__ = ["left_out"]


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Let no op be written for a body that Inductor throws away; the code is the same."""
    from torch._inductor.scheduler import SchedulerNode
    from torch._inductor.virtualized import V

    codegen: Any = SchedulerNode.codegen

    def written(node: Any, index_vars: Any) -> None:
        if not _is_thrown_away(V.kernel):
            codegen(node, index_vars)

    with replaced_here(SchedulerNode, "codegen", written):
        yield


def _is_thrown_away(kernel: Any) -> bool:
    """Whether a loop around a body is known to have no turn, and nothing else of it is used."""
    from torch._inductor.codegen.cpp import CppTile2DKernel, CppVecKernel

    # Pairs: which loop is computed in vectors, and how much is left over if the body is for that.
    if isinstance(kernel, CppTile2DKernel):
        outer, inner = kernel.tiling_indices
        loops = [(outer, kernel.outer_tail_size), (inner, kernel.inner_tail_size)]
    elif isinstance(kernel, CppVecKernel):
        loops = [(kernel.tiling_idx, kernel.tail_size)]
    else:
        return False
    if kernel.reduction_depth != len(kernel.ranges):
        # What a sum does before and after its loop comes from the body for whole vectors, and
        # also from the last body if its outer loop has a turn.
        loops = [each for each in loops if each[1] is not None][:1]
    return any(_is_empty(kernel, *each) for each in loops)


def _is_empty(kernel: Any, loop: int, left_over: Any) -> bool:
    if left_over is not None:
        return bool(left_over == 0)
    size = kernel.ranges[loop]
    return bool(size.is_number and size < kernel.tiling_factor)
