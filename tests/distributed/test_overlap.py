"""Gradients that are reduced while a backward still runs."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.distributed import test_disagreeing_ranks, test_parallel_options, test_wrapped
from tests.distributed.cases import in_parts
from tests.distributed.ranks import Ranks

_WAYS = [way for way in test_wrapped.WAYS if "DDP" in way]
_TABLES = {
    "wrapped": (test_wrapped._on_hostile, _WAYS),
    "options": (test_parallel_options._cells, test_parallel_options.OPTIONS),
    "losses": (test_parallel_options._as_in_eager, test_parallel_options.LOSSES),
}


@pytest.mark.parametrize(
    ("table", "name"),
    [
        pytest.param(table, name, marks=[pytest.mark.long] * (index % 8 > 0))
        for table, (_, names) in _TABLES.items()
        for index, name in enumerate(names)
    ],
)
def test_tables_in_parts(ranks: Ranks, table, name):
    function, _ = _TABLES[table]
    ranks.run(in_parts, function, name, deadline=200)


class _Slow:
    """A hook that reduces each bucket in a thread, and notes when it was asked to."""

    def __init__(self, events):
        self.events, self.threads = events, []

    def __call__(
        self, state: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        self.events.append("bucket")
        future = torch.futures.Future()
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)

        def finish():
            time.sleep(0.05)
            work.wait()
            future.set_result(bucket.buffer())

        self.threads.append(threading.Thread(target=finish))
        self.threads[-1].start()
        return future


def _buckets_before_the_end() -> None:
    """Buckets begin while parts are still to be run, from the first backward on."""
    from funcaot.aot.calls.program import GraphProgram

    events = []
    execute = GraphProgram.execute

    def noted(self, operands, **more):
        if ", part " in self.name:
            events.append("part")
        return execute(self, operands, **more)

    GraphProgram.execute = noted
    try:
        for before in (False, True):
            torch.manual_seed(0)
            layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())]
            module = nn.Sequential(*layers)
            model = test_parallel_options._compiled(module, before, {"bucket_cap_mb": 0.001})
            hook = _Slow(events)
            # DDP looks at the annotations of a function.
            model.register_comm_hook(None, hook.__call__)
            for step in range(3):
                events.clear()
                model(torch.ones(2, 16)).square().sum().backward()
                # DDP has one bucket until it knows the order of the gradients.
                expected = ["part", "bucket"] * 4 if step else ["part"] * 4 + ["bucket"]
                assert events == expected, events
            for thread in hook.threads:
                thread.join()
    finally:
        GraphProgram.execute = execute


def test_buckets_begin_before_the_backward_ends(ranks: Ranks):
    ranks.run(_buckets_before_the_end)


def test_files_hold_whole_backwards(ranks: Ranks, tmp_path):
    function, path = test_disagreeing_ranks._compiled_once, str(tmp_path / "programs")
    (_, compiled), others = ranks.run(in_parts, function, path)
    assert (compiled, others) == (2, (0, 0))
