"""What a report says that ranks send, against torch's own record of what they do send."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import funcaot
from funcaot.distributed import shard
from tests.distributed.cases import Energy, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.hostile import COMPILER

# Gloo reduces all and takes a part.
_NAMES = {
    "all_gather_into_tensor": "gloo:all_gather",
    "reduce_scatter_tensor": "gloo:all_reduce",
    "all_reduce": "gloo:all_reduce",
}


def _recorded(step) -> Counter:
    """Collectives of the process group, each with the elements that this rank gives to it."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    return Counter(
        (event.name, math.prod(event.input_shapes[0]))
        for event in profiler.events()
        if event.name.startswith("gloo:")
    )


def _reported(report) -> Counter:
    return Counter(
        (_NAMES[each.op], each.given // 4)
        for graph in report.communication
        for each in graph.collectives
    )


def _sharded(order):
    model = shard(Energy(order))
    compiled = funcaot.compile(lambda *given: loss_of(model, order, *given), backend=COMPILER)
    given = batch(0, dist.get_rank())
    return compiled, lambda: compiled(*given).backward(), list(model.parameters())


def _compared(ranks: int) -> None:
    for order in ("first", "forces"):
        compiled, step, parameters = _sharded(order)
        step()
        step()
        report = funcaot.report(compiled)
        recorded = _recorded(step)
        assert recorded and _reported(report) == recorded, (order, recorded)
        forward, backward = report.communication
        assert (forward.order, backward.order) == (0, 1)
        # Known by hand: forward gathers each parameter that it uses once, scalars aside.
        most = [math.prod(p.shape[1:]) * -(-p.shape[0] // ranks) for p in parameters]
        gathers = [each for each in forward.collectives if "gather" in each.op]
        if order == "first":
            assert sorted(each.given for each in gathers) == sorted(4 * each for each in most)
        assert all(each.ranks == ranks and each.received == ranks * each.given for each in gathers)
        assert forward.sent() == sum((ranks - 1) * each.given for each in gathers)
        assert backward.sent(1024) > backward.sent(8) > 0
        assert f"{forward.sent():,} bytes sent by each of {ranks} ranks" in str(report)


def test_two_ranks(ranks: Ranks):
    ranks.run(_compared, 2)


@pytest.mark.long
def test_four_ranks():
    ranks = Ranks(4)
    try:
        ranks.run(_compared, 4, deadline=200)
    finally:
        ranks.stop()


_IO = Path("/proc/self/io")
needs_linux = pytest.mark.skipif(
    not _IO.exists(), reason="the kernel doesn't count what is written"
)


def _written() -> int:
    """Bytes that this process has written so far, to sockets too."""
    return int(dict(line.split(": ") for line in _IO.read_text().splitlines())["wchar"])


def _wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU())


def _gradients_by_ddp(order, given):
    """A step, and what is planned for some number of ranks: its reducer reduces all parameters."""
    module = _wide()
    model = funcaot.compile(DistributedDataParallel(module), backend="eager")
    size = sum(4 * parameter.numel() for parameter in module.parameters())
    energy = lambda x: model(x).sum(1)  # noqa: E731
    return lambda: loss_of(energy, order, *given).backward(), lambda n: 2 * size * (n - 1) // n


def _gradients_of_parts(order, given):
    """The same for shard: what the graphs say, where gloo scatters by reducing the whole."""
    model = shard(_wide())
    energy = lambda x: model(x).sum(1)  # noqa: E731
    loss = funcaot.compile(lambda *given: loss_of(energy, order, *given), backend="eager")

    def planned(ranks):
        found = [each for graph in funcaot.report(loss).communication for each in graph.collectives]
        return sum(each.sent(ranks) * (1 + ("scatter" in each.op)) for each in found)

    return lambda: loss(*given).backward(), planned


def _on_the_wire() -> dict[str, tuple[int, dict[int, int]]]:
    """Bytes that this rank wrote in the third step of a layout, and what it plans for 2 and 4."""
    found = {}
    for order in ("first", "forces"):
        for layout in (_gradients_by_ddp, _gradients_of_parts):
            step, planned = layout(order, batch(0, dist.get_rank()))
            step()
            step()
            dist.barrier()
            before = _written()
            step()
            cell = f"{layout.__name__}, {order}"
            found[cell] = _written() - before, {n: planned(n) for n in (2, 4)}
    return found


@needs_linux
def test_what_two_ranks_plan_for_four_is_what_four_send(ranks: Ranks):
    plans, _ = ranks.run(_on_the_wire)
    four = Ranks(4)
    try:
        found = {2: ranks.run(_on_the_wire), 4: four.run(_on_the_wire, deadline=200)}
    finally:
        four.stop()
    for cell, (_, planned) in plans.items():
        for count, each in found.items():
            for rank in each:
                assert rank[cell][0] == pytest.approx(planned[count], rel=0.03), (cell, count)


def test_a_function_that_sends_nothing():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    compiled(torch.ones(3))
    assert funcaot.report(compiled).communication == ()
    assert "communication" not in str(funcaot.report(compiled))
