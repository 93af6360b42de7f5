"""Writes how a reader compares what a function both reads and changes; ``reader`` calls it."""

from __future__ import annotations

from funcaot.aot.closure.constants import is_setting
from funcaot.aot.reader.reader_source import EnvironmentWriter
from funcaot.aot.state.state import MISSING, Bag, name_of
from funcaot.aot.state.state_effects import Change


def write_changed(writer: EnvironmentWriter, bag: Bag, change: Change) -> None:
    """Write that what the function changes, and also reads, is what it was at the capture.

    Args:
        writer: The writer, which has written the other checks.
        bag: A dictionary, cell, list, deque or set that it changes.
        change: What it changes there.
    """
    if bag.holder not in writer.environment.objects:
        return  # no code that ran reads it
    if not isinstance(bag.before, dict):
        writer.variable(bag.holder)
        return
    thing = writer.thing(bag)
    path = writer.says(bag.holder)
    if not isinstance(bag.thing, dict):
        # The rest is read as tensors, or isn't read.
        for key, _ in change.assigned:
            old = bag.before.get(key, MISSING)
            if is_setting(old) and key not in change.left_open:
                at = f"__dict__[{key!r}]" if isinstance(bag.thing, type) else key
                name = name_of(bag, key, writer.environment)
                writer.require_setting(f"{thing}.{at}", old, f"{path}.{name}")
        return
    if not bag.named:
        known = writer.source.constant([*bag.before], "keys")
        writer.require(f"[*{thing}] == {known}", f"the keys of {path}")
    first = writer.environment.set_first(writer.environment.objects[bag.holder])
    for key, _ in change.assigned:
        if key in change.left_open or (bag.named and key in first):
            continue
        text = writer.source.constant(key)
        old = bag.before.get(key, MISSING)
        says = f"{path}.{key}" if bag.named else f"{path}[{key!r}]"
        if old is MISSING:
            writer.require(f"{text} not in {thing}", f"{says} isn't there")
        elif is_setting(old):
            writer.require_setting(f"{thing}[{text}]", old, says)
        else:
            writer.require(f"{text} in {thing}", f"{says} is there")


def write_counted(writer: EnvironmentWriter, bag: Bag, change: Change) -> None:
    """Write that there are whole numbers of its own where the function counts.

    An object whose class alone has such a number gets one of its own by counting.

    Args:
        writer: The writer, which has written the other checks.
        bag: A dictionary, cell, class or list that it counts in.
        change: What it counts there.
    """
    if bag.holder not in writer.environment.objects:
        return  # a call finds it only when it stores there
    at, path = writer.thing(bag), writer.says(bag.holder)
    for key, _ in change.counted:
        text = writer.source.constant(key)
        name = f".{name_of(bag, key, writer.environment)}" if bag.named else f"[{key!r}]"
        if isinstance(bag.thing, list):
            found, value = f"{text} < len({at})", f"{at}[{text}]"
        elif isinstance(bag.thing, dict):
            found, value = f"{text} in {at}", f"{at}[{text}]"
        else:
            found, value = f"hasattr({at}, {text})", f"{at}.{key}"
        writer.require(f"{found} and type({value}) is int", f"{path}{name} is a whole number")


def write_kind(writer: EnvironmentWriter, bag: Bag) -> None:
    """Write that what the function only adds to is still there, and of the class that it was.

    Args:
        writer: The writer, which has written the other checks.
        bag: A list, dictionary, deque or set that it changes and doesn't read.
    """
    if bag.holder not in writer.environment.objects:
        return  # a call finds it only when it stores there
    kind, path = writer.source.constant(type(bag.thing), "T"), writer.says(bag.holder)
    name = type(bag.thing).__name__
    at = writer.thing(bag)
    change = f"told_thing({path!r}, {name!r}, {at})"
    writer.require(f"type({at}) is {kind}", f"{path} is a {name}", change)
