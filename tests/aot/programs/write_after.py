"""The write-after-call oracle: whoever writes to one tensor changes what eager would change.

After a call each output, argument and stored tensor is overwritten in turn, and all the others are
compared with what eager torch leaves there, then the gradients or the error of a backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import funcaot

Tensors = Sequence[torch.Tensor]


def check_writes_after(
    function: Callable[..., Any],
    make: Callable[[], Sequence[Any]],
    *,
    backend: Any = "inductor",
    state: Tensors = (),
    calls: int = 3,
) -> None:
    """Compare a function with its compiled form, whatever is written to after a call.

    Args:
        function: The function.
        make: Makes equal arguments each time; leaves that are tensors are written to.
        backend: What it is compiled for.
        state: Tensors that the function keeps; they are put back after each run.
        calls: Calls before the ones that are compared, so that generated code runs.
    """
    compiled = funcaot.compile(function, backend=backend)
    before = [tensor.detach().clone() for tensor in state]
    for _ in range(calls):
        count, _ = observed(compiled, make(), state, None)
        _put_back(state, before)
    for target in (None, *range(count)):
        _, expected = observed(function, make(), state, target)
        _put_back(state, before)
        _, actual = observed(compiled, make(), state, target)
        _put_back(state, before)
        assert_same(actual, expected, f"tensor {target} of {count} was overwritten")


def observed(
    function: Callable[..., Any], arguments: Sequence[Any], state: Tensors, target: int | None
) -> tuple[int, dict[str, Any]]:
    """Call a function, overwrite one tensor, and describe everything.

    Returns:
        How many tensors there are, and what they are like.
    """
    results = tensors_of(function(*arguments))
    given = tensors_of(arguments)
    everything = [*results, *given, *state]
    seen: dict[str, Any] = {
        "requires_grad": [tensor.requires_grad for tensor in everything],
        "strides": [_stride(tensor) for tensor in results],
        "same object": [[one is other for other in everything] for one in everything],
    }
    if target is not None:
        seen["write"] = _error_of(lambda: _overwrite(everything[target]))
    seen["values"] = [tensor.detach().clone() for tensor in everything]
    losses = [tensor.sum() for tensor in results if tensor.requires_grad]
    if losses:
        leaves = [tensor for tensor in (*given, *state) if tensor.requires_grad]
        gradients: list[Any] = []
        seen["backward"] = _error_of(
            lambda: gradients.extend(torch.autograd.grad(sum(losses), leaves, allow_unused=True))
        )
        seen["gradients"] = gradients
    return len(everything), seen


def assert_same(actual: dict[str, Any], expected: dict[str, Any], said: str) -> None:
    """Compare two descriptions."""
    assert actual.keys() == expected.keys(), said
    for name, value in expected.items():
        if name in ("values", "gradients"):
            assert len(actual[name]) == len(value), f"{name}: {said}"
            for pair in zip(actual[name], value, strict=True):
                assert_close(*pair, equal_nan=True, msg=lambda text: f"{said}: {text}")
        else:
            assert actual[name] == value, f"{name}: {said}: {actual[name]} is not {value}"


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a structure."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _stride(tensor: torch.Tensor) -> list[int]:
    # Eager torch itself disagrees with its symbolic ops on strides of one element.
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if size > 1 and tensor.numel() else 0 for size, stride in pairs]


def _overwrite(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        if tensor.dtype is torch.bool:
            tensor.logical_not_()
        else:
            tensor.add_(100)


def _error_of(action: Callable[[], Any]) -> type[Exception] | None:
    try:
        action()
    except RuntimeError as error:
        return type(error)
    return None


def _put_back(state: Tensors, before: Tensors) -> None:
    with torch.no_grad():
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
