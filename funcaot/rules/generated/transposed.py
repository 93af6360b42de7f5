"""Which level transposes a forward rule now: a linear function in it is transposed by its body.

A rule may apply the function to its tangent, as those of linear functions do. Reverse mode of that
call would be the transpose of the same rule, without end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from funcaot._torch.levels.functorch import layers
from funcaot.base.scopes import holding
from funcaot.classes.opaque import current_captor

__all__ = ["is_transposed", "transposing"]


class _ThisThread(threading.local):
    levels: tuple[tuple[int, Any], ...] = ()


_this_thread = _ThisThread()


@contextlib.contextmanager
def transposing(tangents: Sequence[torch.Tensor]) -> Iterator[None]:
    """While a rule runs on tangents, which a level differentiates unless they are probes."""
    outer = layers(tangents[0])[0]
    if outer.level < 0 or not outer.tensor.requires_grad:
        yield
        return
    levels = (*_this_thread.levels, (outer.level, current_captor()))
    with holding(_this_thread, levels=levels):
        yield


def is_transposed(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether one of the tensors depends on a tangent by which a rule is being transposed."""
    captor = current_captor()
    levels = {level for level, known in _this_thread.levels if known is captor}
    return bool(levels) and any(
        layer.level in levels and layer.tensor.requires_grad
        for tensor in tensors
        for layer in layers(tensor)
    )
