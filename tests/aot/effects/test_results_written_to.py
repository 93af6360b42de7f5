"""A caller's write to a result that autograd saved is an error, however the result was made."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

MADE = {
    "cloned": lambda x: x.clone(),
    "copied": lambda x: torch.empty_like(x).copy_(x),
    "copied into a detached one": lambda x: torch.empty_like(x).detach().copy_(x),
    "copied into a clone's": lambda x: x.detach().clone().detach().copy_(x),
    "multiplied in place": lambda x: x.detach().clone().detach().mul_(x),
    "added": lambda x: x + 0,
    "written by index": lambda x: x.detach().clone().detach().index_copy_(0, torch.arange(3), x),
}
USED = {
    "product": lambda x, made: x * made,
    "square": lambda x, made: made**2,
    "in place": lambda x, made: x.clone().mul_(made),
}


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("made", MADE)
def test_a_write_to_a_result_that_was_saved(made, used, backend):
    def function(x):
        result = MADE[made](x)
        return result, USED[used](x, result)

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        leaf = torch.arange(1.0, 4.0, requires_grad=True)
        result, product = compiled(leaf)
        expected = torch.autograd.grad(function(leaf)[1].sum(), leaf)[0]
        torch.testing.assert_close(
            torch.autograd.grad(product.sum(), leaf, retain_graph=True)[0], expected
        )
        with torch.no_grad():
            result.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(product.sum(), leaf)


WRITTEN = {
    "multiplied": lambda x, y: x.mul_(y),
    "rectified": lambda x, y: torch.relu_(x) * y,
    "a row": lambda x, y: x[:1].copy_(y[:1]),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_the_gradient_of_an_argument_that_was_written_to(written):
    """It is that of the new value: nothing is added, which has strides or signs of zero."""
    compiled = funcaot.compile(WRITTEN[written], backend="eager")

    def step(call):
        leaves = [(torch.arange(6.0) - 3).view(2, 3).t().requires_grad_() for _ in range(2)]
        x, y = (leaf.sin() for leaf in leaves)
        strides = []
        x.retain_grad()
        x.register_hook(lambda gradient: strides.append(gradient.stride()))
        before = x._version
        call(x, y)
        x.register_hook(lambda gradient: strides.append(gradient.stride()))
        loss = (x * y).square()
        loss.backward(torch.full_like(loss, -0.0))
        gradients = [x.grad, *(leaf.grad for leaf in leaves)]
        strides += [gradient.stride() for gradient in gradients]
        return gradients, strides, [g.signbit().tolist() for g in gradients], x._version - before

    for _ in range(2):
        expected, *looks = step(WRITTEN[written])
        got, *got_looks = step(compiled)
        torch.testing.assert_close(got, expected)
        assert got_looks == looks


SHAPED = {
    "transposed": lambda x: x.transpose_(1, 0).diagonal(),
    "there and back": lambda x: (x.t_().t_(), x * 2)[1],
    "a dimension more": lambda x: (x.unsqueeze_(0).transpose_(1, 2).squeeze_(0), x[0])[1],
    "multiplied and turned": lambda x: (x.mul_(2), x.t_(), x[:1])[2],
}


@pytest.mark.parametrize("shaped", SHAPED)
def test_the_gradient_of_an_argument_whose_shape_was_changed(shaped):
    """Its strides are those that the inverse of eager's call gives it."""
    compiled = funcaot.compile(SHAPED[shaped], backend="eager")

    def looks(call):
        leaf = torch.arange(6.0).view(2, 3).requires_grad_()
        x = leaf.sin()
        before = x._version
        result = call(x)
        results = ((result,), (x,), (result, x))
        gradients = [
            torch.autograd.grad([r.square().sum() for r in chosen], leaf, retain_graph=True)[0]
            for chosen in results
        ]
        strides = [gradient.stride() for gradient in gradients]
        return [g.tolist() for g in gradients], strides, x.stride(), x._version - before

    for _ in range(2):
        assert looks(compiled) == looks(SHAPED[shaped])
