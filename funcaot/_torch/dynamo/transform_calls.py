"""Calls of ``torch.func``'s transforms: what they were made of, and a hook before they begin."""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch._functorch import vmap as vmap_module
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from funcaot._torch.calls.code_swap import CodeSwap
from funcaot._torch.dynamo.dynamo import is_dynamo_compiling

__all__ = ["MISS", "Transform", "TransformCalls", "transform_of"]

# What a hook returns to let torch do it.
MISS: Any = object()


@dataclass(frozen=True)
class Transform:
    """One of torch's transforms with its arguments, applied to a function.

    Attributes:
        name: In ``torch.func``.
        function: What was transformed.
        options: The transform's other arguments.
    """

    name: str
    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same transform of another function."""
        return getattr(torch.func, self.name)(function, **self.options)


def _closed_over(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of a closure, but for modules."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = {name: cell.cell_contents for name, cell in cells}
    return {
        name: value for name, value in values.items() if not isinstance(value, types.ModuleType)
    }


def _returned_code(name: str) -> types.CodeType | None:
    """The code of what a transform returns, if it closes over its arguments and nothing else."""
    transform = getattr(torch.func, name)
    returned = transform(lambda x: x)
    parameters = {*inspect.signature(transform).parameters}
    return returned.__code__ if {"func"} <= {*_closed_over(returned)} <= parameters else None


_NAMES = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd")
_NAME_OF = {code: name for name in _NAMES if (code := _returned_code(name)) is not None}


def transform_of(function: Callable[..., Any]) -> Transform | None:
    """The transform that returned this function, None if none of torch's did."""
    name = _NAME_OF.get(getattr(function, "__code__", None))  # type: ignore[arg-type]
    if name is None:
        return None
    options = _closed_over(function)
    return Transform(name, options.pop("func"), options)


class _Calling(threading.local):
    """In this thread: whether the next ``grad_and_value`` is a part of ``grad``, asked already."""

    past = False


class TransformCalls:
    """Calls of ``vmap``, ``grad`` and ``grad_and_value``, about which a hook is asked first."""

    def __init__(self, hook: Callable[[Transform, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """Prepare to call ``hook(transform, args, kwargs)``, which may return `MISS`."""
        calling = _Calling()

        def vmap(
            func: Any,
            in_dims: Any,
            out_dims: Any,
            randomness: str,
            chunk_size: int | None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if not is_dynamo_compiling():
                if randomness == "same" and get_proxy_mode() is not None:
                    # Torch seeds each chunk anew, which isn't recorded.
                    chunk_size = None
                options = {
                    "in_dims": in_dims,
                    "out_dims": out_dims,
                    "randomness": randomness,
                    "chunk_size": chunk_size,
                }
                result = hook(Transform("vmap", func, options), args, kwargs)
                if result is not MISS:
                    return result
            return run_vmap(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)

        def grad(func: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
            if not is_dynamo_compiling():
                options = {"argnums": argnums, "has_aux": has_aux}
                result = hook(Transform("grad", func, options), args, kwargs)
                if result is not MISS:
                    return result
                calling.past = True
            return run_grad(func, argnums, has_aux, args, kwargs)

        def grad_and_value(func: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
            if not is_dynamo_compiling():
                past, calling.past = calling.past, False
                options = {"argnums": argnums, "has_aux": has_aux}
                if not past:
                    result = hook(Transform("grad_and_value", func, options), args, kwargs)
                    if result is not MISS:
                        return result
            return run_grad_and_value(func, argnums, has_aux, args, kwargs)

        self._swaps = [
            CodeSwap(vmap_module.vmap_impl, vmap, "_funcaot_vmap"),
            CodeSwap(eager_transforms.grad_impl, grad, "_funcaot_grad"),
            CodeSwap(
                eager_transforms.grad_and_value_impl, grad_and_value, "_funcaot_grad_and_value"
            ),
        ]
        # Variables, since Dynamo inlines the functions above and makes none.
        run_vmap, run_grad, run_grad_and_value = [swap.original for swap in self._swaps]

    def install(self) -> None:
        """Ask the hook from now on."""
        for swap in self._swaps:
            swap.install()

    def undo(self) -> None:
        """Restore torch exactly; calls in progress end as they began."""
        for swap in self._swaps:
            swap.undo()
