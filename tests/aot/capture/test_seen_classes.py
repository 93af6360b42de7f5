"""What class a compiled function sees of its tensors: the one that they have in eager."""

import functools
import sys
import threading

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


class Marked(torch.Tensor):
    """A tensor of the user's whose results are plain ones."""

    __torch_function__ = torch._C._disabled_torch_function_impl


KIND, LENGTH = type, len


def kept(x, kind):
    return [(lambda each: kind(each).__name__)(each) for each in (x, 1)]


@functools.singledispatch
def dispatched(thing):
    return type(thing).__qualname__


@dispatched.register
def _(thing: torch.nn.Parameter):
    return "a parameter"


def matched(thing):
    match thing:
        case torch.nn.Parameter():
            return "a parameter"
        case Marked():
            return "marked"
        case torch.Tensor():
            return "a tensor"
    return "nothing"


WAYS = {
    "is": lambda x: [type(x) is kind for kind in (torch.Tensor, torch.nn.Parameter, Marked)],
    "equal": lambda x: type(x) == torch.Tensor,  # noqa: E721
    "in": lambda x: type(x) in (torch.Tensor, int),
    "key": lambda x: {torch.Tensor: 1, torch.nn.Parameter: 2, Marked: 3}[type(x)],
    "name": lambda x: type(x).__name__,
    "text": lambda x: str(type(x)),
    "mro": lambda x: [kind.__name__ for kind in type(x).__mro__],
    "__class__": lambda x: x.__class__ is torch.Tensor,
    "__class__ name": lambda x: x.__class__.__name__,
    "isinstance": lambda x: [isinstance(x, kind) for kind in (torch.nn.Parameter, Marked)],
    "mapped": lambda x: list(map(type, [x, 1, "a"])),
    "comprehension": lambda x: [type(each).__name__ for each in (x, x)],
    "subclass": lambda x: issubclass(type(x), torch.nn.Parameter),
    "dispatch": dispatched,
    "match": matched,
    "global": lambda x: KIND(x).__name__,
    "default": lambda x, kind=type: kind(x) is torch.Tensor,
    "keyword": lambda x, *, kind=type: kind(x) is torch.Tensor,
    "given": lambda x: kept(x, KIND),
    "attribute": lambda x: getattr(x, "__class__").__module__,  # noqa: B009
}
MAKES = {
    "argument": lambda x: x,
    "parameter": torch.nn.Parameter,
    "marked": lambda x: x.as_subclass(Marked),
    "requires grad": lambda x: x.requires_grad_(),
}


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ways_of_asking(way, make, backend):
    """Arguments, what they are detached to, and what is made inside."""
    seen = []

    def function(x):
        made = torch.ones(3)
        seen.append([way(x), way(made), way(made * 2), way(torch.zeros_like(made))])
        return x * 2

    function(make(torch.ones(3)))
    expected = seen.pop()
    compiled = funcaot.compile(function, backend=backend)
    compiled(make(torch.ones(3)))
    assert seen == [expected]


def test_of_builtins_nothing_stays_but_what_was_there():
    class Holder:
        kinds = ()

    def function(holder, x, kind=type):
        holder.own, holder.kinds, holder.given = type, [LENGTH, {1: KIND}], kind
        holder.made = lambda value, of=kind: of(value)
        return x * LENGTH(x), type

    compiled, holder = funcaot.compile(function, backend="eager"), Holder()
    for size in (2, 3, 4):
        result, kind = compiled(holder, torch.ones(size))
        assert torch.equal(result, torch.full((size,), float(size)))
        length, kinds = holder.kinds
        found = [kind, holder.own, kinds[1], holder.given, KIND, *holder.made.__defaults__]
        assert all(each is type for each in found)
        assert length is len and LENGTH is len and "type" not in globals()
    assert funcaot.report(compiled).cache_misses == 2


