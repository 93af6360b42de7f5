"""Functions with one mistake each, and the check that must find it."""

from __future__ import annotations

import torch

from funcaot import Function

BUFFER = torch.zeros(64, dtype=torch.float64)
GLOBAL_LIST = []


class Correct(Function):
    """What the others are copies of, and the only one without a mistake."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos()


class WrongSign(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -grad * x.cos()


class MissingFactor(Correct):
    @staticmethod
    def forward(x):
        return (2 * x).sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (2 * x).cos()


class ZeroGradient(Correct):
    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)


class NoneGradient(Correct):
    @staticmethod
    def backward(ctx, grad):
        return None


class IgnoresCotangent(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.cos()


class WrongJvp(Correct):
    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.sin()


class ZeroJvp(Correct):
    @staticmethod
    def jvp(ctx, tangent):
        return torch.zeros_like(tangent)


class DroppedMask(Correct):
    @staticmethod
    def forward(x):
        return torch.where(x > 1, x, 0.1 * x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class DetachedSecondOrder(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.detach().cos()


class WrongOutDim(Correct):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return WrongOutDim.apply(x), x.dim() - 1


class ForgetsInDim(Correct):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return ForgetsInDim.apply(x), 0


class VmapWrongValue(Correct):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return x.cos(), in_dims[0]


class VmapOnlyFirst(Correct):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        moved = x.movedim(in_dims[0], 0)
        return VmapOnlyFirst.apply(moved[:1]).expand(moved.shape), 0


class VmapReducesBatch(Correct):
    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return x - x.mean()

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent - tangent.mean()

    @staticmethod
    def vmap(info, in_dims, x):
        return x - x.mean(), in_dims[0]


class SharedBuffer(Correct):
    @staticmethod
    def forward(x):
        result = BUFFER[: x.numel()].view(x.shape)
        result.copy_(x.sin())
        return result.view_as(result)


class StateOnClass(Correct):
    last = None

    @staticmethod
    def setup_context(ctx, inputs, output):
        StateOnClass.last = inputs[0].detach()

    @staticmethod
    def backward(ctx, grad):
        return grad * StateOnClass.last.cos()


class MutatesCotangent(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.mul_(x.cos())


class MutatesInput(Correct):
    @staticmethod
    def forward(x):
        result = x.sin()
        x.add_(1)
        return result


class MutatesInputInBackward(Correct):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.x = inputs[0].detach()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.x.cos_()


class ContiguousOnly(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad.view(-1) * x.reshape(-1).cos()).view(x.shape)


class ReadsStorageOrder(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        ordered = torch.as_strided(grad, grad.shape, x.contiguous().stride())
        return ordered * x.cos()


class ClipsGradient(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad * x.cos()).clamp(-0.5, 0.5)


class AddsConstant(Correct):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() + 1


class KeepsOutput(Correct):
    @staticmethod
    def forward(ctx, x):
        ctx.result = x.exp()
        return ctx.result

    setup_context = staticmethod(torch.autograd.Function.setup_context)
    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.result


class KeepsOutputGlobally(Correct):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        GLOBAL_LIST.append(output)


class RedrawnRandomness(Correct):
    @staticmethod
    def forward(x):
        return x * (torch.rand_like(x) + 0.5)

    @staticmethod
    def backward(ctx, grad):
        return grad * (torch.rand_like(grad) + 0.5)

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * (torch.rand_like(tangent) + 0.5)


class WrongSecondOutput(Correct):
    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sine, grad_cosine):
        (x,) = ctx.saved_tensors
        return grad_sine * x.cos()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos(), -tangent * x.sin()


class SwappedGradients(Correct):
    @staticmethod
    def forward(x, y):
        return x * x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * x * x, grad * 2 * x * y

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        result = torch.zeros_like(x)
        result = result if tangent_x is None else result + 2 * x * y * tangent_x
        return result if tangent_y is None else result + x * x * tangent_y


class WrongGradientShape(Correct):
    @staticmethod
    def forward(x, y):
        return x * y.sum()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y.sum(), (grad * x).mean().expand(y.shape)

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        result = torch.zeros_like(x)
        result = result if tangent_x is None else result + tangent_x * y.sum()
        return result if tangent_y is None else result + x * tangent_y.sum()


# The mistake, and the rows of which at least one must say so.
PLANTED = {
    WrongSign: {"gradient"},
    MissingFactor: {"gradient"},
    ZeroGradient: {"gradient"},
    NoneGradient: {"gradient"},
    IgnoresCotangent: {"gradient"},
    WrongJvp: {"jvp rule", "jvp"},
    ZeroJvp: {"jvp rule", "jvp"},
    DroppedMask: {"gradient"},
    DetachedSecondOrder: {"second order"},
    WrongOutDim: {"vmap"},
    ForgetsInDim: {"vmap_last"},
    VmapWrongValue: {"vmap"},
    VmapOnlyFirst: {"vmap"},
    VmapReducesBatch: {"vmap"},
    SharedBuffer: {"calls independent"},
    StateOnClass: {"calls independent"},
    MutatesCotangent: {"cotangent unchanged"},
    MutatesInput: {"inputs unchanged"},
    MutatesInputInBackward: {"inputs unchanged"},
    ContiguousOnly: {"any cotangent layout"},
    ReadsStorageOrder: {"any cotangent layout"},
    ClipsGradient: {"linear backward"},
    AddsConstant: {"gradient", "linear backward"},
    KeepsOutput: {"memory freed"},
    KeepsOutputGlobally: {"memory freed"},
    RedrawnRandomness: {"gradient"},
    WrongSecondOutput: {"gradient"},
    SwappedGradients: {"gradient"},
    WrongGradientShape: {"gradient"},
}
