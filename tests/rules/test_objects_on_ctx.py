"""An old-style forward keeps an object on ctx that holds tensors of the call."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


class Kept:
    def __init__(self, first, *others):
        self.first, self.scale = [first], 3
        self.others = {"all": others}
        self.writes = 0


class Slotted(Kept):
    __slots__ = ("beside",)


class Product(torch.autograd.Function):
    kind = Kept

    @classmethod
    def make(cls, *tensors):
        return cls.kind(*tensors)

    @staticmethod
    def forward(ctx, x, w):
        ctx.kept = Product.make(x, w, x.sin())
        ctx.again = [ctx.kept.first, ctx.kept]
        return x * w + ctx.kept.scale

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.kept.first
        w, sines = ctx.kept.others["all"]
        assert ctx.again[1].scale == 3
        return gradient * w + 0 * sines, gradient * x


class Writes(Product):
    @staticmethod
    def backward(ctx, gradient):
        ctx.kept.writes += 1
        return Product.backward(ctx, gradient)


def loss(x, w):
    return Product.apply(x, w).sin().sum()


def plain(x, w):
    return (x * w + 3).sin().sum()


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(f, (0, 1)),
    "vmap": lambda f: torch.func.vmap(torch.func.grad(f, (0, 1))),
    "jvp": lambda f: lambda x, w: torch.func.jvp(f, (x, w), (w, x)),
    "jacrev": lambda f: torch.func.jacrev(torch.func.grad(f), 1),
}
CALLED = {
    "compiled": lambda: funcaot.compile(loss, backend="eager"),
    "operator": lambda: lambda x, w: funcaot.custom_function_call(Product, x, w).sin().sum(),
}


@pytest.mark.parametrize("kind", [Kept, Slotted])
@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, called, kind, monkeypatch):
    monkeypatch.setattr(Product, "kind", kind)
    transform, function = TRANSFORMS[name], CALLED[called]()
    for seed in (0, 1):
        torch.manual_seed(seed)
        given = torch.randn(4).double(), torch.randn(4).double()
        if name == "vmap":
            given = torch.randn(3, 4).double(), torch.randn(3, 4).double()
        assert_close(transform(function)(*given), transform(plain)(*given))


def test_compiled_at_two_orders():
    compiled = funcaot.compile(loss, backend="eager")
    for seed in (0, 1):
        torch.manual_seed(seed)
        given = [torch.randn(4).double().requires_grad_() for _ in range(2)]
        found = []
        for function in (compiled, loss, plain):
            first = torch.autograd.grad(function(*given), given, create_graph=True)
            found.append(first)
        assert_close(found[0], found[1])
        assert_close(found[0], found[2])
        twice = [torch.autograd.grad(sum(map(torch.sum, each)), given) for each in found[:2]]
        assert_close(twice[0], twice[1])


def test_a_rule_that_changes_the_object_is_refused():
    x = torch.ones(3)
    function = lambda x: funcaot.custom_function_call(Writes, x, x).sum()  # noqa: E731
    with pytest.raises(UnsupportedError, match="changes a Kept that forward kept on ctx"):
        torch.func.grad(function)(x)
