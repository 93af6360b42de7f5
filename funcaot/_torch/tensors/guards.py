"""Private names behind quick checks of a call: tensors' metadata and global state, in C++."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _get_float32_matmul_precision as float32_matmul_precision
from torch._C import _is_any_autocast_enabled as any_autocast_enabled
from torch._C import _len_torch_function_stack as function_mode_count
from torch._C import _set_grad_enabled as set_grad_enabled
from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards
from torch.autograd import _profiler_enabled as profiler_enabled
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._device import DeviceContext

__all__ = [
    "active_modes",
    "any_autocast_enabled",
    "attributes_of_tensors",
    "autocast_as",
    "autocast_state",
    "dict_version",
    "float32_matmul_precision",
    "forward_ad",
    "function_mode_count",
    "global_state_check",
    "hooks_of_all_modules",
    "matmul_precision",
    "profiler_enabled",
    "set_grad_enabled",
    "settings_of_ops",
    "tensor_check",
    "without_autocast",
]

try:
    from torch._C._dynamo.guards import dict_version as _dict_version
except ImportError:  # A torch without it: large dictionaries are compared in every call.
    _dict_version = None

# A number that changes whenever a dictionary does; no two dictionaries ever have the same one.
dict_version: Callable[[dict[Any, Any]], int] | None = _dict_version

without_autocast = torch._C._DisableAutocast


def attributes_of_tensors() -> dict[str, Any]:
    """The dictionary of ``torch.Tensor``: a method that somebody puts there hides torch's own."""
    return gc.get_referents(vars(torch.Tensor))[0]


def hooks_of_all_modules() -> tuple[dict[int, Any], ...]:
    """The dictionaries of hooks that run for every module."""
    kinds = ("forward", "forward_pre", "backward", "backward_pre")
    return tuple(getattr(torch.nn.modules.module, f"_global_{kind}_hooks") for kind in kinds)


def tensor_check(
    tensors: Sequence[torch.Tensor],
    *,
    sizes: Sequence[Sequence[int | None]] | None = None,
    strides: Sequence[Sequence[int | None]] | None = None,
) -> Callable[..., bool]:
    """A check that tensors look like these and that the thread is in the same dispatch state.

    It compares Python type, dtype, device, sizes, strides, requires_grad and the dispatch keys
    with those that the thread adds: so it fails for conj and neg views, inference tensors,
    functorch wrappers, and whenever a transform, a dispatch mode, inference mode, the legacy
    vmap or autocast is active that wasn't when the check was made. It also fails if the same
    object is passed twice. With grad mode off it doesn't see requires_grad. It keeps no tensor.

    Args:
        tensors: Strided tensors, each object once, at least one.
        sizes: Sizes to compare, None for one that may be any; those of ``tensors`` by default.
        strides: Strides likewise.
    """
    # Annotated in torch's stubs as one flat list.
    all_sizes: Any = sizes or [list(tensor.shape) for tensor in tensors]
    all_strides: Any = strides or [list(tensor.stride()) for tensor in tensors]
    guards = TensorGuards(
        *tensors,
        dynamic_dims_sizes=all_sizes,
        dynamic_dims_strides=all_strides,
    )
    return guards.check


def global_state_check() -> Callable[[], bool]:
    """A check that grad mode, autocast, determinism, precision and so on are as now."""
    return GlobalStateGuard().check


def settings_of_ops() -> dict[str, bool]:
    """Switches of torch by which ops choose what they run, and so what a capture records."""
    return {
        "flash attention": torch.backends.cuda.flash_sdp_enabled(),
        "memory-efficient attention": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math attention": torch.backends.cuda.math_sdp_enabled(),
        "mkldnn": bool(torch._C._get_mkldnn_enabled()),
        "nnpack": bool(torch._C._get_nnpack_enabled()),
    }


def active_modes() -> tuple[Any, ...]:
    """What identifies the torch-function and dispatch modes in force, outermost first.

    A default device is known by its device, any other mode by itself; modes aren't kept alive.
    """
    function_modes = [
        torch._C._get_function_stack_at(index) for index in range(function_mode_count())
    ]
    dispatch_modes = [
        torch._C._get_dispatch_stack_at(index)
        for index in range(torch._C._len_torch_dispatch_stack())
    ]
    return tuple(
        ("device", str(mode.device)) if type(mode) is DeviceContext else weakref.ref(mode)
        for mode in [*function_modes, *dispatch_modes]
    )


def users_function_mode_active() -> bool:
    """Whether a torch-function mode is in force that isn't one of torch's or the library's own."""
    stack = map(torch._C._get_function_stack_at, range(function_mode_count()))
    return any(type(mode).__module__.split(".")[0] not in ("torch", "funcaot") for mode in stack)


def autocast_state() -> tuple[tuple[str, torch.dtype, bool], ...]:
    """Device type, dtype and whether casts are cached, for each device type that autocasts."""
    if not any_autocast_enabled():
        return ()
    cached = torch.is_autocast_cache_enabled()
    return tuple(
        (device, torch.get_autocast_dtype(device), cached)
        for device in _AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )


@contextlib.contextmanager
def autocast_as(state: tuple[tuple[str, torch.dtype, bool], ...]) -> Iterator[None]:
    """A block in which these device types autocast, and no others.

    Args:
        state: As ``autocast_state`` gives it.
    """
    now = autocast_state()
    wanted = {device: dtype for device, dtype, _ in state}
    if wanted == {device: dtype for device, dtype, _ in now}:
        yield
        return
    before = {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in {device for device, _, _ in (*now, *state)}
    }
    try:
        for device, (_, dtype) in before.items():
            torch.set_autocast_dtype(device, wanted.get(device, dtype))
            torch.set_autocast_enabled(device, device in wanted)
        yield
    finally:
        for device, (enabled, dtype) in before.items():
            torch.set_autocast_dtype(device, dtype)
            torch.set_autocast_enabled(device, enabled)


_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "ipu", "xla", "maia")


def fills_uninitialized_memory() -> bool:
    """Whether deterministic mode fills new memory."""
    options: Any = torch.utils.deterministic
    return options.fill_uninitialized_memory


def matmul_precision() -> tuple[Any, ...]:
    """How exact float32 matrix products are, as far as it may be decided when compiling.

    Settings of one library (``torch.backends.mkldnn.matmul``) are left out: its kernels read them
    when they run.
    """
    matmul = torch.backends.cuda.matmul
    return (
        float32_matmul_precision(),
        torch._C._get_cublas_allow_tf32(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )


def set_matmul_precision(precision: tuple[Any, ...]) -> None:
    """Make float32 matrix products as exact as they were when ``matmul_precision`` was asked."""
    matmul = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(precision[0])
    torch._C._set_cublas_allow_tf32(precision[1])
    matmul.allow_fp16_reduced_precision_reduction = precision[2]
    matmul.allow_bf16_reduced_precision_reduction = precision[3]


def optimizer_hooks() -> tuple[Any, ...]:
    """What torch runs before and after each step of any optimizer."""
    before, after = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    return (*before.values(), *after.values()) if before or after else ()
