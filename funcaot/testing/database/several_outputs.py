"""Outputs of every kind: several, unused, repeated, an input as is, integers, non-tensors."""

from __future__ import annotations

import torch

from funcaot.functions.function import Function
from funcaot.testing.database.reasons import no_empty_batch
from funcaot.testing.database.reductions import Generated
from funcaot.testing.records import Sample, opinfo
from funcaot.testing.samples import binary, from_maker, rowwise, unary


class SinCos(Generated):
    """Two outputs, each saved for the other's derivative."""

    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx, grad_sine, grad_cosine):
        sine, cosine = ctx.saved_tensors
        return grad_sine * cosine - grad_cosine * sine


class UnmaterializedPair(Function):
    """``set_materialize_grads(False)``: the gradient of an unused output is None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_product, grad_sum):
        x, y = ctx.saved_tensors
        grad_x, grad_y = grad_sum, grad_sum
        if grad_product is not None:
            through_x, through_y = grad_product * y, grad_product * x
            grad_x = through_x if grad_sum is None else grad_sum + through_x
            grad_y = through_y if grad_sum is None else grad_sum + through_y
        return grad_x, grad_y

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        zero = torch.zeros_like(x)
        tangent_x = zero if tangent_x is None else tangent_x
        tangent_y = zero if tangent_y is None else tangent_y
        return tangent_x * y + x * tangent_y, tangent_x + tangent_y


class SortWithIndices(Generated):
    """An integer output, marked non-differentiable."""

    @staticmethod
    def forward(x):
        return x.sort(dim=-1)[0], x.sort(dim=-1)[1]

    @staticmethod
    def setup_context(ctx, inputs, output):
        indices = output[1]
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)

    @staticmethod
    def backward(ctx, grad, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, indices, grad)


class MaximumWithIndex(Generated):
    """A reduction that says where the maximum was."""

    @staticmethod
    def forward(x):
        return x.amax(-1), x.argmax(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, grad, _):
        x, index = ctx.saved_tensors
        return torch.zeros_like(x).scatter(-1, index.unsqueeze(-1), grad.unsqueeze(-1))


class FloatAndDetached(Generated):
    """A float output that is marked non-differentiable."""

    @staticmethod
    def forward(x):
        return x * x, x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class SameOutputTwice(Generated):
    """One tensor returned in two places: both gradients arrive."""

    @staticmethod
    def forward(x):
        result = x.exp()
        return result, result

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_first, grad_second):
        (x,) = ctx.saved_tensors
        return (grad_first + grad_second) * x.exp()


class InputReturnedAsIs(Generated):
    """Returns an input without marking it dirty: autograd makes it a view."""

    @staticmethod
    def forward(x, y):
        return x, x + y.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        # torch refuses to save an input that is also an output.
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad_x, grad_sum):
        (y,) = ctx.saved_tensors
        return grad_x + grad_sum, grad_sum * y.cos()


class IntegerPart(Generated):
    """A fractional part that is differentiated and an int64 part that is not."""

    @staticmethod
    def forward(x):
        whole = x.floor()
        return x - whole, whole.to(torch.int64)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        return grad


class CountAsOutput(Generated):
    """A Python number among the outputs."""

    @staticmethod
    def forward(x):
        return x * 2, x.shape[-1]

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad, _):
        return 2 * grad


class ComplexAndBack(Generated):
    """Real input, complex output."""

    @staticmethod
    def forward(x):
        return torch.complex(x.cos(), x.sin())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -x.sin() * grad.real + x.cos() * grad.imag


class SumOfMany(Generated):
    """Any number of positional arguments; the gradients are one tensor, shared."""

    @staticmethod
    def forward(*tensors):
        return sum(tensors[1:], tensors[0])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.count = len(inputs)

    @staticmethod
    def backward(ctx, grad):
        return (grad,) * ctx.count


class SplitInHalves(Generated):
    """Outputs that are views of the input, of which autograd makes outputs of their own."""

    @staticmethod
    def forward(x):
        half = x.shape[-1] // 2
        return x[..., :half].clone(), x[..., half:].clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_left, grad_right):
        return torch.cat([grad_left, grad_right], -1)


def many_samples(make):
    """Two, three and one tensors."""
    yield Sample(make(2, 3), (make(2, 3), make(2, 3)), name="three")
    yield Sample(make(3), (), name="one")
    yield Sample(make(3), (make(3, requires_grad=False),), name="constant")


def maximum_reference(x):
    """The maximum by the index, so that ties would go to one element."""
    index = x.argmax(-1)
    return x.gather(-1, index.unsqueeze(-1)).squeeze(-1), index


def halves_reference(x):
    """Both halves of the last dimension."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


INFOS = (
    opinfo(
        SinCos,
        unary(),
        ref=lambda x: (x.sin(), x.cos()),
        features=("several outputs", "save output"),
    ),
    opinfo(
        UnmaterializedPair,
        binary(),
        ref=lambda x, y: (x * y, x + y),
        features=("set_materialize_grads", "several outputs"),
    ),
    opinfo(
        SortWithIndices,
        rowwise(),
        ref=lambda x: tuple(x.sort(dim=-1)),
        features=("integer output", "non-differentiable output"),
    ),
    opinfo(
        MaximumWithIndex,
        rowwise(),
        ref=maximum_reference,
        features=("integer output", "non-differentiable output"),
    ),
    opinfo(
        FloatAndDetached,
        unary(),
        ref=lambda x: (x * x, x.detach() + 1),
        true_derivative=False,
        features=("non-differentiable output",),
        limitations=no_empty_batch("hessian"),
    ),
    opinfo(
        SameOutputTwice,
        unary(),
        ref=lambda x: (x.exp(), x.exp()),
        features=("output returned twice",),
    ),
    opinfo(
        InputReturnedAsIs,
        binary(),
        ref=lambda x, y: (x.clone(), x + y.sin()),
        features=("input returned as is",),
    ),
    opinfo(
        IntegerPart,
        unary(),
        ref=lambda x: (x - x.detach().floor(), x.detach().floor().to(torch.int64)),
        features=("integer output",),
    ),
    opinfo(
        CountAsOutput,
        rowwise(),
        ref=lambda x: (x * 2, x.shape[-1]),
        features=("non-tensor output",),
    ),
    opinfo(
        ComplexAndBack,
        unary(),
        ref=lambda x: torch.complex(x.cos(), x.sin()),
        complex_output=True,
        features=("complex output",),
    ),
    opinfo(
        SumOfMany,
        from_maker(many_samples),
        ref=lambda *tensors: sum(tensors[1:], tensors[0].clone()),
        features=("variadic", "shared gradient"),
    ),
    opinfo(SplitInHalves, rowwise(), ref=halves_reference, features=("several outputs",)),
)
