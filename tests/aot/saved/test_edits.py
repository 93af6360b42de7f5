"""Whatever is edited between two processes, a file is never a wrong hit: edits by programs.

Two modules stand for the user's code. Each world makes them anew, as another process would, some
with an edit of a line, of state, of settings or of the call. Eager in the same world is the oracle.
"""

import contextlib
import os
import sys
import types

import pytest
import torch

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

MAIN, OTHER = "edited_main_of_tests", "edited_other_of_tests"
SOURCES = {
    OTHER: """
import collections, enum
import torch
FACTOR = 2.0
class Kind(enum.Enum):
    SMALL = 0.125
    LARGE = 8.0
Point = collections.namedtuple("Point", "left right", defaults=(0.375,))
class Fields:
    depth: int
class Base:
    weight = 0.5
    def apply(self, x):
        return x * self.weight
def deeper(x):
    return x + 0.5
def callee(x, shift=1.0, *, scale=3.0):
    return deeper(x) * FACTOR + shift * scale
""",
    MAIN: """
import functools, os
import numpy
import torch
from torch import nn
import edited_other_of_tests as other
FLAG = True
NUMBERS = [1.0, 2.0]
TABLE = {"a": 1.5}
ARRAY = numpy.array([1.0, 2.0])
POWER = 2
def make(inner):
    def closure(x):
        return x.sin() * inner
    return closure
CLOSED = make(0.7)
PARTIAL = functools.partial(other.callee, shift=2.0)
class Helper(other.Base):
    bias = 0.25
    @property
    def slope(self):
        return 0.1
    @staticmethod
    def halved(x):
        return x / 2
    def __call__(self, x):
        return self.halved(self.apply(x)) + self.bias + self.slope
HELPER = Helper()
def times(n):
    def wrap(f):
        @functools.wraps(f)
        def g(*args):
            return f(*args) * n
        return g
    return wrap
@times(1.25)
def inner(x):
    return x.cos()
class Network(nn.Module):
    gain = 1.1
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)
        self.act = nn.LeakyReLU(0.1)
        self.shift = nn.Buffer(torch.ones(3))
        self.rate, self.calls, self.last = 0.3, 0, None
    def forward(self, x, mode="a"):
        STATE
        y = self.second(self.act(self.first(x))) * self.gain + self.shift * self.rate
        if FLAG:
            y = y + CLOSED(x)
        y = y + other.callee(x) + PARTIAL(x) + HELPER(x) + inner(x)
        y = y + other.Kind.SMALL.value + len(other.Kind) + other.Point(0.5).right
        y = y + len(other.Fields.__annotations__)
        y = y + sum(NUMBERS) * TABLE["a"] + x ** POWER + float(ARRAY[1])
        if os.environ.get("EDITED_BY_TESTS") or mode == "b":
            y = y * 2
        if torch.is_grad_enabled() and self.training:
            y = y * 1.5
        return y, torch.ones(2).dtype.itemsize
""",
}
STATES = {
    "fixed": "pass",
    "open": "pass",
    "stateful": "self.calls += 1; self.last = x.detach() * 2",
}


class World:
    """The modules with a model, as one process has them."""

    def __init__(self, monkeypatch, kind, edit=None):
        sources = {name: text.replace("STATE", STATES[kind]) for name, text in SOURCES.items()}
        if edit is not None:
            (name,) = [name for name, text in sources.items() if edit[0] in text]
            assert sources[name].count(edit[0]) == 1, edit
            sources[name] = sources[name].replace(*edit)
        self.modules = {}
        for name, text in sources.items():
            self.modules[name] = module = types.ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(text, vars(module))
        self.main, self.other = self.modules[MAIN], self.modules[OTHER]
        self.model = self.main.Network()
        self.size = 4
        self.keywords = {}
        self.dtype = torch.float32

    def input(self):
        torch.manual_seed(self.size)
        return torch.randn(self.size, 3, dtype=self.dtype, requires_grad=True)


