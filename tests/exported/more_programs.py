"""Energies of open size, the second half; ``test_programs`` exports all of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.exported.programs import (
    GIVEN,
    OPEN,
    PROGRAMS,
    batch,
    lennard_jones,
    line,
    module,
    points,
    program,
    signals,
    square,
)

__all__ = ["GIVEN", "OPEN", "PROGRAMS"]


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


@program(points)
def joined_with_constants(x):
    """What carries no tangent is made inside, and in between."""
    found = torch.cat([torch.zeros(2, 3, dtype=x.dtype), x, torch.ones_like(x)])
    return found.sin().prod(0).sum() + torch.stack([x, torch.ones_like(x)]).square().prod(0).sum()


@program(line)
def selected(x):
    found = torch.linalg.vector_norm(x.cummin(0).values) + x.sort().values.square()[0]
    return found + x.kthvalue(2).values.sin() + x.median(0).values ** 2 + x.max(0).values ** 3


@program(points)
def scattered_over(x):
    index = torch.zeros_like(x, dtype=torch.int64)
    found = (
        x.scatter(0, index, x * 2).square().sum()
        + torch.zeros_like(x).scatter_(0, index, x).sin().sum()
    )
    return found + torch.zeros_like(x).index_copy(0, torch.arange(len(x)), x.sin()).square().sum()


@program(points)
def diagonals_of_products(x):
    product = x @ x.T
    return product.diagonal().sin().sum() + torch.diag_embed(x).square().sum().sin()


@program(line)
def reflected(x):
    return (
        F.pad(x[None, None], (1, 1), mode="reflect").sin().sum() + x.unfold(0, 2, 1).prod(1).sum()
    )
