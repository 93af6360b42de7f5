"""Arguments that fake tensors take and eager doesn't, and the other way round."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER

X = torch.arange(6.0).reshape(3, 2)
TWO = torch.tensor([0, 2])
ONE = torch.tensor(1)
MASK = torch.tensor([True, False])
EMPTY = torch.zeros(4, 0, 2)
SPREAD = torch.arange(96.0).reshape(4, 4, 1, 2, 3)


def written(x, key, value):
    x = x.clone()
    x[key] = value
    return x


REFUSED = {
    "a row for all": lambda x: x.index_add(0, TWO, torch.ones(2)),
    "a row for all, in place": lambda x: x.clone().index_add_(0, TWO, torch.ones(2)),
    "a column for all": lambda x: x.index_add(0, TWO, torch.ones(2, 1)),
    "a number for one": lambda x: x[:, 0].index_add(0, ONE, torch.tensor(1.0)),
    "several of a number": lambda x: x[0, 0].index_add(0, TWO[:1], torch.ones(1)),
    "too few": lambda x: x.index_add(0, TWO, torch.ones(1, 2)),
    "a column for a slice": lambda x: x.slice_scatter(torch.ones(3, 1)),
    "a slice of a number": lambda x: x[0, 0].slice_scatter(x[0, 0]),
    "one for a diagonal": lambda x: x.diagonal_scatter(torch.ones(1)),
    "one for a row": lambda x: x.select_scatter(torch.ones(1), 0, 0),
    "a slice of no dimension": lambda x: x.slice_scatter(x, 2),
    "rows that are reduced": lambda x: x.index_reduce(0, TWO, torch.ones(2, 3), "amax"),
    "reduced along no dimension": lambda x: x.index_reduce(2, TWO, x[:2], "amax"),
    "two places for three": lambda x: x.put(TWO, torch.ones(3)),
    "a boundary": lambda x: torch.bucketize(x, x[0, 0]),
    "a short mask": lambda x: x[MASK] * 2,
    "a mask with other columns": lambda x: x[torch.ones(3, 3, dtype=torch.bool)],
    "a mask of bytes": lambda x: x[MASK.byte()],
    "a mask of columns": lambda x: x[..., torch.ones(3, dtype=torch.bool)],
    "a mask beside a list": lambda x: x[[True, False, True], MASK, None, MASK],
    "a mask that is written to": lambda x: written(x, MASK, torch.ones(2, 2)),
    "a number where a mask is": lambda x: written(x, MASK, 7),
    "the gradient of what a mask selects": lambda x: torch.func.grad(lambda x: x[MASK].sum())(x),
    "a value of another length": lambda x: written(x, TWO, torch.ones(3)),
    "a value with more rows": lambda x: written(x, (TWO, slice(None)), torch.ones(3, 2)),
    "a value of more dimensions": lambda x: x.clone().index_put_((ONE, ONE), torch.ones(1)),
    "a value for a list of truth": lambda x: written(x, [True, False, True], torch.ones(3, 2)),
    "a short list of truth": lambda x: x[[True, False]],
    "indexes of two lengths": lambda x: written(x, (torch.tensor([0, 1, 2]), TWO), 7),
    "three indexes of two": lambda x: x.index_put((ONE, ONE, ONE), torch.tensor(1.0)),
    "an index of nothing": lambda x: EMPTY[..., ONE, 1] + x[0, 0],
    "written to nothing": lambda x: written(EMPTY, (ONE, None, ONE), x[0, 0]),
    "a view across one": lambda x: (SPREAD + x[0, 0]).transpose(0, 1)[1].view(-1, 4),
    "a view of a given tensor": lambda x: x.t()[:, None].contiguous().transpose(0, 2).view(-1),
    "softmax of no dimension": lambda x: x.softmax(2),
    "sorted along no dimension": lambda x: x.sort(-3)[0],
    "the order along no dimension": lambda x: x.argsort(5),
    "a row of no dimension": lambda x: x.select(-4, 0),
}
TAKEN = {
    "one index": lambda x: x.index_add(0, ONE, torch.ones(1, 2)),
    "one index, in place": lambda x: x.clone().index_add_(0, ONE, torch.ones(1, 2)),
    "one index of the columns": lambda x: x.index_add(1, ONE, torch.ones(3, 1), alpha=2),
    "one element": lambda x: x[:, 0].index_add(0, ONE, torch.ones(1)),
    "a number": lambda x: x[0, 0].index_add(0, ONE * 0, torch.tensor(1.0)),
    "a slice": lambda x: x.slice_scatter(torch.ones(1, 2), 0, 1, 2),
    "a mask of rows": lambda x: x[torch.tensor([True, False, True])],
    "a mask of all": lambda x: x[torch.ones(3, 2, dtype=torch.bool)],
    "a mask behind others": lambda x: x[None, 1:, ..., MASK],
    "a list of truth": lambda x: x[[True, False, True], MASK],
    "a list of truth in a gradient": lambda x: torch.func.grad(
        lambda x: x[[True, False, True], [0, 1]].square().sum()
    )(x),
    "a list of lists of truth": lambda x: x[([[True, False], [False] * 2, [True, True]],)],
    "a mask without dimensions": lambda x: x[torch.tensor(True), MASK.new_ones(3)],
    "a value for all rows": lambda x: written(x, (TWO, slice(None)), torch.ones(1, 2)),
    "a value between": lambda x: written(x[:, None] * 1, (TWO, slice(None), TWO // 2), x[:2, :1]),
    "a view beside one": lambda x: (SPREAD * x[0, 0])[1].view(4, -1),
    "the last dimension": lambda x: x.softmax(-2) + x.sort(1)[0],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name, dynamic):
    function = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)) as eager:
        function(X)
    with pytest.raises(type(eager.value)) as ours:
        funcaot.compile(function, backend=COMPILER, dynamic=dynamic)(X.clone())
    assert str(ours.value).splitlines()[0] == str(eager.value).splitlines()[0]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes(name, dynamic):
    function = TAKEN[name]
    compiled = funcaot.compile(function, backend=COMPILER, dynamic=dynamic)
    for _ in range(2):
        x = X.clone().requires_grad_()
        assert_close(compiled(x), function(x))
        ours, expected = (torch.autograd.grad(f(x).sin().sum(), x)[0] for f in (compiled, function))
        assert_close(ours, expected)


WHOLE = torch.arange(4)
REAL = torch.linspace(0.1, 0.9, 4)
SQUARE = torch.linspace(0.1, 0.9, 16).reshape(4, 4)


def checked(x):
    torch._assert_async((x > 0).all(), "positive")
    return x * 2


# What kernels refuse and fake tensors don't, and some that both take.
OF_DTYPES = {
    "fractions of integers": lambda: WHOLE.frac(),
    "fractions of many": lambda: torch.zeros(300, 300, dtype=torch.int64).frac(),
    "selected by bytes": lambda: REAL.masked_select(WHOLE.byte()),
    "classes of int32": lambda: F.cross_entropy(SQUARE, WHOLE.int()),
    "classes of truth": lambda: F.cross_entropy(SQUARE, WHOLE > 0),
    "a weight of a group norm": lambda: F.group_norm(SQUARE, 2, REAL.double()),
    "a weight of a layer norm": lambda: F.layer_norm(SQUARE, (4,), REAL.double()),
    "statistics of a batch norm": lambda: F.batch_norm(SQUARE, REAL.double(), REAL.double()),
    "softmax of integers": lambda: WHOLE.softmax(0),
    "a target of a loss": lambda: F.binary_cross_entropy(REAL, WHOLE.double()),
    "pixels of int32": lambda: F.interpolate(SQUARE[None].to(torch.int32), 2),
    "an index of int8": lambda: SQUARE.index_select(0, WHOLE.to(torch.int8)),
    "an index of int32": lambda: SQUARE.index_select(0, WHOLE.int()),
    "a sum of two kinds": lambda: REAL + WHOLE,
    "bytes as a mask": lambda: torch.where(WHOLE > 1, REAL, WHOLE),
    "halves": lambda: SQUARE.half() @ SQUARE.half(),
    "sums of truth": lambda: (WHOLE > 1).cumsum(0),
    "rounded halves": lambda: REAL.bfloat16().exp(),
    "channels that aren't there": lambda: F.interpolate(
        EMPTY.movedim(1, 0)[None], (3, 3), mode="bilinear"
    ),
    "several": lambda: torch.cat([REAL, WHOLE, WHOLE > 1]),
}


def outcome(function, *args):
    """What it returns, or the kind and the first line of its error."""
    try:
        return function(*args)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.filterwarnings("ignore:.*dtype torch.uint8:UserWarning")
@pytest.mark.parametrize("name", OF_DTYPES)
def test_dtypes(name):
    function, compiled = OF_DTYPES[name], funcaot.compile(OF_DTYPES[name], backend=COMPILER)
    expected = outcome(function)
    for _ in range(2):
        ours = outcome(compiled)
        if isinstance(expected, tuple):
            assert ours == expected
        else:
            assert_close(ours, expected)


# Of values that eager refuses, given in the second call and not in the first.
OF_VALUES = {
    "classes": (lambda i: F.one_hot(i, 3), WHOLE[:3], WHOLE[1:]),
    "negative classes": (lambda i: F.one_hot(i, 4), WHOLE, -WHOLE),
    "rows": (lambda i: SQUARE.index_select(0, i), WHOLE, -WHOLE),
    "rows that are added": (lambda i: SQUARE.index_add(0, i, SQUARE), WHOLE, -WHOLE),
    "added in place": (lambda i: SQUARE.clone().index_add_(0, i, SQUARE), WHOLE, -WHOLE),
    "maxima": (lambda i: F.max_unpool1d(REAL[None], i[None], 2), WHOLE, -WHOLE),
    "input of a loss": (lambda p: F.binary_cross_entropy(p, REAL), REAL, REAL + 1),
    "target of a loss": (lambda p: F.binary_cross_entropy(REAL, p), REAL, REAL - 1),
    "places of zeros": (lambda i: torch.zeros(2, 4).scatter(0, i[None] // 2, 1.0), WHOLE, -WHOLE),
    "places beyond": (lambda i: i.new_zeros(2, 4).scatter_(1, i[None], 1), WHOLE, WHOLE + 1),
    "a check": (checked, REAL, -REAL),
}


@pytest.mark.parametrize(
    "backend",
    [pytest.param(COMPILER, id="hostile"), pytest.param("inductor", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", OF_VALUES)
def test_values(name, recorded, backend):
    function, right, wrong = OF_VALUES[name]
    compiled = funcaot.compile(function, backend=backend)
    right, wrong = right.clone(), wrong.clone()
    if recorded and right.is_floating_point():
        right.requires_grad_()
        wrong.requires_grad_()
    for _ in range(2):
        assert_close(compiled(right), function(right))
        with pytest.raises((RuntimeError, IndexError)):
            function(wrong)
        with pytest.raises((RuntimeError, IndexError)):
            compiled(wrong)
