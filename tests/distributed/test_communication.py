"""What a report says that ranks send, against torch's own record of what they do send."""

import math
from collections import Counter

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import funcaot
from funcaot.distributed import shard
from tests.distributed import test_shard
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


def test_four_ranks():
    ranks = Ranks(4)
    try:
        ranks.run(_compared, 4, deadline=200)
        for shares in ranks.run(test_shard._memory):
            assert all(abs(share - 1 / 4) < 0.15 / 4 for share in shares), shares
    finally:
        ranks.stop()


def test_a_function_that_sends_nothing():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    compiled(torch.ones(3))
    assert funcaot.report(compiled).communication == ()
    assert "communication" not in str(funcaot.report(compiled))
