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
from funcaot.classes.class_cache import cache_of
from funcaot.classes.traits import may_generate, origin_of

__all__ = ["count_statistics", "versions_of", "with_written", "written_since"]


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
            found[i] = now - before
    return found


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
