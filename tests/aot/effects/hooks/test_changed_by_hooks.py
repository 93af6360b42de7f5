"""Hooks from before the call that change something in Python, where backward() is inside."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError

LOG = []


class Counter:
    def __init__(self):
        self.number = 0
        self.last = None

    def count(self, gradient):
        self.number += 1


def leaf():
    return torch.tensor([1.0, 2.0], requires_grad=True)


def step(x, *reached, **options):
    def body(a):
        (a * x).sum().backward()
        return len(reached[0]) if reached else 0

    return funcaot.compile(body, backend="eager", **options)


def appended(x, into, kind):
    if kind == "gradient":
        return x.register_hook(lambda gradient: into.append(gradient.clone()))
    return x.register_post_accumulate_grad_hook(lambda x: into.append(x.grad.clone()))


@pytest.mark.parametrize("kind", ["gradient", "accumulated"])
def test_what_nothing_else_reaches(kind):
    x, log = leaf(), []
    appended(x, log, kind)
    compiled = step(x)
    with pytest.raises(UnsupportedError, match=r"a hook of a tensor .* changes into"):
        compiled(torch.ones(2))
    assert log == [] and x.grad is None


@pytest.mark.parametrize("kind", ["gradient", "accumulated"])
@pytest.mark.parametrize("reached", ["closure", "global"])
def test_what_is_reached(kind, reached):
    x, log = leaf(), []
    if reached == "global":
        LOG.clear()
        log = LOG
        if kind == "gradient":
            x.register_hook(lambda gradient: LOG.append(gradient.clone()))
        else:
            x.register_post_accumulate_grad_hook(lambda x: LOG.append(x.grad.clone()))
        compiled = step(x)
    else:
        appended(x, log, kind)
        compiled = step(x, log)
    for i in range(3):
        compiled(torch.ones(2))
        assert len(log) == i + 1
        assert_close(log[i], torch.ones(2) * (1 if kind == "gradient" else i + 1))


def test_objects():
    x, counter = leaf(), Counter()
    x.register_hook(counter.count)
    with pytest.raises(UnsupportedError, match="a hook of a tensor"):
        step(x)(torch.ones(2))
    x, last = leaf(), Counter()
    x.register_hook(lambda gradient: setattr(last, "last", gradient))
    with pytest.raises(UnsupportedError, match="changes last"):
        step(x)(torch.ones(2))
    assert counter.number == 0 and last.last is None


def test_several_tensors():
    x, y, log = leaf(), leaf(), []

    def register():
        hook = log.append
        return torch.autograd.graph.register_multi_grad_hook((x, y), lambda found: hook(len(found)))

    handle = register()
    compiled = step(x, log)
    with pytest.raises(UnsupportedError, match="register_multi_grad_hook"):
        compiled(torch.ones(2))
    handle.remove()
    compiled(torch.ones(2))
    assert log == [] and torch.equal(x.grad, torch.ones(2))


def test_hooks_of_all_modules():
    log, linear = [], torch.nn.Linear(2, 2)
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, given, result: log.append(result.detach())
    )
    try:
        with pytest.raises(UnsupportedError, match="a hook of all modules that changes log"):
            funcaot.compile(lambda x: linear(x), backend="eager")(torch.ones(2))
        assert log == []
        reaching = funcaot.compile(lambda x: (linear(x), len(log))[0], backend="eager")
        assert_close([reaching(torch.ones(2)) for _ in range(2)], log)
    finally:
        handle.remove()


def test_runs_as_it_is():
    x, log = leaf(), []
    appended(x, log, "gradient")
    compiled = step(x, fullgraph=False)
    for _ in range(2):
        with pytest.warns(CaptureWarning, match="a hook of a tensor"):
            compiled(torch.ones(2))
    assert len(log) == 2
