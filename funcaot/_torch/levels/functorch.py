"""Private names of functorch: the interpreter stack, its wrappers, operators with rules by key."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils._pytree as pytree
from torch._C import DispatchKey
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _is_torch_function_mode_enabled as function_mode_active
from torch._C import _len_torch_dispatch_stack as dispatch_mode_count
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_single_level_autograd_function_allowed,
    get_unwrapped,
    is_batchedtensor,
    is_functionaltensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    maybe_get_bdim,
    maybe_get_level,
    peek_interpreter_stack,
    set_single_level_autograd_function_allowed,
    unwrap_if_dead,
)
from torch._C._functorch import _unwrap_batched as unwrap_batch_dimension
from torch._C._functorch import _unwrap_for_grad as unwrap_for_grad
from torch._C._functorch import _wrap_for_grad as wrap_for_grad
from torch._functorch import eager_transforms
from torch._functorch.autograd_function import VmapInfo
from torch._functorch.pyfunctorch import (
    coerce_cinterpreter,
    temporarily_clear_interpreter_stack,
)
from torch._functorch.vmap import _add_batch_dim as add_batch_dimension
from torch._functorch.vmap import _broadcast_to_and_flatten as broadcast_to_and_flatten
from torch._functorch.vmap import vmap_increment_nesting
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import (
    FunctionalTensor,
    FunctionalTensorMode,
    FunctorchFunctionalizeAPI,
    PythonFunctionalizeAPI,
)
from torch.utils._python_dispatch import (
    _disable_current_modes as disable_dispatch_modes,
)
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode as current_dispatch_mode,
)
from torch.utils._python_dispatch import (
    _pop_mode_temporarily as pop_dispatch_mode,
)

__all__ = [
    "DispatchKey",
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "FunctionalTensorMode",
    "FunctorchFunctionalizeAPI",
    "HigherOrderOperator",
    "Layer",
    "PythonFunctionalizeAPI",
    "TransformType",
    "VmapInfo",
    "add_batch_dimension",
    "begun_at_level",
    "below_this_vmap",
    "broadcast_to_and_flatten",
    "coerce_cinterpreter",
    "current_dispatch_mode",
    "differentiating_levels",
    "disable_dispatch_modes",
    "dispatch_mode_count",
    "ended_layer",
    "fully_unwrapped",
    "function_mode_active",
    "gradients_leave_level",
    "has_legacy_batched",
    "has_tangent",
    "interpreter_stack",
    "is_batching_failure",
    "is_functorch_wrapped_tensor",
    "is_leaf_at_every_level",
    "is_legacy_batchedtensor",
    "is_level_failure",
    "is_pullback",
    "layers",
    "map_tensors",
    "memory_of",
    "only_vmaps_active",
    "peek_interpreter_stack",
    "pop_dispatch_mode",
    "pushes_forward",
    "python_key_excluded",
    "pytree",
    "requires_grad_at_any_level",
    "run_without_legacy_vmap",
    "single_level_functions_allowed",
    "tangents_of",
    "temporarily_clear_interpreter_stack",
    "transforms_active",
    "under_transforms",
    "unpack_dual",
    "unwrap_batch_dimension",
    "unwrap_dead",
    "unwrap_for_grad",
    "unwrap_if_dead",
    "vmap_increment_nesting",
    "without_legacy_batch",
    "wrap_for_grad",
]


def map_tensors(function: Callable[[torch.Tensor], Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """Apply ``function`` to every tensor of ``values``, also to those nested in containers."""
    return tuple(
        [
            function(value)
            if isinstance(value, torch.Tensor)
            else value
            if not isinstance(value, (list, tuple, dict))
            else map_tensors(function, value)
            if type(value) is tuple
            else pytree.tree_map_only(torch.Tensor, function, value)
            for value in values
        ]
    )


def unwrap_dead(values: Sequence[Any]) -> tuple[Any, ...]:
    """Strip wrappers of levels that have ended: their dispatch keys would send the call astray.

    Containers without any stay the objects that they are: forward may change them.
    """
    return tuple(
        [
            unwrap_if_dead(value)
            if isinstance(value, torch.Tensor)
            else map_tensors(unwrap_if_dead, (value,))[0]
            if isinstance(value, (list, tuple, dict)) and _holds_dead(value)
            else value
            for value in values
        ]
    )


def ended_layer(tensor: torch.Tensor) -> tuple[torch.Tensor, int, int | None] | None:
    """What is inside of a tensor of a level that has ended.

    Returns:
        The tensor inside, the level and the dimension of a batch, None for other levels; None for a
        tensor of no such level.
    """
    if not is_functorch_wrapped_tensor(tensor):
        return None
    level = maybe_get_level(tensor)
    if is_batchedtensor(tensor):
        if level <= len(interpreter_stack()):
            return None
        return get_unwrapped(tensor), level, maybe_get_bdim(tensor)
    inner = unwrap_if_dead(tensor)
    return None if inner is tensor else (inner, level, None)


def _holds_dead(value: Any) -> bool:
    leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return any(unwrap_if_dead(leaf) is not leaf for leaf in leaves)


def interpreter_stack() -> Sequence[Any]:
    """The levels that are active, outermost first."""
    return get_interpreter_stack() or ()


def fully_unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor under every functorch wrapper of ``tensor``."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def without_batches(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor under the levels of ``vmap`` next to it, whose metadata change with its own."""
    while is_batchedtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


