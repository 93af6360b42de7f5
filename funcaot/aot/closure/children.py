"""What an object leads to, kind by kind; for the walk through a function's environment.

Each step says how the next object is reached, by source text, and the name that code would use.
"""

from __future__ import annotations

import argparse
import builtins
import contextvars
import functools
import keyword
import operator
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from funcaot._torch.tracing.attributes import attributes_of
from funcaot._torch.tracing.seen_classes import is_added, is_unseen
from funcaot.aot.closure.constants import is_immutable, is_setting
from funcaot.aot.closure.hidden.bound import METHODS, gets_any, held_by
from funcaot.aot.closure.hidden.kept_results import MOST, Finder, KeptResults, results_of, see
from funcaot.aot.closure.look import (
    dictionary_of,
    in_context,
    in_slot,
    is_steps_own,
    module_of,
    weakly,
)
from funcaot.aot.closure.named.code_names import ReadNames, names_of
from funcaot.aot.closure.named.inherited import names_inherited, slots_inherited
from funcaot.aot.closure.ran import is_plain_object, is_torchs, is_users
from funcaot.base.python_modules import is_of_logging, runs_threads

MODULE_DICTIONARIES = ("_modules", "_parameters", "_buffers")
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# What every module has besides its training mode: dictionaries and flags of nn.Module's own.
MODULE_OWN = frozenset(vars(torch.nn.Module())) - {"training"}
SEQUENCES = (list, tuple, deque)
DICTIONARIES = (dict, types.MappingProxyType)
SETS = (set, frozenset)
CONTAINERS = (*SEQUENCES, *DICTIONARIES, *SETS)
# Views of dictionaries, which show what is there when they are looked at.
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
# What may change, is no pytree, and may be made anew for each call.
LOOKED_INTO = (set, types.MappingProxyType, *VIEWS)
_EXACT = (list, tuple, deque, dict, OrderedDict, defaultdict, torch.Size, *SETS)
# Objects that say by an attribute what they run.
WRAPPERS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (property, ("fget",)),
    (functools.cached_property, ("func",)),
    (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)),
    (functools.partialmethod, ("func", "args", "keywords")),
    (functools._lru_cache_wrapper, ("__wrapped__",)),
)

# Two of these are equal, and have one text, if all is that they hold.
BY_ALL = (types.SimpleNamespace, argparse.Namespace)
_OPERATORS = "torch._ops"  # They fill in attributes when these are first asked for.


class Step(NamedTuple):
    """A way from an object to another one.

    Attributes:
        access: Source text; ``{parent}`` is the object, ``{0}`` and so on the constants.
        name: The name that code would use; empty if it is always read.
        value: The other object.
        constants: Objects that the text names.
    """

    access: str
    name: str
    value: Any
    constants: tuple[Any, ...] = ()


_OF_FUNCTIONS = (
    "__annotations__",
    "__defaults__",
    "__doc__",
    "__kwdefaults__",
    "__module__",
    "__name__",
    "__qualname__",
)
# Containers that keep what is in them in an attribute.
WRAPPED = (UserDict, UserList, ChainMap)


