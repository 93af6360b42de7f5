"""``.grad`` of tensors that autograd wouldn't accumulate into: each act on each holder."""

import itertools
import warnings

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER


class World:
    """The tensors that a function may reach, which start without ``.grad``."""

    def __init__(self):
        self.constant = torch.ones(3)
        self.parameter = torch.nn.Parameter(torch.ones(3))
        self.module = torch.nn.Module()
        self.module.register_buffer("held", torch.ones(3))
        self.module.weight = torch.nn.Parameter(torch.ones(3))
        self.kept = None


HOLDERS = {
    "argument": lambda world, x: x,
    "closed over": lambda world, x: world.constant,
    "parameter": lambda world, x: world.parameter,
    "parameter of a module": lambda world, x: world.module.weight,
    "buffer": lambda world, x: world.module.held,
    "view": lambda world, x: x[0:3],
    "view of a constant": lambda world, x: world.constant[0:3],
    "made": lambda world, x: x + 1,
    "made, a leaf": lambda world, x: x.detach().clone().requires_grad_(),
}


def assign(tensor, x):
    tensor.grad = x * 2


def assign_the_argument(tensor, x):
    tensor.grad = x.detach()


def read(tensor, x):
    return x * 2 if tensor.grad is None else x * tensor.grad


def add(tensor, x):
    if tensor.grad is not None:
        tensor.grad.add_(x.detach())


def clear(tensor, x):
    tensor.grad = None


def delete(tensor, x):
    del tensor.grad


def assign_and_change(tensor, x):
    tensor.grad = x.detach() + 1
    tensor.grad.mul_(2)
    return tensor.grad * 1


def zero_grad(tensor, x):
    optimizer = torch.optim.SGD([tensor.detach()], lr=0.1)
    optimizer.param_groups[0]["params"][0] = tensor
    optimizer.zero_grad()


def go_backward(tensor, x):
    with torch.enable_grad():
        tensor = tensor if tensor.requires_grad else tensor.requires_grad_()
        (tensor.detach() * tensor).sum().backward()


ACTS = (
    assign,
    assign_the_argument,
    read,
    add,
    clear,
    delete,
    assign_and_change,
    zero_grad,
    go_backward,
)
ARGUMENTS = {
    "plain": lambda values: values.clone(),
    "leaf": lambda values: values.clone().requires_grad_(),
    "inner": lambda values: values.clone().requires_grad_() * 1,
}
# At each call: whether what the function is given, and what it closes over, has a ``.grad`` before.
STATES = ((0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 1))


def numbers(tensor):
    return None if tensor is None else tensor.detach().tolist()


def gradient(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.grad


def trajectory(holder, act, argument, states, compiles):
    """What three calls return and leave; the name of the error in place of a call that raises."""
    world = World()

    def function(x):
        tensor = HOLDERS[holder](world, x)
        result = act(tensor, x)
        return result, tensor

    called = compiles(function)
    constants = (world.constant, world.parameter, world.module.held, world.module.weight)
    found = []
    for number, before in enumerate(states):
        x = ARGUMENTS[argument](torch.arange(3.0) + number)
        for tensor in (x, *constants):
            tensor.grad = torch.full((3,), number + 2.0) if before else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result, tensor = called(x)
            except (RuntimeError, AttributeError) as error:
                if isinstance(error, UnsupportedError):
                    raise
                found.append(type(error).__name__)
                break
        left = [numbers(gradient(each)) for each in (x, *constants, tensor)]
        needs = [each.requires_grad for each in (x, *constants, tensor)]
        found.append((numbers(result), left, needs, gradient(tensor) is x))
    return found


def check(holder, act, argument, compiles):
    for states in STATES:
        expected = trajectory(holder, act, argument, states, lambda function: function)
        found = trajectory(holder, act, argument, states, compiles)
        assert found == expected


CELLS = list(itertools.product(HOLDERS, ACTS, ARGUMENTS))


def named(cell):
    holder, act, argument = cell
    return f"{holder}-{act.__name__}-{argument}"


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("cell", CELLS, ids=named)
def test_calls_leave_what_eager_leaves(cell, backend):
    try:
        check(*cell, lambda function: funcaot.compile(function, backend=backend))
    except UnsupportedError:
        # The history of what isn't a leaf is nobody's; nor may a view begin to require grad.
        if cell[1] is not go_backward:
            raise


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS[::23], ids=named)
def test_on_inductor(cell):
    if cell[1] is go_backward:
        pytest.skip("refused for some")
    check(*cell, lambda function: funcaot.compile(function))


def test_what_is_kept_has_its_grad():
    class Keeper:
        def call(self, x):
            self.kept = x * 2
            self.kept.grad = x + 1
            return x.sum()

    for compiles in (lambda function: function, lambda f: funcaot.compile(f, backend="eager")):
        keeper = Keeper()
        called = compiles(keeper.call)
        for number in range(3):
            called(torch.ones(3) + number)
            assert keeper.kept.grad.tolist() == [number + 2.0] * 3


def test_retained_by_a_result():
    def function(x):
        y = x * 2
        y.retain_grad()
        torch.autograd.backward(y.sum() * 3, inputs=[y])
        return y

    called = funcaot.compile(function, backend="eager")
    for number in range(3):
        assert called(torch.ones(3).requires_grad_()).grad.tolist() == [3.0] * 3, number


def test_under_a_transform():
    called = funcaot.compile(lambda x: x * 2 if x.grad is None else x, backend="eager")
    assert torch.func.vmap(lambda x: called(x) + 0)(torch.ones(2, 3)).tolist() == [[2.0] * 3] * 2
