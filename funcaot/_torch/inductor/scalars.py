"""Numbers that every element of a larger tensor needs are computed once.

Inductor computes what broadcasts where it is used. For an optimizer's step that is a power for
each vector of each parameter (``beta ** step``, of a tensor that counts steps), which takes several
times as long as the update: the C++ compiler can't move it out of the loop, since the loop writes
to memory that might hold the count.

Quotients of sizes are computed in float64, as in eager. Triton divides whole numbers in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from funcaot._torch.dynamo.compile_lock import replaced_here

__all__ = ["TAG", "computed_once", "divided_exactly"]

# What tells modules made with this from others in Inductor's caches.
TAG = " scalars 1"

# Ops, by Inductor's names, that take longer than to read a number.
_LONG = frozenset(
    """
    acos asin atan cos cosh div erf exp exp2 expm1 log log10 log1p log2 pow reciprocal rsqrt sigmoid
    sin sinh sqrt tan tanh truediv
    """.split()  # noqa: SIM905 - a list of words
)


@contextlib.contextmanager
def computed_once() -> Iterator[str]:
    """Have Inductor store such numbers before the loops that use them."""
    from torch._inductor.graph import GraphLowering

    run_node: Any = GraphLowering.run_node

    def run(lowering: Any, node: fx.Node) -> Any:
        result = run_node(lowering, node)
        if _is_spread(node) and _takes_long(result):
            result.realize()
        return result

    with replaced_here(GraphLowering, "run_node", run):
        yield TAG


@contextlib.contextmanager
def divided_exactly() -> Iterator[str]:
    """Have kernels of Triton divide open sizes as Python does."""
    from sympy.printing.precedence import PRECEDENCE
    from torch._inductor.codegen.triton import TritonPrinter

    def divided(printer: Any, quotient: Any) -> str:
        alone = PRECEDENCE["Atom"] - 0.5
        over, under = (printer.parenthesize(each, alone) for each in quotient.args)
        one = f"tl.full([], 1, {printer._get_scalar_float_type()})"
        return f"({one} * {over} / {under})"

    with replaced_here(TritonPrinter, "_print_IntTrueDiv", divided):
        yield " quotients 1"


def _is_spread(node: fx.Node) -> bool:
    """Whether a node is one number of the CPU that a node of several numbers uses."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return False
    if value.device.type != "cpu" or _count(value) != 1:
        return False
    users = [user.meta.get("val") for user in node.users]
    return any(isinstance(user, torch.Tensor) and _count(user) != 1 for user in users)


def _count(value: torch.Tensor) -> int | None:
    if any(type(size) is not int for size in value.shape):
        return None
    return value.numel()


def _takes_long(result: Any) -> bool:
    """Whether Inductor would compute a number anew, from memory, by an op that takes long."""
    from torch._inductor import ir

    if not isinstance(result, ir.TensorBox) or not isinstance(result.data, ir.StorageBox):
        return False
    data = result.data.data
    if not isinstance(data, ir.Pointwise) or not data.get_reads():
        return False
    return not _LONG.isdisjoint(data.inner_fn_opcount().used_ops)
