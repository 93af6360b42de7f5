"""Functions with one rule of two: only a jvp, only a backward, or no second order."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from funcaot.functions.function import Function
from funcaot.testing.records import opinfo
from funcaot.testing.samples import binary, unary


class CubeFromJvp(Function):
    """Only a jvp; the backward is generated from it."""

    generate_vmap_rule = True
    generate_backward_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tangent


class DivideFromJvp(Function):
    """Only a jvp, of two arguments."""

    generate_vmap_rule = True
    generate_backward_rule = True

    @staticmethod
    def forward(x, y):
        return x / y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        terms = []
        if tangent_x is not None:
            terms.append(tangent_x / y)
        if tangent_y is not None:
            terms.append(-x / (y * y) * tangent_y)
        return sum(terms[1:], terms[0])


class JvpOnly(Function):
    """Only a jvp and no permission to generate: reverse mode must say what is missing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos()


class BackwardOnly(Function):
    """Only a backward, nothing generated: forward mode and vmap must say what is missing."""

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * (1 - result * result)


class TanhGeneratedJvp(Function):
    """Only a backward; the jvp is generated, the vmap rule too."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * (1 - result * result)


class OnceDifferentiable(Function):
    """A backward that may not be differentiated; the second derivative raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


class DifferentSaved(Function):
    """Saves different tensors for backward and for forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y, output)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors[:2]
        return grad * y.exp(), grad * x * y.exp()

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors[:2]
        result = torch.zeros_like(x)
        if tangent_x is not None:
            result = result + tangent_x * y.exp()
        if tangent_y is not None:
            result = result + x * y.exp() * tangent_y
        return result


INFOS = (
    opinfo(CubeFromJvp, unary(), ref=lambda x: x**3, features=("jvp only", "generated backward")),
    opinfo(
        DivideFromJvp,
        binary(0.5, 2.0),
        ref=torch.div,
        features=("jvp only", "generated backward"),
    ),
    opinfo(
        JvpOnly,
        unary(),
        ref=torch.sin,
        features=("jvp only", "missing rule"),
    ),
    opinfo(BackwardOnly, unary(), ref=torch.tanh, features=("backward only", "missing rule")),
    opinfo(TanhGeneratedJvp, unary(), ref=torch.tanh, features=("generated jvp", "generated vmap")),
    opinfo(
        OnceDifferentiable,
        unary(),
        ref=lambda x: x**3,
        features=("once_differentiable",),
    ),
    opinfo(DifferentSaved, binary(), ref=lambda x, y: x * y.exp(), features=("save_for_forward",)),
)
