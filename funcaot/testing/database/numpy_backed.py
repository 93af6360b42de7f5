"""Functions whose mathematics runs in NumPy: nothing that torch could trace or batch."""

from __future__ import annotations

import numpy
import torch

from funcaot.functions.function import Function
from funcaot.testing.database.reasons import no_empty_batch
from funcaot.testing.records import Sample, opinfo
from funcaot.testing.samples import binary, from_maker, rowwise, unary


def to_numpy(tensor):
    """The values of a tensor as an array."""
    return tensor.detach().cpu().numpy()


def from_numpy(array, like):
    """An array as a tensor of the device and dtype of another."""
    return torch.as_tensor(numpy.asarray(array), dtype=like.dtype, device=like.device)


class NumpyCube(Function):
    """Returns the factor that backward needs as a second, non-differentiable output."""

    @staticmethod
    def forward(x):
        array = to_numpy(x)
        return from_numpy(array**3, x), from_numpy(3 * array**2, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        _cube, slope = output
        ctx.mark_non_differentiable(slope)
        ctx.save_for_backward(x, slope)
        ctx.save_for_forward(x, slope)

    @staticmethod
    def backward(ctx, grad, grad_slope):
        x, _slope = ctx.saved_tensors
        # A product of Functions, so that the derivative of this line is right as well.
        return NumpyMultiply.apply(NumpyMultiply.apply(x, x), 3 * grad)

    @staticmethod
    def jvp(ctx, tangent):
        x, _slope = ctx.saved_tensors
        return NumpyMultiply.apply(NumpyMultiply.apply(x, x), 3 * tangent), None

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpyCube.apply(x), (in_dims[0], in_dims[0])


class NumpyMultiply(Function):
    """Backward and jvp call the Function itself, so every order is NumPy."""

    @staticmethod
    def forward(x, y):
        return from_numpy(to_numpy(x) * to_numpy(y), x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        grad_x = NumpyMultiply.apply(grad, y) if ctx.needs_input_grad[0] else None
        grad_y = NumpyMultiply.apply(grad, x) if ctx.needs_input_grad[1] else None
        return grad_x, grad_y

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        terms = []
        if tangent_x is not None:
            terms.append(NumpyMultiply.apply(tangent_x, y))
        if tangent_y is not None:
            terms.append(NumpyMultiply.apply(x, tangent_y))
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(info, in_dims, x, y):
        rank = max(
            tensor.dim() - (dim is not None) for tensor, dim in zip((x, y), in_dims, strict=True)
        )
        return NumpyMultiply.apply(
            batch_first(x, in_dims[0], rank), batch_first(y, in_dims[1], rank)
        ), 0


def batch_first(tensor, dim, rank):
    """Moves the batch dimension to the front of a tensor whose elements have this rank."""
    moved = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    return moved.reshape(moved.shape[0], *[1] * (rank + 1 - moved.dim()), *moved.shape[1:])


class NumpySort(Function):
    """Sorts the last dimension; the permutations are non-differentiable outputs."""

    @staticmethod
    def forward(x):
        array = to_numpy(x)
        order = numpy.argsort(array, axis=-1)
        inverse = numpy.argsort(order, axis=-1)
        result = numpy.take_along_axis(array, order, axis=-1)
        return from_numpy(result, x), torch.as_tensor(order), torch.as_tensor(inverse)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, order, inverse = output
        ctx.mark_non_differentiable(order, inverse)
        ctx.save_for_backward(order, inverse)
        ctx.save_for_forward(order, inverse)

    @staticmethod
    def backward(ctx, grad, *unused):
        order, inverse = ctx.saved_tensors
        return NumpyTake.apply(grad, inverse, order)

    @staticmethod
    def jvp(ctx, tangent):
        order, inverse = ctx.saved_tensors
        return NumpyTake.apply(tangent, order, inverse), None, None

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpySort.apply(x.movedim(in_dims[0], 0)), (0, 0, 0)


class NumpyTake(Function):
    """Takes along the last dimension; needs the inverse permutation for its backward."""

    @staticmethod
    def forward(x, order, inverse):
        return from_numpy(numpy.take_along_axis(to_numpy(x), to_numpy(order), axis=-1), x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, order, inverse = inputs
        ctx.save_for_backward(order, inverse)
        ctx.save_for_forward(order, inverse)

    @staticmethod
    def backward(ctx, grad):
        order, inverse = ctx.saved_tensors
        return NumpyTake.apply(grad, inverse, order), None, None

    @staticmethod
    def jvp(ctx, tangent, *unused):
        order, inverse = ctx.saved_tensors
        return NumpyTake.apply(tangent, order, inverse)

    @staticmethod
    def vmap(info, in_dims, x, order, inverse):
        moved = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, order, inverse), in_dims, strict=True)
        ]
        return NumpyTake.apply(*moved), 0


