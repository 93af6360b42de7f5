"""What libraries' modules and classes hold under the names that a capture went through.

The reader of a program compares it in each call, ``saved`` as text.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from funcaot.aot.closure.called import Called, is_followed, is_of
from funcaot.aot.closure.constants import is_scalar, is_setting
from funcaot.aot.closure.look import module_of
from funcaot.aot.closure.named.code_names import names_of
from funcaot.aot.closure.ran import is_library

__all__ = ["KeptAs", "kept_as", "names_called"]

_ABSENT = object()
_METHODS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodType,
    classmethod,
    staticmethod,
    property,
    functools.cached_property,
    functools.partialmethod,
)
_NOT_COMPARED = {"__doc__", "__module__", "__qualname__", "__name__", "__firstlineno__"}


class KeptAs:
    """What a module or class of a library holds under some names.

    Attributes:
        own: Its dictionary.
        says: What it is, in words.
        known: What is there, by name.
    """

    def __init__(self, own: dict[str, Any], says: str, find: Callable[[], dict[str, Any]]) -> None:
        """Look now; ``find`` looks again."""
        self.own, self.says, self._find = own, says, find
        self.known = find()

    def __call__(self) -> bool:
        """Whether everything is as it was."""
        return not self.changed()

    def changed(self) -> str:
        """What isn't as it was; empty if everything is."""
        now = self._find()
        for name in [*self.known, *now]:
            if self.known.get(name, _ABSENT) is not now.get(name, _ABSENT):
                return f"{self.says}.{name} was replaced"
        return ""


def names_called(called: Called) -> dict[str, set[str]]:
    """For each module, its globals that code of libraries names; also in modules among these."""
    found = {module: {*names} for module, names in called.names.items()}
    for code, module in called.codes.items():
        names, namespace = names_of(code), vars(sys.modules[module])
        found.setdefault(module, set()).update(names.loaded)
        for name in names.loaded:
            other = namespace.get(name)
            if not isinstance(other, types.ModuleType):
                continue
            if (other is torch or is_followed(other.__name__)) and is_of(
                other.__name__, vars(other)
            ):
                used = names.used & vars(other).keys()
                found.setdefault(other.__name__, set()).update(used)
    return found


def kept_as(called: Called) -> Iterator[KeptAs]:
    """What each module and class holds that matters.

    Raises:
        LookupError: If one isn't in this process; it says which.
    """
    builtin: set[str] = set()
    for name, names in sorted(names_called(called).items()):
        own = vars(_module(name))
        names = {each for each in names if not isinstance(own.get(each), types.ModuleType)}
        builtin |= {each for each in names - own.keys() if each in vars(builtins)}
        if names:
            yield KeptAs(own, name, functools.partial(_of_module, own, sorted(names)))
    if builtin:
        own = builtins.__dict__
        yield KeptAs(own, "Python", functools.partial(_of_module, own, sorted(builtin)))
    for module, name in sorted(called.kinds):
        if not is_library(module) or module == "builtins" or "<locals>" in name:
            continue
        kind: Any = _module(module)
        for part in name.split("."):
            kind = getattr(kind, part, None)
        if isinstance(kind, type) and module_of(kind) == module:
            own = gc.get_referents(vars(kind))[0]
            yield KeptAs(own, f"{module}.{name}", functools.partial(_of_class, own))


def _module(name: str) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None and is_followed(name):
        module = importlib.import_module(name)
    if module is None:
        raise LookupError(f"the module {name} isn't imported")
    return module


def _of_module(own: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Functions, classes and constants of a module; numbers that it counts in are left out."""
    found: dict[str, Any] = {}
    for name in names:
        value = own.get(name, _ABSENT)
        if value is _ABSENT or callable(value):
            found[name] = value
        elif is_scalar(value) or (type(value) is tuple and is_setting(value)):
            if name not in _stored(own["__name__"]):
                found[name] = value
    return found


@functools.lru_cache(maxsize=1024)
def _stored(module: str) -> frozenset[str]:
    """The globals that a module's functions assign."""
    functions = [f for f in vars(sys.modules[module]).values() if isinstance(f, types.FunctionType)]
    return frozenset[str]().union(*(names_of(function.__code__).stored for function in functions))


def _of_class(own: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in [*own.items()]
        if name not in _NOT_COMPARED and (isinstance(value, _METHODS) or is_scalar(value))
    }
