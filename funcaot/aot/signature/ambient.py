"""Global state that decides which program runs: ``signature`` reads it, ``fast_call`` compares it.

A field of `Ambient` is all that a new setting of torch needs: how it is read, and how generated
code compares it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import torch

from funcaot._torch.distributed.settings import dispatches_alike, how_it_dispatches
from funcaot._torch.levels.inference import inference_mode_around_levels
from funcaot._torch.tensors import guards
from funcaot._torch.tensors.classes.own_functions import as_called, called_with_functions_of_classes
from funcaot._torch.tracing import tracing
from funcaot.aot.graph.source import Source
from funcaot.errors import UnsupportedError

__all__ = [
    "Ambient",
    "conditions_on",
    "put_back_on_errors",
    "read_ambient",
    "refuse_left_behind",
]

Condition: TypeAlias = Callable[[Source, Any], str | None]


def _by_guard(source: Source, value: Any) -> None:
    """Torch's own guard, in C++, compares it with what it is when code is generated."""


def _by(read: Callable[[], Any], condition: Condition = _by_guard) -> dict[str, Any]:
    """How a field is read, and the condition in generated code that it is as it was."""
    return {"read": read, "condition": condition}


def _no_level(source: Source, value: bool) -> str:
    return f"{source.constant(guards.forward_ad, 'forward_ad')}._current_level < 0"


def _no_mode(source: Source, value: tuple[Any, ...]) -> str:
    return f"not {source.constant(guards.function_mode_count, 'modes')}()"


def _deterministic() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        guards.fills_uninitialized_memory(),
    )


def _same_filling(source: Source, value: tuple[bool, bool, bool]) -> str | None:
    """The guard doesn't compare what new memory is filled with."""
    if not value[0]:
        return None
    options = source.constant(torch.utils.deterministic, "options")
    return f"{options}.fill_uninitialized_memory is {value[2]}"


def _same_precision(source: Source, value: tuple[Any, ...]) -> str | None:
    """The guard tells "highest" from the others."""
    if value[0] == "highest":
        return None
    getter = source.constant(guards.float32_matmul_precision, "precision")
    return f"{getter}() == {value[0]!r}"


def _same_dispatch(source: Source, value: tuple[Any, ...]) -> str | None:
    """Asked of programs with wrappers only: other programs have no op that is dispatched so."""
    alike = dispatches_alike()
    return None if alike is None else f"{source.constant(alike, 'alike')}()"


def _inference_mode() -> bool:
    return torch.is_inference_mode_enabled() and not inference_mode_around_levels()


@dataclass(frozen=True, slots=True)
class Ambient:
    """Global state that changes what ops do.

    Attributes:
        grad_mode: Whether autograd records.
        forward_mode: Whether tangents may be carried forward; no code is generated where they may.
        inference_mode: Whether inference mode is on, and not around a transform.
        autocast: Device, dtype and cache for each device type that autocasts.
        default_dtype: Of new tensors.
        deterministic: Deterministic algorithms: on, only warn, fill uninitialized memory.
        precision: Of float32 matrix products, in every setting that torch has for it.
        classes: Whether classes of tensors say what functions of torch do.
        modes: Torch-function modes (a default device is one) and dispatch modes; no code is
            generated where there is one.
        wrappers: Settings by which ops on a ``DTensor`` are dispatched.
    """

    grad_mode: bool = field(metadata=_by(torch.is_grad_enabled))
    forward_mode: bool = field(metadata=_by(tracing.forward_mode_active, _no_level))
    inference_mode: bool = field(metadata=_by(_inference_mode))
    autocast: tuple[Any, ...] = field(metadata=_by(guards.autocast_state))
    default_dtype: torch.dtype = field(metadata=_by(torch.get_default_dtype))
    deterministic: tuple[bool, bool, bool] = field(metadata=_by(_deterministic, _same_filling))
    precision: tuple[Any, ...] = field(metadata=_by(guards.matmul_precision, _same_precision))
    classes: bool = field(metadata=_by(called_with_functions_of_classes))
    modes: tuple[Any, ...] = field(metadata=_by(guards.active_modes, _no_mode))
    wrappers: tuple[Any, ...] = field(metadata=_by(how_it_dispatches, _same_dispatch))


_READERS = tuple((item.name, item.metadata["read"]) for item in fields(Ambient))


def read_ambient() -> Ambient:
    """The global state at this moment."""
    return Ambient(**{name: read() for name, read in _READERS})


@contextlib.contextmanager
def put_back_on_errors() -> Iterator[None]:
    """Put settings back that a function changed before its capture failed.

    Who catches the error calls the function as it is, which sets them again.
    """
    before = read_ambient()
    try:
        yield
    except Exception:
        now = read_ambient()
        if now.default_dtype != before.default_dtype:
            torch.set_default_dtype(before.default_dtype)
        if now.deterministic != before.deterministic:
            on, only_warns, fills = before.deterministic
            torch.use_deterministic_algorithms(on, warn_only=only_warns)
            options: Any = torch.utils.deterministic
            options.fill_uninitialized_memory = fills
        if now.precision != before.precision:
            guards.set_matmul_precision(before.precision)
        raise


def conditions_on(ambient: Ambient, source: Source, *, wrappers: bool) -> Iterator[str]:
    """Conditions in generated code that the state is as it was; the guard's comes first.

    Args:
        ambient: The state.
        source: The code.
        wrappers: Whether the program has tensors that wrap others.
    """
    with as_called():  # The guard compares whether classes are asked.
        state = guards.global_state_check()
    yield f"{source.constant(state, 'state')}()"
    for item in fields(Ambient):
        if item.name == "wrappers" and not wrappers:
            continue
        condition = item.metadata["condition"](source, getattr(ambient, item.name))
        if condition is not None:
            yield condition


def refuse_left_behind(before: Ambient, after: Ambient, name: str) -> None:
    """Refuse a function that leaves a global setting changed; grad mode can be switched again.

    Args:
        before: The settings when it was called.
        after: Those when it returned.
        name: The user's function, for messages.

    Raises:
        UnsupportedError: If it does.
    """
    if after == replace(before, grad_mode=after.grad_mode):
        return
    changed = [
        item.name
        for item in fields(Ambient)
        if getattr(before, item.name) != getattr(after, item.name)
    ]
    raise UnsupportedError(
        f"{name} leaves global state changed: {', '.join(changed)}.",
        remedy="change it outside of the compiled function, or change it back inside.",
    )