def shown(world, target):
    """Results, gradients and state of two calls."""
    found = []
    for _ in range(2):
        x = world.input()
        y, size = target(x, **world.keywords)
        if y.requires_grad:
            y.square().sum().backward()
        found.append((y.detach(), x.grad, size))
    gradients = [parameter.grad for parameter in world.model.parameters()]
    return found, gradients, world.model.calls, world.model.last


EDITS = {
    "a callee of a callee in another module": ("return x + 0.5", "return x + 0.25"),
    "a global of another module": ("FACTOR = 2.0", "FACTOR = 4.0"),
    "the value of a member": ("SMALL = 0.125", "SMALL = 0.25"),
    "one more member": ("LARGE = 8.0", "LARGE = 8.0; MORE = 9.0"),
    "a default of a named tuple": ("defaults=(0.375,)", "defaults=(0.625,)"),
    "one more field": ("depth: int", "depth: int; width: int"),
    "a default": ("shift=1.0", "shift=1.5"),
    "a keyword default": ("scale=3.0", "scale=2.0"),
    "an attribute of a base class": ("weight = 0.5", "weight = 0.75"),
    "an attribute of a class": ("bias = 0.25", "bias = 0.5"),
    "a property": ("return 0.1", "return 0.2"),
    "a static method": ("return x / 2", "return x / 4"),
    "a special method": ("self.slope", "2 * self.slope"),
    "another base": ("Helper(other.Base)", "Helper(type('B', (other.Base,), {'weight': 3}))"),
    "a flag": ("FLAG = True", "FLAG = False"),
    "a list": ("[1.0, 2.0]\nTABLE", "[1.0, 3.0]\nTABLE"),
    "a dictionary": ('{"a": 1.5}', '{"a": 2.5}'),
    "an array": ("numpy.array([1.0, 2.0])", "numpy.array([1.0, 3.0])"),
    "a number's kind": ("POWER = 2", "POWER = 3.0"),
    "a closed over number": ("make(0.7)", "make(0.9)"),
    "the code of a closure": ("x.sin() * inner", "x.sin() + inner"),
    "an argument of a partial": ("other.callee, shift=2.0", "other.callee, shift=3.0"),
    "an argument of a decorator": ("@times(1.25)", "@times(1.5)"),
    "a decorated function": ("return x.cos()", "return x.tan()"),
    "the forward": ("self.shift * self.rate", "self.shift - self.rate"),
    "a constant in __init__": ("self.calls, self.last = 0.3", "self.calls, self.last = 0.4"),
    "a layer of another kind": ("nn.LeakyReLU(0.1)", "nn.ELU(0.1)"),
    "a setting of a layer": ("nn.LeakyReLU(0.1)", "nn.LeakyReLU(0.2)"),
    "a layer without bias": ("nn.Linear(4, 3)\n", "nn.Linear(4, 3, bias=False)\n"),
    "a class attribute of the model": ("gain = 1.1", "gain = 1.2"),
}  # fmt: skip


@contextlib.contextmanager
def environ(world):
    os.environ["EDITED_BY_TESTS"] = "1"
    try:
        yield
    finally:
        del os.environ["EDITED_BY_TESTS"]


