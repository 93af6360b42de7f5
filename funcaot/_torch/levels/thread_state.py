"""The state that torch keeps for a thread, put back where an interrupt left it changed.

Torch's own context managers restore it, most of them written in Python: an interrupt (Ctrl-C)
between two of their lines leaves a mode, grad mode or a dispatch key behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

import torch
from torch._C import (
    _functorch as functorch,  # pyright: ignore[reportAttributeAccessIssue]
)
from torch.utils import _python_dispatch as dispatch

__all__ = ["StateKept"]

_MODE_KEYS = tuple(torch._C._TorchDispatchModeKey.__members__.values())
# Whether some dispatch mode is active, which torch notes beside the stack of modes.
_FLAGS = tuple(name for name in vars(dispatch) if name.startswith("_is_in_"))
_note_flag = getattr(dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
_FLAG_NOTED = "_is_in_any_mode_without_ignore_compile_internals"

# Whose frames hold blocks that may be left over; not the user's, whose variables may be looked at.
_LIBRARIES = (
    contextlib.__file__,
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
)

_SPARE_REFERENCES = 8


def _set_profiler(before: Any) -> None:
    if before is None or callable(before):
        sys.setprofile(before)


_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    # Python's, where a capture records which code runs.
    (sys.gettrace, sys.settrace),
    # Likewise, where it watches which functions of C are called; one of C's can't be set.
    (sys.getprofile, _set_profiler),
)


class StateKept:
    """A block after which this thread's state is as before, also if an interrupt leaves the block.

    An interrupt may also break torch's own bookkeeping so that another error hides it; then the
    interrupt is raised again.
    """

    __slots__ = (
        "_before",
        "_depth",
        "_flags",
        "_functions",
        "_handled",
        "_keys",
        "_modes",
        "_tape_modes",
    )

    def __init__(self, *modes: Any) -> None:
        """A block that hasn't begun.

        Args:
            modes: Modes that are entered inside, and whose own notes are put back too.
        """
        self._tape_modes = [(mode, len(mode.enter_stack)) for mode in modes]

    def __enter__(self) -> None:
        self._handled = sys.exception()
        self._before = [read() for read, _ in _SWITCHES]
        self._flags = {name: getattr(dispatch, name) for name in _FLAGS}
        self._modes = _dispatch_modes()
        self._functions = torch._C._len_torch_function_stack()
        self._depth = functorch.get_dynamic_layer_stack_depth()
        self._keys = _dispatch_keys()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return
        interrupt = _interrupt_behind(error, self._handled)
        if interrupt is None:
            return
        self._keep_modes_alive()
        _finish_blocks(error, self._handled)
        self._restore()
        if interrupt is not error:
            raise interrupt from None

    def _keep_modes_alive(self) -> None:
        """Let the modes of an interrupted block live for good.

        Blocks that an interrupt leaves in the wrong order may enter a mode where another one is
        set. Torch raises an error then, and drops a reference that it never took.
        """
        stack, own = self._modes
        for mode in (*stack, *own.values(), *(mode for mode, _ in self._tape_modes)):
            for _ in range(_SPARE_REFERENCES):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(mode))

    def _restore(self) -> None:
        for (read, write), value in zip(_SWITCHES, self._before, strict=True):
            if read() != value:
                write(value)
        while functorch.get_dynamic_layer_stack_depth() > self._depth:
            functorch.pop_dynamic_layer_stack()
        while torch._C._len_torch_function_stack() > self._functions:
            torch._C._pop_torch_function_stack()
        if _dispatch_modes() != self._modes:
            _set_dispatch_modes(self._modes)
        for name, value in self._flags.items():
            setattr(dispatch, name, value)
        if _note_flag is not None:
            _note_flag(self._flags[_FLAG_NOTED])
        for mode, depth in self._tape_modes:
            del mode.enter_stack[depth:]
            if hasattr(mode, "in_kernel_invocation"):
                mode.in_kernel_invocation = False
        _set_dispatch_keys(self._keys)


def _dispatch_keys() -> tuple[Any, Any]:
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


# Each would undo what it did when it is gone. A guard that was begun before and left by an
# exception does just that, at any time, so none can be the one that restores.
_set_for_good: list[Any] = []


def _set_dispatch_keys(keys: tuple[Any, Any]) -> None:
    """Set included and excluded keys; mostly they are already."""
    now = _dispatch_keys()
    if [found.raw_repr() for found in now] == [wanted.raw_repr() for wanted in keys]:
        return
    guard = torch._C._ForceDispatchKeyGuard(*keys)
    guard.__enter__()
    _set_for_good.append(guard)


def _dispatch_modes() -> tuple[list[Any], dict[Any, Any]]:
    """Modes on the stack, those of a key of their own, which are at its bottom, apart."""
    own = {key: torch._C._get_dispatch_mode(key) for key in _MODE_KEYS}
    start, end = (
        sum(mode is not None for mode in own.values()),
        torch._C._len_torch_dispatch_stack(),
    )
    return [torch._C._get_dispatch_stack_at(index) for index in range(start, end)], own


def _set_dispatch_modes(modes: tuple[list[Any], dict[Any, Any]]) -> None:
    stack, own = modes
    for key in _MODE_KEYS:
        torch._C._unset_dispatch_mode(key)
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)
    for mode in stack:
        torch._C._push_on_torch_dispatch_stack(mode)
    for mode in own.values():
        if mode is not None:
            torch._C._set_dispatch_mode(mode)


def _interrupt_behind(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """The interrupt that an error is or came of; none that the caller is handling anyway."""
    found: BaseException | None = error
    while found is not handled and isinstance(found, Exception):
        found = None if found.__cause__ is not None else found.__context__
    return None if found is handled else found


def _finish_blocks(error: BaseException, handled: BaseException | None) -> None:
    """Run what is left of ``with`` blocks that an interrupt took the control from.

    One in the middle of ``contextlib`` leaves a generator suspended. It would go on when the
    traceback is freed, and put back what was before its block long after that is over.
    """
    found: BaseException | None = error
    while found is not None and found is not handled:
        frames = [frame for frame, _ in walk_tb(found.__traceback__)]
        for frame in reversed(frames):
            if frame.f_code.co_filename.startswith(_LIBRARIES):
                _set_dispatch_modes(([], {}))  # what is left may enter some
                with contextlib.suppress(RuntimeError):  # it is still running
                    frame.clear()
        del frames
        found = found.__context__
