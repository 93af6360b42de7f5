"""Objects that a captured function makes, as leaves and a plan; the tracker of state calls it.

A call makes them again from its own tensors: one object for each that the function made, shared and
cyclic as they were, without running code of their classes.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from funcaot._torch.tensors.pytree import (
    NAMEDTUPLE,
    flattener_of,
    is_registered,
    too_deep,
)
from funcaot._torch.tensors.sizes.shapes import SYMBOLIC_NUMBERS
from funcaot._torch.tracing.seen_classes import meant_by
from funcaot.aot.closure.children import CONTAINERS, base_of, items_of
from funcaot.aot.closure.constants import is_scalar
from funcaot.aot.closure.contents import is_array
from funcaot.aot.closure.look import dictionary_of, in_slot
from funcaot.aot.closure.ran import is_plain_object
from funcaot.aot.state.results.new_objects import (
    OF_ONE_CALL,
    held_elsewhere,
    own_ways,
    recipe_of_library,
)
from funcaot.aot.state.results.plans import DICTIONARIES, ROWS, Making, Parts, Plan, Ref
from funcaot.aot.state.results.recipes import Recipe, is_escaped, recipe_of
from funcaot.errors import UnsupportedError

_HEAP = 1 << 9  # A class that a class statement made.
_PLAIN = (types.SimpleNamespace,)
_NEVER = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, BaseException)


Kept: TypeAlias = Callable[[Any], int | None]


@dataclass(frozen=True, eq=False)
class Known:
    """What a function's value is taken apart by.

    Attributes:
        is_old: Whether an object was there before, and is returned as it is.
        kept: The number of a container that was there before; None for any other object.
        made: Code of functions that the function makes.
        passed: Containers among the arguments, which may hold what the call puts there.
        held: New objects that something else holds too, by ``id``.
    """

    is_old: Callable[[Any], bool]
    kept: Kept
    made: Collection[types.CodeType] = ()
    passed: Sequence[Any] = ()
    held: Collection[int] = ()


def taken_apart(value: Any, known: Known, name: str) -> Any:
    """A function's value, as ``Parts`` if there is more to it than new containers of tensors.

    Args:
        value: What it returns and stores.
        known: What was there before, and what is new.
        name: The function, for messages.

    Raises:
        UnsupportedError: If an object with tensors in it can't be made again.
    """
    try:
        if not _Search(known).finds_object(value):
            return value
        walk = _Walk(known, name)
        root = walk.ref(value, "the result")
        if held := walk.held():
            walk = _Walk(replace(known, held=held), name)
            root = walk.ref(value, "the result")
        return Parts(walk.leaves, Plan(walk.finished(), root, walk.has_kept))
    except RecursionError:
        raise too_deep() from None


def base_of_object(value: Any) -> Any:
    """Python's class that an object of a class statement extends; None if it can't be made again.

    That is ``object``, or one of the containers.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind
    if isinstance(value, _NEVER) or not kind.__flags__ & _HEAP or isinstance(kind, enum.EnumMeta):
        return None
    if isinstance(value, CONTAINERS):
        base = base_of(value)
        if base is dict and isinstance(value, (OrderedDict, defaultdict)):
            base = OrderedDict if isinstance(value, OrderedDict) else defaultdict
        return base if base in (*DICTIONARIES, *ROWS, tuple) else None
    return object if _is_plain(kind) else None


def _is_plain(kind: type) -> bool:
    """Whether ``object.__new__`` makes objects of a class."""
    if kind.__new__ is object.__new__ and hasattr(kind, "__del__"):
        return True  # One is made only where it is needed.
    try:
        object.__new__(kind)
    except Exception:  # noqa: BLE001 - a TypeError, or an abstract class
        return False
    return True


def attributes_of(value: Any) -> dict[str, Any]:
    """What is in an object's own dictionary."""
    return dictionary_of(value) or {}


def slots_of(value: Any) -> list[tuple[str, Any]]:
    """What is in an object's slots."""
    names = [
        name
        for kind in type(value).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, types.MemberDescriptorType) and kind.__flags__ & _HEAP
    ]
    return [(name, held) for name in names for held in in_slot(value, name)]