def test_a_global_by_which_a_class_was_asked_for_is_compared(monkeypatch):
    @funcaot.compile(backend="eager")
    def function(x):
        return x * 2 if KIND(x) is torch.Tensor else x * 3

    assert function(torch.ones(2)).sum() == 4
    monkeypatch.setitem(globals(), "KIND", lambda x: None)
    assert function(torch.ones(2)).sum() == 6
    monkeypatch.undo()
    assert function(torch.ones(2)).sum() == 4


def test_classes_are_told_apart_in_later_calls():
    @funcaot.compile(backend="eager")
    def function(x):
        return x * 2 if type(x) is torch.nn.Parameter else x * 3

    with torch.no_grad():
        for _ in range(2):
            assert function(torch.ones(2)).sum() == 6
            assert function(torch.nn.Parameter(torch.ones(2))).sum() == 4


SEEN = []


class Asks(torch.autograd.Function):
    """It asks in every method."""

    @staticmethod
    def forward(x):
        SEEN.append(("forward", type(x), x.__class__))
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        SEEN.append(("setup", type(inputs[0]), type(output)))
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        SEEN.append(("backward", type(x), type(gradient), gradient.__class__))
        return gradient * 2

    @staticmethod
    def jvp(ctx, tangent):
        SEEN.append(("jvp", type(tangent)))
        return tangent * 2


def asks(x):
    y = Asks.apply(x)
    y.register_hook(lambda g: SEEN.append(("hook", type(g))))
    z = torch.func.vmap(lambda row: SEEN.append(("vmap", type(row))) or row * 2)(y)
    return torch.func.grad(lambda t: SEEN.append(("grad", type(t))) or t.sum())(z) * y


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
def test_in_methods_hooks_and_transforms(backend):
    def runs(function):
        SEEN.clear()
        x = torch.ones(2, 2, requires_grad=True)
        function(x).sum().backward()
        return set(SEEN)

    expected = runs(asks)
    assert runs(funcaot.compile(asks, backend=backend)) == expected

    def pushed(function):
        SEEN.clear()
        torch.func.jvp(function, (torch.ones(2),), (torch.ones(2),))
        return {entry for entry in SEEN if entry[0] == "jvp"}

    assert pushed(funcaot.compile(Asks.apply, backend=backend)) == pushed(Asks.apply)


def test_type_is_still_type():
    """What else is done with it, in code that also asks for a tensor's class."""

    def function(x):
        kind = type(x)
        made = type("Made", (), {"scale": 3})

        class Meta(type):
            pass

        class Used(metaclass=Meta):
            pass

        assert type(made) is type
        assert type(Used) is Meta
        assert isinstance(made, type)
        assert not isinstance(x, (type, int))
        assert issubclass(Meta, type)
        assert type.__call__(list) == []
        assert type(made()) is made
        assert {type: 1}[type(made)] == 1
        assert isinstance(3, int | type) and isinstance(made, type | None)
        assert repr(type) == "<class 'type'>"
        assert (type.__name__, type.__module__) == ("type", "builtins")
        return x * made.scale if kind is torch.Tensor else x

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2)).sum() == function(torch.ones(2)).sum() == 6


