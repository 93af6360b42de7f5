"""What no code names may have changed too: special methods of classes, functions of torch."""

import pytest
import torch
from torch import nn

import funcaot
from tests.aot.saved.reloading import is_loaded, misses


class Meta(type):
    pass


class Row(metaclass=Meta):
    def __init__(self):
        self.numbers = [2.0, 3.0]

    def __getitem__(self, index):
        return self.numbers[index]


class LongRow(Row):
    pass


class Base(nn.Module):
    pass


class Network(Base):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.row, self.rows = LongRow(), [5.0]

    def forward(self, x):
        y = self.linear(x) * self.row[0]
        return y * 2 if isinstance(self.row, Row) and self.row else y


def called(self, x):
    return nn.Module.__call__(self, x) + 9


def another(self, name):
    return nn.Module.__getattr__(self, "other" if name == "linear" else name)


def told(self, name):
    return object.__getattribute__(self, "rows" if name == "row" else name)


CHANGES = {
    "module called": (Base, "__call__", called),
    "module asked for what it lacks": (Base, "__getattr__", another),
    "module asked": (Network, "__getattribute__", told),
    "object indexed": (LongRow, "__getitem__", lambda self, index: 7.0),
    "object measured": (LongRow, "__len__", lambda self: 0),
    "object judged": (Row, "__bool__", lambda self: False),
    "class asked": (Meta, "__instancecheck__", lambda self, instance: False),
    "not a function": (Base, "__call__", staticmethod(lambda x: x + 1)),
}


def saved(path):
    compiled = funcaot.compile(Network(), backend="eager")
    compiled(torch.ones(2, 3))
    assert compiled.save(path).programs == 1


def found(path):
    network, x = Network(), torch.arange(6.0).reshape(2, 3)
    compiled = funcaot.compile(network, backend="eager", artifacts=path)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), network(x))
    return compiled


@pytest.mark.parametrize("change", CHANGES)
def test_a_class_that_has_got_a_special_method(change, tmp_path, monkeypatch):
    kind, name, method = CHANGES[change]
    path = tmp_path / "programs"
    saved(path)
    assert is_loaded(found(path))
    monkeypatch.setattr(kind, name, method, raising=False)
    assert misses(found(path)) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_a_class_that_has_lost_one(change, tmp_path, monkeypatch):
    kind, name, method = CHANGES[change]
    path = tmp_path / "programs"
    with monkeypatch.context() as patch:
        patch.setattr(kind, name, method, raising=False)
        compiled = funcaot.compile(Network(), backend="eager")
        compiled(torch.ones(2, 3))
        compiled.save(path)
    assert misses(found(path)) == 1


def shifted(*operands):
    return torch.addmm(operands[2], operands[0], operands[1].t()) + 1


@pytest.mark.parametrize("where", ["torch.nn.functional.linear", "torch.functional.einsum"])
def test_a_function_of_torch_that_was_replaced(where, tmp_path, monkeypatch):
    """As by those who put their own attention there: torch's code isn't followed."""
    path = tmp_path / "programs"
    saved(path)
    with monkeypatch.context() as patch:
        patch.setattr(where, shifted)
        compiled = found(path)
        assert misses(compiled) == 1
        reason = funcaot.report(compiled).entries[0].reason
        assert "functions of torch changed" in reason
    assert is_loaded(found(path))
