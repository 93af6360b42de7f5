"""``mark_dirty``: Functions that write into their inputs, and buffers that a rule updates."""

from __future__ import annotations

from functools import partial

import torch

from funcaot.functions.function import Function
from funcaot.testing.database.odd_rules import with_derivative_of
from funcaot.testing.database.reasons import IN_PLACE_BATCH, no_empty_batch
from funcaot.testing.database.reductions import Generated
from funcaot.testing.records import FunctionInfo, Limitation, Sample, opinfo
from funcaot.testing.samples import binary, from_maker, unary


class SinInPlace(Generated):
    """One dirty input, which is the output; keeps what it needs of the old value."""

    @staticmethod
    def forward(x):
        cosine = x.cos()
        x.sin_()
        return x, cosine

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        (cosine,) = ctx.saved_tensors
        return grad * cosine


class ExpInPlace(Generated):
    """The dirty output is what backward needs."""

    @staticmethod
    def forward(x):
        return x.exp_()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result


class ScaleBothInPlace(Generated):
    """Two dirty inputs, two outputs."""

    @staticmethod
    def forward(x, y):
        return x.mul_(2), y.mul_(3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx, grad_x, grad_y):
        return 2 * grad_x, 3 * grad_y


class AccumulateInPlace(Generated):
    """One dirty input of two; the other is only read."""

    @staticmethod
    def forward(total, x):
        return total.add_(x * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        total, x = inputs
        ctx.mark_dirty(total)
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad, 2 * x * grad


class DirtyAndNew(Generated):
    """A dirty input and a new tensor, both differentiable."""

    @staticmethod
    def forward(x, y):
        product = x * y
        return x.add_(y), product

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.mark_dirty(x)
        # The value of x before the update, recovered from the dirty one.
        ctx.save_for_backward(output[0], y)

    @staticmethod
    def backward(ctx, grad_sum, grad_product):
        total, y = ctx.saved_tensors
        x = total - y
        return grad_sum + grad_product * y, grad_sum + grad_product * x


class NegateInPlaceOldStyle(Function):
    """Dirty in the old style, with the context as first argument of forward."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.neg_()

    @staticmethod
    def backward(ctx, grad):
        return -grad


def on_clone(function, count, *tensors):
    """Applies an in-place Function to clones of the first ``count`` tensors; returns those too.

    Returning the clones shows whether the caller's tensor really changed.
    """
    clones = tuple(tensor.clone() for tensor in tensors[:count])
    result = function.apply(*clones, *tensors[count:])
    outputs = result if isinstance(result, tuple) else (result,)
    return (*outputs, *clones)


def on_view(x):
    """The dirty input is a view; its base must change too."""
    base = x.clone()
    result = ExpInPlace.apply(base[..., :1])
    return result, base


def on_view_reference(x):
    """The same in plain torch, out of place."""
    changed = x[..., :1].exp()
    return changed, torch.cat([changed, x[..., 1:]], -1)


def sine_reference(x):
    """The saved cosine is a non-differentiable output, so the second derivative is zero."""
    cosine = x.cos().detach()
    sine = with_derivative_of(x.sin(), x * cosine)
    return sine, cosine, sine


def dirty_view_samples(make):
    """A matrix and a transposed one."""
    yield Sample(make(2, 3), name="matrix")
    yield Sample(make.transposed(2, 3), name="transposed")


def in_place(function, count, samples, ref, **known) -> FunctionInfo:
    """The record of an in-place Function that is tested on clones."""
    features = ("mark_dirty", *known.pop("features", ()))
    return opinfo(
        function,
        samples,
        ref=ref,
        op=partial(on_clone, function, count),
        features=features,
        **known,
    )


FIRST_ONLY = Limitation("vmap_first_only_of_jvp", IN_PLACE_BATCH)
SECOND_ONLY = tuple(
    Limitation(name, IN_PLACE_BATCH, sample="second") for name in ("jacfwd", "hessian")
)

INFOS = (
    in_place(
        SinInPlace,
        1,
        unary(),
        ref=sine_reference,
        features=("non-differentiable output",),
        true_derivative=False,
        limitations=(*no_empty_batch("hessian"), FIRST_ONLY),
    ),
    in_place(
        ExpInPlace,
        1,
        unary(),
        ref=lambda x: (x.exp(), x.exp()),
        features=("save output",),
        limitations=(FIRST_ONLY,),
    ),
    in_place(
        ScaleBothInPlace,
        2,
        binary(),
        ref=lambda x, y: (2 * x, 3 * y, 2 * x, 3 * y),
        features=("several outputs",),
    ),
    in_place(
        AccumulateInPlace,
        1,
        binary(),
        ref=lambda total, x: (total + x * x, total + x * x),
        limitations=SECOND_ONLY,
    ),
    in_place(
        DirtyAndNew,
        1,
        binary(),
        ref=lambda x, y: (x + y, x * y, x + y),
        limitations=SECOND_ONLY,
    ),
    in_place(NegateInPlaceOldStyle, 1, unary(), ref=lambda x: (-x, -x), features=("old style",)),
    opinfo(
        ExpInPlace,
        from_maker(dirty_view_samples),
        ref=on_view_reference,
        name="ExpInPlaceOnView",
        op=on_view,
        features=("mark_dirty", "dirty view"),
        limitations=(
            FIRST_ONLY,
            Limitation("vmap_first_only_of_vjp", IN_PLACE_BATCH),
            Limitation("*vmap_of_functionalize_of_*", "as_strided_scatter has no batching rule"),
        ),
    ),
)
