"""Ranks that don't do alike: other batches, a late recompilation, an error on one of them."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import funcaot
from funcaot.distributed import shard
from tests.distributed.cases import Energy, batch, loss_of, whole
from tests.distributed.ranks import Ranks, RanksFailedError, torchrun
from tests.hostile import COMPILER

# Of each rank at each step: one rank sees open sizes, single rows and known sizes while the other
# sees others.
SIZES = ((4, 4), (4, 6), (6, 3), (1, 5), (5, 1), (7, 7), (2, 9))


def _ddp(order: str):
    model = funcaot.compile(DistributedDataParallel(Energy(order)), backend=COMPILER)
    return model, lambda *given: loss_of(model, order, *given)


def _sharded(order: str):
    model = shard(Energy(order))
    return model, funcaot.compile(lambda *given: loss_of(model, order, *given), backend=COMPILER)


WAYS = {"DDP": _ddp, "shard": _sharded}


def _trained(way: str, order: str, late: float = 0) -> list[float]:
    """Train on batches of other sizes on each rank; compare gradients with one process."""
    rank = dist.get_rank()
    model, loss = WAYS[way](order)
    plain, pauses = Energy(order), []
    for step, sizes in enumerate(SIZES):
        if rank == 1 and step == 2:
            time.sleep(late)
        start = time.monotonic()
        model.zero_grad()
        loss(*batch(step, rank, sizes[rank])).backward()
        pauses.append(time.monotonic() - start)
        plain.zero_grad()
        each = [loss_of(plain, order, *batch(step, at, size)) for at, size in enumerate(sizes)]
        (sum(each) / len(sizes)).backward()
        found = [whole(parameter.grad) for parameter in model.parameters()]
        expected = [parameter.grad for parameter in plain.parameters()]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    return pauses


@pytest.mark.parametrize("order", [pytest.param("first", marks=pytest.mark.long), "forces"])
@pytest.mark.parametrize("way", WAYS)
def test_batches_of_other_sizes(ranks: Ranks, way, order):
    ranks.run(_trained, way, order)


def _collectives(way: str, order: str) -> tuple[list[list[tuple]], list[int]]:
    """What this rank sends in each step, in order, and how many graphs it had compiled then."""
    rank = dist.get_rank()
    model, loss = WAYS[way](order)
    steps, graphs = [], []
    for step, sizes in enumerate(SIZES):
        model.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            loss(*batch(step, rank, sizes[rank])).backward()
        sent = [event for event in profiler.events() if event.name.startswith("gloo:")]
        sent.sort(key=lambda event: event.time_range.start)
        steps.append([(event.name, event.input_shapes[0]) for event in sent])
        graphs.append(funcaot.report(model if way == "DDP" else loss).graphs_compiled)
    return steps, graphs


@pytest.mark.parametrize("way", [pytest.param("DDP", marks=pytest.mark.long), "shard"])
def test_programs_of_other_sizes_agree_on_what_they_send(ranks: Ranks, way):
    """Nothing is asked before a program runs: any two call the same collectives in one order."""
    (sent, graphs), (sent_there, graphs_there) = ranks.run(_collectives, way, "forces")
    assert sent == sent_there
    assert all(sent)
    assert graphs != graphs_there  # one compiled where the other had a program


def _several(x, y):
    """Collectives of which none needs another, among ops that a compiler may put together."""
    s, p = y.sin(), x.sin() * y.sum()
    dist.all_reduce(p)
    q = (x.cos() + y.mean()).exp()
    dist.all_reduce(q, dist.ReduceOp.MAX)
    t = (x + 1).tanh()
    u, r = q * t, t * 2 + y.amax()
    dist.all_reduce(r)
    return u + s.sum(), p, r * q, s.cumsum(0)


def _in_order() -> int:
    compiled = funcaot.compile(_several, backend="inductor")
    for sizes in ((4, 4), (6, 4), (7, 3), (1, 8), (9, 1), (5, 2000)):
        size = sizes[dist.get_rank()]
        made = torch.Generator().manual_seed(size)
        x, y = torch.randn(3, 5, generator=made), torch.randn(size, generator=made)
        torch.testing.assert_close(compiled(x, y), _several(x.clone(), y.clone()))
    return len(compiled.entries)


@pytest.mark.long
def test_programs_of_one_function_call_collectives_in_one_order(ranks: Ranks):
    assert min(ranks.run(_in_order)) > 1


def test_one_rank_is_late(ranks: Ranks):
    """The other waits in its next collective, and goes on."""
    pauses = ranks.run(_trained, "shard", "forces", 5.0)
    assert pauses[0][2] > 4


def _fails_while_compiling(where: str) -> None:
    """Rank 1 meets a size for which its function raises; the other waits, not for ever."""
    model = shard(Energy())
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))

    @funcaot.compile(backend=COMPILER)
    def loss(x):
        if where == "before" and x.shape[0] == 5:
            raise ValueError("rank 1 has five rows")
        value = model(x).sum()
        if where == "after" and x.shape[0] == 5:
            raise ValueError("rank 1 has five rows")
        return value

    for size in (4, 4 + dist.get_rank()):
        loss(torch.ones(size, 3)).backward()


@pytest.mark.parametrize("where", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_an_error_on_one_rank(ranks: Ranks, where):
    start = time.monotonic()
    with pytest.raises(RanksFailedError, match="rank 1 has five rows") as raised:
        ranks.run(_fails_while_compiling, where, deadline=60)
    assert time.monotonic() - start < 40
    # The rank that waits says what it waited for.
    assert "rank 0\nTraceback" in str(raised.value)


class _Failing(Energy):
    """Fails for five rows, so on the rank that has them."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def forward(self, x):
        energy = super().forward(x)
        if self.where == "forward" and x.shape[0] == 5:
            raise ValueError("five rows are too many")
        return energy


