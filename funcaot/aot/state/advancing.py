"""State outside of tensors that moves on when it is read: Python's and NumPy's random numbers.

A capture would keep what it drew for ever; the tracker of state asks, and the call is refused. A
capture that ends with an error gives back what it drew, since the call may be made as it is.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Container, Iterator
from inspect import GEN_CREATED, getgeneratorstate
from types import BuiltinMethodType, GeneratorType, ModuleType
from typing import Any

from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.look import module_of
from funcaot.aot.closure.outside.remembering import numpy_state, same_state
from funcaot.errors import UnsupportedError


class Draws:
    """The states of generators of random numbers from before a function ran."""

    def __init__(self, environment: Environment) -> None:
        """Look at Python's own, NumPy's own, and those that the function can reach."""
        self._environment = environment
        self._objects = self._identities = 0
        self._before: dict[int, tuple[Any, Any]] = {}
        self._counters: dict[int, tuple[Any, str]] = {}
        # With their frames, which Python makes when they are asked for.
        self._generators: list[tuple[Any, Any]] = []
        self._python = random.getstate()
        self._numpy = numpy_state()
        self.update()

    def update(self) -> None:
        """Look at those that were reached since."""
        objects, identities = self._environment.objects, self._environment.identities
        things = [*itertools.islice(objects.values(), self._objects, None)]
        things += [thing for _, thing in identities[self._identities :]]
        things += [thing.__self__ for thing in things if isinstance(thing, BuiltinMethodType)]
        self._objects, self._identities = len(objects), len(identities)
        for thing in things:
            state = _state(thing)
            if state is not None:
                self._before.setdefault(id(thing), (thing, state))
            if type(thing) is itertools.count:
                self._counters.setdefault(id(thing), (thing, repr(thing)))
            if isinstance(thing, GeneratorType):
                self._generators.append((thing, thing.gi_frame))

    def resting(self, resumed: Container[int]) -> frozenset[int]:
        """Counters and generators, by ``id``, of which nothing was taken since they were reached.

        Code that may read one and didn't, such as that of a library that numbers its files.

        Args:
            resumed: Frames of generators that went on, by ``id``.
        """
        seen = self._counters.items()
        resting = {key for key, (thing, text) in seen if repr(thing) == text}
        resting |= {id(each) for each, frame in self._generators if id(frame) not in resumed}
        return frozenset(resting)

    def refuse_drawn(self, name: str) -> None:
        """Raise if one of them isn't where it was.

        Args:
            name: The user's function.

        Raises:
            UnsupportedError: If something was drawn.
        """
        before = self._before.values()
        drawn = [
            type(thing).__name__ for thing, state in before if not same_state(_state(thing), state)
        ]
        if random.getstate() != self._python:
            drawn.append("Python's random module")
        if self._numpy is not None and not same_state(numpy_state(), self._numpy):
            drawn.append("numpy.random")
        if drawn:
            raise UnsupportedError(
                f"{name} draws random numbers from {drawn[0]}, which would happen once, when it is "
                "captured, and not at every call.",
                remedy="draw with torch (torch.rand), or outside, and pass the number as a tensor.",
            )

    def put_back(self) -> None:
        """Have each draw again what it has drawn since."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        for thing, state in self._before.values():
            if isinstance(thing, random.Random):
                thing.setstate(state)
            else:
                _bits(thing).state = state


def refuse_iterators(
    environment: Environment, name: str, resting: Container[int] = frozenset()
) -> None:
    """Raise if a function reads an iterator that another call would find further on.

    Args:
        environment: What the code that ran can have read.
        name: The user's function.
        resting: Counters and generators, by ``id``, that the function didn't read.

    Raises:
        UnsupportedError: If it does.
    """
    for place, thing in environment.identities:
        if id(thing) in resting or _is_named_by_nobody(environment, place):
            continue
        if isinstance(thing, Iterator) and not _is_unstarted(thing):
            refused = UnsupportedError(
                f"{name} reads {place.name or 'an iterator'}, a {type(thing).__name__} that it "
                "doesn't make itself: what comes next would be taken once, when it is captured.",
                remedy="take the next value outside, and pass it as an argument.",
            )
            refused.repeatable = False
            raise refused


def _is_named_by_nobody(environment: Environment, place: Place) -> bool:
    """Whether a global isn't mentioned by the code that ran, but by some that may have."""
    holder = environment.objects.get(place.parent)
    is_global = place.parent in environment.namespaces or isinstance(holder, ModuleType)
    if not is_global or environment.ran is None or not place.name:
        return False
    return not any(
        place.name in code.co_names or place.name in code.co_consts
        for code in environment.ran.codes
    )


def _is_unstarted(thing: Any) -> bool:
    """Whether a generator wasn't read: a context manager that decorates functions keeps one."""
    return isinstance(thing, GeneratorType) and getgeneratorstate(thing) == GEN_CREATED


def _state(thing: Any) -> Any:
    """The state of a generator of random numbers; None for anything else."""
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return thing.getstate()
    bits = _bits(thing)
    return None if bits is None else bits.state


def _bits(thing: Any) -> Any:
    """What a generator of NumPy's draws from; None for anything else."""
    if not module_of(type(thing)).startswith("numpy.random"):
        return None
    return getattr(thing, "bit_generator", None) or getattr(thing, "_bit_generator", None)
