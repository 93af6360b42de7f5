"""What a reader compares, as text that is equal in two processes if they compare the same.

``forwards`` writes it beside a program. Another process makes the reader again, from the code that
ran, and takes the program only if its own reader compares the same things: the same lines, with
the same values, the same code, and objects of the same classes that are one where they were one.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import functools
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterable
from typing import Any

import torch

from funcaot._torch.distributed.described_tensors import (
    is_dtensor_class,
    is_placement,
    placement_data,
)
from funcaot._torch.distributed.groups import described_group, is_group, is_mesh, mesh_words, words
from funcaot._torch.distributed.wrapped import is_state_of_fsdp
from funcaot._torch.tensors.guards import attributes_of_tensors
from funcaot._torch.tensors.ops import is_op
from funcaot.aot.closure.constants import fingerprint, is_setting
from funcaot.aot.closure.libraries.kept_as import KeptAs, names_called
from funcaot.aot.closure.libraries.text import library_text
from funcaot.aot.closure.look import module_of
from funcaot.aot.closure.ran import Ran, is_library
from funcaot.aot.closure.ran_code import CodeKey, digest_of, found, keys_of
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.reader.held import held, text_of
from funcaot.aot.reader.reader import Reader, Rules, make_check
from funcaot.aot.saved.codec import spec_data
from funcaot.aot.saved.errors import (
    NotLoadedError,
    NotSavedError,
    missing_is_not_loaded,
    missing_is_not_saved,
)

_NAME = re.compile(r"[A-Za-z_]\w*")
# Keys of a module's hooks, which torch counts in all of a process: all of them, or one.
_HOOKS = re.compile(r"(?<=hooks'\]\] == )\[[\d, ]+\]|(?<=hooks'\])\[\d+\]")
_BUILTIN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
# What pybind's functions belong to, each to its own: it tells nothing.
_RECORD = "pybind11_detail_function_record"
_FIELD: type = type(namedtuple("_OneField", "field").__dict__["field"])
# Whether one is held, nobody compares; functools.cached_property has one.
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_HEAP_TYPE = 1 << 9
# Types of Python's own whose instances show all that they hold.
_OPEN_TYPES = (
    object, dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, int, float, str,
    bytes, BaseException, Exception, types.SimpleNamespace,
)  # fmt: skip


def described(reader: Reader | None) -> list[str]:
    """The lines of a reader, each with what it names.

    Raises:
        NotSavedError: If it compares something by which object it is, and nothing else is known of
            that.
    """
    if reader is None:
        return []
    describe = Describer(() if reader.ran is None else [code for code, _ in reader.ran.users])
    namespace = reader.why.namespace
    found, hooks = [], dict[str, int]()
    for written, told, *_ in reader.why.lines:
        text = _with_hooks_numbered(written, hooks)
        used = [name for name in _NAME.findall(text) if name in namespace]
        named = [f"{name}: {describe.constant(name, namespace[name])}" for name in used]
        # What stands in front tells a reader of two such lists what changed.
        found.append(" | ".join([told or "", text, *named]))
    return found


def _with_hooks_numbered(text: str, known: dict[str, int]) -> str:
    """A line with hooks of modules numbered as they come.

    Args:
        text: The line.
        known: The number of each by its key; it grows.
    """

    def numbered(match: re.Match[str]) -> str:
        return re.sub(r"\d+", lambda key: str(known.setdefault(key[0], len(known))), match[0])

    return _HOOKS.sub(numbered, text)


def refuse_change(known: list[str], now: list[str]) -> None:
    """Refuse a program whose reader finds something else in this process.

    Args:
        known: The description of its reader that a file has.
        now: That of the one that was made here.

    Raises:
        NotLoadedError: If they differ; it says in what.
    """
    change = _first_change(known, now)
    if change:
        raise NotLoadedError(f"no longer so: {change}")


def _first_change(known: list[str], now: list[str]) -> str:
    """What two readers differ in, in words; empty if they are the same."""
    for before, after in zip(known, now, strict=False):
        # What a line says is for people: hooks have numbers there that torch counts in a process.
        if before.partition(" | ")[2] != after.partition(" | ")[2]:
            return before.partition(" | ")[0] or after.partition(" | ")[0] or "what it reads"
    if len(known) != len(now):
        longer = known if len(known) > len(now) else now
        return longer[min(len(known), len(now))].partition(" | ")[0] or "what it reads"
    return ""


class Describer:
    """Describes the constants of one reader; objects are numbered as they come."""

    def __init__(self, ran: Iterable[types.CodeType]) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self._ran = frozenset(ran)

    def constant(self, name: str, value: Any) -> str:
        """One constant, by the name that the reader's text has for it."""
        if name.startswith("seen"):  # a version, which only saves time
            return "version"
        if isinstance(value, KeptAs):
            return library_text(value)
        if name.startswith("library"):  # beside what it holds
            return "library"
        if name.startswith("ids"):
            raise NotSavedError("it reads a set of objects")
        if name.startswith("hooks"):
            if value:
                raise NotSavedError("there are hooks that torch runs for all modules")
            return "no hooks"
        return self._value(value)

    def _value(self, value: Any) -> str:
        if isinstance(value, weakref.ref):
            target = value()
            if target is None:
                raise NotSavedError("something that it reads is gone")
            return f"ref {self._object(target)}"
        if is_setting(value):
            return text_of(fingerprint(value))
        if value is attributes_of_tensors():
            return "the attributes of torch.Tensor"
        if value is sys.modules:
            return "sys.modules"
        kind = type(value)
        if kind in (list, tuple):
            return f"{kind.__name__}({', '.join(map(self._value, value))})"
        if kind in (set, frozenset):
            return f"set({', '.join(sorted(map(self._value, value)))})"
        if kind is dict:
            if "__name__" in value and _is_globals(value):
                return f"globals of {value['__name__']}"
            parts = (f"{self._value(key)}: {self._value(item)}" for key, item in value.items())
            return f"dict({', '.join(parts)})"
        return self._object(value)

    def _object(self, target: Any) -> str:
        """A thing that is compared by identity: what it is, and which of them."""
        number = self._numbers.setdefault(id(target), len(self._numbers))
        self._kept.append(target)  # so that ids stay theirs
        if isinstance(target, functools._lru_cache_wrapper):
            return f"{self._cache(target)} {number}"
        return f"{_kind_of(target)} {number}"

    def _cache(self, target: functools._lru_cache_wrapper[Any]) -> str:
        """A function whose results are kept: it ran, so what it reads is compared.

        Raises:
            NotSavedError: If a result from before was taken: of what that was made isn't known.
        """
        inner = target.__wrapped__
        if not (isinstance(inner, types.FunctionType) and inner.__code__ in self._ran):
            raise NotSavedError(f"it takes what {_name_of(inner)} kept from an earlier call")
        return f"cache {target.cache_parameters()} of {_kind_of(inner)}"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


