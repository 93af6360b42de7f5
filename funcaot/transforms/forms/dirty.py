"""Which inputs a Function changes in place, and its form that changes none."""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from funcaot._torch.autograd.autograd import new_function_class, version_of
from funcaot._torch.levels.functorch import (
    FakeTensorMode,
    disable_dispatch_modes,
    fully_unwrapped,
    pytree,
    temporarily_clear_interpreter_stack,
)
from funcaot._torch.tracing.fake_values import sparing_real_tensors
from funcaot._torch.tracing.tracing import is_untraceable
from funcaot.classes.class_cache import cache_of
from funcaot.classes.context import OverlayContext, RecordingContext
from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import (
    has_backward,
    has_jvp,
    has_vmap,
    may_generate,
    origin_of,
    reverse_rule,
)
from funcaot.rules.operands.entered import fill
from funcaot.rules.seen import read_for
from funcaot.rules.stores import again

__all__ = ["dirty_inputs", "out_of_place"]

Pairs = tuple[tuple[int, int], ...]
_CTX_OPERATIONS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "POP_TOP"})


def dirty_inputs(function: type, operands: tuple[Any, ...]) -> Pairs:
    """Find the inputs that a call marks dirty.

    A functional form of the call has to be chosen before the call is made, so this is asked in
    advance: not at all when ``setup_context`` can be seen never to mark anything, else by a trial
    run on fake tensors, else (forward needs values) by one on copies. Answers are remembered per
    signature. Where a forward that needs values has none, as in a program that is lowered, the
    answer is that of all trials before.

    Returns:
        Pairs (input index, output index).
    """
    if not may_mark_dirty(function):
        return ()
    cache = cache_of(read_for(function))
    key = ("dirty", *map(_signature, operands))
    try:
        found = cache.get(key)
    except TypeError:  # an operand that can't be hashed: ask every time
        key = found = None
    if found is not None:
        return found
    answers = cache.setdefault("dirty", set())
    try:
        found = _trial(function, operands)
    except Exception as error:
        if len(answers) != 1 or not is_untraceable(error):
            raise
        return next(iter(answers))
    answers.add(found)
    if key is not None:
        cache[key] = found
    return found


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device)
    return (type(value), value)


def may_mark_dirty(function: type) -> bool:
    """Whether ``setup_context`` could mark an input dirty, judged from its code."""
    if hasattr(function, "funcaot_writes"):  # It works on copies.
        return False
    inner = getattr(function, "funcaot_forward_of", None)
    if inner is not None:
        return may_mark_dirty(inner)
    cache = cache_of(function)
    if "may_mark_dirty" not in cache:
        user = getattr(function, "funcaot_ctx_user", function.setup_context)
        cache["may_mark_dirty"] = _could_mark(user)
    return cache["may_mark_dirty"]


def _could_mark(setup_context: Callable[..., Any]) -> bool:
    user = getattr(setup_context, "funcaot_user", setup_context)  # what it hands ctx to
    code = getattr(user, "__code__", None)
    if code is None or code.co_argcount < 1 or "mark_dirty" in code.co_names:
        return True
    ctx = code.co_varnames[0]
    if ctx in code.co_cellvars:
        return True
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "NOP")]
    for instruction, following in pairwise(instructions):
        read = instruction.opname.startswith("LOAD_FAST")
        value = instruction.argval
        names = value if isinstance(value, tuple) else (value,)
        stored = instruction.opname.startswith("STORE_FAST") and ctx in names
        if stored:
            return True
        if read and ctx in names:
            # ctx is used for its own attributes only; anything else might pass it to a helper
            if names[-1] != ctx or following.opname not in _CTX_OPERATIONS:
                return True
    return False


def _trial(function: type, operands: tuple[Any, ...]) -> Pairs:
    plain = [fully_unwrapped(v) if isinstance(v, torch.Tensor) else v for v in operands]
    rest = tuple(value for value in operands if not isinstance(value, torch.Tensor))
    with (
        temporarily_clear_interpreter_stack(),
        disable_dispatch_modes(),
        torch.no_grad(),
        again(function, rest),
    ):
        try:
            with sparing_real_tensors(FakeTensorMode(allow_non_fake_inputs=True)):
                return _marked(function, _empty_like(operands))
        except Exception as error:  # noqa: BLE001 - raised again unless real values help
            if any(isinstance(v, torch.Tensor) and type(v) not in _REAL for v in plain):
                return _trial_of_captor(function, operands, error)
        copies = _copies(operands, plain)
        return _marked(function, copies)


