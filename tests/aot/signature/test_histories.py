"""Inputs that were made of one another before a call, and a function that differentiates by one.

Eager's derivative goes on through what was recorded before the call. A compiled function has the
same derivative, or says that it can't have it.
"""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

grad = torch.autograd.grad


def leaf(seed, *shape):
    torch.manual_seed(seed)
    return torch.randn(*shape or (3,), dtype=torch.float64, requires_grad=True)


def inner(x):
    return funcaot.compile(lambda v: v.sin(), backend=COMPILER)(x)


# Two inputs, and whether the first was made of the second.
INPUTS = {
    "leaves": (lambda: (leaf(1), leaf(2)), False),
    "made of another leaf": (lambda: (leaf(1).sin(), leaf(2)), False),
    "made of it": (lambda: (lambda x: (x.sin(), x))(leaf(1)), True),
    "made of it far away": (
        lambda: (lambda x: (((x * 2).exp() + leaf(3)).cos(), x))(leaf(1)),
        True,
    ),
    "made of it by a compiled function": (lambda: (lambda x: (inner(x), x))(leaf(1)), True),
    "made of it, detached": (lambda: (lambda x: (x.sin().detach(), x))(leaf(1)), False),
    "no leaf, made of it": (lambda: (lambda w: (w.sin(), w))(leaf(1) * 2), True),
    "the other way round": (lambda: (lambda x: (x, x.sin()))(leaf(1)), False),
    "siblings": (lambda: tuple((leaf(1, 2, 3) * 2).unbind()), False),
    "made of the same": (lambda: (lambda x: (x.sin(), x.cos()))(leaf(1)), False),
    "a view of it": (lambda: (lambda w: (w.view(3), w))(leaf(1) * 2), True),
    "itself": (lambda: (lambda x: (x, x))(leaf(1)), False),
}
PROGRAMS = {
    "of both": lambda y, x: grad((y * x * x).sum(), x)[0],
    "by edge": lambda y, x: grad((y * x * x).sum(), torch.autograd.graph.get_gradient_edge(x))[0],
    "by both": lambda y, x: sum(grad((y * x * x).sum(), [x, y])),
    "by keyword": lambda y, x: grad(inputs=[x], outputs=[(y * x).sum(), x.exp().sum()])[0],
    "recorded": lambda y, x: grad((y * x * x).sum(), x, create_graph=True)[0].sin(),
    "maybe unused": lambda y, x: grad(y.exp().sum(), x, allow_unused=True)[0],
    "zeros if unused": lambda y, x: grad(y.exp().sum(), x, materialize_grads=True)[0],
    "of it alone": lambda y, x: grad(x.exp().sum(), x, create_graph=True)[0] * y,
}
# What needs the first input's part is refused where there is one.
NEED_GRAD = {"by both", "maybe unused", "zeros if unused"}
NEEDS = set(PROGRAMS) - {"of it alone"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_way_to_differentiate(program):
    body = PROGRAMS[program]
    compiled = funcaot.compile(body, backend=COMPILER)
    for name, (made, is_made_of_it) in INPUTS.items():
        if program == "by both" and name == "the other way round":
            is_made_of_it = True
        if is_made_of_it and program in NEEDS:
            with pytest.raises(UnsupportedError, match="was computed from it before the call"):
                compiled(*made())
            continue
        y, x = made()
        if program in NEED_GRAD and not y.requires_grad:
            continue
        expected = body(*made())
        found = compiled(y, x)
        assert (found is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(found, expected)
            assert found.requires_grad == expected.requires_grad


@pytest.mark.parametrize("where", ["closure", "module", "default backend"])
def test_wherever_inputs_come_from(where):
    class Holding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.y = None

        def forward(self, x):
            return grad((self.y * x * x).sum(), x)[0]

    holding = Holding()
    if where == "closure":
        compiled = funcaot.compile(lambda x: holding(x), backend=COMPILER)
    else:
        compiled = funcaot.compile(holding, backend=COMPILER if where == "module" else "inductor")
    for made, is_made_of_it in (*INPUTS.values(), *INPUTS.values()):
        holding.y, x = made()
        if is_made_of_it:
            with pytest.raises(UnsupportedError, match="was computed from it before the call"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), holding(x))


@pytest.mark.parametrize("is_leaf", [True, False])
def test_hooks_on_what_it_differentiates_by(is_leaf):
    """Eager runs them; the gradient of a hook that comes later is another, too."""
    body = PROGRAMS["of it alone"]
    compiled = funcaot.compile(body, backend=COMPILER)
    x = leaf(1) if is_leaf else leaf(1) * 2
    for _ in range(2):
        torch.testing.assert_close(compiled(leaf(2), x), body(leaf(2), x))
        handle = x.register_hook(lambda gradient: gradient * 10)
        with pytest.raises(UnsupportedError, match="has hooks that were registered before"):
            compiled(leaf(2), x)
        handle.remove()


def test_at_a_level():
    compiled = funcaot.compile(PROGRAMS["recorded"], backend=COMPILER)
    x = leaf(1).detach()
    with pytest.raises(UnsupportedError, match="was computed from it before the call"):
        torch.func.grad(lambda x: compiled(x.sin(), x).sum())(x)
    y = leaf(2)
    found = torch.func.grad(lambda x: compiled(y.sin(), x).sum())(x)
    expected = torch.func.grad(lambda x: PROGRAMS["recorded"](y.sin(), x).sum())(x)
    torch.testing.assert_close(found, expected)


def test_a_refused_call_may_run_as_it_is():
    body = PROGRAMS["of both"]
    compiled = funcaot.compile(body, backend=COMPILER, fullgraph=False)
    x = leaf(1)
    with pytest.warns(UserWarning, match="was computed from it before the call"):
        found = compiled(x.sin(), x)
    torch.testing.assert_close(found, body(x.sin(), x))


def test_a_loaded_program_looks_too(tmp_path):
    def body(y, x):
        return grad((y * x * x).sum(), x)[0]

    x = leaf(1)
    compiled = funcaot.compile(body, artifacts=tmp_path / "programs")
    compiled(leaf(2).sin(), x)
    compiled.save(tmp_path / "programs")
    again = funcaot.compile(body, artifacts=tmp_path / "programs")
    torch.testing.assert_close(again(leaf(2).sin(), x), body(leaf(2).sin(), x))
    with pytest.raises(UnsupportedError, match="was computed from it before the call"):
        again(x.sin(), x)


def _zeroed_and_detached(state):
    return state.zero_().detach_()


def _detached_and_scaled(state):
    return state.detach_().mul_(0.5)


def _zeroed_unrecorded(state):
    with torch.no_grad():
        state.zero_()
    return state.detach_()


@pytest.mark.parametrize("reset", [_zeroed_and_detached, _detached_and_scaled, _zeroed_unrecorded])
def test_a_state_that_is_written_to_and_detached_leads_no_further(reset):
    """The node went on to the history of the last call, which was freed."""

    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("state", torch.ones(3))

        def forward(self, x):
            self.state = reset(self.state) * 0.5 + x * self.weight
            return self.state.sin()

    model, eager = Stateful(), Stateful()
    compiled = funcaot.compile(model, backend=COMPILER)
    for _ in range(3):
        x = torch.randn(3)
        for function in (compiled, eager):
            function(x).sum().backward()
        assert_close(model.weight.grad, eager.weight.grad)
        assert_close(model.state, eager.state)
    assert funcaot.report(compiled).cache_misses == 2
