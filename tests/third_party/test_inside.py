"""Optimizers and solvers inside of a model: higher, a loop by hand, xitorch, cvxpylayers."""

import copy

import pytest
import torch
from torch import nn
from training import check, close

import funcaot
from funcaot.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")


def points(step):
    return (torch.randn(4 + step % 3, 3),)


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("kind", "options"),
    [("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": 0.1}), ("RMSprop", {"lr": 0.01})],
    ids=["SGD", "Adam", "RMSprop"],
)
def test_higher(kind, options):
    """Three steps of an optimizer of torch inside, differentiated by where they began."""
    import higher

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            optimizer = getattr(torch.optim, kind)(self.inner.parameters(), **options)
            context = higher.innerloop_ctx(self.inner, optimizer, copy_initial_weights=False)
            with context as (function, inner):
                for _ in range(3):
                    inner.step((function(x) - 1).square().mean())
                return (function(x + 1) - 1).square().mean()

    check(Adapted, lambda function, x: function(x), points, tolerance=1e-3)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_inner_loop(kind):
    """The same, written by hand over a functional model, with a learned rate."""

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()
            self.rate = nn.Parameter(torch.tensor(0.1))

        def loss(self, parameters, x):
            found = torch.func.functional_call(self.inner, parameters, (x,))
            return (found - 1).square().mean()

        def forward(self, x):
            parameters = dict(self.inner.named_parameters())
            first = {name: torch.zeros_like(value) for name, value in parameters.items()}
            second = dict(first)
            for count in range(1, 4):
                values = list(parameters.values())
                loss = self.loss(parameters, x)
                found = torch.autograd.grad(loss, values, create_graph=True)
                for name, gradient in zip(parameters, found, strict=True):
                    update = gradient
                    if kind == "adam":
                        first[name] = 0.9 * first[name] + 0.1 * gradient
                        second[name] = 0.99 * second[name] + 0.01 * gradient.square()
                        size = (second[name] / (1 - 0.99**count) + 1e-8).sqrt()
                        update = first[name] / (1 - 0.9**count) / size
                    parameters[name] = parameters[name] - self.rate * update
            return self.loss(parameters, x + 1)

    check(Adapted, lambda function, x: function(x), points, tolerance=1e-3)


