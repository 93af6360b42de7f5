"""Functions that give out what they are given, wrapped or unwrapped: one memory, as in eager."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import funcaot
from funcaot.aot.subclasses.structure import leaves_of
from tests.aot.subclasses.kinds import TwoTensor, made, same, two
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore:To construct DTensor")


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Around(torch.autograd.Function):
    """A wrapper around what views of a tensor show."""

    @staticmethod
    def forward(ctx, x, view):
        ctx.view = view
        return TwoTensor(view(x), view(x))

    @staticmethod
    def backward(ctx, gradient):
        part = gradient.a if isinstance(gradient, TwoTensor) else gradient
        return ctx.view(part), None


class Inside(torch.autograd.Function):
    """A view of what is inside of a wrapper."""

    @staticmethod
    def forward(ctx, x, view):
        ctx.view = view
        return view(x.a)

    @staticmethod
    def backward(ctx, gradient):
        return TwoTensor(ctx.view(gradient), ctx.view(gradient)), None


class Tripled(torch.autograd.Function):
    """The tensors of its operand in a wrapper of its own, with another derivative."""

    @staticmethod
    def forward(ctx, x):
        return TwoTensor(x.a, x.b)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


VIEWS = {
    "the same": lambda x: x.view_as(x),
    "detached": lambda x: x.detach(),
    "turned": lambda x: x.t(),
    "turned and detached": lambda x: x.detach().t(),
}
PLAIN = {
    **{f"around, {name}": lambda x, _, v=view: Around.apply(x, v) for name, view in VIEWS.items()},
    "around, without a Function": lambda x, _: TwoTensor(x.detach().t(), x.detach().t() * 2),
    "around, and more": lambda x, _: (Around.apply(x, lambda y: y.detach()), x * 2),
    "from local": lambda x, mesh: DTensor.from_local(x, mesh, [Shard(0)]),
    "from local, and used": lambda x, mesh: ((y := DTensor.from_local(x, mesh, [Shard(0)])), y * 2),
}
WRAPPED = {
    f"inside, {name}": lambda x, _, v=view: Inside.apply(x, v) for name, view in VIEWS.items()
}
WRAPPED["parts turned"] = lambda x, _: TwoTensor(x.a.t(), x.b.detach().t())
WRAPPED["wrapped again"] = lambda x, _: Tripled.apply(x)
WRAPPED["wrapped again, and used"] = lambda x, _: ((y := Tripled.apply(x)), y.sin(), x * 2)
PLACED = {
    "to local": lambda x, _: x.to_local(),
    "to local, and more": lambda x, _: (x * 2, x.to_local()),
    "gathered": lambda x, _: x.full_tensor(),
    "placed as it is": lambda x, mesh: x.redistribute(mesh, x.placements),
}


def placed(mesh, kind):
    return lambda grad: DTensor.from_local(made(0, 3, 3, grad=False), mesh, [kind]).requires_grad_(
        grad
    )


def looks(value):
    """What autograd says of a tensor and of what is inside of it."""
    yield type(value), value.requires_grad, value.is_leaf, value._is_view()
    if is_traceable_wrapper_subclass(value):
        for name in value.__tensor_flatten__()[0]:
            if isinstance(part := getattr(value, name), torch.Tensor):
                yield from looks(part)


def values_of(value):
    return [leaf.detach().clone() for leaf in leaves_of(value)]


def told(function, x):
    """Results, gradients, and what becomes of both sides when one is written to."""
    result = function(x)
    results = list(result) if isinstance(result, tuple) else [result]
    seen = [list(looks(value)) for value in (x, *results)]
    found = [part for value in results for part in values_of(value)]
    if x.requires_grad:
        outputs = [value for value in results if value.requires_grad]
        given = [torch.ones_like(value) for value in outputs]
        found += torch.autograd.grad(outputs, x, given, allow_unused=True)
    for value in results:
        try:
            value.mul_(3)
        except RuntimeError as error:
            seen.append("is a view" if "is a view and is being" in str(error) else str(error))
    with torch.no_grad():
        x.mul_(2)
    found += [part for value in (x, *results) for part in values_of(value)]
    return seen, found


def check(function, make, *, backend):
    compiled = funcaot.compile(function, backend=backend)
    for grad in (False, True, True, False):
        (seen, found), (looked, wanted) = told(compiled, make(grad)), told(function, make(grad))
        assert seen == looked
        same(found, wanted)
    assert len(compiled.entries) == 2


@pytest.mark.parametrize("program", PLAIN)
def test_plain_tensors_that_are_wrapped(program, mesh):
    function = lambda x: PLAIN[program](x, mesh)  # noqa: E731
    check(function, lambda grad: made(0, 3, 3, grad=grad), backend=COMPILER)


@pytest.mark.parametrize("program", WRAPPED)
def test_wrapped_tensors_that_are_taken_out(program, mesh):
    function = lambda x: WRAPPED[program](x, mesh)  # noqa: E731
    check(function, lambda grad: two(0, 3, 3, grad=grad), backend=COMPILER)


@pytest.mark.parametrize("kind", [Replicate(), Shard(0), Partial()], ids=str)
@pytest.mark.parametrize("program", PLACED)
def test_distributed_tensors_that_are_taken_out(program, kind, mesh):
    function = lambda x: PLACED[program](x, mesh)  # noqa: E731
    check(function, placed(mesh, kind), backend=COMPILER)


def test_on_the_default_backend(mesh):
    def function(x):
        y = DTensor.from_local(x, mesh, [Shard(0)])
        return y, (y * 2).to_local() + 1, x * 3

    check(function, lambda grad: made(0, 3, 3, grad=grad), backend="inductor")
    check(lambda x: (x * 2, x.to_local()), placed(mesh, Shard(0)), backend="inductor")
