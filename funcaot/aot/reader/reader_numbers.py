"""Writes how a reader reads numbers that a program leaves open, and what it computes of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy
import torch

from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.where import text_of
from funcaot.aot.reader.reader_source import EnvironmentWriter
from funcaot.aot.state.open_settings import ITEM, Number, OpenSettings, numbers_at
from funcaot.base.numpy_kinds import name_of_kind

_NAME = re.compile(r"\b(?:setting|number|argument)_\d+\b")
_ALONE = re.compile(r"(?<!\w)\(([\w.]+)\)")
_ARGUMENT = "argument_"
_LONGEST = 100


def take_out(environment: Environment, numbers: OpenSettings) -> None:
    """Have the reader compare all settings but those that are left open.

    A container that holds such a number is compared item by item.

    Args:
        environment: What the code that ran has read; changed in place.
        numbers: What is left open.
    """
    left_open = {number.name for number in numbers.opened} - numbers.names_fixed()
    if not left_open:
        return
    kept = []
    for place, value in environment.settings:
        found = [n for n in numbers_at(environment, place, value) if n.name in left_open]
        if not found:
            kept.append((place, value))
            continue
        if found[0].inside:
            kept += _items(place, value, {number.key for number in found})
        kept += _others_in_rows(place, found)
    environment.settings = kept


def _items(place: Place, value: list | dict, left_out: set) -> list[tuple[Place, object]]:
    """The items of a container as settings of their own, without some."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    return [
        (Place(id(value), ITEM, place.name, (key,)), item)
        for key, item in items
        if key not in left_out
    ]


def _others_in_rows(place: Place, found: Sequence[Number]) -> list[tuple[Place, object]]:
    """What is compared of tuples some of whose numbers are left open."""
    rows = {id(number.row): number for number in found if number.row is not None}
    kept = []
    for number in rows.values():
        left_out = {other.index for other in found if other.row is number.row}
        for index, value in enumerate(number.row or ()):
            if index in left_out:
                continue
            if number.inside:
                key, access = (number.key,), f"{{parent}}[{{0}}][{index}]"
                kept.append((Place(id(number.thing), access, place.name, key), value))
            else:
                kept.append((replace(place, access=f"{place.access}[{index}]"), value))
    return kept


def arguments_needed(numbers: OpenSettings, names: Iterable[str]) -> list[int]:
    """Positions of the arguments of which a reader computes something or asks.

    Args:
        numbers: What is left open.
        names: What has to be computed besides what is asked about.
    """
    needed = _needed(numbers.log.steps, [*numbers.log.answers, *names])
    return sorted(int(name[len(_ARGUMENT) :]) for name in needed if name.startswith(_ARGUMENT))


def write_numbers(
    writer: EnvironmentWriter,
    numbers: OpenSettings,
    names: Sequence[str],
    positions: Sequence[int],
) -> None:
    """Write what reads the open numbers, what is computed of them and what has to be true.

    Args:
        writer: The reader being written.
        numbers: What is left open.
        names: What has to be computed besides what is asked about.
        positions: Leaves of the arguments that the reader is given.

    Raises:
        SizeError: If a number isn't among what the code that ran can have read.
    """
    log = numbers.log
    needed = _needed(log.steps, [*log.answers, *names])
    for position in arguments_needed(numbers, names):
        place = 1 + positions.index(position)
        writer.line(f"{_ARGUMENT}{position} = root[{place}]", "a number among the arguments")
    written: list[Number] = []
    readable = {name for name in needed if name.startswith("setting_")}
    for index, number in enumerate(numbers.opened):
        name = f"setting_{index}"
        if not (index in log.fixed or index in numbers.unread) or name in needed:
            _write_setting(writer, number, name, checked=name in needed)
            written.append(number)
    _require_one(writer, {id(number.thing) for number in written if number.inside})
    writer.source.namespace |= {"math": math, "numpy": numpy}
    for name, expression in log.steps.items():
        if name in needed:
            writer.line(f"{name} = {expression}", "a number that it computes")
    said = {f"setting_{i}": _said(writer, number) for i, number in enumerate(numbers.opened)}
    for condition, answer in log.answers.items():
        text = condition if answer else f"not ({condition})"
        says = _in_words(text, log.steps, said)
        asked = sorted(_needed(log.steps, [condition]) & said.keys() & readable)
        values = f"{{{', '.join(f'{said[name]!r}: {name}' for name in asked)}}}"
        change = f"told_answer({says!r}, {values})"
        writer.require(text, f"what it asks of numbers that it reads: {says}", change)


