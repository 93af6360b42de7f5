"""What code asks of the world outside, or does to it, happens in each call or is refused."""

import csv
import datetime
import decimal
import gc
import json
import logging
import multiprocessing
import os
import pathlib
import queue
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
import warnings
from time import perf_counter

import numpy as np
import pytest
import torch

import funcaot
from funcaot.errors import CaptureWarning, OutsideError, UnsupportedError

HERE = {}


@pytest.fixture(autouse=True)
def things(tmp_path):
    """Open files, connections and queues that functions reach."""
    path = tmp_path / "numbers.json"
    path.write_text("[1, 2]")
    pair = socket.socketpair()
    database = sqlite3.connect(":memory:")
    database.execute("create table seen (n)")
    log = (tmp_path / "log").open("a")
    HERE.update(
        path=path, new=tmp_path / "new", log=log, rows=csv.writer(log), reading=path.open(),
        socket=pair[0], database=database, queue=queue.SimpleQueue(),
        shared=multiprocessing.Value("i", 0),
    )  # fmt: skip
    yield
    for name in ("log", "reading", "database"):
        HERE[name].close()
    for each in pair:
        each.close()


def timed():
    started = perf_counter()
    return perf_counter() - started


CLOCK = {
    "time": lambda: time.time(),
    "imported": lambda: perf_counter(),
    "a difference": timed,
    "nanoseconds": lambda: time.monotonic_ns(),
    "text": lambda: time.strftime("%S"),
    "date": lambda: datetime.datetime.now().timestamp(),
    "day": lambda: datetime.date.today().toordinal(),
    "wait": lambda: time.sleep(0.001),
}
FILES = {
    "open": lambda: HERE["path"].open().close(),
    "path": lambda: HERE["path"].read_text(),
    "json": lambda: json.loads(HERE["path"].read_bytes())[0],
    "numpy": lambda: np.loadtxt(HERE["path"], delimiter=",", comments="["),
    "exists": lambda: HERE["new"].exists(),
    "size": lambda: os.path.getsize(HERE["path"]),
    "list": lambda: len(os.listdir(HERE["path"].parent)),
    "glob": lambda: len(list(HERE["path"].parent.glob("*"))),
    "write": lambda: HERE["new"].write_text("1"),
    "folder": lambda: HERE["new"].mkdir(),
    "rename": lambda: os.rename(HERE["path"], HERE["new"]),
    "print": lambda: print("a", file=HERE["log"]),
    "log": lambda: HERE["log"].write("a"),
    "row": lambda: HERE["rows"].writerow([1]),
    "line": lambda: HERE["reading"].readline(),
}
OTHERS = {
    "urandom": lambda: os.urandom(2)[0],
    "uuid": lambda: uuid.uuid4().int % 7,
    "token": lambda: secrets.token_hex(2),
    "numpy's new generator": lambda: np.random.default_rng(),
    "process": lambda: subprocess.run(["true"], check=True),
    "system": lambda: os.system("true"),
    "socket": lambda: HERE["socket"].send(b"a"),
    "database": lambda: HERE["database"].execute("insert into seen values (1)"),
    "query": lambda: HERE["database"].execute("select count(*) from seen").fetchone(),
    "queue": lambda: HERE["queue"].put(1),
    "shared": lambda: HERE["shared"].value,
}
SETTINGS = {
    "environment": lambda: os.environ.__setitem__("FUNCAOT_TEST", "1"),
    "folder": lambda: os.chdir("."),
    "mask": lambda: os.umask(0o22),
    "recursion": lambda: sys.setrecursionlimit(sys.getrecursionlimit()),
    "signal": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "decimal": lambda: setattr(decimal.getcontext(), "prec", decimal.getcontext().prec + 1),
    "numpy": lambda: np.seterr(divide="ignore"),
    "logging": lambda: logging.disable(10),
    "hook": lambda: setattr(sys, "excepthook", timed),
    "collector": gc.disable,
}
ACTS = {
    f"{kind}: {name}": act
    for kind, acts in (("clock", CLOCK), ("file", FILES), ("other", OTHERS), ("setting", SETTINGS))
    for name, act in acts.items()
}


