"""Elementwise Functions: each way to have a rule, on the simplest mathematics."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from funcaot.functions.function import Function
from funcaot.testing.records import opinfo
from funcaot.testing.samples import binary, broadcasting, unary


class Square(Function):
    """Saves its input; has every rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * x * tangent


class ExpSavesOutput(Function):
    """Saves its output, whose own derivative is this Function's again."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result


class SinExplicitVmap(Function):
    """A hand-written vmap rule that moves the batch dimension."""

    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return SinExplicitVmap.apply(x.movedim(in_dims[0], -1)), x.dim() - 1


class Multiply(Function):
    """Honours ``needs_input_grad``: None for the argument that needs no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        grad_x = grad * y.conj() if ctx.needs_input_grad[0] else None
        grad_y = grad * x.conj() if ctx.needs_input_grad[1] else None
        return grad_x, grad_y

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        terms = []
        if tangent_x is not None:
            terms.append(tangent_x * y)
        if tangent_y is not None:
            terms.append(x * tangent_y)
        return sum(terms[1:], terms[0])


class BroadcastingMultiply(Function):
    """Sums the gradient over the dimensions that broadcasting added."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return (grad * y).sum_to_size(x.shape), (grad * x).sum_to_size(y.shape)


class LeakyRelu(Function):
    """A Python number as argument, kept on the context."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x, slope):
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.slope = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, ctx.slope * grad), None


class PowerOfScalar(Function):
    """A Python exponent; the backward calls a Function with another exponent."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x, exponent):
        return x**exponent

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.exponent = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.exponent * PowerOfScalar.apply(x, ctx.exponent - 1), None


class StableSoftplus(Function):
    """``log(1 + exp(x))`` with a backward that never overflows."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


class MemoryEfficientSwish(Function):
    """Keeps only the input and recomputes the sigmoid in backward."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad * (gate * (1 + x * (1 - gate)))


class TanhGelu(Function):
    """The tanh approximation of GELU with a hand-written derivative."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        inner = torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3))
        slope = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x)
        return grad * (0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * slope)


class HuberLoss(Function):
    """A piecewise loss of two arguments; the gradients are each other's negative."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(prediction, target):
        error = (prediction - target).abs()
        return torch.where(error < 1, 0.5 * error * error, error - 0.5)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        prediction, target = ctx.saved_tensors
        slope = grad * (prediction - target).clamp(-1, 1)
        return slope, -slope


class ComplexSquare(Function):
    """Holomorphic: the backward conjugates what the jvp does not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (2 * x).conj()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * x * tangent


class TwiceUsedVjp(Function):
    """Spells its backward ``vjp``, the other name that torch accepts."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vjp(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


REAL_AND_SINGLE = (torch.float64, torch.float32)
WITH_COMPLEX = (torch.float64, torch.float32, torch.complex128)

INFOS = (
    opinfo(
        Square,
        unary(),
        ref=lambda x: x * x,
        dtypes=REAL_AND_SINGLE,
        features=("save inputs", "every rule"),
    ),
    opinfo(ExpSavesOutput, unary(), ref=torch.exp, features=("save output", "generated jvp")),
    opinfo(SinExplicitVmap, unary(), ref=torch.sin, features=("explicit vmap", "generated jvp")),
    opinfo(
        Multiply, binary(), ref=torch.mul, dtypes=WITH_COMPLEX, features=("needs_input_grad", "jvp")
    ),
    opinfo(BroadcastingMultiply, broadcasting(), ref=torch.mul, features=("broadcasting",)),
    opinfo(
        LeakyRelu,
        unary(-2.0, 2.0, 0.1),
        ref=lambda x, slope: torch.where(x > 0, x, slope * x),
        features=("non-tensor argument",),
    ),
    opinfo(
        PowerOfScalar,
        unary(0.5, 2.0, 4),
        ref=lambda x, exponent: x**exponent,
        features=("non-tensor argument", "Function in backward"),
    ),
    opinfo(StableSoftplus, unary(), ref=F.softplus, features=("stable formula",)),
    opinfo(
        MemoryEfficientSwish,
        unary(),
        ref=lambda x: x * torch.sigmoid(x),
        features=("recompute",),
    ),
    opinfo(TanhGelu, unary(), ref=lambda x: F.gelu(x, approximate="tanh")),
    opinfo(
        HuberLoss,
        binary(),
        ref=lambda x, y: torch.where(
            (x - y).abs() < 1, 0.5 * (x - y) * (x - y), (x - y).abs() - 0.5
        ),
    ),
    opinfo(ComplexSquare, unary(), ref=lambda x: x * x, dtypes=(torch.complex128,)),
    opinfo(TwiceUsedVjp, unary(), ref=lambda x: x**3, features=("vjp staticmethod",)),
)
