"""Wrapper classes that torch has itself: arguments, parameters, buffers."""

import copy

import pytest
import torch
from torch.testing._internal.subclasses import WrapperSubclass
from torch.testing._internal.two_tensor import TwoTensor

import funcaot
from tests.aot.subclasses.kinds import made, same
from tests.hostile import COMPILER


def numbers(seed):
    return made(seed, 4, 4, grad=False)


CLASSES = {
    "WrapperSubclass": lambda seed: WrapperSubclass(numbers(seed)),
    "TwoTensor": lambda seed: TwoTensor(numbers(seed), numbers(seed + 100)),
    "one in another": lambda seed: WrapperSubclass(TwoTensor(numbers(seed), numbers(seed + 100))),
}
HELD = {
    "Parameter": torch.nn.Parameter,
    "a frozen Parameter": lambda value: torch.nn.Parameter(value, requires_grad=False),
    "Buffer": torch.nn.Buffer,
    "Buffer that isn't saved": lambda value: torch.nn.Buffer(value, persistent=False),
    "Buffer that requires grad": lambda value: torch.nn.Buffer(value.requires_grad_()),
}


class Holds(torch.nn.Module):
    """A layer with a wrapper of some kind, and another one that it counts in."""

    def __init__(self, kind, held):
        super().__init__()
        self.weight = HELD[held](CLASSES[kind](1))
        self.seen = torch.nn.Buffer(CLASSES[kind](2))

    def forward(self, x):
        with torch.no_grad():
            self.seen.mul_(0.5).add_(x)
        return (x @ self.weight).sin() * self.weight + self.seen


def trained(module, run, kind):
    """What four calls give, with something changed between them."""
    found = []
    for call in range(4):
        x = CLASSES[kind](10 + call).requires_grad_(call % 2 == 1)
        y = run(x)
        given = [each for each in (x, *module.parameters(), module.weight) if each.requires_grad]
        given = list({id(each): each for each in given}.values())
        found += [y, module.seen, module.seen._version, type(module.weight)]
        if y.requires_grad:
            first = torch.autograd.grad(y, given, torch.ones_like(y), create_graph=True)
            again = [gradient for gradient in first if gradient.requires_grad]
            seeds = [torch.ones_like(gradient) for gradient in again]
            found += [*first, *torch.autograd.grad(again, given, seeds, allow_unused=True)]
        if call == 0:
            state = copy.deepcopy(module.state_dict())
        elif call == 1:
            with torch.no_grad():
                module.weight.mul_(2)
            y.detach().zero_()
        else:
            module.load_state_dict(state, assign=call == 2)
    return found


FAST = {"TwoTensor", "Parameter", "Buffer"}
KINDS = [
    kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow)
    for kind in (*CLASSES, *HELD)
]


@pytest.mark.parametrize("held", KINDS[len(CLASSES) :])
@pytest.mark.parametrize("kind", KINDS[: len(CLASSES)])
def test_in_a_module(kind, held):
    wanted = Holds(kind, held)
    module = copy.deepcopy(wanted)
    compiled = funcaot.compile(module, backend=COMPILER)
    same(trained(module, compiled, kind), trained(wanted, wanted, kind))


@pytest.mark.slow
def test_in_a_module_on_the_default_backend():
    wanted = Holds("TwoTensor", "Parameter")
    module = copy.deepcopy(wanted)
    same(
        trained(module, funcaot.compile(module), "TwoTensor"), trained(wanted, wanted, "TwoTensor")
    )


WRITES = {
    "the argument": lambda x, y: x.mul_(y).add_(1),
    "a view of it": lambda x, y: (x[0].copy_(y[1]), x * y)[1],
    "by a result": lambda x, y: x.copy_((x @ y).sin()),
    "what is made": lambda x, y: (x * y).mul_(y).add_(x),
}


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("written", WRITES)
@pytest.mark.parametrize("kind", KINDS[: len(CLASSES)])
def test_written_to(kind, written, grad):
    function = WRITES[written]
    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        seen = []
        for each in (compiled, function):
            leaf, y = CLASSES[kind](call).requires_grad_(grad), CLASSES[kind](call + 50)
            x = leaf * 1 if grad else leaf
            result = each(x, y)
            found = [result, x, x._version, y._version, result is x, result._base is x]
            if grad:
                ones = torch.ones_like(result)
                (first,) = torch.autograd.grad(result, leaf, ones, create_graph=True)
                found.append(first)
                if first.requires_grad:
                    found.append(torch.autograd.grad(first, leaf, ones)[0])
            seen.append(found)
        same(*seen)
