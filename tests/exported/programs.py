"""Energies of open size, the first half; ``more_programs`` has the rest.

An energy takes tensors whose first dimension, or the one that ``OPEN`` names, may have any size
from 2 on, and returns a number. Derivatives are by its first argument.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {}
# For each program what it is given, as a function of the open size.
GIVEN: dict[str, Callable[[int], tuple[torch.Tensor, ...]]] = {}
# The dimension that is open in each argument; None for an argument without one.
OPEN: dict[str, tuple[int | None, ...]] = {}


def points(size: int) -> tuple[torch.Tensor, ...]:
    """Points in space, the same for each size."""
    generator = torch.Generator().manual_seed(size)
    return (torch.rand(size, 3, dtype=torch.float64, generator=generator) + 0.1,)


def line(size: int) -> tuple[torch.Tensor, ...]:
    """Numbers in a row."""
    return (points(size)[0][:, 0].contiguous(),)


def images(size: int) -> tuple[torch.Tensor, ...]:
    """A batch of one image of open height."""
    generator = torch.Generator().manual_seed(size)
    return (torch.rand(2, 3, size, 8, dtype=torch.float64, generator=generator),)


def signals(size: int) -> tuple[torch.Tensor, ...]:
    """A batch of signals of open length."""
    generator = torch.Generator().manual_seed(size)
    return (torch.rand(2, 3, size, dtype=torch.float64, generator=generator),)


def batch(size: int) -> tuple[torch.Tensor, ...]:
    """A batch of symmetric matrices."""
    generator = torch.Generator().manual_seed(size)
    return (torch.rand(size, 3, 3, dtype=torch.float64, generator=generator) + 2 * torch.eye(3),)


def square(size: int) -> tuple[torch.Tensor, ...]:
    """A matrix of open size, both ways."""
    generator = torch.Generator().manual_seed(size)
    return (torch.rand(size, size, dtype=torch.float64, generator=generator) / size,)


def program(given, opened=(0,)):
    """Register an energy by its name."""

    def registered(function):
        name = function.__name__
        PROGRAMS[name], GIVEN[name], OPEN[name] = function, given, opened
        return function

    return registered


def module(*layers: nn.Module) -> nn.Sequential:
    """A network with weights that don't change."""
    torch.manual_seed(0)
    return nn.Sequential(*layers).double()


def _apart(x):
    off = ~torch.eye(x.shape[0], dtype=torch.bool)
    squares = (x[:, None] - x[None]).square().sum(-1)
    return torch.where(off, squares, 1.0), off


@program(points)
def lennard_jones(x):
    squares, off = _apart(x)
    inverse = squares.reciprocal() ** 3
    return 0.5 * torch.where(off, 4 * (inverse**2 - inverse) * 1e-3, 0.0).sum()


@program(points)
def coulomb(x):
    charges = 1 - 2 * (torch.arange(x.shape[0]) % 2).double()
    squares, off = _apart(x)
    return 0.5 * (charges[:, None] * charges * squares.rsqrt() * off).sum()


@program(points)
def neighbours_by_mask(x):
    squares, off = _apart(x)
    near = off & (squares < 0.3)
    switch = torch.where(near, (1 - squares / 0.3) ** 3, 0.0)
    return (switch.sum(1) + 1e-3).sqrt().sum()


@program(points)
def pairs_by_triu(x):
    i, j = torch.triu_indices(x.shape[0], x.shape[0], offset=1)
    return torch.exp(-(x[i] - x[j]).square().sum(-1)).sum()


@program(points)
def pairs_by_tril(x):
    i, j = torch.tril_indices(x.shape[0], x.shape[0], -1)
    return torch.linalg.vector_norm(x[i] - x[j], dim=-1).sum()


@program(points)
def distances(x):
    return torch.cdist(x, x + 1).sum()


@program(points)
def pairwise(x):
    return F.pairwise_distance(x, x.flip(0) * 2).sum()


@program(points)
def periodic(x):
    cell = torch.tensor([1.0, 1.2, 0.9], dtype=torch.float64)
    apart = x[:, None] - x
    apart = apart - cell * torch.round(apart / cell).detach()
    return torch.exp(-apart.square().sum(-1)).sum()


@program(points)
def every_other(x):
    return (x[::2].sin().sum(0) * x[1::2].cos().sum(0)).sum()


@program(line)
def every_third(x):
    return (x[::3] ** 3).sum() + x[1:][::2].square().sum()


@program(line)
def differences(x):
    return ((x[1:] - x[:-1]) ** 2).sum() + x.diff().abs().sum() + (x - x.roll(1)).square().sum()


@program(line)
def every_other_number(x):
    n = x.shape[0]
    return (x[torch.arange(0, n, 2)] ** 2).sum() + (torch.arange(0, n, 2).double().sum() * x).sum()


@program(line)
def numbers_backwards(x):
    n = x.shape[0]
    return (x * torch.arange(n - 1, -1, -1) * torch.arange(1, n + 1)).sin().sum()


@program(line)
def cumulated(x):
    return x.cumsum(0).sin().sum() + torch.cumsum(x.flip(0), 0).square().mean()


