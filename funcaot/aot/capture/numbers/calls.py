"""Calls of torch with open numbers among the arguments: ``Lifting`` asks here what to run.

A function of a table gets a tensor of no dimensions in place of a float, of the dtype that torch
would compute with: a number doesn't decide the dtype of a result, a tensor may. Any other function
gets the number of the present call, for which the program is then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.tensors.pytree import tree_flatten, tree_map
from funcaot._torch.tensors.sizes.number_log import SETTLED, all_settled
from funcaot._torch.tensors.sizes.of_numpy.written import KINDS
from funcaot._torch.tensors.sizes.open_numbers import Known, OpenFloat, OpenInt
from funcaot._torch.tensors.sizes.written_numbers import is_written
from funcaot.aot.capture.handlers.sizes_in_tensors import is_size
from funcaot.aot.capture.numbers import torch_code
from funcaot.aot.capture.numbers.arithmetic import (
    OF_NUMBERS_ALONE,
    OF_WHOLE_NUMBERS,
    PARAMETERS,
    making,
)
from funcaot.aot.capture.numbers.functions import of_tensors
from funcaot.aot.capture.numbers.given import Call, is_real, name_of
from funcaot.aot.capture.numbers.table import RULES
from funcaot.aot.graph.settings import SPECIAL
from funcaot.aot.signature.numbers import Numbers, Whole
from funcaot.base.numpy_kinds import double, is_numpy_kind
from funcaot.operator.operator import custom_function_call
from funcaot.transforms.forms.numbers import with_tensors_for_numbers

__all__ = ["followed", "one_by_one", "put_numbers", "returned", "with_numbers", "with_written"]

Lift = Callable[[torch.Tensor], torch.Tensor]


def put_numbers(numbers: Numbers, leaves: Sequence[Any], traced: list[Any]) -> None:
    """Put what a function sees in place of the tensors that stand for its numbers.

    Args:
        numbers: The open ones.
        leaves: A call's leaves, with the tensors' values.
        traced: The same on the tape; changed in place.
    """
    numbers.log.restart()
    for position, kind in numbers.kinds.items():
        tensor = traced[position]
        if kind is not int:
            value, text = float(leaves[position]), f"number_{position}"
            text = text if kind is float else f"float({text})"
            made: Any = OpenFloat(
                numbers.log, value, text, frozenset({position}), lambda tensor=tensor: tensor
            )
            made.present_kind = int if kind is Whole else kind
            made.kind = kind if kind is double else float
        else:
            value, size = leaves[position].shape[0], tensor.shape[0]
            added = numbers.added(position)
            known = Known(value - added, f"number_{position}")
            log, positions = numbers.log, frozenset({position})
            made = OpenInt((size - added).node, log, positions, numbers.largest, known)
        made.argument = None if position in numbers.read else position
        traced[position] = made


def returned(value: Any) -> Any:
    """A number among a function's results, as a program can return it."""
    if type(value) is OpenInt:
        return value.plain
    if is_written(value):
        return value.settle()
    return value.settle() if type(value) is OpenFloat else value


