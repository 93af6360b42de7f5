"""Runs TorchScript op by op in Python while a capture is in progress; the tape uses it.

In TorchScript's own interpreter a capture sees neither the tensors that a scripted module holds nor
what is done to its inputs. A scripted function whose Python function is known runs that instead.
"""

from __future__ import annotations

import contextlib
import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch, holding
from funcaot.errors import UnsupportedError

__all__ = ["running_scripts_in_python"]

_ScriptFunction: Any = torch.jit.ScriptFunction
_ScriptMethod: Any = torch._C.ScriptMethod


class _ThisThread(threading.local):
    in_python = False


# As they stand in their classes; as attributes of a class of ours they would be bound.
_ORIGINALS: dict[Any, Any] = {
    kind: vars(kind)["__call__"] for kind in (_ScriptFunction, _ScriptMethod)
}


_this_thread = _ThisThread()


def _call_function(function: Any, *args: Any, **kwargs: Any) -> Any:
    if not _this_thread.in_python:
        return _ORIGINALS[_ScriptFunction](function, *args, **kwargs)
    original = getattr(function, "_torchdynamo_inline", None)
    if original is not None:
        return original(*args, **kwargs)
    return _run(function.graph, _bound(function.schema, args, kwargs))


def _call_method(method: Any, *args: Any, **kwargs: Any) -> Any:
    if not _this_thread.in_python or _is_of_cpp(method):
        return _ORIGINALS[_ScriptMethod](method, *args, **kwargs)
    return _run(method.graph, _bound(method.schema, (method.owner, *args), kwargs))


def _is_of_cpp(method: Any) -> bool:
    """Whether a method is one of a class that C++ gave to scripts: it has no graph."""
    return str(method.owner._type()).startswith("__torch__.torch.classes.")


def _replace() -> None:
    _ScriptFunction.__call__, _ScriptMethod.__call__ = _call_function, _call_method


def _restore() -> None:
    for kind, call in _ORIGINALS.items():
        kind.__call__ = call


_patch = SharedPatch(_replace, _restore, lasts=True)


@contextlib.contextmanager
def running_scripts_in_python() -> Iterator[None]:
    """Run scripted functions and modules that this thread calls in Python, op by op."""
    with applied("scripts", _patch.used, None), holding(_this_thread, in_python=True):
        yield


# --- running a graph ----------------------------------------------------------------------------


