"""Functions of torch that are given a float which changes, against eager."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot

VALUES = (0.3, 0.7, 0.45, 0.9)
# What decides a branch of a kernel, or is refused.
SPECIAL = (0.0, 1.0, -0.5, math.inf, math.nan, 2)
LABELS = torch.tensor([1, 0, 2])


def made(x, method, *numbers):
    return x * getattr(torch.empty_like(x), method)(*numbers)


def clipped(x, a):
    weight = x.detach().clone().requires_grad_()
    weight.grad = x.detach().sin()
    norm = torch.nn.utils.clip_grad_norm_([weight], a)
    torch.nn.utils.clip_grad_value_([weight], a / 3)
    return weight.grad * x + norm


CASES = {
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "huber_loss": lambda x, a: F.huber_loss(x, x.detach().cos(), delta=a),
    "pad": lambda x, a: F.pad(x, (1, 0, -1, 2), value=a),
    "dropout": F.dropout,
    "gumbel_softmax": F.gumbel_softmax,
    "leaky_relu_": lambda x, a: F.leaky_relu(x.sin(), a, inplace=True),
    "leaky_relu_half": lambda x, a: F.leaky_relu(x.bfloat16(), a).float(),
    "elu": F.elu,
    "hardtanh": lambda x, a: F.hardtanh(x, -a, a) if a > 0 else x * a,
    "hardtanh_": lambda x, a: F.hardtanh(x.sin(), -1.0, a, inplace=True),
    "threshold": lambda x, a: F.threshold(x, a, -a),
    "threshold_": lambda x, a: F.threshold_(x.sin(), a, 0.5),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "smooth_l1_loss": lambda x, a: F.smooth_l1_loss(x, x.detach().cos(), beta=a),
    "huber_loss_none": lambda x, a: F.huber_loss(x, x.detach().cos(), "none", a),
    "cross_entropy": lambda x, a: F.cross_entropy(x, LABELS, label_smoothing=a, ignore_index=2),
    "margin_ranking": lambda x, a: F.margin_ranking_loss(x, x.cos(), x.detach().sign(), a),
    "hinge_embedding": lambda x, a: F.hinge_embedding_loss(x, x.detach().sign(), a),
    "triplet_margin": lambda x, a: F.triplet_margin_loss(x, x.cos(), x.sin(), a, swap=True),
    "triplet_with_distance": lambda x, a: F.triplet_margin_with_distance_loss(
        x, x.cos(), x.sin(), margin=a
    ),
    "normalize": lambda x, a: F.normalize(x, eps=a),
    "local_response_norm": lambda x, a: F.local_response_norm(x[None], 2, alpha=a, k=1 + a),
    "dropout_": lambda x, a: F.dropout(x.sin(), a, inplace=True),
    "dropout_half": lambda x, a: F.dropout(x.half(), a).float(),
    "dropout2d": lambda x, a: F.dropout2d(x[:, :, None, None].expand(3, 4, 2, 2), a),
    "dropout_idle": lambda x, a: F.dropout(x, a, training=False) * a,
    "normal": lambda x, a: made(x, "normal_", a, a + 1) if a > -1 else x * a,
    "uniform": lambda x, a: made(x, "uniform_", -1.0, a),
    "bernoulli": lambda x, a: made(x, "bernoulli_", a),
    "exponential": lambda x, a: made(x, "exponential_", a),
    "log_normal": lambda x, a: made(x, "log_normal_", 0.0, a),
    "cauchy": lambda x, a: made(x, "cauchy_", 0.0, a),
    "geometric": lambda x, a: made(x, "geometric_", a),
    "columns": lambda x, a: x * torch.empty(4, 3).t().uniform_(0.0, a),
    "clip_grad": clipped,
}


def run(function, number):
    """A result, its derivative, that of the derivative, and where the generator stands."""
    x = torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()
    torch.manual_seed(4)
    try:
        y = function(x, number)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, allow_unused=True)
    except Exception as error:  # noqa: BLE001
        return type(error)
    return y.detach(), first.detach(), second, torch.rand(1)


def agree(function, compiled, values):
    for value in values:
        wanted, found = run(function, value), run(compiled, value)
        if isinstance(wanted, type):
            assert found is wanted, value
        else:
            assert_close(found, wanted, equal_nan=True)


def programs(compiled):
    return len(funcaot.report(compiled).entries)


def check(name, values=VALUES):
    compiled = funcaot.compile(CASES[name], backend="eager")
    agree(CASES[name], compiled, values)
    return compiled


@pytest.mark.parametrize("name", CASES)
def test_two_programs_serve_all_values(name):
    assert programs(check(name)) == 2


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("name", CASES)
def test_special_values_are_eager_s(name):
    check(name, (*VALUES[:2], *SPECIAL, VALUES[0]))


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout, self.slope = torch.nn.Dropout(0.5), torch.nn.LeakyReLU(0.5)
        self.options = {"limit": 0.5}

    def forward(self, x):
        return F.hardtanh(self.slope(self.dropout(x)), -1.0, self.options["limit"] * 3)


@pytest.mark.long
def test_numbers_that_a_module_holds():
    module = Layers()
    compiled = funcaot.compile(module, backend="eager")

    def called(function):
        def call(x, number):
            module.dropout.p = module.slope.negative_slope = number
            module.options["limit"] = float(number)
            return function(x)

        return call

    for value in (*VALUES, 1.0, VALUES[0]):
        assert_close(run(called(compiled), value), run(called(module), value))
    assert programs(compiled) == 3  # and one for a dropout of everything


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leaky_relu", "elu", "softplus", "huber_loss", "pad", "dropout"])
def test_on_inductor(name):
    with funcaot.config.patch(fallback_random=True):
        compiled = funcaot.compile(CASES[name])
        agree(CASES[name], compiled, VALUES)
    assert programs(compiled) == 2


def test_a_gradient_of_a_kink_depends_on_its_input():
    compiled = funcaot.compile(F.leaky_relu, backend="eager")
    for value in VALUES[:3]:
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x, value).sum(), x, create_graph=True)
        assert torch.autograd.grad(gradient.sum(), x)[0].tolist() == [0.0] * 3


def test_sizes_that_are_given_beside_a_number():
    def padded(x, width, value):
        return F.pad(x, (width, width), value=value)

    compiled = funcaot.compile(padded, backend="eager")
    x = torch.ones(2, 3)
    for width, value in ((2, 0.5), (3, 0.25), (4, 0.75), (5, 1.0)):
        assert_close(compiled(x, width, value), padded(x, width, value))
    assert programs(compiled) == 2


def test_a_compiled_draw_under_vmap():
    compiled = funcaot.compile(CASES["uniform"], backend="eager")
    for value in VALUES[:3]:
        compiled(torch.ones(3, 4), value)
    for value in VALUES[:3]:
        results = []
        for function in (CASES["uniform"], compiled):
            torch.manual_seed(0)
            batched = torch.vmap(lambda x, f=function: f(x, value), randomness="different")  # noqa: B023
            results.append(batched(torch.ones(5, 3, 4)))
        assert_close(*results)
