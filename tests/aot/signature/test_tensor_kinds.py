"""Tensors that a capture can't make symbolic are refused by name."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


class Marked(torch.Tensor):
    """A subclass that holds its data itself."""


KINDS = {
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", list(KINDS))
def test_kinds_are_refused(kind):
    tensor = KINDS[kind]()
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    with pytest.raises(UnsupportedError, match=f"called with {kind} as leaf 0.*\n.*Instead"):
        compiled(tensor)
    closed = funcaot.compile(lambda x: (x, tensor * 2), backend="eager")
    with pytest.raises(UnsupportedError, match=f"uses {kind} that isn't one of its arguments"):
        closed(torch.ones(3))
    assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_subclasses_with_own_data_are_tensors():
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    result = compiled(torch.ones(3).as_subclass(Marked))
    assert_close(result.as_subclass(torch.Tensor), torch.full((3,), 2.0))


class Doubling(torch.Tensor):
    """Its ops are others than those of tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.sin else result


def test_subclasses_with_functions_of_their_own_are_refused():
    tensor = torch.ones(3).as_subclass(Doubling)
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    with pytest.raises(UnsupportedError, match=r"Doubling, whose __torch_function__.*\n.*Instead"):
        compiled(tensor)
    closed = funcaot.compile(lambda x: x * tensor.sin(), backend="eager")
    with pytest.raises(UnsupportedError, match="Doubling, whose __torch_function__"):
        closed(torch.ones(3))


SPARSE = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]
PRODUCTS = {
    "given": lambda x, a, layout: a @ x + 1,
    "made inside": lambda x, a, layout: a.to_dense().to_sparse(layout=layout) @ (x * 2),
    "beside a write": lambda x, a, layout: a @ x.mul_(2),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("layout", SPARSE, ids=str)
def test_sparse_tensors_on_the_default_backend(product, layout):
    compiled = funcaot.compile(product)
    for factor in (1.0, 3.0):
        dense = torch.tensor([[0.0, factor], [2.0, 0.0]])
        matrices = [dense.to_sparse(layout=layout) for _ in range(2)]
        x, y = torch.ones(2), torch.ones(2)
        found = compiled(x, matrices[0], layout)
        wanted = product(y, matrices[1], layout)
        assert found.layout is wanted.layout
        assert_close(found, wanted)
        assert_close(x, y)