@dataclass(frozen=True)
class Layer:
    """A tensor as one level sees it.

    Attributes:
        tensor: The tensor there.
        level: The level's number; -1 below all of them.
        kind: ``batch`` for vmap, ``functional`` for functionalize, ``autograd`` for levels that
            differentiate and for what is below all levels.
        size: Of a batch, how many examples it has.
        step: Of a batch, the elements in memory from one example to the next.
    """

    tensor: torch.Tensor
    level: int
    kind: str
    size: int = 1
    step: int = 0


def layers(tensor: torch.Tensor) -> list[Layer]:
    """A tensor at every level down to the one that holds its memory, which comes last."""
    found = []
    while is_functorch_wrapped_tensor(tensor) and not is_functionaltensor(tensor):
        level = maybe_get_level(tensor)
        inner = get_unwrapped(tensor)
        if is_batchedtensor(tensor):
            dim = maybe_get_bdim(tensor)
            found.append(Layer(tensor, level, "batch", inner.shape[dim], inner.stride(dim)))
        else:
            found.append(Layer(tensor, level, "autograd"))
        tensor = inner
    if is_functorch_wrapped_tensor(tensor):
        return [*found, Layer(tensor, maybe_get_level(tensor), "functional")]
    return [*found, Layer(tensor, -1, "autograd")]


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds a wrapped one's memory: a plain one, or a level's that has its own."""
    while is_functorch_wrapped_tensor(tensor) and not is_functionaltensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def python_key_excluded() -> bool:
    """Whether dispatch modes are switched off in this thread."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python)


_CANT_BATCH = (
    "vmap:",
    "Batching rule not implemented",
    "data pointer of Tensor",
    "BatchedTensorImpl",
    ".numpy() is not supported",
    "requires_grad_()",
)
_NEEDS_NO_LEVEL = ("requires_grad_()", "does not require grad", "data pointer of Tensor")


def is_batching_failure(error: Exception) -> bool:
    """Whether ``error`` says that vmap can't batch what it was given, and not a user's mistake."""
    message = str(error)
    if not isinstance(error, RuntimeError) or "randomness" in message:
        return False
    return any(part in message for part in _CANT_BATCH)


def is_level_failure(error: Exception) -> bool:
    """Whether ``error`` says that code which runs autograd itself met a functorch level."""
    message = str(error)
    return isinstance(error, RuntimeError) and any(part in message for part in _NEEDS_NO_LEVEL)


