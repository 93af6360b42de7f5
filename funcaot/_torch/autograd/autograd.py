"""Private names of autograd: single-level Functions, forward mode, ``once_differentiable``."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _is_fwd_grad_enabled as is_forward_grad_enabled
from torch._C._autograd import (
    CreationMeta,
    _get_creation_meta,
    _set_creation_meta,
    _unsafe_set_version_counter,
)
from torch._functorch import eager_transforms
from torch.autograd.forward_ad import _set_fwd_grad_enabled as forward_grad_enabled
from torch.autograd.function import (
    _is_setup_context_defined,
    _SingleLevelFunction,
    once_differentiable,
)
from torch.autograd.graph import _engine_run_backward

from funcaot._torch.levels.functorch import unpack_dual

__all__ = [
    "CreationMeta",
    "SingleLevelFunction",
    "compiled_autograd_key",
    "copy_all",
    "creation_meta",
    "defines_setup_context",
    "engine_gradients",
    "forward_grad_enabled",
    "gradients_are_differentiated",
    "in_dual_level",
    "is_forward_grad_enabled",
    "is_zero_tensor",
    "jvp_inside_dual_level",
    "native_apply",
    "new_function_class",
    "once_differentiable",
    "once_differentiable_body",
    "passes_through",
    "running_backward",
    "set_creation_meta",
    "set_version",
    "set_versions",
    "shares_version",
    "tangent_of",
    "version_of",
    "view_again",
]

SingleLevelFunction = _SingleLevelFunction
copy_all = torch._foreach_copy_
compiled_autograd_key = torch.autograd.Function._compiled_autograd_key
_ONCE_CODE = once_differentiable(lambda ctx: None).__code__


def in_dual_level() -> bool:
    """Whether a ``torch.autograd.forward_ad.dual_level`` is open."""
    return forward_ad._current_level >= 0


def gradients_are_differentiated() -> bool:
    """Whether derivatives of a backward in progress may be asked for, in reverse or by tangents.

    A tangent of what comes into a backward is pushed through it, grad mode or not.
    """
    return torch.is_grad_enabled() or in_dual_level()


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a tensor carries forward at the open ``dual_level``, if there is one."""
    if not in_dual_level() or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    return unpack_dual(tensor)[1]


@contextlib.contextmanager
def jvp_inside_dual_level() -> Iterator[None]:
    """Let ``torch.func.jvp`` begin a level inside of a ``dual_level``, which it shares.

    Below it tensors are wrapped for the new level, so their tangents don't get mixed up.
    """
    own = in_dual_level() and eager_transforms.JVP_NESTING == 0
    eager_transforms.JVP_NESTING += own
    try:
        yield
    finally:
        eager_transforms.JVP_NESTING -= own


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is zeros without memory, as autograd makes them for absent derivatives."""
    return tensor._is_zerotensor()


def engine_gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    *,
    create_graph: bool,
) -> tuple[torch.Tensor | None, ...]:
    """What ``torch.autograd.grad`` gives, with every function mode in force in users' backwards.

    Torch's own function is overridden by modes itself, and runs outside of the innermost one.
    """
    return _engine_run_backward(
        tuple(outputs),
        tuple(tangents),
        True,
        create_graph,
        tuple(inputs),
        True,
        accumulate_grad=False,
    )


def defines_setup_context(function: type) -> bool:
    """Whether ``function`` separates ``setup_context`` from ``forward``."""
    return _is_setup_context_defined(function.setup_context)


def native_apply(function: type) -> Callable[..., Any]:
    """The C++ ``apply`` of a Function class, without the Python layer above it."""
    if issubclass(function, torch.autograd.Function):
        return cast("Any", super(torch.autograd.Function, function)).apply
    return function.apply


def new_function_class(name: str, base: type, namespace: dict[str, Any]) -> type:
    """Make a subclass of a Function class at run time."""
    return types.new_class(name, (base,), {}, lambda body: body.update(namespace))


def once_differentiable_body(backward: Callable[..., Any]) -> Callable[..., Any] | None:
    """What ``@once_differentiable`` decorates, or None when ``backward`` isn't decorated."""
    if getattr(backward, "__code__", None) is _ONCE_CODE:
        return backward.__wrapped__
    return None


def creation_meta(view: torch.Tensor) -> CreationMeta:
    """How a view was made (no_grad, several outputs, a custom Function), for autograd's checks."""
    return _get_creation_meta(view)


# Of ``nn.Module`` for its full backward hooks, of a ``DTensor``'s ``to_local``, and of those of
# ``torch.distributed.nn`` that return the tensor which they were given to write to.
_PASSING = (
    "BackwardHookFunctionBackward",
    "_ToTorchTensorBackward",
    "_AllGatherBaseBackward",
    "_AlltoAllSingleBackward",
    "_Reduce_ScatterBackward",
)


def passes_through(tensor: torch.Tensor) -> bool:
    """Whether it is a view only so that gradients pass through a Function of torch's."""
    node = tensor.grad_fn
    return node is not None and node.name() in _PASSING


def set_creation_meta(view: torch.Tensor, meta: CreationMeta) -> None:
    """Make autograd check a view as if it had been made that way."""
    _set_creation_meta(view, meta)


def view_again(
    view: torch.Tensor,
    base: torch.Tensor,
    number: Callable[[Any], Any] | None = None,
    tensor: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Make a view of a base again, by the ops that it was made by.

    Args:
        view: The view of another base.
        base: The new base.
        number: Gives what each number that these ops were given is to be.
        tensor: The same of tensors that they were given beside what they view.
    """
    return view._view_func_unsafe(base, number, tensor)  # type: ignore[attr-defined]


def running_backward() -> str:
    """The name of the autograd node whose backward runs in this thread; empty if none does."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


def version_of(tensor: torch.Tensor) -> int:
    """The count of in-place changes; 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the counter of in-place changes that a tensor shares with its views."""
    _unsafe_set_version_counter((tensor,), (version,))


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Set the counters of several tensors that share none."""
    _unsafe_set_version_counter(tuple(tensors), tuple(versions))


def shares_version(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors count in-place changes together, as views and ``detach`` do."""
    if first.is_inference() or second.is_inference():
        return False
    before = first._version
    if second._version != before:
        return False
    torch.autograd.graph.increment_version(first)
    shared = second._version != before
    set_version(first, before)
    return shared
