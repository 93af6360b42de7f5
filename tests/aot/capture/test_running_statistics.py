"""Layers with running statistics: their buffers, outputs and gradients are as in eager."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot

LAYERS = {
    "BatchNorm1d": (nn.BatchNorm1d, (4, 3)),
    "BatchNorm1d of sequences": (nn.BatchNorm1d, (4, 3, 5)),
    "BatchNorm2d": (nn.BatchNorm2d, (2, 3, 4, 4)),
    "InstanceNorm1d": (nn.InstanceNorm1d, (2, 3, 5)),
    "InstanceNorm2d": (nn.InstanceNorm2d, (2, 3, 4, 4)),
}
OPTIONS = {
    "usual": {"affine": True, "track_running_stats": True},
    "momentum": {"affine": True, "track_running_stats": True, "momentum": 0.3},
    "cumulative": {"affine": True, "track_running_stats": True, "momentum": None},
    "without statistics": {"affine": True, "track_running_stats": False},
    "without weights": {"affine": False, "track_running_stats": True},
}
# Twice each, so that programs are used again; and back.
MODES = (True, True, False, False, True)


def outcomes(layer, options, wrap, *, grad):
    """For each call what can be seen of outputs, gradients and buffers."""
    torch.manual_seed(0)
    kind, shape = LAYERS[layer]
    module = kind(3, **OPTIONS[options]).double()
    called = wrap(module)
    found = []
    for training in MODES:
        module.train(training)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        with torch.set_grad_enabled(grad):
            y = called(x * 2)
        seen = [y.detach()]
        if grad:
            seen += torch.autograd.grad((y**3).sum(), [x, *module.parameters()])
        buffers = dict(module.named_buffers())
        seen += [buffer.clone() for buffer in buffers.values()]
        facts = [(name, buffer._version, buffer.dtype) for name, buffer in buffers.items()]
        found.append((seen, facts, y.requires_grad, y.stride()))
    return found


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_statistics_run_as_in_eager(layer, options, grad):
    expected = outcomes(layer, options, lambda module: module, grad=grad)
    compile_it = lambda module: funcaot.compile(module, backend="eager")  # noqa: E731
    for ours, theirs in zip(outcomes(layer, options, compile_it, grad=grad), expected, strict=True):
        assert_close(ours[0], theirs[0], rtol=1e-10, atol=1e-12)
        assert ours[1:] == theirs[1:]
