"""How a formula with an open number becomes a rule: it is called as the function of torch is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from funcaot._torch.tensors.sizes.open_numbers import OpenFloat
from funcaot.aot.capture.numbers.given import Call, Rule, is_full

__all__ = [
    "Formula",
    "by_formula",
    "held",
    "in_place",
    "is_finite",
    "is_plain",
    "is_positive",
]

Formula: TypeAlias = Callable[..., torch.Tensor | None]


def by_formula(formula: Formula) -> Rule:
    """The rule that a formula is; where it gives None, the number is told.

    Args:
        formula: It has the parameters of the function of torch.
    """
    result_of = _called(formula)

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        result = result_of(args, kwargs)
        return None if result is None else (_handed_on, (result,), {})

    return rule


def in_place(formula: Formula) -> Rule:
    """The same for a function that writes the result to its first argument."""
    result_of = _called(formula)

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        result = result_of(args, kwargs) if args else None
        return None if result is None else (torch.Tensor.copy_, (args[0], result), {})

    return rule


def _called(formula: Formula) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    signature = inspect.signature(formula)

    def result_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return None  # Torch says what is wrong, or means another overload.
        return formula(*bound.args, **bound.kwargs)

    return result_of


def _handed_on(result: torch.Tensor) -> torch.Tensor:
    return result


def is_plain(*values: Any) -> bool:
    """Whether these are strided tensors of one real dtype that torch computes with as it is."""
    return (
        is_full(*values)
        and values[0].is_floating_point()
        and not any(value.is_nested or value.layout is not torch.strided for value in values)
    )


def held(number: Any, dtype: torch.dtype) -> Any:
    """A number beside a tensor: for an open one a tensor of its dtype; None where there is none."""
    if type(number) is OpenFloat:
        return number.within(dtype)
    return number if type(number) in (int, float) else None


def is_finite(number: Any) -> bool:
    """Whether a number is; of an open one that is assumed from now on."""
    if type(number) is OpenFloat:
        return bool(number.in_mathematics("isfinite", ()))
    return math.isfinite(number)


def is_positive(number: Any) -> bool:
    """Whether a number is above zero and finite."""
    return bool(number > 0) and is_finite(number)
