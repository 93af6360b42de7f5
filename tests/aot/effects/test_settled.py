"""A call whose inputs share memory: the function runs again, also after what it raised."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

BACKENDS = pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])


class Counter:
    count = 0


def unless_it_shows(x, y, counter):
    """Raises unless a write to ``x`` is one to ``y``."""
    before = y._version
    counter.count += 1
    x.add_(1)
    if y._version == before:
        raise ValueError("not the same memory")
    return y * counter.count


def shared():
    base = torch.zeros(4)
    return base, base[:2]


@BACKENDS
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_error_that_eager_does_not_raise(backend, dynamic):
    mine, theirs = Counter(), Counter()
    compiled = funcaot.compile(unless_it_shows, backend=backend, dynamic=dynamic)
    for _ in range(3):
        inputs, others = shared(), shared()
        assert torch.equal(compiled(*inputs, mine), unless_it_shows(*others, theirs))
        assert torch.equal(inputs[0], others[0])
        assert mine.count == theirs.count
    with pytest.raises(ValueError, match="not the same"):
        compiled(torch.zeros(4), torch.zeros(2), mine)
    assert mine.count == theirs.count + 1
    assert torch.equal(compiled(*shared(), mine), torch.full((2,), 5.0))


@BACKENDS
def test_an_error_that_eager_raises_too(backend):
    def function(x, y, counter, *, fails):
        counter.count += 1
        x.add_(1)
        if fails:
            raise ValueError("as told")
        return y * 2

    counter, compiled = Counter(), funcaot.compile(function, backend=backend)
    for expected, fails in enumerate((True, True, False, True), 1):
        if fails:
            with pytest.raises(ValueError, match="as told"):
                compiled(*shared(), counter, fails=True)
        else:
            assert compiled(*shared(), counter, fails=False).tolist() == [2, 2]
        assert counter.count == expected


@BACKENDS
def test_writes_that_only_a_second_run_makes(backend):
    def function(x, y, z, w):
        before = y._version
        x.add_(1)
        if y._version != before:
            z.mul_(3)
        return w * 2 + y.sum()

    def inputs():
        base, other = torch.zeros(4), torch.ones(4)
        return base, base[:2], other, other[1:3]

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(3):
        ours, eager = inputs(), inputs()
        assert torch.equal(compiled(*ours), function(*eager))
        assert all(map(torch.equal, ours, eager))
    ours = (torch.zeros(4), torch.zeros(2), *inputs()[2:])
    assert compiled(*ours).tolist() == [2, 2]
