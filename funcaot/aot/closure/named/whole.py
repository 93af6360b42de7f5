"""Methods that read all attributes of what they are a method of, and of nothing else.

``self.__dict__`` shows everything that an object holds, and code that has that name in it could
read everything of any object. Where all that it asks is its own first argument, the objects of one
class are read as a whole, and others by name.
"""

from __future__ import annotations

import dataclasses
import dis
import itertools
import operator
import pickle
import types
from collections.abc import Mapping, Sequence
from typing import Any

from funcaot._torch.tracing.seen_classes import meant_by, shows_getters

__all__ = [
    "BY_NAME",
    "COPIES",
    "UNSEEN",
    "WHOLE",
    "asks_by_text",
    "asks_itself",
    "only_gets_by_name",
    "only_pickles",
]

# What ``vars`` shows is noted when it does (see seen_classes).
WHOLE = {"__dict__", "dir", "asdict", "astuple", "fields", "__getstate__", "getmembers"}
# These get attributes by names that nobody sees (``getattr`` shows them, see seen_classes).
UNSEEN = {"__getattribute__", "attrgetter", "builtins", "getattr_static", "methodcaller"}
WHOLE |= UNSEEN | {"pickle", "Pickler", "dumps"}
# Functions of Python's library that copy all attributes.
COPIES = {"asdict", "astuple", "fields", "replace", "_asdict_inner", "_reconstruct", "deepcopy"}
# These get or set attributes by names that may come from data.
BY_NAME = {
    "getattr",
    "hasattr",
    "vars",
    "__dict__",
    "__getattr__",
    "__getattribute__",
    "attrgetter",
    "methodcaller",
    "globals",
    "__globals__",
    "setattr",
    "delattr",
}

_NO_STEP = {"CACHE", "NOP", "PRECALL", "EXTENDED_ARG", "RESUME", "PUSH_NULL", "COPY_FREE_VARS"}
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")
_SIMPLE = ("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_ATTR")
_SHORTEST = 3  # what it is, the text, and getting the item


def asks_itself(code: types.CodeType, namespace: Mapping[str, Any]) -> type | None:
    """The class whose objects alone some code reads as a whole; None if it may be others.

    Args:
        code: The code, of a method or nested in one.
        namespace: Its globals.
    """
    path, _, _ = code.co_qualname.partition(".<locals>.")
    kind, method = _method(path.split("."), namespace)
    if kind is None or method is None or not method.co_argcount:
        return None
    if not _is_inside(code, method):
        return None
    asks = _Asks(method.co_varnames[0], namespace)
    return kind if asks.only_itself(code, nested=code is not method) else None


def asks_by_text(code: types.CodeType) -> bool:
    """Whether ``__dict__`` is asked for names that are in the code: ``thing.__dict__.get("name")``.

    So is it by ``"name" in thing.__dict__``. Such texts count as names that the code reads.
    """
    steps = [each for each in dis.get_instructions(code) if each.opname not in _NO_STEP]
    asked = [at for at, step in enumerate(steps) if _is_in_whole(step)]
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    found = all(_is_by_text(steps[at:]) or _is_looked_for(steps, at) for at in asked)
    return found and all(map(asks_by_text, inner))


def only_gets_by_name(code: types.CodeType, namespace: Mapping[str, Any]) -> bool:
    """Whether all that may read an object as a whole is ``attrgetter``, as a global of that code.

    What it is asked for is shown, as with ``getattr`` (see seen_classes).

    Args:
        code: Some code.
        namespace: Its globals.
    """
    for step in dis.get_instructions(code):
        if _is_in_whole(step):
            found = meant_by(namespace.get(step.argval))
            if step.opname != "LOAD_GLOBAL" or found is not operator.attrgetter:
                return False
            if not shows_getters(code):
                return False
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return all(only_gets_by_name(each, namespace) for each in inner)


def only_pickles(code: types.CodeType, namespace: Mapping[str, Any]) -> bool:
    """Whether objects are read as a whole by Python's ``pickle`` only, classes and modules by name.

    Args:
        code: Some code.
        namespace: Its globals.
    """
    steps = [each for each in dis.get_instructions(code) if each.opname not in _NO_STEP]
    for before, step in itertools.pairwise([steps[0], *steps]):
        if not _is_in_whole(step):
            continue
        found = namespace.get(step.argval)
        known = found is pickle or found is pickle.dumps
        if step.opname == "LOAD_GLOBAL" and not known:
            return False
        if step.opname != "LOAD_GLOBAL":
            if step.argval != "dumps" or namespace.get(str(before.argval)) is not pickle:
                return False
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return all(only_pickles(each, namespace) for each in inner)


def _method(
    path: Sequence[str], namespace: Mapping[str, Any]
) -> tuple[type | None, types.CodeType | None]:
    """A class and the code of its method, by the method's qualified name."""
    found: Any = namespace.get(path[0])
    for name in path[1:-1]:
        found = vars(found).get(name) if isinstance(found, type) else None
    if len(path) < 2 or not isinstance(found, type):
        return None, None
    member = vars(found).get(path[-1])
    member = member.fget if isinstance(member, property) else member
    while isinstance(member, types.FunctionType) and "__wrapped__" in vars(member):
        member = vars(member)["__wrapped__"]
    if not isinstance(member, types.FunctionType):
        return None, None
    return found, member.__code__


