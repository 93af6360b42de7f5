"""Layers from practice with hand-written backward: softmax, norms, attention, losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from funcaot.functions.function import Function
from funcaot.testing.database.reasons import no_empty_batch
from funcaot.testing.records import Sample, opinfo
from funcaot.testing.samples import from_maker, rowwise


class Generated(Function):
    """A Function whose vmap and jvp rules are generated."""

    generate_vmap_rule = True
    generate_jvp_rule = True


class Softmax(Generated):
    """Over the last dimension, from the saved result."""

    @staticmethod
    def forward(x):
        return torch.softmax(x, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return result * (grad - (grad * result).sum(-1, keepdim=True))


class LogSumExp(Generated):
    """Over the last dimension; saves input and output."""

    @staticmethod
    def forward(x):
        return torch.logsumexp(x, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, grad):
        x, result = ctx.saved_tensors
        return grad.unsqueeze(-1) * (x - result.unsqueeze(-1)).exp()


class CrossEntropy(Generated):
    """Logits and integer labels; the gradient is softmax minus one-hot."""

    @staticmethod
    def forward(logits, labels):
        picked = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(logits, -1) - picked

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        logits, labels = ctx.saved_tensors
        classes = torch.arange(logits.shape[-1], device=logits.device)
        one_hot = (labels.unsqueeze(-1) == classes).to(logits.dtype)
        return grad.unsqueeze(-1) * (torch.softmax(logits, -1) - one_hot), None


class LayerNorm(Generated):
    """Weight and bias, statistics as outputs that are not differentiated."""

    @staticmethod
    def forward(x, weight, bias):
        centred = x - x.mean(-1, keepdim=True)
        inverse = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return centred * inverse * weight + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        inverse = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        normalised = centred * inverse
        scaled = grad * weight
        mean = scaled.mean(-1, keepdim=True)
        projection = normalised * (scaled * normalised).mean(-1, keepdim=True)
        grad_weight = (grad * normalised).sum_to_size(weight.shape)
        return inverse * (scaled - mean - projection), grad_weight, grad.sum_to_size(weight.shape)


class RootMeanSquareNorm(Generated):
    """Needs no mean; a Python epsilon travels on the context."""

    @staticmethod
    def forward(x, weight, epsilon):
        return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.epsilon = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        inverse = (x.square().mean(-1, keepdim=True) + ctx.epsilon).rsqrt()
        scaled = grad * weight
        correction = x * inverse.pow(3) * (scaled * x).mean(-1, keepdim=True)
        return scaled * inverse - correction, (grad * x * inverse).sum_to_size(weight.shape), None


class Attention(Generated):
    """Scaled dot product of queries, keys and values; recomputes the weights."""

    @staticmethod
    def forward(query, key, value):
        return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        query, key, value = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        weights = torch.softmax(query @ key.mT * scale, -1)
        grad_weights = grad @ value.mT
        centred = grad_weights - (grad_weights * weights).sum(-1, keepdim=True)
        grad_scores = weights * centred * scale
        return grad_scores @ key, grad_scores.mT @ query, weights.mT @ grad


class EuclideanNorm(Generated):
    """Zero gradient at zero, where the formula divides by zero."""

    @staticmethod
    def forward(x):
        return x.square().sum(-1).sqrt()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        square = x.square().sum(-1, keepdim=True)
        safe = torch.where(square > 0, square, torch.ones_like(square))
        unit = torch.where(square > 0, x * safe.rsqrt(), torch.zeros_like(x))
        return grad.unsqueeze(-1) * unit


class Variance(Generated):
    """A reduction of everything to a scalar: the tangent of a sum is expanded."""

    @staticmethod
    def forward(x):
        return (x - x.mean()).square().mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * (x - x.mean()) / x.numel()


class BatchStandardise(Generated):
    """Standardises over the first dimension, with a statistic as an extra output."""

    @staticmethod
    def forward(x):
        mean = x.mean(0)
        return x - mean, mean

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.size = inputs[0].shape[0]

    @staticmethod
    def backward(ctx, grad, grad_mean):
        return grad - grad.mean(0) + grad_mean / ctx.size


class LinearLayer(Generated):
    """A matrix product with an optional bias (None)."""

    @staticmethod
    def forward(x, weight, bias):
        product = x @ weight.t()
        return product if bias is None else product + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x, grad.sum(0) if ctx.has_bias else None


def cross_entropy_samples(make):
    """Logits of three classes, labels below three."""
    yield Sample(make(2, 3), (make.integers(2, below=3),), name="matrix")
    yield Sample(make(3), (make.integers(below=3),), name="vector")
    yield Sample(make.transposed(2, 3), (make.integers(2, below=3),), name="transposed")
    yield Sample(make(0, 3), (make.integers(0, below=3),), name="empty")


def norm_samples(make):
    """Rows with a weight and a bias."""
    yield Sample(make(2, 3), (make(3), make(3)), name="matrix")
    yield Sample(make.transposed(2, 3), (make(3), make.strided(3)), name="transposed")
    yield Sample(make(3), (make(3), make(3)), name="vector")
    yield Sample(make(2, 3), (make(3, requires_grad=False), make(3)), name="weight_constant")


def root_norm_samples(make):
    """Rows with a weight and an epsilon."""
    yield Sample(make(2, 3), (make(3), 1e-3), name="matrix")
    yield Sample(make.transposed(2, 3), (make(3), 1e-3), name="transposed")


def attention_samples(make):
    """Queries, keys and values, with and without a head dimension."""
    yield Sample(make(2, 3), (make(3, 3), make(3, 2)), name="matrix")
    yield Sample(make(2, 2, 2), (make(2, 3, 2), make(2, 3, 2)), name="heads")
    yield Sample(make.transposed(2, 3), (make(2, 3), make.strided(2, 2)), name="layouts")


def linear_samples(make):
    """With a bias, without, and with a constant weight."""
    yield Sample(make(2, 3), (make(2, 3), make(2)), name="bias")
    yield Sample(make(2, 3), (make(2, 3), None), name="no_bias")
    yield Sample(make(2, 3), (make(2, 3, requires_grad=False), make(2)), name="weight_constant")


def layer_norm_reference(x, weight, bias):
    """From the definition: the third derivative of torch's own layer norm is wrong."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * weight + bias


