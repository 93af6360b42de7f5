"""What a rank keeps between steps: its part of parameters, gradients and moments, and nothing more.

Storages are counted, not sizes: a part that is a view would keep the whole.
"""

import contextlib
import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import funcaot
from funcaot.distributed import shard
from tests.distributed.cases import Energy, batch, chosen, loss_of, on_inductor
from tests.distributed.ranks import Ranks

_WIDTH = 64


class _Wide(Energy):
    def __init__(self, order, *, inside):
        super().__init__(order, inside=inside)
        torch.manual_seed(0)
        layers = (nn.Linear(3, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH), nn.SiLU())
        self.layers = nn.Sequential(*layers, nn.Linear(_WIDTH, 1))


def _compiled(function):
    backend = "inductor" if chosen.backend == "inductor" else "eager"
    return funcaot.compile(function, backend=backend)


def _units(module, compiled=lambda layer: layer):
    for index, layer in enumerate(module.layers):
        if isinstance(layer, nn.Linear):
            module.layers[index] = fully_shard(compiled(layer))
    return fully_shard(module)


WAYS = {
    "shard": lambda module: _compiled(shard(module)),
    "shard uncompiled": shard,
    "fully_shard before": lambda module: fully_shard(_compiled(module)),
    "fully_shard after": lambda module: _compiled(fully_shard(module)),
    "not resharded": lambda module: _compiled(fully_shard(module, reshard_after_forward=False)),
    "units before": lambda module: _units(module, _compiled),
    "units after": lambda module: _compiled(_units(module)),
}
_FIRST = ("first inside", "first outside")
_INSIDE = ("forces inside", "penalty inside", "curvature inside")
_OUTSIDE = ("forces outside", "penalty outside", "product outside", "whole")
CASES = {
    way: _FIRST + _INSIDE * ("units" not in way) + _OUTSIDE * ("shard" in way[:5]) for way in WAYS
}


def _curvature(energy, x):
    """The norm of the product of the Hessian of positions and a vector."""
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(energy(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * x.detach().cos()).sum(), x, create_graph=True)
    return second.square().mean()


class _Curvature(_Wide):
    def forward(self, x, energies, forces):
        return _curvature(lambda x: self.layers(x).sum(1), x)


def _model(way: str, case: str):
    """The model, and a function of a batch that fills gradients."""
    order, _, where = case.partition(" ")
    if order == "curvature":
        model = WAYS[way](_Curvature("first", inside=True))
    else:
        known = order if order in ("first", "forces", "penalty") else "forces"
        model = WAYS[way](_Wide(known, inside=where == "inside"))
    if where == "inside":
        return model, lambda *given: model(*given).backward()
    if order == "product":
        return model, lambda *given: _product(model, given)
    if order == "whole":
        loss = _compiled(lambda *given: loss_of(model, "forces", *given))
        return model, lambda *given: loss(*given).backward()
    return model, lambda *given: loss_of(model, order, *given).backward()


def _product(model, given) -> None:
    """A product of the Hessian of parameters and a vector, as their gradients."""
    parameters = list(model.parameters())
    grads = torch.autograd.grad(loss_of(model, "first", *given), parameters, create_graph=True)
    own = sum(grad.to_local().square().sum() / 2 for grad in grads)
    found = torch.autograd.grad(own, parameters, allow_unused=True)
    for parameter, value in zip(parameters, found, strict=True):
        parameter.grad = torch.zeros_like(parameter) if value is None else value


def _storages(tensors) -> dict[int, int]:
    """Bytes of each storage in which they lie."""
    found = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
    return found


def _alive() -> dict[int, int]:
    """All storages, as far as Python knows of tensors in them."""
    gc.collect()
    found = {}
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, nn.Parameter):
            with contextlib.suppress(RuntimeError, NotImplementedError):  # of no memory of its own
                found |= _storages([each])
    return found


def _kept(way: str, case: str) -> list[float]:
    """Shares of the whole: of parameters, gradients, each moment, and of what else is alive."""
    before = _alive()
    model, fill = _model(way, case)
    parameters = list(model.parameters())
    whole = sum(parameter.numel() for parameter in parameters) * 4
    optimizer = torch.optim.Adam(parameters, 0.01)
    for step in range(3):
        optimizer.zero_grad()
        fill(*batch(step, dist.get_rank()))
        optimizer.step()
    states = optimizer.state.values()
    groups = [parameters, [each.grad for each in parameters if each.grad is not None]]
    groups += [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
    own = [_storages(group) for group in groups]
    mine = {place for each in own for place in each}
    others = {p: count for p, count in _alive().items() if p not in before and p not in mine}
    return [sum(each.values()) / whole for each in (*own, others)]


def _all_kept(way: str, *cases: str) -> None:
    ranks = dist.get_world_size()
    for case in cases or CASES[way]:
        *parts, others = _kept(way, case)
        assert all(abs(part * ranks - 1) < 0.15 for part in parts), (case, parts)
        assert others < 0.02, (case, others)


_LONG = ("shard uncompiled", "not resharded", "fully_shard before")


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.long] * (way in _LONG)) for way in WAYS]
)
def test_a_rank_keeps_its_part(ranks: Ranks, way):
    ranks.run(_all_kept, way, deadline=300)


@pytest.mark.long
@pytest.mark.parametrize("way", ["shard", "fully_shard after"])
def test_on_inductor(ranks: Ranks, way):
    ranks.run(on_inductor, _all_kept, way, deadline=580)


@pytest.mark.long
def test_four_ranks():
    ranks = Ranks(4)
    try:
        ranks.run(_all_kept, "shard", "forces outside", "product outside", deadline=200)
        ranks.run(_all_kept, "fully_shard after", "forces inside", deadline=200)
    finally:
        ranks.stop()
