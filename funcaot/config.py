"""Configuration: one frozen object, read from the environment once, changed only as a whole.

Options may be read and assigned as attributes of this module too, as torch's may.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from funcaot.errors import FuncaotError

_PREFIX = "FUNCAOT_"


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """What can be set. Each option is also an environment variable, ``FUNCAOT_<NAME>``.

    Attributes:
        fast_path: Whether calls whose signature was seen run code generated for it. Without it
            every call takes the general path, which means the same and is slower.
        entries_per_function: Captured programs that one compiled function keeps; the one that
            was used least recently is dropped first, with a warning that names what changes.
        recompile_warning: Captured programs of one function after which the next one comes with a
            warning that names what changes; 0 for none.
        entries_in_all: Captured programs that all compiled functions keep together.
        fast_calls: Signatures per function that get generated code.
        fast_backwards: Layouts of grad_outputs per program that get generated code.
        backward_layouts: Layouts of grad_outputs per program that a backward is compiled for; for
            further ones its traced graph runs as it is, with a warning.
        derived_programs: Backwards, forward derivatives and vmapped programs, of each kind, that
            one program keeps; the one that was used least recently is dropped first.
        fullgraph: Whether a call that can't be captured is an error, where ``funcaot.compile``
            wasn't told; otherwise it runs as it is, with a warning.
        fallback_random: Whether random ops compiled by Inductor draw eager's numbers and leave the
            generator where eager leaves it. They run as eager's kernels then, unfused. Read when
            a graph is compiled.
        exact_special_values: Whether functions compiled by Inductor keep eager's NaN, infinities,
            signs of zero and smallest numbers also where that costs speed. Read when a graph is
            compiled.
        specialize_on_values: Whether a function may read numbers off tensors, branch on them, and
            make tensors whose shapes depend on values. It is compiled for what it finds, and
            again where it finds something else; otherwise it is refused.
        open_numbers: Whether a number that changes is left open, where the function only computes
            with it: one among the arguments, or one that the function reads by itself. Otherwise
            each value has a program of its own.
        logs: What is logged on stderr, by commas: ``compile``, ``recompiles``, ``graphs``,
            ``code``, ``effects``, ``all``.
        progress_after: Seconds after which a compilation says on stderr what it is doing; 0 for
            never.
        full_traceback: Whether tracebacks of errors in a captured function show frames of funcaot
            and of torch too.
        check_aliases: Whether what each stage hands on is verified, and each graph is checked for
            results that share memory with an input or with each other, which the epilogue should
            have made. Read when something is compiled.
        without_patches: Names of changes to torch that aren't made, by commas (see
            `funcaot._torch.patch_table`); each says what is lost without it.
    """

    fast_path: bool = True
    entries_per_function: int = 64
    recompile_warning: int = 8
    entries_in_all: int = 4096
    fast_calls: int = 8
    fast_backwards: int = 4
    backward_layouts: int = 8
    derived_programs: int = 64
    fullgraph: bool = True
    fallback_random: bool = False
    exact_special_values: bool = False
    specialize_on_values: bool = True
    open_numbers: bool = True
    logs: str = ""
    progress_after: int = 5
    full_traceback: bool = False
    check_aliases: bool = False
    without_patches: str = ""


_FIELDS = {field.name: field for field in dataclasses.fields(Config)}
_listeners: list[Callable[[Config], None]] = []


def get() -> Config:
    """The configuration in force."""
    return _current


def set(**options: Any) -> Config:
    """Change options for good.

    Returns:
        The configuration before, for ``restore``.

    Raises:
        FuncaotError: For an unknown option or a value of another type.

    Example:
        >>> import funcaot
        >>> before = funcaot.config.set(entries_per_function=8)
        >>> funcaot.config.get().entries_per_function
        8
        >>> funcaot.config.restore(before)
    """
    before = get()
    for name, value in options.items():
        _check(name, value)
    restore(dataclasses.replace(before, **options))
    return before


def restore(config: Config) -> None:
    """Put a whole configuration in force."""
    global _current
    before, _current = _current, config
    try:
        for listener in _listeners:
            listener(config)
    except FuncaotError:
        _current = before
        for listener in _listeners:
            listener(before)
        raise


@contextlib.contextmanager
def patch(**options: Any) -> Iterator[Config]:
    """Change options inside a ``with`` block, for every thread.

    Example:
        >>> import funcaot
        >>> with funcaot.config.patch(fast_path=False) as config:
        ...     config.fast_path
        False
    """
    before = set(**options)
    try:
        yield get()
    finally:
        restore(before)


def on_change(listener: Callable[[Config], None]) -> None:
    """Call ``listener`` with each new configuration."""
    _listeners.append(listener)


def from_environment(environment: dict[str, str] | None = None) -> Config:
    """The configuration that environment variables ask for; defaults for the rest.

    Raises:
        FuncaotError: For a variable whose value can't be read.
    """
    environment = dict(os.environ) if environment is None else environment
    options: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        variable = _PREFIX + name.upper()
        if variable in environment:
            options[name] = _parse(variable, environment[variable], type(field.default))
    return Config(**options)


def _parse(variable: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
    elif kind is int and text.isdecimal():
        return int(text)
    elif kind is str:
        return text
    raise FuncaotError(
        f"The environment variable {variable} can't be read.",
        expected="1 or 0" if kind is bool else "a number of at least 0",
        got=repr(text),
        remedy=f"unset {variable} or give it such a value.",
    )


def _check(name: str, value: Any) -> None:
    field = _FIELDS.get(name)
    if field is None:
        raise FuncaotError(
            f"There is no option {name!r}.",
            expected=f"one of {sorted(_FIELDS)}",
            remedy="see funcaot.config.Config for what each option does.",
        )
    kind = type(field.default)
    if type(value) is not kind or (kind is int and value < 0):
        raise FuncaotError(
            f"The option {name!r} was given a value that it can't take.",
            expected=f"{kind.__name__}, at least 0" if kind is int else kind.__name__,
            got=repr(value),
            remedy="see funcaot.config.Config for what each option does.",
        )


class _Options(ModuleType):
    """This module: an option that is assigned is set, and a name that none has is refused."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name.startswith("_") or name in vars(self)):
            _check(name, value)
        super().__setattr__(name, value)


def _option(name: str) -> property:
    def read(_: _Options) -> Any:
        return getattr(get(), name)

    def assign(_: _Options, value: Any) -> None:
        set(**{name: value})

    return property(read, assign)


for _name in _FIELDS:
    setattr(_Options, _name, _option(_name))

_current = from_environment()
sys.modules[__name__].__class__ = _Options
