"""Private names behind kernels of autograd for single ops; ``funcaot.derivatives`` registers them.

Such a kernel is registered for the autograd key of a device, where torch's generated code has one
for all devices, so that removing it brings torch's back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C import _after_autograd_keyset as after_autograd
from torch._C import _AutoDispatchBelowAutograd as below_autograd
from torch._ops import OpOverload
from torch.library import Library, get_kernel
from torch.library import _impls as registered_kernels

__all__ = [
    "KernelLibrary",
    "OpOverload",
    "devices",
    "draws_at_random",
    "give_memory",
    "has_own_kernel",
    "op_name",
    "ops_of_users",
    "run_below",
    "schema_of",
    "stays",
    "torch_kernel",
]


class KernelLibrary:
    """Kernels that are registered together and removed together."""

    def __init__(self) -> None:
        """Nothing is registered."""
        self._libraries: dict[str, Library] = {}
        self._ops: tuple[OpOverload, ...] = ()

    @property
    def is_installed(self) -> bool:
        """Whether the kernels are there."""
        return bool(self._libraries)

    def install(self, kernels: Mapping[OpOverload, Mapping[str, Callable[..., Any]]]) -> None:
        """Register for each op what is called at some keys, with the key set in front."""
        if self._libraries:
            return
        libraries: dict[str, Library] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for op, by_key in kernels.items():
                library = libraries.get(op.namespace)
                if library is None:
                    library = libraries[op.namespace] = Library(op.namespace, "IMPL")
                for key, kernel in by_key.items():
                    library.impl(op, kernel, key, with_keyset=True)
        self._libraries, self._ops = libraries, tuple(kernels)
        self._forget_choices()

    def remove(self) -> None:
        """Bring torch's own kernels back."""
        libraries, self._libraries = self._libraries, {}
        for library in libraries.values():
            library._destroy()
        self._forget_choices()

    def _forget_choices(self) -> None:
        """What torch's dispatcher in Python, used for open sizes, has looked up."""
        for op in self._ops:
            op._dispatch_cache.clear()


# Namespaces of torch's own ops that have a kernel of autograd in Python.
_OF_TORCH = {"aten", "debug_mode_ops", "debugprims", "export", "funcaot", "prims", "rngprims"}


# Namespaces of ops that torch registers once, as if it were a user, and nobody again.
_STAYING = {
    "_c10d_functional",
    "_c10d_functional_autograd",
    "flex_lib",
    "onnx",
    "onnx_symbolic",
    "quantized_decomposed",
    "streams",
    "symm_mem",
    "torch_nn",
}


def stays(op: OpOverload) -> bool:
    """Whether the kernels of an op are sure to stay what they are."""
    return op.namespace in _STAYING


def ops_of_users() -> list[OpOverload]:
    """Ops that ``torch.library`` gave a kernel of autograd in Python, with or without a formula."""
    found = []
    places = [place for place in tuple(registered_kernels) if place.endswith("/Autograd")]
    for place in places:
        namespace, name, _ = place.split("/")
        if namespace in _OF_TORCH:
            continue
        packet = getattr(getattr(torch.ops, namespace), name.split(".")[0], None)
        overload = name.split(".")[1] if "." in name else "default"
        op = getattr(packet, overload, None)
        if isinstance(op, OpOverload):
            found.append(op)
    return found


def draws_at_random(op: OpOverload) -> bool:
    """Whether an op says that it draws random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags


def devices() -> tuple[str, ...]:
    """The devices that kernels are registered for, as they are called in keys."""
    return ("CPU", "CUDA") if torch.cuda.is_available() else ("CPU",)


def op_name(op: OpOverload) -> str:
    """The name of an op in torch's table, with its overload."""
    return op.name()


def schema_of(op: OpOverload) -> Any:
    """The schema of an op."""
    return op._schema


def torch_kernel(op: OpOverload, key: str) -> Callable[..., Any] | None:
    """What torch itself calls for an op at a key, if the device of that key is there."""
    try:
        return get_kernel(op, key).call_boxed
    except RuntimeError:
        return None


def has_own_kernel(op: OpOverload, key: str) -> bool:
    """Whether ``torch.library`` gave an op a kernel in Python at exactly this key.

    Where a mode or a subclass of tensors is around, torch looks such a kernel up by op and key. So
    one that is registered in its place is called instead of it, by itself too.
    """
    namespace, _, name = op.name().partition("::")
    return f"{namespace}/{name.removesuffix('.default')}/{key}" in registered_kernels


def run_below(op: OpOverload, keyset: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an op below autograd, from a kernel that was given this key set."""
    with below_autograd():
        return op.redispatch(keyset & after_autograd, *args, **kwargs)


def give_memory(target: torch.Tensor, source: torch.Tensor) -> None:
    """Give a tensor the memory of another one; its history and its hooks stay."""
    with below_autograd():
        target.set_(source)  # pyright: ignore[reportArgumentType]
