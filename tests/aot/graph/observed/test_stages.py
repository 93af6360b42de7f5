"""Stages of a compilation: timed, logged, verified, and named in the report."""

import dataclasses
import logging

import pytest
import torch

import funcaot
from funcaot import config
from funcaot.aot import pipeline
from funcaot.aot.effects import settled
from funcaot.aot.graph.observed.stages import Stages
from funcaot.errors import GraphError


class Record:
    def __init__(self, *, right):
        self.right = right

    def verify(self):
        if not self.right:
            raise GraphError("not in order")


def test_a_stage_is_run_with_its_arguments_and_timed():
    run = Stages("f")
    assert run("divide", divmod, 7, 2) == (3, 1)
    assert run("join", dict, a=1) == {"a": 1}
    assert list(run.timings) == ["divide", "join"]
    assert all(seconds >= 0 for seconds in run.timings.values())


def test_a_stage_that_runs_twice_counts_both():
    run = Stages("f")
    run.timings["divide"] = 1.0
    run("divide", divmod, 7, 2)
    assert run.timings["divide"] > 1.0


def test_a_stage_that_fails_is_timed_and_its_error_passes_through():
    run = Stages("f")
    with pytest.raises(ZeroDivisionError):
        run("divide", divmod, 7, 0)
    assert list(run.timings) == ["divide"]


@pytest.mark.parametrize("together", [False, True])
def test_a_record_out_of_order_is_refused(together):
    record = Record(right=False)
    made = (Record(right=True), record) if together else record
    with pytest.raises(GraphError, match="not in order"):
        Stages("f")("make", lambda: made)
    with config.patch(check_aliases=False):
        assert Stages("f")("make", lambda: made) is made


def test_stages_are_logged(caplog):
    with caplog.at_level(logging.DEBUG, "funcaot.stages"):
        funcaot.compile(torch.sin, backend="eager")(torch.ones(2))
    told = [message.split(" took ")[0] for message in caplog.messages]
    assert told[:3] == ["sin: capture", "sin: effects", "sin: effects"]
    assert "inference graph of sin: compile" in told


def test_the_report_has_every_stage():
    compiled = funcaot.compile(lambda x: x.sin().sum(), backend="eager")
    compiled(torch.ones(3, requires_grad=True)).backward()
    (entry,) = funcaot.report(compiled).entries
    assert {"capture", "effects", "segment", "environment"} <= set(entry.timings)
    assert {"decompose", "check", "compile"} <= set(entry.graphs[0].timings)
    assert {"tangents", "trace", "segment"} <= set(entry.backwards[0].timings)


def test_effects_that_name_no_result_are_refused(monkeypatch):
    right = settled.analyse
    monkeypatch.setattr(
        settled, "analyse", lambda *args: dataclasses.replace(right(*args), results=())
    )
    with pytest.raises(GraphError, match="with 0 results name"):
        funcaot.compile(torch.sin, backend="eager")(torch.ones(2))


def test_a_capture_of_another_tape_is_refused(monkeypatch):
    strangers = settled.capture

    def mixed(*args, **options):
        first, second = strangers(*args, **options), strangers(*args, **options)
        return dataclasses.replace(first, inputs=second.inputs)

    monkeypatch.setattr(settled, "capture", mixed)
    with pytest.raises(GraphError, match="another tape"):
        funcaot.compile(torch.sin, backend="eager")(torch.ones(2))


def test_a_backward_that_names_one_gradient_twice_is_refused(monkeypatch):
    right = pipeline.derived
    monkeypatch.setattr(
        pipeline, "derived", lambda *args: dataclasses.replace(right(*args), targets=(0, 0))
    )
    x = torch.ones(2, requires_grad=True)
    result = funcaot.compile(torch.mul, backend="eager")(x, x.detach().clone().requires_grad_())
    with pytest.raises(GraphError, match="names"):
        result.sum().backward()
