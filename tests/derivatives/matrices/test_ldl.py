"""``ldl_factor`` and ``ldl_solve`` of matrices and batches that are empty."""

import pytest
import torch

import funcaot

# Of a batch, torch takes one matrix after another, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
SHAPES = [(0, 0), (2, 0, 0), (0, 2, 2)]


def factors(x):
    return torch.linalg.ldl_factor(x + torch.eye(x.shape[-1], dtype=x.dtype)).LD


def solution(x):
    pivots = torch.ones(x.shape[:-1], dtype=torch.int32)
    return torch.linalg.ldl_solve(x, pivots, x)


def no_columns(x):
    pivots = torch.ones(x.shape[:-1], dtype=torch.int32)
    return torch.linalg.ldl_solve(x, pivots, x[..., :0])


def third(function, x):
    x = x.clone().requires_grad_()
    value = function(x).sum()
    for _ in range(3):
        (value,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
    return value


ASKED = {
    "third": third,
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "product": lambda f, x: torch.func.jvp(torch.func.grad(lambda x: f(x).sin().sum()), (x,), (x,))[
        1
    ],
    "vmap": lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(x[None])[0],
}


@pytest.mark.parametrize("how", ["installed", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", [factors, solution, no_columns])
def test_nothing_has_derivatives_without_elements(function, shape, asked, how):
    x = torch.zeros(shape, dtype=torch.float64)
    if how == "compiled":
        found = ASKED[asked](funcaot.compile(function, backend="eager"), x)
    else:
        with funcaot.install():
            found = ASKED[asked](function, x)
    wanted = function(x) if asked == "jvp" else x
    assert found.shape == wanted.shape
    assert found.dtype is x.dtype
