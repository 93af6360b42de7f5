"""``out=`` of another size or dtype, which eager resizes or refuses; no functional graph does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_flatten, tree_map
from funcaot.aot.capture.eager_errors import can_be_made, made_up
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.handlers.memory.reshaping import reshape
from funcaot.aot.tape.tape import Tape
from funcaot.errors import UnsupportedError

_ABOUT_ARGUMENTS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


def prepare(call: Call, capture: InProgress) -> Any:
    """Give what an op writes its results to the shape that it is going to have.

    Raises:
        UnsupportedError: It writes to a tensor whose elements share memory.
        Exception: Eager's, for a dtype that the result can't be cast to.
    """
    for target, shape, stride in _changes(capture, call.func, call.args, call.kwargs):
        _run(Call(torch.Tensor.resize_, (target, shape), {}), capture)
        if tuple(target.stride()) != stride:
            _run(Call(torch.Tensor.as_strided_, (target, shape, stride), {}), capture)
    return NotImplemented


def write(call: Call, capture: InProgress) -> Any:
    """Run an op, and write what it computes to those of its ``out`` that it left as they were.

    Some ops of several steps write to what torch made of ``out`` in between.
    """
    targets = [target for target in tree_flatten(call.kwargs["out"])[0] if _is_plain(target)]
    before = capture.tape.nodes_of(targets)
    result = call.run()
    left = [
        target.numel() > 0 and now is node
        for target, now, node in zip(targets, capture.tape.nodes_of(targets), before, strict=True)
    ]
    if any(left):
        others = {name: value for name, value in call.kwargs.items() if name != "out"}
        with torch.no_grad():
            computed = tree_flatten(call.func(*call.args, **others))[0]
            for target, value, is_left in zip(targets, computed, left, strict=True):
                if is_left:
                    target.copy_(value)
    return result


def _run(call: Call, capture: InProgress) -> None:
    """Change the shape of a tensor in place, as if the function did."""
    reshape(call, capture)
    call.run()


_Change = tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]


def _changes(
    capture: InProgress, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> list[_Change]:
    """The tensors that an op is going to give another shape, with that and the strides."""
    tape = capture.tape
    targets = [target for target in tree_flatten(kwargs["out"])[0] if _is_plain(target)]
    leaves = [v for v in tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor)]
    if not targets or not all(map(_is_plain, leaves)):
        return []
    recorded = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    if recorded and len(leaves) > len(targets):
        return []  # eager raises
    looks = tape.outside(lambda: _looks(func, args, kwargs))
    if looks is None:
        _run_eagerly(tape, func, args, kwargs)
        return []
    changes = [
        (target, shape, stride)
        for target, (shape, stride, _) in zip(targets, looks, strict=True)
        if shape != tuple(target.shape)
    ]
    if recorded and changes:
        # What makes tensors of numbers doesn't ask whether autograd recorded one.
        raise UnsupportedError(
            f"{capture.name} gives {func.__name__} an out= of another shape, which requires grad.",
            remedy="call it without out=.",
        )
    wrong = any(look[2] != target.dtype for target, look in zip(targets, looks, strict=True))
    if wrong or changes:
        written = _run_eagerly(tape, func, args, kwargs)
        now = {id(target): other for target, other in zip(targets, written, strict=False)}
        # Symbolic versions of some ops don't know the strides that a new tensor gets.
        changes = [(t, shape, tuple(now[id(t)].stride()) if now else s) for t, shape, s in changes]
    return changes


def _is_plain(value: Any) -> bool:
    """Whether a tensor is strided and its sizes are numbers."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    )


def _looks(
    func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] | None:
    """Shape and strides of each ``out`` after the op, and the dtype of the result without it.

    The op runs on tensors without memory; None where it fails or there are values in question.
    """
    with torch.no_grad(), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            positional, options = _replaced((args, kwargs), _without_memory)
            written = tree_flatten(options["out"])[0]
            func(*positional, **options)
            positional, options = _replaced((args, kwargs), _without_memory)
            del options["out"]
            fresh = [v for v in tree_flatten(func(*positional, **options))[0] if _is_plain(v)]
        except _ABOUT_ARGUMENTS:
            return None
    if len(fresh) != len(written):
        return None
    return [
        (tuple(now.shape), tuple(now.stride()), result.dtype)
        for now, result in zip(written, fresh, strict=True)
    ]


def _replaced(call: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A call with other tensors, one for each; it may write to one that it reads."""
    made: dict[int, torch.Tensor] = {}

    def replace(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return made.setdefault(id(value), make(value))

    return tree_map(replace, call)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _run_eagerly(
    tape: Tape, func: Callable[..., Any], args: Any, kwargs: Any
) -> list[torch.Tensor]:
    """Raise and warn as eager does, on real tensors that look the same; their values are made up.

    Returns:
        What the op wrote to; nothing where that can't be found out.
    """

    def run() -> list[torch.Tensor] | Exception:
        with torch.no_grad():
            positional, options = _replaced((args, kwargs), made_up)
            try:
                func(*positional, **options)
            except torch.linalg.LinAlgError:
                return []
            except _ABOUT_ARGUMENTS as error:
                return error.with_traceback(None)
        return [value for value in tree_flatten(options["out"])[0] if _is_plain(value)]

    leaves = tree_flatten((args, kwargs))[0]
    if not can_be_made([value for value in leaves if isinstance(value, torch.Tensor)]):
        return []
    found = tape.outside(run, leaves)
    if isinstance(found, Exception):
        raise found
    return found