@pytest.mark.parametrize("kind", ["rootfinder", "equilibrium"])
def test_xitorch_optimize(kind):
    """A root of a function with parameters, differentiated by the implicit function theorem.

    How often the solver goes round depends on values: each number is a program, and a backward
    that goes round another time than when it was traced is refused.
    """
    import xitorch.optimize

    class Solved(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(0.3 * torch.randn(3, 3, dtype=torch.float64))

        def forward(self, x):
            def fixed(y, matrix):
                return torch.tanh(y @ matrix) + x / 2

            def residual(y, matrix):
                return fixed(y, matrix) - y

            function = fixed if kind == "equilibrium" else residual
            solve = getattr(xitorch.optimize, kind)
            return solve(function, torch.zeros_like(x), (self.matrix,)).square().mean()

    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
    model = Solved()
    compiled = funcaot.compile(copy.deepcopy(model), backend="eager")
    for module in (model, compiled):
        module(x).backward()
    close(compiled.matrix.grad, model.matrix.grad, 1e-8)
    with torch.no_grad():
        for module in (model, compiled):
            module.matrix -= 0.1 * module.matrix.grad
    refusal = None
    try:
        compiled(x).backward()
    except UnsupportedError as error:
        refusal = str(error)
    assert refusal is None or "values that the same call then didn't have" in refusal


@pytest.mark.parametrize("kind", ["solve", "symeig"])
def test_xitorch(kind):
    """Linear operators. ``solve`` makes texts of sizes for its messages: a program for each."""
    import xitorch
    from xitorch import linalg

    class Solved(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            matrix = self.matrix @ self.matrix.T + torch.diag(torch.arange(1.0, 4))
            operator = xitorch.LinearOperator.m(matrix, is_hermitian=True)
            if kind == "solve":
                return linalg.solve(operator, x.T).square().mean()
            values, _ = linalg.symeig(operator, neig=2)
            return values.square().sum() * x.square().mean()

    programs = 3 if kind == "solve" else 2
    check(Solved, lambda function, x: function(x), points, programs=programs, tolerance=1e-3)


@pytest.mark.parametrize("kind", ["solve_ivp", "quad"])
def test_xitorch_integrals(kind):
    """Integrals, whose Functions take options out of a dictionary that they are given.

    Gradients are integrals of functions that close over what the first one computed.
    """
    from xitorch import integrate

    class Solved(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor([0.5, 1.0, 1.5]))

        def forward(self, x):
            x = x[:, 0]
            if kind == "solve_ivp":

                def slope(t, y, rate):
                    return -rate.sum() * y * torch.cos(t)

                times = torch.linspace(0, 1, 3)
                solved = integrate.solve_ivp(slope, times, x, params=(self.rate,), method="rk4")
                return solved.square().mean()

            def integrand(t, rate, x):
                return torch.exp(-t * rate.sum() * x).mean()

            ends = torch.zeros(()), torch.ones(())
            return integrate.quad(integrand, *ends, (self.rate, x), n=5)

    check(Solved, lambda function, x: function(x), points, programs=3 if kind == "quad" else 2)


@pytest.mark.parametrize("entropy", [None, 3], ids=["drawn", "fixed"])
@pytest.mark.parametrize("kind", ["sdeint", "sdeint_adjoint"])
def test_torchsde(kind, entropy):
    """A Brownian path seeds a generator for each of its parts, as compiled calls do.

    Without an entropy the first seed is drawn from NumPy's state: such a call runs as it is, and a
    capture that fails draws nothing from there. The adjoint's backward goes on with the tree of the
    path that its forward grew, and grows it.
    """
    import numpy
    import torchsde

    class Solved(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.drift = nn.Parameter(torch.tensor(0.5))
            self.noise = nn.Parameter(torch.tensor(0.3))

        def f(self, t, y):
            return -self.drift * y

        def g(self, t, y):
            return self.noise * torch.sigmoid(y)

        def forward(self, x):
            path = torchsde.BrownianInterval(0.0, 1.0, size=tuple(x.shape), entropy=entropy)
            solve = getattr(torchsde, kind)
            times = torch.linspace(0, 1, 3)
            return solve(self, x, times, bm=path, dt=0.25, method="euler").square().mean()

    model = Solved()
    if entropy is None:
        with pytest.raises(UnsupportedError, match=r"numpy\.random"):
            funcaot.compile(model, backend="eager")(points(0)[0])
    compiled = funcaot.compile(model, backend="eager", fullgraph=entropy is not None)
    for step in range(3):
        (x,) = points(step)
        found = []
        for function in (model, compiled):
            numpy.random.seed(step)
            loss = function(x)
            found.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
        assert all(map(torch.equal, *found))


def test_cvxpylayers():
    """A quadratic program inside of a model, whose solver's objects are others in each call."""
    import cvxpy
    from cvxpylayers.torch import CvxpyLayer

    class Solved(nn.Module):
        def __init__(self):
            super().__init__()
            target, unknown = cvxpy.Parameter(2), cvxpy.Variable(2)
            goal = cvxpy.Minimize(cvxpy.sum_squares(unknown - target))
            problem = cvxpy.Problem(goal, [unknown >= 0, cvxpy.sum(unknown) <= 1])
            self.layer = CvxpyLayer(problem, parameters=[target], variables=[unknown])
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            (found,) = self.layer(self.inner(x))
            return (found - 0.5).square().mean()

    torch.manual_seed(0)
    model = Solved()
    compiled = funcaot.compile(model, fullgraph=False)
    for _ in range(4):
        (x,) = points(0)
        gradients = []
        for function in (model, compiled):
            loss = function(x)
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        for ours, theirs in zip(*reversed(gradients), strict=True):
            close(ours, theirs, 1e-3)
