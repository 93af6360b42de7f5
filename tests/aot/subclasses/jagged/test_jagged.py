"""torch's jagged nested tensors."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import made

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
F = torch.nn.functional


def jagged(seed, lengths=(2, 3, 1), width=4):
    parts = [made(seed + i, length, width, grad=False) for i, length in enumerate(lengths)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def two_of_one_shape():
    first = jagged(0)
    second = torch.nested.nested_tensor_from_jagged(made(5, 6, 4, grad=False), first.offsets())
    return first, second.requires_grad_()


def offsets():
    return torch.tensor([0, 2, 5, 6])


def from_jagged(values, at):
    return torch.nested.nested_tensor_from_jagged(values, at) * 2


def heads(x):
    return (x.unflatten(-1, (2, 2)).transpose(1, 2) * 2).transpose(1, 2)


PROGRAMS = {
    "pointwise": (lambda x: x.sin() * 2, lambda: (jagged(0),)),
    "linear": (
        lambda x, w, b: F.linear(x, w, b).relu(),
        lambda: (jagged(0), made(7, 5, 4), made(8, 5)),
    ),
    "two of one shape": (lambda x, y: x * y.sin(), two_of_one_shape),
    "values": (lambda x: (x * 2).values().sum(0), lambda: (jagged(0),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (jagged(0),)),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), lambda: (jagged(0),)),
    "heads": (heads, lambda: (jagged(0),)),
    "padded": (lambda x: x.to_padded_tensor(0.0) * 2, lambda: (jagged(0),)),
    "made inside": (from_jagged, lambda: (made(0, 6, 4), offsets())),
    "offsets passed, too": (
        lambda x, at: x + torch.nested.nested_tensor_from_jagged(x.values() * 2, at),
        lambda: ((x := jagged(0)), x.offsets()),
    ),
}


def alike(found, wanted):
    assert type(found) is type(wanted)
    assert found.requires_grad == wanted.requires_grad
    if wanted.is_nested:
        assert_close(found.offsets(), wanted.offsets())
        found, wanted = found.values(), wanted.values()
    # Compiled code sums in another order.
    assert_close(found, wanted, rtol=1e-5, atol=1e-5)


# Torch has no second derivative of these for jagged tensors.
ONCE = ("layer norm", "padded")


def derivatives(function, make, *, once=False):
    arguments = make()
    result = function(*arguments)
    wanted = [x for x in arguments if x.requires_grad]
    first = torch.autograd.grad(result, wanted, torch.ones_like(result), create_graph=not once)
    moving = [each for each in first if each.requires_grad]
    if not moving:
        return result, *first
    total = sum((each.values() if each.is_nested else each).pow(2).sum() for each in moving)
    return result, *first, *torch.autograd.grad(total, wanted, allow_unused=False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        both = [derivatives(f, make, once=program in ONCE) for f in (compiled, function)]
        for found, wanted in zip(*both, strict=True):
            alike(found, wanted)
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("program", ONCE)
def test_what_torch_differentiates_once(program):
    function, make = PROGRAMS[program]
    for each in (function, funcaot.compile(function, backend="eager")):
        with pytest.raises(RuntimeError):
            derivatives(each, make)


def test_results_go_together_with_what_they_were_made_of():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    for seed in range(3):
        x = jagged(seed)
        assert compiled(x).shape == x.shape
        alike(compiled(x) + x, x.sin() + x)


def test_a_backward_that_is_traced_in_a_later_call():
    function = PROGRAMS["pointwise"][0]
    compiled = funcaot.compile(function, backend="eager")
    compiled(jagged(0))
    for seed in range(1, 3):
        found = derivatives(compiled, lambda s=seed: (jagged(s),))
        wanted = derivatives(function, lambda s=seed: (jagged(s),))
        for one, other in zip(found, wanted, strict=True):
            alike(one, other)


def test_gradients_of_another_raggedness_are_refused_as_in_eager():
    compiled = funcaot.compile(PROGRAMS["pointwise"][0], backend="eager")
    x = jagged(0)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        torch.autograd.grad(compiled(x), x, torch.ones_like(jagged(0, (1, 4, 1))))


def test_ops_that_torch_lacks():
    x = jagged(0)
    summed = funcaot.compile(lambda x: x.sum(1), backend="eager")(x)
    with pytest.raises(NotImplementedError, match="_nested_sum_backward"):  # eager's own
        torch.autograd.grad(summed.sum(), x)
    means = funcaot.compile(lambda x: x.mean(1), backend="eager")(x)
    with pytest.raises(UnsupportedError, match="ragged size"):  # eager fails, too
        torch.autograd.grad(means.sum(), x)


def test_strided_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(UnsupportedError, match="a nested tensor"):
        funcaot.compile(lambda x: x * 2, backend="eager")(nested)


@pytest.mark.parametrize("grad", [True, False])
def test_dropout_that_drops_nothing_is_a_copy(grad):
    """Of other tensors it is the argument itself."""

    def function(x):
        return F.dropout(x, 0.5, training=False)

    for each in (function, funcaot.compile(function, backend="eager")):
        x = jagged(0).requires_grad_(grad)
        found = each(x)
        assert found is not x
        with torch.no_grad():
            found.mul_(2)
        assert_close(x.values(), jagged(0).values())
