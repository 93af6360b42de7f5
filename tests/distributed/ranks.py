"""Ranks to run test functions on: processes with a gloo group, bounded in time, ended for sure.

A test asks for the fixture ``ranks`` and calls ``ranks.run(function, *arguments)``. The processes
stay from one call to the next, since starting one takes seconds; the group is a new one each time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_GRACE = 5.0  # seconds that the others get once one rank has failed


class RanksFailedError(AssertionError):
    """What each rank that failed said."""


def torchrun(
    count: int, *command: str, timeout: float, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a script on some ranks; torchrun takes a free port.

    Args:
        count: How many ranks.
        command: The script and its arguments.
        timeout: Seconds until all of its processes are ended.
        settings: Variables of the environment.

    Raises:
        subprocess.TimeoutExpired: It took longer.
    """
    ours, theirs = os.pipe()  # Closed with this process, however it ends.
    start = [sys.executable, "-W", "ignore", __file__, str(ours), "--standalone"]
    settings = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(_ROOT), **settings}
    with subprocess.Popen(
        [*start, "--nproc-per-node", str(count), *command],
        pass_fds=[ours],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(ours)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:  # The time is up, or somebody has interrupted the test.
            # It ends its ranks when it is asked to end, not when it is killed.
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=40)
            process.kill()
            raise
        finally:
            os.close(theirs)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _torchrun(pipe: int, arguments: list[str]) -> None:
    """What the process of `torchrun` does: it ends, and its ranks, with the test's process."""
    from torch.distributed.run import main

    def end() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    main(arguments)


class Ranks:
    """Some processes that run functions together.

    Attributes:
        count: How many.
    """

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def run(
        self, function: Callable[..., Any], *arguments: Any, deadline: float = 120
    ) -> list[Any]:
        """Run a function of a test module on every rank.

        Args:
            function: At the top of its module; called with the arguments.
            arguments: What can be pickled.
            deadline: Seconds until every process is killed.

        Returns:
            What it returned, by rank.

        Raises:
            RanksFailedError: With the traceback of every rank that failed or that was killed.
        """
        if not self._processes:
            self._start()
        with tempfile.TemporaryDirectory(prefix="ranks") as directory:
            place = f"{function.__module__}:{function.__qualname__}"
            for pipe in self._pipes:
                pipe.send((place, arguments, f"file://{directory}/store", deadline))
            answers = self._answers(time.monotonic() + deadline)
        failed = {rank: text for rank, (done, text) in answers.items() if not done}
        if failed:
            self.stop()
            texts = [f"--- rank {rank}\n{text}" for rank, text in sorted(failed.items())]
            raise RanksFailedError("\n".join([f"{place} failed", *texts]))
        return [answers[rank][1] for rank in range(self.count)]

    def _answers(self, end: float) -> dict[int, tuple[bool, Any]]:
        """The answer of each rank; that of one that hangs says so."""
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < self.count and (left := end - time.monotonic()) > 0:
            waiting = {self._pipes[r]: r for r in range(self.count) if r not in answers}
            for pipe in wait(list(waiting), timeout=left):
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    answers[rank] = pipe.recv()  # type: ignore[union-attr]
                except (EOFError, ConnectionResetError):
                    self._processes[rank].join(timeout=2)  # It has closed its end, and may run on.
                    code = self._processes[rank].exitcode
                    answers[rank] = (False, f"the process died (exit code {code})")
                if not answers[rank][0]:
                    end = min(end, time.monotonic() + _GRACE)
        for rank in range(self.count):
            answers.setdefault(rank, (False, "did not return in time, and was killed"))
        return answers

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for rank in range(self.count):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, rank, self.count), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)

    def stop(self) -> None:
        """Kill the processes; none is left when this returns."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _end_with_parent() -> None:
    """End this process when the test's process has ended, however it did."""
    parent: Any = multiprocessing.parent_process()
    wait([parent.sentinel])
    os._exit(1)


def _work(pipe: Connection, rank: int, count: int) -> None:
    """What a process does until the test's process goes away."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    while True:
        try:
            place, arguments, store, deadline = pipe.recv()
        except EOFError:
            return
        # Even if nobody is there to kill it, and it holds Python's lock.
        faulthandler.dump_traceback_later(deadline + 2 * _GRACE, exit=True)
        try:
            answer = (True, _called(place, arguments, (store, rank, count, deadline)))
        except BaseException:  # noqa: BLE001 - it is told to the test
            answer = (False, traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        pipe.send(answer)
        if not answer[0]:
            # Whatever it left behind ends with it, as soon as the test has read this.
            with contextlib.suppress(EOFError):
                pipe.recv()
            return


def _called(place: str, arguments: tuple[Any, ...], group: tuple[str, int, int, float]) -> Any:
    import torch
    import torch.distributed as dist

    # Its functions keep the group that is there when they are imported as their default.
    import torch.distributed.nn.functional

    store, rank, count, deadline = group
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=count, timeout=timedelta(seconds=deadline)
    )
    module, _, name = place.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    result = function(*arguments)
    dist.barrier()
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    _torchrun(int(sys.argv[1]), sys.argv[2:])
