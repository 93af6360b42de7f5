"""The hypothesis strategies draw what they say."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from funcaot.testing.database.elementwise import BroadcastingMultiply, Square
from funcaot.testing.strategies import call_arguments, shapes, tensors, trees

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(shapes(max_dims=2, max_side=4, min_side=1))
def test_shapes_keep_their_limits(shape):
    assert len(shape) <= 2
    assert all(1 <= side <= 4 for side in shape)


@FEW
@given(tensors(shape=(2, 3), dtypes=(torch.float64, torch.int64), bounds=(0.0, 1.0)))
def test_tensors_keep_shape_dtype_and_bounds(tensor):
    assert tensor.shape == (2, 3)
    assert tensor.dtype in (torch.float64, torch.int64)
    assert not (tensor.requires_grad and tensor.dtype is torch.int64)
    assert bool(((tensor >= 0) & (tensor <= 1)).all())


@FEW
@given(st.data())
def test_every_layout_is_drawn(data):
    tensor = data.draw(tensors(shape=(2, 3), layouts=("expanded",)))
    assert tensor.stride(0) == 0
    tensor = data.draw(tensors(shape=(2, 3), layouts=("transposed",)))
    assert tensor.stride() == (1, 2)
    tensor = data.draw(tensors(shape=(2, 3), layouts=("offset",)))
    assert tensor.storage_offset() == 3


@FEW
@given(trees(max_leaves=4))
def test_trees_are_pytrees(tree):
    leaves, structure = pytree.tree_flatten(tree)
    assert pytree.tree_unflatten(leaves, structure) is not None


@FEW
@given(call_arguments(count=2))
def test_arguments_broadcast_together(arguments):
    x, y = arguments
    assert x.requires_grad
    result = BroadcastingMultiply.apply(x, y)
    assert torch.equal(result, x * y)


@FEW
@given(tensors(requires_grad=True))
def test_a_function_on_any_tensor(x):
    (grad,) = torch.autograd.grad(Square.apply(x).sum(), x)
    torch.testing.assert_close(grad, 2 * x.detach())
