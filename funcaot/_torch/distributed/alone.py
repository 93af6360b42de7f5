"""Collectives without the other ranks, for a program that is run only to be compiled.

What comes back looks as it would: sizes, strides and types. Its values are made of this rank's own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from funcaot._torch.distributed.collectives import load_ops, place_in
from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch

__all__ = ["alone"]

Tensor = torch.Tensor
_DEVICES = ("CPU", "CUDA")


class _ThisThread(threading.local):
    """Whether collectives of this thread are answered here."""

    is_alone = False


_this_thread = _ThisThread()
_libraries: list[torch.library.Library] = []


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No collective of this thread sends or waits inside."""
    require("collectives of one rank")
    load_ops()
    before = _this_thread.is_alone
    with _patch.used():
        _this_thread.is_alone = True
        try:
            yield
        finally:
            _this_thread.is_alone = before


def _register() -> None:
    if _libraries:
        return
    for namespace, answers in _ANSWERS.items():
        library = torch.library.Library(namespace, "IMPL")
        _libraries.append(library)
        for name, answer in answers.items():
            for device in _DEVICES:
                kernel = _kernel(namespace, name, device, answer)
                library.impl(name, kernel, device, with_keyset=True)


def _kernel(
    namespace: str, name: str, device: str, answer: Callable[..., Any]
) -> Callable[..., Any]:
    """What answers here in a thread that is alone, and does what it did before in others."""
    before = torch.library.get_kernel(f"{namespace}::{name}", device)

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not _this_thread.is_alone:
            return before.call_boxed(keys, *args, **kwargs)
        return kwargs["out"].zero_() if "out" in kwargs else answer(*args)

    return run


def _unregister() -> None:
    while _libraries:
        _libraries.pop()._destroy()


_patch = SharedPatch(_register, _unregister)


def _same(value: Any, *rest: Any) -> Any:
    return value


def _copy(value: Tensor, *rest: Any) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)


def _gathered(value: Tensor, ranks: int, *rest: Any) -> Tensor:
    return torch.cat([value] * ranks)


def _part(value: Tensor, reduction: str, ranks: int, *rest: Any) -> Tensor:
    return value[: value.shape[0] // ranks].clone(memory_format=torch.contiguous_format)


def _exchanged(value: Tensor, received: Sequence[int], *rest: Any) -> Tensor:
    return value.new_zeros((sum(received), *value.shape[1:]))


def _sharded_anew(value: Tensor, gathers: int, cuts: int, group: Any) -> Tensor:
    place = place_in(group) if isinstance(group, str) else (group.size(), group.rank())
    ranks, rank = (1, 0) if place is None else place
    return torch.cat([value] * ranks, gathers).chunk(ranks, cuts)[rank].contiguous()


def _each(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda values, *rest: [function(value, *rest) for value in values]


_ANSWERS: dict[str, dict[str, Callable[..., Any]]] = {
    "_c10d_functional": {
        "all_gather_into_tensor": _gathered,
        "all_gather_into_tensor_coalesced": _each(_gathered),
        "all_gather_into_tensor_out": _gathered,
        "all_reduce": _copy,
        "all_reduce_": _same,
        "all_reduce_coalesced": _each(_copy),
        "all_reduce_coalesced_": _same,
        "all_to_all_single": _exchanged,
        "broadcast": _copy,
        "broadcast_": _same,
        "reduce_scatter_tensor": _part,
        "reduce_scatter_tensor_coalesced": _each(_part),
        "reduce_scatter_tensor_out": _part,
    },
    "_dtensor": {"shard_dim_alltoall": _sharded_anew},
}
