"""The rule for ``functionalize``, as a functorch level and as a dispatch mode."""

from __future__ import annotations

from typing import Any

from funcaot._torch.functorch import (
    FunctionalTensorMode,
    FunctorchFunctionalizeAPI,
    PythonFunctionalizeAPI,
    TransformType,
)
from funcaot.operator import custom_function_call
from funcaot.protocol import program_of
from funcaot.transforms.dirty import dirty_inputs, out_of_place
from funcaot.transforms.inlining import functionalizing


def functionalize(interface: Any, function: type, operands: tuple[Any, ...], lower: Any) -> Any:
    """Call out of place one level down; then update what the Function would have changed.

    Args:
        interface: How this kind of functionalization wraps, unwraps and updates.
        function: The Function.
        operands: Operands wrapped by this functionalization.
        lower: How to call one level down.
    """
    unwrapped = interface.unwrap_tensors(operands)
    dirty = () if program_of(function) is not None else dirty_inputs(function, unwrapped)
    with functionalizing(interface.remove), interface.redispatch_to_next():
        output = lower(out_of_place(function, dirty), *unwrapped)
    single = not isinstance(output, tuple)
    outputs = (output,) if single else output
    wrapped = list(interface.wrap_tensors(outputs))
    for i, j in dirty:
        interface.replace(operands[i], outputs[j])
        interface.commit_update(operands[i])
        interface.sync(operands[i])
        wrapped[j] = operands[i]
    return wrapped[0] if single else tuple(wrapped)


class _LevelInterface(FunctorchFunctionalizeAPI):
    """A functorch level; knows what it removes."""

    def __init__(self, interpreter: Any) -> None:
        super().__init__(interpreter)
        keeps_views = interpreter.functionalize_add_back_views()
        self.remove = "mutations" if keeps_views else "mutations_and_views"


class _ModeInterface(PythonFunctionalizeAPI):
    """The dispatch mode, which keeps views."""

    remove = "mutations"


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
