"""Parameters that each rank keeps a part of: every order, compiled and not, against one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import funcaot
from funcaot.distributed import shard
from tests.distributed.cases import ORDERS, Energy, batch, loss_of, reference, whole
from tests.distributed.ranks import Ranks
from tests.hostile import COMPILER


def _compiled(style, order, backend):
    """The loss of a batch, and the sharded model."""
    model = shard(Energy(order, inside=style == "inside"))
    if backend is None:
        compiled = lambda function: function  # noqa: E731
    else:
        compiled = lambda function: funcaot.compile(function, backend=backend)  # noqa: E731
    if style == "inside":
        return compiled(model), model
    if style == "outside":
        energy = compiled(model)
        return (lambda *given: loss_of(energy, order, *given)), model
    return compiled(lambda *given: loss_of(model, order, *given)), model


def _train(style, order, backend, steps=3):
    loss, model = _compiled(style, order, backend)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(steps):
        loss(*batch(step, dist.get_rank())).backward()
        found.append([whole(parameter.grad).clone() for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    expected = reference(order, steps, dist.get_world_size())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def _train_all(backend) -> None:
    for order in ORDERS:
        for style in ("inside", "outside", "whole"):
            _train(style, order, backend)


def _train_all_hostile() -> None:
    _train_all(COMPILER)


def test_uncompiled(ranks: Ranks):
    ranks.run(_train_all, None)


def test_compiled(ranks: Ranks):
    ranks.run(_train_all_hostile)


@pytest.mark.slow
def test_on_inductor(ranks: Ranks):
    ranks.run(_train, "whole", "forces", "inductor", deadline=500)


def _what_is_kept() -> None:
    loss, _ = _compiled("whole", "forces", COMPILER)
    for step in range(2):
        loss(*batch(step, dist.get_rank())).backward()
    (entry,) = loss.entries
    kept = entry.functions.keeping.form.residuals
    made = [str(item.node) for item in kept if item.operand is None]
    assert not [name for name in made if "gather" in name or "wait" in name], made
    (backward,) = [each for each, _ in entry.functions.keeping.derivatives.backwards.values()]
    graph = backward.segment.form(keeping=False).graph.module.graph
    targets = [str(node.target) for node in graph.nodes]
    assert sum("all_gather_into_tensor" in target for target in targets) == 3  # the weights
    assert sum("reduce_scatter_tensor" in target for target in targets) == 6


def test_a_backward_gathers_again_and_keeps_parts(ranks: Ranks):
    ranks.run(_what_is_kept)


def _hessian_product() -> None:
    """By two backwards through parts, which the ranks' own products make up."""
    given = [batch(0, rank) for rank in range(dist.get_world_size())]
    plain = Energy("first")
    mean = sum(loss_of(plain, "first", *each) for each in given) / len(given)
    directions = [torch.randn_like(parameter) for parameter in plain.parameters()]
    grads = torch.autograd.grad(mean, list(plain.parameters()), create_graph=True)
    dot = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
    expected = torch.autograd.grad(dot, list(plain.parameters()), allow_unused=True)

    model = shard(Energy("first"))
    parameters = list(model.parameters())
    parts = [
        torch.distributed.tensor.distribute_tensor(d, p.device_mesh, p.placements)
        for d, p in zip(directions, parameters, strict=True)
    ]

    def product(*each):
        grads = torch.autograd.grad(loss_of(model, "first", *each), parameters, create_graph=True)
        own = sum((g.to_local() * d.to_local()).sum() for g, d in zip(grads, parts, strict=True))
        return torch.autograd.grad(own, parameters, allow_unused=True)

    found = product(*given[dist.get_rank()])
    for value, wanted in zip(found, expected, strict=True):
        assert (value is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(whole(value), wanted, rtol=1e-4, atol=1e-6)

    # Compiled, the first derivative is a program, and the second one its backward.
    compiled = funcaot.compile(lambda *each: loss_of(model, "first", *each), backend=COMPILER)
    for _ in range(3):
        grads = torch.autograd.grad(
            compiled(*given[dist.get_rank()]), parameters, create_graph=True
        )
        own = sum((g.to_local() * d.to_local()).sum() for g, d in zip(grads, parts, strict=True))
        again = torch.autograd.grad(own, parameters, allow_unused=True)
        for value, wanted in zip(again, expected, strict=True):
            if wanted is not None:
                torch.testing.assert_close(whole(value), wanted, rtol=1e-4, atol=1e-6)


def test_hessian_vector_products(ranks: Ranks):
    ranks.run(_hessian_product)


class _Odd(nn.Module):
    """A scalar, fewer rows than ranks, tied weights, a frozen one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.first = nn.Linear(4, 1)
        self.second = nn.Linear(4, 1)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(3, 4), requires_grad=False)

    def forward(self, x):
        return (self.second(x).sin() + self.first(x @ self.frozen.t() @ self.frozen)) * self.scale


def _train_odd() -> None:
    plain, model = _Odd(), shard(_Odd())
    assert len(list(model.parameters())) == len(list(plain.parameters()))
    steps = [torch.optim.Adam(each.parameters(), 0.05) for each in (plain, model)]
    compiled = funcaot.compile(lambda x: model(x).square().mean(), backend=COMPILER)
    for step in range(4):
        made = [torch.Generator().manual_seed(9 * step + rank) for rank in (0, 1)]
        given = [torch.randn(5, 4, generator=each) for each in made]
        sum(plain(x).square().mean() / 2 for x in given).backward()
        compiled(given[dist.get_rank()]).backward()
        norms = [nn.utils.clip_grad_norm_(each.parameters(), 0.1) for each in (plain, model)]
        torch.testing.assert_close(whole(norms[1]), norms[0])
        for optimizer in steps:
            optimizer.step()
            optimizer.zero_grad()
    expected = plain.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(whole(value), expected[name], msg=lambda m, n=name: f"{n}: {m}")


def test_odd_parameters_clipping_and_state(ranks: Ranks):
    ranks.run(_train_odd)


def _whole_step(kind: str) -> None:
    """Forward, backward, reduction, clipping and a fused optimizer, as one program."""
    made = Energy("forces"), Energy("forces")
    plain, model = made[0], shard(made[1]) if kind == "shard" else made[1]
    optimizers = [torch.optim.Adam(each.parameters(), 0.01, fused=True) for each in (plain, model)]
    ranks = dist.get_world_size()

    def step(*given):
        optimizers[1].zero_grad()
        loss = loss_of(model, "forces", *given)
        loss.backward()
        if kind == "all_reduce":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizers[1].step()
        return loss.detach()

    compiled = funcaot.compile(step, backend=COMPILER)
    for index in range(4):
        optimizers[0].zero_grad()
        given = [batch(index, rank) for rank in range(ranks)]
        (sum(loss_of(plain, "forces", *each) for each in given) / ranks).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizers[0].step()
        compiled(*given[dist.get_rank()])
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(whole(ours), theirs, rtol=1e-4, atol=1e-5)
    # The first call makes the optimizer's state; the others run one program without a backward.
    report = funcaot.report(compiled)
    assert (report.graphs_compiled, report.backward_traces) == (1, 0)


@pytest.mark.parametrize("kind", ["shard", "all_reduce"])
def test_a_whole_step_is_one_program(ranks: Ranks, kind):
    ranks.run(_whole_step, kind)


def _bytes(values) -> int:
    local = [value.to_local() if hasattr(value, "to_local") else value for value in values]
    return sum(value.numel() * value.element_size() for value in local)


def _memory() -> list[float]:
    """What this rank keeps, as a share of the whole: parameters, gradients, optimizer state."""
    make = lambda: nn.Sequential(nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 7))  # noqa: E731
    plain, model = make(), shard(make())
    kept = []
    for each in (plain, model):
        optimizer = torch.optim.Adam(each.parameters(), 0.01)
        each(torch.randn(3, 64)).square().mean().backward()
        optimizer.step()
        moments = [m for state in optimizer.state.values() for m in state.values() if m.dim()]
        parameters = list(each.parameters())
        kept.append([_bytes(parameters), _bytes(p.grad for p in parameters), _bytes(moments)])
    return [mine / all_ for mine, all_ in zip(kept[1], kept[0], strict=True)]


def test_a_rank_keeps_its_part(ranks: Ranks):
    for shares in ranks.run(_memory):
        assert all(abs(share - 1 / 2) < 0.15 / 2 for share in shares), shares


def _refusals() -> None:
    unsupported = funcaot.errors.UnsupportedError
    with pytest.raises(unsupported, match="compiled already"):
        shard(funcaot.compile(nn.Linear(2, 2)))
    with pytest.raises(unsupported, match="sharded already"):
        shard(shard(nn.Linear(2, 2)))
    with pytest.raises(unsupported, match="wrapped by torch"):
        shard(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))
    with pytest.raises(unsupported, match="is a UninitializedParameter"):
        shard(nn.LazyLinear(3))
    mesh = torch.distributed.init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    with pytest.raises(funcaot.errors.FuncaotError, match="one dimension"):
        shard(nn.Linear(2, 2), mesh)
    assert type(next(shard(nn.Linear(2, 2), mesh["a"]).parameters())).__name__ == "DTensor"


def test_refusals(ranks: Ranks):
    ranks.run(_refusals)


def test_without_a_group():
    with pytest.raises(funcaot.errors.FuncaotError, match="no process group"):
        shard(nn.Linear(2, 2))
