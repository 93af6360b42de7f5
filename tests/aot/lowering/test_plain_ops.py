"""Ops that are recorded without being taken apart: a graph is what it is if all are run again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import funcaot
from funcaot._torch.tracing.eager_rules import eager_strides
from funcaot.aot.lowering import lower, plain_ops
from tests import hostile


def described(module):
    """All that can be seen of a graph; memory by the order in which it occurs.

    Where in its new memory what ``slice_scatter`` makes begins is up to torch's cache of such ops.
    """
    storages, starts, found = {}, {}, []
    for node in module.graph.nodes:
        value, looks = node.meta.get("val"), None
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            place = storages.setdefault(value.untyped_storage()._cdata, len(storages))
            start = value.storage_offset() - starts.setdefault(place, value.storage_offset())
            looks = (value.shape, value.stride(), value.dtype, start, place)
            looks += (value.device, value.is_conj(), value.is_neg(), value.requires_grad)
        meta = {key: str(each) for key, each in node.meta.items() if key not in ("val", "source")}
        text = (node.op, str(node.target), node.name, str(node.args), str(node.kwargs))
        found.append((*text, looks, meta, list(node.meta)))
    return found


@pytest.fixture
def recorded(monkeypatch):
    """Lower each graph in both ways and compare; which ops were recorded plainly."""
    retrace, record, ops = lower._retrace, plain_ops.PlainOps.record, set()

    def noted(plain, node, values):
        found = record(plain, node, values)
        ops.update([node.target] if found is not None else [])
        return found

    def both(module, table):
        with monkeypatch.context() as patch:
            patch.setattr(plain_ops.PlainOps, "record", lambda plain, node, values: None)
            usual = described(retrace(module, table))
        made = retrace(module, table)
        assert described(made) == usual
        return made

    monkeypatch.setattr(plain_ops.PlainOps, "record", noted)
    monkeypatch.setattr(lower, "_retrace", both)
    return ops


def chained(x, w):
    y = x.view(4, 6).permute(1, 0) @ w[:4]
    z = y.unsqueeze(1) * y.t().reshape(1, 5, 6).transpose(1, 2).sum(1)
    return z.sin() + z.cos().neg() - y.exp().select(0, 2) / 3, (z * 2).sigmoid().tanh()


def odd_strides(x, w):
    one = x[:, :1].t()  # a dimension of size 1 whose stride says nothing
    return one * 2, one.unsqueeze(0).permute(2, 0, 1).clone(), one.expand(3, 4) + 1, one.squeeze(0)


def cast(x, w):
    half = x.half()
    wide = half[:, :1].expand(4, 6) * half
    return wide, wide.float() * x, x * torch.arange(6), (x > 0.5) * w[:4, :1]


def sums(x, w):
    return torch.add(x, x, alpha=2) - 1, torch.sub(w, 1, alpha=3), x + w[:4, :1], 2 + x


def views(x, w):
    whole = x.view(-1)
    return whole.view(2, -1)[1].clone(), whole[2:20:3].view(3, 2) * 2, w.t().contiguous().view(35)


def few_dimensions(x, w):
    row = x[0]
    return row.t() * 2, row.sum().neg(), row.sum().expand(2, 3) + 1, x.transpose(0, -1) * 1


def no_elements(x, w):
    return x[:0] * 2, x[:, 3:3].t().clone(), x[:0].view(6, 0).neg()


def complex_numbers(x, w):
    z = torch.complex(x, x * 2)
    return (z.conj() * z).real, z.conj().t() * 1, z.imag.neg()


def written(x, w):
    y = x * 2
    y[1:].mul_(w[:3, :1])
    return y.t(), y.view(24)[5:].exp()


def written_later(x, w):
    part = (x * 2)[1:, 2:]
    part[:, 0] = w[:3, 1]
    return part.neg(), torch.slice_scatter(x[1:], w[:3, :2], 1, 0, 2) + 1


def gradients(x, w):
    y = F.layer_norm(F.linear(x, w[:, :1].expand(7, 6)), (7,))
    return torch.autograd.grad(y.square().sum() + x.pow(3).sum(), x, create_graph=True)[0].sum(), y


PROGRAMS = [
    *(chained, odd_strides, cast, sums, views, few_dimensions, no_elements, complex_numbers),
    *(written, written_later, gradients),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_graph_is_the_same(program, recorded):
    x, w = (torch.rand(size, dtype=torch.float64, requires_grad=True) for size in ((4, 6), (7, 5)))
    found = funcaot.compile(program, backend=hostile.COMPILER)(x, w)
    expected = program(x, w)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    smooth = [
        [each for each in values if each.is_floating_point() and each.requires_grad]
        for values in (found, expected)
    ]
    grads = [
        torch.autograd.grad(sum(y.sum().double() for y in values), [x, w], allow_unused=True)
        for values in smooth
    ]
    torch.testing.assert_close(*grads)
    assert recorded or program is no_elements


def test_most_ops_are_recorded(recorded):
    x, w = torch.rand(4, 6), torch.rand(7, 5)
    funcaot.compile(chained, backend=hostile.COMPILER)(x, w)
    aten = torch.ops.aten
    assert {aten.mul.Tensor, aten.permute.default, aten.t.default, aten.exp.default} <= recorded
    assert aten.mm.default not in recorded


def test_open_sizes_go_the_usual_way(recorded):
    compiled = funcaot.compile(chained, backend=hostile.COMPILER, dynamic=True)
    x, w = torch.rand(4, 6), torch.rand(7, 5)
    torch.testing.assert_close(compiled(x, w), chained(x, w))
    assert not recorded


def test_no_plain_op_has_a_rule_for_its_strides():
    assert plain_ops._PLAIN.isdisjoint(eager_strides._OPS)
