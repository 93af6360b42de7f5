"""The processes that the tests of this folder run on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import Ranks, RanksFailedError, torchrun

ROOT = Path(__file__).resolve().parents[2]


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
    try:  # One that has ended may wait for somebody who asks how.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc/self").exists()


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


def hang(path: str) -> None:
    """Tell which process this is; one rank waits for the other."""
    rank = int(os.environ["RANK"]) if "RANK" in os.environ else dist.get_rank()
    Path(f"{path}{rank}.made").write_text(f"{os.getpid()} {os.getppid()}")
    Path(f"{path}{rank}.made").rename(f"{path}{rank}")  # It's there with its text.
    if dist.is_initialized() and rank == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(1000)


_RUNS = {
    "processes": "from tests.distributed.test_ranks import Ranks, hang\n"
    "if __name__ == '__main__': Ranks(2).run(hang, {path!r}, deadline=500)",
    "torchrun": "from tests.distributed.test_ranks import torchrun\n"
    "torchrun(2, {script!r}, {path!r}, timeout=500)",
}


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(s, marks=pytest.mark.long) for s in (2, 15))]
)
@pytest.mark.parametrize("kind", _RUNS)
def test_ranks_end_with_the_process_of_the_test(tmp_path, kind, how):
    script, path = tmp_path / "script.py", str(tmp_path / "pid")
    script.write_text(
        "import sys\nfrom tests.distributed.test_ranks import hang\nhang(sys.argv[1])"
    )
    test = tmp_path / "test.py"
    test.write_text(_RUNS[kind].format(script=str(script), path=path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(test)], env=environment, stderr=subprocess.DEVNULL
    ) as process:
        try:
            end = time.monotonic() + 60
            while not all(Path(f"{path}{rank}").exists() for rank in (0, 1)):
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.1)
            pids = [
                int(pid) for rank in (0, 1) for pid in Path(f"{path}{rank}").read_text().split()
            ]
            process.send_signal(how)
            process.wait(timeout=30)
        finally:
            process.kill()
    end = time.monotonic() + 20
    while any(map(_is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(_is_alive, pids))
