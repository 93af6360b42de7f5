"""Functions of users that take wrappers, make them, or reach them by themselves."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import TwoTensor, made, same, two
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("error::UserWarning")
KINDS = {"plain": made, "two": two}


def reaching(kept, where):
    """A Function that finds a tensor by itself, in forward, in backward or in both."""

    class Reaching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * kept if "f" in where else x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * kept if "b" in where else gradient * 2

    return Reaching


@pytest.mark.parametrize("where", ["f", "b", "fb"])
@pytest.mark.parametrize("held", KINDS)
@pytest.mark.parametrize("given", KINDS)
def test_tensors_that_a_function_finds_by_itself(given, held, where):
    kept = KINDS[held](3, 3, 4, grad=False)
    function = reaching(kept, where)

    def model(x):
        return function.apply(x).sin()

    def step(x):
        return torch.autograd.grad(model(x).sum(), x)

    compiled, whole = (funcaot.compile(each, backend="eager") for each in (model, step))
    for seed in range(3):
        x, y = (KINDS[given](seed, 3, 4) for _ in range(2))
        found, wanted = compiled(x), model(y)
        same(found, wanted)
        same(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), y))
        same(whole(x), step(y))
        kept.mul_(2)
    assert len(compiled.entries) == len(whole.entries) == 1


class Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return TwoTensor(a, b)

    @staticmethod
    def backward(ctx, gradient):
        if isinstance(gradient, TwoTensor):
            return gradient.a, gradient.b
        return gradient, gradient * 3


class WrapAndSetUp(torch.autograd.Function):
    @staticmethod
    def forward(a, b):
        return TwoTensor(a * 2, b * 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        a, _ = ctx.saved_tensors
        return gradient.a * 2 + 0 * a, gradient.b


class Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.a, x.b

    @staticmethod
    def backward(ctx, a, b):
        return TwoTensor(a, b)


class Jagged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, offsets):
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.values(), None


PROGRAMS = {
    "wrap": lambda a, b: (Wrap.apply(a, b).sin() * 2,),
    "set up": lambda a, b: (WrapAndSetUp.apply(a, b).sin() * 2,),
    "there and back": lambda a, b: [v * 2 for v in Unwrap.apply(Wrap.apply(a, b).sin())],
    "jagged": lambda a, b: ((Jagged.apply(a, torch.tensor([0, 2, 3])) * 2).values() * b,),
}


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_wrappers_that_a_function_makes(program, backend):
    function = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=backend)
    for seed in range(3):
        given, wanted = ([made(seed, 3, 4), made(seed + 9, 3, 4)] for _ in range(2))
        outputs, others = compiled(*given), function(*wanted)
        same(list(outputs), list(others))
        sum(each.sum() for each in outputs).backward(inputs=given)
        sum(each.sum() for each in others).backward(inputs=wanted)
        same([x.grad for x in given], [x.grad for x in wanted])
    assert len(compiled.entries) == 1


def test_what_such_a_function_counts_is_counted_once():
    count = [0]

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            count[0] += 1
            return TwoTensor(x * 1, x * 2)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.a + gradient.b

    compiled = funcaot.compile(lambda x: Counting.apply(x) * 2, backend="eager")
    for number in range(1, 4):
        compiled(made(0, 3))
        assert count == [number]


def overwritten(kept):
    kept.mul_(2)


def assigned(kept):
    kept.data = kept.data * 3


@pytest.mark.parametrize("change", [overwritten, assigned])
@pytest.mark.parametrize("where", ["b", "fb"])
@pytest.mark.parametrize("held", KINDS)
def test_a_backward_reads_what_it_finds_when_it_runs(held, where, change):
    results = []
    for compiled in (True, False):
        kept = KINDS[held](3, 3, 4, grad=False)
        apply = reaching(kept, where).apply

        def model(x, apply=apply):
            return apply(x).sin()

        function = funcaot.compile(model, backend="eager") if compiled else model
        found = []
        for seed in range(3):
            x = two(seed, 3, 4)
            result = function(x)
            if seed:
                change(kept)
            found += torch.autograd.grad(result.sum(), x)
        results.append(found)
    same(*results)


@pytest.mark.parametrize("where", ["b", "fb"])
def test_a_backward_that_finds_another_tensor_than_there_was_is_refused(where):
    kept = made(3, 3, 4, grad=False)

    class Reaching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * kept if "f" in where else x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * kept

    compiled = funcaot.compile(lambda x: Reaching.apply(x).sin(), backend="eager")
    for _ in range(2):
        compiled(two(0, 3, 4)).sum().backward()
    result = compiled(two(0, 3, 4))
    kept = made(4, 3, 4, grad=False)
    with pytest.raises(UnsupportedError, match="another one than there was"):
        result.sum().backward()
    x = two(0, 3, 4)
    compiled(x).sum().backward()
    y = two(0, 3, 4)
    Reaching.apply(y).sin().sum().backward()
    same(x.grad, y.grad)


class Makes(torch.autograd.Function):
    """Makes a wrapper of a plain tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return TwoTensor(x * 2, x * 3)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.a * 2 + gradient.b * 3 if isinstance(gradient, TwoTensor) else gradient * 2


def with_backward(of):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return of(gradient * x)

    return Square


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "of",
    [Makes.apply, lambda g: Makes.apply(g).a * 2, lambda g: Makes.apply(Makes.apply(g).sin())],
    ids=["returned", "used", "twice"],
)
def test_wrappers_that_a_backward_makes_by_a_function(of, create_graph):
    square = with_backward(of)
    compiled = funcaot.compile(lambda x: square.apply(x).sin(), backend=COMPILER)
    for call in range(3):
        found = []
        for each in (compiled, compiled.function):
            x = made(call, 3)
            (first,) = torch.autograd.grad(each(x).sum(), x, create_graph=create_graph)
            found.append([first.detach()])
            if first.requires_grad:
                found[-1] += torch.autograd.grad(first.sum(), x, allow_unused=True)
        same(*found)