def _is_globals(namespace: dict[str, Any]) -> bool:
    module = sys.modules.get(str(namespace["__name__"]))
    return module is not None and vars(module) is namespace


def _kind_of(target: Any) -> str:
    """What is known of an object beside its attributes, which the reader follows.

    Raises:
        NotSavedError: If it may hold something that no Python code shows.
    """
    if isinstance(target, types.CodeType):
        return f"code {target.co_qualname} {digest_of(target)}"
    if isinstance(target, type):
        return f"class {_class(target)}"
    if isinstance(target, types.ModuleType):
        return f"module {target.__name__}"
    if isinstance(target, types.FunctionType):
        name = f"{target.__module__}.{target.__qualname__}"
        return f"function {name} {digest_of(target.__code__)}"
    if is_op(target):
        return f"op {target}"
    if isinstance(target, classmethod | staticmethod):
        return f"{type(target).__name__} of {_kind_of(target.__func__)}"
    if type(target) is property:
        parts = (target.fget, target.fset, target.fdel)
        return f"property of {', '.join(_kind_of(part) for part in parts if part is not None)}"
    if isinstance(target, _BUILTIN):
        return _builtin(target)
    if _is_librarys(target):
        return f"method {_kind_of(target.__func__)} of {_class(type(target.__self__))}"
    if _class_name(type(target)) == "numpy._ArrayFunctionDispatcher":
        if is_library(module_of(target)):
            return f"function of NumPy {module_of(target)}.{target.__qualname__}"
    if isinstance(target, contextvars.ContextVar):
        return f"context variable {target.name}"
    if type(target) in _LOCKS:
        return "lock"
    if type(target) is _FIELD:
        return f"field {target.__reduce__()[1][0]} of a named tuple"
    if isinstance(target, enum.Enum):
        return _member(target)
    if target is attributes_of_tensors().get("__dlpack_c_exchange_api__"):
        return "torch's interface for DLPack"
    if is_group(target) or is_mesh(target) or is_placement(target):
        return _of_ranks(target)
    if is_state_of_fsdp(target):
        # Its hooks run around a program; to run inside of one is refused.
        return "what fully_shard keeps"
    kind = type(target)
    if kind in (torch.Tensor, torch.nn.Parameter):
        # Code that ran reads attributes of it, which are compared; what computes with it takes it.
        return f"tensor {spec_of(target)}"
    if is_dtensor_class(kind):
        return f"tensor {spec_data(spec_of(target))}"
    if isinstance(target, torch.Tensor) or not _shows_all(kind):
        raise NotSavedError(f"it reads an object of {kind.__module__}.{kind.__qualname__}")
    return f"object of {_class(kind)}{held(target)}"


