"""Gathering, scattering, transforms of signals, sparse gradients."""

from __future__ import annotations

import torch

from funcaot.functions.function import Function
from funcaot.testing.database.reductions import Generated
from funcaot.testing.records import Limitation, Sample, opinfo
from funcaot.testing.samples import from_maker, rowwise


class GatherRows(Generated):
    """Picks entries of the last dimension by an integer tensor."""

    @staticmethod
    def forward(x, index):
        return x.gather(-1, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, index = inputs
        ctx.save_for_backward(index)
        ctx.width = x.shape[-1]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        zeros = torch.zeros_like(grad[..., :1]).expand(*grad.shape[:-1], ctx.width)
        return zeros.scatter_add(-1, index, grad), None


class ScatterAdd(Generated):
    """Adds entries into a base; the transpose of a gather."""

    @staticmethod
    def forward(base, index, source):
        return base.scatter_add(-1, index, source)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad, None, grad.gather(-1, index)


class Embedding(Generated):
    """Rows of a table, some of them more than once."""

    @staticmethod
    def forward(table, index):
        return table[index]

    @staticmethod
    def setup_context(ctx, inputs, output):
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        one_hot = (
            index.unsqueeze(0) == torch.arange(ctx.rows, device=index.device).unsqueeze(-1)
        ).to(grad.dtype)
        return one_hot @ grad, None


class SparseEmbedding(Function):
    """The gradient of the table is a sparse COO tensor."""

    @staticmethod
    def forward(table, index):
        return table[index]

    @staticmethod
    def setup_context(ctx, inputs, output):
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.shape = table.shape

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(
            index.unsqueeze(0), grad, ctx.shape, check_invariants=True
        ), None


class Roll(Generated):
    """A linear Function whose backward is itself with the opposite shift."""

    @staticmethod
    def forward(x, shift):
        return x.roll(shift, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shift = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return Roll.apply(grad, -ctx.shift), None


class RealFourier(Generated):
    """A real signal to its complex spectrum; the backward weighs the inner bins."""

    @staticmethod
    def forward(x):
        return torch.fft.fft(x).clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.size = inputs[0].shape[-1]

    @staticmethod
    def backward(ctx, grad):
        return torch.fft.ifft(grad).real * ctx.size


class CircularConvolution(Generated):
    """Through the spectrum forward and backward."""

    @staticmethod
    def forward(x, kernel):
        return torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(kernel)).real.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, kernel = ctx.saved_tensors
        spectrum = torch.fft.fft(grad)
        grad_x = torch.fft.ifft(spectrum * torch.fft.fft(kernel).conj()).real
        grad_kernel = torch.fft.ifft(spectrum * torch.fft.fft(x).conj()).real
        return grad_x, grad_kernel


class MovingAverage(Generated):
    """Windows by ``unfold``: a view with overlapping memory inside the forward."""

    @staticmethod
    def forward(x):
        return x.unfold(-1, 2, 1).mean(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        edge = torch.zeros_like(grad[..., :1])
        return 0.5 * (torch.cat([grad, edge], -1) + torch.cat([edge, grad], -1))


class CumulativeProduct(Generated):
    """A division-free backward by reversed cumulative sums (inputs away from zero)."""

    @staticmethod
    def forward(x):
        return x.cumprod(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, grad):
        x, result = ctx.saved_tensors
        weighted = grad * result
        return weighted.flip(-1).cumsum(-1).flip(-1) / x


class MaskedFill(Generated):
    """A bool tensor as argument."""

    @staticmethod
    def forward(x, mask, value):
        return x.masked_fill(mask, value)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad.masked_fill(mask, 0.0), None, None


def gather_samples(make):
    """Indices with repetitions."""
    yield Sample(make(2, 3), (make.integers(2, 4, below=3),), name="matrix")
    yield Sample(make(3), (make.integers(2, below=3),), name="vector")
    yield Sample(make.transposed(2, 3), (make.integers(2, 3, below=3),), name="transposed")


def scatter_samples(make):
    """A base, indices and a source of the indices' shape."""
    yield Sample(make(2, 3), (make.integers(2, 4, below=3), make(2, 4)), name="matrix")
    yield Sample(make(3), (make.integers(2, below=3), make(2)), name="vector")


def embedding_samples(make):
    """A table of four rows."""
    yield Sample(make(4, 2), (make.integers(3, below=4),), name="vector")


def mask_samples(make):
    """A mask with both values."""
    yield Sample(make(2, 3), (make(2, 3, requires_grad=False) > 0, 1.5), name="matrix")
    yield Sample(make.strided(2, 3), (make(2, 3, requires_grad=False) > 0, -1.0), name="strided")


def signal_samples(make):
    """Two signals of one length."""
    yield Sample(make(4), (make(4),), name="vector")
    yield Sample(make(2, 3), (make(2, 3),), name="matrix")


def convolution_reference(x, kernel):
    """The sum over shifts, without a spectrum."""
    size = x.shape[-1]
    return sum(x[..., shift : shift + 1] * kernel.roll(shift, -1) for shift in range(size))


NO_SPARSE_BATCH = "torch.func.vmap has no rules for sparse tensors"

INFOS = (
    opinfo(
        GatherRows,
        from_maker(gather_samples),
        ref=lambda x, index: x.gather(-1, index),
        features=("gather", "integer argument"),
    ),
    opinfo(
        ScatterAdd,
        from_maker(scatter_samples),
        ref=lambda base, index, source: base.scatter_add(-1, index, source),
        features=("scatter", "integer argument"),
    ),
    opinfo(
        Embedding,
        from_maker(embedding_samples),
        ref=lambda table, index: table.index_select(0, index),
        features=("gather", "integer argument"),
    ),
    opinfo(
        SparseEmbedding,
        from_maker(embedding_samples),
        ref=lambda table, index: table.index_select(0, index),
        features=("sparse gradient",),
        # Compiled, and where a second derivative is zero, nothing sparse is batched.
        limitations=tuple(
            Limitation(pattern, NO_SPARSE_BATCH)
            for pattern in (
                "jacrev",
                "jacrev_of_[!c]*",
                "[!c]*_of_jacrev",
                "batched_grads",
                "batched_grads_of_[fv]*",
                "[!c]*_of_batched_grads",
            )
        ),
    ),
    opinfo(
        Roll,
        rowwise(-2.0, 2.0, 1),
        ref=lambda x, shift: x.roll(shift, -1),
        features=("Function in backward",),
    ),
    opinfo(
        RealFourier,
        from_maker(
            lambda make: [Sample(make(4), name="vector"), Sample(make(2, 3), name="matrix")]
        ),
        ref=lambda x: torch.fft.fft(x),
        complex_output=True,
        features=("FFT", "complex output"),
    ),
    opinfo(
        CircularConvolution,
        from_maker(signal_samples),
        ref=convolution_reference,
        features=("FFT", "several inputs"),
    ),
    opinfo(
        MovingAverage,
        from_maker(
            lambda make: [Sample(make(4), name="vector"), Sample(make(2, 3), name="matrix")]
        ),
        ref=lambda x: 0.5 * (x[..., 1:] + x[..., :-1]),
        features=("view in forward",),
    ),
    opinfo(
        CumulativeProduct,
        rowwise(0.5, 2.0),
        ref=lambda x: x.log().cumsum(-1).exp(),
        features=("save output",),
    ),
    opinfo(
        MaskedFill,
        from_maker(mask_samples),
        ref=lambda x, mask, value: torch.where(mask, torch.full_like(x, value), x),
        features=("bool argument",),
    ),
)