class _Search:
    """Looks for what a pytree wouldn't give back as it was.

    That is a new object, a container that was there before, and one that is in two places.
    """

    def __init__(self, known: Known) -> None:
        self._is_old, self._kept, self._made_code = known.is_old, known.kept, known.made
        self._seen: dict[int, Any] = {}

    def finds_object(self, value: Any) -> bool:
        """Whether there is one in the containers that a value consists of."""
        if isinstance(value, torch.Tensor) or is_scalar(value):
            return is_escaped(value)
        if self._kept(value) is not None or meant_by(value) is not value:
            return True
        if id(value) in self._seen:
            return not isinstance(value, tuple)
        if is_registered(type(value)) or _is_container(value):
            self._seen[id(value)] = value
            return any(map(self.finds_object, _contents(value)))
        if self._is_old(value):
            return False
        if _is_copied(value) or recipe_of(value, self._made_code) is not None:
            return True
        return base_of_object(value) is not None or recipe_of_library(value) is not None

    def holds(self, value: Any) -> bool:
        """Whether there is a tensor in a value, or in what it consists of."""
        if isinstance(value, (torch.Tensor, *SYMBOLIC_NUMBERS)):
            return True
        if is_scalar(value) or id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        if is_registered(type(value)) or _is_container(value):
            keys = items_of(value) if isinstance(value, dict) else []
            return any(map(self.holds, (*keys, *_contents(value))))
        if base_of_object(value) is None or self._is_old(value):
            return False
        own = [*attributes_of(value).values(), *(held for _, held in slots_of(value))]
        if isinstance(value, CONTAINERS):
            own += _contents(value)
        return any(map(self.holds, own))


def _is_copied(value: Any) -> bool:
    """Whether a value can change, and has nothing in it but numbers and the like."""
    if type(value) is set:
        return all(map(is_scalar, value))
    if isinstance(value, memoryview) or not is_array(value):
        return False
    return not getattr(getattr(value, "dtype", None), "hasobject", False)


def _is_container(value: Any) -> bool:
    """Whether a value is a container of Python's own type, or a named tuple."""
    exact = type(value) in (*DICTIONARIES, *ROWS, tuple)
    return exact or (isinstance(value, tuple) and is_registered(NAMEDTUPLE) and _is_named(value))


def _is_named(value: tuple[Any, ...]) -> bool:
    kind = type(value)
    return kind.__bases__ == (tuple,) and isinstance(getattr(kind, "_fields", None), tuple)


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        base = base_of(value)
        return [base.__getitem__(value, key) for key in items_of(value)]
    if isinstance(value, CONTAINERS):
        return items_of(value)
    return [*flattener_of(type(value))(value)[0]]


