"""The rule for ``functionalize``, as a functorch level and as a dispatch mode."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from funcaot._torch.autograd.autograd import set_version, version_of
from funcaot._torch.levels.functorch import (
    FunctionalTensor,
    FunctionalTensorMode,
    FunctorchFunctionalizeAPI,
    PythonFunctionalizeAPI,
    TransformType,
    pytree,
)
from funcaot.classes.containers import ChangesGivenError, Contents
from funcaot.classes.opaque import Watch, current_watch, has_opaque_view
from funcaot.classes.protocol import program_of
from funcaot.classes.shared_views import reach
from funcaot.classes.traits import display_name, origin_of
from funcaot.errors import UnsupportedError
from funcaot.operator.operator import custom_function_call
from funcaot.rules.seen import reading_class
from funcaot.rules.stores import watch_of
from funcaot.transforms.forms.dirty import dirty_inputs, out_of_place
from funcaot.transforms.forms.undeclared import versions_of, with_written, written_since
from funcaot.transforms.inlining import functionalizing
from funcaot.transforms.tracing import distinct


def functionalize(interface: Any, function: type, operands: tuple[Any, ...], lower: Any) -> Any:
    """Call out of place one level down; then update what the Function would have changed.

    Args:
        interface: How this kind of functionalization wraps, unwraps and updates.
        function: The Function.
        operands: Operands wrapped by this functionalization.
        lower: How to call one level down.
    """
    _refuse_hidden(function, operands, FunctionalTensor, "is given")
    unwrapped = interface.unwrap_tensors(operands)
    dirty = () if program_of(function) is not None else dirty_inputs(function, unwrapped)
    if isinstance(interface, _ModeInterface):
        _refuse_overlap(function, operands, dirty)
    given = Contents(unwrapped)
    called = out_of_place(function, dirty)
    writes: dict[int, int] = getattr(called, "funcaot_writes", {})
    if isinstance(interface, _ModeInterface) and program_of(function) is None:
        called = reading_class(called, operands)
    versions = versions_of(unwrapped)
    watch = interface.watch(function, operands) if isinstance(interface, _ModeInterface) else None
    looked = watch and watch.look()
    followed = contextlib.nullcontext() if watch is None else watch.following()
    with functionalizing(interface.remove), interface.redispatch_to_next(), followed:
        output = lower(called, *unwrapped)
    written = {} if program_of(function) is not None else written_since(unwrapped, versions)
    writes_to_do = []
    if written:
        both = (operands, unwrapped)
        output, writes_to_do = _with_writes(interface, called, both, written, lower)
    if given.changed():
        given.put_back()
        raise ChangesGivenError.of(display_name(function))
    single = not isinstance(output, tuple)
    outputs = (output,) if single else output
    _refuse_hidden(function, outputs, torch.Tensor, "returns")
    # What is returned twice is one tensor for autograd too.
    first = [next(k for k, other in enumerate(outputs) if other is value) for value in outputs]
    made = {k: interface.wrap_tensors(outputs[k]) for k in dict.fromkeys(first)}
    wrapped = [made[k] for k in first]
    for i, j in dirty:
        writes_to_do.append((operands[i], outputs[j], writes.get(i, 0)))
        for k, place in enumerate(first):
            if place == first[j]:
                wrapped[k] = operands[i]
    if isinstance(interface, _ModeInterface):
        groups = _shared((*unwrapped, *outputs), (*operands, *wrapped), wrapped)
        has_ops = not has_opaque_view(outputs)
        if groups and interface.by_ops(function, operands, groups, has_ops=has_ops):
            if watch is not None:
                watch.take_back(looked)
            return interface.recorded(function, operands, dirty)
    for tensor, value, count in writes_to_do:
        _replace(interface, tensor, value, count)
    return wrapped[0] if single else tuple(wrapped)


def _replace(interface: Any, tensor: torch.Tensor, value: torch.Tensor, writes: int) -> None:
    """Give a functional tensor the value that a number of writes left, and count them."""
    version = version_of(tensor)
    interface.replace(tensor, value)
    interface.commit_update(tensor)
    interface.sync(tensor)
    if isinstance(interface, _ModeInterface) and not tensor.is_inference():
        set_version(tensor, version + writes)


def _with_writes(
    interface: Any,
    function: type,
    operands: tuple[tuple[Any, ...], tuple[Any, ...]],
    written: dict[int, int],
    lower: Any,
) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor, int]]]:
    """Call a Function that writes to inputs without saying so: its output, and what is to write."""
    outer, inner = operands
    tensors = [value for value in inner if isinstance(value, torch.Tensor)]
    with functionalizing(interface.remove), interface.redispatch_to_next():
        outputs = lower(with_written(function, tuple(written)), *inner)
    values, rest = outputs[-len(written) :], outputs[: -len(written)]
    returned = [value for value in rest if isinstance(value, torch.Tensor)]
    writes = []
    for i, value in zip(written, values, strict=True):
        beside = any(other is not inner[i] and _share_memory(inner[i], other) for other in tensors)
        if beside or any(_share_memory(value, other) for other in returned):
            raise UnsupportedError(
                f"{display_name(function)} writes to its input {i}, which it doesn't mark as "
                "dirty, and another input or an output shares memory with it.",
                remedy="call ctx.mark_dirty, return a clone, or pass a clone.",
            )
        writes.append((outer[i], value, written[i]))
    return (rest[0] if len(rest) == 1 else rest), writes


def _shared(
    inner: tuple[Any, ...], outer: tuple[Any, ...], returned: list[Any]
) -> list[list[torch.Tensor]]:
    """Tensors in the same memory, at least one of which was returned."""
    groups: dict[int, list[torch.Tensor]] = {}
    for plain, tensor in zip(inner, outer, strict=True):
        if isinstance(plain, torch.Tensor) and plain.layout is torch.strided:
            group = groups.setdefault(plain.untyped_storage()._cdata, [])
            if all(tensor is not other for other in group):
                group.append(tensor)
    several = [group for group in groups.values() if len(group) > 1]
    return [group for group in several if any(w is tensor for w in returned for tensor in group)]


def _refuse_hidden(function: type, values: tuple[Any, ...], kind: type, verb: str) -> None:
    """Refuse tensors inside of objects, where no level can unwrap or wrap them."""
    for value in values:
        fields = getattr(value, "__dict__", None)
        if not fields or isinstance(value, (torch.Tensor, torch.nn.Module, type)):
            continue
        if any(isinstance(leaf, kind) for leaf in pytree.tree_leaves(list(fields.values()))):
            raise UnsupportedError(
                f"{display_name(function)} {verb} a {type(value).__name__} that holds tensors.",
                remedy="use tensors, or tuples, lists and dictionaries of them.",
            )


def _refuse_overlap(function: type, operands: tuple[Any, ...], dirty: Any) -> None:
    """Refuse a tensor that forward changes in place where it is also given as another tensor."""
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    for index, _ in dirty:
        changed = operands[index]
        if any(other is not changed and _share_memory(changed, other) for other in tensors):
            raise UnsupportedError(
                f"{display_name(function)} changes its input {index} in place, and another input "
                "shares memory with it.",
                remedy="pass a clone of one of them.",
            )


def _share_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    if not (first.layout is second.layout is torch.strided):
        return False
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata:
        return False
    (low, high), (other_low, other_high) = _bytes(first), _bytes(second)
    return low < other_high and other_low < high


def _bytes(tensor: torch.Tensor) -> tuple[Any, Any]:
    low = tensor.storage_offset() * tensor.element_size()
    return low, low + reach(tensor) * tensor.element_size()


class _LevelInterface(FunctorchFunctionalizeAPI):
    """A functorch level; knows what it removes."""

    def __init__(self, interpreter: Any) -> None:
        super().__init__(interpreter)
        keeps_views = interpreter.functionalize_add_back_views()
        self.remove = "mutations" if keeps_views else "mutations_and_views"


class _ModeInterface(PythonFunctionalizeAPI):
    """The dispatch mode, which keeps views."""

    remove = "mutations"

    def watch(self, function: type, operands: tuple[Any, ...]) -> Watch | None:
        """What looks at changes of forward, where a capture may run it again."""
        if getattr(self.mode, "function_views", None) is None or current_watch() is None:
            return None
        rest = tuple(value for value in operands if not isinstance(value, torch.Tensor))
        return watch_of(getattr(origin_of(function), "forward", None), function, rest)

    def by_ops(
        self,
        function: type,
        operands: tuple[Any, ...],
        groups: list[list[torch.Tensor]],
        *,
        has_ops: bool,
    ) -> bool:
        """Whether a capture goes on with forward's ops, as it returned memory that it was given.

        So it does for a view that nobody can differentiate. Else the Function stays one node, and
        the capture refuses what can't be told then (see ``function_views``).
        """
        views = getattr(self.mode, "function_views", None)
        if views is None:
            return False
        given = [value for value in operands if isinstance(value, torch.Tensor)]
        if not has_ops or views.pushed or any(tensor.requires_grad for tensor in given):
            for group in groups:
                views.add(display_name(function), group)
            return False
        return True

    def recorded(self, function: type, operands: tuple[Any, ...], dirty: Any) -> Any:
        """Forward's ops, which write to inputs themselves: nothing has written to them yet."""
        changed = {i for i, _ in dirty}
        with self.mode:
            made = function.forward(*operands)  # type: ignore[attr-defined]
            return distinct(made, [v for i, v in enumerate(operands) if i not in changed])


def functionalize_level_rule(interpreter: Any, function: type, *operands: Any) -> Any:
    """``torch.func.functionalize``."""
    interface = _LevelInterface(interpreter)
    return functionalize(interface, function, operands, custom_function_call)


def functional_mode_rule(mode: Any, function: type, *operands: Any) -> Any:
    """The functionalization that a compiler's capture runs under."""
    interface = _ModeInterface(mode)
    return functionalize(interface, function, operands, custom_function_call.below_autograd)


custom_function_call.py_impl(TransformType.Functionalize)(functionalize_level_rule)
custom_function_call.py_impl(FunctionalTensorMode)(functional_mode_rule)
