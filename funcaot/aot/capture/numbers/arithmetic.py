"""Arithmetic, limits and filling with open floats: what to call instead, with tensors for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from funcaot._torch.autograd.autograd import set_version, version_of
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tensors.recurrent import without_cudnn
from funcaot._torch.tensors.sizes.narrow_numbers import (
    HALF,
    factored_sum,
    interpolated,
    is_in_place,
    multiplied,
)
from funcaot._torch.tensors.sizes.open_numbers import OpenFloat
from funcaot.aot.capture.numbers.given import FULL, Call, Rule, is_full, is_real, name_of

__all__ = ["OF_NUMBERS_ALONE", "OF_WHOLE_NUMBERS", "PARAMETERS", "RULES", "arithmetic", "making"]

_CPU = torch.device("cpu")
_EASY_POWERS = (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0)


def arithmetic(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A tensor and a number, added, multiplied and so on."""
    if kwargs or len(args) != 2 or not isinstance(args[0], torch.Tensor):
        return None
    tensor, number = args
    if type(number) is not OpenFloat:
        return None
    dtype = torch.result_type(tensor, 1.0)
    name = func.__name__
    if dtype in FULL:
        if is_in_place(name) and tensor.dtype is not dtype:
            return None
        return func, (tensor, number.tensor().to(dtype)), {}
    if dtype not in HALF:
        return None
    if name in ("__rtruediv__", "__rdiv__"):
        # Eager rounds what it multiplies the number by.
        return arithmetic(torch.mul, (tensor.reciprocal(), number), {})
    single = number.tensor().to(torch.float32)
    if name.removesuffix("_") in _SUMS or name in _SUMS_BY_SIGN:
        # Eager rounds the number first.
        return func, (tensor, single.to(dtype)), {}
    return multiplied(func, tensor, single)


