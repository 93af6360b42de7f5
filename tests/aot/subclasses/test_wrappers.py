"""A table of wrappers, programs and orders, each against eager."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, made, run, same, two


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x * x


def nested():
    return TwoTensor(two(0, 3, grad=False), two(4, 3, grad=False)).requires_grad_()


def factor():
    return Factor(made(0, 3, grad=False), 2).requires_grad_()


def sharing():
    inner = made(0, 3, grad=False)
    one = TwoTensor(inner, inner).requires_grad_()
    return one, TwoTensor(inner, made(1, 3, grad=False)).requires_grad_()


def checkpointed(x):
    inner = torch.utils.checkpoint.checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False)
    return inner * 2


def without_grad_inside(x):
    with torch.no_grad():
        y = x.cos()
    return x * y


def written_inside(x):
    y = x * 2
    y.mul_(x).add_(1)
    y[0] = 5.0
    return y


PROGRAMS = {
    "chain": (lambda x: x.sin().exp(), lambda: (two(0, 3),)),
    "product": (lambda x, y: (x @ y).tanh(), lambda: (two(0, 3, 4), two(1, 4, 5))),
    "with a plain tensor": (lambda x, y: (x @ y).tanh(), lambda: (two(0, 3, 4), made(1, 4, 5))),
    "softmax": (lambda x, y: torch.softmax(x * y, -1), lambda: (two(0, 3, 4), made(1, 4))),
    "nested": (lambda x: (x * x).sin(), lambda: (nested(),)),
    "nested conditions": (
        lambda x: torch.where((y := torch.where(x > 0, x, x)) > 0, y, y) * 2,
        lambda: (nested(),),
    ),
    "metadata": (lambda x, y: (x * y).sin() * x.factor, lambda: (factor(), made(1, 3))),
    "two kinds": (lambda x, y: x.sin() * y.sum().a, lambda: (factor(), two(1, 3))),
    "quantized weight": (
        lambda x, w: torch.nn.functional.linear(x, w).tanh(),
        lambda: (made(0, 3, 4), Int8.of(made(1, 5, 4, grad=False))),
    ),
    "several results": (
        lambda x, y: (x * y.sum(), x.exp(), y * 2),
        lambda: (two(0, 3), made(1, 3)),
    ),
    "structures": (lambda x: {"a": x * 2, "b": [x.sum(), 3]}, lambda: (two(0, 3),)),
    "made inside": (lambda x: TwoTensor(x.detach(), x.detach() * 2) * x, lambda: (made(0, 3),)),
    "one argument twice": (lambda x, y: x * y.sin(), lambda: (two(0, 3),) * 2),
    "shared inner tensors": (lambda x, y: x.sin() * y.cos(), sharing),
    "not a leaf": (lambda x: x.sin() * 3, lambda: (two(0, 3) * 1,)),
    "input among the results": (lambda x: (x * 2, x), lambda: (two(0, 3),)),
    "one result twice": (lambda x: (y := x * 2, y), lambda: (two(0, 3),)),
    "view of what it made": (lambda x: (x * 2).t(), lambda: (two(0, 3, 4),)),
    "writes inside": (written_inside, lambda: (two(0, 3),)),
    "a Function": (lambda x: Cube.apply(x).sin(), lambda: (two(0, 3),)),
    "a checkpoint": (checkpointed, lambda: (two(0, 3),)),
    "a region without grad": (without_grad_inside, lambda: (two(0, 3),)),
    "detached": (lambda x: (x.detach() * x).exp(), lambda: (two(0, 3),)),
    "no grad": (lambda x: x.sum(), lambda: (two(0, 3, grad=False),)),
    "a gradient inside": (
        lambda x: torch.autograd.grad((x.sin() * 2).sum(), x, create_graph=True)[0],
        lambda: (two(0, 3),),
    ),
    "a branch": (lambda x: x * 2 if x.sum() > 0 else x * 3, lambda: (two(0, 3),)),
    "random": (
        lambda x: torch.nn.functional.dropout(x, 0.5) * x,
        lambda: (torch.manual_seed(0), (two(0, 3),))[1],
    ),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program, order):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        same(run(compiled, make, order=order), run(function, make, order=order))
    assert len(compiled.entries) == 1


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_on_the_default_backend(program):
    function, make = PROGRAMS[program]
    if program == "random":
        pytest.skip("Inductor draws other numbers")
    compiled = funcaot.compile(function)
    for _ in range(2):
        same(run(compiled, make, order=2), run(function, make, order=2))


def test_compiled_by_inductor():
    function, make = PROGRAMS["with a plain tensor"]
    compiled = funcaot.compile(function)
    for _ in range(2):
        same(run(compiled, make), run(function, make))


class Layers(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
        for layer in (self.first, self.second):
            if kind == "two":
                for name, value in list(layer.named_parameters()):
                    wrapped = TwoTensor(value.detach().clone(), value.detach() * 2)
                    setattr(layer, name, torch.nn.Parameter(wrapped))
            if kind == "int8":
                weight = Int8.of(layer.weight.detach())
                layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", two(9, 2, grad=False) if kind == "buffer" else torch.ones(2))

    def forward(self, x):
        assert isinstance(self.first.weight, torch.nn.Parameter)
        return self.second(self.first(x).tanh()) * self.scale


@pytest.mark.parametrize("kind", ["two", "int8", "buffer"])
def test_parameters_and_buffers(kind):
    eager, compiled = Layers(kind), funcaot.compile(Layers(kind), backend="eager")
    for step in range(3):
        found = []
        for model in (compiled, eager):
            model.zero_grad()
            loss = model(made(step, 5, 4)).pow(2).sum()
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in model.parameters())])
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad, alpha=-0.1)
        same(*found)


class Scaled(TwoTensor):
    """It has its own ``linear``, as quantized weights do, in ``__torch_function__``."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["a"], inner["b"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            x, weight, *bias = args
            return torch.nn.functional.linear(x, weight.a * weight.b, *bias)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_torch_functions_of_a_class():
    layer = torch.nn.Linear(4, 3)
    inner = made(1, 3, 4, grad=False), made(2, 3, 4, grad=False)
    layer.weight = torch.nn.Parameter(Scaled(*inner), requires_grad=False)
    compiled = funcaot.compile(lambda x: layer(x).tanh(), backend="eager")
    for _ in range(2):
        same(
            run(compiled, lambda: (made(0, 2, 4),)),
            run(compiled.function, lambda: (made(0, 2, 4),)),
        )


