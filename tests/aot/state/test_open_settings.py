"""Numbers in attributes, containers, closures and globals stay open; eager says what is right."""

import math
import types

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import funcaot
from tests.aot.signature.numbers_table import BRANCHES, COMPUTED, SETTLED
from tests.hostile import COMPILER

FLOATS = (0.25, 0.5, 0.75, 0.1, 1.25, 0.0, -0.5, 0.25, 2.0, 3.5)
INTS = (2, 3, 4, 6, 1, 0, -3, 4, 2, 2**60)
pytestmark = pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
A = 1.0


class Slots:
    __slots__ = ("a",)


class Plain:
    pass


class Module(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.a = 1.0
        self.body = body

    def forward(self, x):
        return self.body(x, self.a)


def by_attribute(body, kind=Plain):
    holder = kind()
    return lambda x: body(x, holder.a), lambda value: setattr(holder, "a", value)


def by_entry(body):
    entries = {"a": 1.0, "b": 2.0}
    return lambda x: body(x, entries["a"]), lambda value: entries.update(a=value)


def by_entry_beside_tensors(body):
    entries = {"a": 1.0, "b": torch.ones(1)}
    return lambda x: body(x, entries["a"]), lambda value: entries.update(a=value)


def by_item(body):
    items = [0, 1.0, "text"]
    return lambda x: body(x, items[1]), lambda value: items.__setitem__(1, value)


def by_closure(body):
    a = 1.0

    def put(value):
        nonlocal a
        a = value

    return lambda x: body(x, a), put


def by_global(body):
    return lambda x: body(x, A), lambda value: globals().update(A=value)


def by_class(body):
    holder = type("Own", (), {"a": 1.0})
    return lambda x: body(x, holder.a), lambda value: setattr(holder, "a", value)


def by_module(body):
    module = Module(body)
    return module, lambda value: setattr(module, "a", value)


def by_row(body):
    holder = Plain()
    holder.a = (2.0, 1.0)
    return lambda x: body(x, holder.a[1]), lambda value: setattr(holder, "a", (2.0, value))


def by_row_in_an_entry(body):
    entries = {"a": (1.0, 2.0), "b": 3.0}

    def function(x):
        a, _ = entries["a"]
        return body(x, a)

    return function, lambda value: entries.update(a=(value, 2.0))


def by_row_beside_tensors(body):
    entries = {"a": (1.0, 2.0), "b": torch.ones(1)}
    return lambda x: body(x, entries["a"][0]), lambda value: entries.update(a=(value, 2.0))


def by_row_in_a_closure(body):
    a = (1.0,)

    def put(value):
        nonlocal a
        a = (value,)

    return lambda x: body(x, a[0]), put


PLACES = {
    "attribute": by_attribute,
    "slot": lambda body: by_attribute(body, Slots),
    "namespace": lambda body: by_attribute(body, types.SimpleNamespace),
    "entry": by_entry,
    "entry_beside_tensors": by_entry_beside_tensors,
    "item": by_item,
    "closure": by_closure,
    "global": by_global,
    "class": by_class,
    "module": by_module,
    "row": by_row,
    "row_in_an_entry": by_row_in_an_entry,
    "row_beside_tensors": by_row_beside_tensors,
    "row_in_a_closure": by_row_in_a_closure,
}


def programs(compiled):
    return len(funcaot.report(compiled).entries)


def run(function, x):
    """Results and the gradient of their sum, or how it fails."""
    try:
        found = tree_leaves(function(x))
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__]
    results = [
        leaf.detach() if isinstance(leaf, torch.Tensor) else (type(leaf).__name__, str(leaf))
        for leaf in found
    ]
    ended = [leaf for leaf in found if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if ended:
        total = sum(leaf.abs().float().square().sum() for leaf in ended)
        results += torch.autograd.grad(total, x)
    return results


def agree(place, body, values, **options):
    function, put = PLACES[place](body)
    put(values[0])
    compiled = funcaot.compile(function, **{"backend": "eager", **options})
    for seed, value in enumerate(values):
        put(value)
        x = torch.randn(24, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        wanted, found = run(function, x), run(compiled, x)
        assert len(wanted) == len(found), value
        for want, have in zip(wanted, found, strict=True):
            if isinstance(want, torch.Tensor):
                assert have.dtype == want.dtype
                assert_close(have, want, equal_nan=True)
            else:
                assert want == have
    return programs(compiled)


def sampled(table, *names):
    """A table's names; all but some are tried in the long group."""
    rest = (pytest.mark.slow, pytest.mark.long)
    marks = [() if name in names else rest for name in table]
    return [pytest.param(name, marks=mark) for name, mark in zip(table, marks, strict=True)]


@pytest.mark.parametrize("place", PLACES)
def test_each_place_takes_two_programs(place):
    assert agree(place, COMPUTED["arithmetic"], FLOATS) == 2


def test_what_else_is_in_a_tuple():
    """The other numbers in it stay what they are compared with, and it stays the object it is."""
    holder = Plain()

    def function(x):
        return x * holder.a[0] + sum(holder.a[1:])

    compiled, x = funcaot.compile(function, backend="eager"), torch.ones(2)
    rows = [(0.5, 1.0), (0.6, 1.0), (0.7, 1.0), (0.8, 1.0), (0.8, 2.0), (0.7, 3.0), (0.9, 4.0)]
    rows += [(0.9, 4.0, 1.0), (0.5, 4.0, 1.0), (2, 1.0), (0.5, True), (0.25, 1.0)]
    for row in rows:
        holder.a = row
        assert_close(compiled(x), function(x))
        assert holder.a is row
    assert programs(compiled) <= 8


def test_a_tuple_that_is_changed():
    holder = Plain()
    holder.a = (0.5, 1.0)

    def function(x):
        low, high = holder.a
        holder.a = (low * 0.5, high)
        return x * low

    compiled, x, low = funcaot.compile(function, backend="eager"), torch.ones(2), 0.5
    for _ in range(5):
        assert compiled(x).tolist() == [low, low]
        low *= 0.5
        assert holder.a == (low, 1.0)
        assert {*map(type, holder.a)} == {float}


@pytest.mark.parametrize("name", sampled(COMPUTED, "half", "written", "tensor", "vmap_none"))
def test_what_is_computed_with_takes_two_programs(name):
    assert agree("entry", COMPUTED[name], FLOATS) == 2


@pytest.mark.parametrize("name", sampled(BRANCHES, "max"))
def test_a_branch_has_a_program_for_each_answer(name):
    assert agree("attribute", BRANCHES[name], FLOATS) in (2, 3)


@pytest.mark.parametrize("name", sampled(SETTLED, "function", "type"))
def test_what_needs_the_number_is_right(name):
    agree("closure", SETTLED[name], FLOATS)


IN_PYTHON = {
    "sine": lambda x, a: x * math.sin(a),
    "root": lambda x, a: x / math.sqrt(1 + a * a),
    "square": lambda x, a: x * a**2,
    "power": lambda x, a: x * (1 - 0.9 ** (a + 1)),
    "floor": lambda x, a: x * (a // 0.2) + a % 0.2,
    "cosine": lambda x, a: x * (0.5 * (1 + math.cos(math.pi * a / 7))),
    "nested": lambda x, a: x * (((a + 1) * (a + 2)) / ((a + 3) ** 2 + 1) - math.exp(-abs(a))),
    "keyword": lambda x, a: torch.lerp(x, end=x.sin(), weight=a) + torch.full((24,), fill_value=a),
    "lists": lambda x, a: torch._foreach_add(torch._foreach_mul([x, x.sin()], a), 2.0 * a)[1],
    "lerped_lists": lambda x, a: torch._foreach_lerp([x], [x.cos()], weight=a)[0],
    "written_lists": lambda x, a: torch._foreach_add_([x * 1], [x.cos()], alpha=a)[0],
}


@pytest.mark.parametrize("kind", [float, int])
@pytest.mark.parametrize("name", sampled(IN_PYTHON, "root", "power", "nested", "lerped_lists"))
def test_python_computes_in_each_call(name, kind):
    values = FLOATS if kind is float else INTS[:7]
    found = agree("entry", IN_PYTHON[name], values)
    assert found <= 3 or (name == "keyword" and kind is int)


WHOLE = {
    "factor": lambda x, n: x * n - n,
    "divided": lambda x, n: x / (n + 5) + (n - x) * (n // 2),
    "integers": lambda x, n: (x > 0).long() * n,
    "decayed": lambda x, n: x / (1 - 0.9 ** (n + 4)),
    "size": lambda x, n: x + torch.zeros(abs(n) % 3 + 1, 1),
    "index": lambda x, n: x[n % 24],
    "range": lambda x, n: sum((x * i for i in range(n % 7)), x),
    "every": lambda x, n: x * 2 if n % 3 == 0 else x,
    "class": lambda x, n: x * 2 if type(n) is int and isinstance(n, int) else x,
    "true": lambda x, n: x * 2 if n is True else x * n,
    "negative": lambda x, n: x * 2.0 ** -(n % 5),
    "inverse": lambda x, n: x * (1 / n) if n else x,
    "caught": lambda x, n: _or_zero(x, n),
    "text": lambda x, n: x * len(str(n)),
    "modulo": lambda x, n: x * pow(n, 2, 5) * (n & 3),
}


def _or_zero(x, n):
    try:
        return x * (1 / n)
    except ZeroDivisionError:
        return x * 0


@pytest.mark.parametrize("name", sampled(WHOLE, "size", "class", "text"))
def test_whole_numbers(name):
    agree("attribute", WHOLE[name], INTS)


@pytest.mark.parametrize("name", ["factor", "divided", "decayed", "inverse", "caught"])
def test_whole_numbers_take_few_programs(name):
    assert agree("attribute", WHOLE[name], (2, 3, 4, 5, 0, 6, 7, 8, 9, 0)) <= 4


def test_another_kind_of_number_is_another_program():
    values = (0.5, 0.75, 1, True, 1.0, 0.25, 2, None, "text", 0.5)
    body = lambda x, a: x * a if type(a) is float else x + 1  # noqa: E731
    agree("attribute", body, values)
    agree("entry", body, values)
    agree("item", body, values)


def test_what_becomes_of_the_container():
    """Keys, lengths and the other entries are compared as ever."""
    options = {"a": 1.0, "b": 2.0}

    def function(x):
        return x * options["a"] + len(options) * sum(options.values())

    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(3)
    for change in ({"a": 2.0}, {"a": 3.0}, {"b": 5.0}, {"c": 1.0}, {"a": 4.0}, {"c": 2.0}):
        options.update(change)
        assert torch.equal(compiled(x), function(x))
    del options["b"]
    assert torch.equal(compiled(x), function(x))


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps, self.rate, self.kept = 0, 1.0, {"sum": 0.0, "most": 0}

    def forward(self, x):
        self.steps += 1
        self.rate = max(0.1, self.rate * 0.9)
        self.kept["sum"] = self.kept["sum"] + self.rate / self.steps
        self.kept["most"] = self.steps if self.steps > 3 else 3
        return x * self.rate / (1 - 0.9**self.steps) + self.kept["sum"]


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
def test_what_is_counted_and_read(backend):
    module, other = Counting(), Counting()
    compiled = funcaot.compile(module, backend=backend)
    for step in range(12):
        if step == 8:
            module.steps = other.steps = 100
        x = torch.randn(4)
        assert_close(compiled(x), other(x))
        assert (module.steps, module.rate, module.kept) == (other.steps, other.rate, other.kept)
        assert type(module.steps) is int and type(module.kept["sum"]) is float
    assert programs(compiled) <= 4


def test_numbers_in_a_list_are_counted():
    def make():
        numbers = [1.0, 2]

        def function(x):
            numbers[0] = numbers[0] * 0.5
            numbers[1] += 1
            return x * numbers[0] + numbers[1]

        return function, numbers

    (function, numbers), (other, others) = make(), make()
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(8):
        x = torch.randn(3)
        assert_close(compiled(x), other(x))
        assert numbers == others
    assert programs(compiled) == 2


def test_a_number_that_is_kept_has_a_program_for_each_value():
    """A hook of a later backward reads it."""
    holder = Plain()
    holder.a = 1.0

    def function(x):
        a = holder.a
        y = x.sin()
        y.register_hook(lambda gradient: gradient * a)
        return y

    compiled = funcaot.compile(function, backend="eager")
    for value in (0.5, 1.5, 2.5, 3.5):
        holder.a = value
        x = torch.ones(2, requires_grad=True)
        assert torch.equal(*(torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, function)))


def test_an_error_of_the_function_is_its_own():
    holder = Plain()

    def function(x):
        if holder.a > 2:
            raise ValueError(f"too large: {holder.a}")
        return x * holder.a

    compiled = funcaot.compile(function, backend="eager")
    for value in (0.5, 1.5, 2.5, 1.75):
        holder.a = value
        if value > 2:
            with pytest.raises(ValueError, match=r"too large: 2\.5"):
                compiled(torch.ones(2))
        else:
            assert torch.equal(compiled(torch.ones(2)), function(torch.ones(2)))
        assert holder.a == value and type(holder.a) is float


class InBackward(torch.autograd.Function):
    holder = Plain()

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos() * InBackward.holder.a


class OnValues(torch.autograd.Function):
    """It can't be traced, and runs in each call."""

    holder = Plain()

    @staticmethod
    def forward(x):
        return torch.from_numpy(x.detach().numpy() * OnValues.holder.a)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.a = OnValues.holder.a

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.a


@pytest.mark.parametrize("kind", [InBackward, OnValues])
def test_rules_of_functions_see_the_numbers_of_each_call(kind):
    def function(x):
        return kind.apply(x) * kind.holder.a

    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0, 4.0):
        found = []
        for called in (function, compiled):
            kind.holder.a = value
            x = torch.linspace(-1, 1, 4).requires_grad_()
            y = called(x)
            found.append((y.detach(), torch.autograd.grad(y.sum(), x)[0], kind.holder.a))
        assert_close(found[1], found[0])


def test_they_can_be_closed():
    for options in ({"dynamic": False}, {}):
        with funcaot.config.patch(open_numbers=bool(options)):
            assert agree("entry", COMPUTED["add"], (0.5, 1.5, 2.5), **options) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arithmetic", "written", "bfloat16"])
def test_on_inductor(name):
    assert agree("attribute", COMPUTED[name], FLOATS[:4], backend="inductor") == 2


@pytest.mark.parametrize("name", ["arithmetic", "written"])
def test_on_a_hostile_compiler(name):
    agree("attribute", COMPUTED[name], FLOATS, backend=COMPILER)