def _is_inside(code: types.CodeType, outer: types.CodeType) -> bool:
    inner = (each for each in outer.co_consts if isinstance(each, types.CodeType))
    return code is outer or any(_is_inside(code, each) for each in inner)


def _is_in_whole(step: dis.Instruction) -> bool:
    return isinstance(step.argval, str) and step.argval in WHOLE


def _is_by_text(steps: Sequence[dis.Instruction]) -> bool:
    """Whether steps get ``__dict__`` and an item of it, whose key is a text as it stands there."""
    if len(steps) < _SHORTEST or (steps[0].opname, steps[0].argval) != ("LOAD_ATTR", "__dict__"):
        return False
    if steps[1].argval != "get" or steps[1].opname not in ("LOAD_METHOD", "LOAD_ATTR"):
        return _is_text(steps[1]) and steps[2].opname.endswith("_SUBSCR")
    default = [*itertools.takewhile(lambda step: step.opname in _SIMPLE, steps[3:])]
    call = steps[3 + len(default)]
    return _is_text(steps[2]) and (call.opname, call.argval) == ("CALL", 2 if default else 1)


def _is_looked_for(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether steps ask if a text as it stands there is a key of a thing's ``__dict__``."""
    if (steps[at].opname, steps[at].argval) != ("LOAD_ATTR", "__dict__"):
        return False
    if [step.opname for step in steps[at + 1 : at + 2]] != ["CONTAINS_OP"]:
        return False
    lacking = 1  # values that what comes before is to leave
    while lacking:
        at -= 1
        if at < 1 or steps[at].opname not in (*_SIMPLE, "BINARY_SUBSCR"):
            return False
        if steps[at].opname.endswith("_SUBSCR"):
            lacking += 1
        elif steps[at].opname != "LOAD_ATTR":
            lacking -= 1
    return _is_text(steps[at - 1])


def _is_text(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_CONST" and isinstance(step.argval, str)


def _is_stored_in(after: Sequence[dis.Instruction]) -> bool:
    """Whether a dictionary gets an item and isn't read: ``copied.__dict__[key] = value``."""
    loads = "LOAD_FAST", "LOAD_CONST", "LOAD_DEREF"
    return len(after) == 2 and after[0].opname in loads and after[1].opname == "STORE_SUBSCR"


@dataclasses.dataclass
class _Asks:
    """Looks at what a method asks for all of its attributes.

    Attributes:
        first: The method's first argument.
        namespace: Its globals.
    """

    first: str
    namespace: Mapping[str, Any]

    def only_itself(self, code: types.CodeType, *, nested: bool) -> bool:
        """Whether the first argument stays what it is and is all that is asked."""
        if nested and self.first in code.co_varnames:
            return False
        steps = [each for each in dis.get_instructions(code) if each.opname not in _NO_STEP]
        for at, step in enumerate(steps):
            if step.argval == self.first and not step.opname.startswith(("LOAD_", "MAKE_CELL")):
                return False
            if _is_in_whole(step):
                if not self._is_own(steps, at):
                    return False
        return all(
            self.only_itself(each, nested=True)
            for each in code.co_consts
            if isinstance(each, types.CodeType)
        )

    def _is_own(self, steps: Sequence[dis.Instruction], at: int) -> bool:
        name, before, after = steps[at].argval, steps[max(at - 1, 0)], steps[at + 1 : at + 3]
        if steps[at].opname == "LOAD_CONST":
            # What a class's own hook hands on asks for one name of the object.
            return before.argval == "__getattribute__" and self._is_own(steps, at - 1)
        if name == "__dict__":
            asked = steps[at].opname.startswith("LOAD_")
            return asked and (self._is_first(before) or _is_stored_in(after))
        if name == "__getattribute__":
            return self._is_of_super(steps, at) or self._is_of_object(before, after)
        return (
            name == "fields"
            and self.namespace.get(name) is dataclasses.fields
            and steps[at].opname == "LOAD_GLOBAL"
            and len(after) == 2
            and self._is_first(after[0])
            and after[1].opname == "CALL"
        )

    def _is_of_object(self, before: dis.Instruction, after: Sequence[dis.Instruction]) -> bool:
        """Whether it is ``object.__getattribute__(self, ...)``."""
        known = (before.opname, before.argval) == ("LOAD_GLOBAL", "object")
        return known and "object" not in self.namespace and any(map(self._is_first, after[:1]))

    def _is_first(self, step: dis.Instruction) -> bool:
        return step.argval == self.first and step.opname.startswith(_LOADS)

    def _is_of_super(self, steps: Sequence[dis.Instruction], at: int) -> bool:
        if steps[at].opname.startswith("LOAD_SUPER"):
            return True
        return (
            at >= 2
            and steps[at - 1].opname == "CALL"
            and steps[at - 1].argval == 0
            and steps[at - 2].argval == "super"
        )
