"""Recurrent layers, attention and norms under CPU autocast: dtypes are those of eager."""

import pytest
import torch
from torch import nn

import funcaot
from tests.hostile import COMPILER

LAYERS = {
    "LSTM": lambda: nn.LSTM(8, 8, batch_first=True),
    "LSTM, two layers, both ways": lambda: nn.LSTM(8, 8, 2, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(8, 8, proj_size=4),
    "GRU": lambda: nn.GRU(8, 8),
    "RNN": lambda: nn.RNN(8, 8),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
    "attention": lambda: nn.MultiheadAttention(8, 2),
}


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value or () for tensor in flat(part)]


def outcome(layer, wrap, *, inside, grad):
    def function(x):
        operands = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)
        if not inside:
            return layer(*operands)
        with torch.autocast("cpu", torch.bfloat16):
            return layer(*operands)

    compiled, found = wrap(function), []
    for index in range(2):
        torch.manual_seed(index)
        x = torch.randn(3, 5, 8, requires_grad=grad)
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            results = flat(compiled(x))
        found += [result.detach() for result in results]
        if grad:
            sum((r.float() ** 2).sum() for r in results if r.requires_grad).backward()
            found += [x.grad, *(p.grad.clone() for p in layer.parameters())]
    return found


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_dtypes_are_those_of_eager(name, inside, grad):
    torch.manual_seed(0)
    layer = LAYERS[name]().requires_grad_(grad)
    try:
        wanted = outcome(layer, lambda f: f, inside=inside, grad=grad)
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip("eager has no kernel for this layer in half precision on this processor")
    found = outcome(layer, lambda f: funcaot.compile(f, backend="eager"), inside=inside, grad=grad)
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in wanted]
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)


def test_ctc_loss():
    """It reads lengths, so it runs as one opaque node, whose backward comes after autocast."""
    lengths, classes = torch.tensor([8, 8, 8]), torch.tensor([1, 2, 3, 1, 2, 2])
    layer = nn.Linear(6, 6)

    def loss(x):
        scores = layer(x).log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(scores, classes, lengths, torch.tensor([2, 2, 2]))

    compiled = funcaot.compile(loss, backend=COMPILER)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(3, 8, 6, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            found, wanted = compiled(x), loss(x)
        leaves = (x, *layer.parameters())
        found = (found, *torch.autograd.grad(found, leaves))
        wanted = (wanted, *torch.autograd.grad(wanted, leaves))
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-2)


NORMS = {
    "layer": lambda: nn.LayerNorm(8),
    "layer without bias": lambda: nn.LayerNorm(8, bias=False),
    "layer without weights": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "group": lambda: nn.Sequential(nn.Flatten(0, 1), nn.GroupNorm(2, 8)),
    "batch": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(8)),
    "batch without weights": lambda: nn.Sequential(
        nn.Flatten(0, 1), nn.BatchNorm1d(8, affine=False)
    ),
    "batch, evaluated": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(8)).eval(),
    "instance": lambda: nn.InstanceNorm1d(5, affine=True, track_running_stats=True),
    "root mean square": lambda: nn.RMSNorm(8),
}


def orders(layer, wrap, *, order):
    """Results, gradients and buffers of two calls, whose norm reads what a linear layer gave."""
    model = nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 3))
    called, found = wrap(model), []
    for index in range(2):
        torch.manual_seed(index)
        x = torch.randn(3, 5, 8, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            result = called(x)
        leaves = [x, *model.parameters()]
        made = torch.autograd.grad(result.float().square().sum(), leaves, create_graph=order == 2)
        found += [result, *made]
        if order == 2:
            total = sum(each.float().square().sum() for each in made)
            found += torch.autograd.grad(total, leaves, allow_unused=True)
        found += [buffer.clone() for buffer in model.buffers()]
    return found


def check_norm(name, order, backend):
    outcomes = []
    for wrap in (lambda model: model, lambda model: funcaot.compile(model, backend=backend)):
        torch.manual_seed(0)
        outcomes.append(orders(NORMS[name](), wrap, order=order))
    wanted, found = outcomes
    # Second derivatives by a bias that a norm takes away are rounding errors of the others.
    largest = max(other.abs().max().item() for other in wanted if other is not None)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            scale = largest if order == 2 else max(1, other.abs().max().item())
            torch.testing.assert_close(one / scale, other / scale, rtol=0, atol=2e-2)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NORMS)
def test_norms_behind_linear_layers(name, order):
    """They get bfloat16 beside weights of float32."""
    check_norm(name, order, COMPILER)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", NORMS)
def test_norms_behind_linear_layers_on_inductor(name):
    check_norm(name, 2, "inductor")