class NumpySinCos(Function):
    """Two differentiable NumPy outputs; the vmap rule gives them different batch dimensions."""

    @staticmethod
    def forward(x):
        return from_numpy(numpy.sin(to_numpy(x)), x), from_numpy(numpy.cos(to_numpy(x)), x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_sine, grad_cosine):
        (x,) = ctx.saved_tensors
        sine, cosine = NumpySinCos.apply(x)
        return grad_sine * cosine - grad_cosine * sine

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        sine, cosine = NumpySinCos.apply(x)
        return cosine * tangent, -sine * tangent

    @staticmethod
    def vmap(info, in_dims, x):
        sine, cosine = NumpySinCos.apply(x)
        last = x.dim() - 1
        return (sine, cosine.movedim(in_dims[0], last)), (in_dims[0], last)


class NumpyCumulativeSum(Function):
    """Only a backward, in NumPy as well: a generated jvp has nothing to differentiate but calls."""

    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return from_numpy(numpy.cumsum(to_numpy(x), axis=-1), x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return NumpyReverseCumulativeSum.apply(grad)

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpyCumulativeSum.apply(x.movedim(in_dims[0], 0)), 0


class NumpyReverseCumulativeSum(Function):
    """The transpose of the cumulative sum; each is the backward of the other."""

    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        reversed_sum = numpy.cumsum(to_numpy(x)[..., ::-1], axis=-1)
        return from_numpy(reversed_sum[..., ::-1].copy(), x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return NumpyCumulativeSum.apply(grad)

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpyReverseCumulativeSum.apply(x.movedim(in_dims[0], 0)), 0


def sort_reference(x):
    """The sorted values and both permutations, in plain torch."""
    result, order = x.sort(dim=-1)
    return result, order, order.argsort(dim=-1)


def take_samples(make):
    """A tensor with a permutation of its last dimension and the inverse."""
    for name, shape in {"matrix": (2, 3), "vector": (4,), "empty": (0, 3)}.items():
        x = make(*shape)
        order = make(*shape, requires_grad=False).argsort(dim=-1)
        yield Sample(x, (order, order.argsort(dim=-1)), name=name)


NUMPY = ("NumPy", "opaque to tracing")

INFOS = (
    opinfo(
        NumpyCube,
        unary(),
        ref=lambda x: (x**3, (3 * x**2).detach()),
        true_derivative=False,
        features=(*NUMPY, "non-differentiable output"),
        limitations=no_empty_batch("hessian"),
    ),
    opinfo(NumpyMultiply, binary(), ref=torch.mul, features=NUMPY),
    opinfo(
        NumpySort,
        rowwise(),
        ref=sort_reference,
        features=(*NUMPY, "integer output", "non-differentiable output"),
    ),
    opinfo(
        NumpyTake,
        from_maker(take_samples),
        ref=lambda x, order, inverse: x.gather(-1, order),
        features=(*NUMPY, "integer argument"),
    ),
    opinfo(
        NumpySinCos,
        unary(),
        ref=lambda x: (x.sin(), x.cos()),
        features=(*NUMPY, "several outputs", "mixed out_dims"),
    ),
    opinfo(
        NumpyCumulativeSum,
        rowwise(),
        ref=lambda x: x.cumsum(-1),
        features=(*NUMPY, "generated jvp"),
    ),
)
