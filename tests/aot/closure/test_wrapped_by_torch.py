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


class _Saving:
    """Keeps what it puts back, as torch's ``autocast`` does."""

    def __enter__(self):
        self.before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)

    def __exit__(self, *_):
        torch.set_autocast_cache_enabled(self.before)


class _Early(_Saving):
    """Sets nothing where it isn't on, and puts back nothing then."""

    on = True

    def __enter__(self):
        if not self.on:
            return
        self.before = torch.is_autocast_cache_enabled()

    def __exit__(self, *_):
        if self.on:
            torch.set_autocast_cache_enabled(self.before)


class _Stale(_Saving):
    """Sets nothing where it isn't on, and reads what was set in an earlier call."""

    def __init__(self):
        self.on, self.before = False, 1.0

    def __enter__(self):
        if self.on:
            self.before = 2.0

    def __exit__(self, *_):
        SCALES.append(self.before)


SCALES: list[float] = []


def _decorated(context):
    def decorate(function):
        def inner(self, x):
            with context:
                return function(self, x)

        return inner

    return decorate


DECORATORS = {
    "autocast": torch.autocast("cpu", enabled=False),
    "another autocast": torch.amp.autocast("cuda", enabled=False),
    "a user's": _decorated(_Saving()),
    "a user's with a way out": _decorated(_Early()),
}


@pytest.mark.parametrize("by", DECORATORS)
def test_what_a_context_keeps_while_it_is_entered_makes_no_program(by):
    class Layer(nn.Linear):
        @DECORATORS[by]
        def forward(self, x):
            return super().forward(x)

    module, x = Layer(2, 3), torch.randn(4, 2)
    compiled = funcaot.compile(module, backend="eager")
    for _ in range(5):
        expected = module(x)  # keeps another setting than a capture has
        assert_close(compiled(x), expected)
    assert len(funcaot.report(compiled).entries) == 1


def test_what_a_context_reads_of_an_earlier_call_is_compared():
    context = _Stale()

    def read(x):
        SCALES.clear()
        with context:
            y = x * 1
        return y * SCALES[0]

    compiled, x = funcaot.compile(read, backend="eager"), torch.ones(2)
    for value in (1.0, 3.0, 1.0, 5.0):
        context.before = value
        assert_close(compiled(x), x * value)