def children(holder: Any, names: ReadNames, kept: KeptResults | None = None) -> Iterator[Step]:
    """The steps from an object that isn't a module of Python's, a class or a set of globals.

    Args:
        holder: The object.
        names: Names that are read.
        kept: Results that functions gave which keep them; by default they may give any.
    """
    if isinstance(holder, torch.jit.ScriptModule):
        yield from _of_scripted(holder)
    elif isinstance(holder, torch.nn.Module):
        yield from _of_module(holder, names)
    elif isinstance(holder, torch.Tensor):
        named = not names.reads_own(holder)
        yield from entries(attributes_of(holder), "{parent}.__dict__", named=named)
    elif isinstance(holder, types.FunctionType):
        yield from _of_function(holder)
    elif isinstance(holder, types.MethodType):
        yield Step("{parent}.__self__", "", holder.__self__)
        yield Step("{parent}.__func__", "", holder.__func__)
    elif isinstance(holder, functools.partial):
        yield Step("{parent}.func", "", holder.func)
        yield Step("{parent}.args", "", holder.args)
        yield Step("{parent}.keywords", "", holder.keywords)
        yield from entries(dictionary_of(holder) or {}, "{parent}.__dict__", named=True)
    elif isinstance(holder, weakref.ref):
        yield Step("{parent}()", "", holder())
    elif isinstance(holder, contextvars.ContextVar):
        yield Step("{0}({parent})", "", in_context(holder), (in_context,))
    elif is_compiled(holder):
        # Not its cache.
        own = dictionary_of(holder) or {}
        parts = {name: own[name] for name in ("function", "module") if name in own}
        yield from entries(parts, "{parent}.__dict__")
    elif isinstance(holder, CONTAINERS):
        yield from _of_container(holder)
    elif isinstance(holder, VIEWS):
        yield Step("{parent}.mapping", "", holder.mapping)
    elif (held := held_by(holder)) is not None:
        yield Step(f"{{parent}}.{held[0]}", "", held[1])
        if type(holder) in METHODS:
            yield Step("{parent}.__name__", "", holder.__name__)
    else:
        for kind, attributes in WRAPPERS:
            if isinstance(holder, kind):
                yield from (Step(f"{{parent}}.{n}", "", getattr(holder, n)) for n in attributes)
        if isinstance(holder, functools._lru_cache_wrapper):
            yield from _of_kept(holder, kept)
        own = dictionary_of(holder) or {}
        if is_steps_own(holder) and not names.reads_states:
            # A step finds its state by itself (see optimizer_step).
            own = {name: value for name, value in own.items() if name != "state"}
        if isinstance(holder, WRAPPED):
            # Python's library reads it on the user's behalf.
            inner = {name: own[name] for name in ("data", "maps") if name in own}
            yield from entries(inner, "{parent}.__dict__")
            own = {name: value for name, value in own.items() if name not in inner}
        named = not ((names.sees_all and isinstance(holder, BY_ALL)) or names.reads_own(holder))
        inherited = names_inherited(type(holder))
        for step in (*entries(own, "{parent}.__dict__", named=named), *_of_slots(holder)):
            yield step if named and step.name not in inherited else step._replace(name="")
        for name, value in slots_inherited(holder):
            yield Step(f"{{parent}}.{name}", "", value)


def _of_kept(holder: Any, kept: KeptResults | None) -> Iterator[Step]:
    """The steps to results that a function keeps."""
    if kept is None:
        see(holder)
        found = [(each, Finder(each)) for each in results_of(holder)[-MOST:]]
    else:
        found = [*kept.given(holder)]
    for each, finder in found:
        yield Step(f"{{0}}({{parent}}, {quoted(each.label)})", "", each.value, (finder,))


def is_compiled(holder: Any) -> bool:
    """Whether an object is a compiled function or a part of one."""
    return module_of(type(holder)).startswith("funcaot.aot.")


def is_exact(holder: Any) -> bool:
    """Whether a container is of Python's own type, so that nothing is hidden in it."""
    return type(holder) in _EXACT


def base_of(container: Any) -> Any:
    """The type of Python's that a container is, whose methods a subclass may have replaced."""
    if isinstance(container, OrderedDict):  # It has an order of its own.
        return OrderedDict
    return next(kind for kind in CONTAINERS if isinstance(container, kind))


def length(container: Any) -> int:
    """How many items a container has, whatever its class says."""
    return base_of(container).__len__(container)


def items_of(container: Any) -> list[Any]:
    """The items of a sequence or set, or the keys of a dictionary."""
    if is_exact(container):
        return [*container]
    return [*base_of(container).__iter__(container)]


def entries(mapping: Any, access: str, *, named: bool = False) -> Iterator[Step]:
    """The steps from a dictionary, reached by ``access``, to what is in it."""
    for index, key in enumerate(items_of(mapping)):
        value = mapping[key] if is_exact(mapping) else base_of(mapping).__getitem__(mapping, key)
        name = key if named and isinstance(key, str) else ""
        if type(key) in (str, int, bool):
            yield Step(f"{access}[{quoted(key)}]", name, value)
        elif is_immutable(key):
            yield Step(f"{access}[{{0}}]", name, value, (key,))
        elif isinstance(key, torch.Tensor) or (reference := weakly(key)) is None:
            # Of a tensor code may ask which it is; a tuple, a fraction is what it holds.
            yield Step(f"[*{access}][{index}]", "", key)
            yield Step(f"[*{access}.values()][{index}]", name, value)
        else:
            yield Step("{0}()", "", key, (reference,))
            yield Step(f"{access}[{{0}}()]", name, value, (reference,))


