"""Assignments that change nothing at the first call: ``test_assigned`` makes each life twice.

A case is a target, a source and a value: the target holds what the source holds when the function
is captured, so that nothing shows the assignment; then one of them changes.
"""

from __future__ import annotations

import enum
import itertools
import random
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch

import funcaot

TARGETS = {
    "attribute": "w.t",
    "item": "w.d['t']",
    "list": "w.l[1]",
    "in another": "w.sub.t",
    "class": "W.ct",
    "global": "GT",
    "list in another": "w.sub.l[0]",
    "module": "w.mod.t",
    "slot": "w.slot.t",
    "setattr": "w.t",
    "updated": "w.d['t']",
    "vars": "w.t",
}
STORES = {
    "setattr": "setattr(w, 't', {source})",
    "updated": "w.d.update(t={source})",
    "vars": "vars(w)['t'] = {source}",
}
SOURCES = {
    "attribute": "w.s",
    "item": "w.d['s']",
    "list": "w.l[0]",
    "in another": "w.sub.s",
    "global": "GS",
    "class": "W.cs",
    "method": "w.get()",
    "property": "w.p",
}
# What is there at first, and what another one is.
VALUES = {
    "tensor": ("torch.ones(3)", "torch.rand(3)"),
    "int": ("3", "4"),
    "float": ("1.5", "2.5"),
    "str": ("'a'", "'b'"),
    "none": ("None", "C()"),
    "list": ("[1]", "[2]"),
    "dict": ("{'q': 1}", "{'q': 2}"),
    "object": ("C()", "C()"),
    "tuple": ("(1, 2)", "(3,)"),
    "tensors": ("(torch.ones(2),)", "(torch.rand(2),)"),
    "list of tensors": ("[torch.ones(2)]", "[torch.rand(2)]"),
    "function": ("(lambda: 0)", "(lambda: 1)"),
    "module": ("torch.nn.Linear(1, 1)", "torch.nn.Linear(1, 1)"),
    "dtype": ("torch.float32", "torch.float64"),
    "class": ("int", "float"),
    "member": ("E.A", "E.B"),
}
CHANGES = (
    "call call source call call target call",
    "call target call source call call",
    "call call target call target source call",
)
_TEXT = """
class C:
    def __init__(self):
        self.k = 0
class Slot:
    __slots__ = ("t", "s")
class W:
    ct = cs = None
    def get(self):
        return self.s
    @property
    def p(self):
        return self.s
w = W()
w.sub, w.mod, w.slot = C(), torch.nn.Module(), Slot()
w.d, w.l, w.sub.l = {{"s": None, "t": None}}, [None, None], [None]
w.s = w.t = w.sub.s = w.sub.t = w.mod.t = w.slot.t = GT = None
W.cs = w.s = w.d["s"] = w.l[0] = w.sub.s = GS = {old}
{target} = w.s
def f(x):
    global GT
    {store}
    return x + 1
def both():
    return {target}, {source}
def change_source():
    global GS
    {held} = {new}
def change_target():
    global GT
    {target} = {new}
"""


class E(enum.Enum):
    A = 1
    B = 2


@dataclass(frozen=True)
class Case:
    target: str
    source: str
    value: str

    def __str__(self) -> str:
        return f"{self.target}-{self.source}-{self.value}".replace(" ", "_")

    @property
    def text(self) -> str:
        """A module with the function ``f``, and what looks and changes."""
        target, source = TARGETS[self.target], SOURCES[self.source]
        store = STORES.get(self.target, f"{target} = {{source}}").format(source=source)
        old, new = VALUES[self.value]
        held = "w.s" if self.source in ("method", "property") else source
        return _TEXT.format(target=target, source=source, store=store, old=old, new=new, held=held)

    def life(self, changes: str, *, compiled: bool) -> tuple[list[Any], int]:
        """Whether the target holds what the source does after each call; how many programs."""
        module = types.ModuleType("assigned_case")
        module.__dict__.update(torch=torch, E=E)
        sys.modules[module.__name__] = module
        exec(self.text, module.__dict__)
        function = funcaot.compile(module.f, backend="eager") if compiled else module.f
        seen = []
        for step in changes.split():
            if step == "call":
                function(torch.ones(3))
                seen.append(_same(*module.both()))
            else:
                getattr(module, f"change_{step}")()
        return seen, funcaot.report(function).cache_misses if compiled else 0


def _same(one: Any, other: Any) -> bool:
    """Equal, for what can't change; else one object."""
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) in (int, float, str):
        return type(other) is type(one) and one == other
    return one is other


def cases() -> list[Case]:
    """All of them, in an order that mixes what they are made of."""
    found = [Case(*parts) for parts in itertools.product(TARGETS, SOURCES, VALUES)]
    found = [each for each in found if TARGETS[each.target] != SOURCES[each.source]]
    random.Random(0).shuffle(found)
    return found
