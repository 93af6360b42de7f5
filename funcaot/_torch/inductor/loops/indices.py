"""Indices in vectors are checked where they are: ``mended`` enters this.

Before a loop on the CPU reads what an index says, it checks that the index is within bounds. For
that Inductor writes the vector of indices to memory and reads it number by number into another one,
which is the same. That copy took a third of the time of ``x[index]``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from funcaot._torch.dynamo.compile_lock import replaced_here

__all__ = ["TAG", "mended"]

# What tells modules made with this from others in Inductor's caches.
TAG = " indices 1"


@contextlib.contextmanager
def mended() -> Iterator[str]:
    """Let the value of an index that is a vector already be that vector."""
    from torch._inductor.codegen.cpp import CppVecKernel

    load_or_store: Any = CppVecKernel._load_or_store_non_contiguous

    def loaded(kernel: Any, var: Any, index: Any, dtype: Any, *args: Any, **settings: Any) -> Any:
        found = _vector(kernel, index, dtype) if var is None else None
        if found is not None:
            return found
        return load_or_store(kernel, var, index, dtype, *args, **settings)

    with replaced_here(CppVecKernel, "_load_or_store_non_contiguous", loaded):
        yield TAG


def _vector(kernel: Any, index: Any, dtype: Any) -> Any:
    """The vector that an index is, if it is one of that dtype and nothing is masked."""
    if kernel._load_mask is not None or not index.is_Symbol:
        return None
    found = kernel.cse.varname_map.get(index.name)
    return found if found is not None and found.is_vec and found.dtype == dtype else None
