"""Functions of published packages, unedited, after ``funcaot.install()``; skipped where absent."""

from __future__ import annotations

import pytest
import torch
from torch.func import functionalize, grad, hessian, jacfwd, jvp, vmap

import funcaot
from funcaot.errors import MissingRuleError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

X = torch.linspace(-1.0, 1.5, 12, dtype=torch.float64).reshape(3, 4).sin()
W = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)


@pytest.fixture(autouse=True)
def installed():
    with funcaot.install():
        yield


def eager(f, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0]


def rows(f, xs):
    return torch.stack([eager(f, x) for x in xs])


@pytest.mark.parametrize(
    "name", ["sparsemax", "entmax15", "entmax_bisect", "sparsemax_bisect", "normmax_bisect"]
)
def test_entmax(name):
    entmax = pytest.importorskip("entmax")
    function = getattr(entmax, name)

    def f(x):
        return (function(x, dim=-1) * W).sum()

    batched = vmap(lambda x: function(x, dim=-1))(X)
    torch.testing.assert_close(batched, function(X, dim=-1))
    torch.testing.assert_close(grad(f)(X[0]), eager(f, X[0]))
    torch.testing.assert_close(vmap(grad(f))(X), rows(f, X))
    torch.testing.assert_close(grad(lambda x: vmap(f)(x).sum())(X), rows(f, X))
    torch.testing.assert_close(jacfwd(f)(X[0]), eager(f, X[0]))
    torch.testing.assert_close(jvp(f, (X[0],), (W,))[1], (eager(f, X[0]) * W).sum())
    torch.testing.assert_close(functionalize(vmap(grad(f)))(X), rows(f, X))
    torch.testing.assert_close(vmap(hessian(f))(X), torch.stack([hessian(f)(x) for x in X]))


class Field(torch.nn.Module):
    noise_type, sde_type = "diagonal", "stratonovich"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4).double()

    def forward(self, t, y):
        return self.linear(y).tanh()

    f = forward

    def g(self, t, y):
        return 0.1 * y


def test_torchdiffeq_adjoint():
    torchdiffeq = pytest.importorskip("torchdiffeq")
    times, field = torch.linspace(0.0, 1.0, 3).double(), Field()

    def f(y):
        return torchdiffeq.odeint_adjoint(field, y, times, method="rk4")[-1].sin().sum()

    torch.testing.assert_close(grad(f)(X[0]), eager(f, X[0]))
    torch.testing.assert_close(vmap(f)(X), torch.stack([f(x) for x in X]))
    torch.testing.assert_close(vmap(grad(f))(X), rows(f, X))
    torch.testing.assert_close(grad(lambda x: vmap(f)(x).sum())(X), rows(f, X))
    torch.testing.assert_close(functionalize(grad(f))(X[0]), eager(f, X[0]))
    with pytest.raises(MissingRuleError, match="OdeintAdjointMethod"):
        jvp(f, (X[0],), (W,))  # its backward calls torch.autograd.grad
    with pytest.raises(MissingRuleError, match="OdeintAdjointMethod"):
        grad(lambda x: grad(f)(x).sum())(X[0])


def test_torchsde_adjoint():
    torchsde = pytest.importorskip("torchsde")
    field = Field()

    def f(y):
        noise = torchsde.BrownianInterval(
            t0=0.0, t1=1.0, size=(3, 4), dtype=torch.float64, entropy=3
        )
        options = {"dt": 0.25, "method": "midpoint", "adjoint_method": "midpoint"}
        times = torch.tensor([0.0, 1.0]).double()
        return torchsde.sdeint_adjoint(field, y, times, bm=noise, **options)[-1].sum()

    torch.testing.assert_close(grad(f)(X), eager(f, X))


def test_linear_operator():
    linear_operator = pytest.importorskip("linear_operator")
    square = torch.stack([torch.diag(W.abs() + 1) + 0.1 * (k + 1) for k in range(2)])

    def operator(matrix):
        return linear_operator.operators.DenseLinearOperator(matrix)

    def matmul(matrix):
        return (operator(matrix) @ W.unsqueeze(-1)).sin().sum()

    def quadratic(matrix):
        return operator(matrix).inv_quad(W)

    with linear_operator.settings.memory_efficient():
        for f in (matmul, quadratic):
            torch.testing.assert_close(grad(f)(square[0]), eager(f, square[0]))
            torch.testing.assert_close(vmap(grad(f))(square), rows(f, square))
            pushed = (eager(f, square[0]) * square[1]).sum()
            torch.testing.assert_close(jvp(f, (square[0],), (square[1],))[1], pushed)
    with pytest.raises(UnsupportedError, match="Matmul"):  # keeps the operator object on ctx
        grad(matmul)(square[0])
