"""``as_strided`` on the default backend: what it shows doesn't depend on where things lie."""

import pytest
import torch
from torch.testing import assert_close

import funcaot

# Sizes, strides and an offset, in or out of a storage of 24 elements.
WINDOWS = [
    ((4,), (1,), None),
    ((4,), (1,), 0),
    ((4,), (1,), 5),
    ((3,), (2,), 3),
    ((2, 3), (3, 1), None),
    ((2, 3), (3, 1), 6),
    ((3, 2), (1, 3), 2),
    ((3, 4), (2, 1), 1),
    ((2, 2, 2), (5, 2, 1), 0),
    ((3, 3), (1, 1), None),
    ((3, 4), (0, 1), 4),
    ((2, 3), (1, 0), 4),
    ((1, 3), (7, 1), 4),
    ((0, 3), (3, 1), 0),
    ((), (), 7),
    ((), (), None),
]

# What it is called on, made of a tensor (4, 6).
SOURCES = {
    "itself": lambda x: x,
    "a row": lambda x: x[1],
    "columns": lambda x: x[:, 1:4],
    "transposed": lambda x: x.t(),
    "rows of the transposed": lambda x: x.t()[2:],
    "flat": lambda x: x.reshape(-1)[3:],
    "viewed": lambda x: x[1:].reshape(3, 2, 3)[:, 1],
    "expanded": lambda x: x[:1].expand(4, 6),
    "a piece": lambda x: x.split(2)[1],
}
MAKERS = {
    "input": lambda x: x,
    "intermediate": lambda x: x * 2,
    "transposed intermediate": lambda x: (x.t().contiguous() * 2).t(),
    "matrix product": lambda x: x @ torch.eye(6, dtype=x.dtype),
}


def windows_of(source, maker):
    """A function that returns all windows of a source, those that eager refuses left out."""
    good = []
    for window in WINDOWS:
        try:
            SOURCES[source](MAKERS[maker](torch.ones(4, 6))).as_strided(*window)
        except RuntimeError:
            continue
        good.append(window)
    assert len(good) > 5

    def function(x):
        view = SOURCES[source](MAKERS[maker](x))
        return [view.as_strided(*window) + 1 for window in good]

    return function


def placed(begin):
    """A tensor that begins somewhere in its memory."""
    return torch.randn(begin + 26, dtype=torch.float64)[begin : begin + 24].view(4, 6)


FAST = {("a row", "intermediate"), ("viewed", "transposed intermediate"), ("flat", "input")}
ALL = [
    pytest.param(source, maker, marks=() if (source, maker) in FAST else pytest.mark.slow)
    for source in SOURCES
    for maker in MAKERS
]


@pytest.mark.parametrize(("source", "maker"), ALL)
def test_what_it_shows(source, maker):
    function = windows_of(source, maker)
    compiled = funcaot.compile(function)
    for begin in (0, 0, 2):
        x = placed(begin)
        assert_close(compiled(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("explicit", [False, True])
def test_open_sizes(explicit):
    def function(x):
        y = x * 2
        count = y.shape[0] - 4
        places = (2,) if explicit else ()
        return y[1:].as_strided((count, 3), (1, 1), *places) + 1

    compiled = funcaot.compile(function, dynamic=True)
    for size in (12, 15):
        x = torch.randn(size)
        assert_close(compiled(x), function(x))
    assert funcaot.report(compiled).cache_misses == 1


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_open_sizes_of_what_has_no_order_in_memory():
    def function(x):
        return torch.view_as_real(x * 2)[1:].flatten().as_strided((3,), (1,), 4) + 1

    compiled = funcaot.compile(function, dynamic=True)
    for size in (12, 15):
        x = torch.randn(size, dtype=torch.complex64)
        assert_close(compiled(x), function(x))


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("source", SOURCES)
def test_gradients(source, maker):
    function = windows_of(source, maker)

    def loss(run, x):
        return sum(((i + 1) * out.sin()).sum() for i, out in enumerate(run(x)))

    compiled = funcaot.compile(function)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert_close(*(torch.autograd.grad(loss(run, x), x) for run in (compiled, function)))
