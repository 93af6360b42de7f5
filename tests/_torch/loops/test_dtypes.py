"""Inductor's rules for dtypes are put together once for a graph, and are those that it has."""

import torch
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler

import funcaot
from funcaot._torch.inductor.loops import dtypes


def counted(monkeypatch):
    """How often the rules are put together, in a list of one number."""
    count, original = [0], DtypePropagationOpsHandler.__init__

    def counting(self):
        count[0] += 1
        original(self)

    monkeypatch.setattr(DtypePropagationOpsHandler, "__init__", counting)
    return count


def compiled_anew(f, x):
    with torch._inductor.utils.fresh_inductor_cache():
        return funcaot.compile(f)(x)


def chain(x):
    return (x.sin().double() * x.gt(0)).cos().sum() + x.exp().relu().half().mean()


def test_once_for_a_graph(monkeypatch):
    count, x = counted(monkeypatch), torch.randn(40)
    assert torch.allclose(compiled_anew(chain, x), chain(x))
    assert 1 <= count[0] <= 2


def test_without_it_inductor_goes_its_own_way(monkeypatch):
    count, x = counted(monkeypatch), torch.randn(41)
    with funcaot.config.patch(without_patches="dtype rules"):
        assert torch.allclose(compiled_anew(chain, x), chain(x))
    assert count[0] > 10


def test_rules_that_come_later_are_there_for_the_next_graph(monkeypatch):
    rules = torch._inductor.utils.op_dtype_propagation_rules
    with dtypes.rules_kept():
        DtypePropagationOpsHandler()
    later = torch._inductor.utils.OpDtypeRule(
        torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT, torch.int16
    )
    monkeypatch.setitem(rules, "from_a_test", later)
    with dtypes.rules_kept():
        handler = DtypePropagationOpsHandler()
        assert DtypePropagationOpsHandler() is handler
        assert handler.from_a_test() is torch.int16
    del DtypePropagationOpsHandler._instance.from_a_test


def test_an_error_inside_leaves_nothing():
    original = DtypePropagationOpsHandler.__init__
    try:
        with dtypes.rules_kept():
            raise ValueError
    except ValueError:
        pass
    assert DtypePropagationOpsHandler.__init__ is original
