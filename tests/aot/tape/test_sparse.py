"""Sparse arguments in layout COO that require grad: values and gradients as eager has them."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

PROGRAMS = {
    "to_dense": lambda y: y.to_dense(),
    "to_dense of a product": lambda y: (y.coalesce() * 2).to_dense(),
    "to_dense twice": lambda y: y.coalesce().coalesce().to_dense().to_dense(),
    "without the mask": lambda y: y.to_dense(masked_grad=False),
    "coalesce": lambda y: y.coalesce(),
    "times dense": lambda y: y.to_dense() * torch.arange(4.0, dtype=y.dtype).view(2, 2),
    "to_dense of what is made": lambda y: (y * 2).to_dense(),
    "transposed": lambda y: y.t().coalesce().to_dense(),
    "product": lambda y: torch.sparse.mm(y, torch.eye(2, dtype=y.dtype)),
}


def sparse(seed, *, coalesced):
    torch.manual_seed(seed)
    places = torch.tensor([[0, 0, 1], [0, 0 if not coalesced else 1, 1]])
    made = torch.sparse_coo_tensor(
        places, torch.randn(3, dtype=torch.float64), (2, 2), check_invariants=True
    )
    return (made.coalesce() if coalesced else made).requires_grad_()


def dense(tensor):
    return tensor.to_dense() if tensor.layout is torch.sparse_coo else tensor


@pytest.mark.parametrize("backend", [COMPILER, "inductor"], ids=["hostile", "inductor"])
@pytest.mark.parametrize("coalesced", [True, False])
def test_as_in_eager(backend, coalesced):
    for name, program in PROGRAMS.items():
        compiled = funcaot.compile(program, backend=backend)
        for seed in range(2):
            both = []
            for function in (compiled, program):
                y = sparse(seed, coalesced=coalesced)
                result = function(y)
                (gradient,) = torch.autograd.grad(dense(result).sin().sum(), y)
                both.append([dense(result).detach(), dense(gradient)])
            torch.testing.assert_close(*both, msg=lambda text, name=name: f"{name}: {text}")


MADE = {
    "mul": lambda y: y * 2,
    "mul by a tensor": lambda y: y * torch.tensor(2.0),
    "mul by elements": lambda y: y * torch.ones(2, 2, dtype=y.dtype),
    "add": lambda y: y + y,
    "neg": lambda y: -y,
    "div": lambda y: y / 2,
    "sub": lambda y: y - y.coalesce(),
    "transposed": lambda y: y.t(),
    "sin": lambda y: y.sin(),
    "product": lambda y: torch.sparse.mm(y, y),
    "clone": lambda y: y.clone(),
    "in another dtype": lambda y: y.to(torch.float32),
    "from dense": lambda y: y.to_dense().to_sparse(),
    "cat": lambda y: torch.cat([y, y]),
    "masked": lambda y: torch.ones(2, 2, dtype=y.dtype).sparse_mask(y),
    "coalesced": lambda y: y.coalesce(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("coalesced", [True, False])
def test_what_is_coalesced(coalesced):
    """What isn't gets a ``coalesce()`` that the program has."""
    for name, made in MADE.items():
        answers = []

        def function(y, made=made, answers=answers):
            result = made(y)
            answers.append(result.is_coalesced())
            return result.coalesce()

        compiled = funcaot.compile(function, backend=COMPILER)
        y = sparse(0, coalesced=coalesced).detach()
        found = compiled(y)
        assert answers == [made(y).is_coalesced()], name
        torch.testing.assert_close(found, made(y).coalesce())
        assert torch.equal(found.indices(), made(y).coalesce().indices()), name
