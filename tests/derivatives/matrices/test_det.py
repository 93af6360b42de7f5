"""Determinants of matrices whose singular values are equal, or some zero: the oracle is a sum."""

import itertools

import pytest
import torch
from torch.func import grad, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import funcaot

SINGULAR = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]], dtype=torch.float64)
ROTATION = torch.tensor([[0.6, -0.8, 0], [0.8, 0.6, 0], [0, 0, 1]], dtype=torch.float64)
MATRICES = {
    "unit": torch.eye(3, dtype=torch.float64),
    "batch": torch.stack([torch.eye(3).double(), SINGULAR, ROTATION @ SINGULAR + ROTATION]),
    "complex": torch.eye(3, dtype=torch.complex128) * (1 + 2j),
}


def by_permutations(matrix):
    total = 0
    for order in itertools.permutations(range(3)):
        term = (-1) ** sum(order[j] > order[i] for i in range(3) for j in range(i))
        for row, column in enumerate(order):
            term = term * matrix[..., row, column]
        total = total + term
    return total


def loss_of(function):
    return lambda matrix: (function(matrix).abs() ** 2).sum()


def weights(tensor):
    return torch.linspace(1, 2, tensor.numel()).reshape(tensor.shape).to(tensor.dtype)


def second(function, matrix):
    leaf = matrix.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss_of(function)(leaf), leaf, create_graph=True)
    return found.detach(), torch.autograd.grad(found, leaf, weights(found))


WAYS = {
    "second": second,
    "jvp": lambda function, matrix: jvp(function, (matrix,), (weights(matrix),)),
    "reverse over reverse": lambda function, matrix: vjp(grad(loss_of(function)), matrix)[1](
        weights(matrix)
    ),
    "forward over reverse": lambda function, matrix: jvp(
        grad(loss_of(function)), (matrix,), (weights(matrix),)
    ),
    "vmap of grad": lambda function, matrix: vmap(grad(loss_of(function)))(
        torch.stack([matrix, matrix * 1.5])
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MATRICES)
def test_derivatives(kind, way):
    matrix, run = MATRICES[kind], WAYS[way]
    expected = tree_leaves(run(by_permutations, matrix))
    with funcaot.install():
        found = tree_leaves(run(torch.linalg.det, matrix))
    torch.testing.assert_close(found, expected)
    if kind == "complex" and way == "forward over reverse":
        return  # refused: the SVD's gradient looks at values, which such a trace hasn't
    compiled = funcaot.compile(torch.linalg.det, backend="eager")
    torch.testing.assert_close(tree_leaves(run(compiled, matrix)), expected)


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("transposed", [False, True])
def test_the_first_gradient_lies_as_torch_lays_it(kind, transposed):
    def first(function):
        leaf = (MATRICES[kind].mT if transposed else MATRICES[kind]).detach().requires_grad_()
        return torch.autograd.grad(function(leaf).abs().sum(), leaf)[0]

    expected = first(torch.linalg.det)
    found = [first(funcaot.compile(torch.linalg.det, backend="eager"))]
    with funcaot.install():
        found.append(first(torch.linalg.det))
    for each in found:
        torch.testing.assert_close(each, expected, check_stride=True)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (0, 0)])
def test_empty_ones(shape):
    def first(function):
        leaf = torch.ones(shape, requires_grad=True)
        return torch.autograd.grad(function(leaf).sum(), leaf)[0]

    compiled = funcaot.compile(torch.linalg.det, backend="eager")
    assert first(compiled).shape == shape
