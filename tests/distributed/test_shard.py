"""Parameters that each rank keeps a part of: every order, compiled and not, against one process."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

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


def _whole_step(kind: str, how: str) -> None:
    """Forward, backward, reduction, clipping and an optimizer, as one program at any rate."""
    made = Energy("forces"), Energy("forces")
    plain, model = made[0], shard(made[1]) if kind == "shard" else made[1]
    given = {"lr": 0.01, how: True}
    optimizers = [torch.optim.Adam(each.parameters(), **given) for each in (plain, model)]
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
    for index in range(6):
        for each in optimizers:
            each.param_groups[0]["lr"] *= 0.8 if index > 2 else 1
        optimizers[0].zero_grad()
        given = [batch(index, rank) for rank in range(ranks)]
        (sum(loss_of(plain, "forces", *each) for each in given) / ranks).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizers[0].step()
        compiled(*given[dist.get_rank()])
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(whole(ours), theirs, rtol=1e-4, atol=1e-5)
    # The first call makes the optimizer's state; the others run a program without a backward, and
    # another one since the rate has changed, which is for all rates.
    report = funcaot.report(compiled)
    assert (report.graphs_compiled, report.backward_traces) == (2, 0)
    assert len(report.communication) == 2


@pytest.mark.parametrize("how", ["fused", "foreach"])
@pytest.mark.parametrize("kind", ["shard", "all_reduce"])
def test_a_whole_step_is_one_program(ranks: Ranks, kind, how):
    ranks.run(_whole_step, kind, how, deadline=300)


class _Checkpointed(Energy):
    """Regions whose values aren't kept, and among them the gathered parameters."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        first, rest = self.layers[:1], list(self.layers[1:])
        if self.kind == "whole":
            return checkpoint(self.layers, x, use_reentrant=False).sum(1)
        if self.kind == "own":
            return funcaot.checkpoint(lambda x: self.layers(x).sum(1))(x)
        hidden = first(x)
        for layer in rest:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        return hidden.sum(1)


def _checkpointed() -> None:
    for kind in ("layers", "whole", "own"):
        for order in ORDERS:
            model = shard(_Checkpointed(kind))
            compiled = funcaot.compile(
                lambda *given, model=model, order=order: loss_of(model, order, *given),
                backend=COMPILER,
            )
            for _ in range(2):
                model.zero_grad()
                compiled(*batch(0, dist.get_rank())).backward()
                found = [whole(parameter.grad) for parameter in model.parameters()]
                (expected,) = reference(order, 1, dist.get_world_size())
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_checkpointed_regions_gather_again(ranks: Ranks):
    ranks.run(_checkpointed, deadline=300)


def _copies() -> None:
    """A copy, or what a file gives back, is sharded too and goes on alike."""
    model = shard(Energy("forces", inside=True))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    (expected,) = reference("forces", 1, dist.get_world_size())
    for made in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(made.layers[0]) is type(model.layers[0])
        assert type(made.layers[0].weight) is torch.Tensor  # gathered
        funcaot.compile(made, backend=COMPILER)(*batch(0, dist.get_rank())).backward()
        found = [whole(parameter.grad) for parameter in made.parameters()]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_copies(ranks: Ranks):
    ranks.run(_copies)


def _replaced() -> None:
    """A parameter that isn't cut into rows would be trained by each rank for itself."""
    unsupported = funcaot.errors.UnsupportedError
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    replicated = torch.distributed.tensor.distribute_tensor(torch.ones(2, 2), mesh)
    model, x = shard(nn.Linear(2, 2)), torch.ones(1, 2)
    compiled = funcaot.compile(model, backend=COMPILER)
    expected = compiled(x)
    for value in (torch.ones(2, 2), replicated):
        with pytest.raises(unsupported, match="weight of Linear, which is sharded, is to be a "):
            model.weight = nn.Parameter(value)
        with pytest.raises(RuntimeError, match="which is sharded, is to be a "):
            model.load_state_dict(
                {"weight": value, "bias": model.state_dict()["bias"]}, assign=True
            )
        torch.testing.assert_close(compiled(x), expected)
    # Not assigned, but put in place: its placements are looked at where it is read.
    with pytest.raises(unsupported, match="which is sharded, is to be a DTensor"):
        torch.func.functional_call(model, {"weight": replicated}, (x,))
    given = {name: nn.Parameter(whole(value.detach())) for name, value in model.named_parameters()}
    found = torch.func.functional_call(model, given, (x,))
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert given["weight"].grad is not None
    other = shard(nn.Linear(2, 2))
    model.bias = None  # As in any other layer.
    model.weight = other._parameters["weight"]
    torch.testing.assert_close(compiled(x), x @ other.weight.t())
    del model.weight
    with pytest.raises(AttributeError, match="weight"):
        model(x)


def test_replaced_parameters(ranks: Ranks):
    ranks.run(_replaced)


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