def _sum(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A sum or difference, with a factor by keyword at most."""
    if not kwargs:
        return arithmetic(func, args, kwargs)
    factor = kwargs.get("alpha")
    if set(kwargs) != {"alpha"} or len(args) != 2 or type(factor) is not OpenFloat:
        return None
    if func.__name__ == "rsub":  # torch.sub of the two, the other way round
        if not is_full(*args) or (held := factor.within(args[0].dtype)) is None:
            return None
        return func, (args[0] * held, args[1]), {}
    if not is_full(*args):
        return factored_sum(func, args, factor)
    held = factor.within(args[1].dtype)
    return None if held is None else (func, (args[0], args[1] * held), {})


def _power(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A number to the power of a tensor, as ``beta ** step`` of an optimizer."""
    exponent, base = args
    if kwargs or type(base) is not OpenFloat or not is_full(exponent):
        return None
    # Eager's derivative has the logarithm in double precision, of what the dtype doesn't hold, too.
    is_tiny = abs(base) < torch.finfo(exponent.dtype).tiny and base != 0
    held = None if is_tiny else base.within(exponent.dtype)
    return None if held is None else (torch.pow, (held, exponent), {})


def _division(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A whole quotient by a number, or what remains."""
    if kwargs or len(args) != 2 or not is_full(args[0]) or type(args[1]) is not OpenFloat:
        return None
    return func, (args[0], args[1].tensor().to(args[0].dtype)), {}


def _to_a_power(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A tensor to the power of a number, other than those that torch computes in another way."""
    if kwargs or len(args) != 2 or not is_full(args[0]) or type(args[1]) is not OpenFloat:
        return None
    if args[1].is_one_of(_EASY_POWERS) or (held := args[1].within(args[0].dtype)) is None:
        return None
    return func, (args[0], held), {}


def _comparison(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A tensor, compared with a number in the dtype of both."""
    if kwargs or len(args) != 2 or type(args[1]) is not OpenFloat:
        return None
    if not isinstance(args[0], torch.Tensor) or args[0].is_complex():
        return None
    tensor, number = args
    dtype = torch.result_type(tensor, 1.0)
    return func, (tensor.to(dtype), number.tensor().to(dtype)), {}


def _product_added(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``addcmul`` and ``addcdiv``, whose factor multiplies the first of the two."""
    factor = kwargs.get("value")
    if set(kwargs) != {"value"} or len(args) != 3 or type(factor) is not OpenFloat:
        return None
    if not is_full(*args):
        return factored_sum(func, args, factor)
    held = factor.within(args[1].dtype)
    return None if held is None else (func, (args[0], args[1] * held, args[2]), {})


def _interpolation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``lerp`` by a weight."""
    if kwargs or len(args) != 3 or type(args[2]) is not OpenFloat:
        return None
    if not is_full(*args[:2]):
        return interpolated(func, args[:2], args[2])
    weight = args[2].within(args[0].dtype)
    return None if weight is None else (func, (*args[:2], weight), {})


def _limits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``clamp`` between numbers."""
    if len(args) not in (1, 2, 3) or not is_real(args[0]) or set(kwargs) - {"min", "max"}:
        return None
    tensor: torch.Tensor = args[0]

    def limit(value: Any) -> Any:
        if type(value) is OpenFloat:
            return value.within(tensor.dtype)
        if isinstance(value, (int, float)):
            return torch.scalar_tensor(value, dtype=tensor.dtype, device=tensor.device)
        return value

    limits = [limit(value) for value in args[1:]]
    named = {name: limit(value) for name, value in kwargs.items()}
    pairs = zip((*args[1:], *kwargs.values()), (*limits, *named.values()), strict=True)
    if any(held is None and value is not None for value, held in pairs):
        return None
    return func, (tensor, *limits), named


def _choice(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``where``, of a tensor and a number or of two numbers."""
    if kwargs or len(args) != 3 or not isinstance(args[0], torch.Tensor):
        return None
    tensors = [value for value in args[1:] if isinstance(value, torch.Tensor)]
    numbers = [value for value in args[1:] if isinstance(value, (int, float))]
    if len(tensors) > 1 or len(tensors) + len(numbers) != 2:
        return None
    dtype = torch.result_type(tensors[0], 1.0) if tensors else torch.get_default_dtype()
    device = args[0].device

    def held(value: Any) -> torch.Tensor | None:
        if type(value) is OpenFloat:
            return value.within(dtype)
        if isinstance(value, torch.Tensor):
            return value.to(dtype)
        return torch.scalar_tensor(value, dtype=dtype, device=device)

    chosen = list(map(held, args[1:]))
    return None if any(each is None for each in chosen) else (func, (args[0], *chosen), {})


def _filling(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``fill_``, ``masked_fill`` and an assignment by index, whose last argument is the value."""
    if kwargs or not args or not is_real(args[0]) or type(args[-1]) is not OpenFloat:
        return None
    if any(type(value) is OpenFloat for value in tree_flatten(args[:-1])[0]):
        return None
    value = args[-1].within(args[0].dtype)
    return None if value is None else (func, (*args[:-1], value), {})


def making(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``torch.tensor`` of a number or a list of numbers, and ``full``."""
    if len(args) == 1 and type(args[0]) in (list, tuple):
        return _list_made(args[0], kwargs)
    if len(args) not in (1, 2) or type(args[-1]) is not OpenFloat:
        return None
    if set(kwargs) - {"dtype", "device"} or torch.device(kwargs.get("device") or "cpu") != _CPU:
        return None
    number: OpenFloat = args[-1]
    size: Any = () if len(args) == 1 else args[0]
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point or not isinstance(size, list | tuple):
        return None
    # ``torch.tensor`` takes numbers that a dtype doesn't hold.
    takes_all = name_of(func) in ("tensor", "as_tensor")
    value = number.tensor().to(dtype) if takes_all else number.within(dtype)
    if value is None:
        return None

    def make() -> torch.Tensor:
        return value.expand(size).clone(memory_format=torch.contiguous_format)

    return make, (), {}


def _list_made(data: Sequence[Any], kwargs: dict[str, Any]) -> Call | None:
    """``torch.tensor`` of a list of numbers."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    device = torch.device(kwargs.get("device") or "cpu")
    if set(kwargs) - {"dtype", "device"} or device != _CPU or not dtype.is_floating_point:
        return None
    if not {float, int, OpenFloat}.issuperset(map(type, data)):
        return None

    def held(value: Any) -> torch.Tensor:
        if type(value) is OpenFloat:
            return value.tensor().to(dtype)
        return torch.tensor(value, dtype=dtype, device=_CPU)

    return torch.stack, ([held(value) for value in data],), {}


def _made_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``full_like``, ``new_full`` and ``new_tensor``: zeros made in that way, and filled."""
    if not args or not isinstance(args[0], torch.Tensor) or type(args[-1]) is not OpenFloat:
        return None
    if kwargs.get("requires_grad") or any(type(v) is OpenFloat for v in args[:-1]):
        return None
    dtype = kwargs.get("dtype") or args[0].dtype
    if not dtype.is_floating_point:
        return None
    name, number = name_of(func), args[-1]
    value = number.tensor().to(dtype) if name == "new_tensor" else number.within(dtype)
    if value is None:
        return None

    def make(tensor: torch.Tensor, *size: Any) -> torch.Tensor:
        with torch.no_grad():
            if name == "full_like":
                return torch.zeros_like(tensor, **kwargs).fill_(value)
            return tensor.new_zeros(*size or ((),), **kwargs).fill_(value)

    return make, args[:-1], {}


def _normalization(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """``batch_norm`` and ``instance_norm``, whose momentum goes into running statistics only.

    With a momentum of one the kernel gives the statistics of the batch.
    """
    if func not in (F.batch_norm, F.instance_norm) or kwargs or len(args) < 7:
        return None
    tensor, *running, weight, bias, training, momentum = args[:7]
    if type(momentum) is not OpenFloat or OpenFloat in map(type, args[7:]):
        return None
    if not training or running == [None, None]:
        return func, (*args[:6], 0.0, *args[7:]), {}
    if not all(map(is_full, running)):
        return None

    def normalize(tensor: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Any:
        running = (mean, variance)
        with torch.no_grad():
            of_batch = [torch.zeros_like(each) for each in running]
        with without_cudnn():
            result = func(tensor, *of_batch, weight, bias, training, 1.0, *args[7:])
        with torch.no_grad():
            for each, new in zip(running, of_batch, strict=True):
                version = version_of(each)
                part = momentum.tensor().to(each.dtype)
                each.copy_(part * new + (1 - part) * each)
                if func is F.batch_norm:  # Its kernel doesn't count what it writes.
                    set_version(each, version)
        return result

    return normalize, (tensor, *running), {}


_ARITHMETIC = ("mul", "multiply", "div", "divide", "true_divide")
_SUMS = ("add", "sub", "subtract")
_BY_SIGN = ("__mul__", "__rmul__", "__imul__", "__truediv__", "__div__", "__itruediv__", "__idiv__")
_SUMS_BY_SIGN = ("__add__", "__radd__", "__iadd__", "__sub__", "__isub__", "__rsub__", "rsub")
_DIVISIONS = ("__floordiv__", "__ifloordiv__", "__mod__", "__imod__")
_COMPARISONS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "not_equal"),
    *("greater", "greater_equal", "less", "less_equal"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)


def _both(names: Sequence[str]) -> list[str]:
    """Names of ops, and of those that write to their first argument."""
    return [*names, *(f"{name}_" for name in names)]


_NORMALIZED = ("input", "running_mean", "running_var", "weight", "bias")
PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_ARITHMETIC, *_SUMS, *_COMPARISONS), ("input", "other")),
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), ("input", "other")),
    **dict.fromkeys(("addcmul", "addcdiv"), ("input", "tensor1", "tensor2")),
    "lerp": ("input", "end", "weight"),
    "pow": ("input", "exponent"),
    "batch_norm": (*_NORMALIZED, "training", "momentum", "eps"),
    "instance_norm": (*_NORMALIZED, "use_input_stats", "momentum", "eps"),
    "where": ("condition", "input", "other"),
    "masked_fill": ("input", "mask", "value"),
    "fill": ("input", "value"),
    "full": ("size", "fill_value"),
    "full_like": ("input", "fill_value"),
    "new_full": ("self", "size", "fill_value"),
}
RULES: dict[str, Rule] = {
    **dict.fromkeys((*_both(_ARITHMETIC), *_BY_SIGN, "__rtruediv__", "__rdiv__"), arithmetic),
    **dict.fromkeys((*_both(_SUMS), *_SUMS_BY_SIGN), _sum),
    "__rpow__": _power,
    **dict.fromkeys((*_both(("floor_divide", "remainder", "fmod")), *_DIVISIONS), _division),
    **dict.fromkeys((*_both(("pow",)), "__pow__", "__ipow__"), _to_a_power),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_both(("addcmul", "addcdiv")), _product_added),
    **dict.fromkeys(_both(("lerp",)), _interpolation),
    **dict.fromkeys(_both(("clamp", "clip", "clamp_min", "clamp_max")), _limits),
    **dict.fromkeys(("batch_norm", "instance_norm"), _normalization),
    "where": _choice,
    **dict.fromkeys(("fill_", "masked_fill", "masked_fill_", "__setitem__"), _filling),
    **dict.fromkeys(("tensor", "as_tensor", "scalar_tensor", "full"), making),
    **dict.fromkeys(("full_like", "new_full", "new_tensor"), _made_like),
}
# Where a whole number among real tensors is a factor, a term or a limit like any other.
OF_WHOLE_NUMBERS = frozenset(RULES)
# Those of them that torch computes for one value of an open size.
OF_NUMBERS_ALONE = frozenset(
    name
    for name, rule in RULES.items()
    if rule in (_power, _to_a_power, _division, _product_added, _interpolation, _limits)
)
