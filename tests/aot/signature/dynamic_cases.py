"""Functions that are called with many sizes, and how their results are compared with eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import funcaot


def leaves_of(value: Any) -> list[Any]:
    return pytree.tree_flatten(value)[0]


def check_equal(given: Any, expected: Any) -> None:
    """Values, types, strides and requires_grad of two trees."""
    given, expected = leaves_of(given), leaves_of(expected)
    for mine, theirs in zip(given, expected, strict=True):
        assert type(mine) is type(theirs)
        if not isinstance(mine, torch.Tensor):
            assert mine == theirs
            continue
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        assert mine.requires_grad == theirs.requires_grad
        if 0 not in mine.shape and 1 not in mine.shape:
            assert mine.stride() == theirs.stride()


def gradients(results: Any, inputs: list[torch.Tensor], kind: str) -> list[Any]:
    """Gradients for grad_outputs of some layout, made from a fixed seed."""
    outputs = [t for t in leaves_of(results) if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(1)
    given = []
    for output in outputs:
        if kind == "expanded":
            given.append(torch.full((), 0.5).expand(output.shape))
            continue
        shape = output.shape if kind == "contiguous" else output.shape[::-1]
        made = torch.randn(shape, generator=generator)
        given.append(
            made if kind == "contiguous" else made.permute(tuple(reversed(range(made.dim()))))
        )
    if not outputs:
        return []
    return list(torch.autograd.grad(outputs, inputs, given, retain_graph=True, allow_unused=True))


def check(
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    kinds: tuple[str, ...] = ("contiguous", "expanded"),
) -> None:
    """Compare one call and its gradients with eager."""
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
    expected, result = function(*inputs), compiled(*inputs)
    check_equal(result, expected)
    for kind in kinds:
        check_equal(gradients(result, inputs, kind), gradients(expected, inputs, kind))


def graphs_of(compiled: Any) -> int:
    return funcaot.report(compiled).graphs_compiled


def mlp(x, first, bias, second):
    return F.relu(x @ first + bias) @ second


def convolution(x, weight):
    return F.max_pool2d(F.relu(F.conv2d(x, weight, padding=1)), 2).flatten(1)


def attention(query, key, value):
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    return scores.softmax(-1) @ value


def views(x):
    return x.view(-1) * 2, x.reshape(x.shape[0] * 2, 3), x[1:], x.t(), x[:, None].expand(-1, 4, -1)


def joins(x):
    return torch.cat([x, x.sin()]), torch.stack([x, x * 2]).sum(0), x.repeat(2, 1)


def ranges(x):
    positions = torch.arange(x.shape[0])
    return x * positions[:, None], torch.ones(x.shape[0], x.shape[0]).tril() @ x


def statistics(x):
    return x.mean(), x.std(0), x.softmax(0), x.cumsum(0), x.sum() / x.shape[0], x.amax(0)


def sizes(x):
    return x * x.shape[0], x.shape[0], [x.numel()], x.shape, x.size(0) > 3


def writes(x):
    y = x * 2
    y.add_(1)
    y[0] = 0
    y[:, 1].mul_(3)
    return y


def normalized(x):
    return F.layer_norm(x, (6,)), F.normalize(x), F.batch_norm(x, None, None, training=True)


def heads(x):
    batch = x.shape[0]
    return x.view(batch, 2, 3).transpose(0, 1).reshape(2, batch * 3)


class Scale(torch.autograd.Function):
    """Multiplies by a number that may be a size."""

    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None

    @staticmethod
    def vmap(info, in_dims, x, factor):
        return Scale.apply(x, factor), in_dims[0]


def custom(x):
    return Scale.apply(x, x.shape[0]).sin()


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], list[tuple[int, ...]]]]] = {
    "mlp": (mlp, lambda n: [(n, 3), (3, 4), (4,), (4, 2)]),
    "convolution": (convolution, lambda n: [(n, 3, 8, 8), (4, 3, 3, 3)]),
    "attention": (attention, lambda n: [(2, n, 8)] * 3),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda n: [(2, 2, n, 8)] * 3,
    ),
    "views": (views, lambda n: [(n, 6)]),
    "joins": (joins, lambda n: [(n, 6)]),
    "ranges": (ranges, lambda n: [(n, 6)]),
    "statistics": (statistics, lambda n: [(n, 6)]),
    "sizes": (sizes, lambda n: [(n, 6)]),
    "writes": (writes, lambda n: [(n, 6)]),
    "normalized": (normalized, lambda n: [(n, 6)]),
    "heads": (heads, lambda n: [(n, 6)]),
    "custom": (custom, lambda n: [(n, 6)]),
    "two sizes": (lambda x, y: torch.cat([x, y]).sin(), lambda n: [(n, 3), (2 * n + 1, 3)]),
    "square": (lambda x: torch.linalg.inv(x + 9 * torch.eye(x.shape[0])), lambda n: [(n, n)]),
}
