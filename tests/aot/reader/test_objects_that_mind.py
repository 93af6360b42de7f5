"""Objects whose own code must not run: the reader looks at them and calls none of their methods.

Such a method may raise, import something, count its calls or take long. Each object here has one
that notes the call and raises. What a compiled function reads of the object doesn't need it.
"""

import collections
import types

import pytest
import torch
from torch import nn

import funcaot

called: list[str] = []


def noting(name):
    def method(*args, **kwargs):
        called.append(name)
        raise RuntimeError(f"{name} ran")

    return method


METHODS = [
    "__getattr__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__hash__",
    "__bool__",
    "__len__",
    "__iter__",
    "__contains__",
    "__getitem__",
    "__call__",
    "__repr__",
    "__str__",
    "__format__",
    "__float__",
    "__int__",
    "__index__",
    "__dir__",
    "__sizeof__",
    "__reduce_ex__",
    "__getstate__",
    "__copy__",
    "__deepcopy__",
    "__setattr__",
    "__array__",
    "__instancecheck__",
    "__tensor_flatten__",
]
PROPERTIES = [
    "other",
    "shape",
    "grad_fn",
    "__module__",
    "__name__",
    "__code__",
    "__wrapped__",
    "__self__",
]
BASES = {
    "object": object,
    "dict": dict,
    "list": list,
    "tuple": tuple,
    "float": float,
    "int": int,
    "str": str,
    "OrderedDict": collections.OrderedDict,
    "Module": nn.Module,
    "ModuleType": types.ModuleType,
    "Exception": Exception,
}
FROM_OUTSIDE = {
    "global": "def f(x): return x * o.k",
    "compared with None": "def f(x): return x * o.k if o is not None else x",
    "default": "def f(x, o=o): return x * o.k",
    "closure": "def make(o):\n def f(x): return x * o.k\n return f\nf = make(o)",
    "list": "items = [o]\ndef f(x): return x * items[0].k",
    "dictionary": "items = {'a': o}\ndef f(x): return x * items['a'].k",
    "attribute": "box = Box(o=o)\ndef f(x): return x * box.o.k",
    "attribute beside": "box = Box(o=o, z=2.0)\ndef f(x): return x * box.z",
    "item beside": "items = [o, 1]\ndef f(x): return x * len(items)",
    "iterated": "items = [o, o]\ndef f(x):\n for o in items: x = x * o.k\n return x",
    "getattr": "def f(x): return x * getattr(o, 'k')",
    "method": "class A:\n o = o\n def f(self, x): return x * self.o.k\nf = A().f",
    "argument of a helper": "def h(a, x): return x * a.k\ndef f(x): return h(o, x)",
    "returned": "def f(x): return x * o.k, o",
}
AS_ARGUMENTS = {
    "argument": ("def f(x, o): return x * o.k", lambda o: o),
    "in a list": ("def f(x, o): return x * o[0].k", lambda o: [o]),
}


def members(name):
    return {name: property(noting(name)) if name in PROPERTIES else noting(name)}


def of_base(base, name):
    kind = type("Minds", (BASES[base],), members(name))
    made = kind.__new__(kind, "made") if base == "ModuleType" else kind.__new__(kind)
    if base == "ModuleType":
        types.ModuleType.__init__(made, "made")
    elif base == "Module":
        nn.Module.__init__(made)
    object.__setattr__(made, "k", 2.0)
    return made


def with_slots(name):
    made = object.__new__(type("Minds", (), {**members(name), "__slots__": ("k", "unset")}))
    object.__setattr__(made, "k", 2.0)
    return made


def of_metaclass(name):
    return type.__new__(type("Meta", (type,), members(name)), "Minds", (), {"k": 2.0})


def function_of(source, **names):
    names = {"torch": torch, "Box": types.SimpleNamespace, **names}
    exec(source, names)
    return names["f"]


def first(result):
    return result[0] if isinstance(result, tuple) else result


def check(function, *arguments):
    """Three calls, which call what eager calls: nothing."""
    x = torch.ones(3, requires_grad=True)
    called.clear()
    expected = first(function(x, *arguments))
    assert not called, "eager calls it"
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        result = first(compiled(x, *arguments))
        assert torch.equal(result, expected) and not called, called
    assert funcaot.report(compiled).cache_misses == 1


def makers():
    yield from ((base, lambda name, base=base: of_base(base, name)) for base in BASES)
    yield "slots", with_slots
    yield "metaclass", of_metaclass


def makes_sense(base, name):
    if base == "metaclass":
        return name not in ("__module__", "__name__")
    # A module of torch's sets its own attributes, and Python asks an exception for its dictionary.
    return (base, name) != ("Module", "__setattr__")


OBJECTS = [
    pytest.param(make, name, id=f"{base}-{name}")
    for base, make in makers()
    for name in METHODS + PROPERTIES
    if makes_sense(base, name)
]


@pytest.mark.parametrize(("make", "name"), OBJECTS[::15])
def test_nothing_of_theirs_runs(make, name):
    for source in FROM_OUTSIDE.values():
        check(function_of(source, o=make(name)))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("make", "name"), OBJECTS)
def test_nothing_of_theirs_runs_whatever_minds(make, name):
    for source in FROM_OUTSIDE.values():
        check(function_of(source, o=make(name)))


@pytest.mark.parametrize("name", METHODS + PROPERTIES)
@pytest.mark.parametrize("make", [lambda name: of_base("object", name), with_slots, of_metaclass])
def test_nothing_of_an_argument_runs(make, name):
    if make is of_metaclass and not makes_sense("metaclass", name):
        pytest.skip("the class has no name to be called by")
    if name == "__eq__":
        pytest.skip("what compares itself and has no hash can't be part of a signature")
    for source, wrap in AS_ARGUMENTS.values():
        check(function_of(source), wrap(make(name)))