@pytest.fixture
def settings():
    """Settings as they were, after a test that changes them."""
    before = torch.get_num_threads(), decimal.getcontext().prec, np.geterr(), sys.excepthook
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    torch.set_num_threads(before[0])
    decimal.getcontext().prec = before[1]
    np.seterr(**before[2])
    sys.excepthook = before[3]
    signal.signal(signal.SIGUSR1, handler)
    logging.disable(logging.NOTSET)
    gc.enable()
    os.environ.pop("FUNCAOT_TEST", None)


@pytest.mark.parametrize("name", ACTS)
def test_refused_by_name(name, settings):
    act = ACTS[name]

    def function(x):
        act()
        return x * 2

    with pytest.raises(UnsupportedError, match=r"when it is captured"):
        funcaot.compile(function, backend="eager")(torch.ones(2))
    assert sys.getprofile() is None


@pytest.mark.parametrize("name", FILES)
def test_nothing_has_happened_when_it_is_refused(name):
    folder = HERE["path"].parent
    before = sorted((each.name, each.stat().st_size) for each in folder.iterdir())
    with pytest.raises(UnsupportedError):
        funcaot.compile(lambda x: (FILES[name](), x * 2)[1], backend="eager")(torch.ones(2))
    if name != "print":  # It is noticed by the file's position.
        HERE["log"].flush()
        assert sorted((each.name, each.stat().st_size) for each in folder.iterdir()) == before


def test_calls_that_run_as_they_are_do_it_each_time():
    def function(x):
        with HERE["new"].open("a") as file:
            file.write("a")
        return x * HERE["new"].stat().st_size

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    with pytest.warns(CaptureWarning, match="opens a file"):
        results = [compiled(torch.ones(1)).item() for _ in range(3)]
    assert results == [1, 2, 3]


def test_the_message_names_the_line_and_what_to_do():
    def function(x):
        return x * time.time()

    with pytest.raises(OutsideError) as caught:
        funcaot.compile(function)(torch.ones(2))
    line = function.__code__.co_firstlineno + 1
    assert "reads the clock (time.time)" in str(caught.value)
    assert f"{__file__}:{line}" in str(caught.value)
    assert "outside of the compiled function" in str(caught.value)


class Counting(torch.autograd.Function):
    """Both directions write to a file, and compute with what it holds."""

    @staticmethod
    def forward(ctx, x):
        with HERE["new"].open("a") as file:
            file.write("f")
        return x * HERE["new"].stat().st_size

    @staticmethod
    def backward(ctx, cotangent):
        with HERE["new"].open("a") as file:
            file.write("b")
        return cotangent * len(HERE["new"].read_text())


