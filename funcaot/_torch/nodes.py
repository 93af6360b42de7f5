"""Private names behind the nodes that autograd makes for a Function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def set_node_apply(function: type, apply: Callable[..., Any]) -> None:
    """Make the engine call ``apply(ctx, *gradients)`` for this Function's nodes.

    It is what the engine looks up on a node; the class's own looks up ``backward`` from there.
    """
    function._backward_cls.apply = apply  # type: ignore[attr-defined]