def quoted(key: Any) -> str:
    """A key as source text that ``str.format`` leaves as it is."""
    return repr(key).replace("{", "{{").replace("}", "}}")


def beside_items(container: Any) -> Iterator[Step]:
    """The steps to what a container keeps beside its items, and what decides what it does."""
    if isinstance(container, defaultdict):
        yield Step("{parent}.default_factory", "", container.default_factory)
    elif isinstance(container, deque):
        # In a tuple it isn't taken for a number that may be left open.
        yield Step("({parent}.maxlen,)", "", (container.maxlen,))


def _of_container(holder: Any) -> Iterator[Step]:
    yield from beside_items(holder)
    if isinstance(holder, DICTIONARIES):
        yield from entries(holder, "{parent}")
    elif isinstance(holder, SETS):
        for item in items_of(holder):
            reference = item if isinstance(item, weakref.ref) else weakly(item)
            if reference is not None:
                yield Step("{0}()", "", reference(), (reference,))
            elif not is_immutable(item):
                yield Step("{0}", "", item, (item,))
    elif is_exact(holder):
        yield from (Step(f"{{parent}}[{i}]", "", item) for i, item in enumerate(holder))
    else:
        base = base_of(holder)
        for index, item in enumerate(base.__iter__(holder)):
            yield Step(f"{{0}}({{parent}}, {index})", "", item, (base.__getitem__,))
    if not is_exact(holder):
        yield from entries(dictionary_of(holder) or {}, "{parent}.__dict__", named=True)
        yield from _of_slots(holder)


def _of_module(module: torch.nn.Module, names: ReadNames) -> Iterator[Step]:
    own = vars(module)
    for name in (*MODULE_DICTIONARIES, *MODULE_HOOKS):
        yield from entries(own.get(name, {}), f"{{parent}}.{name}")
    for name, value in list(own.items()):
        private = name.startswith("_") and not names.uses(name) and not _is_users(value)
        told = name == _TOLD and names.uses(name)
        if told or (name not in MODULE_OWN and not private):
            step = in_module(name, value)
            yield step._replace(name="") if names.reads_own(module) else step
    yield from _of_slots(module)


# Which buffers state_dict() has is told by a set that torch alone reads, and only there.
_TOLD = "_non_persistent_buffers_set"
_BUILTINS = "__builtins__"


def left_out(module: torch.nn.Module, names: ReadNames) -> list[str]:
    """Private attributes of a module that aren't looked into unless code has their name in it."""
    return [
        name
        for name, value in list(vars(module).items())
        if name.startswith("_")
        and not names.uses(name)
        and (name == _TOLD or not (name in MODULE_OWN or _is_users(value)))
    ]


def in_module(name: str, value: Any) -> Step:
    """The step from a module to one of its attributes."""
    return Step(f"{{parent}}.__dict__[{quoted(name)}]", name, value)


def _of_scripted(module: Any) -> Iterator[Step]:
    """The steps to what a scripted module holds; these dictionaries look into TorchScript's own."""
    for name in MODULE_DICTIONARIES:
        for key, value in getattr(module, name).items():
            yield Step(f"{{parent}}.{name}[{quoted(key)}]", "", value)
    yield Step("{parent}.training", "", module.training)


def _is_users(value: Any) -> bool:
    """Whether a private attribute is looked into anyway: not somebody's trainer or logger."""
    kinds = (torch.nn.Module, torch.Tensor, types.FunctionType, *CONTAINERS)
    return isinstance(value, kinds) or is_setting(value)


def of_closure(function: types.FunctionType) -> Iterator[Step]:
    """The steps to what a function closes over."""
    for index, cell in enumerate(function.__closure__ or ()):
        try:
            name = function.__code__.co_freevars[index]
            yield Step(f"{{parent}}.__closure__[{index}].cell_contents", name, cell.cell_contents)
        except ValueError:  # a cell that isn't filled yet
            continue


def _of_function(function: types.FunctionType) -> Iterator[Step]:
    yield from of_closure(function)
    yield from of_defaults(function)
    yield from of_attributes(function)


def of_defaults(function: types.FunctionType) -> Iterator[Step]:
    """The steps to the defaults of a function's arguments."""
    for index, value in enumerate(function.__defaults__ or ()):
        yield Step(f"{{parent}}.__defaults__[{index}]", "", value)
    yield from entries(function.__kwdefaults__ or {}, "{parent}.__kwdefaults__")


