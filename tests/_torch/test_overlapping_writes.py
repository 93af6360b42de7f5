"""Writes to elements that share memory: each way of writing is refused."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

ZERO = torch.tensor([0])
WAYS = {
    "method": lambda x: x.mul_(2),
    "fill": lambda x: x.fill_(2),
    "overload": lambda x: torch.ops.aten.fill_.Scalar(x, 2),
    "augmented": lambda x: x.__iadd__(1),
    "set item": lambda x: x.__setitem__(ZERO, 1.0),
    "by index": lambda x: x.index_put_((ZERO,), torch.ones(1), accumulate=True),
    "masked": lambda x: x.masked_fill_(x > 0, 1.0),
    "list": lambda x: torch._foreach_mul_([x], [x.clone()]),
    "list of zeros": lambda x: torch._foreach_zero_([x]),
    "list of two": lambda x: torch._foreach_add_([torch.ones(2), x], 1.0),
    "data": lambda x: x.data.zero_(),
    "detached": lambda x: x.detach().zero_(),
    "initialization": lambda x: torch.nn.init.normal_(x),
    "out": lambda x: torch.mul(x.clone(), 2, out=x),
    "several outs": lambda x: torch.sort(x.clone(), out=(x, torch.empty(3, dtype=torch.long))),
    "list of outs": lambda x: torch.split_with_sizes_copy(
        x.repeat(2), [3, 3], out=[x, torch.empty(3)]
    ),
    "statistics": lambda x: torch.nn.functional.batch_norm(
        torch.ones(2, 3), x, torch.ones(3), training=True
    ),
    "another shape": lambda x: x.unsqueeze_(0).zero_(),
}
BACKENDS = pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_a_write_to_expanded_elements_is_refused(way, backend):
    def function(x):
        expanded = x.expand(3)
        WAYS[way](expanded)
        return expanded * 2

    # Some ops ask before they write, in a capture as in eager.
    refused = "in one place in memory|to a single memory location"
    with pytest.raises((UnsupportedError, RuntimeError), match=refused):
        funcaot.compile(function, backend=backend)(torch.full((1,), 0.5))


@BACKENDS
def test_a_backward_that_writes_to_expanded_elements_is_refused(backend):
    class Expands(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            expanded = grad.expand(3)
            torch._foreach_mul_([expanded], 2.0)
            return expanded

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(UnsupportedError, match="in one place in memory"):
        funcaot.compile(Expands.apply, backend=backend)(x).backward()


def test_the_shape_of_expanded_elements_may_change():
    def function(x):
        return x.expand(3).unsqueeze_(0).t_() * 2

    assert funcaot.compile(function, backend=COMPILER)(torch.ones(1)).shape == (3, 1)


@pytest.mark.parametrize("way", ["method", "masked", "out"])
def test_no_elements_share_memory(way):
    def function(x):
        expanded = x.expand(0, 3)
        WAYS[way](expanded)
        return expanded * 2

    x = torch.ones(1, 1)[:0]
    ours, expected = funcaot.compile(function, backend=COMPILER)(x), function(x)
    assert (ours.shape, ours.stride()) == (expected.shape, expected.stride())


ORDER = torch.tensor([1, 0, 2, 3])
OPS = {
    "multiply": lambda a, b: a.mul_(b),
    "copy": lambda a, b: a.copy_(b),
    "by a number": lambda a, b: a.div_(b[1]),
    "out": lambda a, b: torch.sin(b, out=a),
    "where": lambda a, b: torch.where(a > 2, a, b, out=a),
    "index": lambda a, b: a.index_add_(0, ORDER, b),
    "scatter": lambda a, b: a.scatter_(0, ORDER, b),
    "take": lambda a, b: torch.gather(b, 0, ORDER, out=a),
    "set item": lambda a, b: a.__setitem__(slice(0, 3), b[:3]),
    "masked": lambda a, b: a.masked_fill_(b > 3, 0.0),
    "joined": lambda a, b: torch.cat([b[:2], b[2:]], out=a),
    "sorted": lambda a, b: torch.sort(b, out=(a, torch.empty(0, dtype=torch.long))),
    "list": lambda a, b: torch._foreach_add_([a], [b], alpha=2.0),
}
PLACES = {
    "apart": lambda x: (x[:4], x[4:8]),
    "partly": lambda x: (x[:4], x[2:6]),
    "one place": lambda x: (x[:4], x[:4]),
    "between": lambda x: (x[:8:2], x[1:9:2]),
}


def outcome(function, *arguments):
    try:
        return function(*arguments).tolist()
    except RuntimeError as error:
        return str(error).partition(".")[0]


@pytest.mark.parametrize("op", OPS)
def test_a_write_to_what_is_read_raises_as_in_eager(op):
    for place in PLACES.values():

        def inside(x, place=place):
            x = x.clone()
            OPS[op](*place(x))
            return x

        def given(a, b):
            OPS[op](a, b)
            return a * 1

        for function, arguments in ((inside, lambda x: (x,)), (given, place)):
            compiled = funcaot.compile(function, backend=COMPILER)
            expected = outcome(function, *arguments(torch.arange(10.0)))
            for _ in range(2):
                assert outcome(compiled, *arguments(torch.arange(10.0))) == expected


@pytest.mark.parametrize("dynamic", [None, True])
def test_open_sizes_decide_what_meets(dynamic):
    def function(x):
        x = x.clone()
        x[:3].add_(x[x.shape[0] - 3 :])
        return x

    compiled = funcaot.compile(function, backend=COMPILER, dynamic=dynamic)
    for size in (7, 8, 9, 4, 5, 6, 10):
        x = torch.arange(float(size))
        assert outcome(compiled, x) == outcome(function, x)
    assert len(compiled.entries) == (1 if dynamic else 2)
