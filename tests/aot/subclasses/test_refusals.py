"""What can't be done with wrappers is refused by name, and nothing has happened then."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import funcaot
from funcaot.aot.subclasses.structure import leaves_of
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import TwoTensor, same, two


def pair(grad=False):
    return two(0, 3, 4, grad=grad)


def tagged():
    x = pair()
    x.tag = 5
    return x


class Unfaithful(TwoTensor):
    """Its strides get lost."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Unfaithful(inner["a"].contiguous(), inner["b"].contiguous())


class Inherited(TwoTensor):
    """Its results are of its class, and what is made of their parts isn't."""


class TensorsInMetadata(TwoTensor):
    def __tensor_flatten__(self):
        return ["a", "b"], torch.ones(3)


REFUSED = {
    "another inner tensor": (
        lambda x: (setattr(x, "a", x.a * 2), x * 2)[1],
        lambda: (pair(),),
        "writes to argument 0",
    ),
    "write to what has gaps and another order": (
        lambda x: x.add_(1),
        lambda: (TwoTensor(torch.ones(3, 4)[:, :2].t(), torch.ones(3, 4)[:, :2].t()),),
        "writes to argument 0",
    ),
    "written part passed on": (
        lambda x: (x.add_(1), TwoTensor(x.a, x.b * 2))[1],
        lambda: (pair(),),
        "shares memory with a part of",
    ),
    "write to shared memory": (
        lambda x, y: (y.mul_(2), x * 2)[1],
        lambda: ((x := pair()), x.a[:]),
        r"Inputs 0 \(a TwoTensor\), 1 \(a Tensor\) share memory",
    ),
    "view of a detached input": (
        lambda x: x.detach().t(),
        lambda: (pair(),),
        "shares memory with a part of",
    ),
    "a leaf that is used": (
        lambda x: (y := (x * 2).detach().requires_grad_(), y * 2),
        lambda: (pair(),),
        "leaf that requires grad",
    ),
    "attribute of a result": (
        lambda x: (setattr(y := x * 2, "tag", 3), y)[1],
        lambda: (pair(),),
        "sets an attribute",
    ),
    "attribute of an argument": (
        lambda x: (setattr(x, "tag", 3), x * 2)[1],
        lambda: (pair(),),
        "sets an attribute",
    ),
    "hook on an argument": (
        lambda x: (x.register_hook(print), x * 2)[1],
        lambda: (pair(grad=True),),
        "registers a hook",
    ),
    "attribute that is there": (lambda x: x * 2, lambda: (tagged(),), "doesn't give back: tag"),
    "strides that get lost": (
        lambda x: x * 2,
        lambda: (Unfaithful(torch.ones(2, 3).t(), torch.ones(2, 3).t()),),
        "A Unfaithful of stride",
    ),
    "class that gets lost": (
        lambda x: x * 2,
        lambda: (Inherited(torch.ones(3), torch.ones(3)),),
        "makes a TwoTensor",
    ),
    "class of what is made inside that gets lost": (
        lambda x: Inherited(x * 2, x * 3),
        lambda: (torch.ones(3),),
        "makes a TwoTensor",
    ),
    "tensors in metadata": (
        lambda x: x * 2,
        lambda: (TensorsInMetadata(torch.ones(3), torch.ones(3)),),
        "gives a tensor as metadata",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_by_name(what):
    function, make, message = REFUSED[what]
    compiled = funcaot.compile(function, backend="eager")
    arguments, untouched = make(), make()
    with pytest.raises(UnsupportedError, match=rf"(?s){message}.*Instead"):
        compiled(*arguments)
    for found, wanted in zip(arguments, untouched, strict=True):
        same(list(leaves_of(found)), list(leaves_of(wanted)))


def test_a_write_to_an_inner_tensor_of_a_wrapper_that_is_passed_alone():
    def function(x):
        x.a[0].mul_(2)
        return x.a * 3, x * 2

    compiled = funcaot.compile(function, backend="eager")
    for call in range(3):
        both = []
        for each in (compiled, function):
            x = two(call, 3, 4, grad=False)
            inner = x.a
            both.append([each(x), x, inner])
        same(*both)


def pushed_through_a_backward(function):
    x = two(0, 3)
    y = function(x)

    def gradient(v):
        return torch.autograd.grad(y, x, v, retain_graph=True)[0]

    return torch.func.jvp(gradient, (torch.ones(3),), (torch.ones(3),))


def test_derivatives_at_a_level_whose_forward_ran_below():
    compiled = funcaot.compile(lambda x: x.sin().exp(), backend="eager")
    with pytest.raises(UnsupportedError, match=r"(?s)tensor subclass.*Instead"):
        pushed_through_a_backward(compiled)


class Ops(TorchDispatchMode):
    """Notes the ops that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_dispatch_modes_see_what_they_see_in_eager():
    def function(x, y):
        return (x @ y).relu()

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        counts, seen = [], []
        for each in (compiled, function):
            x, y = two(0, 3, 4), two(1, 4, 5)
            with FlopCounterMode(display=False) as flops:
                each(x, y).sum().backward()
            with Ops() as ops:
                result = each(x, y)
                torch.autograd.grad(result.sum(), x)
            counts.append(flops.get_total_flops())
            seen.append(ops.seen)
        assert counts[0] == counts[1] > 0
        assert seen[0] == seen[1]
        same(compiled(x, y), function(x, y))


def test_a_backward_under_a_mode_whose_forward_ran_before():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    for _ in range(2):
        x = two(0, 3, 4)
        y = compiled(x).sum()
        with Ops(), pytest.raises(UnsupportedError, match=r"(?s)TorchDispatchMode.*Instead"):
            y.backward()
        y = compiled(x).sum()
        y.backward()
        same(x.grad, two(0, 3, 4).detach().cos())


def test_fake_tensors_inside_of_wrappers():
    compiled = funcaot.compile(lambda x: x.sin() * 2, backend="eager")
    with FakeTensorMode():
        x = TwoTensor(torch.empty(3, 4), torch.empty(3, 4))
        assert compiled(x).shape == (3, 4)
    assert not compiled.entries