def _raise(gradient):
    raise ValueError("five rows are too many")


def _fails_in_a_step(way: str, where: str) -> None:
    """Rank 1 fails in the third step, where it meets another size too."""
    module = _Failing(where)
    if way == "DDP":
        model = funcaot.compile(DistributedDataParallel(module), backend=COMPILER)
    elif way == "shard":
        model = funcaot.compile(shard(module), backend=COMPILER)
    else:
        model = funcaot.compile(fully_shard(module), backend=COMPILER)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
    for step in range(4):
        fails = step == 2 and dist.get_rank() == 1
        x, energies, _ = batch(step, dist.get_rank(), 5 if fails else 4)
        energy = model(x)
        if fails and where == "backward":
            # A hook of a parameter is none of a part that fully_shard keeps.
            energy.register_hook(_raise)
        value = (energy - energies).square().mean()
        if fails and where == "loss":
            _raise(value)
        if fails and where == "dies":
            os._exit(3)
        value.backward()


# Each starts two processes of its own, since these are ended.
@pytest.mark.parametrize("where", ["forward", "loss", "backward", "dies"])
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.long) for way in ("DDP", "shard", "fully_shard")]
)
def test_a_failure_in_a_step_ends_all(ranks: Ranks, way, where):
    start = time.monotonic()
    with pytest.raises(RanksFailedError) as raised:
        ranks.run(_fails_in_a_step, way, where, deadline=60)
    said = str(raised.value)
    assert time.monotonic() - start < 50
    expected = "process died (exit code 3)" if where == "dies" else "five rows are too many"
    assert expected in said.partition("--- rank 1")[2], said
    # The other says that it waited, or that its neighbour has gone.
    assert "--- rank 0\nTraceback" in said


def _compiled_once(path: str) -> tuple[int, int]:
    """Rank 0 compiles while the other waits; then the other takes the programs from the file."""
    rank = dist.get_rank()
    model = funcaot.compile(DistributedDataParallel(Energy()), backend="inductor", artifacts=path)
    given = batch(0, rank)
    if rank == 0:
        model.warm_up(given[0], orders=1)
        assert model.save(path).programs == 1
    dist.barrier()
    loss_of(model, "first", *given).backward()
    plain = Energy()
    sum(loss_of(plain, "first", *batch(0, at)) / 2 for at in range(2)).backward()
    found = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(found, [each.grad for each in plain.parameters()])
    report = funcaot.report(model)
    return report.cache_misses, report.graphs_compiled


def test_one_rank_compiles_and_others_load(ranks: Ranks, tmp_path):
    (_, compiled), others = ranks.run(_compiled_once, str(tmp_path / "programs"))
    assert compiled == 2
    assert others == (0, 0)


_SCRIPT = """
import torch, torch.distributed as dist, funcaot
from funcaot.distributed import shard
dist.init_process_group("gloo")
model = shard(torch.nn.Linear(3, 2))
@funcaot.compile(backend="eager")
def loss(x):
    if x.shape[0] == 5:
        raise ValueError("five rows")
    return model(x).sum()
for size in (4, 4 + dist.get_rank()):
    loss(torch.ones(size, 3)).backward()
"""


def test_torchrun_names_the_rank_and_ends_the_others(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    ended = torchrun(2, str(script), timeout=100)
    assert ended.returncode
    assert "[rank1]: ValueError: five rows" in ended.stderr
    assert "script.py FAILED" in ended.stderr
    assert "rank      : 1 (local_rank: 1)" in ended.stderr
