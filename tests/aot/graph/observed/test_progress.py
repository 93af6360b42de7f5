"""What is said of a compilation: progress, logs, ranges of the profiler, artifacts for tlparse."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch
from rich.console import Console
from torch.profiler import profile

import funcaot
from funcaot.aot.graph.observed import progress
from funcaot.aot.graph.observed.stages import Stages
from funcaot.errors import FuncaotError


def slow(graph, inputs):
    """A compiler that takes its time."""
    time.sleep(1.6)
    return graph


class TestProgress:
    @pytest.fixture(autouse=True)
    def warm(self):
        """What is imported for the first compilation of a process isn't timed."""
        funcaot.compile(lambda x: x.cos(), backend="eager")(torch.ones(3))
        time.sleep(0.1)

    def test_a_long_compilation_says_what_it_does(self, capfd):
        with funcaot.config.patch(progress_after=1):
            funcaot.compile(lambda x: x.sin() * 2, backend=slow)(torch.ones(3))
        said = capfd.readouterr().err
        assert "funcaot: compiling inference graph of lambda_: compile, 2 ops, " in said
        assert said.rstrip().endswith("s so far")

    def test_a_short_one_says_nothing(self, capfd):
        with funcaot.config.patch(progress_after=60):
            funcaot.compile(lambda x: x.sin() * 2, backend="eager")(torch.ones(3))
        assert capfd.readouterr().err == ""

    def test_silence(self, capfd):
        with funcaot.config.patch(progress_after=0):
            funcaot.compile(lambda x: x.sin() * 2, backend=slow)(torch.ones(3))
        assert capfd.readouterr().err == ""

    def test_a_line_for_each_long_stage(self, capfd):
        def function(x):
            threading.Event().wait(1.2)
            return x.sin()

        with funcaot.config.patch(progress_after=1):
            funcaot.compile(function, backend=slow)(torch.ones(3))
        said = capfd.readouterr().err.splitlines()
        assert [line.split(": ")[1:][1].split(",")[0] for line in said] == ["capture", "compile"]
        assert "\x1b" not in "".join(said)

    def test_every_stage_has_its_place(self, monkeypatch):
        """Of a call that is captured, of its derivatives and of the graphs, none is unknown."""
        seen = []
        run = Stages.__call__

        def noted(self, name, stage, *args, **kwargs):
            seen.append((self.what, name))
            return run(self, name, stage, *args, **kwargs)

        monkeypatch.setattr(Stages, "__call__", noted)
        x = torch.ones(3, requires_grad=True)
        compiled = funcaot.compile(lambda x, y: x.mul_(2) * y.sin(), backend="eager")
        compiled(x * 1, x).sum().backward()
        base = x.detach().repeat(2)
        compiled(base[:3], base[2:5])
        torch.func.jvp(compiled, (torch.ones(3), torch.ones(3)), (x.detach(), x.detach()))
        places = [progress._place(what, name) for what, name in seen]
        unknown = {
            name
            for (_, name), (place, _) in zip(seen, places, strict=True)
            if not place and name not in ("capture", "capture again", "tangents", "share")
        }
        assert unknown == set()
        names = {name for _, name in seen}
        assert {"capture", "sharing", "effects", "tangents", "trace", "compile"} <= names
        assert progress._place("backward of f", "segment") == (2, 4)
        assert progress._place("f", "segment") == (3, 7)


TERMINAL = """
import sys, threading, time, torch, funcaot

def slow(graph, inputs):
    time.sleep(2.5)
    return graph

streams = []

def function(x):
    threading.Event().wait(1.5)
    streams.append((sys.stdout, sys.stderr))
    return x.sin()

before = sys.stdout, sys.stderr
funcaot.compile(function, backend=slow)(torch.ones(3))
print("same streams:", streams[0] == before)
"""


@pytest.mark.parametrize("after", [1, 0])
def test_a_bar_in_a_terminal(after):
    """As a terminal shows it: what is drawn is taken away again, and the last line is free."""
    import pexpect

    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    environment["FUNCAOT_PROGRESS_AFTER"] = str(after)
    child = pexpect.spawn(
        sys.executable, ["-c", TERMINAL], env=environment, encoding="utf-8", dimensions=(24, 120)
    )
    child.expect(pexpect.EOF, timeout=120)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", child.before)
    assert "same streams: True" in said
    if not after:
        assert said.strip() == "same streams: True"
        return
    assert re.search(r"funcaot: compiling function: capture ━+ 0/7 stages, \d+ s", said)
    graph = r"compiling inference graph of function: compile, 1 ops [━╺╸]+ 4/5 stages, \d+ s"
    assert len(re.findall(graph, said)) >= 2
    assert child.before.rstrip().splitlines()[-1].endswith("same streams: True")


BEFORE_THE_FUNCTION = """
import random, sys, torch, funcaot

def function(x):
    print("imported:", "rich.style" in sys.modules)
    return x.sin()

assert "rich.style" not in sys.modules
random.seed(3)
before = random.getstate()
funcaot.compile(function, backend=lambda graph, inputs: graph)(torch.ones(3))
print("same numbers:", random.getstate() == before)
"""


