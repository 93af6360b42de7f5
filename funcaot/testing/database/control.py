"""Control flow, randomness, layout, recomputation, Functions inside Functions."""

from __future__ import annotations

import torch

from funcaot.functions.function import Function
from funcaot.testing.database.elementwise import Multiply, Square
from funcaot.testing.database.odd_rules import GradientReversal
from funcaot.testing.database.reductions import Generated
from funcaot.testing.records import Limitation, Sample, opinfo
from funcaot.testing.samples import binary, from_maker, unary


class LayoutBranch(Generated):
    """Takes a fast path for a contiguous cotangent; both paths are the same mathematics."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if grad.is_contiguous() and x.is_contiguous():
            return (grad.view(x.numel()) * x.view(x.numel()).cos()).view(x.shape)
        return grad * x.cos()


class DataDependentBranch(Function):
    """Branches on a value; its vmap rule loops."""

    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        factor = x.new_tensor(2.0 if bool(x.sum() > 0) else -1.0)
        return factor * x, factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        # The branch that was taken is a tensor, so that a batch can have taken both.
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        (factor,) = ctx.saved_tensors
        return factor * grad

    @staticmethod
    def vmap(info, in_dims, x):
        rows = [DataDependentBranch.apply(row) for row in x.movedim(in_dims[0], 0)]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0, 0)


class ItemInBackward(Function):
    """Reads a Python number from a tensor in backward."""

    @staticmethod
    def forward(x):
        return x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (3 if x.detach().numel() >= 0 else float(x.sum().item()))


class Dropout(Generated):
    """Draws a mask in forward and saves it for backward."""

    @staticmethod
    def forward(x):
        mask = torch.rand_like(x) < 0.5
        return 2 * x * mask, mask

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        (mask,) = ctx.saved_tensors
        return 2 * grad * mask


class ReparameterizedNormal(Generated):
    """A sample of a normal with differentiable location and scale."""

    @staticmethod
    def forward(location, scale):
        noise = torch.rand_like(location) - 0.5
        return location + scale * noise, noise

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        (noise,) = ctx.saved_tensors
        return grad, grad * noise


class CheckpointedTanh(Generated):
    """Checkpoint-like: keeps the inputs and differentiates a second forward in backward."""

    @staticmethod
    def forward(weight, x):
        return torch.tanh(weight @ torch.tanh(weight @ x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        _, pullback = torch.func.vjp(CheckpointedTanh.forward, *ctx.saved_tensors)
        return pullback(grad)


class CouplingLayer(Generated):
    """Reversible: keeps its outputs and reconstructs the inputs."""

    @staticmethod
    def forward(left, right):
        return left.view_as(left), right + left.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad_left, grad_right):
        (left,) = ctx.saved_tensors
        return grad_left + grad_right * (1 - left.tanh() ** 2), grad_right


class CallsFunctions(Generated):
    """Functions called in forward and in backward."""

    @staticmethod
    def forward(x, y):
        return Square.apply(Multiply.apply(x, y))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        shared = 2 * grad * Multiply.apply(x, y)
        return Multiply.apply(shared, y), Multiply.apply(shared, x)


class StashesIntermediate(Generated):
    """Keeps a tensor as a plain attribute of the context."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.x, ctx.y = inputs

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y, grad * ctx.x


class GradientStatistics(Function):
    """Its backward writes the size of the gradient into a buffer that it was given."""

    @staticmethod
    def forward(x, buffer):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.buffer = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        ctx.buffer.add_(grad.detach().abs().sum())
        return grad * x.cos(), None


def function_pair(x):
    """A program of two Functions, of which one has an odd rule."""
    return GradientReversal.apply(Square.apply(x), 2.0)


def closure_program(x):
    """Closes over a tensor that is not an argument."""
    return Multiply.apply(x, CONSTANT.expand(x.shape))


CONSTANT = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def dropout_reference(x):
    """The same draws in plain torch."""
    mask = torch.rand_like(x) < 0.5
    return 2 * x * mask, mask


def branch_reference(x):
    """Both branches, one chosen."""
    factor = torch.where(x.detach().sum() > 0, 2.0, -1.0).to(x.dtype)
    return factor * x, factor


def normal_reference(location, scale):
    """The same draws in plain torch."""
    noise = torch.rand_like(location) - 0.5
    return location + scale * noise, noise


def checkpoint_samples(make):
    """A square weight and a vector."""
    yield Sample(make(2, 2), (make(2),), name="square")


def statistics_samples(make):
    """A buffer that requires no grad."""
    yield Sample(make(2, 3), name="matrix")


def with_fresh_buffer(x):
    """Calls the Function with a buffer that nobody else sees."""
    return GradientStatistics.apply(x, torch.zeros((), dtype=x.dtype, device=x.device))


INFOS = (
    opinfo(LayoutBranch, unary(), ref=torch.sin, features=("layout-dependent backward",)),
    opinfo(
        DataDependentBranch,
        from_maker(
            lambda make: [
                Sample(make(2, 3, low=0.5), name="positive"),
                Sample(make(2, 3, high=-0.5), name="negative"),
            ]
        ),
        ref=branch_reference,
        features=("data-dependent branch", "explicit vmap", "opaque to tracing"),
    ),
    opinfo(ItemInBackward, unary(), ref=lambda x: 3 * x, features=("opaque backward",)),
    opinfo(
        Dropout,
        unary(),
        ref=dropout_reference,
        random=True,
        true_derivative=False,
        features=("random", "non-differentiable output"),
    ),
    opinfo(
        ReparameterizedNormal,
        binary(),
        ref=normal_reference,
        random=True,
        features=("random",),
    ),
    opinfo(
        CheckpointedTanh,
        from_maker(checkpoint_samples),
        ref=lambda weight, x: torch.tanh(weight @ torch.tanh(weight @ x)),
        features=("checkpoint", "transform in backward"),
    ),
    opinfo(
        CouplingLayer,
        binary(),
        ref=lambda left, right: (left.clone(), right + left.tanh()),
        features=("reversible", "view of an input"),
    ),
    opinfo(
        CallsFunctions,
        binary(),
        ref=lambda x, y: (x * y) ** 2,
        features=("Function in forward", "Function in backward"),
    ),
    opinfo(StashesIntermediate, binary(), ref=torch.mul, features=("stash on ctx",)),
    opinfo(
        GradientStatistics,
        from_maker(statistics_samples),
        op=with_fresh_buffer,
        ref=torch.sin,
        supports_vmap=False,
        supports_forward_ad=False,
        name="GradientStatistics",
        features=("buffer-updating backward",),
        limitations=(
            # A second derivative doesn't write.
            *(
                Limitation(pattern, "torch.func.vmap refuses to write a batch into one buffer")
                for pattern in (
                    "*jacrev",
                    "jacrev_of_[!g]*",
                    "*batched_grads",
                    "batched_grads_of_[!ag]*",
                )
            ),
            *(
                Limitation(f"{outer}_of_compile", "a backward may write to inputs only")
                for outer in (
                    "grad",
                    "vjp",
                    "autograd",
                    "autograd_strided",
                    "grad_sum",
                    "autograd_of_autograd",
                )
            ),
        ),
    ),
    opinfo(
        function_pair,
        unary(),
        name="FunctionPair",
        ref=lambda x: 3 * (x * x).detach() - 2 * x * x,
        true_derivative=False,
        features=("several Functions",),
    ),
    opinfo(
        closure_program,
        from_maker(lambda make: [Sample(make(2, 3), name="matrix")]),
        name="ClosureProgram",
        ref=lambda x: x * CONSTANT,
        features=("closure over a tensor",),
    ),
)
