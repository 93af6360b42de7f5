"""Functions for planted mistakes that the database has no need of."""

from __future__ import annotations

import functools

import torch
from torch.utils.checkpoint import checkpoint

import funcaot
from funcaot import Function
from funcaot.testing import opinfo
from funcaot.testing.database import FUNCTIONS
from funcaot.testing.samples import unary


class FirstOfTwo(Function):
    """Its second output isn't used, so that backward gets None for it."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return 2 * x, 3 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, first, second):
        return 2 * first if second is None else 2 * first + 3 * second


def noisy(x):
    return checkpoint(lambda x: x * x * (torch.rand_like(x) + 1).exp(), x, use_reentrant=False)


def masked(x):
    return ((x * 1.5 - 1).relu() * 2).sum(-1)


def written(x):
    return x.mul_(2) + 1


@functools.cache
def compiled_write():
    return funcaot.compile(written, backend="eager")


def write(function, x):
    copy = x * 1
    return function(copy), copy


EXTRA = (
    opinfo(
        FirstOfTwo,
        unary(),
        op=lambda x: FirstOfTwo.apply(x)[0],
        ref=lambda x: 2 * x,
        name="FirstOutputOnly",
    ),
    opinfo(noisy, unary(), ref=noisy, random=True, name="NoiseOfTorch"),
    opinfo(masked, unary(), ref=masked, name="ReluOfTorch"),
    opinfo(
        lambda x: write(compiled_write(), x),
        unary(),
        ref=lambda x: write(written, x),
        name="CompiledWrite",
    ),
)
INFOS = {info.name: info for info in (*FUNCTIONS, *EXTRA)}


class MeansOverRows(Function):
    """A product whose backward takes the mean over a dimension that was broadcast."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return MeansOverRows.back(grad * y, x), MeansOverRows.back(grad * x, y)

    @staticmethod
    def back(grad, like):
        return grad.mean(0) if grad.shape[1:] == like.shape else grad.sum_to_size(like.shape)


class ClampsItsInput(Function):
    """It writes to its input, and only where that is small."""

    @staticmethod
    def forward(x):
        return x.clamp_(min=-1e6) * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class RoundedBeside(Function):
    """A result that is marked non-differentiable, and jumps; nothing is wrong."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x * x, x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        return 2 * ctx.saved_tensors[0] * grad
