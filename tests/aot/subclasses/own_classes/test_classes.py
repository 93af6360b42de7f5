"""Classes of tensors with a ``__torch_function__``: compiled functions are as eager."""

import copy
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

WITHOUT = torch._C.DisableTorchFunctionSubclass


class Kept(torch.Tensor):
    """Torch's own function: what is computed of it is of the class."""

    def twice(self):
        return self * 2


class Tagged(torch.Tensor):
    """It carries an attribute along."""

    tag = ""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        tags = [x.tag for x in args if isinstance(x, Tagged) and x.tag]
        if type(result) is cls and tags:
            result.tag = tags[0]
        return result

    def twice(self):
        return self * len(self.tag)


class Doubling(torch.Tensor):
    """Its sine is another one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func in (torch.Tensor.sin, torch.sin) else result

    def twice(self):
        return self + self


class Leaving(torch.Tensor):
    """What is computed of it is plain."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with WITHOUT():
            return func(*args, **(kwargs or {}))

    def twice(self):
        return self * 2


class Switching(torch.Tensor):
    """It switches all functions off, as much code does."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            result = func(*args, **(kwargs or {}))
            return torch._tensor._convert(result, cls)

    def twice(self):
        return self * 2


class Unwrapping(torch.Tensor):
    """It gives torch plain tensors, and puts the results in the class by hand."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in torch.overrides.get_default_nowrap_functions():
            return super().__torch_function__(func, types, args, kwargs or {})
        plain = torch.utils._pytree.tree_map_only(
            cls, lambda x: torch.Tensor.as_subclass(x, torch.Tensor), (args, kwargs or {})
        )
        result = func(*plain[0], **plain[1])
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda x: torch.Tensor.as_subclass(x, cls), result
        )

    def twice(self):
        return self * 2


class Made(torch.Tensor):
    """It has a ``__new__``."""

    def __new__(cls, data, unit="m"):
        made = torch.Tensor._make_subclass(cls, torch.as_tensor(data), False)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        units = [vars(x)["unit"] for x in args if isinstance(x, Made) and "unit" in vars(x)]
        if isinstance(result, Made) and "unit" not in vars(result) and units:
            result.unit = units[0]
        return result

    def twice(self):
        return self * 2


class Method(torch.Tensor):
    """A method in place of a tensor's."""

    def sin(self):
        return torch.cos(self)

    twice = torch.Tensor.double


