"""Backends: what executes a captured graph."""

from __future__ import annotations

from funcaot.backends import eager, inductor
from funcaot.backends.compiler import Compiler, CompilerFunction
from funcaot.backends.custom import from_functions
from funcaot.errors import FuncaotError

BACKENDS = {"inductor": inductor.COMPILER, "eager": eager.COMPILER}


def resolve(backend: str | CompilerFunction | Compiler) -> Compiler:
    """The compiler that a user's ``backend`` argument means.

    Raises:
        FuncaotError: If there is none of that name.
    """
    if isinstance(backend, Compiler):
        return backend
    if isinstance(backend, str):
        if backend in BACKENDS:
            return BACKENDS[backend]
        raise FuncaotError(
            f"There is no backend {backend!r}.",
            expected=f"one of {sorted(BACKENDS)}, or a function "
            "(graph_module, example_inputs) -> callable",
            got=repr(backend),
            remedy='use backend="inductor" for speed or backend="eager" to run graphs as captured.',
        )
    if callable(backend):
        return from_functions(backend)
    raise FuncaotError(
        "A backend must be a name or a function.",
        expected=f"one of {sorted(BACKENDS)}, or a function "
        "(graph_module, example_inputs) -> callable",
        got=type(backend).__name__,
        remedy='use backend="inductor".',
    )
