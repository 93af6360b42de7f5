"""``backward()`` inside of a Function's backward, in functions that call ``backward()``."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import funcaot
from funcaot.errors import UnsupportedError
from tests.docs.test_limits import FillsGradients
from tests.hostile import COMPILER

BACKENDS = pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])


def layers():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())


def gradients(modules):
    return [parameter.grad for module in modules for parameter in module.parameters()]


def trained(run, backend, *, zeroes):
    first, second = layers()
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    x = torch.randn(4, 3)

    def step(x):
        if zeroes:
            optimizer.zero_grad()
        loss = run(second, first(x)).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = step if backend is None else funcaot.compile(step, backend=backend)
    return [call(x) for _ in range(3)], [*gradients((first, second)), *parameters]


@BACKENDS
@pytest.mark.parametrize("zeroes", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_fill_gradients(reentrant, zeroes, backend):
    def run(layer, x):
        return checkpoint(layer, x, use_reentrant=reentrant)

    found, wanted = trained(run, backend, zeroes=zeroes), trained(run, None, zeroes=zeroes)
    torch.testing.assert_close(found, wanted)


@BACKENDS
@pytest.mark.parametrize("zeroes", [False, True])
def test_what_would_be_lost_is_refused(zeroes, backend):
    def run(layer, x):
        return FillsGradients.apply(x, layer)

    with pytest.raises(UnsupportedError, match=r"fills \.grad of tensors from outside"):
        trained(run, backend, zeroes=zeroes)


@BACKENDS
def test_outside_of_a_step_it_fills_gradients(backend):
    wanted, found = layers(), layers()
    x = torch.randn(4, 3)
    FillsGradients.apply(wanted[0](x), wanted[1]).sum().backward()
    called = funcaot.compile(
        lambda x: FillsGradients.apply(found[0](x), found[1]).sum(), backend=backend
    )
    called(x).backward()
    torch.testing.assert_close(gradients(found), gradients(wanted))
