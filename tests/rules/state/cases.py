"""Functions whose forward or backward reads or changes Python's state, by how they reach it.

``test_state_of_functions`` compares calls of compiled functions that call them with eager ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import funcaot
from tests.aot.state.lives.compared import Compared
from tests.aot.state.lives.modules import module_of

_TEXT = """
import torch
class World:
    def __init__(self):
        self.n = 1
        self.buf = torch.ones(3)
        self.last = None
        self.rows = []
        self.table = {{"k": 1, "t": torch.ones(3)}}
G = World()
OTHER = torch.ones(3)
def reach(): return G
class F(torch.autograd.Function):
    w = G
    @staticmethod
    def forward({ctx}a, w):
        {find}{keep_old}
        {forward}
        return y
    {setup}
    @staticmethod
    def backward(ctx, g):
        {find_again}
        {backward}
        return g, None
def f(x, w):
    {body}
    return x
"""
_SETUP = """@staticmethod
    def setup_context(ctx, inputs, output):
        w = inputs[1]
        {find}{keep}"""
FORWARDS = {
    "reads": "y = a * 2 if w.n % 2 else a * 3",
    "reads_beside_a_global": "y = a * OTHER if w.n % 2 else a + OTHER",
    "counts": "w.n += 1; y = a * w.n",
    "writes": "w.buf.mul_(0.5); y = a * w.buf",
    "replaces": "w.buf = w.buf * 0.5; y = a * w.buf",
    "stores": "y = a * 2; w.last = y.detach()",
    "appends": "w.rows.append(a.detach()); y = a * len(w.rows)",
    "counts_in_a_table": "y = a * w.table['k']; w.table['k'] += 1",
    "stores_in_a_table": "w.table['t'] = a.detach() * 2; y = a * 2",
    "computes_with_both": "y = a * w.n + w.buf",
    "doubles": "y = a * 2",
}
BACKWARDS = {
    "hands_on": "pass",
    "reads": "g = g * w.n",
    "counts": "w.n += 1",
    "stores": "w.last = g * 2",
    "appends": "w.rows.append(g * 2)",
    "writes": "w.buf.mul_(0.5)",
    "replaces": "w.buf = g * 2",
    "computes": "g = g * w.buf",
    "stores_in_a_table": "w.table['t'] = g * 2",
    "counts_in_a_table": "w.table['k'] += 1; g = g * w.table['k']",
    "counts_beside_a_global": "w.table['k'] += 1; g = g * OTHER; w.last = g * 2",
}
BODIES = {
    "once": "x = F.apply(x, {w})",
    "after_a_change": "w.n += 1; x = F.apply(x, {w})",
    "twice": "x = F.apply(F.apply(x, {w}), {w})",
    "before_a_change": "x = F.apply(x, {w}); w.n += 1; w.buf = w.buf + 1",
    "after_a_write": "w.buf.add_(x.detach()); x = F.apply(x, {w})",
    "after_others": "w.buf = w.buf * 2; w.table['k'] = 5; x = F.apply(x, {w}) + w.buf",
}
# What apply is given, how a rule finds the world, what it keeps, how backward finds it.
REACHES = {
    "given": ("w", "pass", "ctx.w = w", "w = ctx.w"),
    "global": ("None", "w = G", "", "w = G"),
    "called": ("None", "w = reach()", "", "w = reach()"),
    "on_ctx": ("None", "w = G", "ctx.w = w", "w = ctx.w"),
    "of_the_class": ("None", "w = F.w", "", "w = F.w"),
}


@dataclass(frozen=True)
class Case:
    """One Function and one function that calls it.

    Attributes:
        forward: What its forward does, by name.
        backward: What its backward does.
        body: What the function does.
        reach: How the rules reach the world.
        split: Whether there's a ``setup_context``.
    """

    forward: str
    backward: str
    body: str
    reach: str
    split: bool

    def module(self) -> dict[str, Any]:
        """The names of a new module with both, and a world."""
        given, find, keep, again = REACHES[self.reach]
        keep = f"; {keep}" if keep else ""
        text = _TEXT.format(
            ctx="" if self.split else "ctx, ",
            find=find,
            keep_old="" if self.split else keep,
            forward=FORWARDS[self.forward],
            setup=_SETUP.format(find=find, keep=keep) if self.split else "",
            find_again=again,
            backward=BACKWARDS[self.backward],
            body=BODIES[self.body].format(w=given),
        )
        return module_of(text)


def difference(case: Case, backend: str) -> str | None:
    """What differs from eager in one of three calls with their backwards; "refused" if it is."""
    eager, ours = case.module(), case.module()
    compiled = funcaot.compile(ours["f"], backend=backend)
    for call in range(3):
        outcomes = []
        for names, function in ((eager, eager["f"]), (ours, compiled)):
            x = torch.linspace(-1, 1, 3).requires_grad_()
            try:
                result = function(x, names["G"])
                (result * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
            except funcaot.errors.FuncaotError:
                return "refused"
            except RuntimeError as error:
                outcomes.append((None, None, None, str(error)))
            else:
                outcomes.append((result, x, names["G"], None))
        if outcomes[0][3] != outcomes[1][3]:
            return f"call {call}: {outcomes[0][3]} and {outcomes[1][3]}"
        compared = Compared()
        compared.add(outcomes[0][:3], outcomes[1][:3], "")
        if compared.differences:
            return f"call {call}: {compared.differences}"
        if outcomes[0][3] is not None:
            return None
    return None
