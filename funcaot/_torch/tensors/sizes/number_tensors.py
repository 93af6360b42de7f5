"""Tensors that stand for Python numbers: what ``item()`` gives in a step that is captured.

They are of double precision, so that Python's arithmetic with them is done in the graph, with the
same rounding. What is computed of such numbers alone is one again; where one is stored, a call
stores the number.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = [
    "computed",
    "extreme_of",
    "kind_of",
    "marked",
    "mathematics_of",
    "number_of",
    "plain",
    "stepping",
]

_MARK = "_funcaot_number"
_WHOLE = ("add", "sub", "mul", "rsub", "neg", "abs", "floor_divide", "remainder")
_REAL = ("div", "true_divide", "pow", "rpow", "reciprocal", "maximum", "minimum")
_FUNCTIONS = ("sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh")
_FUNCTIONS += ("atan", "asin", "acos", "sinh", "cosh", "pow")
_SIGNS = {"__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__rpow__": "rpow"}
_SIGNS |= {"__rtruediv__": "div", "__rdiv__": "div", "__truediv__": "div", "__neg__": "neg"}
_SIGNS |= {"__floordiv__": "floor_divide", "__mod__": "remainder", "__pow__": "pow"}
_SIGNS |= {"__add__": "add", "__sub__": "sub", "__mul__": "mul", "__abs__": "abs", "__div__": "div"}
_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "__iadd__": torch.add,
    "__isub__": torch.sub,
    "__imul__": torch.mul,
    "__itruediv__": torch.div,
    "__idiv__": torch.div,
    "__ipow__": torch.pow,
    "add_": torch.add,
    "sub_": torch.sub,
    "mul_": torch.mul,
    "div_": torch.div,
    "pow_": torch.pow,
}


class _ThisThread(threading.local):
    steps = 0


stepping = _ThisThread()


def kind_of(value: Any) -> type | None:
    """The class of the number that a tensor stands for; None for anything else."""
    return vars(value).get(_MARK) if isinstance(value, torch.Tensor) else None


def number_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What stands for the number in a tensor of one; None for what has no number in double."""
    if tensor.dtype.is_complex:
        return None
    whole = int if tensor.dtype is not torch.bool else bool
    number = tensor.detach().reshape(()).to(torch.float64, copy=True)
    return marked(number, float if tensor.dtype.is_floating_point else whole)


def plain(number: torch.Tensor, kind: type) -> Any:
    """The number of a call."""
    return kind(number.item())


def computed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function makes of such numbers; ``NotImplemented`` if it is given none."""
    operands = [*args, *kwargs.values()]
    kinds = list(map(kind_of, operands))
    if not any(kinds):
        return NotImplemented
    name = getattr(func, "__name__", "")
    if kinds[0] is not None and name in _IN_PLACE:
        # Python's numbers are never written to.
        func, name = _IN_PLACE[name], name.strip("_").removeprefix("i")
    others = [x for x in operands if isinstance(x, torch.Tensor) and kind_of(x) is None]
    if others:
        return func(*_beside(others, args), **kwargs)
    result = func(*args, **kwargs)
    name = _SIGNS.get(name, name)
    if not isinstance(result, torch.Tensor) or result.dtype is not torch.float64:
        return result
    if name not in _WHOLE + _REAL or result.dim():
        return result
    given = [kind or x.__class__ for x, kind in zip(operands, kinds, strict=True)]
    whole = name in _WHOLE and all(kind in (int, bool) for kind in given)
    return marked(result, int if whole else float)


def mathematics_of(name: str, args: tuple[Any, ...]) -> Any:
    """What a function of ``math`` makes of tensors in a step; ``NotImplemented`` elsewhere."""
    if not stepping.steps or name not in _FUNCTIONS:
        return NotImplemented
    given = [_entered(value) for value in args]
    if not all(isinstance(value, int | float) or kind_of(value) for value in given):
        return NotImplemented
    result = getattr(torch, name)(*given)
    if kind_of(result) is None:
        marked(result, float)
    sound = all(_is_finite(value) for value in given)
    # Python raises where a number is no result.
    if not sound or not _is_finite(result):
        return getattr(math, name)(*map(float, given))
    return result


def extreme_of(choose: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    """What ``min`` or ``max`` gives of numbers in a step; ``NotImplemented`` elsewhere.

    The first one stays where no later one is less, as in Python: NaN isn't.
    """
    kinds = {kind_of(value) or type(value) for value in numbers}
    if not stepping.steps or len(numbers) < 2 or kinds != {float}:
        return NotImplemented
    if not any(map(kind_of, numbers)):
        return NotImplemented
    found = numbers[0]
    for other in numbers[1:]:
        pair = [each.clone() if kind_of(each) else each for each in (other, found)]
        is_better = pair[0] < pair[1] if choose is min else pair[0] > pair[1]
        if isinstance(is_better, torch.Tensor):
            found = torch.where(is_better, *pair)
        else:
            found = pair[0] if is_better else pair[1]
    return marked(found, float)


def marked(number: torch.Tensor, kind: type) -> torch.Tensor:
    """A tensor, as what stands for a number of a class."""
    vars(number)[_MARK] = kind
    return number


def _entered(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or kind_of(value) is not None:
        return value
    return value.item() if value.numel() == 1 else value


def _is_finite(value: Any) -> bool:
    return bool(torch.isfinite(value)) if isinstance(value, torch.Tensor) else math.isfinite(value)


def _beside(others: list[torch.Tensor], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers beside tensors, which decide the dtype; one of no dimensions does that too."""
    if any(other.dim() for other in others):
        return args

    def cast(value: Any) -> Any:
        kind = kind_of(value)
        return value if kind is None else value.to(torch.result_type(others[0], kind(1)))

    return tuple(map(cast, args))
