"""Objects that are new in each call are compared by what is read of them, and by nothing less.

Each program is called with a sequence of pairs of objects: new ones with other tensors, one that is
there twice, one that another call had, ones with other numbers, other text, other attributes. After
each call, its value and what the objects hold are those of eager.
"""

import copy
import dataclasses
import functools
import types

import pytest
import torch

import funcaot


class Plain:
    """A class as most are."""

    factor = 2.0

    def __init__(self, w, n, label):
        self.w, self.n, self.label = w, n, label
        self.seen, self.log = 0, []

    def times(self, x):
        return x * self.w * self.factor

    @property
    def doubled(self):
        return self.w * 2


class Slotted:
    __slots__ = ("label", "log", "n", "seen", "w")
    factor = 2.0
    __init__, times, doubled = Plain.__init__, Plain.times, Plain.doubled


@dataclasses.dataclass
class Data:
    w: torch.Tensor
    n: int
    label: str
    seen: int = 0
    log: list = dataclasses.field(default_factory=list)
    factor = 2.0
    times, doubled = Plain.times, Plain.doubled


@dataclasses.dataclass(eq=False)
class Record(Data):
    """One that is equal to itself alone."""


class Looking(Plain):
    """Attributes come from a table."""

    def __init__(self, w, n, label):
        self.table = {"w": w, "n": n, "label": label, "seen": 0, "log": []}

    def __getattr__(self, name):
        try:
            return self.__dict__["table"][name]
        except KeyError:
            raise AttributeError(name) from None


def namespace(w, n, label):
    made = types.SimpleNamespace(w=w, n=n, label=label, seen=0, log=[], factor=2.0)
    made.times = functools.partial(Plain.times, made)
    made.doubled = w * 2
    return made


KINDS = {
    "plain": Plain,
    "slots": Slotted,
    "dataclass": Data,
    "record": Record,
    "table": Looking,
    "namespace": namespace,
}
TABLE = {}


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, thing):
        ctx.thing = thing
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.thing.w.sum() * ctx.thing.n, None


class Closing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.function(cotangent), None


def returned_later(x, a, b):
    return lambda x: a.w * b.n


def kept_by_name(x, a, b):
    TABLE.clear()
    TABLE["a"] = a
    return x * 2


def assigned(x, a, b):
    a.w = x * 3
    return a.w + b.w


def counted(x, a, b):
    a.seen += 1
    b.seen += 10
    return x * a.seen


def appended(x, a, b):
    a.log.append(x * a.n)
    b.log.append(b.w)
    return sum(map(torch.sum, a.log))


def put_in(x, a, b):
    a.log = [b]
    return x + b.w


def written(x, a, b):
    a.w.add_(1)
    return x * b.w


def found_in(x, a, b):
    things = [a, b]
    return x * things.index(b), a in things, things.count(a)


def made_table(x, a, b):
    table = {a: 1.0}
    return x * table.get(b, 5.0)


def looked_up(x, a, b):
    return x * TABLE.get(id(a), 5.0)


def of_two(x, a, b):
    return x * (1 if a is b else 2), a == b, a != b


def caught(x, a, b):
    try:
        return x * a.extra
    except AttributeError:
        return x


def kept_function(x, a, b):
    return Closing.apply(x, lambda g: g * a.w * b.n)


