"""Rules that are deliberately not the derivative: estimators, reversal, clipping, branches."""

from __future__ import annotations

import torch

from funcaot.functions.function import Function
from funcaot.testing.database.reductions import Generated
from funcaot.testing.records import Sample, opinfo
from funcaot.testing.samples import from_maker, unary


class StraightThroughRound(Generated):
    """Rounds forward, passes the gradient through."""

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad


class BinarizeWithMask(Generated):
    """The sign forward; the gradient passes where the input is within one."""

    @staticmethod
    def forward(x):
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class LearnedStepQuantize(Generated):
    """Quantization whose step size has a gradient of its own."""

    @staticmethod
    def forward(x, step):
        return (x / step).clamp(-2, 2).round() * step

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, step = ctx.saved_tensors
        scaled = (x / step).detach()
        inside = scaled.abs() < 2
        slope = torch.where(inside, scaled.round() - scaled, scaled.clamp(-2, 2).round())
        return grad * inside, (grad * slope).sum_to_size(step.shape)


class GradientReversal(Generated):
    """The identity whose gradient changes sign (domain-adversarial training)."""

    @staticmethod
    def forward(x, strength):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.strength = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class GradientClip(Function):
    """The identity whose gradient is clipped: a backward that is not linear."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.5, 0.5)


class StopGradient(Generated):
    """Backward returns None."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return None, grad * x


class ZeroGradient(Generated):
    """Backward returns zeros that do not depend on the cotangent."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.zeros_like(x)


class OddBackwardInBackward(Generated):
    """The backward calls a Function whose own backward is odd: seen at second order."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * GradientReversal.apply(x, 3.0) * grad


class ScaledGradient(Generated):
    """Scales the gradient by a tensor that gets no gradient."""

    @staticmethod
    def forward(x, scale):
        return x * 1.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (scale,) = ctx.saved_tensors
        return grad * scale.detach(), None


class HardTopOne(Generated):
    """One-hot of the largest entry forward, softmax backward (straight-through argmax)."""

    @staticmethod
    def forward(x):
        classes = torch.arange(x.shape[-1], device=x.device)
        return (x.argmax(-1, keepdim=True) == classes).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        soft = torch.softmax(x, -1)
        return soft * (grad - (grad * soft).sum(-1, keepdim=True))


def with_derivative_of(value, surrogate):
    """A tensor with the values of one expression and the derivatives of another."""
    return value.detach() + surrogate - surrogate.detach()


def binarize_reference(x):
    """The derivative of the clamped identity."""
    inside = (x.abs() <= 1).to(x.dtype).detach()
    return with_derivative_of(torch.where(x >= 0, 1.0, -1.0).to(x.dtype), x * inside)


def quantize_reference(x, step):
    """Both gradients by constants times the arguments."""
    scaled = (x / step).detach()
    inside = (scaled.abs() < 2).to(x.dtype)
    slope = torch.where(scaled.abs() < 2, scaled.round() - scaled, scaled.clamp(-2, 2).round())
    value = (x / step).clamp(-2, 2).round() * step
    return with_derivative_of(value, x * inside + step * slope)


class Clipped(torch.autograd.Function):
    """Torch's own Function: the reference of a non-linear backward has no closed form."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.clamp(grad, min=-0.5, max=0.5)


class StopReference(torch.autograd.Function):
    """The gradient of the second argument still depends on the first: no detach says that."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.zeros_like(grad) * x, x * grad


class OddSquareReference(torch.autograd.Function):
    """The backward's odd part written with detach."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * (-3 * x + (4 * x).detach()) * grad


def quantize_samples(make):
    """A step per tensor and a step per column."""
    yield Sample(make(2, 3), (make(low=0.4, high=0.6),), name="one_step")
    yield Sample(make(2, 3), (make(3, low=0.4, high=0.6),), name="step_per_column")


def scale_samples(make):
    """A scale of the same shape, not differentiated."""
    yield Sample(make(2, 3), (make(2, 3, requires_grad=False),), name="matrix")
    yield Sample(make.transposed(2, 3), (make(2, 3, requires_grad=False),), name="transposed")


def pair_samples(make):
    """Two matrices that both require grad."""
    yield Sample(make(2, 3), (make(2, 3),), name="matrix")


ODD = {"true_derivative": False}

INFOS = (
    opinfo(
        StraightThroughRound,
        unary(),
        ref=lambda x: with_derivative_of(x.round(), x),
        features=("straight-through",),
        **ODD,
    ),
    opinfo(
        BinarizeWithMask, unary(), ref=binarize_reference, features=("straight-through",), **ODD
    ),
    opinfo(
        LearnedStepQuantize,
        from_maker(quantize_samples),
        ref=quantize_reference,
        features=("straight-through", "broadcasting"),
        **ODD,
    ),
    opinfo(
        GradientReversal,
        unary(-2.0, 2.0, 3.0),
        ref=lambda x, strength: (1 + strength) * x.detach() - strength * x,
        features=("gradient reversal",),
        **ODD,
    ),
    opinfo(
        GradientClip,
        unary(),
        ref=Clipped.apply,
        linear_backward=False,
        features=("gradient clipping", "non-linear backward"),
        **ODD,
    ),
    opinfo(
        StopGradient,
        from_maker(pair_samples),
        ref=StopReference.apply,
        features=("None gradient",),
        **ODD,
    ),
    opinfo(
        ZeroGradient, unary(), ref=lambda x: x.detach().sin() + 0 * x, features=("zero",), **ODD
    ),
    opinfo(
        OddBackwardInBackward,
        unary(),
        ref=OddSquareReference.apply,
        features=("Function in backward", "odd second order"),
        **ODD,
    ),
    opinfo(
        ScaledGradient,
        from_maker(scale_samples),
        ref=lambda x, scale: with_derivative_of(x, x * scale.detach()),
        features=("gradient scaling",),
        **ODD,
    ),
    opinfo(
        HardTopOne,
        from_maker(lambda make: [Sample(make(2, 3), name="matrix")]),
        ref=lambda x: with_derivative_of(
            (x.argmax(-1, keepdim=True) == torch.arange(x.shape[-1], device=x.device)).to(x.dtype),
            torch.softmax(x, -1),
        ),
        features=("straight-through",),
        **ODD,
    ),
)
