"""Smaller libraries: sorting, flows, Lie groups, transport, curvature, gradients per example."""

import pytest
import torch
import training
from torch import nn
from training import check, close

import funcaot
from funcaot.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def test_diffsort():
    import diffsort

    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)
            self.sorter = diffsort.DiffSortNet("bitonic", 8, steepness=5)

        def forward(self, x):
            values, permutations = self.sorter(self.inner(x)[..., 0])
            return values.square().mean() + permutations.square().mean()

    check(
        Sorted,
        lambda function, x: function(x),
        lambda step: (torch.randn(2 + step % 2, 8, 3),),
        tolerance=1e-3,
    )


def test_normflows():
    import normflows

    def make():
        flows = [
            flow
            for _ in range(2)
            for flow in (
                normflows.flows.AutoregressiveRationalQuadraticSpline(2, 1, 8),
                normflows.flows.LULinearPermute(2),
            )
        ]
        flow = normflows.NormalizingFlow(normflows.distributions.DiagGaussian(2), flows)
        flow.forward = flow.forward_kld
        return flow

    check(
        make,
        lambda function, x: function(x),
        lambda step: (torch.randn(5 + step % 2, 2),),
        tolerance=1e-3,
    )


def test_pypose():
    import pypose

    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.pose = pypose.Parameter(pypose.randn_SE3(1))

        def forward(self, points):
            there = self.pose.Act(points)
            return there.square().mean() + self.pose.Log().tensor().square().sum()

    check(Moved, lambda function, x: function(x), lambda step: (torch.randn(5, 3),), tolerance=1e-3)


def test_geomloss():
    import geomloss

    class Transport(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.loss = geomloss.SamplesLoss("sinkhorn", blur=0.1, diameter=8.0)

        def forward(self, x, y):
            return self.loss(self.inner(x), y)

    check(
        Transport,
        lambda function, x, y: function(x, y),
        lambda step: (torch.randn(5 + step % 2, 2), torch.randn(6, 2)),
        tolerance=1e-3,
    )


def test_torchjd():
    """Two losses of one compiled model, whose gradients are brought together."""
    from torchjd.aggregation import MGDA
    from torchjd.autojac import backward, jac_to_grad

    x, y = torch.randn(6, 3), torch.randn(6, 2)
    found = []
    for compiler in (
        lambda model: model,
        lambda model: funcaot.compile(model, backend=training.BACKEND),
    ):
        model = classifier()
        function = compiler(model)
        for _ in range(20):
            model.zero_grad()
            output = function(x)
            backward([(output[:, i] - y[:, i]).square().mean() for i in range(2)])
            jac_to_grad(model.parameters(), MGDA())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        found.append(list(model.parameters()))
    for ours, theirs in zip(found[1], found[0], strict=True):
        close(ours.detach(), theirs.detach(), 1e-4)


def test_curvlinops():
    """Products with curvature matrices of a compiled model."""
    import curvlinops

    data = [(torch.randn(6, 3), torch.randint(0, 2, (6,)))]
    found = []
    for compiler in (
        lambda model: model,
        lambda model: funcaot.compile(model, backend=training.BACKEND),
    ):
        model = classifier()
        parameters = dict(model.named_parameters())
        function = compiler(model)
        products = []
        for kind in ("HessianLinearOperator", "GGNLinearOperator"):
            make = getattr(curvlinops, kind)
            try:
                operator = make(function, nn.CrossEntropyLoss(), parameters, data)
            except (TypeError, AttributeError):
                operator = make(function, nn.CrossEntropyLoss(), list(parameters.values()), data)
            torch.manual_seed(1)
            products.append(operator @ torch.randn(operator.shape[1]))
        found.append(products)
    for ours, theirs in zip(found[1], found[0], strict=True):
        close(ours, theirs, 1e-4)


def test_laplace():
    """A diagonal Laplace approximation around a compiled classifier."""
    import laplace

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,))), batch_size=4
    )
    x = torch.randn(5, 3)
    found = []
    for compiler in (
        lambda model: model,
        lambda model: funcaot.compile(model, backend=training.BACKEND),
    ):
        approximation = laplace.Laplace(
            compiler(classifier()),
            "classification",
            subset_of_weights="all",
            hessian_structure="diag",
            backend=laplace.curvature.CurvlinopsGGN,
        )
        approximation.fit(loader)
        found.append((approximation.H, approximation(x, link_approx="probit")))
    for ours, theirs in zip(found[1], found[0], strict=True):
        close(ours, theirs, 1e-4)


def train_by(step_of):
    """Parameters after twenty whole steps, in eager mode and compiled."""
    found = []
    for compiler in (
        lambda step: step,
        lambda step: funcaot.compile(step, backend=training.BACKEND),
    ):
        model, step = step_of(classifier())
        step = compiler(step)
        losses = []
        for number in range(20):
            torch.manual_seed(number)
            losses.append(step(torch.randn(6, 3), torch.randint(0, 2, (6,))))
        found.append([*losses, *(parameter.detach() for parameter in model.parameters())])
    for ours, theirs in zip(found[1], found[0], strict=True):
        close(ours, theirs, 1e-4)


def test_opacus():
    """A whole step: gradients per example, clipped, by its hooks."""
    from opacus.grad_sample import GradSampleModule

    def step_of(model):
        wrapped = GradSampleModule(model)

        def step(x, y):
            loss = nn.functional.cross_entropy(wrapped(x), y)
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    each = parameter.grad_sample.flatten(1)
                    scale = (1 / each.norm(dim=1)).clamp(max=1)
                    parameter -= 0.1 * (scale @ each / len(x)).view_as(parameter)
            wrapped.zero_grad()
            return loss.detach()

        return model, step

    train_by(step_of)


def test_backpack():
    """A whole step by the variance of gradients, of extended modules."""
    import backpack
    from backpack.extensions import Variance

    def step_of(model):
        backpack.extend(model)
        loss_function = backpack.extend(nn.CrossEntropyLoss())

        def step(x, y):
            loss = loss_function(model(x), y)
            with backpack.backpack(Variance()):
                loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad / (1 + parameter.variance)
                    parameter.grad = None
            return loss.detach()

        return model, step

    train_by(step_of)


def test_torchsde():
    """Its Brownian paths draw their seed from NumPy: refused by name; one may be given."""
    import torchsde

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.drift = nn.Linear(2, 2)

        def f(self, t, y):
            return self.drift(y)

        def g(self, t, y):
            return 0.1 * torch.ones_like(y)

        def forward(self, y):
            return torchsde.sdeint(self, y, torch.tensor([0.0, 0.1]), dt=0.05, method="euler")

    with pytest.raises(UnsupportedError, match=r"numpy\.random"):
        funcaot.compile(Equation(), backend="eager")(torch.ones(3, 2))
