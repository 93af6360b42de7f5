"""What rules of ``custom_vjp`` write counts as in plain Python, called as they are and compiled.

A rule runs on copies of what holds a tensor that is differentiated; what it writes there is the
user's. The oracle says how often each rule runs: once for each call or backward.
"""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

WEIGHT = torch.ones(3, requires_grad=True)
COUNT, LAST = 0, None


def world(kind, where):
    """A function with a rule that counts in one kind of place, and what reads the count."""
    weight = torch.ones(3, requires_grad=True)
    items, table, count = [weight], {"w": weight}, 0

    class Holder:
        n, w = 0, None

    holder = Holder()
    holder.w = weight

    def touch(x):
        global COUNT, LAST
        nonlocal count
        if kind == "global":
            COUNT += 1
            return WEIGHT
        if kind == "stored":
            LAST = x.detach().clone()
        elif kind == "variable":
            count += 1
        elif kind == "list":
            items.append(len(items))
            return items[0]
        elif kind == "dictionary":
            table["n"] = table.get("n", 0) + 1
            return table["w"]
        elif kind == "object":
            holder.n += 1
            return holder.w
        else:
            touch.n = getattr(touch, "n", 0) + 1
        return weight

    @funcaot.custom_vjp
    def function(x):
        return x.sin()

    def fwd(x):
        return x.sin() * (touch(x)), x

    def bwd(x, g):
        return (g * x.cos() * (touch(x).detach() if where == "both" else 1.0),)

    function.defvjp(fwd, bwd)
    read = {
        "global": lambda: COUNT,
        "stored": lambda: 0 if LAST is None else int(LAST[0]),
        "variable": lambda: count,
        "list": lambda: len(items) - 1,
        "dictionary": lambda: table.get("n", 0),
        "object": lambda: holder.n,
        "attribute": lambda: getattr(touch, "n", 0),
    }
    return function, read[kind]


KINDS = ["global", "variable", "list", "dictionary", "object", "attribute", "stored"]
# Lists and dictionaries that hold a differentiated tensor are copies where bwd runs, see limits.
CASES = [(kind, "fwd") for kind in KINDS] + [
    (kind, "both") for kind in KINDS if kind not in ("list", "dictionary", "stored")
]


@pytest.mark.parametrize(
    "how", ["eager", "compiled", pytest.param("inside", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("kind", "where"), CASES)
def test_counts(kind, where, how):
    global COUNT, LAST
    COUNT, LAST = 0, None
    function, read = world(kind, where)
    called = function
    if how != "eager":
        called = function if how == "compiled" else lambda x: function(x) * 2
        called = funcaot.compile(called, backend="eager")
    if kind == "stored" and how != "eager":
        with pytest.raises(UnsupportedError, match="stores"):
            called(torch.ones(3, requires_grad=True))
        return
    for step in (1, 2, 3):
        x = torch.full((3,), float(step), requires_grad=True)
        result = called(x)
        assert read() == (step if where == "fwd" else 2 * step - 1)
        result.sum().backward()
        assert read() == (step if where == "fwd" else 2 * step)
        expected = x.detach().cos() * (2 if how == "inside" else 1)
        torch.testing.assert_close(x.grad, expected)


def test_a_count_that_a_rule_reads():
    weight, count = torch.ones(3, requires_grad=True), [0]
    table = {"n": 0, "w": weight}

    @funcaot.custom_vjp
    def function(x):
        return x.sin()

    def fwd(x):
        table["n"] += 1
        return x.sin() * table["w"], x

    def bwd(x, g):
        count[0] += 1
        return (g * x.cos() * count[0],)

    function.defvjp(fwd, bwd)
    compiled = funcaot.compile(lambda x: function(x) + 1, backend="eager")
    for step in range(1, 5):
        x = torch.full((3,), float(step), requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * step)
        assert (table["n"], count[0]) == (step, step)
        table["w"] = weight * 2 if step == 2 else weight
