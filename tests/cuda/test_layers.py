"""Layers whose GPU kernels differ from those for CPUs: packed, sparse, norms, CTC in autocast."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import funcaot
from tests.cuda.comparing import close, looks

# Advice of Inductor's about speed.
pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32")

RECURRENT = {
    "lstm": lambda: nn.LSTM(4, 6, batch_first=True),
    "gru, both ways": lambda: nn.GRU(4, 6, 2, batch_first=True, bidirectional=True),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", RECURRENT)
def test_packed_sequences(device, name, backend):
    """cuDNN's kernel puts all weights into one memory, which no graph says."""
    torch.backends.cudnn.allow_tf32 = False
    layer = RECURRENT[name]().to(device)

    def function(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)

    compiled = funcaot.compile(function, backend=backend)
    for lengths in ([3, 5, 2], [5, 5, 1], [3, 5, 2]):
        x, seen = torch.randn(3, 5, 4, device=device), []
        for call in (compiled, function):
            values, counts = call(x, torch.tensor(lengths))
            grads = torch.autograd.grad(values.sin().sum(), list(layer.parameters()))
            seen.append(looks([values, counts, *grads]))
        close(*seen, tolerance=1e-4)


def test_sparse_gradients_of_other_sizes(device):
    layer = nn.Embedding(20, 4, sparse=True).to(device)
    compiled = funcaot.compile(lambda rows: layer(rows).square().sum())
    for rows in (4, 4, 5, 7):
        indices, grads = torch.arange(rows, device=device) % 6, []
        for call in (compiled, lambda rows: layer(rows).square().sum()):
            layer.zero_grad()
            call(indices).backward()
            grads.append(layer.weight.grad.to_dense())
        torch.testing.assert_close(*grads)


NORMS = {
    "layer": lambda: nn.LayerNorm(8),
    "group": lambda: nn.Sequential(nn.Flatten(0, 1), nn.GroupNorm(2, 8)),
    "batch": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(8)),
    "batch, evaluated": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(8)).eval(),
    "instance": lambda: nn.InstanceNorm1d(5, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_norms_behind_linear_layers(device, name, dtype):
    """They get half precision beside weights of float32."""
    runs = []
    for wrap in (lambda layer: layer, funcaot.compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), NORMS[name](), nn.Linear(8, 3)).to(device)
        called, seen = wrap(model), []
        for rows in (3, 3, 4):
            torch.manual_seed(rows)
            x = torch.randn(rows, 5, 8).to(device).requires_grad_()
            with torch.autocast(device, dtype):
                result = called(x)
            grads = torch.autograd.grad(result.float().square().mean(), [x, *model.parameters()])
            seen += looks([result, *grads, *model.buffers()])
        runs.append(seen)
    close(runs[1], runs[0], tolerance=5e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ctc_loss_in_autocast(device, dtype):
    layer = nn.Linear(6, 6).to(device)
    lengths, wanted = torch.tensor([8, 7, 8]), torch.tensor([2, 1, 2])

    def loss(x, classes):
        scores = layer(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, classes, lengths, wanted)

    compiled = funcaot.compile(loss)
    for last in (1, 2, 3):
        classes = torch.tensor([[1, 2], [3, 0], [2, last]], device=device)
        x, seen = torch.randn(3, 8, 6, device=device, requires_grad=True), []
        for call in (compiled, loss):
            with torch.autocast(device, dtype):
                value = call(x, classes)
            seen.append(looks([value, *torch.autograd.grad(value, (x, *layer.parameters()))]))
        close(*seen, tolerance=3e-2)


def test_whether_memory_is_pinned(device):
    """What a function reads of its arguments, in each call anew."""
    compiled = funcaot.compile(lambda x: x.to(device) + x.is_pinned(), fullgraph=True)
    for _ in range(2):
        for x in (torch.ones(3), *([torch.ones(3).pin_memory()] if device == "cuda" else ())):
            assert torch.equal(compiled(x).cpu(), x + x.is_pinned())
