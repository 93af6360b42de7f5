"""``x.data = value``: values, memory, versions and gradients are eager's, in every call."""

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER


class Model(nn.Module):
    """A parameter, a buffer, a layer, and a tensor that is neither."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 5.0, dtype=torch.float64).reshape(2, 2) * 0.3)
        self.register_buffer("mean", torch.ones(2, dtype=torch.float64))
        self.layer = nn.Linear(2, 2, dtype=torch.float64)
        self.plain = torch.zeros(2, dtype=torch.float64)


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def step_by_hand(model, x):
    loss = (x @ model.weight).sin().sum()
    (gradient,) = torch.autograd.grad(loss, model.weight)
    model.weight.data = model.weight.data - 0.1 * gradient
    return loss.detach()


@case
def value_that_requires_grad(model, x):
    model.weight.data = model.weight * 0.9
    return x @ model.weight


@case
def whole_step(model, x):
    model.zero_grad()
    loss = model.layer(x @ model.weight).sin().sum()
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data = parameter.data - 0.1 * parameter.grad
    return loss.detach()


@case
def clipped_in_place(model, x):
    weight = model.weight.data
    weight.clamp_(-0.5, 0.5)
    model.weight.data = weight
    return x @ model.weight


@case
def normalized(model, x):
    model.weight.data = nn.functional.normalize(model.weight.data, dim=0)
    return (x @ model.weight).sin()


@case
def after_its_use(model, x):
    y = (x @ model.weight).sin()
    model.weight.data = model.weight.data * 0.9
    return y


@case
def between_two_uses(model, x):
    y = (x @ model.weight).sin()
    model.weight.data = model.weight.data * 0.9
    return y + (x @ model.weight).cos()


@case
def buffer(model, x):
    model.mean.data = 0.9 * model.mean + 0.1 * x.detach().mean(0)
    return x * model.mean


@case
def plain_tensor(model, x):
    model.plain.data = model.plain + 1
    return x * model.plain


@case
def another_shape(model, x):
    model.mean.data = torch.cat([model.mean, x.detach()[0, :1]])
    return x * model.mean.sum()


@case
def memory_of_an_argument(model, x):
    model.plain.data = x.detach()[0]
    return x * 2


@case
def memory_of_a_result(model, x):
    new = x.detach() * 2
    model.plain.data = new[0]
    return new


@case
def written_to_afterwards(model, x):
    model.weight.data = model.weight.data * 2
    with torch.no_grad():
        model.weight.add_(1)
    return x @ model.weight


@case
def written_to_before(model, x):
    with torch.no_grad():
        model.weight.add_(1)
    model.weight.data = model.weight.data * 2
    return x @ model.weight


@case
def twice(model, x):
    model.weight.data = model.weight.data * 2
    model.weight.data = model.weight.data + 1
    return x @ model.weight, model.weight, model.weight.data


@case
def transposed(model, x):
    model.weight.data = (model.weight.data * 2).t()
    return x @ model.weight


@case
def itself(model, x):
    model.weight.data = model.weight.data
    return x @ model.weight


@case
def result_of_an_op(model, x):
    y = x.exp() @ model.weight
    y.data = y.data.round()
    return y


@case
def what_an_op_saved(model, x):
    y = x.exp()
    y.data = y.data.round()
    return y * model.weight.sum()


@case
def gradient(model, x):
    model.zero_grad()
    (x.detach() @ model.weight).sin().sum().backward()
    model.weight.grad.data = model.weight.grad.data.clamp(-0.1, 0.1)
    model.weight.grad.data.mul_(2)
    return x * 1


@case
def argument(model, x):
    x.data = x.data * 2
    return x * 3


@case
def argument_with_an_earlier_view(model, x):
    view = x[0]
    x.data = x.data * 2
    return x * view


@case
def only_at_first(model, x):
    if model.mean.sum() < 3:
        model.weight.data = model.weight.data * 2
        model.mean = model.mean + 1
    return x @ model.weight


def look(model, x, out):
    """All that a user sees of the tensors, and which of them share memory."""
    known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    known |= {"plain": model.plain, "x": x}
    results = {str(i): value for i, value in enumerate(out if isinstance(out, tuple) else (out,))}
    tensors = {**known, **results}
    grads = {f"{name}.grad": value.grad for name, value in tensors.items() if value.is_leaf}
    found = {
        name: (value.tolist(), value.stride(), value.requires_grad, value.is_leaf)
        for name, value in {**tensors, **grads}.items()
        if value is not None
    }
    found |= {f"{name} is at": value._version for name, value in known.items()}
    groups = {}
    for name, value in tensors.items():
        groups.setdefault(value.untyped_storage()._cdata, []).append(name)
    return rounded(found), sorted(groups.values())


def rounded(value):
    if isinstance(value, float):
        return round(value, 9) + 0.0
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return type(value)(map(rounded, value)) if isinstance(value, (list, tuple)) else value


def seen(function, called, *, requires_grad):
    """What each of three calls leaves, what its backward leaves, and what a write to it leaves."""
    torch.manual_seed(0)
    model, found = Model(), []
    for step in range(3):
        torch.manual_seed(step)
        x = torch.randn(2, 2, dtype=torch.float64, requires_grad=requires_grad)
        if function is not gradient:
            model.zero_grad()
        out = called(model, x)
        found.append(look(model, x, out))
        results = [value for value in (out if isinstance(out, tuple) else (out,)) if value.grad_fn]
        if results:
            sum(value.sum() for value in results).backward()
            found.append(look(model, x, out))
        with torch.no_grad():
            model.weight.mul_(0.9)
            model.mean.add_(0.5)
        found.append(look(model, x, out))
    return found


def check(name, backend, *, requires_grad):
    function = CASES[name]
    expected = seen(function, function, requires_grad=requires_grad)
    compiled = funcaot.compile(function, backend=backend)
    found = seen(function, compiled, requires_grad=requires_grad)
    for one, other in zip(found, expected, strict=True):
        assert one == other
    assert funcaot.report(compiled).cache_misses <= 2


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name, requires_grad):
    check(name, "eager", requires_grad=requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_with_inductor(name):
    check(name, "inductor", requires_grad=True)


def swaps(model, x):
    kept = model.layer.weight.data
    model.layer.weight.data = model.weight.data
    model.weight.data = kept
    return x @ model.weight


def turns(model, x):
    model.weight.data = model.weight.data.t()
    return x @ model.weight


def of_another_dtype(model, x):
    model.plain.data = model.plain.float()
    return x * model.plain


@pytest.mark.parametrize(
    ("function", "says"),
    [(swaps, "memory that"), (turns, "a view of its own"), (of_another_dtype, "another dtype")],
)
def test_what_is_refused(function, says):
    model, compiled = Model(), funcaot.compile(function, backend="eager")
    before = model.weight.tolist()
    with pytest.raises(UnsupportedError, match=says):
        compiled(model, torch.ones(2, 2, dtype=torch.float64))
    assert model.weight.tolist() == before


def takes_the_other_data(x, y):
    x.data = y.data
    return x * y, y


def takes_detached_data(x, y):
    x.data = y.detach()
    return (y * 2 + x,)


def seen_with_shared_memory(function):
    """Calls whose arguments share memory from the second on, and don't share it later."""
    x, y = torch.zeros(2, 2), torch.ones(2, 2)
    calls = [(x, y)] * 4 + [(torch.zeros(2, 2), torch.full((2, 2), i)) for i in (3.0, 4.0, 5.0)]
    calls += [(y[:], y)] * 3
    rows = []
    for x, y in calls:
        values = [value.tolist() for value in (*function(x, y), x, y)]
        rows.append((values, x.data_ptr() == y.data_ptr()))
        with torch.no_grad():
            y.add_(1)
    return rows


@pytest.mark.parametrize("backend", ["eager", COMPILER])
@pytest.mark.parametrize("function", [takes_the_other_data, takes_detached_data])
def test_data_that_is_shared_already(function, backend):
    compiled = funcaot.compile(function, backend=backend)
    assert seen_with_shared_memory(compiled) == seen_with_shared_memory(function)
    assert len(compiled.entries) <= 3


def test_under_transforms_as_in_eager():
    def function(x):
        y = x * 2
        y.data = torch.ones(3)
        return y.sum()

    for transform in (torch.func.grad, torch.func.vmap):
        called = transform(function)
        for each in (called, funcaot.compile(called, backend="eager")):
            with pytest.raises(RuntimeError, match=r"mutating directly with `\.data`"):
                each(torch.ones(2, 3) if transform is torch.func.vmap else torch.ones(3))


def test_in_forward_mode():
    def function(x):
        y = x * 2
        y.data = torch.ones(3)
        return y

    compiled = funcaot.compile(function, backend="eager")
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(UnsupportedError, match="in forward mode"):
            compiled(x)
