"""Situations between a wrapper and its user that other tables don't have, each against eager.

Gradients in other memory formats, tensors that are swapped, weights that are taken apart, views of
jagged tensors made in many ways, inner tensors of other sizes, results that only know a size.
"""

import functools

import pytest
import torch
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, return_and_correct_aliasing

import funcaot
from tests.aot.subclasses.kinds import Factor, TwoTensor, made, same
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
CHANNELS_LAST = torch.channels_last


def wrapped(seed, *shape, grad=True):
    return TwoTensor(
        made(seed, *shape, grad=False), made(seed + 50, *shape, grad=False)
    ).requires_grad_(grad)


class Rows(torch.Tensor):
    """A matrix, and a number for each of its rows, which has another size than the wrapper."""

    @staticmethod
    def __new__(cls, whole, each):
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=whole.dtype)

    def __init__(self, whole, each):
        self.whole, self.each = whole, each

    __repr__ = object.__repr__

    def __tensor_flatten__(self):
        return ["whole", "each"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Rows(inner["whole"], inner["each"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        found = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Rows)]
        plain = pytree.tree_map_only(Rows, lambda v: v.whole, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        each = found[0].each if func._schema.is_mutable else found[0].each * 2
        result = pytree.tree_map_only(torch.Tensor, lambda v: Rows(v, each), result)
        return return_and_correct_aliasing(func, args, kwargs or {}, result)


def jagged(seed, lengths=(2, 3, 1)):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = made(seed, sum(lengths), 4, grad=False)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


class Apart(torch.nn.Module):
    """A parametrization that keeps a wrapper as its inner tensors."""

    def forward(self, *inner):
        return TwoTensor(*inner)

    def right_inverse(self, value):
        return value.a.detach(), value.b.detach()


def taken_apart(seed):
    model = torch.nn.Linear(4, 4, bias=False)
    model.weight = torch.nn.Parameter(wrapped(seed, 4, 4))
    parametrize.register_parametrization(model, "weight", Apart())
    return model


def swapped(function, call):
    """A parameter that was swapped for another one, of another class in the second call."""
    holder = torch.nn.Linear(4, 4)
    with torch.no_grad():
        holder.weight.copy_(made(1, 4, 4, grad=False))
        holder.bias.zero_()
    x = made(call, 3, 4)
    with torch.no_grad():
        found = [function(holder, x)]
    other = torch.nn.Parameter(wrapped(call + 7, 4, 4))
    torch.utils.swap_tensors(holder.weight, other)
    found.append(function(holder, x))
    found += torch.autograd.grad(
        sum(value.sum() for value in found), [x, holder.weight, holder.bias], allow_unused=True
    )
    return found


def tangents_in(memory_format):
    """Gradients of images in a memory format, that of a wrapper and of what is inside."""

    def play(function, call):
        x = wrapped(call, 2, 3, 4, 4)
        y = function(x)
        given = TwoTensor(
            *(made(seed, 2, 3, 4, 4, grad=False).to(memory_format=memory_format) for seed in (1, 2))
        )
        return [y, *torch.autograd.grad(y, x, given)]

    return play


def of_one(make, order=1):
    """A function of one tensor, with derivatives."""

    def play(function, call):
        x = make(call)
        x = x if x.requires_grad or x.grad_fn is not None else x.requires_grad_()
        value = function(x)
        found = list(value) if isinstance(value, tuple | list) else [value]
        outputs = [v for v in found if isinstance(v, torch.Tensor) and v.requires_grad]
        for _ in range(order):
            if not outputs:
                break
            given = [torch.ones_like(v) for v in outputs]
            outputs = torch.autograd.grad(outputs, x, given, create_graph=True)
            found += outputs
            outputs = [v for v in outputs if v.requires_grad]
        return found

    return play


def without_gradient(make):
    def play(function, call):
        with torch.no_grad():
            value = function(make(call))
        return list(value) if isinstance(value, tuple | list) else [value]

    return play


def in_inference(make):
    def play(function, call):
        with torch.inference_mode():
            value = function(make(call))
        return [value.clone() if isinstance(value, torch.Tensor) else value]

    return play


def parametrized(function, call):
    model, x = taken_apart(call), made(call, 2, 4)
    y = function(model, x)
    leaves = [x, *model.parameters()]
    return [y, *torch.autograd.grad(y.sum(), leaves, allow_unused=True)]


def _view_of(x, name):
    """Jagged tensors that are views, made in the ways that torch's own tests of them list."""
    y = x * 1 if "computed" in name else x
    if "dense" in name:
        return torch.nested.nested_tensor_from_jagged(y.values(), x.offsets())
    if "of parts" in name:
        return torch.nested.narrow(
            made(9, 3, 6, 4, grad=False), 1, torch.tensor([0, 1, 2]), torch.tensor([2, 3, 1]),
            layout=torch.jagged,
        )  # fmt: skip
    return y.transpose(1, 2) if "turned" in name else y.unsqueeze(-1)


JAGGED_VIEWS = ("dense", "computed dense", "of parts", "turned", "computed turned", "unsqueezed")


SITUATIONS = {
    "channels last": (lambda x: x.sin() * 2, tangents_in(CHANNELS_LAST)),
    "contiguous": (lambda x: x.sin() * 2, tangents_in(torch.contiguous_format)),
    "made channels last": (
        lambda x: x.contiguous(memory_format=CHANNELS_LAST) * 2,
        tangents_in(CHANNELS_LAST),
    ),
    "swapped": (lambda module, x: module(x).sin(), swapped),
    "taken apart": (lambda module, x: module(x).cos(), parametrized),
    "inner tensors of other sizes": (
        lambda x: x.sin() * 2,
        of_one(lambda n: Rows(made(n, 3 + n, 4, grad=False), made(n, 3 + n, grad=False))),
    ),
    "an inner size is asked for": (
        lambda x: x * x.each.shape[0],
        of_one(lambda n: Rows(made(n, 3, 4, grad=False), made(n, 3 + n, grad=False))),
    ),
    "sizes are returned": (
        lambda x: (x * x.size(0), x.shape[0], x.numel()),
        of_one(lambda n: wrapped(n, 3 + n, 4)),
    ),
    "a size of its parts is returned": (
        lambda x: (x.a.shape[0], x.b.sin(), x * 2),
        of_one(lambda n: wrapped(n, 3 + n, 4)),
    ),
    "parts of two depths": (
        lambda x: (x.a.a.sin(), x.b * 2),
        without_gradient(lambda n: TwoTensor(wrapped(n, 3, 4), wrapped(n + 1, 3, 4))),
    ),
    "a part and the whole": (lambda x: (x.a + x.b, x.sin()), of_one(lambda n: wrapped(n, 3, 4))),
    "views of views": (
        lambda x: (x.view(-1).view(2, 6).t(), x.view(12).sin()),
        of_one(lambda n: wrapped(n, 3, 4)),
    ),
    "views without gradient": (
        lambda x: (x.view(-1), x.t()[1:]),
        without_gradient(lambda n: wrapped(n, 3, 4)),
    ),
    "inference mode": (lambda x: (x * 2).t(), in_inference(lambda n: wrapped(n, 3, 4))),
    "of a class with metadata, unwrapped": (
        lambda x: x.inner * x.factor,
        without_gradient(lambda n: Factor(made(n, 3, 4, grad=False), 2 + n % 2)),
    ),
    "turned into a plain one": (
        lambda x: torch.stack([x.a, x.b]).sum(0) + x.detach().a,
        without_gradient(lambda n: wrapped(n, 3, 4)),
    ),
    "is of the class": (
        lambda x: x * 2 if isinstance(x, TwoTensor) and not isinstance(x, Factor) else x * 3,
        of_one(lambda n: wrapped(n, 3, 4)),
    ),
    "asked what it wraps": (
        lambda x: x * len(x.__tensor_flatten__()[0]),
        of_one(lambda n: wrapped(n, 3, 4)),
    ),
    "traceable": (
        lambda x: x * (2 if is_traceable_wrapper_subclass(x) else 3),
        of_one(lambda n: wrapped(n, 3, 4)),
    ),
    **{
        f"jagged, {name}": (
            functools.partial(lambda name, x: _view_of(x, name).sin() * 2, name),
            of_one(lambda n: jagged(n, (2, 3, 1 + n))),
        )
        for name in JAGGED_VIEWS
        if name != "of parts"
    },
    **{
        f"jagged input, {name}": (
            lambda x: x.sin() * 2,
            of_one(
                functools.partial(lambda name, n: _view_of(jagged(n, (2, 3, 1 + n)), name), name)
            ),
        )
        for name in JAGGED_VIEWS
    },
}


def comparable(values):
    """Jagged tensors by what is inside of them."""
    found = []
    for value in values:
        nested = isinstance(value, torch.Tensor) and value.is_nested
        found += [value.values(), value.offsets(), value.dim()] if nested else [value]
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if "jagged" in n else n for n in SITUATIONS],
)
def test_as_in_eager(name):
    function, play = SITUATIONS[name]
    compiled = funcaot.compile(function, backend=COMPILER, fullgraph=True)
    for call in range(3):
        same(comparable(play(compiled, call)), comparable(play(function, call)))