class Weight(torch.nn.Parameter):
    """A parameter whose results are of its class."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch._tensor._convert(Leaving.__torch_function__(func, types, args, kwargs), cls)

    def twice(self):
        return self * 2


def tagged(x, tag="ab"):
    made = x.as_subclass(Tagged)
    made.tag = tag
    return made


KINDS = {
    "kept": lambda x: x.as_subclass(Kept),
    "tagged": tagged,
    "doubling": lambda x: x.as_subclass(Doubling),
    "leaving": lambda x: x.as_subclass(Leaving),
    "switching": lambda x: x.as_subclass(Switching),
    "unwrapping": lambda x: x.as_subclass(Unwrapping),
    "made": lambda x: Made(x, "kg"),
    "method": lambda x: x.as_subclass(Method),
    "weight": lambda x: Weight(x, False),
    "parameter": lambda x: torch.nn.Parameter(x.as_subclass(Doubling), False),
}


def attribute(x):
    (y := x * 2).note = 7
    return y


def without_gradient(x):
    with torch.no_grad():
        return x * 2, (x * 2).t()


def accumulated(x):
    z = x.detach().clone().requires_grad_()
    z.sin().sum().backward()
    return z.grad


FUNCTIONS = {
    "ops": lambda x: (x.sin() * 2, torch.sin(x) + 1, 2 - x, torch.ones(2, 3) + x),
    "methods": lambda x: x.twice() if hasattr(x, "twice") else x,
    "itself": lambda x: (x, y := x * 2, y),
    "views": lambda x: (y := x * 2, y[0], y.t(), x.t(), x[0]),
    "in place": lambda x: (y := x.clone(), y.mul_(2), y[0].add_(1), y)[3],
    "lists": lambda x: {"a": [torch.cat([x, torch.ones(2, 3)]), x.split(1)], "b": x.max(dim=0)},
    "kinds": lambda x: (type(x).__name__, isinstance(x, Kept), x.__class__ is Tagged, x * len(x)),
    "of torch.nn": lambda x: torch.nn.functional.layer_norm(torch.nn.functional.linear(x, x), (2,)),
    "made inside": lambda x: (m := Made(x.as_subclass(torch.Tensor) * 2, "s"), m * 2, m.unit),
    "as_subclass": lambda x: (
        torch.Tensor.as_subclass(x, torch.Tensor) * 2,
        x.as_subclass(torch.Tensor).as_subclass(Kept).sin(),
    ),
    "a parameter": lambda x: torch.nn.Parameter(x * 2, requires_grad=False),
    "detached": lambda x: (x.detach() * 2, x.data, torch.zeros_like(x), x.new_ones(2)),
    "an attribute": attribute,
    "no_grad": without_gradient,
    "a branch": lambda x: x * 2 if x.sum() > 0 else x * 3,
    "grad inside": accumulated,
    "torch.func": lambda x: (
        torch.func.grad(lambda t: (t.sin() * x).sum())(torch.ones(2, 3)),
        torch.func.vmap(lambda t: t.as_subclass(torch.Tensor) * 2)(x),
        torch.func.jvp(lambda t: t.sin(), (x,), (torch.ones(2, 3),)),
    ),
}


def looks(value):
    """Class, attributes, metadata and values of tensors in containers."""
    if isinstance(value, torch.Tensor):
        own = {k: v for k, v in vars(value).items() if not isinstance(v, torch.Tensor)}
        with torch._C.DisableTorchFunction():
            data = torch.Tensor.detach(value).as_subclass(torch.Tensor)
            graded = torch.Tensor.requires_grad.__get__(value)
            leaf = torch.Tensor.is_leaf.__get__(value)
        rounded = (data.double() * 1e4).round().tolist()
        return (type(value), own, graded, leaf, data.dtype, data.stride(), rounded)
    if isinstance(value, dict):
        return {key: looks(part) for key, part in value.items()}
    return list(map(looks, value)) if isinstance(value, (list, tuple)) else value


def tensors(value):
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in parts for t in tensors(part)] if hasattr(parts, "__iter__") else []


def flat(value):
    return [] if isinstance(value, str) else tensors(value)


def observed(function, x, order):
    """What a call gives, which results are one object or share memory, and gradients."""
    if order:
        torch.Tensor.requires_grad_(x)
    result = function(x)
    found = [looks(result), looks(x)]
    made = [t for part in (result if isinstance(result, tuple) else (result,)) for t in flat(part)]
    found.append([(a is b, a.data_ptr() == b.data_ptr()) for a in (*made, x) for b in made])
    with torch._C.DisableTorchFunction():
        losses = [
            torch.Tensor.sum(t.as_subclass(torch.Tensor)) * (1 + index)
            for index, t in enumerate(made)
            if torch.Tensor.requires_grad.__get__(t) and torch.Tensor.is_floating_point(t)
        ]
    if not losses or not order:
        return found
    (first,) = torch.autograd.grad(sum(losses), x, create_graph=True, allow_unused=True)
    found.append(looks(first))
    if first is not None and first.requires_grad:
        found.append(looks(torch.autograd.grad((first * first).sum(), x)))
    return found


def value():
    return torch.arange(6.0).reshape(2, 3) / 3


def compare(function, compiled, make, order):
    wanted = observed(function, make(value()), order)
    with warnings.catch_warnings():
        warnings.simplefilter("error", funcaot.errors.CaptureWarning)
        for _ in range(2):
            assert observed(compiled, make(value()), order) == wanted


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_as_in_eager(kind, order):
    """Each class with each function; order 1 differentiates twice."""
    for name, function in FUNCTIONS.items():
        if order and name == "torch.func":
            continue
        compiled = funcaot.compile(function, backend="eager", fullgraph=True)
        compare(function, compiled, KINDS[kind], order)
        assert len(compiled.entries) == 1, name


@pytest.mark.slow
@pytest.mark.parametrize("backend", [COMPILER, "inductor"], ids=["hostile", "inductor"])
@pytest.mark.parametrize("kind", KINDS)
def test_on_other_backends(kind, backend):
    for name in ("ops", "methods", "views", "in place", "made inside"):
        compiled = funcaot.compile(FUNCTIONS[name], backend=backend, fullgraph=True)
        compare(FUNCTIONS[name], compiled, KINDS[kind], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_closed_over(kind):
    """And written to; it is the caller's object that the function sees."""
    held = KINDS[kind](value())

    def function(x):
        held.mul_(2)
        return x * held.sin(), held

    results = []
    for called in (function, funcaot.compile(function, backend="eager", fullgraph=True)):
        torch.Tensor.copy_(held, value())
        results.append([looks(called(torch.ones(2, 3))) for _ in range(3)])
        assert called(torch.ones(2, 3))[1] is held
    assert results[0] == results[1]


class Layer(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.weight = torch.nn.Parameter(make(value()))
        self.register_buffer("bias", make(torch.ones(2)))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias).sin()


@pytest.mark.parametrize("whole", [False, True], ids=["module", "step"])
@pytest.mark.parametrize("kind", ["kept", "tagged", "doubling", "method"])
def test_parameters_that_are_trained(kind, whole):
    results = []
    for compiles in (False, True):
        layer = Layer(KINDS[kind])
        optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
        called = funcaot.compile(layer, backend="eager") if compiles and not whole else layer

        def step(x, layer=called, optimizer=optimizer):
            optimizer.zero_grad()
            loss = layer(x).sum()
            loss.backward()
            optimizer.step()
            return loss

        run = funcaot.compile(step, backend="eager") if compiles and whole else step
        found = [looks(run(torch.ones(4, 3))) for _ in range(3)]
        results.append([*found, looks(layer.weight), looks(layer.weight.grad)])
    assert results[0] == results[1]