def test_what_draws_bars_is_imported_before_the_function_runs():
    """It draws a random number: while the function is captured, it would be the function's."""
    import pexpect

    environment = {**os.environ, "TERM": "xterm", "FUNCAOT_PROGRESS_AFTER": "60"}
    command = ["-c", BEFORE_THE_FUNCTION]
    child = pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8")
    child.expect(pexpect.EOF, timeout=120)
    assert child.before.split("\r\n")[:2] == ["imported: True", "same numbers: True"]


def test_a_bar_goes_when_a_compiler_fails(monkeypatch):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "_console", lambda: console)
    compiled = funcaot.compile(lambda x: x.sin(), backend=failing)
    patched = funcaot.config.patch(progress_after=1)
    with patched, pytest.raises(funcaot.errors.StageError):
        compiled(torch.ones(3))
    assert "compile, 1 ops" in written.getvalue()
    assert written.getvalue().endswith("\x1b[2K")


def failing(graph, inputs):
    time.sleep(2.5)
    raise RuntimeError("no")


class TestLogs:
    def compiled(self, backend="eager"):
        return funcaot.compile(lambda x, kind: x.sin() if kind else x, backend=backend)

    def test_what_is_asked_for_is_on_stderr(self, capfd):
        with funcaot.config.patch(logs="recompiles, graphs,effects"):
            compiled = self.compiled()
            compiled(torch.ones(3), "a"), compiled(torch.ones(3), "b")
        said = capfd.readouterr().err
        assert "[funcaot.aot.compiled] lambda_ is captured again (called at test_progress" in said
        assert "kind was 'a' and is now 'b'" in said
        assert "torch.ops.aten.sin.default(primal_0)" in said
        assert "[funcaot.effects] lambda_: output 0: result 0" in said
        assert "funcaot.stages" not in said
        compiled(torch.ones(3), "c")
        assert capfd.readouterr().err == ""
        assert logging.getLogger("funcaot.graphs").level == logging.NOTSET

    @pytest.mark.slow
    def test_inductors_code(self, capfd):
        with funcaot.config.patch(logs="code"):
            self.compiled("inductor")(torch.ones(3), "a")
        assert "def call(" in capfd.readouterr().err

    def test_an_unknown_name(self):
        before = funcaot.config.get()
        with pytest.raises(FuncaotError, match="called 'graph'"):
            funcaot.config.set(logs="graph")
        assert funcaot.config.get() == before


def test_ranges_of_the_profiler(tmp_path):
    """Read from the file that a profile writes: each stage once, each graph in each call."""
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    x = torch.ones(3, requires_grad=True)
    with profile() as found:
        for _ in range(3):
            compiled(x).sum().backward()
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = Counter(event["name"] for event in events if event.get("ph") == "X")
    (entry,) = compiled.entries
    stages = {f"funcaot: lambda_: {stage}" for stage in entry.forward.timings}
    assert "funcaot: lambda_: capture" in stages
    graphs = {
        f"funcaot: {graph} graph of lambda_: {stage}"
        for graph in ("forward", "backward")
        for stage in ("contract", "decompose", "check", "compile")
    }
    derivative = {f"funcaot: backward of lambda_: {stage}" for stage in ("tangents", "trace")}
    for name in stages | graphs | derivative:
        assert names[name] >= 1, name
    assert names["funcaot: backward graph of lambda_: compile"] == 1
    # The graphs themselves, as nodes of autograd.
    assert (names["lambda_"], names["lambda_Backward"]) == (3, 3)


SCRIPT = """
import torch, funcaot
compiled = funcaot.compile(lambda x, kind: x.sin() * 2, backend="eager")
x = torch.ones(3, requires_grad=True)
compiled(x, "a").sum().backward()
compiled(x, "b")
"""


def records(text):
    """The records of a trace, as tlparse reads them: a line of JSON, then an indented payload."""
    found = ({}, [])
    for line in text.splitlines():
        if line.startswith("\t"):
            found[1].append(line[1:])
        elif "] {" in line:
            found = (json.loads(line[line.index("] {") + 2 :]), [])
            yield found


def test_artifacts_of_a_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path))
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
    (file,) = tmp_path.iterdir()
    found = {
        record["artifact"]["name"]: (record["artifact"], "\n".join(payload))
        for record, payload in list(records(file.read_text()))
        if record.get("artifact", {}).get("name", "").startswith("funcaot")
    }
    assert "torch.ops.aten.sin.default" in found["funcaot graph forward graph of lambda_"][1]
    assert "torch.ops.aten.cos.default" in found["funcaot graph backward graph of lambda_"][1]
    metadata, payload = found["funcaot stage backward graph of lambda_ compile"]
    assert metadata["encoding"] == "json"
    stage = json.loads(payload)
    assert stage["ops"] == 3
    assert stage["seconds"] >= 0
    assert "funcaot stage lambda_ capture" in found
    assert "kind was 'a' and is now 'b'" in found["funcaot recompile lambda_"][1]


def test_torchs_own_switch_shows_our_logs(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+funcaot")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert "is captured again" in done.stderr
    assert "capture took" in done.stderr


def test_the_environment_asks_for_logs(monkeypatch):
    monkeypatch.setenv("FUNCAOT_LOGS", "recompiles")
    monkeypatch.setenv("FUNCAOT_PROGRESS_AFTER", "0")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert done.stderr.count("\n") == 1
    assert "kind was 'a' and is now 'b'" in done.stderr
