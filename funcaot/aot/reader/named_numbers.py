"""Open numbers as another process finds them: ``reader`` names them, ``saved`` writes the names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.where import Key, key_of
from funcaot.aot.state.open_settings import Number, OpenSettings, numbers_at
from funcaot.aot.state.state_tracker import StateTracker

# Where the holder of a number is, how the number is got from it, and its place in a tuple.
NumberKey: TypeAlias = tuple[Key, str, bool, Any, int | None]
Settings: TypeAlias = Sequence[tuple[Place, Any]]


@dataclass(frozen=True)
class NamedNumbers:
    """The numbers that a program reads and leaves open, with what it computes of them.

    Attributes:
        opened: Where each is; None for one that no code that ran reads.
        fixed: Those that the program is right for one value of.
        steps: Python expressions by the name of what they compute.
        answers: Conditions in Python, each with what came out.
        computed: Names of numbers that a call stores.
        lifted: Names of numbers that are among the closed-over tensors, by position.
        reads: Whether the function reads floats off tensors, which stay in its graph.
        untold: Whether text doesn't tell the place of one of them from another's.
    """

    opened: tuple[NumberKey | None, ...] = ()
    fixed: frozenset[int] = frozenset()
    steps: dict[str, str] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    lifted: dict[int, str] = field(default_factory=dict)
    reads: bool = False
    untold: bool = False

    def put_into(self, numbers: OpenSettings, environment: Environment, settings: Settings) -> None:
        """Have the numbers of this process be open, as they were where they were named.

        Raises:
            LookupError: If one isn't where it was.
        """
        found = dict(_named(environment, settings))
        for index, key in enumerate(self.opened):
            if key is None:
                numbers.opened.append(_unread(index))
                numbers.unread.add(index)
                continue
            number = found.get(key)
            if number is None:
                raise LookupError("a number that it reads isn't where it was")
            numbers.opened.append(number)
        numbers.log.fixed |= self.fixed
        numbers.log.steps.update(self.steps)
        numbers.log.answers.update(self.answers)

    def tensors(self, numbers: OpenSettings) -> dict[int, torch.Tensor]:
        """What stands for the numbers among the closed-over tensors, by position."""
        return {at: numbers.log.tensor_of(name, 0.0) for at, name in self.lifted.items()}


def named_numbers(
    tracker: StateTracker,
    environment: Environment,
    settings: Settings,
    tensors: Sequence[torch.Tensor],
) -> NamedNumbers:
    """Name the open numbers of a program, before the reader is written.

    Args:
        tracker: What is left open, and what a call stores.
        environment: What the code that ran has read.
        settings: Settings among which the numbers are.
        tensors: Closed-over tensors.
    """
    numbers = tracker.open
    reads = numbers.reads.is_used
    if not (numbers.opened or numbers.log.is_used):
        return NamedNumbers(reads=reads)
    places = {number.name: number.place for number in numbers.opened}
    keys: dict[Any, NumberKey] = {}
    for key, number in _named(environment, settings):
        # A list may be at two places; the reader names it by the place of the number.
        if number is not None and (
            number.name not in keys or number.place == places.get(number.name)
        ):
            keys[number.name] = key
    made = numbers.log.tensors
    read = {number.name for _, number in _numbers(environment, settings)}
    numbers.unread = {i for i, n in enumerate(numbers.opened) if n.name not in read}
    return NamedNumbers(
        tuple(keys.get(number.name) for number in numbers.opened),
        frozenset(numbers.log.fixed),
        dict(numbers.log.steps),
        dict(numbers.log.answers),
        tracker.computed,
        {at: made[id(each)][1] for at, each in enumerate(tensors) if id(each) in made},
        reads,
        any(n.name in read and n.name not in keys for n in numbers.opened),
    )


def _named(
    environment: Environment, settings: Settings
) -> Iterator[tuple[NumberKey, Number | None]]:
    """Numbers among settings, by where they are; None where text doesn't tell two apart."""
    known: dict[NumberKey, Number | None] = {}
    for place, number in _numbers(environment, settings):
        if place.constants and not all(type(each) in (str, int) for each in place.constants):
            continue
        key = _key(environment, number)
        other = known.get(key, number)
        known[key] = number if other is not None and other.name == number.name else None
    yield from known.items()


def _numbers(environment: Environment, settings: Settings) -> Iterator[tuple[Place, Number]]:
    """Numbers among settings, each with the setting's place."""
    for place, value in settings:
        if place.parent in environment.objects:
            for number in numbers_at(environment, place, value):
                yield place, number


def _key(environment: Environment, number: Number) -> NumberKey:
    place = number.place
    access = place.access
    for index, constant in enumerate(place.constants):
        access = access.replace(f"{{{index}}}", repr(constant))
    key = number.key if number.inside else None
    within = None if number.row is None else number.index
    return key_of(environment, place.parent), access, number.inside, key, within


def _unread(index: int) -> Number:
    """What stands for a number that no code that ran reads: its name is still taken."""
    return Number(Place(0, "", "", ()), False, None, index, 0.0, object())
