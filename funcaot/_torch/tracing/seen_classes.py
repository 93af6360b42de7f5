"""What the things of a capture say they are: what they are in eager; ``closure/ran`` has it shown.

A tape's tensors are of a class of torch's own, which the user's code would see in ``type(x)`` and
``x.__class__``, and open sizes are no numbers to ``isinstance(n, int)``. Code sees what eager would
show. Nothing can make ``type`` itself say so: code that looks it up finds something in its globals,
while it is captured, that answers for it. With ``len(x)`` it is the same: Python makes a number of
what a tensor says.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import dis
import gc
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from funcaot._torch.patches import require
from funcaot._torch.tensors.classes.own_functions import is_own_class
from funcaot._torch.tensors.random.made_generators import REAL, STANDING, MadeGenerator
from funcaot._torch.tensors.sizes.of_numpy.written import KINDS
from funcaot._torch.tensors.sizes.open_numbers import OpenFloat, OpenInt
from funcaot._torch.tracing.own_classes import class_of, put_in_class
from funcaot.base.scopes import PausableTrace, SharedPatch, tracing_here

__all__ = [
    "SHOWN_NAMES",
    "classes_shown",
    "enter_as",
    "is_added",
    "is_by_name",
    "is_unseen",
    "meant_by",
    "show_classes",
    "show_in_arguments",
    "showing_classes",
    "shown_in",
    "shows_getters",
]

_SYMBOLIC = (FunctionalTensor, FakeTensor)
_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_NUMBERS |= {OpenInt: int, OpenFloat: float} | {made: kind for kind, made in KINDS.items()}
_CLASS = "_funcaot_class"


def enter_as(seen: torch.Tensor, kind: type) -> None:
    """Have an input of a capture say that it is of the class of the real tensor.

    Args:
        seen: The tape's tensor.
        kind: Class of the real one.
    """
    vars(seen)[_CLASS] = kind
    if issubclass(kind, torch.nn.Parameter):
        vars(seen)["_is_param"] = True  # asked by isinstance
    if is_own_class(kind):
        put_in_class(seen, kind)


def _class_of(thing: Any) -> type:
    """The class that the user's code is to see of something."""
    kind = type(thing)
    if kind in _NUMBERS:
        return kind if tracing_here() is None else getattr(thing, "kind", _NUMBERS[kind])
    if kind is MadeGenerator:
        return torch.Generator
    if kind not in _SYMBOLIC:
        return class_of(thing)
    return vars(thing).get(_CLASS, torch.Tensor)


# It stands for ``type`` in globals of code that is captured; for all but tensors it is ``type``.
class _Type:
    __slots__ = ()
    __module__ = "builtins"
    __doc__ = type.__doc__

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if len(args) != 1 or keywords:
            return type(*args, **keywords)
        kind = _class_of(args[0])
        # So that ``type(C) is type`` holds in the same code.
        return self if kind is type else kind

    def __getattribute__(self, name: str) -> Any:
        own = name == "__mro_entries__"  # asked for by a class statement
        return object.__getattribute__(self, name) if own else getattr(type, name)

    def __instancecheck__(self, thing: Any) -> bool:
        return isinstance(thing, type)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, type)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type,)

    def __eq__(self, other: object) -> bool:
        return other is type or other is self

    def __hash__(self) -> int:
        return hash(type)

    def __or__(self, other: Any) -> Any:
        return type | (type if other is self else other)

    def __ror__(self, other: Any) -> Any:
        return other | type

    def __getitem__(self, item: Any) -> Any:
        return type[item]

    def __repr__(self) -> str:
        return repr(type)


class _Function:
    """It stands for a builtin function; for all but symbolic things it is that function."""

    __slots__ = ()
    _original: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __eq__(self, other: object) -> bool:
        return other is self._original or other is self

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


class _Length(_Function):
    __slots__ = ()
    _original = len

    def __call__(self, thing: Any, /) -> Any:
        if isinstance(thing, torch.Tensor) and thing.ndim:
            size = thing.shape[0]
            if type(size) is torch.SymInt:
                return size
        return len(thing)


class _IsInstance(_Function):
    __slots__ = ()
    _original = isinstance

    def __call__(self, thing: Any, kinds: Any, /) -> bool:
        if type(thing) not in _NUMBERS or tracing_here() is None:
            return isinstance(thing, kinds)
        found = _class_of(thing)
        return any(
            isinstance(thing, kind) if _looks_at_things(kind) else issubclass(found, kind)
            for kind in _each(kinds)
        )


