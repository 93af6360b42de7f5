"""``funcaot.compile`` with each backend; the oracle is the program as it is."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from funcaot.testing.program import Program
from funcaot.testing.transforms.record import Transform


def compiled(program: Program, *, backend: str = "eager") -> Program:
    """The compiled program, called twice so that the second call finds the first one's code."""
    # The compiler is imported when it is tested: everything else here runs without it.
    from funcaot.api import compile as funcaot_compile

    function = funcaot_compile(program.run, backend=backend)

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(*primals))

    return program.then(run, program.expected)


COMPILE = frozenset({"compile"})

TRANSFORMS = (
    Transform("compile", compiled, COMPILE),
    Transform("compile_inductor", partial(compiled, backend="inductor"), COMPILE),
)