def _needed(steps: dict[str, str], texts: Iterable[str]) -> set[str]:
    """The names in some texts, with those that they are computed from."""
    found: set[str] = set()
    pending = [name for text in texts for name in _NAME.findall(text)]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _NAME.findall(steps.get(name, ""))
    return found


def _said(writer: EnvironmentWriter, number: Number) -> str:
    """A number as one would write it."""
    if number.place.parent not in writer.environment.objects:
        return "a number that it reads"
    item = f"[{number.key!r}]" if number.inside else ""
    index = f"[{number.index}]" if number.row is not None else ""
    return f"{text_of(writer.environment, number.place)}{item}{index}"


def _in_words(text: str, steps: dict[str, str], said: dict[str, str]) -> str:
    """What is asked of numbers, as one would write it of what they are computed from."""

    def word(found: re.Match[str]) -> str:
        name = found.group()
        step = steps.get(name)
        if step is None or len(step) > _LONGEST:
            return said.get(name, "a number")
        return f"({_NAME.sub(word, step)})"

    found = _ALONE.sub(r"\1", _NAME.sub(word, text))
    return found if len(found) <= _LONGEST else text


def _write_setting(writer: EnvironmentWriter, number: Number, name: str, *, checked: bool) -> None:
    if number.place.parent not in writer.environment.objects:
        if checked:
            raise SizeError("A number that is left open isn't found again.", remedy="pass it.")
        return
    says = text_of(writer.environment, number.place)
    if number.inside:
        container = number.thing
        read = writer.variable(id(container))
        kind = writer.source.constant(type(container), "T")
        writer.require(f"type({read}) is {kind}", f"{says} is a {type(container).__name__}")
        if type(container) is dict:
            known = writer.source.constant([*container], "keys")
            writer.require(f"[*{read}] == {known}", f"the keys of {says}")
        else:
            writer.require(f"len({read}) == {len(container)}", f"the length of {says}")
    else:
        read = writer.at(number.place)
    at = number.at(read)
    if number.row is not None:
        size = len(number.row)
        writer.require(f"type({at}) is tuple and len({at}) == {size}", f"the length of {says}")
        at = f"{at}[{number.index}]"
    writer.line(f"{name} = {at}", says)
    kind = type(number.value).__name__
    writer.require(
        f"type({name}) is {name_of_kind(type(number.value))}",
        f"{says} is some {kind}",
        f"told_value({_said(writer, number)!r}, {f'some {kind}'!r}, {name})",
    )


def _require_one(writer: EnvironmentWriter, containers: Iterable[int]) -> None:
    """Containers are at all places where they were: their numbers are read at the first one."""
    environment = writer.environment
    for identity in containers:
        for place in environment.places.get(identity, ())[1:]:
            if environment.is_read(place):
                says = f"{text_of(environment, place)} is {writer.says(identity)}"
                writer.require(f"{writer.at(place)} is {writer.variable(identity)}", says)


def tensor_of(writer: EnvironmentWriter, name: str) -> str:
    """The expression of the tensor that stands for a number in ops."""
    return f"{writer.source.constant(_tensor, 'tensor_of')}(float({name}))"


def _tensor(number: float) -> torch.Tensor:
    return torch.scalar_tensor(number, dtype=torch.float64, device="cpu")
