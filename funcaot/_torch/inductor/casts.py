"""Casts to narrow dtypes round where the program says so; ``inductor`` compiles with this.

Inductor computes with float32 what is of bfloat16 or float16, and takes a cast to one of these and
back for nothing. A program that casts so means the rounding: a quantizer, a test of precision.

A sum that two results of a loop cast has its casts in blocks of their own: Inductor declares them
twice under one name, which no compiler of C++ takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from funcaot._torch.dynamo.compile_lock import replaced_here

_NARROW = (torch.bfloat16, torch.float16)
_CONVERT = torch.ops.prims.convert_element_type.default


def as_written() -> contextlib.AbstractContextManager[None]:
    """Let Inductor keep casts; what is computed between two of them stays in float32."""
    import torch._inductor.config as inductor_config

    return inductor_config.patch(emulate_precision_casts=True)


def through_single_precision(module: fx.GraphModule) -> None:
    """Write a cast from one narrow dtype to the other as two, with float32 between.

    That is the same number. Of the one cast, Inductor drops the rounding of what it casts.
    """
    for node in module.graph.find_nodes(op="call_function", target=_CONVERT):
        source, target = node.args
        value = source.meta.get("val")
        if target not in _NARROW or value is None or value.dtype not in _NARROW:
            continue
        with module.graph.inserting_before(node):
            wide = module.graph.call_function(_CONVERT, (source, torch.float32))
        wide.meta = {**node.meta, "val": node.meta["val"].to(torch.float32)}
        node.args = (wide, target)


@contextlib.contextmanager
def stored_apart() -> Iterator[str]:
    """Have Inductor store each sum in a block of its own."""
    from torch._inductor.codegen.cpp import CppVecKernel, DeferredLine

    store_reduction: Any = CppVecKernel.store_reduction

    def store(kernel: Any, name: str, index: Any, value: Any) -> None:
        kernel.reduction_suffix.writeline(DeferredLine(name, "{"))
        store_reduction(kernel, name, index, value)
        kernel.reduction_suffix.writeline(DeferredLine(name, "}"))

    with replaced_here(CppVecKernel, "store_reduction", store):
        yield " stored 1"
