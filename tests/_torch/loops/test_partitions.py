"""Symbols of parts of a graph are searched for where there are any."""

import pytest
import torch
from torch._inductor.scheduler import Scheduler
from torch.testing import assert_close

import funcaot


@pytest.fixture
def searches(monkeypatch):
    """What was found by searches, a list for each."""
    found, usual = [], Scheduler.get_graph_partition_symbol_inputs

    def noted(self, partition, input_nodes):
        result = usual(self, partition, input_nodes)
        found.append([str(symbol) for symbol in result])
        return result

    monkeypatch.setattr(Scheduler, "get_graph_partition_symbol_inputs", noted)
    return found


def function(x):
    return (x.sin() @ x.T).softmax(-1) * x.shape[0]


def compared(**options):
    x = torch.randn(5, 3)
    with torch._inductor.utils.fresh_inductor_cache():
        assert_close(funcaot.compile(function, **options)(x), function(x))


def test_no_search_where_sizes_are_known(searches):
    compared()
    assert not searches
    with funcaot.config.patch(without_patches="symbols of partitions"):
        compared()
    assert searches == [[]]


def test_open_sizes_are_found(searches):
    compared(dynamic=True)
    assert len(searches) == 1 and len(searches[0]) == 2


def test_sizes_that_values_decide():
    def chosen(x):
        return x[x > 0].sin()

    x = torch.randn(5)
    with torch._inductor.utils.fresh_inductor_cache():
        assert_close(funcaot.compile(chosen)(x), chosen(x))
