"""Lists, texts and copies that Python code makes of tensors, in a compiled function."""

import copy

import pytest
import torch
from torch.testing import assert_close

import funcaot

CONSTANT = torch.tensor([2.0, 3.0])

FUNCTIONS = {
    "list of what is closed over": lambda x: x * CONSTANT.tolist()[1],
    "list of an argument": lambda x: x * x[0].tolist()[1],
    "list of what is computed": lambda x: x * (x[0] * 2).tolist()[1],
    "nested lists": lambda x: x * x.tolist()[1][0] * (x * 2).tolist()[0][1],
    "list of a number": lambda x: x * x.sum().tolist(),
    "sizes": lambda x: torch.cat(
        [part.cos() for part in x.split((x[0] > 0).long().tolist()[:0] or [1, 1])]
    ),
    "format": lambda x: x * float(f"{x.sum():.2f}"),
    "format of a constant": lambda x: x * float(f"{CONSTANT[1]:.1f}"),
    "tensor of tensors": lambda x: x * torch.tensor([x.sum(), CONSTANT[1]]),
    "tensor of tensors and numbers": lambda x: x * torch.tensor([x.detach().max(), 2]),
    "matrix of tensors": lambda x: x @ torch.tensor([[x.sum(), 1.0], [0, CONSTANT[0]]]),
    "another dtype": lambda x: x * torch.tensor((CONSTANT[0], 2.7), dtype=torch.float64),
    "wider dtype": lambda x: x * torch.tensor([CONSTANT.double()[0], 1]),
    "as_tensor": lambda x: x * torch.as_tensor([x.sum(), 1.0]),
    "asarray": lambda x: x * torch.asarray([x.sum(), 1.0]),
    "new_tensor": lambda x: x * x.new_tensor([CONSTANT[0], x.sum()]),
    "copy": lambda x: x * copy.deepcopy(CONSTANT),
    "copies": lambda x: x * sum(copy.deepcopy([CONSTANT, (CONSTANT, 2.0)])[1]),
    "text": lambda x: (str(x), repr(CONSTANT), x * 2)[2],
}


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name):
    function = FUNCTIONS[name]
    compiled = funcaot.compile(function, backend="eager")
    for scale in (1.0, 1.0, 2.0):
        x = torch.arange(1.0, 5.0).view(2, 2).mul(scale).requires_grad_()
        ours, expected = compiled(x), function(x)
        assert_close(ours, expected)
        assert ours.dtype is expected.dtype
        assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(expected.sum(), x))


def test_a_copy_of_a_parameter_and_of_a_module():
    module = torch.nn.Linear(2, 2)

    def inner_loop(x):
        twin = copy.deepcopy(module)
        loss = twin(x).pow(2).sum()
        gradients = torch.autograd.grad(loss, tuple(twin.parameters()))
        return [p - 0.1 * g for p, g in zip(twin.parameters(), gradients, strict=True)]

    compiled = funcaot.compile(inner_loop, backend="eager")
    for _ in range(2):
        x = torch.randn(3, 2)
        assert_close(compiled(x), inner_loop(x))
        with torch.no_grad():
            module.weight.add_(1)


def test_what_cannot_be_copied():
    compiled = funcaot.compile(lambda x: copy.deepcopy(x * 2), backend="eager")
    with pytest.raises(RuntimeError, match="created explicitly by the user"):
        compiled(torch.ones(2, requires_grad=True))


def test_numbers_that_are_no_integers():
    compiled = funcaot.compile(
        lambda x: torch.tensor([x.sum(), 1], dtype=torch.int64), backend="eager"
    )
    with pytest.raises(TypeError, match="only integer tensors"):
        compiled(torch.ones(2))


def test_lists_that_are_no_tensor():
    compiled = funcaot.compile(lambda x: torch.tensor([[x.sum(), 1.0], [2.0]]), backend="eager")
    with pytest.raises(ValueError, match="expected sequence of length"):
        compiled(torch.ones(2))
