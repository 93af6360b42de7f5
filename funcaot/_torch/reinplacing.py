"""Ops that Inductor turns into in-place ones don't read what they overwrite.

``y[i] = y.clone()`` is an ``index_put`` of a copy. Inductor takes the copy out, which is right while
the op makes a tensor of its own, and then, before torch 2.15, lets the op write into ``y`` while it
reads from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from funcaot.scopes import holding

__all__ = ["TAG", "apart"]

# What tells modules made with this from others in Inductor's caches.
TAG = " reinplacing 1"


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Leave ops out of place whose other arguments share memory with what they would write to."""
    from torch._inductor.fx_passes import reinplace

    guarded = {op: _guarded(found) for op, found in reinplace.inplaceable_ops.items()}
    with holding(reinplace, inplaceable_ops=guarded):
        yield


def _guarded(op: Any) -> Any:
    check: Callable[[fx.Node], bool] = op.extra_check

    def extra_check(node: fx.Node) -> bool:
        return not _reads_what_it_writes(node, op.mutated_args) and check(node)

    return dataclasses.replace(op, extra_check=extra_check)


def _reads_what_it_writes(node: fx.Node, written: tuple[int, ...]) -> bool:
    targets = _storages([node.args[index] for index in written])
    others = [value for index, value in enumerate(node.args) if index not in written]
    return not targets.isdisjoint(_storages([*others, node.kwargs]))


def _storages(arguments: Any) -> set[int]:
    found: set[int] = set()

    def look(node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            found.add(value.untyped_storage()._cdata)

    fx.map_arg(arguments, look)
    return found
