"""Energies of open size for ``test_programs``: ordinary numerical code, each with what it is given.

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


@program(batch)
def exponentials(x):
    return torch.linalg.matrix_exp(x * 0.3).square().sum()


@program(square, ((0, 1),))
def exponential(x):
    return torch.linalg.matrix_exp(x).square().sum()


@program(square, ((0, 1),))
def matrix_power(x):
    return torch.linalg.matrix_power(x, 3).sum() + torch.trace(x @ x) + x.inverse().sum() * 0


@program(batch)
def eigenvalues(x):
    return torch.linalg.eigvalsh(x + x.mT).square().mean()


@program(batch)
def singular_values(x):
    return torch.linalg.svdvals(x).sum() + torch.linalg.matrix_norm(x, "nuc").sum()


@program(points)
def decomposed(x):
    q, r = torch.linalg.qr(x.T @ x + torch.eye(3, dtype=x.dtype))
    return r.square().sum() + q.sum()


@program(points)
def scattered(x):
    index = torch.arange(x.shape[0]) % 3
    return torch.zeros(3, 3, dtype=x.dtype).index_add(0, index, x).square().sum()


@program(line)
def scattered_numbers(x):
    index = (torch.arange(x.shape[0]) * 7) % x.shape[0]
    zeros = torch.zeros_like(x).scatter_add(0, index, x.square())
    return (zeros * x).sum() + torch.zeros_like(x).scatter_reduce(0, index, x, "amax").sum()


@program(lambda size: (*line(size), torch.arange(size) % 4), (0, 0))
def binned(x, kinds):
    counts = torch.bincount(kinds, minlength=4)[:4]
    return (x * counts[kinds]).square().sum()


@program(lambda size: (*line(size), torch.arange(size) % 4), (0, 0))
def one_hot(x, kinds):
    return (x @ F.one_hot(kinds, 4).double()).square().sum()


@program(lambda size: (*points(size), torch.arange(size) % 3), (0, 0))
def cross_entropy(x, kinds):
    return F.cross_entropy(x, kinds) + F.nll_loss(x.log_softmax(-1), kinds, reduction="sum")


@program(line)
def ordered(x):
    found = x.sort().values
    return (found * torch.arange(x.shape[0])).square().sum()


@program(line)
def largest(x):
    return x.topk(2).values.square().sum() + x.kthvalue(2).values + x.median() + x.max() * x.min()


@program(line)
def quantiles(x):
    return torch.quantile(x, 0.3).square() + x.std() + x.var(unbiased=False)


@program(points)
def statistics(x):
    return torch.cov(x.T).square().sum() + x.var(0).sum() + x.std(1).sum()


@program(points)
def by_einsum(x):
    return torch.einsum("ia,ja,ib,jb->", x, x, x, x) + torch.einsum("ia,ib->ab", x, x).sin().sum()


@program(points)
def crossed(x):
    return torch.linalg.cross(x[:-1], x[1:]).square().sum() + torch.linalg.cross(x, x.sin()).sum()


@program(points)
def angles(x):
    a, b = x[1:] - x[:-1], x.roll(1, 0)[1:]
    return F.cosine_similarity(a, b, dim=-1).square().sum() + torch.atan2(x[:, 0], x[:, 1]).sum()


NORMED = module(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))


@program(points)
def normed(x):
    return NORMED(x).square().sum()


BATCH_NORM = module(nn.Linear(3, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.SiLU())


@program(points)
def batch_normed(x):
    return BATCH_NORM(x).square().sum()


GROUPED = module(nn.GroupNorm(3, 3), nn.Tanh())


@program(signals, (2,))
def group_normed(x):
    return GROUPED(x).square().sum()


RECURRENT = module(nn.GRUCell(3, 4))[0]


@program(points)
def recurrent_cell(x):
    state = torch.zeros(x.shape[0], 4, dtype=x.dtype)
    for _ in range(3):
        state = RECURRENT(x, state)
    return state.square().sum()


LSTM = nn.LSTM(3, 4, batch_first=True).double().requires_grad_(False)


@program(lambda size: (torch.stack([points(size)[0]] * 2, 1),))
def lstm_of_a_batch(x):
    return LSTM(x)[0].square().sum()


EMBEDDING = module(nn.Embedding(4, 3))


@program(lambda size: (*points(size), torch.arange(size) % 4), (0, 0))
def embedded(x, kinds):
    return (x * EMBEDDING(kinds)).sin().sum()


@program(points)
def by_rows(x):
    return torch.func.vmap(lambda row: row.sin().prod() + row.dot(row))(x).sum()


@program(points)
def forces_in_energy(x):
    return torch.func.grad(lennard_jones)(x).square().sum()


@program(points)
def laplacian(x):
    return torch.func.vmap(lambda row: torch.trace(torch.func.hessian(_potential)(row)))(x).sum()


def _potential(row):
    return torch.exp(-row.square().sum()) + row.sin().prod()


@program(points)
def jacobians(x):
    return torch.func.vmap(torch.func.jacfwd(lambda row: row.sin() * row.sum()))(x).square().sum()


@program(points)
def jacobian_of_all(x):
    return torch.func.jacrev(lambda v: v.sin().sum(1))(x).square().sum()


@program(points)
def tangents(x):
    return torch.func.jvp(lambda v: torch.cat([v, v.square()]).sin(), (x,), (x.cos(),))[1].sum()


@program(points)
def joined(x):
    both = torch.cat([x, x.square()], 0)
    return (both.chunk(2)[1] * x).sum() + torch.stack([x, x.sin()]).prod(0).sum()


@program(points)
def split(x):
    first, second, third = x.split(1, dim=1)
    return (first * second + third.T).sum() + x.tensor_split(2, dim=1)[0].square().sum()


@program(points)
def reshaped(x):
    n = x.shape[0]
    return (
        (x.reshape(3, n).square() * torch.arange(n)).sum()
        + x.flatten().unflatten(0, (n, 3)).sin().sum()
        + x.repeat(2, 1).tile(1, 2).cos().sum()
    )


@program(points)
def outer_products(x):
    return torch.outer(x[:, 0], x[:, 1]).triu(1).square().sum() + torch.kron(x, x.T).sum()


@program(points)
def diagonals(x):
    made = torch.diag_embed(x[:, 0]) + torch.diag(x[:, 1]) + x @ x.T
    return made.diagonal().prod().log() + made.diagonal(1).sum()


@program(points)
def written(x):
    y = x.clone()
    y[:, 0] = y[:, 1] * 2
    y[0] += 1
    y[-1].mul_(3)
    return y.square().sum()


@program(points)
def gathered(x):
    order = x[:, 0].argsort()
    return (x[order] * torch.arange(len(x))[:, None]).square().sum() + x.gather(
        1, (torch.arange(len(x)) % 3)[:, None]
    ).sum()


@program(line)
def integrated(x):
    grid = torch.linspace(0, 1, x.shape[0], dtype=x.dtype)
    return torch.trapezoid(x, grid) + torch.cumulative_trapezoid(x, grid).square().sum()


@program(line)
def derived_on_grid(x):
    return (x[2:] - 2 * x[1:-1] + x[:-2]).square().sum()


@program(line)
def special(x):
    return (
        torch.special.erf(x) + torch.lgamma(x + 1) + torch.special.i0(x) + torch.xlogy(x, x)
    ).sum() + torch.logsumexp(x, 0)


@program(line)
def searched(x):
    knots = torch.linspace(0, 2, 9, dtype=x.dtype)
    at = torch.bucketize(x.detach(), knots).clamp(1, 8)
    share = (x - knots[at - 1]) / (knots[at] - knots[at - 1])
    return (knots[at].sin() * share + knots[at - 1].sin() * (1 - share)).sum()


@program(points)
def softened(x):
    return (
        F.softmin(x, 0).square().sum()
        + F.huber_loss(x, x.mean(0).expand_as(x))
        + F.glu(torch.cat([x, x], 1)).sum()
    )


@program(line)
def scanned(x):
    grid_i, grid_j = torch.meshgrid(
        torch.arange(x.shape[0]), torch.arange(x.shape[0]), indexing="ij"
    )
    return (x[:, None] * x * torch.exp(-((grid_i - grid_j).double() ** 2))).sum()


@program(line)
def vander(x):
    return torch.vander(x, 4).sum() + torch.linalg.vander(x, N=3).square().sum()


@program(points)
def norms(x):
    return (
        x.norm()
        + x.norm(dim=0, p=3).sum()
        + torch.linalg.norm(x)
        + F.normalize(x, dim=1)[:, 0].sum()
    )


@program(line)
def branches(x):
    return torch.cond(x.sum() > 1, lambda v: v.sin().sum(), lambda v: v.square().sum(), (x,))


@program(line)
def mean_of_most(x):
    half = x.shape[0] // 2
    return (
        x[:half].square().mean()
        + x[half:].sum() * (x.shape[0] / 2)
        + x.narrow(0, 0, half + 1).sum()
    )


@program(points)
def rotated(x):
    return (
        torch.matrix_exp(torch.stack([x[:3, 0].sum() * torch.eye(2, dtype=x.dtype)])).sum()
        + x.rot90().sum()
    )


@program(points)
def products_of_matrices(x):
    return (
        torch.linalg.multi_dot([x.T, x, x.T, x]).sum() + torch.chain_matmul(x.T, x).square().sum()
    )


@program(points)
def padded_sequence(x):
    padded = torch.zeros(x.shape[0] + 2, 3, dtype=x.dtype)
    padded[1:-1] = x
    return (padded[2:] - 2 * padded[1:-1] + padded[:-2]).square().sum()


@program(points)
def grid_sampled(x):
    field = torch.arange(16, dtype=x.dtype).reshape(1, 1, 4, 4).sin()
    return F.grid_sample(field, x[None, :, None, :2] - 0.5, align_corners=False).square().sum()
