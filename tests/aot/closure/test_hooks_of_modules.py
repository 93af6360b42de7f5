"""Hooks that a compiled function registers or removes: each call does what it does in eager."""

import warnings

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError
from tests.hostile import COMPILER

HOOKS = {
    "forward": lambda m: m.register_forward_hook(lambda m, given, result: result * 2),
    "with keywords": lambda m: m.register_forward_hook(
        lambda m, given, keywords, result: result * 2, with_kwargs=True
    ),
    "before": lambda m: m.register_forward_pre_hook(lambda m, given: (given[0] * 2,)),
    "backward": lambda m: m.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)),
    "before backward": lambda m: m.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    "of a tensor": lambda m: m.weight.register_hook(lambda g: g * 2),
}


def always(module, x, register):
    register(module)
    return module(x)


def once(module, x, register):
    if not getattr(module, "done", False):
        register(module)
        module.done = True
    return module(x)


def between(module, x, register):
    handle = register(module)
    result = module(x)
    handle.remove()
    return result


def kept(module, x, register):
    if hasattr(module, "handle"):
        module.handle.remove()
        del module.handle
    else:
        module.handle = register(module)
    return module(x)


def seen(function, register, compiled):
    torch.manual_seed(0)
    module = nn.Linear(2, 2)

    def called(module, x):
        return function(module, x, register)

    call = funcaot.compile(called, backend=COMPILER) if compiled else called
    found = []
    for _ in range(4):
        x = torch.ones(2, requires_grad=True)
        module.weight.grad = None
        result = call(module, x)
        result.sum().backward()
        count = sum(len(held) for name, held in vars(module).items() if name.endswith("_hooks"))
        found += [result.tolist(), x.grad.tolist(), module.weight.grad.tolist(), count]
    return found


@pytest.mark.parametrize("function", [always, once, between, kept])
@pytest.mark.parametrize("kind", HOOKS)
def test_each_call_is_like_eagers(kind, function):
    wanted = seen(function, HOOKS[kind], compiled=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        if function is kept and kind == "of a tensor":
            with pytest.raises(UnsupportedError, match="the handle of a hook"):
                seen(function, HOOKS[kind], compiled=True)
            return
        assert seen(function, HOOKS[kind], compiled=True) == wanted


class Other(nn.Linear):
    pass


def _deletes(module):
    module.handle.remove()
    del module.handle


CHANGES = {
    "registers a hook": lambda m: m.register_forward_hook(lambda *given: None),
    "registers a hook of the backward": lambda m: m.register_full_backward_hook(lambda *g: None),
    "deletes a hook and its handle": _deletes,
    "becomes of another class": lambda m: setattr(m, "__class__", Other),
    "registers a buffer": lambda m: m.register_buffer("b", torch.ones(2), persistent=False),
    "registers a parameter": lambda m: m.register_parameter("p", nn.Parameter(torch.ones(2))),
    "registers a module": lambda m: m.add_module("inner", nn.Linear(2, 2)),
    "deletes a parameter": lambda m: delattr(m, "bias"),
    "is frozen": lambda m: m.requires_grad_(False),
    "is evaluated": lambda m: m.eval(),
}


def looks(module):
    own = {
        name: sorted(map(str, held)) if isinstance(held, dict | set) else held
        for name, held in vars(module).items()
    }
    return type(module), own, [p.requires_grad for p in module.parameters()]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_refused_capture_leaves_a_module_as_it_was(kind):
    module = nn.Linear(2, 2)
    module.handle = module.register_forward_pre_hook(lambda *given: None)

    def function(x):
        CHANGES[kind](module)
        return torch.from_numpy(x.numpy())

    before = looks(module)
    with pytest.raises(UnsupportedError):
        funcaot.compile(function, backend=COMPILER)(torch.ones(2))
    assert looks(module) == before


@pytest.mark.parametrize("kind", ["lazy", "of another's class"])
def test_what_a_library_sets_is_put_back_where_a_module_is_made_in_the_first_call(kind):
    class Lazy(nn.modules.lazy.LazyModuleMixin, nn.Module):
        if kind != "lazy":
            cls_to_become = Other

        def initialize_parameters(self, x):
            self.weight = nn.Parameter(torch.full((2, 2), 0.5))
            self.bias = None

        def forward(self, x):
            return nn.functional.linear(x, self.weight) if kind == "lazy" else None

    module = Lazy()
    module.in_features = module.out_features = 2
    call = funcaot.compile(module, backend=COMPILER)
    for _ in range(3):
        if kind == "lazy":
            assert call(torch.ones(2)).tolist() == [1.0, 1.0]
        else:
            call(torch.ones(2))
    assert type(module) is (Lazy if kind == "lazy" else Other)
