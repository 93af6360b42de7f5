"""Results have eager's strides also where an op's symbolic version has others."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot
from funcaot._torch.tracing.eager_rules import eager_strides
from tests.hostile import COMPILER

TURNED = torch.arange(30.0).add(1).div(31).reshape(6, 5).mT
PLAIN = torch.arange(30.0).add(2).div(40).reshape(5, 6)
IMAGES = torch.arange(120.0).reshape(2, 5, 3, 4).to(memory_format=torch.channels_last)

OPS = {
    "copysign": lambda a, b, c: torch.copysign(a, b - 0.5),
    "floor_divide": lambda a, b, c: torch.floor_divide(a, b),
    "div floor": lambda a, b, c: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b, c: torch.div(a, b, rounding_mode="trunc"),
    "addr": lambda a, b, c: torch.addr(a, b[:, 0], b[0], beta=0.0),
    "xlogy": lambda a, b, c: torch.xlogy(a, b),
    "logsigmoid": lambda a, b, c: F.logsigmoid(a),
    "binary_cross_entropy": lambda a, b, c: F.binary_cross_entropy(a, b, reduction="none"),
    "isin": lambda a, b, c: torch.isin(a, b),
    "roll": lambda a, b, c: torch.roll(c, -1, 0),
    "roll twice": lambda a, b, c: torch.roll(c, (1, 1), (0, 1)),
    "channel_shuffle": lambda a, b, c: F.channel_shuffle(c[:, :4], 2),
    "memory of a roll": lambda a, b, c: torch.roll(c, -1, 0).as_strided((5, 4), (4, 1)),
    "roll of what is contiguous": lambda a, b, c: torch.roll(c.contiguous(), 1, 1),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OPS)
def test_strides_and_values(name, dynamic):
    function = OPS[name]
    compiled = funcaot.compile(function, backend="eager", dynamic=dynamic)
    for a, b, c in [(TURNED, PLAIN, IMAGES), (TURNED.contiguous(), PLAIN, IMAGES.contiguous())]:
        ours, expected = compiled(a, b, c), function(a, b, c)
        assert ours.stride() == expected.stride()
        assert_close(ours, expected)


@pytest.mark.parametrize("name", ["copysign", "roll", "xlogy", "logsigmoid", "memory of a roll"])
def test_gradients(name):
    function = OPS[name]
    compiled = funcaot.compile(function, backend="eager")
    inputs = [value.detach().requires_grad_() for value in (TURNED, PLAIN, IMAGES)]
    found = []
    for called in (compiled, function):
        y = called(*inputs)
        weights = torch.arange(float(y.numel())).reshape(y.shape)
        found.append(torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True))
    assert_close(*found)


# Of a dimension of size 1, in-place ops keep the stride and random ops take it over.
IN_PLACE = {
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(2.0),
    "mul_": lambda x: x.mul_(2),
    "relu_": lambda x: x.relu_(),
    "clamp_": lambda x: x.clamp_(0),
    "index_put_": lambda x: x.index_put_((torch.tensor([0]),), torch.tensor(1.0)),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 1.0),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, 1, dtype=torch.long), 1.0),
    "cumsum_": lambda x: x.cumsum_(0),
    "bernoulli_": lambda x: x.bernoulli_(),
    "exponential_": lambda x: x.exponential_(),
    "foreach": lambda x: (torch._foreach_mul_([x], 2.0), x)[1],
    "out": lambda x: torch.sin(x.clone(), out=x),
    "and on": lambda x: x.mul_(2).sin() + x,
    "rand_like": lambda x: torch.rand_like(x),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(0, 1)),
}
VIEWS = {
    "view_as": lambda x: x.view_as(x),
    "view": lambda x: x.view(x.shape),
    "reshape": lambda x: x.reshape(x.shape),
    "slice": lambda x: x[:, :2],
    "expand": lambda x: x.expand(x.shape),
    "select and back": lambda x: x[0].unsqueeze(0),
    "permute": lambda x: x.permute(1, 0).permute(1, 0),
    "flatten": lambda x: x.flatten().unflatten(0, x.shape),
    "chunk": lambda x: x.chunk(1)[0],
}
NARROW = {
    "row": lambda: torch.randn(2, 3).t().narrow(0, 1, 1),
    "row of columns": lambda: torch.randn(3, 2).t()[:2].narrow(1, 1, 1).t(),
}


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("fresh", [torch.sin, torch.clone], ids=["sin", "clone"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_dimensions_of_size_1(name, fresh, narrow):
    def function(x):
        return IN_PLACE[name](fresh(x))

    compiled = funcaot.compile(function, backend=COMPILER)
    x = NARROW[narrow]()
    for seed in range(2):
        found = []
        for run in (compiled, function):
            torch.manual_seed(seed)
            y = run(x)
            found.append((y.stride(), y, torch.rand(2)))
        assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_dimensions_of_size_1(name, narrow):
    def function(x):
        view = VIEWS[name](x)
        return view * torch.ones_like(view), view.sin(), view, torch.zeros_like(view).add_(view)

    compiled = funcaot.compile(function, backend=COMPILER)
    x = NARROW[narrow]()
    for _ in range(2):
        ours, expected = compiled(x), function(x)
        assert [y.stride() for y in ours] == [y.stride() for y in expected]
        assert_close(ours, expected)


@pytest.mark.parametrize("name", ["view_as", "view", "reshape", "permute"])
def test_views_of_dimensions_of_size_1_beside_an_open_one(name):
    def function(x):
        view = VIEWS[name](x.pow(2).sum(-1, keepdim=True).t())
        return view * torch.ones_like(view), view.sin(), view

    compiled = funcaot.compile(function, backend=COMPILER)
    for size in range(4, 10):
        x = torch.randn(size, 3)
        ours, expected = compiled(x), function(x)
        assert [y.stride() for y in ours] == [y.stride() for y in expected]
        assert_close(ours, expected)
    assert len(compiled.entries) == 2


def test_dimensions_of_size_1_on_inductor():
    def function(x):
        return [act(x.sin()) for name, act in IN_PLACE.items() if name in ("zero_", "mul_", "out")]

    x = NARROW["row"]()
    ours, expected = funcaot.compile(function)(x), function(x)
    assert [y.stride() for y in ours] == [y.stride() for y in expected]


# Of tensors without elements, strides say nothing, and eager keeps them in some ops and not others.
NOTHING = [
    torch.empty(0, 4)[None],
    torch.empty(4, 0).t()[None],
    torch.empty(0, 4).unsqueeze(1),
    torch.empty(2, 0, 3).permute(2, 1, 0),
    torch.empty(1, 0).expand(3, 0),
    torch.empty_strided((2, 0), (7, 3)),
    torch.empty(4, 1)[:, :0],
]
OF_NOTHING = {
    "pow": lambda x: x**1,
    "mul": lambda x: x * 1,
    "sin": lambda x: x.sin(),
    "clone": lambda x: x.clone(),
    "zeros_like": lambda x: torch.zeros_like(x),
    "flip": lambda x: x.flip(0),
    "sort": lambda x: x.sort(0)[0],
    "sum": lambda x: x.sum(0, keepdim=True),
    "by index": lambda x: x[torch.arange(x.shape[0])],
    "cat": lambda x: torch.cat([x]),
    "where": lambda x: torch.where(x > 0, x, x),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_strides_of_nothing(name):
    def function(*tensors):
        return [OF_NOTHING[name](x) for x in tensors]

    ours = funcaot.compile(function, backend=COMPILER)(*NOTHING)
    expected = function(*NOTHING)
    assert [y.shape for y in ours] == [y.shape for y in expected]
    assert [y.stride() for y in ours] == [y.stride() for y in expected]


# Their symbolic versions divide by the number of elements, or refuse what eager doesn't.
REFUSED_OF_NOTHING = {
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach() + 1),
    "huber": lambda x: F.huber_loss(x, x.detach() + 1),
    "norm": lambda x: torch.linalg.vector_norm(x, torch.inf, dim=-1),
    "nearest": lambda x: F.interpolate(x, size=(4, 5)),
    "unshuffle": lambda x: F.pixel_unshuffle(x, 2),
}


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("name", REFUSED_OF_NOTHING)
def test_what_is_refused_of_nothing(name, backend, caplog):
    compiled = funcaot.compile(REFUSED_OF_NOTHING[name], backend=backend)
    found = []
    for run in (compiled, REFUSED_OF_NOTHING[name]):
        x = torch.ones(0, 1 if name == "unshuffle" else 4, 2, 2, requires_grad=True)
        y = run(x)
        if name != "unshuffle":
            y.sum().backward()
        found.append((y.shape, y.stride(), x.grad if x.grad is None else x.grad.stride()))
    assert found[0] == found[1]
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_kept_answers_are_no_tensors_of_a_capture():
    """A fake one would keep its capture's mode, and be made by a node of the tape."""
    eager_strides._answers.clear()
    nodes = []

    def backend(module, inputs):
        nodes.extend(module.graph.nodes)
        return module

    def function(x):
        return x.permute(2, 0, 1) * x.sum(0, keepdim=True).permute(2, 1, 0)

    x = torch.randn(3, 1, 4).transpose(0, 1)
    y = funcaot.compile(function, backend=backend)(x)
    assert y.stride() == function(x).stride() and torch.equal(y, function(x))
    assert eager_strides._answers
    assert {type(answer) for answer in eager_strides._answers.values()} == {torch.Tensor}
    assert not [node for node in nodes if "empty" in str(node.target)]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_numbers_are_not_written_for_what_lies_as_its_operands(name, monkeypatch):
    eager_strides._answers.clear()
    monkeypatch.setattr(eager_strides, "_ones", None)
    op = getattr(torch, name)
    x, y = torch.randn(3, 1, 4).transpose(0, 1), torch.randn(3, 1).t()[None]
    compiled = funcaot.compile(lambda x, y: op(x[..., :3], y), backend="eager")
    assert compiled(x, y).stride() == op(x[..., :3], y).stride()
    assert eager_strides._answers
