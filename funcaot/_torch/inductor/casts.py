"""Casts to narrow dtypes round where the program says so; ``inductor`` compiles with this.

Inductor computes with float32 what is of bfloat16 or float16, and takes a cast to one of these and
back for nothing. A program that casts so means the rounding: a quantizer, a test of precision.
So does one that compares: what is written to memory is rounded, and the largest of a row would
equal none of the elements that another loop computes in float32.

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
# Where a last digit decides on a place, or on a whole step.
_DECIDING = {
    "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor",
    "argmax", "argmin", "cummax", "cummin", "median", "nanmedian", "mode", "kthvalue", "sort",
    "topk", "bucketize", "searchsorted", "nonzero", "any", "all", "_unique2", "unique_dim",
    "floor", "ceil", "trunc", "round", "fmod", "remainder", "frac",
}  # fmt: skip
_EXTREMES = {"amax", "amin", "max", "min"}
# Inductor's own mark of an op whose operands and result are rounded as in eager.
_ROUNDED = "low_precision_pointwise_barrier"


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


def rounded_where_compared(module: fx.GraphModule) -> None:
    """Have what is compared in a narrow dtype rounded after each op, as in eager."""
    pending = [node for node in module.graph.nodes if _depends_on_digits(node)]
    seen: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        for source in [node, *node.all_input_nodes]:
            if source in seen or source.op != "call_function":
                continue
            seen.add(source)
            if source is node or source.target is _CONVERT or _is_narrow(source):
                source.meta[_ROUNDED] = True
                pending.append(source)


def _depends_on_digits(node: fx.Node) -> bool:
    """Whether an op reads a narrow dtype and gives something else for another last digit.

    A softmax takes the largest of what it has cast to float32, and divides it out again.
    """
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    packet = node.target._schema.name.removeprefix("aten::")
    sources = node.all_input_nodes
    if packet in _EXTREMES:
        return any(map(_is_narrow, sources))
    if packet not in _DECIDING and not (node.target is _CONVERT and _is_whole(node)):
        return False
    cast = [source.args[0] for source in sources if source.target is _CONVERT]
    return any(_is_narrow(source) for source in [*sources, *cast])


def _is_narrow(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in _NARROW


def _is_whole(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


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
