"""Wrappers for the tests of this folder, and comparing them with eager's."""

from __future__ import annotations

import torch
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, return_and_correct_aliasing

from funcaot.errors import UnsupportedError

__all__ = [
    "Factor",
    "Int8",
    "TwoTensor",
    "everything",
    "leaves_behind",
    "made",
    "run",
    "same",
    "two",
]


class Factor(torch.Tensor):
    """A tensor and a number that it is to be multiplied by when it meets another class.

    Ops run on the tensor inside and keep the number, which is metadata.
    """

    @staticmethod
    def __new__(cls, inner, factor):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner, factor):
        self.inner = inner
        self.factor = factor

    def __repr__(self):
        return f"Factor({self.inner}, {self.factor})"

    def __tensor_flatten__(self):
        return ["inner"], {"factor": self.factor}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Factor(inner["inner"], context["factor"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        found = [v.factor for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Factor)]
        plain = pytree.tree_map_only(Factor, lambda v: v.inner, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        wrapped = pytree.tree_map_only(torch.Tensor, lambda v: Factor(v, found[0]), result)
        return return_and_correct_aliasing(func, args, kwargs or {}, wrapped)


class Int8(torch.Tensor):
    """A weight as numbers of 8 bits and one scale a row; products read what they stand for."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype)

    def __init__(self, data, scale):
        self.data_8 = data
        self.scale = scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def __tensor_flatten__(self):
        return ["data_8", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Int8(inner["data_8"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            (weight,) = args
            return cls(func(weight.data_8), func(weight.scale))
        if func is torch.ops.aten.t.default:
            (weight,) = args
            return cls(weight.data_8, weight.scale)._full().t()
        full = pytree.tree_map_only(Int8, lambda v: v._full(), (args, kwargs or {}))
        return func(*full[0], **full[1])

    def _full(self):
        return self.data_8.to(self.scale.dtype) * self.scale


def _numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two(seed, *shape, grad=True):
    """A ``TwoTensor`` of random numbers."""
    return TwoTensor(_numbers(seed, *shape), _numbers(seed + 100, *shape)).requires_grad_(grad)


def made(seed, *shape, grad=True):
    """A plain tensor of random numbers."""
    return _numbers(seed, *shape).requires_grad_(grad)


def same(found, wanted, **tolerance):
    """Compare class, metadata, values at every depth, and whether autograd goes on."""
    assert type(found) is type(wanted), (type(found), type(wanted))
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other, **tolerance)
        return
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted
        return
    assert found.requires_grad == wanted.requires_grad
    assert (found.grad_fn is None) == (wanted.grad_fn is None)
    assert found.shape == wanted.shape
    assert found.stride() == wanted.stride()
    assert found.dtype == wanted.dtype
    if not is_traceable_wrapper_subclass(wanted):
        assert_close(found, wanted, equal_nan=True, **tolerance)
        return
    (names, context), (names_too, context_too) = (
        found.__tensor_flatten__(),
        wanted.__tensor_flatten__(),
    )
    assert names == names_too
    assert context == context_too
    for name in names:
        if isinstance(getattr(wanted, name), torch.Tensor):
            same(getattr(found, name), getattr(wanted, name), **tolerance)


def run(function, make, tangent=torch.ones_like, order=1):
    """Outputs and derivatives of a function, each order's of the sum of the one before."""
    arguments = make()
    output = function(*arguments)
    results = [output]
    wanted = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
    outputs = [value for value in pytree.tree_leaves(output) if _is_differentiable(value)]
    if not outputs or not wanted:
        return results
    given = [tangent(value) for value in outputs]
    for number in range(order):
        found = torch.autograd.grad(
            outputs, wanted, given, allow_unused=True, create_graph=number < order - 1
        )
        results += found
        outputs = [gradient for gradient in found if _is_differentiable(gradient)]
        given = [torch.ones_like(gradient) for gradient in outputs]
        if not outputs:
            break
    return results


def _is_differentiable(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def everything(function, make):
    """What a call does, with derivatives up to the second: or the message of what it raises.

    Results, arguments with the versions of all that they hold, and gradients of every leaf behind
    the arguments and behind what is inside of them.
    """
    arguments = make()
    leaves = leaves_behind(*arguments)
    try:
        result = function(*arguments)
        results = list(result) if isinstance(result, tuple) else [result]
        found = [*results, *arguments, [value.is_leaf for value in arguments]]
        found.append([part._version for value in arguments for part in _held(value)])
        found.append([[value._base is one for one in arguments] for value in results])
        outputs = [value for value in (*results, *arguments) if value.requires_grad]
        for _ in range(2):
            if not (outputs and leaves):
                break
            losses = [(value * value.detach()).sum() for value in outputs]
            given = list(map(torch.ones_like, losses))
            gradients = torch.autograd.grad(
                losses, leaves, given, allow_unused=True, create_graph=True
            )
            found += gradients
            outputs = [each for each in gradients if each is not None and each.requires_grad]
    except UnsupportedError:
        raise
    except RuntimeError as error:
        return str(error)[:60]
    return found


def _held(value):
    if not isinstance(value, torch.Tensor):
        return
    yield value
    if is_traceable_wrapper_subclass(value):
        for name in value.__tensor_flatten__()[0]:
            yield from _held(getattr(value, name))


def leaves_behind(*values):
    """The leaves that gradients of some tensors, and of what is inside of them, go to."""
    tensors = [part for value in values for part in _held(value)]
    found = [tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf]
    pending, seen = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            pending += [parent for parent, _ in node.next_functions]
    return [leaf for i, leaf in enumerate(found) if not any(leaf is other for other in found[:i])]
