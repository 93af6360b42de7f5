"""Tensors that are resized in place, alone and while others lie in their memory."""

import itertools

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

INPUTS = {
    "plain": lambda: (torch.arange(4.0) + 1, torch.arange(4.0) + 9),
    "parts": lambda: (lambda whole: (whole[2:6], whole[4:8]))(torch.arange(64.0)),
    "parts of little": lambda: (lambda whole: (whole[2:6], whole[4:8]))(torch.arange(8.0)),
    "one memory": lambda: (lambda whole: (whole, whole.view(-1)))(torch.arange(4.0)),
    "a part": lambda: (torch.arange(64.0)[2:6], torch.arange(4.0)),
    "recorded": lambda: (torch.arange(4.0).requires_grad_() * 1, torch.arange(4.0)),
}
SOURCES = {
    "input": lambda x, y: x,
    "computed": lambda x, y: x * 2,
    "part of computed": lambda x, y: (x * 2)[1:3],
    "made": lambda x, y: torch.zeros(4),
}
WAYS = {
    "itself": lambda tensor, held: tensor,
    "while another holds it": lambda tensor, held: (held.append(tensor.detach()), tensor)[1],
    "detached": lambda tensor, held: tensor.detach(),
    "data": lambda tensor, held: tensor.data,
    "view": lambda tensor, held: tensor.view(-1),
    "detached view": lambda tensor, held: tensor.detach()[0:3],
    "out": lambda tensor, held: torch.add(tensor.detach(), 1.0, out=tensor.detach()),
}
CHANGES = {
    "smaller": lambda tensor: tensor.resize_(2),
    "in two dimensions": lambda tensor: tensor.resize_(1, 2),
    "larger": lambda tensor: tensor.resize_(7).zero_(),
    "as a smaller one": lambda tensor: tensor.resize_as_(torch.empty(2)),
    "as a larger one": lambda tensor: tensor.resize_as_(torch.empty(7)).zero_(),
    "out= of a larger one": lambda tensor: torch.arange(7.0, out=tensor),
    "set_": lambda tensor: tensor.set_(tensor.clone()),
}
# Of some inputs, none of these can be said by an effect.
NEVER = {"larger", "as a larger one", "set_"}


def program(source, way, change, fills):
    def function(x, y):
        held = []
        tensor = SOURCES[source](x, y)
        changed = CHANGES[change](WAYS[way](tensor, held))
        if fills:
            changed.fill_(5.0)
        return changed, tensor * 1, y + 1, *held

    return function


def seen(call, tensors):
    """What can be seen of the results and of the inputs afterwards, or the error."""
    try:
        found = [*call(*tensors), *tensors]
    except UnsupportedError:
        raise
    except RuntimeError as error:
        return error
    return [(tuple(t.shape), t.stride(), t.storage_offset(), t.tolist()) for t in found]


FAST = {"plain", "parts"}
PARAMETERS = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in INPUTS]


@pytest.mark.filterwarnings("ignore:.*resized:UserWarning")
@pytest.mark.filterwarnings("ignore:.*computed number of elements:UserWarning")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("inputs", PARAMETERS)
def test_every_way(inputs, change):
    works = 0
    for number, (source, way) in enumerate(itertools.product(SOURCES, WAYS)):
        function = program(source, way, change, number % 2)
        expected = seen(function, INPUTS[inputs]())
        compiled = funcaot.compile(function, backend=COMPILER)
        try:
            ours = seen(compiled, INPUTS[inputs]())
        except UnsupportedError:
            continue
        if isinstance(expected, RuntimeError):
            assert isinstance(ours, RuntimeError), (source, way)
        else:
            assert ours == expected, (source, way)
            works += 1
    assert works or change in NEVER


FORMATS = [None, torch.preserve_format, torch.channels_last]


@pytest.mark.parametrize("memory_format", FORMATS)
def test_the_layout_of_another(memory_format):
    other = torch.empty(1, 2, 3, 4).to(memory_format=torch.channels_last)

    def function(x):
        return (x * 2).resize_as_(other, memory_format=memory_format).zero_() + 1

    ours, expected = (f(torch.ones(30)) for f in (funcaot.compile(function), function))
    assert ours.shape == expected.shape
    assert ours.stride() == expected.stride()


def swapped(x, y):
    before = x.detach()
    x.set_(y.detach())
    y.set_(before)


def left(x, y):
    before = x.detach()
    x.set_(y)
    return before


@pytest.mark.parametrize("function", [swapped, left])
def test_memory_that_an_input_had_is_not_given_out(function):
    with pytest.raises(UnsupportedError, match="an input had before set_"):
        funcaot.compile(function, backend=COMPILER)(torch.ones(3), torch.zeros(3))