@program(line)
def cumulated_product(x):
    return (x.cumprod(0) * torch.arange(x.shape[0])).sum()


@program(line)
def product(x):
    return x.prod()


@program(points)
def products(x):
    return x.prod(0).sum() + x.prod(1).square().sum()


@program(line)
def cumulated_maximum(x):
    return x.cummax(0).values.square().sum() + x.logcumsumexp(0).sum()


@program(line)
def spectrum(x):
    return torch.fft.fft(x).abs().square().sum()


@program(line)
def real_spectrum(x):
    found = torch.fft.rfft(x)
    return (found.real**2 + found.imag**2).sum() + torch.fft.irfft(found, n=x.shape[0]).sum()


@program(points)
def spectrum_of_columns(x):
    weights = torch.fft.rfftfreq(x.shape[0], dtype=torch.float64)
    return (torch.fft.rfft(x, dim=0).abs().square().sum(1) * weights).sum()


@program(line)
def poisson(x):
    k = torch.fft.fftfreq(x.shape[0], dtype=torch.float64)
    potential = torch.fft.ifft(torch.fft.fft(x) / (1 + k**2)).real
    return (x * potential).sum()


@program(points)
def attention(x):
    weights = torch.softmax(x @ x.T / 3**0.5, -1)
    return (weights @ x).square().sum()


@program(points)
def fused_attention(x):
    return F.scaled_dot_product_attention(x[None], x[None] * 2, x[None]).square().sum()


@program(points)
def causal_attention(x):
    x = x[None, None]
    return F.scaled_dot_product_attention(x, x, x, is_causal=True).square().sum()


@program(points)
def masked_attention(x):
    scores = (x @ x.T).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    return (scores.softmax(-1) @ x).sin().sum()


HEADS = module(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True))


@program(points)
def transformer(x):
    return HEADS(torch.cat([x, x.sin()], -1)[None]).square().sum()


CONVOLUTIONS = module(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1))


@program(images, (2,))
def convolutions(x):
    return CONVOLUTIONS(x).square().sum()


STRIDED = module(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.Tanh())


@program(images, (2,))
def strided_convolution(x):
    return STRIDED(x).square().sum()


CONVOLUTION1 = module(nn.Conv1d(3, 4, 3, padding=1), nn.Tanh())


@program(signals, (2,))
def convolution1(x):
    return CONVOLUTION1(x).square().sum()


@program(line)
def smoothed(x):
    kernel = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    return F.conv1d(x[None, None], kernel[None, None], padding=1).square().sum()


TRANSPOSED = module(nn.ConvTranspose1d(3, 2, 4, stride=2), nn.Tanh())


@program(signals, (2,))
def transposed_convolution(x):
    return TRANSPOSED(x).square().sum()


@program(signals, (2,))
def pooled(x):
    return F.avg_pool1d(x, 2).square().sum() + F.max_pool1d(x, 2).square().sum()


@program(images, (2,))
def pooled_images(x):
    return F.avg_pool2d(x, 2).square().sum() + F.max_pool2d(x, 2).square().sum()


@program(images, (2,))
def adaptive(x):
    return F.adaptive_avg_pool2d(x, 1).square().sum() + F.adaptive_avg_pool2d(x, (2, 4)).sin().sum()


@program(images, (2,))
def interpolated(x):
    return F.interpolate(x, scale_factor=2, mode="bilinear").square().sum()


@program(images, (2,))
def interpolated_nearest(x):
    return F.interpolate(x, size=(7, 5), mode="nearest").square().sum()


@program(signals, (2,))
def padded(x):
    return F.pad(x, (1, 1), mode="reflect").square().sum() + F.pad(x, (2, 1)).sin().sum()


@program(signals, (2,))
def padded_around(x):
    return F.pad(x, (1, 1), mode="circular").square().sum() + F.pad(x, (1, 2), "replicate").sum()


@program(signals, (2,))
def unfolded(x):
    return x.unfold(2, 2, 1).prod(-1).square().sum()


@program(points)
def process(x):
    squares = (x[:, None] - x).square().sum(-1)
    kernel = torch.exp(-squares) + 0.1 * torch.eye(x.shape[0], dtype=x.dtype)
    chol = torch.linalg.cholesky(kernel)
    y = x.sum(1, keepdim=True)
    return 0.5 * (y * torch.cholesky_solve(y, chol)).sum() + chol.diagonal().log().sum()


@program(points)
def process_by_solve(x):
    squares = (x[:, None] - x).square().sum(-1)
    kernel = torch.exp(-squares) + 0.1 * torch.eye(x.shape[0], dtype=x.dtype)
    y = x.sum(1)
    return y @ torch.linalg.solve(kernel, y) + torch.linalg.slogdet(kernel).logabsdet


@program(points)
def triangular(x):
    lower = (x @ x.T).tril() + 2 * torch.eye(len(x), dtype=x.dtype)
    return torch.linalg.solve_triangular(lower, x, upper=False).square().sum()


@program(batch)
def solves(x):
    return torch.linalg.solve(x, x.sum(-1)).square().sum() + torch.linalg.det(x).log().sum()
