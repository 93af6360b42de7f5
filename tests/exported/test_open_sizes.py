"""Derivatives that leave sizes open: one program is right for all of them."""

import pytest
import torch
from torch import nn

import funcaot
from funcaot._torch.autograd.zero_tangents import with_open_zeros

Dim = torch.export.Dim


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


NET = network()
PARAMETERS = {name: value.detach() for name, value in NET.named_parameters()}


def energy(x):
    return NET(x).tanh().square().sum()


def scaled(x):
    return (NET(x) * x.shape[0] - x.sum(-1, keepdim=True)).exp().mean() + (2 - x).logsumexp(
        -1
    ).sum()


def loss(parameters, x):
    return torch.func.functional_call(NET, parameters, (x,)).square().sum()


def pushed(function):
    return lambda x: torch.func.jvp(function, (x,), (x.cos(),))


def batches(*sizes):
    return [torch.rand(*size, 3, dtype=torch.float64) for size in sizes]


ROWS = batches((5,), (2,), (9,))
PLANES = batches((5, 7), (2, 3), (4, 2), (7, 7))
CASES = {
    "jvp": (pushed(energy), ROWS),
    "jvp of more ops": (pushed(scaled), ROWS),
    "jvp of a loss by its weights": (
        lambda x: torch.func.jvp(lambda p: loss(p, x), (PARAMETERS,), (PARAMETERS,)),
        ROWS,
    ),
    "jvp of three dimensions": (pushed(energy), PLANES),
    "jacfwd": (torch.func.jacfwd(lambda x: NET(x).tanh().sum(0)), ROWS),
    "hessian": (torch.func.hessian(energy), ROWS),
    "hessian of more ops": (torch.func.hessian(scaled), ROWS),
    "product with the Hessian": (pushed(torch.func.grad(energy)), ROWS),
    "gradient of weights": (lambda x: torch.func.grad(loss)(PARAMETERS, x), PLANES),
    "gradients by example": (
        lambda x: torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(PARAMETERS, x),
        PLANES,
    ),
}


def pairs(x):
    i, j = torch.triu_indices(len(x), len(x), 1)
    k, _ = torch.tril_indices(x.shape[0], len(x), -1)
    apart = (x[i] - x[j]).square().sum(-1)
    return apart.sqrt().reciprocal().sum() + k.sum() * x.sum()


def without_diagonal(x):
    apart = (x[:, None] - x).square().sum(-1)
    less = x.shape[0] - 9.5
    return apart.fill_diagonal_(2.0).sqrt().sum() * less * less


def weighted(x):
    weights = torch.linspace(-1, 2, x.shape[0], dtype=torch.float64)
    ends = torch.linspace(0, 1, steps=2 * len(x) - 1, dtype=torch.float64)
    return (x * weights[:, None]).sin().sum() + (x[0, 0] * ends).square().sum()


CASES["gradient of a weighted sum"] = torch.func.grad_and_value(weighted), ROWS
CASES["gradient of pairs"] = torch.func.grad_and_value(pairs), batches((5,), (4,), (9,))
CASES["gradient of all but a diagonal"] = torch.func.grad_and_value(without_diagonal), ROWS
FAST = {
    *(
        "gradient of a weighted sum",
        "gradient of pairs",
        "gradient of all but a diagonal",
        "gradient of weights",
    ),
    *("jvp", "jvp of three dimensions", "hessian"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[pytest.mark.slow] * (each not in FAST)) for each in CASES]
)
def test_one_program_serves_all_sizes(case):
    function, given = CASES[case]
    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for x in [*given, given[0]]:
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-10, atol=1e-10)
    assert funcaot.report(compiled).cache_misses == 1


# What potentials and losses end with: a sum gives these a gradient without a tangent.
ENDS = (
    *("tanh", "sigmoid", "gelu", "elu", "celu", "selu", "softplus", "logsigmoid", "hardswish"),
    *("tanhshrink", "softsign", "mish", "silu", "relu", "relu6", "leaky_relu"),
)
LOSSES = "mse_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy"


def ending(name):
    found = getattr(nn.functional, name, None) or getattr(torch, name)
    if name not in LOSSES:
        return lambda x: found(x - 0.5).sum()
    return lambda x: found(x.softmax(-1), x.detach().flip(0).softmax(-1), reduction="sum")