@contextlib.contextmanager
def setting(get, put, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def doing(action):
    @contextlib.contextmanager
    def change(world):
        action(world)
        yield

    return change


def with_hook(world):
    world.model.act.register_forward_hook(lambda module, args, out: out * 2)


def tied(world):
    world.model.first = torch.nn.Linear(3, 3)
    world.model.second = world.model.first


def strided(world):
    weight = world.model.first.weight
    weight.data = weight.data.t().contiguous().t()


CHANGES = {
    "an environment variable": environ,
    "training": doing(lambda world: world.model.eval()),
    "an attribute": doing(lambda world: setattr(world.model, "rate", 0.7)),
    "an attribute of an instance hides the class's": doing(
        lambda world: setattr(world.model, "gain", 2.0)
    ),
    "an item": doing(lambda world: world.main.NUMBERS.append(5.0)),
    "an element": doing(lambda world: world.main.ARRAY.__setitem__(1, 7.0)),
    "a function that was put in its place": doing(
        lambda world: setattr(world.other, "deeper", lambda x: x - 1)
    ),
    "a hook": doing(with_hook),
    "a hook of all modules": lambda world: torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * 2 if isinstance(module, torch.nn.LeakyReLU) else None
    ),
    "a hook of a parameter": doing(
        lambda world: world.model.first.weight.register_hook(lambda grad: grad * 2)
    ),
    "requires_grad": doing(lambda world: world.model.first.requires_grad_(False)),
    "a frozen buffer": doing(lambda world: setattr(world.model, "shift", torch.full((3,), 2.0))),
    "dtypes": doing(lambda world: (world.model.double(), setattr(world, "dtype", torch.float64))),
    "strides of a parameter": doing(strided),
    "tied layers": doing(tied),
    "a value of an argument": doing(lambda world: world.keywords.update(mode="b")),
    "the default dtype": lambda world: setting(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "deterministic algorithms": lambda world: setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "precision": lambda world: setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "threads": lambda world: setting(torch.get_num_threads, torch.set_num_threads, 3),
    "autocast": lambda world: torch.autocast("cpu", torch.bfloat16),
    "no_grad": lambda world: torch.no_grad(),
    "inference mode": lambda world: torch.inference_mode(),
    "anomaly mode": lambda world: torch.autograd.set_detect_anomaly(True),
}
# Eager's answer doesn't tell these; nothing that was compiled depends on them, or only values do.
MAY_HIT = {
    "a frozen buffer", "a hook of a parameter", "threads", "anomaly mode", "a constant in __init__",
}  # fmt: skip


def options(kind):
    return {"backend": "eager", "dynamic": True if kind == "open" else None}


def saved(monkeypatch, kind, path):
    world = World(monkeypatch, kind)
    compiled = funcaot.compile(world.model, **options(kind))
    shown(world, compiled)
    written = compiled.save(path)
    assert written.programs, str(written)


def check(monkeypatch, kind, path, name, edit, change):
    def play(compiles):
        world = World(monkeypatch, kind, edit)
        world.size = 6 if kind == "open" else 4
        target = world.model
        if compiles:
            target = funcaot.compile(world.model, artifacts=path, **options(kind))
        with change(world) as handle:
            try:
                found = shown(world, target)
            finally:
                if hasattr(handle, "remove"):
                    handle.remove()
        return found, target

    theirs, _ = play(compiles=False)
    ours, compiled = play(compiles=True)
    torch.testing.assert_close(ours, theirs)
    entries = funcaot.report(compiled).entries
    if name not in MAY_HIT:
        assert misses(compiled)
    assert all(entry.source or entry.reason for entry in entries)


def cells(names):
    """Every edit with every kind; a few of each are run always."""
    pairs = [(kind, name) for name in names for kind in STATES]
    return [
        pytest.param(*pair, marks=() if index % 7 == 0 else pytest.mark.slow)
        for index, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize("kind", STATES)
def test_without_an_edit_it_is_found(kind, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    saved(monkeypatch, kind, path)
    world = World(monkeypatch, kind)
    world.size = 6 if kind == "open" else 4
    compiled = funcaot.compile(world.model, artifacts=path, **options(kind))
    ours = shown(world, compiled)
    assert is_loaded(compiled)
    assert not misses(compiled)
    world = World(monkeypatch, kind)
    world.size = 6 if kind == "open" else 4
    torch.testing.assert_close(ours, shown(world, world.model))


@pytest.mark.parametrize(("kind", "edit"), cells(EDITS))
def test_an_edit_of_the_source(kind, edit, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    saved(monkeypatch, kind, path)
    check(monkeypatch, kind, path, edit, EDITS[edit], lambda world: contextlib.nullcontext())


@pytest.mark.parametrize(("kind", "change"), cells(CHANGES))
def test_a_change_of_state(kind, change, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    saved(monkeypatch, kind, path)
    check(monkeypatch, kind, path, change, None, CHANGES[change])
