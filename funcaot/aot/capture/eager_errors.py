"""Eager's own error for an op that refuses its arguments while it is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tensors import guards
from funcaot._torch.tensors.pytree import tree_flatten, tree_unflatten
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.fake_errors import comes_of_symbolic_op
from funcaot.aot.tape.memory.strided_views import extent
from funcaot.aot.tape.tape import Tape

__all__ = ["can_be_made", "error_of_eager", "made_up"]

_LARGEST = 1 << 28  # bytes that are made for the sake of a message
_PLAIN = (str, int, float, complex, bool, slice, torch.dtype, torch.device, torch.layout)
_PLAIN += (torch.memory_format, type(None), type(Ellipsis))
# Eager may say more precisely what kind of mistake it is, but it isn't anything else.
_ABOUT_ARGUMENTS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)


def error_of_eager(
    error: Exception,
    tape: Tape,
    function: Callable[..., Any],
    call: tuple[tuple[Any, ...], dict[str, Any]],
) -> Exception | None:
    """What eager raises for a call that the symbolic version of an op refused.

    The call runs once more, on real tensors that look the same. Their values are made up.

    Args:
        error: What was raised.
        tape: The tape.
        function: The function of torch that was called.
        call: Its arguments, with the tape's tensors.

    Returns:
        Eager's exception, or None if that can't be found out.
    """
    if not comes_of_symbolic_op(error) or tracing.is_untraceable(error):
        return None
    return _of_real_tensors(tape, function, call)


def refuse_mixed_products(
    tape: Tape, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise what eager does for a product of matrices of several dtypes, which symbols allow.

    Args:
        tape: The tape.
        function: A function of torch.
        args: Its arguments, with the tape's tensors.
        kwargs: Its keywords.

    Raises:
        Exception: Eager's.
    """
    if getattr(function, "__name__", "") not in _PRODUCTS or guards.any_autocast_enabled():
        return
    tensors = [leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)]
    if len({tensor.dtype for tensor in tensors}) > 1:
        theirs = _of_real_tensors(tape, function, (args, kwargs))
        if theirs is not None:
            raise theirs


_PRODUCTS = frozenset(
    ("mm", "matmul", "__matmul__", "__rmatmul__", "bmm", "mv", "dot", "linear", "bilinear")
) | {"addmm", "addmv", "addbmm", "baddbmm", "inner", "vdot", "ger", "outer", "einsum"}


def _of_real_tensors(
    tape: Tape, function: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]]
) -> Exception | None:
    """What eager raises for a call; None for nothing, or if that can't be found out."""
    leaves, tree = tree_flatten(call)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
        return None
    if not can_be_made(tensors):
        return None
    try:
        tape.outside(lambda: _run(function, tree_unflatten(list(map(made_up, leaves)), tree)))
    except torch.linalg.LinAlgError:
        return None
    except _ABOUT_ARGUMENTS as found:
        return found.with_traceback(None)
    except Exception:  # noqa: BLE001 (of made-up values, then)
        return None
    return None


def _run(function: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    args, kwargs = call
    function(*args, **kwargs)


def can_be_made(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there can be real tensors that look the same, of a sensible size."""
    return all(map(_is_plain, tensors)) and sum(map(_bytes_of, tensors)) <= _LARGEST


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        not functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.layout is torch.strided
        and all(type(number) is int for number in (*tensor.shape, *tensor.stride()))
    )


def _bytes_of(tensor: torch.Tensor) -> int:
    return extent(tuple(tensor.shape), tuple(tensor.stride())) * tensor.element_size()


def made_up(leaf: Any) -> Any:
    """A real tensor for one of the tape: ones, and where they may be places, the first one."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    has_gradients = leaf.is_floating_point() or leaf.is_complex()
    with torch.no_grad():
        made.fill_(1 if has_gradients else 0)
    if not leaf.requires_grad:
        return made
    with torch.enable_grad():
        made.requires_grad_()
        return made if leaf.is_leaf else made.clone()