def of_attributes(function: types.FunctionType) -> Iterator[Step]:
    """The steps to what was put on a function."""
    yield from entries(vars(function), "{parent}.__dict__", named=True)


def of_its_own(function: types.FunctionType) -> Iterator[Step]:
    """The steps to what Python itself keeps on a function, for code that reads it by name."""
    for name in _OF_FUNCTIONS:
        yield Step(f"{{parent}}.{name}", name, getattr(function, name))


def names_in(getter: Any) -> set[str]:
    """The attributes that an ``operator.attrgetter`` or ``methodcaller`` gets."""
    if not isinstance(getter, operator.attrgetter | operator.methodcaller):
        return set()
    texts = getter.__reduce__()[1]
    return {part for text in texts if isinstance(text, str) for part in text.split(".")}


def has_tensors_as_keys(things: Iterable[Any]) -> bool:
    """Whether some dictionary among things knows tensors by which one they are."""
    tables = [thing for thing in things if isinstance(thing, DICTIONARIES)]
    return any(isinstance(key, torch.Tensor) for table in tables for key in items_of(table))


def reads_unseen(environment: Any) -> bool:
    """Whether code may get attributes by a function that it knows by another name.

    All globals lead to Python's builtins, where only code that names them looks for one.
    """
    names = environment.names
    asked = names.users_mention(_BUILTINS) or _BUILTINS in names.asked_for
    passed = None if asked else id(vars(builtins))
    return any(
        place.parent != passed and is_unseen(place.name, thing) and environment.is_read(place)
        for place, thing in environment.identities
    ) or any(map(gets_any, environment.objects.values()))


def users_classes(holder: Any) -> Iterator[tuple[int, type]]:
    """The classes of an object that a user wrote, with their positions in the order of lookup."""
    if isinstance(holder, types.FunctionType | types.ModuleType):
        return
    yield from classes_of(type(holder))


def classes_of(kind: type) -> Iterator[tuple[int, type]]:
    """The classes among a class and its bases that a user wrote, with their positions."""
    for index, base in enumerate(kind.__mro__):
        if is_users(base):
            yield index, base


def slots_of(holder: Any) -> list[str]:
    """The names of an object's slots."""
    if isinstance(holder, types.FunctionType | types.ModuleType):
        return []
    return [
        name
        for kind in type(holder).__mro__
        if is_plain_object(kind)
        for name, member in vars(kind).items()
        if isinstance(member, types.MemberDescriptorType)
    ]


def _of_slots(holder: Any) -> Iterator[Step]:
    for name in slots_of(holder):
        for value in in_slot(holder, name):
            if keyword.iskeyword(name):
                yield Step(f"{{0}}({{parent}}, {name!r})", name, value, (getattr,))
            else:
                yield Step(f"{{parent}}.{name}", name, value)


def leads_on(value: Any) -> bool:
    """Whether an object that isn't a class or a module of Python's may lead to something."""
    if isinstance(value, torch.Tensor | torch.nn.Module | functools.partial | types.MethodType):
        return True
    if isinstance(value, (*CONTAINERS, *VIEWS)) or held_by(value) is not None:
        return True
    if (kind := type(value)) is types.FunctionType:
        return not (is_torchs(value) or runs_threads(module_of(value)))
    home = module_of(kind)
    if home == _OPERATORS or runs_threads(home) or is_of_logging(home):
        return False
    if isinstance(
        value, weakref.ref | property | staticmethod | classmethod | contextvars.ContextVar
    ):
        return True
    if callable(getattr(kind, "__torch_function__", None)) and not is_users(kind):
        return False
    return dictionary_of(value) is not None or bool(slots_of(value))


def globals_of(code: types.CodeType) -> set[str]:
    """The globals that code names."""
    names = names_of(code)
    found = {*names.loaded, *names.stored}
    if "globals" in names.used:
        found |= names.used
    # What isn't an identifier was put there by a rewriter of assert statements.
    return {name for name in found if name.isidentifier()}


def texts_in(code: types.CodeType) -> set[str]:
    """The texts that are written in code."""
    return {each for each in code.co_consts if type(each) is str}


def named_with(namespace: dict[str, Any], parts: Iterable[str]) -> list[str]:
    """The names in a set of globals that have one of some texts in them."""
    found = [name for name in [*namespace] if any(part in name for part in parts)]
    return sorted(name for name in found if not is_added(namespace, name))
