"""A small world of Python: code that reads a value, the place that holds it, and a change.

A world is source text that runs in a module of its own. So the same world is made twice, one for
eager and one for the compiled function, and its globals are real globals. A world is composed of
three parts, each from a table of its own:

- a reader (``readers``): which code reads the value when ``target(x)`` is called;
- a holder (``holders``): where the value is held, and how it is put there and removed;
- a kind of value (``values``): the value before and after the change, named ``first`` and
  ``second``, and what is computed of it.
"""

import itertools
import os
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass

import torch

_numbers = itertools.count()

IMPORTS = """
import abc, collections, contextvars, dataclasses, enum, functools, math, operator, os
import random, threading, types, weakref
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
"""


class Table(dict):
    """Parts by name, in families: ``families`` has the family of each name."""

    def __init__(self) -> None:
        super().__init__()
        self.families: dict[str, str] = {}
        self._family = ""

    def family(self, name: str) -> None:
        """Begin a family: what is added from here on belongs to it."""
        self._family = name

    def __setitem__(self, name: str, part: object) -> None:
        assert name not in self, name
        super().__setitem__(name, part)
        self.families[name] = self._family


@dataclass(frozen=True)
class Value:
    """Two values of a kind, and how code uses one.

    Attributes:
        source: Statements that define ``first`` and ``second``.
        use: An expression in ``{v}``, which reads the value, and ``{x}``, a tensor.
        mutate: A statement that changes the value at ``{place}`` in place, and one that undoes it.
        keeps_shape: Whether the result looks as ``x`` does, as a gradient has to.
        hashable: Whether it can be an element of a set.
    """

    source: str
    use: str = "{x} * {v}"
    mutate: tuple[str, str] | None = None
    keeps_shape: bool = True
    hashable: bool = True


@dataclass(frozen=True)
class Held:
    """Source text of a place that holds a value; ``{new}`` and ``{default}`` are filled in.

    Attributes:
        access: The expression that reads the value.
        before: Statements ahead of the reader.
        bases: A base class of the class whose method reads.
        body: Lines of that class's body.
        after: Statements behind the reader.
        parameter: A parameter of the code that reads.
        cell: Whether ``held`` is a variable of a function around the reader.
        rebind: A statement that puts ``{new}`` there.
        undo: A statement that puts ``first`` back; ``rebind`` does unless it is given.
        delete: A statement that removes it.
        tolerant: Expressions that are ``{default}`` where there is nothing.
        error: Whether ``access`` raises where there is nothing.
        swap: A statement that exchanges two values in order, and is its own inverse.
        place: An expression for the value from outside; ``access`` unless it is given.
        programs: How many programs a change and its undoing make: one more where what is undone
            is another object, or where a call puts something there.
    """

    access: str
    before: str = ""
    bases: str = ""
    body: str = ""
    after: str = ""
    parameter: str = ""
    cell: bool = False
    rebind: str = ""
    undo: str = ""
    delete: str = ""
    tolerant: tuple[str, ...] = ()
    swap: str = ""
    error: bool = True
    place: str = ""
    programs: int = 2


@dataclass(frozen=True)
class Slots:
    """What a reader's source text takes: the holder's parts, and the expression that reads.

    Attributes:
        held: The holder's source text.
        access: The expression that reads the value.
        use: An expression in ``{v}`` and ``{x}``.
    """

    held: Held
    access: str
    use: str

    def result(self, x: str = "x", v: str = "") -> str:
        """The expression of a result, of ``x`` and what was read."""
        return self.use.replace("{x}", x).replace("{v}", v or self.access)

    @property
    def parameter(self) -> str:
        """The parameter after ``x``."""
        return f", {self.held.parameter}" if self.held.parameter else ""

    def owner(self, method: str, bases: str = "") -> str:
        """The class ``Owner``, with a method and what the holder puts into the class."""
        names = ", ".join(name for name in (self.held.bases, bases) if name)
        body = textwrap.indent(textwrap.dedent(f"{self.held.body}\n{method}"), "    ")
        return f"class Owner({names}):\n{body}\n"


