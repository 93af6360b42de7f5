"""Results that are, or share memory with, what is inside of a wrapper: as in eager, also later."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import funcaot
from tests.aot.subclasses.kinds import Factor, TwoTensor, made, two
from tests.hostile import COMPILER


def pair():
    return two(0, 3, 4)


def constant_pair():
    return two(0, 3, 4, grad=False)


def nested():
    return TwoTensor(constant_pair(), two(5, 3, 4, grad=False)).requires_grad_()


def jagged(lengths=(2, 3, 1), *, grad=True):
    parts = [made(i, length, 4, grad=False) for i, length in enumerate(lengths)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def one_with_metadata():
    return Factor(made(0, 3, grad=False), 2).requires_grad_()


def without_grad(x):
    with torch.no_grad():
        return x[0], x.a[0], x.unbind()[1]


PROGRAMS = {
    "a part": (lambda x: x.a, pair),
    "a part twice, and with others": (lambda x: (x.a, x.a, x.b, x * 2), pair),
    "views of a part": (lambda x: (x.a[0], x.a.t(), x.b.view(-1)), pair),
    "a part detached": (lambda x: (x.a.detach(), x.b.data, x.a[1].detach()), pair),
    "a part that was written to": (lambda x: (x.a.add_(1), x.a[0], x + 1), constant_pair),
    "parts of parts": (lambda x: (x.a, x.a.b, x.b.b[0]), nested),
    "a view of a wrapper inside": (lambda x: x.a[0], nested),
    "views of a wrapper inside": (lambda x: (x.a.t(), x.b.view(-1), x.a[1:].t()), nested),
    "a view of a wrapper inside, written to": (lambda x: (x.a[0].mul_(2), x * 2), nested),
    "pieces of a wrapper inside": (lambda x: x.a.split(2, 1), nested),
    "wrapped again": (lambda x: TwoTensor(x.a, x.b), pair),
    "wrapped again without gradients": (lambda x: TwoTensor(x.a, x.b), constant_pair),
    "wrapped again with other metadata": (lambda x: Factor(x.inner, 3), one_with_metadata),
    "detached, and data": (lambda x: (x.detach(), x.data, x + 1), pair),
    "data of a jagged one": (lambda x: (x.data, x.detach()), jagged),
    "wrapped the other way round": (lambda x: TwoTensor(x.b, x.a), pair),
    "unbind": (lambda x: x.unbind(), pair),
    "split": (lambda x: (x.split(2, 1), x * 2), pair),
    "chunks of a result": (lambda x: ((y := x * 2), y.chunk(2)), pair),
    "views without gradients": (without_grad, pair),
    "rows": (lambda x: x.unbind(), jagged),
    "rows of a constant": (lambda x: (x.unbind(), x * 2), lambda: jagged(grad=False)),
    "rows of a result": (lambda x: [row + 1 for row in (x * 2).unbind()], jagged),
    "chunks of a jagged one": (lambda x: x.chunk(2, -1), jagged),
    "offsets": (lambda x: (x.offsets(), x.offsets()[1:], x.offsets() + 1), jagged),
    "values and a row": (lambda x: (x.values(), x[1]), jagged),
}


def values_of(thing):
    """The plain tensors that tell what tensors hold."""
    for leaf in tree_leaves(thing):
        if isinstance(leaf, torch.Tensor) and leaf.is_nested:
            leaf = leaf.values()
        if isinstance(leaf, TwoTensor | Factor):
            yield from values_of([getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]])
        elif isinstance(leaf, torch.Tensor):
            yield leaf.detach().clone()


def looks(result, x):
    """What results are, but for the names of nodes that a program has others for."""
    leaves = tree_leaves(result)
    own = {name: getattr(x, name) for name in x.__tensor_flatten__()[0]}
    for leaf in leaves:
        yield type(leaf), leaf.requires_grad, leaf.is_leaf, leaf._is_view(), _version(leaf)
        yield leaf is x, leaf._base is x, [leaf is part for part in own.values()]
        yield [leaf is other for other in leaves]


def told(function, make):
    """Results, gradients, and what becomes of all that share memory when one is written to."""
    x = make()
    result = function(x)
    seen = [*looks(result, x)]
    found = [*values_of([result, x])]
    leaves = [leaf for leaf in tree_leaves(result) if leaf.requires_grad]
    if leaves:
        plain = [leaf.values() if leaf.is_nested else leaf for leaf in leaves]
        total = sum((leaf * leaf).sum() for leaf in plain)
        grad = torch.autograd.grad(total, x, allow_unused=True)[0]
        found += values_of([grad])
    for leaf in tree_leaves(result):
        if not leaf.is_nested and leaf.is_floating_point():
            with torch.no_grad():
                leaf.mul_(1.5)
            found += values_of([result, x])
            seen += map(_version, tree_leaves(result))
            if leaf._is_view():
                seen += [_told_by_a_write(leaf)]
    return seen, found


def _version(leaf):
    """How often a view was written to: what a compiler makes may have been written to by it."""
    return leaf._version if leaf._is_view() else 0


def _told_by_a_write(leaf):
    try:
        leaf.add_(1)
    except RuntimeError as error:
        return str(error).split(",")[0]
    return leaf.grad_fn is not None


def is_alike(compiled, function, make):
    seen, values = told(compiled, make)
    wanted, expected = told(function, make)
    assert seen == wanted
    assert_close(values, expected)


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for _ in range(3):
        is_alike(compiled, function, make)
    assert len(compiled.entries) == 1


@pytest.mark.slow
@pytest.mark.parametrize("program", ["parts of parts", "split", "rows", "offsets"])
def test_on_the_default_backend(program):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function)
    for _ in range(2):
        is_alike(compiled, function, make)


def test_other_numbers_of_rows():
    def function(x):
        return [row * 2 for row in x.unbind()], x.unbind()[-1]

    compiled = funcaot.compile(function, backend=COMPILER)
    for lengths in [(2, 3, 1), (4, 1, 2), (2, 2), (1, 2, 3, 4), (5, 1, 1)]:
        is_alike(compiled, function, partial(jagged, lengths))