def _of_ranks(target: Any) -> str:
    """A group or a mesh: which ranks, not what this process calls them; or how they share tensors.

    Raises:
        NotSavedError: If a group is gone, or they share tensors in a way of their own.
    """
    with missing_is_not_saved():
        if is_placement(target):
            return f"placement {placement_data(target)}"
        return mesh_words(target) if is_mesh(target) else words(described_group(target))


def _member(target: enum.Enum) -> str:
    """A member of an enumeration with all that it holds; code may read its value in many ways.

    Raises:
        NotSavedError: If it holds more than constants.
    """
    kind = type(target)
    found = {name: value for name, value in vars(target).items() if name != "__objclass__"}
    if not is_setting(found):
        raise NotSavedError(f"it reads {target}, whose value isn't plain")
    text = text_of(fingerprint(found))
    return f"member {target.name} of {kind.__module__}.{kind.__qualname__} {text}"


def _class(kind: type) -> str:
    """A class by name; one of the user's with its bases, which code may ask for.

    Python looks up special methods that no code names: ``__call__`` before ``forward``,
    ``__getattribute__`` before any attribute. So those of the user's classes are described too.
    """
    names = [f"{module_of(base)}.{base.__qualname__}" for base in kind.__mro__]
    if is_library(module_of(kind)):
        return names[0]
    meta = type(kind)
    by = f"{meta}" if is_library(module_of(meta)) else _class(meta)
    methods = [
        f"{base.__qualname__}.{name} is {found}"
        for base in kind.__mro__
        if not is_library(module_of(base))
        for name, value in sorted(vars(base).items())
        if name.startswith("__") and name.endswith("__")
        for found in [_shown(value) if name in _SHOWN else _special(value)]
        if found
    ]
    if issubclass(kind, enum.Enum):
        methods += [f"{name} is {_member(member)}" for name, member in kind.__members__.items()]
    return f"{' < '.join(names)} by {by}{''.join(f', {method}' for method in methods)}"


def class_text(kind: type) -> str:
    """A class of the user's with all that its methods do, where no reader follows them."""
    methods = [
        f"{base.__qualname__}.{name} does {digest_of(function.__code__)}"
        for base in kind.__mro__
        if not is_library(module_of(base))
        for name, value in sorted(vars(base).items())
        for function in _functions(value)
    ]
    return " ".join([_class(kind), *methods])


def _functions(value: Any) -> list[types.FunctionType]:
    if isinstance(value, property):
        parts = [value.fget, value.fset, value.fdel]
    else:
        parts = [value.__func__ if isinstance(value, staticmethod | classmethod) else value]
    return [part for part in parts if isinstance(part, types.FunctionType)]


# What code reads of a class to learn its fields.
_SHOWN = ("__annotations__", "__dataclass_fields__", "__match_args__", "__slots__")


def _shown(value: Any) -> str:
    """The fields of a class; types by name."""
    if isinstance(value, dict | types.MappingProxyType):
        return f"({', '.join(f'{name}: {_shown(item)}' for name, item in value.items())})"
    if isinstance(value, dataclasses.Field):
        return f"{_shown(value.type)} {_shown(value.default)} {_shown(value.metadata)}"
    return value.__qualname__ if isinstance(value, type) else str(value).partition(" at 0x")[0]


def _special(value: Any) -> str:
    """What a class has under the name of a special method; nothing for what can't be one."""
    if value is None:  # takes a method away
        return "None"
    if isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
        return ""  # where instances keep what they hold
    if not (callable(value) or hasattr(type(value), "__get__")):
        return ""
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not isinstance(function, types.FunctionType):
        return _kind_of(value)
    defaults = (function.__defaults__, function.__kwdefaults__)
    return _kind_of(value) + (text_of(fingerprint(defaults)) if is_setting(defaults) else "")


