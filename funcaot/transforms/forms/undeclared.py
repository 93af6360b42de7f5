"""Functions whose forward writes to an input and doesn't mark it dirty.

Autograd then knows nothing of the write, but the caller's tensor has it. Counters, caches and
statistics that don't require grad are kept like that. In a capture the Function returns what it
wrote, and the input takes that value, as after a write in ``no_grad``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from funcaot._torch.autograd import autograd
from funcaot._torch.tensors.ops import op_writing_to_lists, written_arguments
from funcaot.classes.class_cache import cache_of
from funcaot.classes.traits import display_name, may_generate, origin_of
from funcaot.errors import UnsupportedError

__all__ = ["Writes", "versions_of", "with_written", "written_since"]

_GET_DATA: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_HIDDEN = "_funcaot_hidden_writes"


def versions_of(operands: tuple[Any, ...]) -> list[int | None]:
    """How often each operand was written to; None for what counts no versions."""
    return [
        autograd.version_of(value)
        if isinstance(value, torch.Tensor) and not value.is_inference()
        else None
        for value in operands
    ]


def written_since(operands: tuple[Any, ...], versions: list[int | None]) -> dict[int, int]:
    """Operands that were written to since, with how often; one place for each tensor."""
    found: dict[int, int] = {}
    for i, (now, before) in enumerate(zip(versions_of(operands), versions, strict=True)):
        again = any(operands[k] is operands[i] for k in found)
        if now is not None and before is not None and now != before and not again:
            found[i] = now - before - getattr(operands[i], _HIDDEN, 0)
    return found


class Writes:
    """What a forward that is traced writes to beside what versions count.

    A symbolic tensor counts no write to a list (``torch._foreach_mul_``), and a write through
    ``x.data`` is counted for that tensor alone.
    """

    def __init__(self, function: type, operands: tuple[Any, ...]) -> None:
        """Nothing yet."""
        self._function = function
        self._operands = operands
        self._shown: list[tuple[torch.Tensor, int]] = []

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of torch, and count what it writes.

        Raises:
            UnsupportedError: If it gives an operand other memory.
        """
        if func == _SET_DATA and any(args[0] is operand for operand in self._operands):
            raise UnsupportedError(
                f"The forward of {display_name(self._function)} assigns to the data of its input, "
                "which takes other memory.",
                remedy="write x.copy_(value) there.",
            )
        written = [t for t in _written(func, args, kwargs) if not t.is_inference()]
        before = [tensor._version for tensor in written]
        result = func(*args, **kwargs)
        for tensor, version in zip(written, before, strict=True):
            if tensor._version == version:
                torch.autograd.graph.increment_version(tensor)
        count_statistics(func, args, kwargs)
        if func == _GET_DATA and not result.is_inference():
            self._shown.append((result, result._version))
        return result

    def pass_on(self) -> None:
        """Count writes through ``.data`` for the operands in that memory, as hidden ones."""
        changed = {
            tensor.untyped_storage()._cdata
            for tensor, version in self._shown
            if tensor._version != version
        }
        for value in self._operands if changed else ():
            plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
            if plain and value.untyped_storage()._cdata in changed and not value.is_inference():
                torch.autograd.graph.increment_version(value)
                setattr(value, _HIDDEN, getattr(value, _HIDDEN, 0) + 1)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    op = op_writing_to_lists(func)
    found = () if op is None else written_arguments(op, args, kwargs)
    return [value for value in found if isinstance(value, torch.Tensor)]


def count_statistics(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count a norm's write to its running statistics, of which the op's schema says nothing."""
    if func in (F.batch_norm, F.instance_norm):
        given, writes = args[1:3], kwargs.get("training", kwargs.get("use_input_stats"))
    elif func in (torch.batch_norm, torch.instance_norm):
        given, writes = args[3:5], args[5]
    else:
        return
    written = [value for value in given if isinstance(value, torch.Tensor)]
    if writes:
        torch.autograd.graph.increment_version(written)


def with_written(function: type, written: tuple[int, ...]) -> type:
    """The Function that works on copies of some inputs, and returns them after its outputs."""
    cache = cache_of(function)
    key = ("with_written", written)
    if key not in cache:
        cache[key] = _with_written(function, written)
    return cache[key]


def _with_written(function: type, written: tuple[int, ...]) -> type:
    def forward(*operands: Any) -> Any:
        copies = {id(operands[i]): operands[i].clone() for i in written}
        output = function.forward(*[copies.get(id(v), v) for v in operands])
        outputs = output if isinstance(output, tuple) else (output,)
        return (*outputs, *copies.values())

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Autograd has the Function itself; this one is only computed."""

    namespace: dict[str, Any] = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "funcaot_origin": origin_of(function),
        "generate_vmap_rule": may_generate(function, "generate_vmap_rule"),
        "__module__": function.__module__,
    }
    return autograd.new_function_class(function.__name__, torch.autograd.Function, namespace)