@pytest.mark.parametrize("name", [*ENDS, *LOSSES])
def test_a_gradient_without_a_tangent_leaves_sizes_open(name):
    """An op's backward is given zeros without memory; torch makes them by sizes as numbers."""
    function = pushed(torch.func.grad(ending(name)))
    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for x in [*ROWS, ROWS[0]]:
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-10, atol=1e-10)
    assert funcaot.report(compiled).cache_misses == 1


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_hessian_of_gelu_leaves_sizes_open(approximate):
    function = torch.func.hessian(lambda x: nn.functional.gelu(x, approximate=approximate).sum())
    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for x in [*ROWS, ROWS[0]]:
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-10, atol=1e-10)
    assert funcaot.report(compiled).cache_misses == 1


ZEROS = {
    "sum": lambda zero, x: zero + x,
    "sum, the other way round": lambda zero, x: torch.add(x, zero, alpha=3),
    "sum of a row": lambda zero, x: zero[0] + x,
    "sum with a number": lambda zero, x: 3 + zero,
    "sum of two": lambda zero, x: zero + zero,
    "difference": lambda zero, x: torch.sub(zero, x, alpha=2),
    "difference of integers": lambda zero, x: zero - torch.arange(3),
    "product": lambda zero, x: zero * x,
    "product with a number": lambda zero, x: zero * 2,
    "product with a complex number": lambda zero, x: zero * 2j,
    "product with infinity": lambda zero, x: zero * torch.full((3,), torch.inf),
    "quotient": lambda zero, x: zero / x,
    "quotient of integers": lambda zero, x: (
        torch._efficientzerotensor(zero.shape, dtype=torch.int64) / torch.arange(3)
    ),
    "quotient by zeros": lambda zero, x: x / zero,
    "quotient by a number": lambda zero, x: zero / 0,
    "matrix product": lambda zero, x: zero @ x.float().t(),
    "choice": lambda zero, x: torch.where(x > 0.5, zero, x),
    "total": lambda zero, x: zero.sum(0),
    "negative": lambda zero, x: -zero,
}


@pytest.mark.parametrize("case", ZEROS)
@pytest.mark.parametrize("rows", ["closed", "open"])
def test_zeros_are_those_of_torch(case, rows):
    """Those that stand for missing tangents, with closed sizes and with open ones."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    x = torch.rand(4, 3, dtype=torch.float64)
    expected = ZEROS[case](torch._efficientzerotensor((4, 3)), x)
    with with_open_zeros():
        if rows == "closed":
            found = ZEROS[case](torch._efficientzerotensor((4, 3)), x)
            values = found.clone(), expected.clone()
            torch.testing.assert_close(*values, rtol=0, atol=0, equal_nan=True)
        else:
            environment = ShapeEnv()
            with FakeTensorMode(shape_env=environment) as mode:
                x = mode.from_tensor(x, symbolic_context=_open_rows())
                found = ZEROS[case](torch._efficientzerotensor(x.shape), x)
            assert not environment.guards, environment.guards
    assert found.dtype == expected.dtype
    assert len(found.shape) == len(expected.shape)
    assert found._is_zerotensor() == expected._is_zerotensor()


def _open_rows():
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    return StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])


@pytest.mark.slow
def test_a_hessian_in_forward_mode_is_exported_for_all_sizes(tmp_path):
    hessian = torch.func.hessian(energy)
    rows = Dim("rows", min=2, max=32)
    path = funcaot.export(hessian, (ROWS[0],), path=tmp_path / "h.pt2", dynamic_shapes=({0: rows},))
    loaded = funcaot.load(path)
    for x in batches((2,), (5,), (32,)):
        torch.testing.assert_close(loaded(x), hessian(x), rtol=1e-10, atol=1e-10)


def test_linearize_leaves_sizes_open(tmp_path):
    """``linearize`` makes no trace of its own inside."""

    def tangent(x):
        return torch.func.linearize(energy, x)[1](x)

    path = funcaot.export(
        tangent, (ROWS[0],), path=tmp_path / "t.pt2", dynamic_shapes=({0: Dim("n", min=2)},)
    )
    loaded = funcaot.load(path)
    for x in batches((2,), (5,), (32,)):
        torch.testing.assert_close(loaded(x), torch.func.jvp(energy, (x,), (x,))[1])