class Settings:
    """Metadata that can be changed, and compare by value."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

    __hash__ = None


def test_metadata_that_change():
    settings = Settings(2)
    compiled = funcaot.compile(lambda x: x * x.factor.number, backend="eager")
    for number in (2, 3, 2):
        settings.number = number
        assert_close(
            compiled(Factor(torch.ones(3), settings)).inner, torch.full((3,), float(number))
        )
    assert len(compiled.entries) == 2


def test_other_sizes():
    eager, compiled = Layers("two"), funcaot.compile(Layers("two"), backend="eager")
    for count in (3, 4, 5, 3, 7):
        both = []
        for model in (compiled, eager):
            x = made(count, count, 4)
            result = model(x)
            wanted = [x, *model.parameters()]
            both.append([result, *torch.autograd.grad(result.sum(), wanted)])
        same(*both)


def test_wrapped_gradients_of_programs_with_open_sizes():
    function = PROGRAMS["chain"][0]
    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 4, 5, 6):
        for tangent in (torch.ones_like, lambda y: two(1, *y.shape, grad=False)):

            def make(size=size):
                return (made(size, size),)

            same(run(compiled, make, tangent), run(function, make, tangent))
    assert len(compiled.entries) == 2


def test_hooks_and_accumulation():
    def gradients(function):
        x, seen = two(0, 3), []
        x.register_hook(lambda gradient: (seen.append(gradient), gradient * 2)[1])
        for _ in range(2):
            function(x).sum().backward()
        return [x.grad, *seen]

    function = PROGRAMS["chain"][0]
    same(gradients(funcaot.compile(function, backend="eager")), gradients(function))


def test_metadata_and_inner_specs_are_parts_of_the_signature():
    compiled = funcaot.compile(lambda x: x * getattr(x, "factor", 1), backend="eager")
    for number, count in ((2, 1), (3, 2), (2.0, 3), (True, 4), (3, 4)):
        wanted = Factor(torch.ones(3), number) * number
        same(compiled(Factor(torch.ones(3), number)), wanted)
        assert len(compiled.entries) == count
    compiled(Factor(torch.ones(3, dtype=torch.double), 3))
    compiled(Factor(torch.ones(4), 3))
    compiled(TwoTensor(torch.ones(3), torch.ones(3)))
    assert len(compiled.entries) == 7


def test_which_inner_tensors_are_one_is_part_of_the_signature():
    compiled = funcaot.compile(lambda x, y: x.sin() * y.cos(), backend="eager")
    for make, count in ((sharing, 1), (lambda: (two(0, 3), two(5, 3)), 2), (sharing, 2)):
        same(run(compiled, make), run(compiled.function, make))
        assert len(compiled.entries) == count


def test_inner_tensors_that_go_through_stay_the_same_objects():
    compiled = funcaot.compile(lambda x, y: TwoTensor(x, y.a), backend="eager")
    for seed in range(2):
        x, y = made(seed, 3, grad=False), two(seed, 3, grad=False)
        result = compiled(x, y)
        assert result.a is x
        assert result.b is y.a


def test_state_and_saved_tensor_hooks():
    class Keeps(torch.nn.Module):
        kept = None

        def forward(self, x):
            y = x * 2 if self.kept is None else x * 2 + self.kept
            self.kept = y.detach() * 1
            return y.sin()

    eager, compiled = Keeps(), funcaot.compile(Keeps(), backend="eager")
    packed = []
    for seed in range(3):
        x, y = two(seed, 3), two(seed, 3)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (packed.append(type(t)), t)[1], lambda t: t
        ):
            found, wanted = compiled(x), eager(y)
        same(found, wanted)
        same(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), y))
    same(compiled.kept, eager.kept)
    assert TwoTensor in packed


def test_overwriting_what_was_saved_is_eagers_error():
    def overwritten(function, *, output):
        x = two(0, 3)
        y = x * 1
        result = function(y)
        with torch.no_grad():
            (result if output else y).mul_(2)
        return torch.autograd.grad(result.sum(), x)

    function = PROGRAMS["chain"][0]
    compiled = funcaot.compile(function, backend="eager")
    for output in (False, True):
        for each in (function, compiled):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                overwritten(each, output=output)
    double = funcaot.compile(lambda x: x * 2, backend="eager")
    same(overwritten(double, output=True), overwritten(lambda x: x * 2, output=True))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.vmap(f)(x),
        lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.vjp(f, x)[1](x),
    ],
    ids=["vmap", "grad", "jvp", "vjp"],
)
def test_transforms_inside(transform):
    def function(x):
        return transform(lambda y: y.sin().exp(), x)

    def make():
        return (two(0, 2, 3, grad=False),)

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        same(compiled(*make()), function(*make()))


def test_transforms_straight_over_a_compiled_function():
    def loss(x):
        return x.sin().exp().sum()

    x = two(0, 2, 3, grad=False)
    compiled = funcaot.compile(loss, backend="eager")
    same(torch.func.grad(compiled)(x), torch.func.grad(loss)(x))
    same(torch.vmap(compiled)(x), torch.vmap(loss)(x))


def test_autocast_and_inference_mode():
    def function(x, y):
        return (x @ y).exp()

    compiled = funcaot.compile(function, backend="eager")
    arguments = two(0, 3, 4), made(1, 4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(compiled(*arguments), function(*arguments))
    with torch.inference_mode():
        found, wanted = compiled(*arguments), function(*arguments)
    assert found.is_inference() == wanted.is_inference()
    assert_close(found.a, wanted.a)
