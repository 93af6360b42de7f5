"""Inductor's loops for the CPU, where several threads would be slower than one.

Two things made steps of small networks two to five times as slow with two threads as with one:

1. Threads that add to the same few numbers with atomics (the gradient of a table of a few rows,
   taken by index). A nest of loops that does runs in one thread here, without atomics.
2. Before torch 2.15, a loop shorter than a vector counted as no work, and so did all loops around
   it: the threads were started anew in each of their iterations.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from funcaot._torch.dynamo.compile_lock import replaced_here
from funcaot._torch.tensors.sizes.shapes import integers

__all__ = ["TAG", "mended"]

# What tells modules made with this from others in Inductor's caches.
TAG = " loops 1"

# Numbers that threads add to without being in each other's way.
_FEW = 2**13


@contextlib.contextmanager
def mended() -> Iterator[str]:
    """Let Inductor generate such loops, with threads, in another way."""
    from torch._inductor import config as inductor_config
    from torch._inductor.codegen.cpp import CppScheduling, LoopNest

    codegen_node: Any = CppScheduling.codegen_node
    max_parallel_depth: Any = LoopNest.max_parallel_depth

    def codegen(scheduling: Any, node: Any) -> None:
        if torch.get_num_threads() == 1 or not any(map(_adds_to_few, node.get_nodes())):
            codegen_node(scheduling, node)
            return
        scheduling.kernel_group.ws.close()  # What comes now isn't for every thread.
        with inductor_config.patch({"cpp.threads": 1}):
            codegen_node(scheduling, node)

    def depth(nest: Any) -> Any:
        found = max_parallel_depth(nest)
        if found.start_depth and _has_work(nest.loops, found.start_depth):
            return replace(found, parallel_depth=found.start_depth, start_depth=0)
        return found

    with (
        replaced_here(CppScheduling, "codegen_node", codegen),
        replaced_here(LoopNest, "max_parallel_depth", depth),
    ):
        yield TAG


def _adds_to_few(node: Any) -> bool:
    """Whether a node of the schedule adds by index to a tensor of a few numbers."""
    from torch._inductor import ir

    buffer = getattr(node, "node", None)
    data = getattr(buffer, "data", None)
    if not isinstance(data, ir.Scatter) or data.scatter_mode != "atomic_add":
        return False
    target = integers(buffer.layout.size)  # type: ignore[union-attr]
    return target is not None and math.prod(target) <= _FEW


def _has_work(loops: Sequence[Any], inner: int) -> bool:
    """Whether the loops around one have enough iterations to be the parallel ones.

    Inductor's measure: at least a 300th of the inner loop's.
    """
    sizes = integers([loop.size for loop in loops[: inner + 1]])
    steps = integers([loop.steps for loop in loops[: inner + 1]])
    if sizes is None or steps is None:
        return False
    *around, own = (-(-size // step) for size, step in zip(sizes, steps, strict=True))
    return math.prod(around) * 300 >= own