class _Walk:
    """Takes a value apart."""

    def __init__(self, known: Known, name: str) -> None:
        self.leaves: list[Any] = []
        self.has_kept = False
        self._is_old, self._kept, self._made_code = known.is_old, known.kept, known.made
        self._passed, self._held = known.passed, known.held
        self._without_tensors: list[Any] = []
        self._name = name
        self._makings: list[Making | None] = []
        self._known: dict[int, Ref] = {}
        self._alive: list[Any] = []
        self._weak: list[tuple[weakref.ref[Any], str]] = []

    def finished(self) -> tuple[Making, ...]:
        """All that is to be made."""
        return tuple(making for making in self._makings if making is not None)

    def ref(self, value: Any, path: str) -> Ref:
        """What is at a place."""
        if is_scalar(value) or meant_by(value) is not value:
            return Ref("constant", meant_by(value))
        known = self._known.get(id(value))
        if known is not None:
            return known
        self._alive.append(value)
        known = self._known[id(value)] = self._new(value, path)
        return known

    def _new(self, value: Any, path: str) -> Ref:
        if isinstance(value, (torch.Tensor, *SYMBOLIC_NUMBERS)) and not is_escaped(value):
            self.leaves.append(value)
            return Ref("leaf", len(self.leaves) - 1)
        kept = self._kept(value)
        if kept is not None:
            self.has_kept = True
            return Ref("kept", kept)
        is_container = _is_container(value) or is_registered(type(value))
        if not is_container and self._is_old(value):
            return Ref("constant", value)
        if _is_copied(value):
            return Ref("copied", value)
        if (recipe := self._recipe(value)) is not None:
            return self._add(value, lambda: self._by_recipe(value, recipe, path))
        if isinstance(value, weakref.ref) and value() is not None:
            target = value()
            made = not self._is_old(target) and base_of_object(target) is not None
            return Ref("weak", self.ref(target, path)) if made else Ref("constant", value)
        base = base_of_object(value)
        if not is_container and not (base is not None and _holds_tensor(value)):
            return self._plain(value, base, path)
        return self._add(value, lambda: self._making(value, base, path))

    def _plain(self, value: Any, base: Any, path: str) -> Ref:
        """A new object without tensors, or one that can't be made again."""
        by_itself = base is None or (own_ways(type(value)) and not is_plain_object(type(value)))
        recipe = recipe_of_library(value) if by_itself else None
        stays = id(value) in self._held or isinstance(value, OF_ONE_CALL)
        if stays or (by_itself and recipe is None):
            # What hides a tensor is refused where outputs are looked at.
            self.leaves.append(value)
            return Ref("leaf", len(self.leaves) - 1)
        self._without_tensors.append(value)
        if recipe is not None:
            return self._add(value, lambda: self._by_recipe(value, recipe, path))
        return self._add(value, lambda: self._making(value, base, path))

    def held(self) -> frozenset[int]:
        """Which new objects without tensors something holds besides the value, by ``id``."""
        walked = [self._alive, self.leaves, self._passed, *self._passed, *self._alive]
        return held_elsewhere(self._without_tensors, walked)

    def _add(self, value: Any, making: Callable[[], Making]) -> Ref:
        position = len(self._makings)
        self._makings.append(None)
        self._known[id(value)] = Ref("made", position)
        self._makings[position] = making()
        return Ref("made", position)

    def _recipe(self, value: Any) -> Recipe | None:
        if type(value) is not types.CellType:
            return recipe_of(value, self._made_code)
        try:
            return Recipe((value.cell_contents,), types.CellType)
        except ValueError:
            return Recipe((), types.CellType)

    def _by_recipe(self, value: Any, recipe: Recipe, path: str) -> Making:
        items = tuple(self.ref(item, path) for item in (*recipe.items, *recipe.contents))
        return Making(type(value), Recipe, items, (recipe.make, len(recipe.items), recipe.fill))

    def _making(self, value: Any, base: Any, path: str) -> Making:
        kind = type(value)
        if isinstance(value, DICTIONARIES) and not is_registered_object(kind):
            keys = tuple(items_of(value))
            if any(isinstance(key, torch.Tensor) for key in keys):
                raise self._refused(path, "a tensor is a key of it")
            found = zip(keys, _contents(value), strict=True)
            items = tuple(self.ref(item, f"{path}[{key!r}]") for key, item in found)
            factory = value.default_factory if isinstance(value, defaultdict) else None
            return Making(kind, base or kind, items, (keys, factory), *self._own(value, path))
        if isinstance(value, (*ROWS, tuple)) and not is_registered_object(kind):
            items = tuple(
                self.ref(item, f"{path}[{index}]") for index, item in enumerate(items_of(value))
            )
            length = value.maxlen if isinstance(value, deque) else None
            named = isinstance(value, tuple) and kind is not tuple
            return Making(
                kind, tuple if named else base or kind, items, length, *self._own(value, path)
            )
        if is_registered(kind):
            children, context = flattener_of(kind)(value)
            items = tuple(self.ref(c, f"{path}[{i}]") for i, c in enumerate(children))
            return Making(kind, None, items, context)
        return Making(kind, base, (), (), *self._own(value, path))

    def _own(self, value: Any, path: str) -> tuple[Any, Any]:
        if type(value) in (*DICTIONARIES, *ROWS, tuple):
            return (), ()
        attributes = tuple(
            (key, self.ref(held, f"{path}.{key}")) for key, held in attributes_of(value).items()
        )
        slots = tuple((key, self.ref(held, f"{path}.{key}")) for key, held in slots_of(value))
        return attributes, slots

    def _refused(self, path: str, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self._name} returns or keeps an object with tensors in it that can't be made again: "
            f"at {path}, {why}.",
            remedy="return tensors, or tuples, lists and dictionaries of them.",
        )


def is_registered_object(kind: Any) -> bool:
    """Whether a class that isn't one of Python's containers is registered as a pytree."""
    return is_registered(kind) and kind not in (*DICTIONARIES, *ROWS, tuple, torch.Size)


def _holds_tensor(value: Any) -> bool:
    return _Search(Known(lambda thing: False, lambda thing: None)).holds(value)
