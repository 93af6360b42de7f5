"""Layers with running statistics: their buffers, outputs and gradients are as in eager."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

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


@pytest.mark.parametrize("layer", LAYERS)
def test_a_gpu_is_asked_for_torchs_own_kernel(layer, monkeypatch):
    """That of cuDNN updates the statistics without a word, and Inductor leaves the update out."""
    allowed = []

    def noting(run):
        def noted(*args, **kwargs):
            allowed.append(torch.backends.cudnn.enabled)
            return run(*args, **kwargs)

        return noted

    monkeypatch.setattr(torch, "batch_norm", noting(torch.batch_norm))
    monkeypatch.setattr(torch, "instance_norm", noting(torch.instance_norm))
    kind, shape = LAYERS[layer]
    module = kind(3, track_running_stats=True)
    funcaot.compile(module, backend="eager")(torch.randn(shape))
    assert allowed == [False]
    assert torch.backends.cudnn.enabled


def test_an_op_that_updates_them_without_a_word():
    """It is refused; without statistics it runs."""
    update = funcaot.compile(
        lambda x, *given: torch.batch_norm_update_stats(x, *given, 0.1), backend="eager"
    )
    mean, variance = torch.zeros(3), torch.ones(3)
    with pytest.raises(UnsupportedError, match="updates running statistics without a word"):
        update(torch.randn(4, 3), mean, variance)
    assert_close(mean, torch.zeros(3))
    x = torch.randn(4, 3)
    wanted = torch.batch_norm_update_stats(x, None, None, 0.1)
    assert_close(update(x, None, None), wanted)


def test_cudnns_kernel_where_no_gradient_is_recorded():
    """A Function's forward is traced without handlers; torch's own kernel declares its writes."""
    x, mean, variance = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    wanted = [each.clone() for each in (mean, variance)]
    expected = nn.functional.batch_norm(x, *wanted, training=True)
    as_seen, seen, *_ = funcaot.compile(Silent.apply, backend=COMPILER)(x, mean, variance)
    assert_close(as_seen, expected)
    assert_close([mean, variance], wanted)
    assert seen is mean


class Silent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean, variance):
        ctx.mark_dirty(mean, variance)
        weight, bias = torch.ones_like(mean), torch.zeros_like(mean)
        made = torch.cudnn_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
        return made[0], mean, variance

    @staticmethod
    def backward(ctx, arriving, *_):
        return arriving, None, None
