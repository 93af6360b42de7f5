"""How far apart a loop's numbers lie, read off an index where it shows.

Inductor asks for the difference of an index and the index one iteration further on, and has SymPy
simplify both, for each access of each loop. That is a quarter of the time in which it makes the
code of a large force field. Where the variable is a factor of some terms and occurs nowhere else,
the difference is what else these terms have for factors; terms without it say nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from funcaot._torch.dynamo.compile_lock import replaced_here

__all__ = ["mended"]


@contextlib.contextmanager
def mended() -> Iterator[None]:
    """Let Inductor read strides off indices, and simplify only what it can't be read off."""
    from torch._inductor.codegen import cpp

    stride_at_vec_range: Any = cpp.stride_at_vec_range

    def stride(index: Any, variable: Any, length: int | None = None) -> Any:
        terms = index.args if index.is_Add else (index,)
        concerned = [term for term in terms if term.has(variable)]
        factors = [_factor(term, variable) for term in concerned]
        if None in factors:
            return stride_at_vec_range(_sum(concerned), variable, length)
        return _sum(factors)

    with replaced_here(cpp, "stride_at_vec_range", stride):
        yield


def _factor(term: Any, variable: Any) -> Any:
    """What a term multiplies a variable by; None if it does anything else with it."""
    if term == variable:
        return 1
    rest = [factor for factor in term.args if factor != variable]
    if not term.is_Mul or len(rest) != len(term.args) - 1 or any(f.has(variable) for f in rest):
        return None
    return term.func(*rest)


def _sum(terms: list[Any]) -> Any:
    import sympy

    return sympy.Add(*terms)