def with_numbers(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """What to call instead of a function that may be given open numbers.

    Args:
        func: A function of torch.
        args: Its arguments, with the tape's tensors.
        kwargs: Its keywords.
    """
    leaves = tree_flatten((args, kwargs))[0]
    kinds = {type(leaf) for leaf in leaves}
    computes = RULES.get(name_of(func), making) is not making
    if computes and not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        # The result is a number to torch, wrapped for the tape.
        return func, *all_settled((args, kwargs))
    if _calls_function(func) and OpenFloat in kinds:
        func, args, kwargs = _function_called(func, args, kwargs)
    if OpenInt in kinds and func is not with_tensors_for_numbers:
        args, kwargs = tree_map(_plain, (args, kwargs))
    if OpenFloat not in kinds:
        return func, args, kwargs
    rule = RULES.get(name_of(func))
    found = None if rule is None else rule(func, *_by_position(func, args, kwargs))
    if found is not None:
        return found
    return func, *all_settled((args, kwargs))


def _function_called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call of a Function: floats are given to it as tensors, which it sees as numbers."""
    if not any(type(each) is OpenFloat and not each.is_read for each in args):
        return func, *all_settled((args, kwargs))
    made, operands = of_tensors(args[0], args[1:], _run_inside)
    return func, (made, *operands), kwargs


def _run_inside(
    mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a function of torch gives in the code of a Function, while a mode is active there."""
    if (inside := followed(func, args, kwargs)) is not None:
        with mode:
            return inside(*args, **kwargs)
    func, args, kwargs = with_numbers(func, args, kwargs)
    return func(*args, **kwargs)


def _calls_function(func: Any) -> bool:
    return func is custom_function_call or func is with_tensors_for_numbers


def with_written(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    lift: Lift,
    bring: Callable[[torch.Tensor], Any],
) -> Call:
    """What to call instead of a function that is given numbers which are written down.

    Args:
        func: A function of torch.
        args: Its arguments, with the tape's tensors.
        kwargs: Its keywords.
        lift: Gives the tape's tensor for a real one.
        bring: Gives the open number in such a tensor; ``NotImplemented`` if it can't.
    """
    name = name_of(func)
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    calls = _calls_function(func)
    takes_floats = RULES.get(name) is not None or calls
    takes_doubles = calls or name == "__setitem__"  # Of NumPy's; torch refuses to assign others.
    takes_all = name in OF_WHOLE_NUMBERS
    whole = takes_all and bool(tensors) and all(map(is_real, tensors))

    def sized(value: Any) -> Any:
        if type(value) is slice:
            return slice(*map(sized, (value.start, value.stop, value.step)))
        if not is_written(value):
            return value
        return _as_size(value, lift, bring) if value.kind is int else value.settle()

    alone = whole and name in OF_NUMBERS_ALONE

    def opened(value: Any, place: int | str) -> Any:
        if not is_written(value):
            return value
        if is_numpy_kind(value.kind) and (
            name in _BY_DTYPE or (takes_doubles and value.kind is not double)
        ):
            return value.settle()
        if value.kind is int and not (alone or (whole and place == "alpha")):
            if (found := value.given()) is not None:
                return found
        if value.kind is int and takes_all and not whole:
            return _as_size(value, lift, bring)
        found = value.opened(lift) if takes_floats and (whole or not value.is_whole) else None
        return value.settle() if found is None else found

    def given(value: Any, place: int | str) -> Any:
        return tree_map(sized if is_size(name, place) else partial(opened, place=place), value)

    args = tuple(given(value, place) for place, value in enumerate(args))
    kwargs = {key: given(value, key) for key, value in kwargs.items()}
    return with_numbers(func, args, kwargs)


def _as_size(number: Any, lift: Lift, bring: Callable[[torch.Tensor], Any]) -> Any:
    """A whole number as one of a program's open sizes, if it can be; else that of this call."""
    if (given := number.given()) is not None:
        return given
    if number.argument is not None and number.value in SPECIAL:
        return number.settle()  # Ops treat it in another way than other sizes.
    is_negative = number < 0
    found = (-number if is_negative else number).opened(lift)
    brought = NotImplemented if found is None else bring(found.tensor().to(torch.int64))
    if brought is NotImplemented:
        return number.settle()
    return -brought if is_negative else brought


def followed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """A function of torch as code that hands open floats on; None for one that takes them whole.

    Args:
        func: A function of torch.
        args: Its arguments.
        kwargs: Its keywords.
    """
    return torch_code.followed(func) if _holds_open_float((args, kwargs)) else None


def _holds_open_float(values: Any) -> bool:
    kinds = {type(leaf) for leaf in tree_flatten(values)[0]}
    return not kinds.isdisjoint(_FLOATS)


def one_by_one(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Call] | None:
    """The calls for single tensors that an op on lists with open numbers is; None for others.

    Args:
        func: A function of torch.
        args: Its arguments.
        kwargs: Its keywords.
    """
    name = name_of(func).removeprefix("_foreach_")
    if name == name_of(func) or name.removesuffix("_") not in _OF_LISTS:
        return None
    if not any(type(leaf) in SETTLED for leaf in tree_flatten((args, kwargs))[0]):
        return None
    kwargs = dict(kwargs)
    if "weight" in kwargs:  # the method takes it by position
        args = (*args, kwargs.pop("weight"))
    if name.startswith("addc") and len(args) > _TENSORS:  # The method takes it by keyword.
        *args, kwargs["value"] = args
    return [
        (
            getattr(torch.Tensor, name),
            tuple(_item(value, index) for value in args),
            {key: _item(value, index) for key, value in kwargs.items()},
        )
        for index in range(len(args[0]))
    ]


def _item(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list | tuple) else value


_FLOATS = {OpenFloat, *(made for made in KINDS.values() if not made.is_whole)}
# A number of NumPy's says of which dtype the result is.
_BY_DTYPE = ("tensor", "as_tensor", "asarray", "new_tensor")
_OF_LISTS = frozenset((
    *("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "pow"),
    *("clamp_min", "clamp_max"),
))  # fmt: skip
_TENSORS = 3


def _plain(value: Any) -> Any:
    return value.plain if type(value) is OpenInt else value


def _by_position(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that may be given both ways, all by position."""
    kwargs = dict(kwargs)
    for name in PARAMETERS.get(name_of(func).removesuffix("_"), ())[len(args) :]:
        if name not in kwargs:
            break
        args = (*args, kwargs.pop(name))
    return args, kwargs
