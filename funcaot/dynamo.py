"""``torch.compile(..., backend="funcaot")``: Dynamo captures, the lazy pipeline does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from funcaot.api import compile as compile_function
from funcaot.errors import FuncaotError

_OPTIONS = ("compiler",)


def dynamo_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured.

    What ``torch.compile`` gains: a double backward, to any order, and backwards traced with the
    real grad_outputs. Dynamo looks into ``autograd.Function`` by itself, with assumed
    grad_outputs; mark a class with ``torch._dynamo.allow_in_graph`` to keep it whole.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs; not used, since the first call brings the real ones.
        mode: Only None is accepted.
        options: ``{"compiler": backend}``, a backend of ``funcaot.compile``; Inductor by default.

    Returns:
        The compiled graph.

    Raises:
        FuncaotError: For a mode or an option that there isn't.

    Example:
        >>> import torch, funcaot
        >>> f = torch.compile(lambda x: x.sin(), backend="funcaot")  # doctest: +SKIP
    """
    if mode is not None:
        raise FuncaotError(
            "torch.compile was given a mode for the backend 'funcaot', which has none.",
            expected="mode=None",
            got=f"mode={mode!r}",
            remedy="leave it out.",
        )
    unknown = sorted(set(options or ()) - set(_OPTIONS))
    if unknown:
        raise FuncaotError(
            "torch.compile was given options that the backend 'funcaot' doesn't know.",
            expected=f"options among {list(_OPTIONS)}",
            got=", ".join(unknown),
            remedy="leave them out.",
        )
    return compile_function(gm.forward, backend=(options or {}).get("compiler", "inductor"))