def _builtin(target: Any) -> str:
    owner = getattr(target, "__self__", None)
    if type(owner).__name__.startswith(_RECORD):
        owner = None
    if owner is not None and not isinstance(owner, type | types.ModuleType):
        raise NotSavedError(f"it reads a method of an object of {type(owner).__qualname__}")
    holder = getattr(target, "__objclass__", owner)
    module = getattr(holder, "__module__", None) or getattr(target, "__module__", None)
    module = module or getattr(holder, "__name__", "builtins")
    if module != "builtins" and not is_library(str(module)):
        raise NotSavedError(f"it calls {module}.{target.__name__}, which isn't Python code")
    return f"builtin {module}.{getattr(target, '__qualname__', target.__name__)}"


def _class_name(kind: type) -> str:
    return f"{module_of(kind)}.{kind.__qualname__}"


def _is_librarys(method: Any) -> bool:
    """Whether something is a method of a library's object, as functions of ``calendar`` are."""
    if not isinstance(method, types.MethodType):
        return False
    home = str(getattr(method.__func__, "__globals__", {}).get("__name__", ""))
    return is_library(home) and is_library(module_of(type(method.__self__)))


def _shows_all(kind: type) -> bool:
    """Whether instances hold nothing but attributes, slots and items."""
    slots = 0
    container = False
    for base in kind.__mro__:
        if not base.__flags__ & _HEAP_TYPE:
            if base not in _OPEN_TYPES:
                return False
            container |= base is not object
        members = vars(base).values()
        slots += sum(isinstance(member, types.MemberDescriptorType) for member in members)
    # A dictionary and weak references take two places.
    return container or kind.__basicsize__ <= object.__basicsize__ + 8 * (2 + slots)


# --- the code that ran, and what rules read -------------------------------------------------------


def code_data(reader: Reader) -> dict[str, Any]:
    """The code that ran, from which a reader is made again.

    Raises:
        NotSavedError: If it isn't known, or no module has it.
    """
    if reader.ran is None:
        raise NotSavedError("the code that it ran isn't known")
    with missing_is_not_saved():
        users, libraries = keys_of(reader.ran)
    return {
        "users": [list(dataclasses.asdict(key).values()) for key in users],
        "libraries": [list(dataclasses.asdict(key).values()) for key in libraries],
        "variables": sorted(reader.ran.variables.names),
        "all_variables": reader.ran.variables.all,
        "asked": sorted(reader.ran.asked),
        "hashed": sorted(reader.ran.hashed),
        "whole": sorted(reader.ran.whole),
        "reads_states": reader.ran.reads_states,
        "called": [
            [module, sorted(names)] for module, names in names_called(reader.ran.called).items()
        ],
        "kinds": sorted(map(list, reader.ran.called.kinds)),
    }


def code_from(data: Any) -> Ran:
    """The code that ``code_data`` described, in this process.

    Raises:
        LookupError: If some isn't there or has changed.
    """
    users, libraries = (
        [CodeKey(*key) for key in data["users"]],
        [CodeKey(*key) for key in data["libraries"]],
    )
    ran = found(users, libraries)
    ran.variables.names.update(data["variables"])
    ran.variables.all = data["all_variables"]
    ran.asked.update(data["asked"])
    ran.hashed.update(data["hashed"])
    ran.whole.update(data["whole"])
    ran.reads_states = data["reads_states"]
    ran.called.names.update((module, set(names)) for module, names in data["called"])
    ran.called.kinds.update((module, name) for module, name in data["kinds"])
    return ran


def rules_data(rules: Rules | None) -> Any:
    """What the rules of a derivative read.

    Raises:
        NotSavedError: If a part of it has no description.
    """
    if rules is None:
        return None
    if len(rules.root) > 1:
        raise NotSavedError("a rule of a Function that reads an object which that keeps on ctx")
    return {**code_data(rules.reader), "lines": described(rules.reader)}


def rules_from(data: Any) -> Rules | None:
    """What says whether that is as it was, in this process.

    Raises:
        NotLoadedError: If it isn't.
    """
    if data is None:
        return None
    with missing_is_not_loaded():
        made = make_check(code_from(data))
        now = [] if made is None else described(made.reader)
    refuse_change(data["lines"], now)
    return made