@dataclass(frozen=True)
class Reader:
    """Code that reads a value.

    Attributes:
        source: Makes the source text that defines ``target``.
        function: An expression for the function object whose code reads.
        owner: What ``self`` is: ``"instance"``, ``owner`` of class ``Owner``; ``"class"``, where
            only the class can be reached from outside; ``""``, without ``self``.
        itself: The name of ``self``.
        main: Source text of a second module, which imports ``world``, the reader's.
        keeps_shape: Whether the result has to look as ``x`` does.
        parameters: Whether the code can have further parameters.
        backward: Whether the value is read when the backward runs.
    """

    source: Callable[[Slots], str]
    function: str = "target"
    owner: str = ""
    itself: str = "self"
    main: str = ""
    keeps_shape: bool = False
    parameters: bool = True
    backward: bool = False


@dataclass(frozen=True)
class Script:
    """A world's source text, and the statements that change it and change it back."""

    source: str
    change: str
    undo: str
    main: str = ""


class World:
    """A script that ran: its ``target`` can be called, and its place changed."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._names = []
        self.module = self._run(script.source)
        self.target = self.module.target if not script.main else self._run(script.main).target

    def _run(self, source: str) -> types.ModuleType:
        module = types.ModuleType(f"world_{next(_numbers)}")
        if self._names:
            module.world = self.module
        sys.modules[module.__name__] = module
        self._names.append(module.__name__)
        exec(compile(source, f"<{module.__name__}>", "exec"), vars(module))
        return module

    def change(self) -> None:
        """Change what the reader reads."""
        exec(self._script.change, vars(self.module))

    def undo(self) -> None:
        """Change it back."""
        exec(self._script.undo, vars(self.module))

    def close(self) -> None:
        """Leave the process as it was."""
        for name in self._names:
            sys.modules.pop(name, None)
        for name in (*self._names, "WORLD"):
            os.environ.pop(name, None)


@dataclass(frozen=True)
class Seen:
    """What a call shows: its result and the gradient of its argument, or the error's type."""

    result: object
    gradient: object = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Seen):
            return NotImplemented
        return _same(self.result, other.result) and _same(self.gradient, other.gradient)

    __hash__ = None


def _same(ours: object, theirs: object) -> bool:
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return (
            ours.dtype == theirs.dtype
            and ours.shape == theirs.shape
            and ours.device == theirs.device
            and ours.requires_grad == theirs.requires_grad
            and (ours.is_meta or torch.equal(ours.isnan(), theirs.isnan()))
            and (ours.is_meta or torch.equal(ours.nan_to_num(), theirs.nan_to_num()))
        )
    return type(ours) is type(theirs) and ours == theirs


def argument() -> torch.Tensor:
    """The argument of every call."""
    return torch.tensor([[0.5, -1.5, 2.0], [1.0, 0.25, -3.0]], requires_grad=True)


def forward(call: Callable) -> tuple[torch.Tensor, object]:
    """An argument, and what comes out of a call with it: a result, or an error's type."""
    x = argument()
    try:
        return x, call(x)
    except Errors as error:
        return x, type(error)


def finish(x: torch.Tensor, result: object) -> Seen:
    """What is seen of a call, with the gradient of its argument."""
    if not isinstance(result, torch.Tensor):
        return Seen(result)
    gradient = None
    if result.requires_grad:
        weights = torch.linspace(-1, 1.5, result.numel(), dtype=result.dtype).reshape(result.shape)
        try:
            (gradient,) = torch.autograd.grad(result, x, weights, allow_unused=True)
        except Errors as error:
            gradient = type(error)
    return Seen(result.detach().requires_grad_(result.requires_grad), gradient)


# What a world's code raises where a name, attribute or item is missing.
Errors = (NameError, AttributeError, LookupError, TypeError)


def run(world: World, call: Callable, *, between: bool = False) -> list[Seen]:
    """Call twice, change, call twice, change back, call.

    With ``between``, each change is made between the forward and the backward of a call.
    """
    seen = []
    for step in (None, None, world.change, None, world.undo, None):
        if step is not None and not between:
            step()
        x, result = forward(call)
        if step is not None and between:
            step()
        seen.append(finish(x, result))
    return seen


def differences(ours: list[Seen], theirs: list[Seen]) -> str:
    """Which calls differ, as text; empty if none does."""
    calls = ("first", "second", "changed", "changed again", "undone", "undone again")
    return "\n".join(
        f"{call}: eager {other}, compiled {mine}"
        for call, mine, other in zip(calls, ours, theirs, strict=True)
        if mine != other
    )
