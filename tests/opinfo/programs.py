"""Operators of torch's database as programs of users: strides of results and of two gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import funcaot
from funcaot.errors import FuncaotError
from tests.opinfo.layouts import relaid
from tests.opinfo.strides import is_plain, samples_of, tensors

# What lies in memory; results that share memory though autograd doesn't know it.
LEFT_OUT = ("empty", "new_empty", "unsafe_", "as_strided", "torch.ops.aten")

Call = tuple[Callable[..., Any], Any]  # an operator with its arguments and keywords


def calls_of(operator: Any, layout: str, most: int = 1) -> list[Call]:
    """An operator's samples in a layout, where eager runs it and the layout changes something."""
    if operator.name.startswith(LEFT_OUT):
        return []
    found: list[Call] = []
    for sample in samples_of(operator, 12):
        laid, changed = relaid(sample, layout)
        call = (operator.op, laid)
        if len(found) == most or not changed:
            continue
        try:
            results = tensors(run([call]))
        except Exception:  # noqa: BLE001  (what eager can't do says nothing)
            continue
        if results and all(map(is_plain, (*results, *tensors(laid)))):
            found.append(call)
    return found


def run(calls: Sequence[Call]) -> list[Any]:
    return [function(*args, **kwargs) for function, (args, kwargs) in calls]


def strides(function: Callable[[Any], Any], values: Any) -> list[Any]:
    """Of results, of their gradients and of the gradients of these."""
    leaves = [x for x in tensors(values) if x.requires_grad]
    results = tensors(function(values))
    found: list[Any] = [[(tuple(x.shape), x.stride(), x.dtype) for x in results]]
    for order in range(2):
        results = [x for x in results if x.grad_fn is not None]
        if not results or not leaves:
            break
        gradients = [torch.rand_like(x.detach()) for x in results]
        try:
            made = torch.autograd.grad(
                results, leaves, gradients, create_graph=not order, allow_unused=True
            )
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, FuncaotError):
                raise
            break  # Eager has no derivative of some, for which funcaot brings one.
        results = tensors(made)
        found.append([x if x is None else (tuple(x.shape), x.stride()) for x in made])
    return found


def differences(calls: Sequence[Call], backend: Any) -> list[str]:
    """How strides of a program of these calls differ from eager's, in two calls of it."""

    def program(values: Any) -> Any:
        return run([(function, own) for (function, _), own in zip(calls, values, strict=True)])

    values = [own for _, own in calls]
    compiled = funcaot.compile(program, **({} if backend is None else {"backend": backend}))
    wanted, wrong = strides(program, values), []
    for _ in range(2):
        found = strides(compiled, values)
        for order, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
            pairs = zip(ours, theirs, strict=True)
            wrong += [f"order {order}: {pair}" for pair in pairs if differ(*pair)]
    return wrong


def differ(ours: Any, theirs: Any) -> bool:
    # A gradient that is zero is None in some derivatives of ours and in some of eager's.
    return ours is not None and theirs is not None and ours != theirs


def operator_differences(operator: Any, layout: str, backend: Any) -> list[str]:
    """Those of one operator; what is refused by name is left out."""
    found: list[str] = []
    for call in calls_of(operator, layout):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found += [f"{operator.name} {layout} {one}" for one in differences([call], backend)]
            except FuncaotError:
                continue
            except Exception as error:  # noqa: BLE001  (it is reported)
                found.append(f"{operator.name} {layout} {type(error).__name__}: {error}"[:300])
    return found
