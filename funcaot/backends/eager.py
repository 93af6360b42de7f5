"""The backend that runs a captured graph as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from funcaot.backends.compiler import Compiler


def _compile(module: fx.GraphModule, examples: Sequence[Any], kind: str) -> Callable[..., Any]:
    forward = module.forward

    def run(inputs: list[Any]) -> Sequence[Any]:
        return forward(*inputs)

    return run


COMPILER = Compiler(
    name="eager",
    compile=_compile,
    inline=False,
    compiles=False,
    writes_inputs=True,
    settles=True,
    runs_eager_ops=True,
)
