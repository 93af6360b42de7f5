"""Functions of torch that look at values, though their results' metadata don't depend on them.

A capture keeps each call as one opaque node, which runs on real values; autograd differentiates it
there. The list is explicit, and every entry says what reads the values. Functions whose result's
shape depends on values (``nonzero``, ``masked_select``, ``unique``) can't be here, nor any that
returns a view, several tensors or random numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from funcaot._torch.levels.functorch import transforms_active
from funcaot._torch.tensors import guards
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing.tracing import is_untraceable
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.tape.known.premises import numbers_in
from funcaot.classes.opaque import current_captor, layout_of
from funcaot.classes.premise import refused
from funcaot.derivatives.kernels import with_derivatives
from funcaot.derivatives.losses import ctc
from funcaot.rules.opaque.function import OfTorch, opaque_function
from funcaot.rules.operands.flat_call import flatten_values

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _always(call: Arguments) -> bool:
    return True


def _with_classes(call: Arguments) -> bool:
    """The number of classes is given, so that the result's shape is known."""
    args, kwargs = call
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    return isinstance(classes, int) and classes >= 0


def _by_mask(call: Arguments) -> bool:
    """A boolean index whose backward with respect to the values selects by it."""
    args, kwargs = call
    indices = kwargs.get("indices", args[1] if len(args) > 1 else ())
    masks = (torch.bool, torch.uint8)
    return any(isinstance(i, torch.Tensor) and i.dtype in masks for i in indices or ())


def _by_differentiated_value(call: Arguments) -> bool:
    """A value that is a tensor with a gradient, which is summed over the distinct indices."""
    args, kwargs = call
    value = kwargs.get("value", args[3] if len(args) > 3 else None)
    return isinstance(value, torch.Tensor) and value.requires_grad


# What reads values: combinations selects by a mask of known count; cov and corrcoef check that
# weights aren't negative, istft that windows don't cancel, gaussian_nll_loss that variances aren't
# negative, one_hot that classes are below their number; ctc_loss reads the lengths of the targets.
OPAQUE: dict[Callable[..., Any], Callable[[Arguments], bool]] = {
    torch.combinations: _always,
    torch.cov: _always,
    torch.Tensor.cov: _always,
    torch.corrcoef: _always,
    torch.Tensor.corrcoef: _always,
    torch.istft: _always,
    torch.Tensor.istft: _always,
    torch.ctc_loss: _always,
    functional.ctc_loss: _always,
    functional.gaussian_nll_loss: _always,
    functional.one_hot: _with_classes,
    torch.index_put: _by_mask,
    torch.Tensor.index_put: _by_mask,
    torch.index_fill: _by_differentiated_value,
    torch.Tensor.index_fill: _by_differentiated_value,
}

# Their forward can be traced; it is their backward that reads values.
LATE = frozenset(
    {torch.index_put, torch.Tensor.index_put, torch.index_fill, torch.Tensor.index_fill}
)
# All that they read is whether their arguments are right, which is a premise at any size.
_CHECKING = frozenset({functional.gaussian_nll_loss})
_CTC = frozenset({torch.ctc_loss, functional.ctc_loss})
# As in eager, a gradient doesn't require grad where it doesn't depend on what is differentiated.
_LINEAR = LATE | {torch.combinations}
_LINEAR_IN_FIRST = frozenset({torch.istft, torch.Tensor.istft})


def split_by_numbers(call: Call, capture: InProgress) -> Any:
    """``tensor_split``: where to split may be a tensor, read without an op that could be seen."""

    def read(value: Any) -> Any:
        numbers = numbers_in(value) if isinstance(value, torch.Tensor) else value
        return value if numbers is NotImplemented else numbers

    keywords = {
        name: value if name in ("self", "input") else read(value)
        for name, value in call.kwargs.items()
    }
    return Call(call.func, (*call.args[:1], *map(read, call.args[1:])), keywords)


def run_opaquely(call: Call, capture: InProgress) -> Any:
    """A function that reads values, as an opaque node where it does."""
    arguments = (call.args, call.kwargs)
    if not OPAQUE[call.func](arguments):
        return NotImplemented
    if call.func in LATE:
        result = call_opaquely(call.func, arguments, None)
        return NotImplemented if result is None else result
    open_sizes = capture.tape.sizes is not None
    try:
        with contextlib.nullcontext() if open_sizes and call.func in _CHECKING else refused():
            return call.run()
    except Exception as error:
        if not is_untraceable(error):
            raise
        result = call_opaquely(call.func, arguments, error)
        if result is None and call.func in _CTC:
            # Nobody knows the lengths of an example of vmap's.
            result = ctc.in_differentiable_ops(*call.args, **call.kwargs)
        if result is None and transforms_active():
            return call.run()  # what is read of no example of a batch is a premise
        if result is None:
            raise
        return result


def call_opaquely(function: Callable[..., Any], call: Arguments, error: Exception | None) -> Any:
    """Record a call of such a function as one opaque node.

    Args:
        function: The function of torch.
        call: Its arguments, with the tape's tensors.
        error: Why it can't be traced, if that was tried.

    Returns:
        The traced result, or None if no capture knows the values of the arguments.
    """
    captor = current_captor()
    flat, tensors = flatten_values(call)
    values = None if captor is None else captor.real_values(tensors)
    if captor is None or values is None:
        return None

    # A backward runs the function again, after the region that autocasts.
    autocast = guards.autocast_state()

    def run(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = flat.arguments(operands)
        with guards.autocast_as(autocast):
            return (function(*args, **kwargs),)

    name = getattr(function, "__name__", "function")
    reason = "its values decide what it does" if error is None else str(error).splitlines()[0]
    (output,) = captor.outside(lambda: run(*values), tree_flatten(call)[0])
    linear = function in _LINEAR or (
        function in _LINEAR_IN_FIRST and not any(tensor.requires_grad for tensor in tensors[1:])
    )
    made = opaque_function(
        run,
        (layout_of(output),),
        name,
        f"torch's {name}: {reason}",
        linear=linear,
        of_torch=OfTorch(with_derivatives),
    )
    (result,) = captor.call(made, *tensors)
    return result
