"""Training on the GPU: models, losses and whole steps, parameters as eager's after each step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import funcaot

# Advice of Inductor's about speed.
pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32")

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adam, fused": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    "adam, capturable": lambda p: torch.optim.Adam(p, 1e-2, capturable=p[0].is_cuda),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    "sgd, fused": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, fused=True),
}


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.GELU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x.to(memory_format=torch.channels_last))


class Forces(nn.Module):
    """The energy of points, whose gradient is what is trained."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.SiLU())
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        x = x.flatten(1)[:, :12].unflatten(1, (4, 3)).detach().requires_grad_()
        energy = self.last(self.body(x)).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0].flatten(1)[:, :5]


MODELS = {
    "convolutions": Convolutions,
    "attention": lambda: nn.Sequential(
        nn.Flatten(2),
        nn.TransformerEncoderLayer(64, 4, 32, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(192, 5),
    ),
    "lstm": lambda: nn.Sequential(nn.Flatten(2), Last(nn.LSTM(64, 16, batch_first=True))),
    "forces": Forces,
}


class Last(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])


def trained(make_step, name, optimizer, device, dtype, sizes):
    torch.manual_seed(3)
    model = MODELS[name]().to(device, dtype)
    chosen = OPTIMIZERS[optimizer](list(model.parameters()))
    step = make_step(model, chosen)
    seen = []
    for number, rows in enumerate(sizes):
        torch.manual_seed(number)
        images = torch.randn(rows, 3, 8, 8, dtype=dtype).to(device)
        labels = torch.randint(0, 5, (rows,)).to(device)
        seen.append(step(images, labels).detach().clone())
    kept = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        **{f"loss {number}": loss for number, loss in enumerate(seen)},
        **{each: tensor.detach().clone() for each, tensor in kept.items()},
    }


def one_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def eager(model, optimizer):
    return lambda images, labels: one_step(model, optimizer, images, labels)


def compiled_model(model, optimizer):
    return eager(funcaot.compile(model), optimizer)


def compiled_step(model, optimizer):
    return funcaot.compile(eager(model, optimizer))


WAYS = (compiled_model, compiled_step)
CASES = [
    *((name, "adam", way) for name in MODELS for way in WAYS),
    *(("forces", optimizer, compiled_step) for optimizer in OPTIMIZERS if optimizer != "adam"),
    *(("forces", optimizer, compiled_model) for optimizer in ("adam, fused", "sgd, fused")),
]


@pytest.mark.parametrize(("name", "optimizer", "way"), CASES)
def test_parameters_as_eagers(device, name, optimizer, way):
    torch.backends.cudnn.allow_tf32 = False
    sizes = (6, 6, 9, 9, 6, 4)
    arguments = (name, optimizer, device, torch.float64, sizes)
    found, expected = trained(way, *arguments), trained(eager, *arguments)
    for kept, value in expected.items():
        torch.testing.assert_close(found[kept], value, rtol=1e-8, atol=1e-8, msg=kept)


@pytest.mark.parametrize("way", ["model", "step"])
def test_mixed_precision_with_a_scaler(device, way):
    """Losses fall, the scale and the skipped steps are eager's."""
    runs = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**20, growth_interval=3)
        forward = funcaot.compile(model) if is_compiled and way == "model" else model

        def step(x, y, forward=forward, optimizer=optimizer, scaler=scaler, device=device):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = F.mse_loss(forward(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        if is_compiled and way == "step":
            step = funcaot.compile(step)
        seen = []
        for number in range(12):
            torch.manual_seed(number)
            x = torch.randn(32, 16, device=device)
            seen.append((step(x, x[:, :1] * 2).item(), scaler.get_scale()))
        runs.append(seen)
    for (loss, scale), (wanted, wanted_scale) in zip(*runs, strict=True):
        assert scale == wanted_scale
        assert loss == pytest.approx(wanted, rel=2e-2)


NORMS = {
    "BatchNorm1d": (nn.BatchNorm1d, (6, 3)),
    "BatchNorm2d": (nn.BatchNorm2d, (6, 3, 4, 4)),
    "InstanceNorm2d": (nn.InstanceNorm2d, (6, 3, 4, 4)),
}
AROUND = {
    "alone": lambda layer: layer,
    "in checkpoint": lambda layer: lambda x: checkpoint(layer, x, use_reentrant=False),
    "in a gradient": lambda layer: (
        lambda x: torch.autograd.grad(layer(x).sin().sum(), x, create_graph=True)[0]
    ),
    "in a Function": lambda layer: (
        lambda x: Normalized.apply(x, layer.running_mean, layer.running_var)[0]
    ),
}


class Normalized(torch.autograd.Function):
    """Updates the statistics that it is given."""

    @staticmethod
    def forward(ctx, x, mean, variance):
        ctx.mark_dirty(mean, variance)
        weight, bias = torch.ones_like(mean), torch.zeros_like(mean)
        return F.batch_norm(x, mean, variance, weight, bias, training=True), mean, variance

    @staticmethod
    def backward(ctx, arriving, *_):
        return arriving, None, None


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("norm", NORMS)
def test_running_statistics(device, norm, around, backend):
    kind, shape = NORMS[norm]
    runs = []
    for is_compiled in (False, True):
        layer = kind(3, affine=True, track_running_stats=True).to(device)
        run = AROUND[around](layer)
        run = funcaot.compile(run, backend=backend) if is_compiled else run
        torch.manual_seed(1)
        seen = []
        for rows in (6, 6, 4):
            x = torch.randn(rows, *shape[1:], requires_grad=True).to(device)
            seen.append(run(x).detach())
            seen += [each.clone() for each in layer.buffers()]
        runs.append(seen)
    for found, wanted in zip(*runs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
