"""Tensors that a rule alone leads to, compiled: a global, an item, an attribute, by a helper."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

SCALE = torch.ones(3)
ITEMS = {"scale": torch.ones(3)}


def _helper():
    return SCALE


class _Holder:
    def __init__(self):
        self.scale = torch.ones(3)
        self.power = 1

    def __call__(self):
        return self.scale


_HOLDER = _Holder()
SETTINGS = _Holder()
WAYS = {
    "global": lambda: SCALE,
    "item": lambda: ITEMS["scale"],
    "attribute": lambda: SETTINGS.scale,
    "helper": lambda: _helper(),
    "object": lambda: _HOLDER(),
    "method": lambda: _HOLDER.__call__(),
    "detached": lambda: SCALE.detach(),
    "with a setting": lambda: SETTINGS.scale**SETTINGS.power,
}


def _set(value: float) -> None:
    """Other tensors in all places."""
    global SCALE
    SCALE = torch.full((3,), value)
    ITEMS["scale"] = torch.full((3,), value)
    SETTINGS.scale = torch.full((3,), value)
    _HOLDER.scale = torch.full((3,), value)


@pytest.fixture(autouse=True)
def _ones():
    _set(1.0)
    SETTINGS.power = 1
    yield
    _set(1.0)


def _by_vjp(way):
    @funcaot.custom_vjp
    def scaled(x):
        return x.sin()

    scaled.defvjp(lambda x: (x.sin(), x), lambda x, g: (g * x.cos() * way(),))
    return scaled


def _by_jvp(way):
    @funcaot.custom_jvp
    def scaled(x):
        return x.sin()

    scaled.defjvp(
        lambda primals, tangents: (primals[0].sin(), primals[0].cos() * way() * tangents[0])
    )
    return scaled


@pytest.mark.parametrize("nested", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", [_by_vjp, _by_jvp])
@pytest.mark.parametrize("way", WAYS)
def test_a_rule_alone_reads(way, rule, nested):
    scaled = rule(WAYS[way])
    function = (lambda x: scaled(2 * x)) if nested else scaled
    compiled = funcaot.compile(function, backend=COMPILER)
    factor = 2 if nested else 1
    for step in range(5):
        if step == 2:
            _set(3.0)
        if step == 3:
            SETTINGS.scale.fill_(5.0)
        if step == 4:
            SETTINGS.power = 2
        x = torch.linspace(0, 1, 3, requires_grad=True)
        result = compiled(x)
        torch.testing.assert_close(result, (factor * x).sin())
        result.sum().backward()
        expected = factor * (factor * x.detach()).cos() * WAYS[way]()
        torch.testing.assert_close(x.grad, expected)
    assert funcaot.report(compiled).cache_misses <= 2
