"""The code that ran in a capture, described so that another process finds it again.

``reader`` keeps it, ``saved`` writes and finds it. Code is named by module and qualified name and
compared by a digest of its instructions, constants and names; line numbers don't matter.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from funcaot.aot.closure.called import Called
from funcaot.aot.closure.ran import Ran
from funcaot.base.variables import Variables
from funcaot.rules.operands.reached import is_filled

_HOLDERS = (staticmethod, classmethod, property, functools.cached_property, functools.partial)
_WRAPPERS = ("__wrapped__", "__func__", "fget", "fset", "func")


@dataclass(frozen=True, eq=False)
class RanCode:
    """The code that ran, without the globals that it ran with.

    Attributes:
        users: The user's code, each with the module whose globals it ran with; None if they were
            no module's.
        libraries: Code of libraries that reads what a user gives them.
        variables: Environment variables that were read.
        asked: Names by which the user's code got or set attributes of things.
        called: What libraries hold that it went through.
        hashed: Classes whose objects it may have told apart by a hash.
        whole: Classes of whose objects it was shown all attributes.
        reads_states: Whether code other than a step names the state of an optimizer.
    """

    users: tuple[tuple[types.CodeType, str | None], ...]
    libraries: tuple[types.CodeType, ...]
    variables: Variables
    asked: frozenset[str] = frozenset()
    called: Called = field(default_factory=Called)
    hashed: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    reads_states: bool = False


@dataclass(frozen=True)
class CodeKey:
    """What names a code object in any process.

    Attributes:
        module: The module that it is found in.
        name: Its qualified name.
        digest: Of what it does.
        line: Where it begins, to tell copies apart.
    """

    module: str
    name: str
    digest: str
    line: int


def kept(ran: Ran) -> RanCode:
    """What of the code that ran can be kept without keeping globals alive."""
    users = []
    for code, namespace in ran.users.items():
        name = namespace.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        own = module is not None and vars(module) is namespace
        users.append((code, name if own else None))
    called, variables = Called(), Variables()
    called.update(ran.called)
    variables.update(ran.variables)
    seen = frozenset(ran.asked), called, frozenset(ran.hashed), frozenset(ran.whole)
    return RanCode(tuple(users), tuple(ran.libraries), variables, *seen, ran.reads_states)


@functools.lru_cache(maxsize=8192)
def digest_of(code: types.CodeType) -> str:
    """A digest of what code does; equal code at another line has the same."""
    found = hashlib.sha256()
    for part in (
        code.co_name,
        code.co_qualname,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_code,
        code.co_exceptiontable,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        tuple(map(_constant, code.co_consts)),
    ):
        found.update(repr(part).encode())
        found.update(b"\0")
    return found.hexdigest()


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return digest_of(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {value!r}"


def keys_of(ran: RanCode) -> tuple[list[CodeKey], list[CodeKey]]:
    """What names the user's code and that of libraries.

    Raises:
        LookupError: For code that no module has the globals of.
    """
    users, libraries = [], []
    for code, module in ran.users:
        if module is None:
            raise LookupError(f"{code.co_qualname} runs with globals that are no module's")
        users.append(CodeKey(module, code.co_qualname, digest_of(code), code.co_firstlineno))
    files = {getattr(module, "__file__", None): name for name, module in [*sys.modules.items()]}
    for code in sorted(ran.libraries, key=lambda code: (code.co_filename, code.co_firstlineno)):
        module = files.get(code.co_filename)
        if module is None:
            raise LookupError(f"the module of {code.co_qualname} wasn't found")
        libraries.append(CodeKey(module, code.co_qualname, digest_of(code), code.co_firstlineno))
    return users, libraries


def found(users: Iterable[CodeKey], libraries: Iterable[CodeKey]) -> Ran:
    """The code that these name, in this process.

    Raises:
        LookupError: If some isn't there or has changed; it says which.
    """
    finder = _Finder()
    ran = Ran()
    for key in users:
        ran.users[finder.find(key)] = vars(sys.modules[key.module])
    ran.libraries.update(map(finder.find, libraries))
    return ran


class _Finder:
    """Finds code in modules; each module is looked through once."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[types.CodeType]]] = {}
        self._alive: dict[str, dict[str, list[types.CodeType]]] | None = None

    def find(self, key: CodeKey) -> types.CodeType:
        module = sys.modules.get(key.module)
        if module is None:
            raise LookupError(f"the module {key.module} isn't imported")
        known = self._found.get(key.module)
        if known is None:
            known = self._found[key.module] = _by_name(_codes_of(module))
        code = _chosen(known.get(key.name, ()), key) or _chosen(self._by_module(key), key)
        if code is None:
            there = key.name in known
            what = "has changed" if there else "isn't there"
            raise LookupError(f"the code of {key.module}.{key.name} {what}")
        return code

    def _by_module(self, key: CodeKey) -> list[types.CodeType]:
        """Code of functions that a module made and doesn't hold."""
        if self._alive is None:
            found: dict[str, dict[str, list[types.CodeType]]] = {}
            for thing in gc.get_objects():
                if type(thing) is types.FunctionType:
                    module = str(thing.__globals__.get("__name__"))
                    named = found.setdefault(module, {})
                    for code in _with_inner(thing.__code__):
                        named.setdefault(code.co_qualname, []).append(code)
            self._alive = found
        return self._alive.get(key.module, {}).get(key.name, [])


def _chosen(codes: Iterable[types.CodeType], key: CodeKey) -> types.CodeType | None:
    alike = [code for code in codes if digest_of(code) == key.digest]
    exact = [code for code in alike if code.co_firstlineno == key.line]
    return next(iter(exact or alike), None)


def _by_name(codes: Iterable[types.CodeType]) -> dict[str, list[types.CodeType]]:
    named: dict[str, list[types.CodeType]] = {}
    for code in codes:
        named.setdefault(code.co_qualname, []).append(code)
    return named


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _codes_of(module: types.ModuleType) -> Iterator[types.CodeType]:
    """The code of a module's functions and methods, and of what is defined in them."""
    seen: set[int] = set()
    pending: list[Any] = list(vars(module).values())
    while pending:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, types.FunctionType):
            if thing.__globals__ is vars(module):
                yield from _with_inner(thing.__code__)
            held = [cell.cell_contents for cell in thing.__closure__ or () if is_filled(cell)]
            pending += [each for each in held if isinstance(each, types.FunctionType)]
            pending += [vars(thing)["__wrapped__"]] if "__wrapped__" in vars(thing) else []
        elif isinstance(thing, type) and thing.__module__ == module.__name__:
            pending += list(vars(thing).values())
        elif isinstance(thing, _HOLDERS):
            pending += [getattr(thing, name) for name in _WRAPPERS if hasattr(thing, name)]
