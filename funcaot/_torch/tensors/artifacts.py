"""Private names for running packages of AOTInductor; nothing of the compiler is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MODEL = "model"


def runner(
    path: str, model: str = MODEL
) -> tuple[Callable[[list[torch.Tensor]], list[torch.Tensor]], Any]:
    """Load the compiled graph of a package.

    Args:
        path: The package.
        model: The name of the graph in it.

    Returns:
        A callable on a list of tensors, which it empties, and the object that holds the library.
    """
    loader: Any = torch._C._aoti.AOTIModelPackageLoader(path, model, False, 1, -1)  # type: ignore
    return loader.boxed_run, loader


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` or a mode that replaces ops is active."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None  # type: ignore
        or torch._C._len_torch_dispatch_stack() > 0
    )


def casts_automatically() -> bool:
    """Whether autocast is on for some kind of device."""
    return torch._C._is_any_autocast_enabled()


def carries_tangents() -> bool:
    """Whether forward mode is active, so that a tensor may have a tangent."""
    return torch.autograd.forward_ad._current_level >= 0


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def class_in_the_way(tensor: torch.Tensor) -> str | None:
    """What a tensor is, if its memory isn't simply that of its values; None for most.

    Compiled code reads memory: of a wrapper it would read none, and a class with a
    ``__torch_function__`` isn't asked.
    """
    if type(tensor) not in _PLAIN:
        return f"a tensor of class {type(tensor).__name__}"
    if tensor.is_nested:
        return "a nested tensor"
    functorch: Any = torch._C._functorch  # type: ignore
    if functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return "a tensor of a transform that has ended"
    return None


def is_view(op: Any) -> bool:
    """Whether an op only makes views of its first argument."""
    schema = op._schema
    first = schema.arguments[0].alias_info if schema.arguments else None
    return first is not None and not any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in schema.arguments
    )


def ordinary(device: str) -> Callable[[Any], bool]:
    """A test for most tensors of most calls, whose memory is that of their values.

    What it is true of is a plain dense tensor on the device: no wrapper, of no transform, not
    conjugated, negated, nested, sparse or made in inference mode. A parameter isn't one either.
    """
    keys_of: Any = torch._C._dispatch_keys
    usual = keys_of(torch.empty(0, device=device)).raw_repr()

    def test(given: Any) -> bool:
        return type(given) is torch.Tensor and keys_of(given).raw_repr() == usual

    return test


def is_undisturbed() -> bool:
    """Whether no transform, mode that replaces ops, forward mode or autocast is active."""
    return not (is_transformed() or carries_tangents() or casts_automatically())
