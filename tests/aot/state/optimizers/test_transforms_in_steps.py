"""A training step whose model differentiates inside, by torch.func: fast weights, penalties."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

import funcaot
from funcaot.errors import UnsupportedError


class Inside(nn.Module):
    def __init__(self, transform):
        super().__init__()
        torch.manual_seed(0)
        self.memory, self.first, self.transform = nn.Linear(3, 3), nn.Linear(3, 3), transform

    def forward(self, x):
        return TRANSFORMS[self.transform](self, self.first(x), dict(self.memory.named_parameters()))

    def loss(self, parameters, row):
        return functional_call(self.memory, parameters, row).square().mean()


def fast_weights(model, x, parameters):
    """A step of gradient descent inside, whose result is used."""
    gradients = grad(lambda parameters: model.loss(parameters, x))(parameters)
    after = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
    return functional_call(model.memory, after, x)


def per_sample(model, x, parameters):
    gradients = vmap(grad(model.loss), in_dims=(None, 0))(parameters, x)
    return gradients["weight"].sum(0) + gradients["bias"].mean()


def of_weights(model, x, parameters):
    def loss(weight):
        return (x @ weight).sin().sum()

    return jacrev(loss)(model.memory.weight)


TRANSFORMS = {
    "fast weights": fast_weights,
    "per sample": per_sample,
    "of weights": of_weights,
    "jvp": lambda model, x, parameters: jvp(model.memory, (x,), (x.cos(),))[1],
    "vjp": lambda model, x, parameters: vjp(model.memory, x)[1](x)[0],
    "hessian": lambda model, x, parameters: vmap(hessian(lambda row: model.loss(parameters, row)))(
        x
    ),
}


def step_of(model, optimizer, first):
    def step(x):
        if first:
            optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if not first:
            optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_step_trains_what_differentiates_inside(transform, first):
    models = [Inside(transform) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in models]
    plain, step = map(step_of, models, optimizers, [first] * 2)
    compiled = funcaot.compile(step, backend="eager")
    for size in (3, 4, 5):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), plain(x))
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(one, other)
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad)


def test_grad_of_what_a_level_wraps_is_refused():
    def loss(x):
        x.grad = torch.ones_like(x)
        return x.sum()

    def function(x, weight):
        weight.grad = None
        return grad(loss)(x)

    x, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"torch\.func transform"):
        funcaot.compile(function, backend="eager")(x, weight)


def test_a_backward_in_a_level_is_torchs_error():
    def function(x, weight):
        weight.grad = None
        return grad(lambda x: (x.sum().backward(), x.sum())[1])(x)

    x, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    for called in (function, funcaot.compile(function, backend="eager")):
        with pytest.raises(RuntimeError, match="functorch transform"):
            called(x, weight)