def _each(kinds: Any) -> Iterator[Any]:
    """The classes among what ``isinstance`` is given."""
    several = kinds if type(kinds) is tuple else get_args(kinds)
    if several and (type(kinds) is tuple or isinstance(kinds, types.UnionType)):
        for kind in several:
            yield from _each(kind)
    else:
        yield kinds


def _looks_at_things(kind: Any) -> bool:
    """Whether a metaclass of the user's asks the thing itself, and not just its class."""
    asked = getattr(type(kind), "__instancecheck__", None)
    return isinstance(asked, types.FunctionType) and asked.__module__ not in _BY_CLASS


_BY_CLASS = ("abc", "typing")
_BY_NAME = (getattr, hasattr, setattr, delattr)


class _ByName(_Function):
    """A function that gets an attribute, or sets one, by a name that may come from anywhere."""

    __slots__ = ("_original",)

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(self, thing: Any, name: Any, /, *rest: Any) -> Any:
        owner = tracing_here()
        if owner is not None and owner.asked is not None and isinstance(name, str):
            owner.asked.add(name)
        return self._original(thing, name, *rest)


def is_by_name(code: types.CodeType) -> bool:
    """Whether code is that of a stand-in for ``getattr`` and its kin, which asks for its caller."""
    return code is _ByName.__call__.__code__


class _Whole(_Function):
    """It stands for ``vars``, which shows all attributes of a thing."""

    __slots__ = ()
    _original = vars

    def __call__(self, *things: Any) -> Any:
        if not things:
            own = sys._getframe(1).f_locals
            return dict(own) if type(own).__name__ == "FrameLocalsProxy" else own
        found = vars(*things)
        if (owner := tracing_here()) is not None:
            owner.note_whole(things[0])
        return found


class _Getter(_Function):
    """It stands for ``operator.attrgetter``, which gets attributes by names, also dotted ones."""

    __slots__ = ()
    _original = operator.attrgetter

    def __call__(self, *names: Any) -> Any:
        owner = tracing_here()
        if owner is not None and owner.asked is not None:
            for name in names:
                owner.asked.update(name.split(".") if isinstance(name, str) else ())
        return operator.attrgetter(*names)

    def __instancecheck__(self, thing: Any) -> bool:
        return isinstance(thing, operator.attrgetter)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, operator.attrgetter)

    def __or__(self, other: Any) -> Any:
        return operator.attrgetter | other

    def __ror__(self, other: Any) -> Any:
        return other | operator.attrgetter


def shows_getters(code: types.CodeType) -> bool:
    """Whether code that has ``attrgetter`` as a global of its own is shown something in its place.

    Code that asks whether two things are one object may ask that of a class.
    """
    return all(step.opname != "IS_OP" for step in dis.get_instructions(code))


_SHOWN: dict[str, Any] = {"type": _Type(), "len": _Length(), "isinstance": _IsInstance()}
_SHOWN["vars"] = _Whole()
_SHOWN |= {each.__name__: _ByName(each) for each in _BY_NAME}
SHOWN_NAMES = frozenset(_SHOWN)
_MEANT = {id(shown): getattr(builtins, name) for name, shown in _SHOWN.items()}
_STAND_IN = {id(getattr(builtins, name)): shown for name, shown in _SHOWN.items()}
# No builtin: it is where code imported it by itself.
_STAND_IN[id(operator.attrgetter)] = _getter = _Getter()
_MEANT[id(_getter)] = operator.attrgetter
# Nor is this, which makes other generators while it is captured.
_STAND_IN[id(REAL)] = STANDING
_MEANT[id(STANDING)] = REAL


def meant_by(thing: Any) -> Any:
    """The function that a thing stands for while something is captured; else the thing itself."""
    return _MEANT.get(id(thing), thing)


def shown_in(namespace: dict[Any, Any]) -> dict[str, bool]:
    """The names of globals that show a stand-in, and whether each is there for that alone."""
    _, names = _spaces.get(id(namespace), _NOTHING)
    return {name: added for name, added in names.items() if id(namespace.get(name)) in _MEANT}


def is_added(namespace: dict[str, Any], name: str) -> bool:
    """Whether globals have a name only because a capture shows a builtin to their code."""
    return id(namespace.get(name)) in _MEANT and shown_in(namespace).get(name, False)


