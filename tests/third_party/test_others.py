"""Libraries for images, equations, spheres and optimizers inside of a loss."""

import os

import pytest
import torch
from torch import nn
from training import check

pytestmark = pytest.mark.filterwarnings("ignore")


def test_diffusers():
    import diffusers

    def make():
        return diffusers.UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=4,
        )

    def batch(step):
        count = 2 + step % 2
        return torch.randn(count, 1, 8, 8), torch.randint(0, 10, (count,))

    check(make, lambda function, x, t: function(x, t).sample.pow(2).mean(), batch, steps=3)


def test_deepxde(monkeypatch):
    monkeypatch.setitem(os.environ, "DDE_BACKEND", "pytorch")
    import deepxde

    def loss(function, x):
        x = x.requires_grad_()
        y = function(x)
        second = deepxde.grad.hessian(y, x, i=0, j=0)
        first = deepxde.grad.jacobian(y, x, i=0, j=1)
        deepxde.grad.clear()
        return (first - second).pow(2).mean()

    check(
        lambda: deepxde.nn.FNN([2, 8, 8, 1], "tanh", "Glorot normal"),
        loss,
        lambda step: (torch.randn(5 + step % 2, 2),),
        tolerance=1e-3,
    )


def test_torchopt():
    """Two steps of Adam inside, differentiated."""
    import torchopt

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def loss(self, parameters, x):
            return torch.func.functional_call(self.inner, parameters, (x,)).pow(2).mean()

        def forward(self, x):
            parameters = dict(self.inner.named_parameters())
            optimizer = torchopt.adam(lr=0.1)
            state = optimizer.init(parameters)
            for _ in range(2):
                loss = self.loss(parameters, x)
                found = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
                gradients = dict(zip(parameters, found, strict=True))
                updates, state = optimizer.update(gradients, state, inplace=False)
                parameters = torchopt.apply_updates(parameters, updates, inplace=False)
            return self.loss(parameters, x)

    check(
        Adapted,
        lambda function, x: function(x),
        lambda step: (torch.randn(4 + step % 2, 3),),
        tolerance=1e-3,
    )


def test_torch_harmonics():
    import torch_harmonics

    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.there, self.back = (
                torch_harmonics.RealSHT(8, 16),
                torch_harmonics.InverseRealSHT(8, 16),
            )
            self.scale = nn.Parameter(torch.randn(self.there.lmax, 1))

        def forward(self, x):
            return self.back(self.there(x) * self.scale)

    check(
        Filter,
        lambda function, x: function(x).pow(2).mean(),
        lambda step: (torch.randn(2 + step % 2, 8, 16),),
        tolerance=1e-3,
    )


def test_structural_similarity():
    import pytorch_msssim

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x):
            return 1 - pytorch_msssim.ssim(self.inner(x), x, data_range=1.0, win_size=5)

    check(
        Denoiser,
        lambda function, x: function(x),
        lambda step: (torch.rand(2 + step % 2, 1, 16, 16),),
        tolerance=1e-3,
    )


def test_kornia():
    import kornia

    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            y = kornia.filters.gaussian_blur2d(self.inner(x), (3, 3), (1.5, 1.5)).sigmoid()
            angles = torch.tensor([10.0]).expand(len(x))
            turned = kornia.geometry.transform.rotate(kornia.filters.sobel(y), angles)
            return turned.mean() + kornia.losses.ssim_loss(y, x, 5)

    check(
        Filter,
        lambda function, x: function(x),
        lambda step: (torch.rand(2 + step % 2, 3, 12, 12),),
        tolerance=1e-3,
    )


def test_brevitas():
    """Weights and activations are quantized to few bits, straight through.

    Which of the sorted values is its scale is a whole number of the batch's size: one for each.
    """
    import brevitas.nn as quantized
    from brevitas.quant import Int8ActPerTensorFloat, Int8WeightPerTensorFloat

    def make():
        weights = {"weight_quant": Int8WeightPerTensorFloat, "weight_bit_width": 4}
        return nn.Sequential(
            quantized.QuantIdentity(act_quant=Int8ActPerTensorFloat, bit_width=4),
            quantized.QuantLinear(3, 4, bias=True, **weights),
            quantized.QuantReLU(bit_width=4),
            quantized.QuantLinear(4, 1, bias=True, **weights),
        )

    check(
        make,
        lambda function, x: function(x).square().mean(),
        lambda step: (torch.randn(5 + step % 2, 3),),
        programs=3,
        tolerance=1e-3,
    )