PROGRAMS = {
    "tensors": lambda x, a, b: x * a.w + b.w,
    "numbers": lambda x, a, b: x * a.n,
    "text": lambda x, a, b: x * (2 if a.label == "first" else 3),
    "method": lambda x, a, b: a.times(x) + b.doubled,
    "bound method": lambda x, a, b: [f(x) for f in (a.times, b.times)][1],
    "assigned": assigned,
    "counted": counted,
    "appended": appended,
    "put in": put_in,
    "written": written,
    "returned": lambda x, a, b: (x * 2, a, [b]),
    "returned later": returned_later,
    "returned method": lambda x, a, b: a.times,
    "kept": kept_by_name,
    "in a list": found_in,
    "of two": of_two,
    "one of them": lambda x, a, b: x * (1 if a.w is b.w else 2),
    "has": lambda x, a, b: x * (2 if hasattr(a, "extra") else 3),
    "get": lambda x, a, b: x * getattr(a, "extra", 4.0),
    "caught": caught,
    "class": lambda x, a, b: x * type(a).factor if isinstance(a, type(b)) else x,
    "copied": lambda x, a, b: copy.copy(a).w * x,
    "names": lambda x, a, b: x * len(sorted(vars(a))) if hasattr(a, "__dict__") else x,
    "shapes": lambda x, a, b: x.sum() * a.w.shape[0] + b.n,
    "same text": lambda x, a, b: (x * 2, f"{a.n} {a.label}"),
    "Function": lambda x, a, b: Scaled.apply(x, a),
    "closure in a Function": kept_function,
    "made table": made_table,
    "keys": lambda x, a, b: ({a: x * 2}, {b}),
    "looked up": looked_up,
}


def sequence(make):
    """Pairs of objects, some of them from former calls."""

    def new(fill, n=2, label="first", size=3):
        return make(torch.full((size,), fill), n, label)

    one, other = new(1.0), new(2.0)
    yield one, other
    yield new(3.0), new(4.0)
    yield new(5.0), other
    yield one, one
    yield other, one
    yield new(6.0, n=3), new(6.5, n=4)
    yield new(7.0, n=5), new(7.5, label="second")
    yield new(8.0, label="second"), new(8.5)
    shared = new(9.0)
    shared.w = one.w
    yield shared, one
    extra = new(10.0)
    if hasattr(extra, "__dict__"):
        extra.extra = 7.0
    yield extra, new(11.0)
    hiding = new(12.0)
    if hasattr(hiding, "__dict__"):
        hiding.times = lambda x: x * 100
    yield hiding, new(13.0)
    yield new(14.0, size=1), new(15.0, size=3)
    last = new(16.0)
    yield last, last
    yield new(17.0), new(18.0)


def held(thing, met):
    """What an object holds, in a form that compares: other objects by when they were met."""
    if isinstance(thing, torch.Tensor):
        return thing.detach().tolist()
    if isinstance(thing, (str, int, float, bool, type(None))):
        return thing
    if callable(thing):
        return ("function", held(thing(torch.ones(3)), met))
    if id(thing) in met:
        return ("met", met.index(id(thing)))
    met.append(id(thing))
    if isinstance(thing, dict):
        return [(held(key, met), held(value, met)) for key, value in thing.items()]
    if isinstance(thing, (list, tuple, set)):
        return [held(item, met) for item in thing]
    names = getattr(type(thing), "__slots__", None) or sorted(vars(thing))
    return type(thing).__name__, [
        (name, held(getattr(thing, name), met))
        for name in names
        if name not in ("times", "doubled", "extra")
    ]


def outcomes(function, make, *, differentiate):
    """What each call of a sequence returns, and leaves in the objects."""
    found = []
    for a, b in sequence(make):
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=differentiate)
        TABLE.clear()
        try:
            value = function(x, a, b)
        except Exception as error:  # noqa: BLE001 - compared
            found.append(type(error).__name__)
            continue
        gradient = None
        if differentiate and isinstance(value, torch.Tensor) and value.requires_grad:
            gradient = torch.autograd.grad(value.sum(), x)[0].tolist()
        met = [id(a), id(b)]
        found.append((held(value, met), gradient, held(dict(TABLE), met), held([a, b], met)))
    return found


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", KINDS)
def test_pairs(kind, name):
    function = PROGRAMS[name]
    compiled = funcaot.compile(function, backend="eager")
    for differentiate in (True, False):
        expected = outcomes(function, KINDS[kind], differentiate=differentiate)
        assert outcomes(compiled, KINDS[kind], differentiate=differentiate) == expected
