"""One rank compiles functions of ``DTensor``s; another takes what doesn't depend on its place."""

import contextlib
import warnings

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import funcaot
from tests.distributed.saved import sharded


def _result(function, x, order):
    """What a function gives, or the error."""
    try:
        return sharded.derivatives(function, x, order), None
    except Exception as error:  # noqa: BLE001 (eager's, to be compared)
        return None, type(error)


def _plain(values):
    return [sharded._plain(value).detach() for value in values]


def _compare(compiled, function, x, order):
    for _ in range(2):
        expected, error = _result(function, x, order)
        if error is not None:
            with pytest.raises(error):
                sharded.derivatives(compiled, x, order)
            return
        found = sharded.derivatives(compiled, x, order)
        assert sharded.looks(found) == sharded.looks(expected)
        torch.testing.assert_close(_plain(found), _plain(expected))
        with torch.no_grad():
            x = (x.detach() + 0.25).requires_grad_()


def _asked(compiled):
    """Whether a forward, and one of its backwards, depend on the place."""
    (entry,) = compiled.entries
    backwards = [
        backward
        for made in entry.functions.made
        for backward, _ in made.derivatives.backwards.values()
    ]
    return any("place" in question for question, _ in entry.capture.asked), any(
        "place" in question for backward in backwards for question, _ in backward.asked
    )


def _saved_and_taken(name, placement, size, order, path, ranks=2, backend="eager"):
    """Save in place 0, and look for it in each place; how often it was captured there."""
    function = sharded.FUNCTIONS[name]
    with sharded.place(0, ranks):
        x = sharded.shared(*size, placement)
        compiled = funcaot.compile(function, backend=backend, dynamic=False)
        _compare(compiled, function, x, order)
        if not compiled.entries:
            return None
        saved = compiled.save(path)
        depends = _asked(compiled)
    counts = []
    for rank in (0, *range(ranks)):
        with sharded.place(rank, ranks):
            x = sharded.shared(*size, placement)
            compiled = funcaot.compile(function, backend=backend, dynamic=False, artifacts=path)
            _compare(compiled, function, x, order)
            report = funcaot.report(compiled)
            counts.append((report.cache_misses, report.backward_traces))
            assert not report.cache_misses or compiled.entries[0].reason
    return saved, depends, counts