def _trial_of_captor(function: type, operands: tuple[Any, ...], error: Exception) -> Pairs:
    """A trial on copies of the real values that a capture in progress knows, if it does."""
    captor = current_captor()
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    values = captor.real_values(tensors) if captor and is_untraceable(error) else None
    if captor is None or values is None:
        raise error
    rest = iter(values)
    copies = [next(rest).clone() if isinstance(v, torch.Tensor) else v for v in operands]
    return _marks(function, copies, captor.run(function, tuple(copies), contextlib.nullcontext()))


_REAL = (torch.Tensor, torch.nn.Parameter)


def _empty_like(operands: tuple[Any, ...]) -> list[Any]:
    def empty(tensor: torch.Tensor) -> torch.Tensor:
        shape, stride = tensor.shape, tensor.stride()
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)

    return [pytree.tree_map_only(torch.Tensor, empty, value) for value in operands]


def _copies(operands: tuple[Any, ...], plain: list[Any]) -> list[Any]:
    """Real values of the operands' own shapes: one example where a level batches them."""
    copies = []
    for value, base in zip(operands, plain, strict=True):
        if not isinstance(value, torch.Tensor):
            copies.append(value)
        elif value.shape == base.shape:
            copies.append(base.detach().clone())
        else:
            copies.append(torch.ones(value.shape, dtype=value.dtype, device=value.device))
    return copies


def _marked(function: type, operands: list[Any]) -> Pairs:
    return _marks(function, operands, function.forward(*operands))


def _marks(function: type, operands: list[Any], output: Any) -> Pairs:
    recorder = RecordingContext(tuple(isinstance(v, torch.Tensor) for v in operands))
    function.setup_context(recorder, tuple(operands), output)
    outputs = output if isinstance(output, tuple) else (output,)
    pairs = []
    for tensor in recorder.dirty_tensors:
        i = next((i for i, value in enumerate(operands) if value is tensor), None)
        j = next((j for j, value in enumerate(outputs) if value is tensor), None)
        if i is not None and j is not None:
            pairs.append((i, j))
    return tuple(pairs)


class _Clean(OverlayContext):
    """A ctx that ignores ``mark_dirty``."""

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Nothing is dirty: forward worked on copies."""


def out_of_place(function: type, dirty: Pairs) -> type:
    """The Function that computes the same on copies of its dirty inputs.

    Args:
        function: A Function with ``setup_context``.
        dirty: Pairs (input index, output index).

    Returns:
        A Function; ``funcaot_writes`` says how often its last forward wrote to each copy, which
        versions count.
    """
    if not dirty:
        return function
    cache = cache_of(function)
    key = ("out_of_place", dirty)
    if key not in cache:
        cache[key] = _out_of_place(function, dirty)
    return cache[key]


def _out_of_place(function: type, dirty: Pairs) -> type:
    copied = {i for i, _ in dirty}
    writes: dict[int, int] = {}

    def forward(*operands: Any) -> Any:
        # A tensor that is given twice is one copy, also where only one of its places is marked.
        copies = {id(operands[i]): operands[i].clone() for i in copied}
        output = function.forward(*[copies.get(id(v), v) for v in operands])
        writes.update({i: version_of(copies[id(operands[i])]) for i in copied})
        return output

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        # A dirty input is the output afterwards; the user may save either.
        outputs = output if isinstance(output, tuple) else (output,)
        seen = list(inputs)
        for i, j in dirty:
            seen[i] = outputs[j]
        fill(function, _Clean(ctx), tuple(seen), output)

    namespace: dict[str, Any] = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "funcaot_origin": origin_of(function),
        "funcaot_writes": writes,
        "__module__": function.__module__,
    }
    for flag in ("generate_vmap_rule", "generate_jvp_rule", "generate_backward_rule"):
        namespace[flag] = may_generate(function, flag)
    if has_backward(function):
        namespace["backward"] = staticmethod(reverse_rule(function))
    if has_jvp(function):
        namespace["jvp"] = staticmethod(_fresh_tangents(function, copied))
    if has_vmap(function):
        namespace["vmap"] = staticmethod(function.vmap)
        namespace["generate_vmap_rule"] = function.generate_vmap_rule
    return new_function_class(function.__name__, torch.autograd.Function, namespace)


def _fresh_tangents(function: type, copied: set[int]) -> Callable[..., Any]:
    def jvp(ctx: Any, *tangents: Any) -> Any:
        # jvp of an in-place Function changes its tangent; here that one stays the caller's
        return function.jvp(
            ctx,
            *[t.clone() if i in copied and t is not None else t for i, t in enumerate(tangents)],
        )

    return jvp