_GETTING = (vars, object.__getattribute__, type.__getattribute__)


def is_unseen(name: str, thing: Any) -> bool:
    """Whether a thing is a builtin function that nothing stands for where it has this name."""
    return any(thing is each for each in (*_BY_NAME, *_GETTING)) and name not in SHOWN_NAMES


def _shown_class(tensor: torch.Tensor) -> type:
    """``x.__class__``, which ``isinstance`` asks too."""
    return type(tensor) if tracing_here() is None else _class_of(tensor)


def _shown_number(number: Any) -> type:
    """The same of an open number, which torch's own code has to know."""
    kind = type(number)
    if tracing_here() is None:
        return kind
    asker = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
    return kind if asker in _KNOWING else _NUMBERS[kind]


_KNOWING = {"torch", "funcaot", "sympy", "functorch", "numpy"}
_PROPERTIES = dict.fromkeys(_SYMBOLIC, property(_shown_class))
_PROPERTIES |= {
    kind: property(_shown_number) for kind in (torch.SymInt, torch.SymFloat, torch.SymBool)
}
# Globals that a capture put stand-ins into, and whether each name wasn't there before.
_spaces: dict[int, tuple[dict[str, Any], dict[str, bool]]] = {}
_NOTHING: tuple[dict[str, Any], dict[str, bool]] = ({}, {})


def _set(*, shown: bool) -> None:
    for kind, value in _PROPERTIES.items():
        # An assignment to the class would change its own class.
        attributes: Any = gc.get_referents(vars(kind))[0]
        if shown:
            attributes["__class__"] = value
        else:
            attributes.pop("__class__", None)
        # Any assignment tells Python to look attributes up again.
        kind._funcaot_shown = True  # pyright: ignore[reportAttributeAccessIssue]
        del kind._funcaot_shown  # pyright: ignore[reportAttributeAccessIssue]


def _install() -> None:
    if "__class__" not in vars(FunctionalTensor):
        _set(shown=True)


def _undo() -> None:
    _set(shown=False)
    while _spaces:
        _, (space, names) = _spaces.popitem()
        for name, added in names.items():
            thing = space.get(name)
            if id(thing) not in _MEANT:
                continue
            if added:
                del space[name]
            else:
                space[name] = meant_by(thing)


_patch = SharedPatch(_install, _undo)


@contextlib.contextmanager
def showing_classes() -> Iterator[None]:
    """While active, code that a recorder of this thread sees is shown the classes of eager."""
    require("classes")
    with _patch.used():
        yield


def show_classes(code: types.CodeType, namespace: dict[str, Any]) -> None:
    """Have code see them in ``type(x)``, and sizes in ``len(x)``, as long as something is captured.

    Args:
        code: Code of the user's that starts to run.
        namespace: Its globals, which may have ``type`` by another name.
    """
    for name in code.co_names:
        shown = _STAND_IN.get(id(namespace[name])) if name in namespace else _SHOWN.get(name)
        if shown is not None and (shown is not _getter or shows_getters(code)):
            _, names = _spaces.setdefault(id(namespace), (namespace, {}))
            names.setdefault(name, name not in namespace)
            namespace[name] = shown


def show_in_arguments(frame: types.FrameType) -> None:
    """Have code see them in ``kind(x)`` where it was given ``type``, as ``kind=type`` gives it.

    Args:
        frame: A frame of the user's code that starts.
    """
    code, given = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    found = [name for name in code.co_varnames[:count] if id(given.get(name)) in _STAND_IN]
    for name in found:
        given[name] = _STAND_IN[id(given[name])]
    if found and sys.version_info < (3, 13):  # Python writes them back only when tracing is over.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


class _Shows(PausableTrace):
    """Shows the classes to all code that isn't torch's or ours."""

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self.before)

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        """See a frame that starts."""
        namespace = frame.f_globals
        if str(namespace.get("__name__")).partition(".")[0] not in ("torch", "funcaot"):
            show_classes(frame.f_code, namespace)
            show_in_arguments(frame)
        return self.passed_on(frame, event, argument)


@contextlib.contextmanager
def classes_shown() -> Iterator[None]:
    """Where code of the user's runs again on symbolic tensors, and no recorder is there."""
    if tracing_here() is not None:
        yield
        return
    with showing_classes(), _Shows():
        yield
