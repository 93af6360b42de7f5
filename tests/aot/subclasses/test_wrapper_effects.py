"""Writes to wrappers and views of them, as in eager: values, versions and whose views they are."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, made, same, two
from tests.hostile import COMPILER


def plain_pair():
    return two(0, 3, 4, grad=False)


def graded_pair():
    return two(0, 3, 4)


def step(parameter, gradient):
    with torch.no_grad():
        parameter.sub_(gradient)


def backward(x):
    (x.sin() * 2).sum().backward()


def with_gradient():
    x = two(0, 3)
    x.grad = two(9, 3, grad=False)
    return x


WRITES = {
    "one": (lambda x: x.add_(1), lambda: (plain_pair(),)),
    "two in a row": (lambda x: (x.add_(1).mul_(2), x * 2)[1], lambda: (plain_pair(),)),
    "of another wrapper": (lambda x, y: x.copy_(y), lambda: (plain_pair(), two(1, 3, 4))),
    "of a plain tensor": (lambda x, y: x.copy_(y), lambda: (plain_pair(), made(1, 3, 4))),
    "inside": (lambda x: (x.a.mul_(2), x * 2)[1], lambda: (plain_pair(),)),
    "through a view": (lambda x: x[0].mul_(2).sum(), lambda: (plain_pair(),)),
    "by index": (lambda x: x.__setitem__(1, 5.0), lambda: (plain_pair(),)),
    "to a nested one": (lambda x: x.add_(1), lambda: (TwoTensor(plain_pair(), plain_pair()),)),
    "to one inside of a nested one": (
        lambda x: (x.a.mul_(2), x.mul_(3), x.b.detach().add_(1), x * 2)[-1],
        lambda: (TwoTensor(plain_pair(), plain_pair()),),
    ),
    "to one with metadata": (lambda x: x.add_(1), lambda: (Factor(torch.ones(3), 2),)),
    "of quantized numbers": (
        lambda x, y: x.copy_(y),
        lambda: tuple(Int8.of(made(seed, 3, 4, grad=False)) for seed in range(2)),
    ),
    "to a parameter": (step, lambda: (graded_pair(), two(1, 3, 4, grad=False))),
    "to a gradient": (backward, lambda: (with_gradient(),)),
}
for _name in ("of another wrapper", "of a plain tensor"):
    _function, _make = WRITES[_name]
    WRITES[_name] = (_function, lambda make=_make: tuple(x.detach() for x in make()))


def versions(value):
    found = [value._version]
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            found += versions(getattr(value, name))
    return found


@pytest.mark.parametrize("program", WRITES)
def test_writes(program):
    function, make = WRITES[program]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        both = []
        for each in (compiled, function):
            arguments = make()
            result = each(*arguments)
            gradients = [x.grad for x in arguments]
            both.append([result, *arguments, *gradients, *map(versions, arguments)])
        same(*both)
    assert len(compiled.entries) == 1


def test_gradients_of_what_a_written_wrapper_was_used_for():
    def function(x, y):
        z = x.clone() * y
        x.add_(1)
        return z + x * y

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        both = []
        for each in (compiled, function):
            x, y = plain_pair(), graded_pair()
            both.append([*torch.autograd.grad(each(x, y).sum(), y), x])
        same(*both)


def test_what_was_saved_and_written_is_eagers_error():
    def function(x, y):
        z = x * y
        x.add_(1)
        return z

    for each in (function, funcaot.compile(function, backend="eager")):
        x, y = plain_pair(), graded_pair()
        result = each(x, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), y)


class Running(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", two(0, 3, grad=False))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach() * 0.1)
        return x * self.mean.clone()


def test_a_buffer_that_is_written_to():
    eager, compiled = Running(), funcaot.compile(Running(), backend="eager")
    for seed in range(3):
        both = []
        for model in (compiled, eager):
            x = two(seed, 3)
            result = model(x)
            both.append([result, *torch.autograd.grad(result.sum(), x), model.mean])
        same(*both)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {})],
)
def test_steps_of_optimizers(kind, options, foreach):
    both = []
    for is_compiled in (True, False):
        parameter, seen = two(0, 3), []
        optimizer = kind([parameter], lr=0.1, foreach=foreach, **options)
        step = optimizer.step
        if is_compiled:
            step = funcaot.compile(optimizer.step, backend="eager")
        for seed in range(4):
            parameter.grad = two(seed, 3, grad=False)
            step()
            state = optimizer.state[parameter]
            kept = [value.detach().clone() for value in state.values() if value is not None]
            seen.append([parameter.detach().clone(), *kept])
        both.append(seen)
    same(*both)


VIEWS = {
    "one": lambda x: x.t(),
    "a chain": lambda x: x.t()[1:].unsqueeze(0),
    "detached": lambda x: x.detach(),
    "the same": lambda x: x.view_as(x),
    "beside something else": lambda x: (x[0], x * 2),
    "of a result": lambda x: ((y := x * 2), y.t()),
    "of a result that is written to": lambda x: ((y := x * 2), y.t(), y.add_(1))[:2],
    "that is written to": lambda x: ((y := x * 2), (v := y.t()), v.add_(1))[:2],
}


def used(function, x):
    """What a function returns, what these are views of, gradients, and what a write does."""
    result = function(x)
    outputs = result if isinstance(result, tuple) else (result,)
    before = [output._version for output in outputs]
    found = [*outputs]
    for output in outputs:
        found += [output._is_view(), output._base is x, output._base is outputs[0]]
    graded = [output for output in outputs if output.requires_grad]
    if graded:
        tangents = [torch.full_like(output, 2.0 + i) for i, output in enumerate(graded)]
        found += torch.autograd.grad(graded, x, tangents)
    with torch.no_grad():
        for output in outputs:
            output.mul_(3)
    counts = [output._version - count for output, count in zip(outputs, before, strict=True)]
    return [*found, *outputs, x.detach(), x._version, counts]


@pytest.mark.parametrize("make", [graded_pair, plain_pair])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, make):
    compiled = funcaot.compile(VIEWS[view], backend="eager")
    for _ in range(2):
        same(used(compiled, make()), used(VIEWS[view], make()))


def test_views_made_without_grad():
    def function(x):
        with torch.no_grad():
            return x.t()

    compiled = funcaot.compile(function, backend="eager")
    for x, y in ((graded_pair(), graded_pair()), (plain_pair(), plain_pair())):
        found, wanted = compiled(x), function(y)
        same(found, wanted)
        assert found._base is x
    with torch.no_grad():
        plain = funcaot.compile(lambda x: x.t(), backend="eager")
        x = graded_pair()
        same(plain(x), x.t())


WEIGHT = two(7, 3, 4, grad=False)
BESIDE = {
    "an argument": (
        lambda x, y: (x.add_(1), y * 2)[1],
        lambda: (made(0, 3, 4, grad=False), plain_pair()),
    ),
    "a part of one": (
        lambda x, y: (x[:1].zero_(), y.t() * 2, y)[1:],
        lambda: (made(0, 3, 4, grad=False), plain_pair()),
    ),
    "closed over": (lambda x: (x.mul_(2), x * WEIGHT)[1], lambda: (made(0, 3, 4, grad=False),)),
    "made inside": (
        lambda x: (x.mul_(2), TwoTensor(x * 3, x.cos()))[1],
        lambda: (made(0, 3, 4, grad=False),),
    ),
    "written, too": (
        lambda x, y: (x.add_(1), y.mul_(2), y.sin())[2],
        lambda: (made(0, 3, 4, grad=False), plain_pair()),
    ),
}


@pytest.mark.parametrize("program", BESIDE)
def test_plain_tensors_that_are_written_beside_wrappers(program):
    """A graph that writes to its inputs by itself knows nothing of wrappers."""
    function, make = BESIDE[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for grad in (False, True, False):
        given, wanted = make(), make()
        with torch.set_grad_enabled(grad):
            same([compiled(*given), *given], [function(*wanted), *wanted])


def test_a_buffer_that_counts_beside_a_wrapper_on_the_default_backend():
    module, compiled_module = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)

    def function(module, x, y):
        return module(x), y * 2

    compiled = funcaot.compile(function)
    for _ in range(2):
        x, y = made(0, 3, 4, grad=False), plain_pair()
        with torch.no_grad():
            found, wanted = compiled(compiled_module, x, y), function(module, x, y)
        same(found, wanted)
        same(dict(compiled_module.state_dict()), dict(module.state_dict()))


def two_views(x):
    rows = x[1:]
    return rows, rows[0]


def written_through_another(x):
    rows = x[1:]
    rows[0].add_(1)
    return rows


COMPUTED_VIEWS = {
    "written to": lambda x: x[0].mul_(3),
    "written to through another": written_through_another,
    "written to, transposed": lambda x: x.t().zero_(),
    "two of one memory": two_views,
    "as it is": lambda x: x[1:],
}


@pytest.mark.parametrize("views", COMPUTED_VIEWS)
def test_views_that_a_class_computes_in_memory_of_their_own(views):
    function = COMPUTED_VIEWS[views]
    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(2):
        both = []
        for each in (compiled, function):
            x = Int8.of(made(seed, 3, 4, grad=False))
            result = each(x)
            first = result[0] if isinstance(result, tuple) else result
            both.append([result, x.data_8, x.scale])
            before = first.clone()
            first.mul_(2)
            both[-1] += [before, result, x.data_8]
        same(*both)


# What is returned of one wrapper that is made inside.
SHARING = {
    "a tensor inside": lambda y: (y, y.a),
    "a tensor inside, first": lambda y: (y.a, y),
    "views of a tensor inside": lambda y: (y, y.a[1:], y.b.detach(), y.b),
    "detached": lambda y: (y, y.detach()),
    "detached, first": lambda y: (y.detach(), y),
    "detached twice": lambda y: (y.detach(), y.detach()),
    "a view of the detached": lambda y: (y, y.detach()[1:]),
    "a view first": lambda y: (y.t(), y),
    "two views": lambda y: (y[1:], y.t(), y[:2]),
    "several views": lambda y: y.unbind(0),
    "after a write": lambda y: (y.add_(1), y.a, y[0]),
}


def sharing(function, seed, grad, grad_mode):
    """Results, which objects they are, and all of them after a write to each."""
    x = two(seed, 3, 4, grad=grad)
    with torch.set_grad_enabled(grad_mode):
        results = function(x)
    parts = [value for each in results for value in (each, getattr(each, "a", None))]
    found = [[[one is other for other in parts] for one in parts]]
    found.append([[one._base is other for other in results] for one in results])
    for result in results:
        with torch.no_grad():
            try:
                result.mul_(2)
            except RuntimeError as error:
                found.append(str(error)[:40])
        found += [each.detach().clone() for each in results]
    graded = [each for each in results if each.requires_grad]
    try:
        gradients = [torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in graded]
    except RuntimeError as error:
        gradients = [str(error)[:40]]
    return [*found, [each.requires_grad for each in results], *gradients]


@pytest.mark.parametrize("situation", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("program", SHARING)
def test_results_of_one_memory(program, situation):
    def function(x):
        return SHARING[program](x * 2)

    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(2):
        same(sharing(compiled, seed, *situation), sharing(function, seed, *situation))


def test_wrappers_inside_of_a_result():
    def function(x):
        y = x * 2
        return y, y.a, y.a[1:], y.a.b

    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(2):
        x = TwoTensor(two(seed, 3, grad=False), two(seed + 5, 3, grad=False))
        found, wanted = compiled(x), function(x)
        same(found, wanted)
        assert found[1] is found[0].a
        assert found[2]._base is found[1]
        assert found[3] is found[1].b
        found[1].mul_(3), wanted[1].mul_(3)
        same(found, wanted)


def row_and_turn(x):
    y = x[0]
    x.t_()
    return y, x.sum()


def written_and_turned(x):
    y = x[1:]
    y.add_(1)
    x.t_().unsqueeze_(0)
    return y, x[:, 1:]


def turned_twice(x):
    x.mul_(2).t_()
    y = x[1:]
    x.t_()
    return x[1:], y


TURNED = [row_and_turn, written_and_turned, turned_twice]


@pytest.mark.parametrize("function", TURNED)
def test_views_that_are_made_before_the_shape_is_changed(function):
    compiled = funcaot.compile(function, backend="eager")
    for seed in range(2):
        x, wanted = (two(seed, 3, 4, grad=False) for _ in range(2))
        found, others = compiled(x), function(wanted)
        same([*found, x], [*others, wanted])
        for view, other in zip(found, others, strict=True):
            view.mul_(3)
            other.mul_(3)
            same([*found, x], [*others, wanted])


def test_such_a_view_with_a_history_is_refused():
    # Eager makes it and can't give its gradient.
    x = two(0, 3, 4) * 1
    with pytest.raises(UnsupportedError, match="an earlier view"):
        funcaot.compile(row_and_turn, backend="eager")(x)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_part_that_is_detached_from_another_result(backend):
    def function(x):
        y = x * 2
        return Factor(y.detach(), 3), y

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        x, z = made(0, 3), made(0, 3)
        found, wanted = compiled(x), function(z)
        assert found[0].inner.requires_grad == wanted[0].inner.requires_grad is False
        same(found[0].inner, wanted[0].inner)
        found[1].sum().backward()
        wanted[1].sum().backward()
        same(x.grad, z.grad)
        with torch.no_grad():
            found[1].mul_(2)
            wanted[1].mul_(2)
        same(found[0].inner, wanted[0].inner)
