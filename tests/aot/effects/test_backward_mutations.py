"""Mutations in a backward: what works is as in eager, what doesn't raises and says why."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


class Counting(torch.autograd.Function):
    """Its backward counts its calls in a buffer and adds up what it got."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        ctx.buffer.add_(gradient.detach().sum())
        return gradient * x.cos() * ctx.buffer.detach().clone(), None


def counted(x, buffer):
    return Counting.apply(x, buffer) * 2


def written_twice(x, buffer):
    buffer.mul_(3)
    return Counting.apply(x, buffer) * 2


def both(function, run):
    """What eager and compiled give, from equal inputs."""
    results = []
    for called in (function, funcaot.compile(function, backend="eager")):
        x = torch.linspace(0.1, 1, 4, dtype=torch.float64, requires_grad=True)
        buffer = torch.ones((), dtype=torch.float64)
        gradients = run(called, x, buffer)
        results.append((*gradients, buffer.clone(), torch.tensor(buffer._version)))
    return results


def once(called, x, buffer):
    return torch.autograd.grad(called(x, buffer).sum(), x)


def twice_kept(called, x, buffer):
    y = called(x, buffer).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    return first + torch.autograd.grad(y, x)


def two_calls(called, x, buffer):
    return torch.autograd.grad((called(x, buffer) + called(x * 2, buffer)).sum(), x)


def other_layouts(called, x, buffer):
    y = called(x, buffer)
    first = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
    return first + torch.autograd.grad(y, x, torch.ones(8, dtype=x.dtype)[::2])


def written_between(called, x, buffer):
    y = called(x, buffer).sum()
    buffer.mul_(5)
    return torch.autograd.grad(y, x)


def recorded(called, x, buffer):
    (gradient,) = torch.autograd.grad(called(x, buffer).sum(), x, create_graph=True)
    return gradient, *torch.autograd.grad(gradient.sum(), x)


RUNS = [once, twice_kept, two_calls, other_layouts, written_between, recorded]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("function", [counted, written_twice])
def test_a_buffer(function, run):
    if function is written_twice and run in (two_calls,):
        pytest.skip("the second forward writes to what the first one keeps")
    eager, compiled = both(function, run)
    for mine, oracle in zip(compiled, eager, strict=True):
        assert_close(mine, oracle)


class Accumulating(torch.autograd.Function):
    """Its backward adds the gradient to an input, and to the grad_output that it got."""

    @staticmethod
    def forward(ctx, x, total):
        ctx.total = total
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        with torch.no_grad():
            ctx.total.add_(gradient)
        return gradient * 2, None


class Scaling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(2)


def test_a_grad_output():
    for scale in (Scaling.apply, funcaot.compile(Scaling.apply, backend="eager")):
        x = torch.ones(3, requires_grad=True)
        gradient = torch.full((3,), 5.0)
        (found,) = torch.autograd.grad(scale(x), x, gradient)
        assert_close(found, torch.full((3,), 10.0))
        assert_close(gradient, torch.full((3,), 10.0))
        assert gradient._version == 1


def test_an_expanded_grad_output_is_refused_as_in_eager():
    for scale in (Scaling.apply, funcaot.compile(Scaling.apply, backend="eager")):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="more than one"):
            scale(x).sum().backward()


@pytest.mark.parametrize("non_leaf", [False, True])
@pytest.mark.parametrize("forward_writes", [False, True])
def test_an_input_that_requires_grad(non_leaf, forward_writes):
    if forward_writes and not non_leaf:
        pytest.skip("eager refuses to write to a leaf")

    def function(x, total):
        if forward_writes:
            total.mul_(1)
        return Accumulating.apply(x, total)

    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(3, requires_grad=True)
    total = torch.zeros(3, requires_grad=True)
    total = total * 1 if non_leaf else total
    y = compiled(x, total)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert_close(total.detach(), torch.ones(3))
    with pytest.raises(UnsupportedError, match=r"writes to input 1 .*create_graph=True"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    assert_close(total.detach(), torch.ones(3))


def test_an_input_that_needs_no_grad_may_be_written_with_create_graph():
    compiled = funcaot.compile(Accumulating.apply, backend="eager")
    x, total = torch.ones(3, requires_grad=True), torch.zeros(3)
    (gradient,) = torch.autograd.grad(compiled(x, total).sum(), x, create_graph=True)
    assert_close(gradient, torch.full((3,), 2.0))
    assert_close(total, torch.ones(3))


class Reshaping(torch.autograd.Function):
    how = staticmethod(lambda buffer: buffer.t_())

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Reshaping.how(ctx.buffer)
        return gradient * 2, None


@pytest.mark.parametrize(
    "how",
    [
        lambda buffer: buffer.t_(),
        lambda buffer: buffer.unsqueeze_(0),
        lambda buffer: buffer.resize_(1, 2),
        lambda buffer: buffer.set_(buffer.new_zeros(2, 3)),
    ],
    ids=["t_", "unsqueeze_", "resize_", "set_"],
)
def test_shapes_and_storages_are_refused_when_traced(how, monkeypatch):
    monkeypatch.setattr(Reshaping, "how", staticmethod(how))
    compiled = funcaot.compile(Reshaping.apply, backend="eager")
    y = compiled(torch.ones(3, requires_grad=True), torch.zeros(2, 3))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="input 1"):
            y.sum().backward(retain_graph=True)


class WritesToWhatItKept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.sin()
        return ctx.kept * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.kept.mul_(2)
        return gradient * ctx.kept


def test_what_the_forward_kept_is_refused():
    compiled = funcaot.compile(WritesToWhatItKept.apply, backend="eager")
    y = compiled(torch.ones(3, requires_grad=True))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="computed and kept"):
            torch.autograd.grad(
                y, y.grad_fn.next_functions[0][0].variable, torch.ones(3), retain_graph=True
            )


def test_the_record_is_frozen_and_usually_empty():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    compiled(torch.ones(3, requires_grad=True)).sum().backward()
    (entry,) = compiled.entries
    (made,) = entry.functions.made
    (backward, _) = next(iter(made.derivatives.backwards.values()))
    assert backward.mutations == ()
