"""The backward is traced when it is invoked, with the real grad_outputs."""

import pytest
import torch
from torch.testing import assert_close

import funcaot


class LayoutDependent(funcaot.Function):
    """Its gradient says which layout, strides and type its grad_output had."""

    entered = 0

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        LayoutDependent.entered += 1
        (x,) = ctx.saved_tensors
        if gradient.is_sparse:
            return gradient.to_dense() * 5 * x
        if 0 in gradient.stride():
            return gradient * 3 * x
        if gradient.is_contiguous():
            return gradient * x
        if gradient.dim() == 4 and gradient.is_contiguous(memory_format=torch.channels_last):
            return gradient * 11 * x
        return gradient * 7 * x


def tangents_2d():
    return {
        "contiguous": torch.randn(3, 4),
        "transposed": torch.randn(4, 3).t(),
        "expanded": torch.randn(()).expand(3, 4),
        "sparse": torch.eye(3, 4).to_sparse(),
        "strided": torch.randn(3, 8)[:, ::2],
    }


def gradient_of(function, x, tangent):
    return torch.autograd.grad(function(x), x, tangent)[0]


def test_the_forward_alone_traces_no_backward():
    LayoutDependent.entered = 0
    compiled = funcaot.compile(lambda x: LayoutDependent.apply(x).sin(), backend="eager")
    x = torch.randn(3, 4, requires_grad=True)
    y = compiled(x)
    assert funcaot.report(compiled).backward_traces == 0
    assert LayoutDependent.entered == 0
    y.sum().backward()
    assert funcaot.report(compiled).backward_traces == 1
    assert LayoutDependent.entered == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("reverse", [False, True], ids=["in_order", "in_reverse"])
def test_each_layout_gets_its_own_gradient_and_one_trace(backend, reverse):
    function = LayoutDependent.apply
    compiled = funcaot.compile(lambda x: LayoutDependent.apply(x), backend=backend)
    x = torch.randn(3, 4, requires_grad=True)
    names = list(tangents_2d())
    for name in reversed(names) if reverse else names:
        tangent = tangents_2d()[name]
        assert_close(gradient_of(compiled, x, tangent), gradient_of(function, x, tangent), msg=name)
    assert funcaot.report(compiled).backward_traces == len(names)
    for name in names:
        tangent = tangents_2d()[name]
        assert_close(gradient_of(compiled, x, tangent), gradient_of(function, x, tangent), msg=name)
    assert funcaot.report(compiled).backward_traces == len(names)


def test_channels_last_tangents():
    compiled = funcaot.compile(lambda x: LayoutDependent.apply(x), backend="eager")
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    for tangent in (
        torch.randn(2, 3, 4, 5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 5),
    ):
        expected = gradient_of(LayoutDependent.apply, x, tangent)
        assert_close(gradient_of(compiled, x, tangent), expected)
    assert funcaot.report(compiled).backward_traces == 2


def test_the_expanded_tangent_of_a_sum():
    compiled = funcaot.compile(lambda x: LayoutDependent.apply(x), backend="eager")
    x = torch.randn(3, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(LayoutDependent.apply(x).sum(), x)
    (actual,) = torch.autograd.grad(compiled(x).sum(), x)
    assert_close(actual, expected)
    assert_close(actual, 3 * x.detach())


class WhichAreNone(funcaot.Function):
    """Its gradient says which grad_outputs there were."""

    @staticmethod
    def forward(x):
        return x.clone(), x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, first, second):
        if first is None:
            return second * 100
        if second is None:
            return first * 10
        return first + second


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_which_grad_outputs_are_none_decides(backend):
    compiled = funcaot.compile(lambda x: WhichAreNone.apply(x), backend=backend)
    x = torch.randn(3, requires_grad=True)
    for pick in ([0], [1], [0, 1], [1], [0]):
        wanted, made = WhichAreNone.apply(x), compiled(x)
        expected = torch.autograd.grad([wanted[i].sum() for i in pick], x)
        actual = torch.autograd.grad([made[i].sum() for i in pick], x)
        assert_close(actual, expected)
    assert funcaot.report(compiled).backward_traces == 3


def test_a_tangent_of_another_dtype_view_is_its_own_signature():
    compiled = funcaot.compile(lambda x: x * x, backend="eager")
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    tangent = torch.randn(3, dtype=torch.complex64)
    for given in (tangent, tangent.conj(), tangent):
        (expected,) = torch.autograd.grad(x * x, x, given)
        (actual,) = torch.autograd.grad(compiled(x), x, given)
        assert_close(actual, expected)
    assert funcaot.report(compiled).backward_traces == 2
