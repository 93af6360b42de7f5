"""Writes what a reader compares only where somebody touched it; ``reader_source`` calls it.

A dictionary has a version, which any change of it advances. A class that is given an attribute, or
loses one, is touched, and so is a library whose function somebody replaces.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

from funcaot._torch.tensors.guards import dict_version
from funcaot.aot.closure.libraries.kept_as import kept_as
from funcaot.aot.closure.look import bases_with, is_in_any, special_names
from funcaot.aot.reader.reader_code import Line, built

if TYPE_CHECKING:
    from funcaot.aot.closure.environment import Place
    from funcaot.aot.reader.reader_source import EnvironmentWriter

__all__ = ["TouchedClasses", "asks_classes", "unless_untouched", "without_classes", "write_kept_as"]

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_order_of = attrgetter("__mro__")


def write_kept_as(writer: EnvironmentWriter) -> None:
    """Somebody may replace what libraries call that ran for the user's code.

    Raises:
        LookupError: If a module that another process went through isn't in this one.
    """
    ran = writer.environment.ran
    for part in () if ran is None else kept_as(ran.called):
        known = writer.source.constant(part, "kept_as")
        own = writer.source.constant(part.own, "library")
        condition = unless_untouched(writer, own, part.own, f"{known}()")
        writer.require(condition, f"what {part.says} holds", f"{known}.changed()")


def unless_untouched(
    writer: EnvironmentWriter, name: str, value: dict[Any, Any], condition: str
) -> str:
    """A condition that is looked at only if a large dictionary was touched since."""
    if dict_version is None:
        return condition
    # The reference's id is checked by the version: no two dictionaries ever have the same.
    version = writer.source.constant([dict_version(value)], "seen")
    take = writer.source.constant(dict_version, "version")
    note = writer.source.constant(_note_version, "note")
    return (
        f"type({name}) is dict and ({take}({name}) == {version}[0] or "
        f"({condition}) and {note}({version}, {name}))"
    )


def _note_version(seen: list[int], dictionary: dict[Any, Any]) -> bool:
    """Note that a dictionary holds what it should, so that only its version is looked at."""
    if dict_version is not None:
        seen[0] = dict_version(dictionary)
    return True


def asks_classes(place: Place) -> bool:
    """Whether the value at a place is what lookup finds in the classes of its parent."""
    return place.constants[:1] in ((bases_with,), (is_in_any,), (special_names,))


def without_classes(
    namespace: dict[str, Any], lines: Sequence[Line], kinds: Sequence[type]
) -> tuple[dict[str, Any], Sequence[Line]]:
    """What a reader is made of that compares what is in classes only if one was touched.

    Args:
        namespace: What the lines name.
        lines: All that is compared.
        kinds: The classes that some of the lines are about.

    Returns:
        The same, with one line for all that are about classes.
    """
    if not kinds or dict_version is None:
        return namespace, lines
    touched = TouchedClasses(kinds, lambda: _whole(namespace, lines))
    others = [line for line in lines if not line.of_classes]
    others.append(Line("classes(root)", "what classes have"))
    # A copy, so that what reads isn't reachable from what it names.
    return {**namespace, "classes": touched}, others


def _whole(namespace: dict[str, Any], lines: Sequence[Line]) -> Callable[..., bool]:
    return built(namespace, lines, "holds(root)", ("True", lambda line: "False", "False"))


def _once(kinds: Iterable[type]) -> list[type]:
    """Each class once; a metaclass may say what is equal."""
    return [*{id(kind): kind for kind in kinds}.values()]


class TouchedClasses:
    """Says that classes have what they had, and looks only if one of them was touched."""

    def __init__(self, kinds: Iterable[type], whole: Callable[[], Callable[..., bool]]) -> None:
        """Note how the classes are now.

        Args:
            kinds: The classes in which something is looked up.
            whole: Makes what compares all, which few readers need.
        """
        asked = _once(kinds)
        self._asked = _once([*asked, *map(type, asked)])
        self._orders = [*map(_order_of, self._asked)]
        # Those of C can't be touched.
        self._dictionaries = [
            gc.get_referents(vars(base))[0]
            for base in _once(base for order in self._orders for base in order)
            if not base.__flags__ & _IMMUTABLE
        ]
        self._make, self._whole = whole, None
        self._seen = self._versions()

    def __call__(self, root: tuple[Any, ...]) -> bool:
        """Whether they have what they had, for a reader that goes out from here."""
        versions, orders = self._versions(), [*map(_order_of, self._asked)]
        if versions == self._seen and all(map(is_, orders, self._orders)):
            return True
        if self._whole is None:
            self._whole = self._make()
        if not self._whole(root):
            return False
        # Another order of lookup may find the same.
        self._seen, self._orders = versions, orders
        return True

    def _versions(self) -> list[int]:
        assert dict_version is not None
        return [*map(dict_version, self._dictionaries)]
