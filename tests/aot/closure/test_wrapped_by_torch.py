"""Modules and callables of torch's that torch itself wraps: their tensors are found."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacfwd, jacrev, vmap
from torch.testing import assert_close

import funcaot

WRAPPERS = {
    "vmap": vmap,
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "vmap of jacrev": lambda module: vmap(jacrev(module)),
    "grad of a function of it": lambda module: grad(lambda x: module(x).sum()),
    "no_grad": lambda module: torch.no_grad()(module),
    "autocast": lambda module: torch.autocast("cpu", enabled=False)(module),
    "vmap of its method": lambda module: vmap(module.forward),
    "vmap of a call with its parameters": lambda module: vmap(
        lambda x: functional_call(module, dict(module.named_parameters()), (x,))
    ),
}
MODULES = {
    "linear": lambda: nn.Linear(2, 3),
    "in a container": lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh()),
    "compiled": lambda: funcaot.compile(nn.Linear(2, 3), backend="eager"),
    "in evaluation": lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)).eval(),
}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_torch_wraps_around_a_module(wrapper, module):
    made = MODULES[module]()
    if module == "in evaluation" and "vmap" not in wrapper:
        pytest.skip("a batch norm takes batches")
    if module == "compiled" and wrapper == "vmap of its method":
        pytest.skip("the module that is compiled has the method")
    x = torch.randn(4, 1, 2) if module == "in evaluation" else torch.randn(4, 2)
    wrapped = WRAPPERS[wrapper](made)
    compiled = funcaot.compile(wrapped, backend="eager")
    linear = next(m for m in made.modules() if isinstance(m, nn.Linear))
    for change in ("nothing", "nothing", "the values", "the parameter", "the parameter"):
        if change == "the values":
            with torch.no_grad():
                linear.weight.mul_(2)
        elif change == "the parameter":
            linear.weight = nn.Parameter(torch.randn(3, 2))
        assert_close(compiled(x), wrapped(x), msg=lambda text, change=change: f"{change}: {text}")


def test_what_torch_wraps_around_its_own_functions():
    relu = vmap(torch.nn.functional.relu)
    assert_close(funcaot.compile(relu, backend="eager")(torch.ones(2, 2)), torch.ones(2, 2))
