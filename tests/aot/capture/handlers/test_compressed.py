"""Compressed sparse tensors that autograd would record in a capture are refused by name."""

import warnings

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


def set_in_place(x):
    made = x.to_sparse_csr()
    made.requires_grad = True
    return made.values().sum()


def columns(x):
    return torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), x[0])


MADE = {
    "asked for": lambda x: x.to_sparse_csr().requires_grad_().values().sum(),
    "set": set_in_place,
    "a parameter": lambda x: torch.nn.Parameter(x.to_sparse_csr()).values().sum(),
    "of blocks": lambda x: x.to_sparse_bsr((1, 1)).requires_grad_().clone(),
    "at a level": lambda x: torch.func.grad(lambda x: x.to_sparse_csc().to_dense().sum())(x),
    "from parts": lambda x: torch.func.grad(lambda x: columns(x).to_dense().sum())(x),
    "by its layout": lambda x: torch.func.grad(
        lambda x: x.to_sparse(layout=torch.sparse_csr).to_dense().sum()
    )(x),
}


@pytest.mark.parametrize("name", MADE)
def test_it_is_refused(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Compressed layouts are in beta state.
        with pytest.raises(UnsupportedError, match="requires grad in a compiled function"):
            funcaot.compile(MADE[name], backend="eager")(torch.eye(2))


def test_what_requires_none_is_computed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = funcaot.compile(lambda x: x.to_sparse_csr().to_dense() * 2, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.eye(2)), torch.eye(2) * 2)
