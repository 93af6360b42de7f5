"""Hooks that run for every module or optimizer, registered and removed inside."""

import pytest
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

import funcaot

LINEAR = torch.nn.Linear(3, 3)
REGISTER = {
    "forward": (modules.register_module_forward_hook, lambda module, args, output: -output),
    "forward with keywords": (
        lambda hook: modules.register_module_forward_hook(hook, with_kwargs=True),
        lambda module, args, kwargs, output: -output,
    ),
    "before": (modules.register_module_forward_pre_hook, lambda module, args: (args[0] * 2,)),
    "backward": (
        modules.register_module_full_backward_hook,
        lambda module, grads, grad_outputs: tuple(grad * 2 for grad in grads),
    ),
    "of optimizers": (optimizers.register_optimizer_step_pre_hook, lambda *args: None),
}


def registered():
    """All hooks of every module and optimizer, by name of the dictionary."""
    return {
        name: dict(found)
        for room in (modules, optimizers)
        for name, found in vars(room).items()
        if name.startswith("_global_") and isinstance(found, dict)
    }


@pytest.fixture(autouse=True)
def as_before():
    before = registered()
    yield
    after = registered()
    names = [name for name in before if name.endswith("_hooks")]
    # In the others torch forgets entries of hooks that are gone, of which its compiler warns.
    for name in before.keys() - set(names):
        for entry in after[name].keys() - before[name].keys():
            del vars(modules)[name][entry]
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", REGISTER)
def test_one_that_is_removed_again(name, backend):
    register, hook = REGISTER[name]

    def function(x):
        handle = register(hook)
        result = LINEAR(x)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        handle.remove()
        return result + gradient

    compiled = funcaot.compile(function, backend=backend)
    for size in (2, 4, 5):
        x = torch.rand(size, 3).requires_grad_()
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("name", REGISTER)
def test_one_that_stays_is_refused(name):
    register, hook = REGISTER[name]

    def function(x):
        register(hook)
        return LINEAR(x)

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        with pytest.raises(funcaot.errors.UnsupportedError, match="a hook that runs for every"):
            compiled(torch.rand(2, 3))


def test_the_function_as_it_is_registers_once():
    kept = []

    def function(x):
        kept.append(modules.register_module_forward_hook(lambda module, args, output: -output))
        return LINEAR(x)

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    before, x = registered(), torch.rand(2, 3)
    expected = -LINEAR(x)
    with pytest.warns(funcaot.errors.CaptureWarning, match="ran without being compiled"):
        found = compiled(x)
    assert len(registered()["_global_forward_hooks"]) == len(before["_global_forward_hooks"]) + 1
    for handle in kept:
        handle.remove()
    torch.testing.assert_close(found, expected)


def test_after_an_error_inside_it_is_there_once_as_in_eager():
    handles = []

    def function(x):
        handles.append(modules.register_module_forward_hook(lambda module, args, output: -output))
        raise KeyError("x")

    before = registered()["_global_forward_hooks"]
    with pytest.raises(KeyError):
        funcaot.compile(function, backend="eager")(torch.rand(3))
    assert len(registered()["_global_forward_hooks"]) == len(before) + 1
    handles[-1].remove()


def test_removing_one_of_outside():
    """It is one of the effects of a call, as eager has it."""
    x, handles = torch.rand(2, 3), []

    def function(x):
        handles[-1].remove()
        return LINEAR(x)

    compiled = funcaot.compile(function, backend="eager")
    expected = LINEAR(x)
    for _ in range(3):
        handles.append(modules.register_module_forward_hook(lambda module, args, output: -output))
        torch.testing.assert_close(compiled(x), expected)
