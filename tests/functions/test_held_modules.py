"""Rules of functions that hold modules: parameters have gradients, and state changes once."""

import copy

import pytest
import torch
from torch import nn
from torch.func import grad, vjp

import funcaot

LSTM = nn.LSTM(2, 2).double()


class Net(nn.Module):
    """It counts its calls, and its statistics are written in place."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.calls = nn.Linear(3, 3), nn.BatchNorm1d(3), 0

    def forward(self, x):
        self.calls += 1
        return self.norm(self.linear(x)).tanh()


def by_jvp(net):
    f = funcaot.custom_jvp(lambda x: net(x))
    f.defjvp(lambda p, t: (f(*p), 2 * t[0]))
    return f


def by_vjp(net):
    f = funcaot.custom_vjp(lambda x: net(x))
    f.defvjp(lambda x: (net(x), None), lambda _, c: (2 * c,))
    return f


def remat(net):
    f = funcaot.custom_vjp(lambda x: net(x))
    f.defvjp(lambda x: (net(x), None), lambda _, c: (2 * c,), optimize_remat=True)
    return f


@pytest.mark.parametrize("wrap", [lambda f: f, funcaot.compile], ids=["eager", "compiled"])
@pytest.mark.parametrize("make", [by_vjp, remat])
def test_a_batch_norm_and_a_counter(make, wrap):
    torch.manual_seed(0)
    net = Net().double()
    other, x = copy.deepcopy(net), torch.randn(5, 3).double().requires_grad_()
    f = make(net)
    wrapped = f if wrap is not funcaot.compile else wrap(lambda x: f(x), backend="eager")
    out = wrapped(x)
    out.sin().sum().backward()
    expected = other(x.detach())
    expected.sin().sum().backward()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    for mine, theirs in zip(net.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(x.grad, 2 * expected.cos().detach())
    assert net.calls == other.calls == 1


def test_a_module_in_a_global_with_flat_weights():
    f = by_jvp(lambda x: LSTM(x)[0])
    x = torch.randn(4, 1, 2).double().requires_grad_()
    found = torch.autograd.grad(f(x).sum(), (x, *LSTM.parameters()))
    expected = torch.autograd.grad(LSTM(x)[0].sum(), tuple(LSTM.parameters()))
    torch.testing.assert_close(found[1:], expected)
    assert (found[0] == 2).all()


def test_a_checkpoint_of_a_module_under_a_transform():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    x = torch.randn(2, 3).double()

    def loss(parameters, run):
        return run(lambda x: torch.func.functional_call(net, parameters, x))(x).sum()

    parameters = dict(net.named_parameters())
    close = torch.testing.assert_close
    close(grad(loss)(parameters, funcaot.checkpoint), grad(loss)(parameters, lambda f: f))
    held = funcaot.checkpoint(lambda x: net(x).sum())
    for mine, theirs in zip(
        torch.autograd.grad(vjp(held, x)[1](torch.ones(()).double())[0].sum(), net.parameters()),
        torch.autograd.grad(grad(lambda x: net(x).sum())(x).sum(), net.parameters()),
        strict=True,
    ):
        close(mine, theirs)
