"""Every way of wrapping a compiled module, at first and second order, against one process."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import funcaot
from tests.distributed.cases import ORDERS, Energy, batch, loss_of, reference, whole
from tests.distributed.ranks import Ranks
from tests.hostile import COMPILER


def _parallel(**options):
    return lambda module, compiled: DistributedDataParallel(compiled(module), **options)


def _compiled_parallel(**options):
    return lambda module, compiled: compiled(DistributedDataParallel(module, **options))


def _units(module, compiled):
    """Units in a unit; the whole is compiled."""
    for layer in module.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return compiled(fully_shard(module))


def _compiled_units(module, compiled):
    """Units in a unit; each was compiled before."""
    for index, layer in enumerate(module.layers):
        if isinstance(layer, nn.Linear):
            module.layers[index] = fully_shard(compiled(layer))
    return fully_shard(module)


WAYS = {
    "compile(DDP)": _compiled_parallel(),
    "DDP(compile)": _parallel(),
    "compile(DDP), static graph": _compiled_parallel(static_graph=True),
    "DDP(compile), static graph": _parallel(static_graph=True),
    "compile(DDP), bucket view": _compiled_parallel(gradient_as_bucket_view=True),
    "DDP(compile), bucket view": _parallel(gradient_as_bucket_view=True),
    "compile(DDP), find unused": _compiled_parallel(find_unused_parameters=True),
    "DDP(compile), find unused": _parallel(find_unused_parameters=True),
    "compile(DDP), no_sync": _compiled_parallel(),
    "DDP(compile), no_sync": _parallel(),
    "compile(fully_shard)": lambda module, compiled: compiled(fully_shard(module)),
    "fully_shard(compile)": lambda module, compiled: fully_shard(compiled(module)),
    "compile(fully_shard), resharded": lambda module, compiled: compiled(
        fully_shard(module, reshard_after_forward=True)
    ),
    "compile(fully_shard), accumulated": lambda module, compiled: compiled(fully_shard(module)),
    "compile(fully_shard of units)": _units,
    "fully_shard(compiled units)": _compiled_units,
}

# What can't be differentiated from outside, in eager neither: there it is wrong without a word, or
# fails with words about storages.
ONCE = ("static graph", "fully_shard")


def _can(way: str, order: str, inside: bool) -> bool:
    if order == "first":
        return True
    if "units" in way:
        return False  # The derivative taken inside is that of several units.
    return inside or not any(name in way for name in ONCE)


def _synchronized(model, way, first):
    """Whether the gradients of this pass are reduced."""
    if "no_sync" in way and first:
        return model.no_sync()
    if "accumulated" in way:
        model.set_requires_gradient_sync(not first)
    return contextlib.nullcontext()


def _train(model, way, order, inside):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    passes = 2 if "no_sync" in way or "accumulated" in way else 1
    rank, found = dist.get_rank(), []
    for step in range(3):
        for index in range(passes):
            given = batch(passes * step + index, rank)
            with _synchronized(model, way, passes - index > 1):
                loss = model(*given) if inside else loss_of(model, order, *given)
                loss.backward()
        found.append([whole(parameter.grad).clone() for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    expected = reference(order, 3, dist.get_world_size(), passes)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def _cells(way: str, backend) -> None:
    for order in ORDERS:
        for inside in (False, True):
            compiled = lambda module: funcaot.compile(module, backend=backend)  # noqa: E731
            model = WAYS[way](Energy(order, inside=inside), compiled)
            if _can(way, order, inside):
                _train(model, way, order, inside)
                continue
            said = "funcaot.distributed.shard|static_graph out"
            with pytest.raises(funcaot.errors.UnsupportedError, match=said):
                _train(model, way, order, inside)


def _on_hostile(way: str) -> None:
    _cells(way, COMPILER)


@pytest.mark.parametrize("way", WAYS)
def test_as_in_one_process(ranks: Ranks, way):
    ranks.run(_on_hostile, way)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("way", ["compile(DDP)", "DDP(compile)", "compile(fully_shard)"])
def test_on_inductor(ranks: Ranks, way):
    ranks.run(_cells, way, "inductor", deadline=400)


def _called_inside() -> None:
    """A wrapper has work to do in each call, which no program does for it."""
    parallel = DistributedDataParallel(Energy())
    sharded = fully_shard(Energy())
    for model, said in ((parallel, "calls a DistributedDataParallel"), (sharded, "fully_shard")):
        compiled = funcaot.compile(lambda x, model=model: model(x).sum(), backend=COMPILER)
        with pytest.raises(funcaot.errors.UnsupportedError, match=said):
            compiled(torch.ones(2, 3))
    # Nothing of it stays: the next step is as in one process.
    _train(funcaot.compile(DistributedDataParallel(Energy()), backend=COMPILER), "", "first", False)


def test_wrappers_inside_are_refused(ranks: Ranks):
    ranks.run(_called_inside)
