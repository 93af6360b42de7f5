"""Transforms inside of a compiled function, of tensors that it closes over."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
WEIGHT = MODEL[0].weight


def called(parameters, x):
    return functional_call(MODEL, parameters, (x,))


def parameters():
    return dict(MODEL.named_parameters())


def kernel(x):
    """The neural tangent kernel."""
    found = vmap(jacrev(called), (None, 0))(parameters(), x).values()
    return sum(torch.einsum("iap,jbp->ijab", j.flatten(2), j.flatten(2)) for j in found)


FUNCTIONS = {
    "jacrev": lambda x: jacrev(called)(parameters(), x),
    "each example": lambda x: vmap(grad(lambda p, x: called(p, x).square().sum()), (None, 0))(
        parameters(), x
    ),
    "kernel": kernel,
    "vmap": lambda x: vmap(lambda w: x @ w)(WEIGHT),
    "grad": lambda x: grad(lambda w: (x @ w.t()).square().sum())(WEIGHT),
    "jvp": lambda x: jvp(lambda w: (x @ w.t()).tanh(), (WEIGHT,), (WEIGHT,)),
    "vjp": lambda x: vjp(lambda w: (x @ w.t()).tanh(), WEIGHT)[1](x @ WEIGHT.t()),
    "hessian": lambda x: hessian(lambda w: (x @ w.t()).tanh().sum())(WEIGHT),
    "jacfwd": lambda x: jacfwd(lambda w: (x @ w.t()).tanh().sum(0))(WEIGHT),
    "grad of grad": lambda x: grad(
        lambda x: grad(lambda w: (x @ w.t()).tanh().sum())(WEIGHT).square().sum()
    )(x),
    "grad in vmap": lambda x: vmap(lambda r: grad(lambda w: (r @ w.t()).tanh().sum())(WEIGHT))(x),
    "itself, too": lambda x: grad(lambda w: (x @ w.t() @ WEIGHT).square().sum())(WEIGHT),
}


def tensors(result):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if leaf.requires_grad]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_closed_over_tensors(name):
    function = FUNCTIONS[name]
    compiled = funcaot.compile(function, backend=COMPILER)
    for size in (4, 5, 6, 4):
        x = torch.randn(size, 3, requires_grad=True)
        found = [tensors(each(x)) for each in (function, compiled)]
        torch.testing.assert_close(found[1], found[0])
        inputs = [x, *MODEL.parameters()]
        gradients = [
            torch.autograd.grad(
                sum(tensor.square().sum() for tensor in each),
                inputs,
                allow_unused=True,
                materialize_grads=True,
            )
            for each in found
        ]
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            WEIGHT.mul_(0.9)


def test_a_training_step_by_gradients_of_examples():
    def make():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            def loss(parameters, x):
                return functional_call(model, parameters, (x,)).square().sum()

            found = vmap(grad(loss), (None, 0))(dict(model.named_parameters()), x)
            for name, parameter in model.named_parameters():
                parameter.grad = found[name].clamp(-0.1, 0.1).mean(0).detach()
            optimizer.step()

        return model, step

    (first, step), (second, other) = make(), make()
    compiled = funcaot.compile(other, backend=COMPILER)
    for _ in range(4):
        x = torch.randn(5, 3)
        step(x)
        compiled(x)
    torch.testing.assert_close(second.state_dict(), first.state_dict())
    assert funcaot.report(compiled).cache_misses <= 2


def test_without_the_patch_it_is_refused():
    with funcaot.config.patch(without_patches="entering"):
        compiled = funcaot.compile(FUNCTIONS["grad"], backend="eager")
        with pytest.raises(UnsupportedError, match="that the function closes over"):
            compiled(torch.ones(2, 3))


def test_an_error_inside_leaves_nothing_behind():
    before = torch._functorch.vmap._add_batch_dim, torch._functorch.eager_transforms._wrap_for_grad

    def fails(x):
        return grad(lambda w: (x @ w).sum())(WEIGHT)

    with pytest.raises(RuntimeError, match=r"cannot be multiplied|mat1 and mat2"):
        funcaot.compile(fails, backend="eager")(torch.ones(2, 7))
    assert before == (
        torch._functorch.vmap._add_batch_dim,
        torch._functorch.eager_transforms._wrap_for_grad,
    )
