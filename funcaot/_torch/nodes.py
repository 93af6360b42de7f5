"""Private names behind the nodes that autograd makes for a Function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch._C import _autograd


def set_node_apply(function: type, apply: Callable[..., Any]) -> None:
    """Make the engine call ``apply(ctx, *gradients)`` for this Function's nodes.

    It is what the engine looks up on a node; the class's own looks up ``backward`` from there.
    """
    function._backward_cls.apply = apply  # type: ignore[attr-defined]


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Leave the caller's saved-tensor hooks: they are for what runs, not for what is traced."""
    hooks = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)
