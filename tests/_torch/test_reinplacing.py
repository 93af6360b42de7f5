"""What is written in place doesn't read what it overwrites, whatever Inductor makes of copies."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER


def by_index(x):
    y = x.sin()
    y[torch.arange(11, -1, -1)] = y.clone()
    return y


def by_own_values(x):
    y = x.argsort(descending=True)
    return y.put_(y.clone(), y * 2)


def through_a_view(x):
    y = x.sin()
    y.view(3, 4)[torch.tensor([2, 0, 1])] = y.view(3, 4).clone()
    return y


def shifted(x):
    y = x.sin()
    y[1:] = y[:-1].clone()
    return y


def shifted_back(x):
    y = x.sin().view(3, 4)
    y[:-1] = y[1:] + 0
    return y


def diagonals(x):
    y = (x[:9] * 2).view(3, 3)
    y.diagonal().copy_(y[0].clone())
    return y


def scattered(x):
    y = x.cos()
    return y.scatter_(0, torch.arange(11, -1, -1), y.clone())


def masked_in_what_is_expanded(x):
    y = x.sum().expand(12)
    return y.index_put((x > 0.5,), x.new_zeros(()))


def indexed_in_what_is_expanded(x):
    y = x[:3].sin().expand(4, 3)
    return y.index_put((torch.tensor([1, 3]),), x[:3])


def added_to_what_is_expanded(x):
    return x.new_full((), 2.0).expand(12).index_add(0, torch.tensor([1, 3, 1]), x[:3])


def masked_before_a_gradient(x):
    def loss(y):
        y = y.clone()
        y[y > 0.5] = 0
        return y.sum()

    return torch.func.grad(loss)(x)


def in_an_input(x):
    z = x.clone()
    z[torch.arange(11, -1, -1)] = z * 1
    x.copy_(z)
    return x.sum()


FUNCTIONS = [
    by_index,
    by_own_values,
    through_a_view,
    shifted,
    shifted_back,
    diagonals,
    scattered,
    masked_in_what_is_expanded,
    indexed_in_what_is_expanded,
    added_to_what_is_expanded,
    masked_before_a_gradient,
    in_an_input,
]


def everything(x):
    return [function(x.clone()) for function in FUNCTIONS], in_an_input(x)


@pytest.mark.parametrize("backend", ["inductor", COMPILER], ids=["inductor", "hostile"])
@pytest.mark.parametrize("grad", [False, True])
def test_reads_come_before_writes(backend, grad):
    compiled = funcaot.compile(everything, backend=backend)
    for scale in (1.0, 0.5):
        leaf = torch.linspace(0.1, scale, 12, dtype=torch.float64, requires_grad=grad)
        mine, other = leaf.clone(), leaf.clone()
        results, expected = compiled(mine), everything(other)
        assert_close(results, expected)
        assert_close(mine, other)
        if grad:
            outputs = [[y for y in [*r[0], r[1]] if y.requires_grad] for r in (results, expected)]
            found, wanted = (
                torch.autograd.grad([(y * y).sum() for y in made], leaf) for made in outputs
            )
            assert_close(found, wanted)


def integers(x):
    return x.view(torch.int32)


def rows(x):
    return x.unsqueeze(0)[:, 1:].view(torch.int32)


def there_and_back(x):
    return x.view(torch.int32).view(x.dtype)


def pairs(x):
    return torch.view_as_real(torch.view_as_complex(x.view(-1, 2)))


READ = [integers, rows, there_and_back, pairs]
WRITTEN = {
    "index_put": lambda y: y.index_put((torch.tensor([0]),), y.new_tensor(7)),
    "scatter": lambda y: y.scatter(0, torch.zeros_like(y, dtype=torch.int64), y + 1),
    "index_add": lambda y: y.index_add(0, torch.tensor([0]), torch.ones_like(y[:1])),
    "index_fill": lambda y: y.index_fill(0, torch.tensor([0]), 7),
}


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("backend", ["inductor", COMPILER], ids=["inductor", "hostile"])
@pytest.mark.parametrize("read", READ)
def test_what_is_read_as_another_dtype_is_left(read, backend):
    """Once its strides are made certain by an op that may give back what it was given."""

    def function(x):
        computed = x * 2
        outputs = [computed + 1, x + 1]
        for source in (x, computed):
            outputs += [write(read(source)) for write in WRITTEN.values()]
        return outputs

    x = torch.arange(8.0, dtype=torch.float64)
    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        given = x.clone()
        assert_close(compiled(given), function(x), rtol=0, atol=0)
        assert given.equal(x)


COMPLEX = {
    **WRITTEN,
    "index_put_": lambda y: y.index_put_((torch.tensor([0]),), y.new_tensor(7)),
    "where": lambda y: y.__setitem__(y.real > 1, 7) or y,
    "foreach": lambda y: torch._foreach_mul_([y, y.clone()], 2) or y,
}


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("backend", ["inductor", COMPILER], ids=["inductor", "hostile"])
def test_complex_numbers_are_written_in_memory_that_is_still_theirs(backend):
    """Inductor has no code for them: it gave that memory to what came after."""

    def function(x):
        written = [write(x.to(torch.complex128)) for write in COMPLEX.values()]
        return [*written, x.to(torch.complex128)]

    x = torch.arange(4.0, dtype=torch.float64)
    assert_close(funcaot.compile(function, backend=backend)(x), function(x), rtol=0, atol=0)
