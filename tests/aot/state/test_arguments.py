"""Containers of users' classes among the arguments: what a function changes in them is changed."""

import dataclasses
import types

import pytest
import torch
from torch.utils._pytree import register_pytree_node

import funcaot
from funcaot.errors import UnsupportedError


@dataclasses.dataclass
class State:
    hidden: torch.Tensor
    inner: object = None
    steps: int = 0


class Named:
    """A dictionary in an attribute, which its items are in."""

    def __init__(self, items):
        self.held = items

    def __getitem__(self, name):
        return self.held[name]

    def __setitem__(self, name, value):
        self.held[name] = value


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self, hidden):
        self.hidden = hidden


class Behind:
    """What it holds lies in an object that no attribute leads to as a list or dictionary does."""

    def __init__(self, hidden):
        self.at = types.SimpleNamespace(hidden=hidden)


register_pytree_node(
    State, lambda s: ([s.hidden, s.inner], s.steps), lambda parts, steps: State(*parts, steps)
)
register_pytree_node(
    Named,
    lambda n: (list(n.held.values()), tuple(n.held)),
    lambda values, names: Named(dict(zip(names, values, strict=True))),
)
register_pytree_node(Slotted, lambda s: ([s.hidden], None), lambda parts, _: Slotted(*parts))
register_pytree_node(Behind, lambda s: ([s.at.hidden], None), lambda parts, _: Behind(*parts))


def assigns(state, x):
    state.hidden = state.hidden + x
    return state.hidden * 2


def returns_it_too(state, x):
    state.hidden = state.hidden + x
    return state, x * 1


def returns_it(state, x):
    return state


def counts(state, x):
    state.steps += 1
    return state.hidden * state.steps


def adds_an_attribute(state, x):
    state.extra = x * 2
    return state.hidden * 1


def removes_an_attribute(state, x):
    if "extra" in vars(state):
        del state.extra
    return state.hidden * 1


def assigns_inside(state, x):
    state.inner["k"] = state.inner["h"] + x
    state.inner["h"] = x * 2
    return x * 1


def replaces_what_is_inside(state, x):
    state.inner = Named({"h": state.hidden * 2})
    return x * 1


def replaces_and_keeps(state, x):
    state.inner, kept = Named({"h": x * 3}), state.inner
    kept["h"] = kept["h"] + 1
    return x * 1


def writes(state, x):
    state.hidden.add_(x)
    state.inner["h"].mul_(2)
    return state.inner["h"] * 1


CHANGES = [
    assigns,
    returns_it_too,
    returns_it,
    counts,
    adds_an_attribute,
    removes_an_attribute,
    assigns_inside,
    replaces_what_is_inside,
    replaces_and_keeps,
    writes,
]


def shown(value):
    if isinstance(value, torch.Tensor):
        return value.tolist(), value._version
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    if isinstance(value, (State, Named)):
        return type(value), shown(vars(value))
    return {k: shown(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("function", CHANGES, ids=lambda function: function.__name__)
def test_what_is_changed(function):
    compiled = funcaot.compile(function, backend="eager")
    seen = []
    for called in (function, compiled):
        state, inner = None, Named({"h": torch.ones(2)})
        state = State(torch.zeros(2), inner)
        for step in range(3):
            x = torch.full((2,), 1.0 + step)
            result = called(state, x)
            results = result if isinstance(result, tuple) else (result,)
            values = [value for value in results if isinstance(value, torch.Tensor)]
            seen.append((shown(state), shown(inner), values[0].tolist() if values else None))
            seen.append(([value is state for value in results], state.inner is inner))
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def assigns_to_a_slot(state, x):
    state.hidden = state.hidden + x
    return x * 1


def assigns_behind(state, x):
    state.at.hidden = state.at.hidden + x
    return x * 1


@pytest.mark.parametrize(
    ("function", "kind"), [(assigns_to_a_slot, Slotted), (assigns_behind, Behind)]
)
def test_what_nothing_says_how_to_change(function, kind):
    compiled, state = funcaot.compile(function, backend="eager"), kind(torch.zeros(2))
    with pytest.raises(UnsupportedError, match=rf"changes args\[0\], a {kind.__name__}, in place"):
        compiled(state, torch.ones(2))


def test_gradients_pass():
    def function(state, x):
        state.hidden = (state.hidden * x).sin()

    state, x = State(torch.ones(2)), torch.ones(2, requires_grad=True)
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        compiled(state, x)
    (found,) = torch.autograd.grad(state.hidden.sum(), x)
    other = State(torch.ones(2))
    for _ in range(3):
        function(other, x)
    (expected,) = torch.autograd.grad(other.hidden.sum(), x)
    torch.testing.assert_close(found, expected)
