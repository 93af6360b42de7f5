"""Torch's operators for control flow, and the one of its algorithms that isn't a loop."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._higher_order_ops.associative_scan import associative_scan_op as ASSOCIATIVE_SCAN
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch._higher_order_ops.cond import cond_op as COND
from torch._higher_order_ops.map import map_impl as MAP
from torch._higher_order_ops.scan import scan_op as SCAN
from torch._higher_order_ops.while_loop import while_loop_op as WHILE_LOOP
from torch.utils import _pytree as pytree

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch, holding

__all__ = [
    "ASSOCIATIVE_SCAN",
    "COND",
    "MAP",
    "SCAN",
    "WHILE_LOOP",
    "as_carried",
    "generic_associative_scan",
    "taking_containers",
]

_MODULE: Any = importlib.import_module("torch._higher_order_ops.cond")
_NAME = "validate_subgraph_args_types"
_check: Any = getattr(_MODULE, _NAME)


class _ThisThread(threading.local):
    captures = False


_this_thread = _ThisThread()


def _check_outside(lifted_args: Any) -> None:
    """Torch's check that operands of ``cond`` are leaves, which its own compiler makes of them."""
    if not _this_thread.captures:
        _check(lifted_args)


_patch = SharedPatch(
    lambda: setattr(_MODULE, _NAME, _check_outside), lambda: setattr(_MODULE, _NAME, _check)
)


@contextlib.contextmanager
def taking_containers() -> Iterator[None]:
    """Inside, in this thread, ``torch.cond`` hands on operands in the containers they came in."""
    with applied("containers of operands", _patch.used, None), holding(_this_thread, captures=True):
        yield


def as_carried(body_fn: Callable[..., Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What a ``while_loop`` carries, in the containers that it was given in.

    The operator is called with leaves; the wrapper of its body knows what they were in.
    """
    spec = inspect.getclosurevars(body_fn).nonlocals.get("in_spec")
    if not isinstance(spec, pytree.TreeSpec) or spec.num_leaves != len(leaves):
        return tuple(leaves)
    carried, _ = pytree.tree_unflatten(list(leaves), spec)
    return tuple(carried)