@contextlib.contextmanager
def single_level_functions_allowed() -> Iterator[None]:
    """Let a single-level Function be applied while functorch levels are active."""
    previous = get_single_level_autograd_function_allowed()
    set_single_level_autograd_function_allowed(True)
    try:
        yield
    finally:
        set_single_level_autograd_function_allowed(previous)


@contextlib.contextmanager
def below_this_vmap() -> Iterator[None]:
    """Run ops of unwrapped tensors below a vmap level, from a kernel of a batched tensor.

    The level stays on the stack: the dispatcher has it in hand, and takes it off for each op.
    """
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(DispatchKey.FuncTorchBatched)):
        yield


@contextlib.contextmanager
def leaves_at_level() -> Iterator[None]:
    """Let a tensor of the level in progress begin to require grad, for a backward inside of it."""
    with eager_transforms.enable_inplace_requires_grad(True):
        yield


def begun_at_level(tensor: torch.Tensor) -> torch.Tensor:
    """The same value as a tensor that has no past at the level in progress.

    ``detach`` would cut it off at all levels below, too: their tangents and histories.
    """
    interpreter = peek_interpreter_stack()
    if interpreter is None or interpreter.key() not in (TransformType.Grad, TransformType.Jvp):
        return tensor.detach()
    level = interpreter.level()
    return wrap_for_grad(unwrap_for_grad(tensor, level), level)


