"""Bodies that Inductor throws away aren't written, and all others are as they were."""

import pytest
import torch
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.utils import fresh_inductor_cache

import funcaot


def written(f, x, monkeypatch, **config):
    """The C++ and Python that Inductor writes, how often it writes an op's loop, and the result."""
    sources, count = [], [0]
    original = SchedulerNode.codegen

    def counting(self, index_vars):
        count[0] += 1
        return original(self, index_vars)

    def taken(compiled):
        sources.append(compiled.source_code)

    with monkeypatch.context() as patch, fresh_inductor_cache():
        patch.setattr(SchedulerNode, "codegen", counting)
        patch.setattr("funcaot._torch.inductor.inductor._show_code", taken)
        with funcaot.config.patch(**config):
            found = funcaot.compile(f)(x)
    return sources, count[0], found


def pointwise(x):
    return x.sin() * 2 + x


def transposed(x):
    turned = x.t().contiguous().cos()
    return x.exp() + turned if x.shape == turned.shape else turned + 1


def summed(x):
    return x.sin().sum(0) + x.mean(), (x * 2).amax(1)


def summed_last(x):
    return (x.t() * 3).sum(0), x.softmax(0)


def narrow(x):
    return (x[:, :3].t().exp() + 1).t(), x[:5].half().float().cumsum(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (transposed, (48, 48)),
        (transposed, (19, 32)),
        (summed, (32, 35)),
        (summed_last, (32, 64)),
        (narrow, (3, 5)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_code_is_the_same(function, shape, monkeypatch):
    x = torch.randn(shape)
    sources, less, found = written(function, x, monkeypatch)
    usual, count, _ = written(function, x, monkeypatch, without_patches="empty ranges")
    assert sources == usual and sources
    assert less < count
    torch.testing.assert_close(found, function(x))


def test_a_row_of_whole_vectors_is_written_twice(monkeypatch):
    x = torch.randn(8, 128)
    sources, less, _ = written(pointwise, x, monkeypatch)
    usual, count, _ = written(pointwise, x, monkeypatch, without_patches="empty ranges")
    assert sources == usual
    assert (less, count) == (2, 3)


def test_an_error_inside_leaves_nothing():
    from funcaot._torch.inductor.loops import empty_ranges

    original = SchedulerNode.codegen
    with pytest.raises(ValueError, match="inside"), empty_ranges.left_out():
        raise ValueError("inside")
    assert SchedulerNode.codegen is original
