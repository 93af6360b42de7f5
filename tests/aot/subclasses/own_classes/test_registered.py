"""Classes that have no ``__tensor_flatten__``: called as they are until they are registered."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import funcaot
from funcaot.errors import CaptureWarning, FuncaotError, UnsupportedError
from tests.aot.subclasses.kinds import TwoTensor, made
from tests.hostile import COMPILER


def scaled_class():
    """A class of another library: numbers and a scale, and a mode; its constructor copies."""

    class Scaled(torch.Tensor):
        @staticmethod
        def __new__(cls, data, scale, mode):
            return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)

        def __init__(self, data, scale, mode):
            self.data_inside, self.scale, self.mode = data.clone(), scale.clone(), mode

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            first = next(v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, cls))
            plain = pytree.tree_map_only(cls, lambda v: v.data_inside * v.scale, (args, kwargs))
            result = func(*plain[0], **plain[1] or {})
            scale = torch.ones_like(first.scale) * (2 if first.mode == "half" else 1)
            return pytree.tree_map_only(
                torch.Tensor, lambda v: cls(v / scale, scale, first.mode), result
            )

    return Scaled


def flatten(tensor):
    return ["data_inside", "scale"], {"mode": tensor.mode}


def unflatten_of(kind):
    def unflatten(inner, metadata, size, stride):
        found = torch.Tensor._make_wrapper_subclass(kind, size, dtype=inner["data_inside"].dtype)
        found.data_inside, found.scale = inner["data_inside"], inner["scale"]
        found.mode = metadata["mode"]
        return found

    return unflatten


def function(x, y):
    return (x * y).sin() + y


def seen(compiled, kind, mode, scale):
    """What a call gives, with the gradients of both arguments."""
    x = kind(made(1, 3, grad=False), torch.tensor(scale), mode).requires_grad_()
    y = made(2, 3)
    result = compiled(x, y)
    gradients = torch.autograd.grad(result, (x, y), torch.ones(3))
    return [(type(v), v.data_inside, v.scale, v.mode) for v in (result, *gradients)]


def told_of(compiled, kind, calls):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureWarning)
        for call in calls:
            assert_close_all(seen(compiled, kind, *call), seen(function, kind, *call))
    return [str(each.message) for each in caught if issubclass(each.category, CaptureWarning)]


def assert_close_all(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one[0] is other[0]
        assert one[3] == other[3]
        assert_close(one[1:3], other[1:3])


CALLS = (("whole", 1.5), ("half", 2.5), ("whole", 3.5))


def test_a_class_is_compiled_once_it_is_registered():
    kind = scaled_class()
    compiled = funcaot.compile(function, backend=COMPILER)
    (told,) = told_of(compiled, kind, CALLS)
    assert "register_wrapper" in told
    assert not compiled.entries
    unflatten = unflatten_of(kind)
    funcaot.register_wrapper(kind, flatten, unflatten)
    funcaot.register_wrapper(kind, flatten, unflatten)  # A module may be imported twice.
    assert not told_of(compiled, kind, CALLS)
    assert len(compiled.entries) == 2  # The mode is compared, the scale is not.


def test_what_nobody_takes_apart_is_refused_where_all_is_to_be_compiled():
    kind = scaled_class()
    compiled = funcaot.compile(function, backend="eager", fullgraph=True)
    with pytest.raises(UnsupportedError, match="register_wrapper"):
        compiled(kind(made(1, 3, grad=False), torch.tensor(1.0), "half"), made(2, 3))


def test_functions_that_copy_or_lose_something_are_refused():
    kind = scaled_class()
    funcaot.register_wrapper(kind, flatten, lambda inner, m, *_: kind(*inner.values(), m["mode"]))
    x = kind(made(1, 3, grad=False), torch.tensor(1.0), "half")
    with pytest.raises(UnsupportedError, match="data_inside isn't the one that it was given"):
        funcaot.compile(function, backend="eager", fullgraph=True)(x, made(2, 3))
    other = scaled_class()
    funcaot.register_wrapper(other, lambda x: (["data_inside", "scale"], {"mode": 1}), _without)
    x = other(made(1, 3, grad=False), torch.tensor(1.0), "half")
    with pytest.raises(UnsupportedError, match=r"the unflatten that .* Scaled doesn't give back"):
        funcaot.compile(function, backend="eager", fullgraph=True)(x, made(2, 3))


def _without(inner, metadata, size, stride):
    kind = next(k for k in torch.Tensor.__subclasses__()[::-1] if k.__name__ == "Scaled")
    found = torch.Tensor._make_wrapper_subclass(kind, size, dtype=inner["data_inside"].dtype)
    found.data_inside, found.scale = inner["data_inside"], inner["scale"]
    return found


def test_what_is_no_such_class_is_refused():
    kind = scaled_class()
    for wrong in (torch.Tensor, int, torch.ones(2), torch.nn.Parameter):
        with pytest.raises(FuncaotError, match="wasn't given a class"):
            funcaot.register_wrapper(wrong, flatten, unflatten_of(kind))
    with pytest.raises(FuncaotError, match="TwoTensor has a __tensor_flatten__"):
        funcaot.register_wrapper(TwoTensor, flatten, unflatten_of(TwoTensor))
    with pytest.raises(FuncaotError, match="no functions for Scaled"):
        funcaot.register_wrapper(kind, flatten, None)
    funcaot.register_wrapper(kind, flatten, unflatten_of(kind))
    with pytest.raises(FuncaotError, match="told before"):
        funcaot.register_wrapper(kind, flatten, unflatten_of(kind))