def run_without_legacy_vmap(function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Run ``function(in_dims, *physical)`` outside the legacy vmap level that ``operands`` live on.

    ``torch.autograd.grad(..., is_grads_batched=True)`` batches with the vmap that predates
    functorch. It has a dispatch key that Python rules can't see, so the level is taken off, and put
    back on what ``function`` returns (every tensor batched at dimension 0).
    """
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()

    def is_batched(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and is_legacy_batchedtensor(value)

    physical = [
        torch._remove_batch_dim(value, level, 1, 0) if is_batched(value) else value
        for value in operands
    ]
    in_dims = tuple(0 if is_batched(value) else None for value in operands)
    nesting = 0
    while torch._C._vmapmode_decrement_nesting() > 0:
        nesting += 1
    try:
        output = function(in_dims, *physical)
    finally:
        for _ in range(nesting + 1):
            torch._C._vmapmode_increment_nesting()
    return pytree.tree_map_only(
        torch.Tensor, lambda tensor: torch._add_batch_dim(tensor, 0, level), output
    )


def without_legacy_batch(value: torch.Tensor) -> torch.Tensor:
    """What a tensor of the legacy vmap level holds; any other tensor is itself."""
    if not is_legacy_batchedtensor(value):
        return value
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return torch._remove_batch_dim(value, level, 1, 0)


def _code_of(holder: Any, name: str) -> Any:
    return getattr(inspect.unwrap(getattr(holder, name, None)), "__code__", None)  # type: ignore[arg-type]


_ENGINE = _code_of(torch.autograd.graph, "_engine_run_backward")
_FUNC_GRAD = (
    _code_of(torch.autograd, "grad"),
    _code_of(eager_transforms, "_autograd_grad"),
    _code_of(eager_transforms, "grad_and_value_impl"),
)
_RULE_DEPTH = 12


def gradients_leave_level() -> bool:
    """Whether the backward in progress is that of ``torch.func.grad`` or ``grad_and_value``.

    These ask to create a graph, for the levels below, and at once take the gradients off their own
    level: what was recorded there is lost. Nothing but their being the caller says so.
    """
    frame = sys._getframe(1)
    for _ in range(_RULE_DEPTH):
        if frame is None or frame.f_code is _ENGINE:
            break
        frame = frame.f_back
    if frame is None or frame.f_code is not _ENGINE:
        return False
    for code in _FUNC_GRAD:
        frame = frame.f_back
        if frame is None or frame.f_code is not code:
            return False
    return True


def requires_grad_at_any_level(tensor: torch.Tensor) -> bool:
    """Whether base autograd or a ``grad`` level in progress differentiates this tensor."""
    while not tensor.requires_grad:
        if not is_functorch_wrapped_tensor(tensor):
            return False
        tensor = get_unwrapped(tensor)
    return True


def unpack_dual(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The primal and tangent of a tensor; torch fails for one that inference mode made."""
    try:
        return forward_ad.unpack_dual(tensor, level=0)
    except RuntimeError as error:
        if "InferenceMode::is_enabled()" not in str(error):
            raise
        return tensor, None


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether the tensor carries a tangent, at any level or of a ``dual_level``."""
    if forward_ad._current_level < 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    interpreter = peek_interpreter_stack()
    if interpreter is None or interpreter.key() != TransformType.Vmap:
        if unpack_dual(tensor)[1] is not None:
            return True
    if interpreter is None:
        return False
    interpreter = coerce_cinterpreter(interpreter)
    own = is_functorch_wrapped_tensor(tensor) and maybe_get_level(tensor) == interpreter.level()
    with interpreter.lower():
        return has_tangent(get_unwrapped(tensor) if own else tensor)


def tangents_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tangents that a tensor carries, one for each level that it has one at."""
    with disable_dispatch_modes():  # Those of a capture would meet a real tensor.
        return _tangents_of(tensor)


def _tangents_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    if forward_ad._current_level < 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return []
    if is_legacy_batchedtensor(tensor):  # Torch can't look inside.
        return []
    interpreter = peek_interpreter_stack()
    # What a batched tensor or a functional one carries lies below these levels.
    passes = (TransformType.Vmap, TransformType.Functionalize)
    above = interpreter is not None and interpreter.key() in passes
    tangent = None if above else unpack_dual(tensor)[1]
    found = [] if tangent is None else [tangent]
    if interpreter is None:
        return found
    interpreter = coerce_cinterpreter(interpreter)
    own = is_functorch_wrapped_tensor(tensor) and maybe_get_level(tensor) == interpreter.level()
    with interpreter.lower():
        return found + _tangents_of(get_unwrapped(tensor) if own else tensor)


def is_leaf_at_every_level(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf wherever it is differentiated."""
    while tensor.is_leaf:
        if not is_functorch_wrapped_tensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


_PULLBACKS = tuple(
    constant
    for constant in _code_of(eager_transforms, "_vjp_with_argnums").co_consts
    if isinstance(constant, types.CodeType)
)


def is_pullback(function: types.FunctionType) -> bool:
    """Whether a function is one that ``torch.func.vjp`` returned: it holds a record of autograd."""
    return function.__code__ in _PULLBACKS


def pushes_forward() -> bool:
    """Whether the innermost transform in progress that isn't a vmap is a jvp."""
    keys = [level.key() for level in interpreter_stack()]
    others = [key for key in keys if key != TransformType.Vmap]
    return bool(others) and others[-1] == TransformType.Jvp


def differentiating_levels(tensors: Sequence[torch.Tensor]) -> int:
    """How many levels differentiate, base autograd among them if one of the tensors needs it."""
    kinds = (TransformType.Grad, TransformType.Jvp)
    count = sum(level.key() in kinds for level in interpreter_stack())
    return count + any(fully_unwrapped(tensor).requires_grad for tensor in tensors)


def only_vmaps_active() -> bool:
    """Whether every transform in progress is a vmap; also if there is none."""
    return not transforms_active() or all(
        level.key() == TransformType.Vmap for level in interpreter_stack()
    )


def under_transforms(values: Sequence[Any]) -> bool:
    """Whether a call with these arguments is made inside a transform of any kind."""
    return transforms_active() or has_legacy_batched(values)


def has_legacy_batched(values: Sequence[Any]) -> bool:
    """Whether any value lives on the legacy vmap level of ``is_grads_batched=True``."""
    return any(
        isinstance(value, torch.Tensor) and is_legacy_batchedtensor(value) for value in values
    )
