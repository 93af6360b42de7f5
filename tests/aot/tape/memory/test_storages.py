"""Storages that are resized or too small: refused by name, or as in eager; never a crash."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

resize_bytes = torch.ops.inductor.resize_storage_bytes_


def freed(size=8, **options):
    tensor = torch.ones(size, **options)
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened(size=8):
    tensor = torch.ones(size)
    tensor.untyped_storage().resize_(8)
    return tensor


def fill_after_growing(x):
    resize_bytes(x, 32)
    with torch.no_grad():
        x.copy_(torch.ones(8))
    return x.sin()


def used_after_growing(x):
    x.untyped_storage().resize_(32)
    return x.fill_(2.0).sin()


def freed_after_use(x):
    result = x.sin()
    x.untyped_storage().resize_(0)
    return result


def freed_after_use_by_op(x):
    result = x.sin()
    resize_bytes(x, 0)
    return result


def own_freed(x):
    own = x * 2
    result = own.sin()
    own.untyped_storage().resize_(0)
    return result


def own_freed_by_op(x):
    own = x * 2
    result = own.sin()
    torch.ops.inductor.resize_storage_bytes_.default(own, 0)
    return result


def own_freed_and_made_again(x):
    own = x * 2
    own.untyped_storage().resize_(0)
    own.untyped_storage().resize_(32)
    return own.fill_(1)


def typed(x):
    x.storage().resize_(0)
    return x.shape[0]


def of_a_view(x):
    x[1:].untyped_storage().resize_(64)
    return x * 2


def of_data(x):
    result = x * 2
    x.data.untyped_storage().resize_(0)
    return result


def filled(x):
    x.untyped_storage().fill_(0)
    return x * 2


def copied(x):
    own = torch.empty(8)
    own.untyped_storage().copy_(x.untyped_storage())
    return own


def own_filled(x):
    own = x * 2
    own.untyped_storage().fill_(0)
    return own


def counted(x):
    return torch.ones(2) * x.untyped_storage().nbytes()


def set_to_its_storage(x):
    own = torch.empty(0)
    own.set_(x.untyped_storage())
    return own


OF_STORAGES = [
    fill_after_growing,
    used_after_growing,
    freed_after_use,
    freed_after_use_by_op,
    own_freed,
    own_freed_by_op,
    own_freed_and_made_again,
    typed,
    of_a_view,
    of_data,
    filled,
    copied,
    own_filled,
    counted,
    set_to_its_storage,
]


@pytest.mark.parametrize("function", OF_STORAGES)
@pytest.mark.parametrize("make", [torch.ones, freed], ids=["whole", "freed"])
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_done_to_a_storage_is_refused_by_name(function, make, grad):
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        x = make(8)
        before = x.untyped_storage().nbytes()
        x.requires_grad_(grad)
        with pytest.raises(UnsupportedError, match=rf"{function.__name__} (uses|resizes) the sto"):
            compiled(x)
        assert x.untyped_storage().nbytes() == before


def test_a_closed_over_storage_is_refused_by_name():
    kept = torch.ones(8)

    def function(x):
        result = x + kept
        kept.untyped_storage().resize_(0)
        return result

    with pytest.raises(UnsupportedError, match="uses the storage of a tensor it closes over"):
        funcaot.compile(function, backend="eager")(torch.ones(8))
    assert kept.tolist() == [1.0] * 8


def test_a_backward_that_frees_what_it_gets_is_refused():
    class Freeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            resize_bytes(grad, 0)
            return torch.ones(8)

    x = torch.ones(8, requires_grad=True)
    with pytest.raises(RuntimeError, match="resizes the storage"):
        (funcaot.compile(Freeing.apply, backend="eager")(x) * 3).sum().backward()


READING = {
    "read": lambda x, y: x.sin() + y.sum(),
    "part": lambda x, y: x[1:].sin() + y.sum(),
    "written": lambda x, y: x.fill_(1).shape[0] + y,
    "added to": lambda x, y: (x.add_(1), y * 2)[1],
    "copied to": lambda x, y: (x.copy_(torch.ones(8)), y * 2)[1],
}


@pytest.mark.parametrize("case", READING)
@pytest.mark.parametrize("make", [freed, shortened])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_memory_that_is_missing_is_not_used(case, make, backend):
    compiled = funcaot.compile(READING[case], backend=backend)
    for _ in range(2):
        with pytest.raises((UnsupportedError, RuntimeError), match=r"too small|out of bounds"):
            compiled(make(), torch.ones(2, requires_grad=True)[:1])
    assert isinstance(compiled(torch.ones(8), torch.ones(1)), torch.Tensor)


def test_missing_memory_that_is_closed_over():
    kept = freed()
    compiled = funcaot.compile(lambda x: x + kept, backend="eager")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="too small"):
            compiled(torch.ones(8))
    kept.untyped_storage().resize_(32)
    kept.fill_(2.0)
    assert compiled(torch.ones(8)).tolist() == [3.0] * 8


NOT_READING = {
    "untouched": lambda x, y: y.sin(),
    "shape": lambda x, y: y * x.shape[0],
    "alike": lambda x, y: y.sum() + torch.zeros_like(x),
    "new": lambda x, y: y.sum() + x.new_ones(3),
    "returned": lambda x, y: (x, y * 2),
}


@pytest.mark.parametrize("case", NOT_READING)
@pytest.mark.parametrize("make", [freed, shortened])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_missing_memory_that_nobody_uses(case, make, backend):
    function = READING.get(case) or NOT_READING[case]
    compiled = funcaot.compile(function, backend=backend)
    for scale in (1.0, 2.0, 3.0):
        found = []
        for call in (function, compiled):
            x, y = make(), torch.full((3,), scale, requires_grad=True)
            result = call(x, y)
            last = result[1] if isinstance(result, tuple) else result
            assert not isinstance(result, tuple) or result[0] is x
            last.sum().backward()
            found.append((last.detach(), y.grad, torch.tensor(x.untyped_storage().nbytes())))
        torch.testing.assert_close(found[1], found[0])


def test_set_to_what_was_freed_is_an_error():
    function = lambda x, y: x.set_(y) * 2  # noqa: E731
    for call in (function, funcaot.compile(function, backend="eager")):
        with pytest.raises(RuntimeError):
            call(torch.ones(8), freed())


def test_storages_of_what_the_function_made_can_be_asked_for_their_size():
    def function(x):
        return (x * 2).untyped_storage().nbytes() * x

    compiled = funcaot.compile(function, backend="eager")
    assert compiled(torch.ones(4)).tolist() == function(torch.ones(4)).tolist()
