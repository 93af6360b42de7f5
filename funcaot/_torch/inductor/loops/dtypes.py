"""Inductor's rules for dtypes, put together once for a graph: ``mended`` enters this.

Inductor has one object that says which dtype an op gives, and puts its 300 methods together
again each time that it asks for the object: for each op of each loop. That is a twentieth of the
time in which it makes the code of a large force field. Its tables of ops don't change meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from funcaot._torch.dynamo.compile_lock import replaced_here

__all__ = ["rules_kept"]


@contextlib.contextmanager
def rules_kept() -> Iterator[None]:
    """Let the object be made anew when it is first asked for inside, and stay."""
    from torch._inductor.dtype_propagation import DtypePropagationOpsHandler as Rules

    put_together: Any = Rules.__init__
    made: list[Any] = []

    def once(rules: Any) -> None:
        if not any(rules is each for each in made):
            put_together(rules)
            made.append(rules)

    with replaced_here(Rules, "__init__", once):
        yield
