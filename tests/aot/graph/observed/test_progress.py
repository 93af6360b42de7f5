"""What is said of a compilation: progress, logs, ranges of the profiler, artifacts for tlparse."""

import json
import logging
import subprocess
import sys
import time

import pytest
import torch
from torch.profiler import profile

import funcaot
from funcaot.aot.graph.observed import progress
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

    def test_a_line_that_changes_in_a_terminal(self, capfd, monkeypatch):
        shown = []

        class Status:
            def start(self):
                shown.append("start")

            def update(self, text):
                shown.append(text)

            def stop(self):
                shown.append("stop")

        class Console:
            def status(self, text):
                shown.append(text)
                return Status()

        monkeypatch.setattr(progress, "_console", Console)
        compiled = funcaot.compile(lambda x: x.sin(), backend=failing)
        patched = funcaot.config.patch(progress_after=1)
        with patched, pytest.raises(funcaot.errors.StageError):
            compiled(torch.ones(3))
        assert "compile, 1 ops" in shown[0]
        assert (shown[1], shown[-1]) == ("start", "stop")
        assert len(shown) >= 3
        assert capfd.readouterr().err == ""


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


def test_ranges_of_the_profiler():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    x = torch.ones(3, requires_grad=True)
    with profile() as found:
        for _ in range(3):
            compiled(x).sum().backward()
    names = {event.key for event in found.key_averages()}
    for name in (
        "funcaot: lambda_: capture",
        "funcaot: forward graph of lambda_: compile",
        "funcaot: backward of lambda_: trace",
        "lambda_",  # the graphs themselves, as nodes of autograd
        "lambda_Backward",
    ):
        assert name in names


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
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert done.stderr.count("\n") == 1
    assert "kind was 'a' and is now 'b'" in done.stderr