def _bound(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call by position, with defaults."""
    values = [*args]
    for argument in schema.arguments[len(values) :]:
        if argument.name in kwargs:
            values.append(kwargs[argument.name])
        elif argument.has_default_value():
            values.append(argument.default_value)
        else:
            raise TypeError(f"{schema.name}() is missing the argument {argument.name!r}")
    return values


def _run(graph: Any, args: Sequence[Any]) -> Any:
    graph = graph.copy()
    torch._C._jit_pass_inline(graph)
    values = dict(zip([each.debugName() for each in graph.inputs()], args, strict=True))
    found = _run_block(graph, values)
    return found[0] if len(found) == 1 else tuple(found)


def _run_block(block: Any, values: dict[str, Any]) -> list[Any]:
    for node in block.nodes():
        given = [values[each.debugName()] for each in node.inputs()]
        made = _run_node(node, given, values)
        names = [each.debugName() for each in node.outputs()]
        if len(names) == 1:
            values[names[0]] = made
        else:
            values.update(zip(names, made or (), strict=True))
    outputs = block.return_node().inputs() if hasattr(block, "return_node") else block.outputs()
    return [values[each.debugName()] for each in outputs]


def _run_node(node: Any, given: list[Any], values: dict[str, Any]) -> Any:
    kind = node.kind()
    if kind in ("prim::If", "prim::Loop"):
        return (_branch if kind == "prim::If" else _loop)(node, given, values)
    handler = _PRIMITIVE.get(kind)
    if handler is not None:
        return handler(node, given)
    simple = _SIMPLE.get(kind)
    if simple is not None:
        if not any(isinstance(each, torch.Tensor) for each in given):
            return simple(*given)
        if kind in _OPERATORS and (len(given) == 2 or given[2:] == [1]):
            return simple(*given[:2])
    if kind.startswith("aten::"):
        return _run_op(node, kind, given)
    return _refuse(kind)


def _run_op(node: Any, kind: str, given: list[Any]) -> Any:
    schema = torch._C.parse_schema(node.schema())
    name = kind.partition("::")[2]
    by_name = {
        argument.name: value
        for argument, value in zip(schema.arguments, given, strict=True)
        if argument.kwarg_only
    }
    positional = given[: len(given) - len(by_name)]
    if name in _METHODS or (name.endswith("_") and not name.endswith("__")):
        return getattr(positional[0], name)(*positional[1:], **by_name)
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return _refuse(kind)
    return getattr(packet, schema.overload_name or "default")(*positional, **by_name)


def _refuse(kind: str) -> Any:
    raise UnsupportedError(
        f"A scripted module or function has the operation {kind}, which isn't known outside of "
        "TorchScript.",
        remedy="call the Python module that it was made from.",
    )


def _branch(node: Any, given: list[Any], values: dict[str, Any]) -> Any:
    chosen = [*node.blocks()][0 if given[0] else 1]
    found = _run_block(chosen, values)
    return found[0] if node.outputsSize() == 1 else found


def _loop(node: Any, given: list[Any], values: dict[str, Any]) -> Any:
    count, condition, *carried = given
    (block,) = node.blocks()
    names = [each.debugName() for each in block.inputs()]
    index = 0
    while index < count and condition:
        values.update(zip(names, (index, *carried), strict=True))
        condition, *carried = _run_block(block, values)
        index += 1
    return carried[0] if node.outputsSize() == 1 else carried


# What a module has, whatever kind of object it is in TorchScript.
_METHODS = frozenset({"detach", "numpy_T", "clone", "contiguous", "data"})


def _constant(node: Any, given: list[Any]) -> Any:
    return node.output().toIValue()


def _call_node(node: Any, given: list[Any]) -> Any:
    owner, name = given[0], node.s("name")
    if not isinstance(owner, torch._C.ScriptModule):
        return _refuse("prim::CallMethod")
    return owner._get_method(name)(*given[1:])


def _attribute(node: Any, given: list[Any]) -> Any:
    return given[0].getattr(node.s("name"))


def _dictionary(node: Any, given: list[Any]) -> Any:
    return dict(zip(given[::2], given[1::2], strict=True))


def _unpacked(node: Any, given: list[Any]) -> Any:
    return given[0][0] if node.outputsSize() == 1 else list(given[0])


def _raise(node: Any, given: list[Any]) -> Any:
    raise torch.jit.Error(str(given[0]))


def _set_attribute(node: Any, given: list[Any]) -> None:
    given[0].setattr(node.s("name"), given[1])


_PRIMITIVE: dict[str, Callable[[Any, list[Any]], Any]] = {
    "prim::Constant": _constant,
    "prim::GetAttr": _attribute,
    "prim::SetAttr": _set_attribute,
    "prim::CallMethod": _call_node,
    "prim::CallFunction": lambda node, given: given[0](*given[1:]),
    "prim::ListConstruct": lambda node, given: list(given),
    "prim::TupleConstruct": lambda node, given: tuple(given),
    "prim::DictConstruct": _dictionary,
    "prim::ListUnpack": _unpacked,
    "prim::TupleUnpack": _unpacked,
    "prim::Print": lambda node, given: print(*given),  # noqa: T201
    "prim::TupleIndex": lambda node, given: given[0][given[1]],
    "prim::unchecked_cast": lambda node, given: given[0],
    "prim::unchecked_unwrap_optional": lambda node, given: given[0],
    "aten::_unwrap_optional": lambda node, given: given[0],
    "prim::Uninitialized": lambda node, given: None,
    "prim::RaiseException": _raise,
    "prim::NumToTensor": lambda node, given: torch.tensor(given[0]),
    "prim::dtype": lambda node, given: given[0].dtype,
    "prim::device": lambda node, given: given[0].device,
    "prim::layout": lambda node, given: given[0].layout,
    "prim::requires_grad": lambda node, given: given[0].requires_grad,
    "prim::data": lambda node, given: given[0].data,
    "prim::is_cuda": lambda node, given: given[0].is_cuda,
    "prim::min": lambda node, given: min(*given),
    "prim::max": lambda node, given: max(*given),
    "aten::size": lambda node, given: (
        given[0].shape[given[1]] if len(given) > 1 else list(given[0].shape)
    ),
    "aten::dim": lambda node, given: given[0].dim(),
    "aten::numel": lambda node, given: given[0].numel(),
    "aten::len": lambda node, given: len(given[0]),
    "aten::Int": lambda node, given: int(given[0]),
    "aten::Float": lambda node, given: float(given[0]),
    "aten::Bool": lambda node, given: bool(given[0]),
    "aten::IntImplicit": lambda node, given: int(given[0]),
    "aten::__is__": lambda node, given: given[0] is given[1],
    "aten::__isnot__": lambda node, given: given[0] is not given[1],
    "aten::__not__": lambda node, given: not given[0],
    "aten::__getitem__": lambda node, given: given[0][given[1]],
    "aten::_set_item": lambda node, given: operator.setitem(*given),
    "aten::__contains__": lambda node, given: given[1] in given[0],
    "aten::append": lambda node, given: given[0].append(given[1]),
    "aten::list": lambda node, given: list(given[0]),
    "aten::keys": lambda node, given: list(given[0]),
    "aten::values": lambda node, given: list(given[0].values()),
    "aten::items": lambda node, given: list(given[0].items()),
    "aten::format": lambda node, given: given[0].format(*given[1:]),
    "aten::str": lambda node, given: str(given[0]),
    "aten::is_grad_enabled": lambda node, given: torch.is_grad_enabled(),
    "aten::warn": lambda node, given: None,
}

# As one writes them for tensors too; the third argument is a factor.
_OPERATORS = frozenset({"aten::add", "aten::sub", "aten::mul", "aten::div"})

_SIMPLE: dict[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::div": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::pow": operator.pow,
    "aten::neg": operator.neg,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__range_length": lambda start, stop, step: len(range(start, stop, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::sqrt": math.sqrt,
    "aten::ceil": math.ceil,
    "aten::floor": math.floor,
    "aten::abs": abs,
}
