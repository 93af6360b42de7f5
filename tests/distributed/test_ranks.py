"""The processes that the tests of this folder run on."""

import os
import subprocess
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import Ranks, RanksFailedError, torchrun


def _sum_of_ranks() -> tuple[float, int]:
    value = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(value)
    return value.item(), os.getpid()


def _fails_on_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("the second one fails")
    dist.all_reduce(torch.ones(1))  # which the other never calls


def _hangs() -> None:
    time.sleep(1000)


def _dies() -> None:
    if dist.get_rank() == 0:
        os._exit(7)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_serve_several_calls_and_end(ranks: Ranks):
    first, second = ranks.run(_sum_of_ranks), ranks.run(_sum_of_ranks)
    assert [value for value, _ in first] == [1.0, 1.0]
    assert first == second
    ranks.stop()
    assert not any(_is_alive(pid) for _, pid in first)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_fails_on_one, "rank 1\n(?s:.*)the second one fails"),
        (_hangs, "rank 0\ndid not return(?s:.*)rank 1\ndid not return"),
        (_dies, "rank 0\nthe process died"),
    ],
    ids=["fails", "hangs", "dies"],
)
def test_a_failure_is_told_and_ends_all_in_bounded_time(ranks: Ranks, function, said):
    pids = [pid for _, pid in ranks.run(_sum_of_ranks)]
    start = time.monotonic()
    with pytest.raises(RanksFailedError, match=said):
        ranks.run(function, deadline=3 if function is _hangs else 60)
    assert time.monotonic() - start < 20
    assert not any(_is_alive(pid) for pid in pids)


def test_ranks_of_torchrun_end_in_bounded_time(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "open(sys.argv[1] + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        torchrun(2, str(script), f"{tmp_path}/pid", timeout=40)
    pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in (0, 1)]
    assert not any(_is_alive(pid) for pid in pids)
