"""Losses and layers of pictures in every layout: values, gradients, their strides are eager's."""

from __future__ import annotations

import pytest

import funcaot
from tests.derivatives.modules.layouts import (
    CASES,
    LAYERS,
    LAYOUTS,
    LOSSES,
    UNDIFFERENTIABLE,
    differences,
    orders,
    together,
)

GROUP = 12  # which one graph holds, as a C++ compiler takes seconds for each


def grouped(cases):
    names = list(cases)
    return [tuple(names[i : i + GROUP]) for i in range(0, len(names), GROUP)]


def agree(names, layout, pushed, backend):
    """Twice, as the first call is the one that is captured."""
    names = tuple(name for name in names if (name, layout) not in UNDIFFERENTIABLE)
    wanted = orders(names, layout, pushed=pushed)
    function = compiled(names, backend)
    for _ in range(2):
        assert not differences(orders(names, layout, pushed=pushed, function=function), wanted)


def compiled(names, backend):
    function = together(tuple(names))
    return (
        funcaot.compile(function) if backend is None else funcaot.compile(function, backend=backend)
    )


def named(names):
    return f"{names[0]}-{names[-1]}"


@pytest.mark.parametrize("names", grouped(LOSSES), ids=named)
@pytest.mark.parametrize("layout", ["channels_last", "reversed"])
def test_losses(names, layout):
    agree(names, layout, "turned", "eager")


@pytest.mark.parametrize("names", grouped(LAYERS), ids=named)
def test_layers(names):
    agree(names, "channels_last", "alike", "eager")


@pytest.mark.slow
@pytest.mark.parametrize("names", grouped(CASES), ids=named)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pushed", ["alike", "turned"])
def test_all(names, layout, pushed):
    agree(names, layout, pushed, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("names", grouped(LOSSES), ids=named)
def test_losses_on_inductor(names):
    agree(names, "channels_last", "alike", None)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("names", grouped(CASES), ids=named)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pushed", ["alike", "turned"])
def test_all_on_inductor(names, layout, pushed):
    agree(names, layout, pushed, None)


@pytest.mark.parametrize("layout", ["channels_last", "turned", "reversed"])
def test_what_torch_refuses_is_refused(layout):
    with pytest.raises(RuntimeError, match="grad_input must be contiguous"):
        orders(["nll_of_x_mean"], layout)
    with pytest.raises(RuntimeError, match="grad_input must be contiguous"):
        orders(["nll_of_x_mean"], layout, function=compiled(["nll_of_x_mean"], "eager"))