class Reading(torch.autograd.Function):
    """A forward that can be captured, and a backward that reads a file."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * json.loads(HERE["path"].read_text())[0]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", [Counting, Reading])
def test_functions_do_it_in_each_call(function, backend):
    def story(call):
        HERE["new"].write_text("")
        told = []
        for step in range(3):
            HERE["path"].write_text(f"[{step + 1}]")
            x = torch.ones(2, requires_grad=True)
            y = call(x)
            y.sum().backward()
            told.append((y.tolist(), x.grad.tolist(), HERE["new"].read_text()))
        return told

    def through(x):
        return function.apply(x) * 3

    assert story(funcaot.compile(through, backend=backend)) == story(through)


def test_what_follows_such_a_function_is_watched_too():
    def function(x):
        return Counting.apply(x) * time.time()

    with pytest.raises(OutsideError, match=r"time\.time"):
        funcaot.compile(function, backend="eager")(torch.ones(2))


@torch.library.custom_op("funcaot_tests::outside", mutates_args=())
def in_a_kernel(x: torch.Tensor) -> torch.Tensor:
    """The kernel of an operator writes to a file."""
    with HERE["new"].open("a") as file:
        file.write("k")
    return x * 2


in_a_kernel.register_fake(torch.empty_like)


def test_kernels_of_operators_do_it_in_each_call():
    HERE["new"].write_text("")
    compiled = funcaot.compile(lambda x: in_a_kernel(x) + 1, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert HERE["new"].read_text() == "kkk"


class Recording(logging.Handler):
    """Counts what is logged, and asks for the time of it."""

    def emit(self, record):
        self.count = getattr(self, "count", 0) + (record.created > 0)


LOGGER = logging.getLogger("funcaot_tests.outside")
LOGGER.addHandler(Recording())


TELLING = {
    "print": lambda: print("a"),
    "stderr": lambda: sys.stderr.write("a"),
    "log": lambda: LOGGER.warning("a"),
    "warn": lambda: warnings.warn("a", stacklevel=1),
    "environment": lambda: os.environ.get("HOME"),
    "process": os.getpid,
    "path": lambda: pathlib.PurePath("a") / "b",
    "span": lambda: datetime.timedelta(seconds=1),
}


@pytest.mark.filterwarnings("ignore:a$")
@pytest.mark.parametrize("name", TELLING)
def test_telling_is_no_such_act(name):
    compiled = funcaot.compile(lambda x: (TELLING[name](), x * 2)[1], backend="eager")
    assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [2, 2]


class Tee:
    """It stands for ``sys.stdout``, and writes to a file, too."""

    def __init__(self, file):
        self.file = file

    def write(self, text):
        self.file.write(text)

    def flush(self):
        self.file.flush()


def test_printing_may_write_to_a_file(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Tee(HERE["log"]))
    compiled = funcaot.compile(lambda x: (print("a"), x * 2)[1], backend="eager")
    assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [2, 2]


def test_standard_error_may_be_a_file(capfd):
    """Somebody prints there while a function is captured that knows it: the library, a thread."""
    with open(2, "w", closefd=False) as stream:

        def double(x):
            stream.write("a")
            stream.flush()
            return x * 2

        compiled = funcaot.compile(double, backend="eager")
        assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [2, 2]
    assert capfd.readouterr().err == "a"


def test_what_python_runs_by_itself_is_no_ones_asking(settings):
    seen = []

    def handler(number, frame):
        seen.append(time.time())

    class Collecting:
        def called(self, phase, info):
            seen.append(time.time())

    signal.signal(signal.SIGUSR1, handler)
    gc.callbacks.append(called := Collecting().called)
    try:

        def function(x):
            signal.raise_signal(signal.SIGUSR1)
            gc.collect()
            return x * 2

        assert funcaot.compile(function, backend="eager")(torch.ones(2)).tolist() == [2, 2]
    finally:
        gc.callbacks.remove(called)
    assert len(seen) >= 2


def test_settings_that_are_put_back_are_fine():
    def function(x):
        with decimal.localcontext() as context, np.errstate(divide="raise"):
            context.prec = 50
            return x * float(decimal.Decimal(1) / 4)

    compiled = funcaot.compile(function, backend="eager")
    assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [0.25, 0.25]


def test_settings_are_put_back_before_a_call_runs_as_it_is(settings):
    before = decimal.getcontext().prec

    def function(x):
        decimal.getcontext().prec += 1
        return x * 2

    with pytest.warns(CaptureWarning, match="decimal"):
        funcaot.compile(function, backend="eager", fullgraph=False)(torch.ones(2))
    assert decimal.getcontext().prec == before + 1


def test_a_profiler_that_was_there_goes_on():
    seen = []

    def profiler(frame, event, argument):
        seen.append((frame.f_code.co_name, event))

    def function(x):
        return x * 2

    def clocked(x):
        return x * time.time()

    sys.setprofile(profiler)
    try:
        result = funcaot.compile(function, backend="eager")(torch.ones(2))
        with pytest.raises(OutsideError):
            funcaot.compile(clocked, backend="eager")(torch.ones(2))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert result.tolist() == [2, 2]
    assert ("function", "call") in seen
