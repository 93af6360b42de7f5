"""Functions from before ``setup_context``: forward takes the context."""

from __future__ import annotations

import torch

from funcaot.functions.function import Function
from funcaot.testing.records import Sample, opinfo
from funcaot.testing.samples import binary, from_maker, rowwise, unary


class OldStyle(Function):
    """Generated rules for Functions whose forward takes the context."""

    generate_vmap_rule = True
    generate_jvp_rule = True


class OldSquare(OldStyle):
    """The smallest one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class OldMultiply(OldStyle):
    """Branches on ``needs_input_grad`` in forward and in backward."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        grad_x = grad * y if ctx.needs_input_grad[0] else None
        grad_y = grad * x if ctx.needs_input_grad[1] else None
        return grad_x, grad_y


class OldIntermediate(OldStyle):
    """Saves a tensor that is neither input nor output: first order is exact."""

    @staticmethod
    def forward(ctx, x):
        slope = x.cos()
        ctx.save_for_backward(slope)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad * slope


class OldDefaults(OldStyle):
    """Default arguments that the caller leaves out, and Python values on the context."""

    @staticmethod
    def forward(ctx, x, factor=3.0, bias=None):
        ctx.factor = factor
        ctx.shape = x.shape
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return (grad * ctx.factor).reshape(ctx.shape), None, None


class OldSeveralOutputs(OldStyle):
    """Outputs of which one is marked non-differentiable."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort(dim=-1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, grad, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, indices, grad)


class OldSavesOutput(OldStyle):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result


class OldStash(OldStyle):
    """Keeps an input on the context without ``save_for_backward``, as many do."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.x * ctx.x * grad


class OldUnmaterialized(OldStyle):
    """``set_materialize_grads(False)`` with an output that is not used."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sine, grad_cosine):
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        if grad_sine is not None:
            total = total + grad_sine * x.cos()
        if grad_cosine is not None:
            total = total - grad_cosine * x.sin()
        return total


class OldWithoutRules(Function):
    """A library's Function: no flag set, no rule but backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return grad * gate * (1 - gate)


class IntermediateReference(torch.autograd.Function):
    """Eager's behaviour at second order: a saved intermediate is a constant."""

    @staticmethod
    def forward(ctx, x):
        slope = x.cos()
        ctx.save_for_backward(slope)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad * slope


OLD = ("old style",)

INFOS = (
    opinfo(OldSquare, unary(), ref=lambda x: x * x, features=OLD),
    opinfo(OldMultiply, binary(), ref=torch.mul, features=(*OLD, "needs_input_grad")),
    opinfo(
        OldIntermediate,
        unary(),
        ref=IntermediateReference.apply,
        supports_gradgrad=True,
        true_derivative=False,
        features=(*OLD, "saved intermediate"),
    ),
    opinfo(
        OldDefaults,
        from_maker(
            lambda make: [
                Sample(make(2, 3), name="defaults"),
                Sample(make(3), (2.0,), name="one_given"),
                Sample(make(3), (2.0, None), name="all_given"),
            ]
        ),
        ref=lambda x, factor=3.0, bias=None: x * factor,
        features=(*OLD, "default arguments"),
    ),
    opinfo(
        OldSeveralOutputs,
        rowwise(),
        ref=lambda x: tuple(x.sort(dim=-1)),
        features=(*OLD, "non-differentiable output", "integer output"),
    ),
    opinfo(OldSavesOutput, unary(), ref=torch.exp, features=(*OLD, "save output")),
    opinfo(OldStash, unary(), ref=lambda x: x**3, features=(*OLD, "stash on ctx")),
    opinfo(
        OldUnmaterialized,
        unary(),
        ref=lambda x: (x.sin(), x.cos()),
        features=(*OLD, "set_materialize_grads"),
    ),
    opinfo(OldWithoutRules, unary(), ref=torch.sigmoid, features=(*OLD, "missing rule")),
)