OUTSIDE = {
    "grad": torch.func.grad,
    "vmap": torch.func.vmap,
    "jacrev of grad": lambda f: torch.func.jacrev(torch.func.grad(f)),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones(2, 3),)),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.tensor(1.0)),
}


@pytest.mark.parametrize("transform", OUTSIDE)
def test_under_transforms(transform):
    """Over a compiled function, and compiled with it."""

    def function(x):
        return (x.sin() * x).sum()

    over = OUTSIDE[transform]
    for kind in ("tagged", "doubling", "leaving", "parameter"):
        wanted = looks(over(function)(KINDS[kind](value())))
        compiled = funcaot.compile(function, backend="eager", fullgraph=True)
        assert looks(over(compiled)(KINDS[kind](value()))) == wanted
        compiled = funcaot.compile(over(function), backend="eager", fullgraph=True)
        assert looks(compiled(KINDS[kind](value()))) == wanted


class Changing(torch.Tensor):
    factor = 2

    def twice(self):
        return self * self.factor


def another(cls, func, types, args=(), kwargs=None):
    with WITHOUT():
        return func(*args, **(kwargs or {})) * TABLE.get(func, 3)


TABLE = {}
CHANGES = {
    "an attribute of the class": lambda: setattr(Changing, "factor", 5),
    "a method": lambda: setattr(Changing, "twice", lambda self: self * 100),
    "a method in place of a tensor's": lambda: setattr(Changing, "sin", torch.Tensor.cos),
    "a function": lambda: setattr(Changing, "__torch_function__", classmethod(another)),
    "a table that it reads": lambda: TABLE.update({torch.Tensor.sin: 11}),
    "no function any more": lambda: delattr(Changing, "__torch_function__"),
}


def test_what_changes_between_calls():
    def function(x):
        return x.twice().sin()

    compiled = funcaot.compile(function, backend="eager", fullgraph=True)
    for change in (lambda: None, *CHANGES.values()):
        change()
        for _ in range(2):
            x = value().as_subclass(Changing)
            assert looks(compiled(x)) == looks(function(x))
    assert len(compiled.entries) == 6


def test_attributes_and_classes_that_change():
    def function(x):
        return x * 2 if getattr(x, "tag", "a") == "ab" else x + 1

    compiled = funcaot.compile(function, backend="eager", fullgraph=True)
    arguments = [tagged(value()), tagged(value(), "abc"), value(), value().as_subclass(Kept)]
    for _ in range(2):
        for x in arguments:
            assert looks(compiled(x)) == looks(function(x))
    assert len(compiled.entries) == 4


def test_gradients_of_such_classes_arrive():
    """The engine gives a backward the tensor itself, whose class isn't asked there."""
    for kind in KINDS:
        results = []
        for function in (torch.sin, funcaot.compile(torch.sin, backend="eager")):
            x = value().requires_grad_()
            function(x).backward(KINDS[kind](value()))
            results.append(looks(x.grad))
        assert results[0] == results[1]


def test_calls_by_code_of_a_class():
    """Where functions of classes are off, and where a compiled function is inside of one."""
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager", fullgraph=True)
    x = value().as_subclass(Doubling)
    for _ in range(2):
        assert looks(compiled(x)) == looks(x.sin())
        with WITHOUT():
            assert type(compiled(x)) is torch.Tensor


class Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Far(torch.Tensor):
    """It finds attributes in its own way."""

    def __getattr__(self, name):
        raise AttributeError(name)


class Failing(torch.Tensor):
    """Its own property raises until an attribute is there."""

    @property
    def ndim(self):
        return self.rank


def with_a_list():
    x = value().as_subclass(Tagged)
    x.tags = ["a"]
    return x


LEFT = {
    "a Function": (Seen.apply, KINDS["doubling"]),
    "a checkpoint": (lambda x: checkpoint(torch.sin, x, use_reentrant=False), KINDS["doubling"]),
    "a size of values": (lambda x: x[x > 0.5], KINDS["doubling"]),
    "a copy": (copy.deepcopy, KINDS["unwrapping"]),
    "NumPy": (lambda x: x.detach().numpy().sum() * x, KINDS["leaving"]),
    "what decides on attributes": (lambda x: x * 2, lambda x: x.as_subclass(Far)),
    "a property that raises": (lambda x: x * 2, lambda x: x.as_subclass(Failing)),
    "an attribute without a hash": (lambda x: x * 2, lambda x: with_a_list()),
    "torch.Tensor.__new__": (lambda x: torch.Tensor.__new__(Kept, x), KINDS["kept"]),
}


@pytest.mark.parametrize("what", LEFT)
def test_left_to_eager(what):
    """These calls run as they are, or are refused by name where all is to be compiled."""
    function, make = LEFT[what]
    compiled = funcaot.compile(function, backend="eager")
    with pytest.warns(funcaot.errors.CaptureWarning, match="runs in eager"):
        assert looks(compiled(make(value()))) == looks(function(make(value())))
    assert looks(compiled(make(value()))) == looks(function(make(value())))
    refused = funcaot.compile(function, backend="eager", fullgraph=True)
    with pytest.raises(UnsupportedError, match="Instead"):
        refused(make(value()))
