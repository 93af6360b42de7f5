"""Functions of rows of float64 that are shorter than what Inductor's loops take at a time.

A loop over float64 takes as many numbers at a time as a vector has in float32, which are two
vectors. What is left over is computed one by one, and that is all of a row with fewer: eight
exponentials in a row took half of a small potential's time. Such a row is taken by one vector at a
time here, as Inductor itself does with rows of narrow dtypes. Other loops stay as they are: the C++
compiler makes vectors of sums and products by itself, and better ones of a reduction in a row.
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
_PLAIN = frozenset(
    {
        *("load", "store", "constant", "index_expr", "get_index", "where", "minimum", "maximum"),
        *("add", "sub", "mul", "truediv", "neg", "abs", "square", "sqrt", "rsqrt", "reciprocal"),
    }
)

# What is called for each number where it isn't computed for vectors.
_CALLED = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sigmoid"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "erf", "erfc", "lgamma"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "hypot", "fmod"),
    }
)


@contextlib.contextmanager
def mended() -> Iterator[str]:
    """Let Inductor take such rows by one vector."""
    from torch._inductor.codegen.cpp import TilingSelect

    select_tiling: Any = TilingSelect.select_tiling

    def tiling(chooser: Any, functions: Sequence[Any], sizes: Sequence[Any]) -> Any:
        factors, indices, *rest = select_tiling(chooser, functions, sizes)
        if len(indices) == 1 and _is_short(sizes, indices[0], factors[0]) and _calls(functions):
            factors = [factors[0] // 2]
        return factors, indices, *rest

    with replaced_here(TilingSelect, "select_tiling", tiling):
        yield TAG


def _is_short(sizes: Sequence[Any], index: int, factor: int) -> bool:
    """Whether a loop that is to take so many numbers at a time has fewer, but half of them."""
    group, reduced = max(sizes, key=lambda pair: len(pair[1]))
    index += 0 if index >= 0 else len(group) + len(reduced)
    found = integers([group[index]]) if 0 <= index < len(group) else None
    return found is not None and factor // 2 <= found[0] < factor


def _calls(functions: Sequence[Any]) -> bool:
    """Whether loops compute functions of float64, and besides only what is plain and as wide.

    Comparisons are narrow, and used at once.
    """
    from torch._inductor.codegen.common import OptimizationContext
    from torch._inductor.codegen.cpp_utils import _get_loop_body
    from torch._inductor.virtualized import V

    bodies = _get_loop_body(functions)
    if any(body.subblocks for body in bodies):  # which are read under a mask
        return False
    graphs = [body.root_block.graph for body in bodies]
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_method"]
    computed = [node for node in nodes if node.target not in _COMPARISONS]
    dtypes = {node.meta[OptimizationContext.key].dtype for node in computed}
    dtypes |= {V.graph.get_dtype(node.args[1]) for node in nodes if node.target == "store"}
    names = {node.target for node in nodes}
    return (
        dtypes.issubset(_WIDE)
        and names.issubset(_PLAIN | _COMPARISONS | _CALLED)
        and not names.isdisjoint(_CALLED)
    )
