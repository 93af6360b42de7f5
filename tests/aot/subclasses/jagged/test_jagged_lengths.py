"""Lengths of jagged tensors: those with holes between rows, and what a tensor learns of its own."""

import random

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def padded(seed):
    """Values, where each row begins and how long it is."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows = 2 + seed % 2
    values = torch.randn(rows, 6, 3, generator=generator).requires_grad_()
    return (
        values,
        torch.tensor([draw.randint(0, 2) for _ in range(rows)]),
        torch.tensor([1, 4, 2][:rows]),
    )


def narrowed(x, starts, lengths):
    return torch.nested.narrow(x, 1, starts, lengths, layout=torch.jagged)


def both(x, starts, lengths):
    found = narrowed(x, starts, lengths)
    return found.sin() * 2, found.cos()


PROGRAMS = {
    "as it is": narrowed,
    "computed": lambda x, starts, lengths: narrowed(x, starts, lengths).sin() * 2,
    "from the first": lambda x, starts, lengths: narrowed(x, 0, lengths) * 2,
    "twice": both,
    "two": lambda *given: (narrowed(*given).sin(), narrowed(*given).cos()),
    "values": lambda *given: (narrowed(*given) * 2).values(),
    "sum": lambda *given: narrowed(*given).sum(-1),
}


def observed(function, seed):
    """What comes out, gradients, and what a write to the lengths does to results."""
    given = padded(seed)
    result = function(*given)
    results = result if isinstance(result, tuple) else (result,)
    seen = []
    for each in results:
        inner = [each]
        if each.is_nested:
            names = ("_offsets", "_lengths", "_min_seqlen_tensor", "_max_seqlen_tensor")
            inner = [each._values, *(getattr(each, name) for name in names)]
            seen.append((each.lengths() is given[2], each.shape == results[0].shape))
        seen += [(part.detach().clone(), part.stride(), part.shape) for part in inner]
    try:
        ones = [torch.ones_like(each) for each in results]
        seen += torch.autograd.grad(results, given[0], ones)
    except NotImplementedError as error:
        seen.append(torch.tensor(len(str(error))))
    given[2].fill_(1)
    return seen, [each.lengths().tolist() for each in results if each.is_nested]


@pytest.mark.parametrize("program", PROGRAMS)
def test_narrowed(program):
    compiled = funcaot.compile(PROGRAMS[program], backend="eager", fullgraph=True)
    for seed in (0, 1, 3):
        assert_close(observed(compiled, seed), observed(PROGRAMS[program], seed))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [COMPILER, "inductor"], ids=["hostile", "inductor"])
@pytest.mark.parametrize("program", ["computed", "twice"])
def test_narrowed_on_compilers(program, backend):
    compiled = funcaot.compile(PROGRAMS[program], backend=backend, fullgraph=True)
    for seed in (0, 1, 3):
        assert_close(observed(compiled, seed), observed(PROGRAMS[program], seed))


def jagged(lengths, seed=0):
    values = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(seed))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets).requires_grad_()


@pytest.mark.parametrize("function", [lambda x: x.mean(), lambda x: x * x.numel()], ids="mn")
def test_a_number_of_elements_between_holes_is_refused(function):
    compiled = funcaot.compile(lambda *given: function(narrowed(*given)), backend="eager")
    with pytest.raises(UnsupportedError, match="counts the elements of a jagged tensor with holes"):
        compiled(*padded(0))


KEEPING = {
    "softmax": lambda x: torch.softmax(x, 1),
    "softmax of it, summed": lambda x: torch.softmax(x, 1).sum(),
    "asked": lambda x: x.values() * x._get_max_seqlen() + x._get_min_seqlen(),
}


@pytest.mark.parametrize("program", KEEPING)
def test_a_length_that_was_asked_for_is_kept(program):
    """Which decides the size of what ``to_padded_tensor`` gives afterwards."""
    function = KEEPING[program]
    compiled = funcaot.compile(function, backend="eager", fullgraph=True)
    for lengths in ((2, 3), (4, 1, 3), (1, 4, 2)):
        seen = []
        for each in (compiled, function):
            x = jagged(lengths)
            result = each(x)
            result = result.values() if result.is_nested else result
            gradient = torch.autograd.grad(result.sin().sum(), x)[0].values()
            again = each(x)
            again = again.values() if again.is_nested else again
            kept = (x._max_seqlen_tensor, x._min_seqlen_tensor)
            shapes = [None if part is None else part.shape for part in kept]
            seen.append((result, gradient, again, shapes, x.to_padded_tensor(0.0)))
        assert seen[0][3] == seen[1][3]
        assert_close(seen[0][:3], seen[1][:3], rtol=1e-5, atol=1e-5)
        assert_close(seen[0][4], seen[1][4])
    assert "item" in str(funcaot.report(compiled))