def norm_reference(x):
    """The norm of each row, in plain torch."""
    return torch.linalg.vector_norm(x, dim=-1)


INFOS = (
    opinfo(
        Softmax,
        rowwise(),
        ref=lambda x: torch.softmax(x, -1),
        dtypes=(torch.float64, torch.float32),
        features=("save output",),
    ),
    opinfo(LogSumExp, rowwise(), ref=lambda x: torch.logsumexp(x, -1), features=("reduction",)),
    opinfo(
        CrossEntropy,
        from_maker(cross_entropy_samples),
        ref=lambda x, labels: F.cross_entropy(
            x.reshape(-1, x.shape[-1]), labels.reshape(-1), reduction="none"
        ).reshape(labels.shape),
        features=("integer argument",),
    ),
    opinfo(
        LayerNorm,
        from_maker(norm_samples),
        ref=layer_norm_reference,
        features=("several inputs", "broadcasting"),
    ),
    opinfo(
        RootMeanSquareNorm,
        from_maker(root_norm_samples),
        ref=lambda x, weight, epsilon: F.rms_norm(x, x.shape[-1:], weight, epsilon),
        features=("non-tensor argument",),
    ),
    opinfo(
        Attention,
        from_maker(attention_samples),
        ref=lambda q, k, v: torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v,
        features=("several inputs", "recompute"),
    ),
    opinfo(EuclideanNorm, rowwise(0.5, 2.0), ref=norm_reference, features=("safe at zero",)),
    opinfo(
        Variance,
        rowwise(),
        ref=lambda x: (x - x.mean()).square().mean(),
        limitations=no_empty_batch("jacfwd", "hessian"),
        features=("reduction", "expanded tangent"),
    ),
    opinfo(
        BatchStandardise,
        # The mean of nothing is nan, and so is its tangent; the oracle's cotangents are empty.
        rowwise(empty=False),
        ref=lambda x: (x - x.mean(0), x.mean(0)),
        features=("several outputs",),
    ),
    opinfo(
        LinearLayer,
        from_maker(linear_samples),
        ref=lambda x, weight, bias: F.linear(x, weight, bias),
        features=("None argument",),
    ),
)
