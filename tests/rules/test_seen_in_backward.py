"""What a backward on real values reads of autograd is what eager's reads."""

from __future__ import annotations

import pytest
import torch

import funcaot


def reads(tensor):
    flags = tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is None
    return *flags, torch.is_grad_enabled()


class Counting(torch.autograd.Function):
    """Its backward changes Python in each call, so it is never traced."""

    calls = 0
    seen: tuple = ()

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.kept = [w]
        return x.sin() * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        Counting.calls += 1
        Counting.seen = tuple(map(reads, (g, x, w, ctx.kept[0])))
        scale = 1.0 + sum(sum(each) * 4**place for place, each in enumerate(Counting.seen))
        of_w = (g * x).sin() if ctx.needs_input_grad[1] else None
        return g * x.cos() * w * scale, of_w


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
def test_flags_of_tensors_and_grad_mode(leaf, again):
    def f(x, w):
        return Counting.apply(x if leaf else x * 2, w)

    def run(function):
        x = torch.tensor([0.5, 2.0], requires_grad=True)
        w = torch.tensor([1.0, 3.0], requires_grad=leaf)
        wanted = [x, w] if leaf else [x]
        found = []
        for _ in range(2):
            gradients = torch.autograd.grad(function(x, w).sum(), wanted, create_graph=again)
            seen = Counting.seen
            if again:
                gradients += torch.autograd.grad(sum(map(torch.sum, gradients)), wanted)
            found.append((seen, gradients))
        return found

    for ours, eager in zip(run(funcaot.compile(f, backend="eager")), run(f), strict=True):
        assert ours[0] == eager[0]
        for gradient, expected in zip(ours[1], eager[1], strict=True):
            torch.testing.assert_close(gradient, expected)
            assert not gradient.requires_grad or again


def test_gradients_by_what_requires_grad():
    class Kernel(torch.autograd.Function):
        """Like a backward that differentiates by those saved tensors that require grad."""

        calls = 0

        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, g):
            Kernel.calls += 1
            given = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
            asked = [t for t in given if t.requires_grad]
            with torch.enable_grad():
                found = iter(torch.autograd.grad((given[0] @ given[1] * g).sum(), asked))
            return tuple(next(found) if t.requires_grad else None for t in given)

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    compiled = funcaot.compile(lambda x, w: Kernel.apply(x.sin(), w), backend="eager")
    for wanted in ([x, w], [x]):
        expected = torch.autograd.grad((x.sin() @ w).sum(), wanted)
        for found, right in zip(
            torch.autograd.grad(compiled(x, w).sum(), wanted), expected, strict=True
        ):
            torch.testing.assert_close(found, right)