def test_globals_are_as_they_were():
    def fails(x):
        assert type(x) is torch.Tensor
        raise KeyError("mine")

    def nested(x):
        inner = funcaot.compile(lambda y: y * 2 if type(y) is torch.Tensor else y, backend="eager")
        return inner(x) + (1 if type(x) is torch.Tensor else 0)

    before = dict(globals())
    with pytest.raises(KeyError, match="mine"):
        funcaot.compile(fails, backend="eager")(torch.ones(2))
    compiled = funcaot.compile(nested, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert len(funcaot.report(compiled).entries) == 1
    assert globals() == before
    assert "__class__" not in vars(type(_symbolic()))


def _symbolic():
    found = []
    funcaot.compile(lambda x: found.append(x) or x * 2, backend="eager")(torch.ones(2))
    return found[0]


def test_a_global_of_that_name():
    """It is the user's, and is compared like others."""
    namespace = {"torch": torch, "type": lambda x: "mine"}
    exec("def function(x): return x * 2 if type(x) == 'mine' else x * 3", namespace)
    compiled = funcaot.compile(namespace["function"], backend="eager")
    assert compiled(torch.ones(1)) == 2
    namespace["type"] = lambda x: "another"
    assert compiled(torch.ones(1)) == 3
    del namespace["type"]
    assert compiled(torch.ones(1)) == 3


def test_many_threads():
    """One capture ends while another one asks."""

    def work(number):
        for size in range(2, 30):

            def function(x, size=size):
                y = x * number + size
                return y * 2 if type(y) is torch.Tensor else y * 0

            result = funcaot.compile(function, backend="eager")(torch.ones(size))
            if result[0] != (number + size) * 2:
                wrong.append((number, size))

    wrong = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert "type" not in globals()


SIZES = {
    "length": lambda x: x * len(x),
    "half": lambda x: x[: len(x) // 2] * 2.0,
    "indices": lambda x: x[torch.arange(len(x) - 1, -1, -1)],
    "mapped": lambda x: x * next(map(len, [x])),
    "a number": lambda x: x * 2 if isinstance(x.shape[0], int) else x * 3,
    "of several": lambda x: x * 2 if isinstance(len(x), (str, int)) else x * 3,
    "not torch's": lambda x: x * 2 if isinstance(x.shape[0], torch.SymInt) else x * 3,
    "its class": lambda x: x * 2 if type(x.shape[0]) is int else x * 3,
    "its class's name": lambda x: x * len(type(x.shape[0]).__name__),
}


@pytest.mark.parametrize("name", SIZES)
def test_open_sizes_are_numbers(name):
    """``isinstance(n, int)`` was false where a size is open; ``len(x)`` made a program per size."""
    compiled = funcaot.compile(SIZES[name], backend=COMPILER)
    for size in (3, 4, 5, 6, 3):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x), SIZES[name](x))
    assert funcaot.report(compiled).cache_misses == 2


class _Above(type):
    def __instancecheck__(cls, thing):
        return isinstance(thing, int | float) and thing > cls.bound


class _Large(metaclass=_Above):
    bound = 4


@pytest.mark.parametrize("kinds", [_Large, (str, _Large), str | _Large], ids=repr)
def test_a_metaclass_that_looks_at_numbers(kinds):
    """It was asked about the class of a size or an open number, which none is an instance of."""
    factor = 1.0

    def scaled(x):
        return x * (2 if isinstance(factor, kinds) else 3) * (5 if isinstance(len(x), kinds) else 7)

    compiled = funcaot.compile(scaled, backend="eager")
    for size, factor in ((3, 1.0), (4, 2.0), (5, 9.0), (3, 7.0), (6, 3.0)):  # noqa: B007 (read)
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), scaled(x))


def test_in_a_backward_that_is_compiled():
    class Mean(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square().sum(0) / len(x)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            count = len(x) if isinstance(x.shape[0], int) else 1
            return 2 * x * gradient / count

    compiled = funcaot.compile(Mean.apply, backend=COMPILER)
    for size in (3, 4, 5, 6, 3):
        found = []
        for function in (Mean.apply, compiled):
            torch.manual_seed(size)
            x = torch.randn(size, 2, requires_grad=True)
            (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            found.append((gradient, *torch.autograd.grad(gradient.square().sum(), x)))
        torch.testing.assert_close(*found)
    assert funcaot.report(compiled).cache_misses == 2


def test_a_name_of_the_user_stays_and_nothing_is_left():
    space = {"torch": torch, "__name__": "of_a_test"}
    code = "def f(x):\n    return x * len(x) if isinstance(x, torch.Tensor) else x\n"
    exec(code, space)
    names = set(space)
    compiled = funcaot.compile(space["f"], backend="eager")
    for size in (3, 4, 5):
        assert compiled(torch.ones(size)).tolist() == [size] * size
    assert set(space) == names
    space["len"] = lambda x: 7
    for size in (3, 4, 5):
        assert compiled(torch.ones(size)).tolist() == [7] * size
