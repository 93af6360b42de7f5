"""Functions whose mistakes sit where few look: some values, layouts, orders, modes, memory."""

from __future__ import annotations

import torch

from funcaot import Function
from tests.testing.planted_bugs import Correct

WORKSPACE = torch.zeros(64, dtype=torch.float64)


class WrongBelowMinusTwo(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.where(x < -2, x.sin(), x.cos())


class OffByTenThousandth(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * (1 + 1e-4)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos() * (1 + 1e-4)


class OffByMillionths(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * (1 + 5e-6)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos() * (1 + 5e-6)


class ComputesInSingle(Correct):
    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.float().cos().double() * (1 + 2e-6)


class NanAtZero(Correct):
    """The norm of each number: its backward divides zero by zero."""

    @staticmethod
    def forward(x):
        return x.abs()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x / x.abs()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.sign()


class SevenAtZero(Correct):
    @staticmethod
    def forward(x):
        return x.relu()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.where(x == 0, 7.0, (x > 0).to(x.dtype))

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * (x > 0).to(x.dtype)


class AllOfTheTies(Correct):
    """The largest number: each of several equal ones gets the whole gradient."""

    @staticmethod
    def forward(x):
        return x.amax()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx, grad):
        x, largest = ctx.saved_tensors
        return grad * (x == largest).to(x.dtype)

    @staticmethod
    def jvp(ctx, tangent):
        x, largest = ctx.saved_tensors
        ties = (x == largest).to(x.dtype)
        return (tangent * ties).sum() / ties.sum()


class BothOfATie(Correct):
    """The larger of two numbers: where they are equal, each gets the whole gradient."""

    @staticmethod
    def forward(x, y):
        return torch.maximum(x, y)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * (x >= y), grad * (y >= x)

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        return torch.where(x >= y, tangent_x, tangent_y)


class HalfOfATie(BothOfATie):
    """As torch does it, so this isn't a mistake."""

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        half = torch.where(x == y, 0.5, 1.0)
        return grad * half * (x >= y), grad * half * (y >= x)


class FirstOfATie(BothOfATie):
    """Nor is this."""

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * (x >= y), grad * (y > x)


class SignAtZero(Correct):
    """Right, with a kink that tiny numbers of both signs are next to."""

    @staticmethod
    def forward(x):
        return x.abs()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.sgn()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.sgn()


class LargestOfEach(Correct):
    """Right, and of tiny numbers the largest is hardly larger."""

    @staticmethod
    def forward(x):
        values, places = x.reshape(-1, x.shape[-1] if x.dim() else 1).max(-1)
        return values, places

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, grad, _):
        (places,) = ctx.saved_tensors
        zeros = grad.new_zeros(places.shape[0], ctx.shape[-1] if ctx.shape else 1)
        return zeros.scatter(1, places[:, None], grad[:, None]).reshape(ctx.shape)

    @staticmethod
    def jvp(ctx, tangent):
        (places,) = ctx.saved_tensors
        rows = tangent.reshape(places.shape[0], ctx.shape[-1] if ctx.shape else 1)
        return rows.gather(1, places[:, None])[:, 0], None


class Doubles(Function):
    """Right, and in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def doubled(x):
    return Doubles.apply(x.clone())


class ClipsLargeCotangents(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.clamp(-1e3, 1e3) * x.cos()


class DropsSmallCotangents(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(grad.abs() < 1e-3, 0.0, grad) * x.cos()


class OverflowsFarOut(Correct):
    @staticmethod
    def forward(x):
        return torch.nn.functional.softplus(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.exp() / (1 + x.exp())

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.sigmoid()


class RoundsTinyNumbers(Correct):
    """The square: its backward adds what is meant to keep a division safe."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * (x + 1e-7)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 2 * tangent * x


class ReadsInputStorage(Correct):
    @staticmethod
    def forward(x):
        strides = torch.empty(x.shape, device="meta").stride()
        return torch.as_strided(x, x.shape, strides).sin()


class FailsOnEmpty(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * (grad.abs().max() / grad.abs().max())


class ForgetsToSumBroadcast(Correct):
    """A product whose forward broadcasts and whose backward leaves out a factor where it does."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, (grad * x).mean(0) if grad.shape != y.shape else grad * x

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        result = torch.zeros_like(x * y)
        result = result if tangent_x is None else result + tangent_x * y
        return result if tangent_y is None else result + x * tangent_y


class ForgetsToConjugate(Correct):
    """Right for real numbers, and it takes complex ones."""


class ConjugatesToo(Correct):
    """No mistake, of complex numbers either."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos().conj()


class EmbedsTwice(Correct):
    """Its gradient for x + 0j is twice that for x."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos().conj() * (2 if x.is_complex() else 1)


class EmbedsAnother(Correct):
    """Its result for x + 0j is another than that for x."""

    @staticmethod
    def forward(x):
        return x.abs().sin() if x.is_complex() else x.sin()


class SecondOrderWrong(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.detach().cos()


class Cosine(Function):
    """The cosine, whose own derivative is a constant for autograd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -grad * x.detach().sin()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return -tangent * x.sin()


class ThirdOrderWrong(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * Cosine.apply(x)


class ForwardOrderWrong(Correct):
    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.detach().cos()


class ReturnsTangentItself(Correct):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent


class ViewWithItsOwnTangent(Correct):
    """Its output shares memory with the input; the tangents don't."""

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent.clone()


class WritesTangent(Correct):
    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent.mul_(x.cos()).clone()


class OneTangentForTwo(Correct):
    @staticmethod
    def forward(x):
        return 2 * x, 2 * x

    @staticmethod
    def backward(ctx, first, second):
        return 2 * first + 2 * second

    @staticmethod
    def jvp(ctx, tangent):
        doubled = 2 * tangent
        return doubled, doubled


class SharedWorkspace(Correct):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return x.sin(), in_dims[0]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        result = WORKSPACE[: x.numel()].view(x.shape)
        result.copy_(grad * x.cos())
        return result.view(x.shape)


class WrongWhenCompiled(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        sign = -1 if hasattr(x, "elem") or hasattr(grad, "elem") else 1
        return sign * grad * x.cos()


class OnlyUnderGrad(Correct):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return x.cos(), in_dims[0]


def shortcut(x):
    """Uses the Function where something is differentiated, and a shorter way elsewhere."""
    return OnlyUnderGrad.apply(x) if x.requires_grad else x.sin()


# The mistake, and the rows of which at least one must say so.
HIDDEN = {
    WrongBelowMinusTwo: {"gradient"},
    OffByTenThousandth: {"gradient"},
    OffByMillionths: {"gradient"},
    ComputesInSingle: {"jvp rule"},
    NanAtZero: {"gradient"},
    SevenAtZero: {"gradient"},
    AllOfTheTies: {"gradient"},
    BothOfATie: {"gradient"},
    ClipsLargeCotangents: {"linear backward"},
    DropsSmallCotangents: {"linear backward"},
    OverflowsFarOut: {"gradient"},
    RoundsTinyNumbers: {"gradient"},
    ReadsInputStorage: {"any input layout"},
    FailsOnEmpty: {"grad"},
    ForgetsToSumBroadcast: {"gradient"},
    ForgetsToConjugate: {"complex inputs"},
    EmbedsTwice: {"complex inputs"},
    EmbedsAnother: {"complex inputs"},
    ThirdOrderWrong: {"third order"},
    ForwardOrderWrong: {"reverse over forward", "forward over forward"},
    ReturnsTangentItself: {"tangent memory"},
    ViewWithItsOwnTangent: {"tangent memory"},
    WritesTangent: {"tangent memory"},
    OneTangentForTwo: {"tangent memory"},
    SharedWorkspace: {"accumulation"},
    WrongWhenCompiled: {"gradient"},
    shortcut: {"rules used"},
}
