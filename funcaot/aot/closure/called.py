"""Which names of libraries' own modules and classes a capture went through; ``Ran`` notes them.

Code of libraries isn't followed, but somebody may replace what it calls: ``statistics.fsum``, which
``statistics.fmean`` calls, or a method of ``fractions.Fraction``. Code that runs for the user, and
not for torch, says which names matter.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from funcaot.aot.closure.look import module_of
from funcaot.base.python_modules import is_pythons

__all__ = ["Called", "is_followed", "is_of"]

_HEAP_TYPE = 1 << 9
# What these hold is replaced as a rule, and says nothing of what is computed.
_CHANGING = {
    "abc", "ast", "asyncio", "atexit", "cProfile", "codecs", "concurrent", "encodings",
    "faulthandler", "gc", "genericpath", "importlib", "inspect", "io", "linecache", "logging",
    "multiprocessing", "ntpath", "os", "pdb", "posixpath", "pprint", "reprlib", "selectors",
    "shutil", "signal", "site", "stat", "sys", "sysconfig", "tempfile", "threading", "token",
    "tokenize", "traceback", "tracemalloc", "unittest", "warnings", "weakref",
}  # fmt: skip


def is_followed(module: str) -> bool:
    """Whether a module is one of Python's library or NumPy whose functions are compared."""
    package = module.partition(".")[0]
    return package == "numpy" or (package not in _CHANGING and is_pythons(package))


@dataclass(eq=False)
class Called:
    """What libraries hold that a capture went through.

    Attributes:
        codes: Code of libraries that ran for the user, with the name of its module.
        names: For each module, by name, its globals that matter, if another process found them.
        kinds: Classes of libraries whose methods ran, by module and qualified name.
    """

    codes: dict[types.CodeType, str] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)
    kinds: set[tuple[str, str]] = field(default_factory=set)

    def is_asked(self, frame: types.FrameType, users: Set[types.CodeType]) -> bool:
        """Whether the user's code called a frame, or code that was noted."""
        asker = frame.f_back
        return asker is not None and (asker.f_code in users or asker.f_code in self.codes)

    def note(self, frame: types.FrameType) -> None:
        """Note what a frame of a library goes through."""
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        if code not in self.codes and is_of(module, frame.f_globals):
            self.codes[code] = module
        self.note_kind(frame)

    def note_kind(self, frame: types.FrameType) -> None:
        """Note the class of what a method of a library runs for."""
        module = frame.f_globals.get("__name__")
        for bases in _bases(frame):
            if any(module_of(base) == module for base in bases):
                self._add(bases)

    def note_put(self, frame: types.FrameType) -> None:
        """Note the classes in which the user put a method that runs, if these are a library's."""
        for bases in _bases(frame):
            for base in bases:
                if any(_code_of(value) is frame.f_code for value in [*vars(base).values()]):
                    self._add(bases)

    def _add(self, bases: list[type]) -> None:
        self.kinds |= {(module_of(base), base.__qualname__) for base in bases}

    def update(self, other: Called) -> None:
        """Add what was noted elsewhere."""
        self.codes |= other.codes
        self.names |= other.names
        self.kinds |= other.kinds


def is_of(module: str, namespace: dict[str, Any]) -> bool:
    """Whether globals are those of the module that has this name."""
    found = sys.modules.get(module)
    return found is not None and vars(found) is namespace


def _bases(frame: types.FrameType) -> list[list[type]]:
    """The classes of what a method runs for that aren't C's, and of what a class's runs for."""
    code = frame.f_code
    if code.co_argcount:
        owner = frame.f_locals.get(code.co_varnames[0])
    elif code.co_flags & inspect.CO_VARARGS:
        owner = next(iter(frame.f_locals[code.co_varnames[code.co_kwonlyargcount]]), None)
    else:
        return []
    kinds = [type(owner), *([owner] if issubclass(type(owner), type) else [])]
    return [[base for base in kind.__mro__ if base.__flags__ & _HEAP_TYPE] for kind in kinds]


def _code_of(value: Any) -> types.CodeType | None:
    """The code of a method or of a property."""
    kind = type(value)  # Of a user's object no attribute is asked for.
    if issubclass(kind, property):
        value = value.fget
    elif issubclass(kind, classmethod | staticmethod | types.MethodType):
        value = value.__func__
    return value.__code__ if type(value) is types.FunctionType else None
