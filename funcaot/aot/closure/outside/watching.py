"""Refuses what captured code does outside of Python's objects; whoever records code uses it.

Python tells of each call of a function of C before it happens, so nothing has happened yet when a
capture ends for it, and the call can be made as it is.
"""

from __future__ import annotations

import gc
import signal
import sys
import types
from typing import Any

import torch

from funcaot.aot.closure.outside.acts import AFTERWARDS, OF_MODULES, SEEDING, act_on
from funcaot.aot.closure.outside.remembering import RememberedError, Remembering
from funcaot.aot.closure.ran import is_library
from funcaot.base.scopes import Watch
from funcaot.errors import OutsideError

__all__ = ["Outside"]

# Objects of these classes are nowhere else.
_PLAIN = frozenset((dict, list, tuple, set, frozenset, str, bytes, int, float, bool, type(None)))
# What tells of a run, or looks for code: it happens in the capture, as printing does.
_TELLING = {
    "logging", "warnings", "traceback", "linecache", "inspect", "importlib", "weakref", "pdb",
    "bdb", "gettext", "tqdm", "rich", "loguru", "tokenize", "pkgutil", "zipimport", "runpy",
    "IPython", "ipykernel", "zmq", "colorama", "fastprogress", "progressbar", "alive_progress",
    "concurrent",  # Threads are refused by that name.
}  # fmt: skip
_KNOWN_AS = {"posix": "os", "nt": "os", "_io": "io", "_signal": "signal"}
# What runs whenever an object dies, and the kernel of an operator, which runs in each call.
_BY_ITSELF = {"__del__", "backend_impl"}
# Parts of torch that do what a user asks for; elsewhere its own machinery asks.
_OF_TORCH = (
    "torch.serialization",
    "torch.hub",
    "torch.utils.data",
    "torch.utils.tensorboard",
    "torch.random",
    "torch.autograd.graph",
    "torch._compile",  # What keeps Dynamo out of functions of the one above.
    "torch._dynamo.eval_frame",
)


class Outside(Watch):
    """Refuses to call functions that reach outside, where the user's code asks for it."""

    def __init__(self, remembering: Remembering | None = None, *, seeds: bool = False) -> None:
        """Watch nothing yet.

        Args:
            remembering: Follows functions that remember their results, whose calls end a capture
                without a refusal.
            seeds: Whether code may seed generators, as those are its own.
        """
        self._remembering, self._seeds = remembering, seeds

    def __exit__(self, *error: object) -> None:
        """Stop, and restore what profiled before."""
        super().__exit__(*error)
        if self._remembering is not None:
            self._remembering.stop()

    def see(self, frame: types.FrameType, event: str, argument: Any) -> None:
        """See what happens in a frame.

        Raises:
            OutsideError: If a function that reaches outside is about to be called.
            RememberedError: If a function that remembers its results does what happens once.
        """
        remembering = self._remembering
        if remembering is not None and (event == "call" or remembering.runs):
            try:
                remembering.see(frame, event, argument)
            except RememberedError:
                self.lose()
                raise
        if event == "c_call":
            owner = argument.__self__
            if type(owner) is types.ModuleType:
                if argument in OF_MODULES:
                    self._refuse(frame, argument, OF_MODULES[argument])
            elif type(owner) not in _PLAIN and not isinstance(owner, torch.Tensor):
                act = act_on(owner, argument.__name__)
                if act == SEEDING and self._seeds:
                    act = None
                # A backward that begins in the capture of a function ends there, too.
                if act is not None and (act != AFTERWARDS or self._remembering is None):
                    self._refuse(frame, argument, act)
        if self.before is not None:
            self.before(frame, event, argument)

    def _refuse(self, frame: types.FrameType, function: Any, act: str) -> None:
        asking = _user_who_asks(frame)
        if asking is None:
            return
        name = function.__qualname__
        if isinstance(function.__self__, types.ModuleType):
            module = function.__self__.__name__
            name = f"{_KNOWN_AS.get(module, module)}.{name}"
        code = asking.f_code
        self.lose()
        if self._remembering is not None:
            self._remembering.refuse(act)
        raise OutsideError(
            f"{code.co_qualname} {act} ({name}), which would happen once, when it is captured, and "
            "not at every call.",
            where=f"{code.co_filename}:{asking.f_lineno}",
            remedy="do it outside of the compiled function, and pass what it says as a tensor or "
            "an argument.",
        )


def _user_who_asks(frame: types.FrameType | None) -> types.FrameType | None:
    """The user's code that a call is for; None if a library asks for itself, or tells something."""
    asking = None
    by_itself = _run_by_python()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package == "funcaot" and not module.startswith("funcaot.testing."):
            break
        code = frame.f_code
        if package in _TELLING or code.co_name in _BY_ITSELF or code in by_itself:
            return None
        if _prints(frame):
            return None
        if asking is None:
            if not is_library(module):
                asking = frame
            elif package == "torch" and not module.startswith(_OF_TORCH):
                return None
        frame = frame.f_back
    return asking


def _run_by_python() -> set[Any]:
    """The code that Python runs between any two lines: for the collector, and for signals."""
    handlers = map(signal.getsignal, signal.valid_signals())
    functions = (getattr(each, "__func__", each) for each in (*gc.callbacks, *handlers))
    return {getattr(each, "__code__", None) for each in functions}


def _prints(frame: types.FrameType) -> bool:
    """Whether a frame is that of a method of what stands for ``sys.stdout`` or ``sys.stderr``."""
    if frame.f_code.co_varnames[:1] != ("self",):
        return False
    owner = frame.f_locals.get("self")
    return owner is not None and (owner is sys.stdout or owner is sys.stderr)
