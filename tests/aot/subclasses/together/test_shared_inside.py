"""What arguments and gradients hold together, tensors, wrappers, objects: another in each call.

The oracle is the function itself, called with things that share in the same way: which results,
parts and metadata are which objects, which share memory, values, and values after writes.
"""

import collections
import random

import pytest
import torch
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import Factor, TwoTensor, made, same
from tests.hostile import COMPILER


class Note(dict):
    """Compares by value, and can be changed."""


class Noted(torch.Tensor):
    """Two tensors and two notes, which results take from one of their operands, or are new."""

    first, keeps = True, True

    @staticmethod
    def __new__(cls, a, b, label, seen):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)

    def __init__(self, a, b, label, seen):
        self.a, self.b, self.label, self.seen = a, b, label, seen

    __repr__ = object.__repr__

    def __tensor_flatten__(self):
        return ["a", "b"], (self.label, self.seen)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"], inner["b"], *context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        found = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Noted)]

        def part(name):
            plain = pytree.tree_map_only(Noted, lambda v: getattr(v, name), (args, kwargs or {}))
            return func(*plain[0], **plain[1])

        a, b = part("a"), part("b")
        if func._schema.is_mutable:
            return args[0]
        seen = found[-1].seen if cls.keeps else Note(op=str(func))
        return cls(a, b, found[0 if cls.first else -1].label, seen)


class LastKeeps(Noted):
    first = False


class FirstNew(Noted):
    keeps = False


class LastNew(Noted):
    first, keeps = False, False


UNARY = {
    "two": lambda x: x * 2,
    "sin": lambda x: x.sin(),
    "clone": lambda x: x.clone(),
    "t": lambda x: x.t(),
    "detach": lambda x: x.detach(),
    "exp": lambda x: x.exp(),
}
BINARY = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "matmul": lambda x, y: x @ y,
}
WRITES = {"mul_": lambda x: x.mul_(1.5), "add_": lambda x: x.add_(1)}


def program(draw, kind, writes):
    """A function of two wrappers and a plain tensor, as text and as itself."""
    steps = []
    tables = ["unary", "unary", "binary", "binary", "inside", "wrap"] + ["write"] * writes
    for _ in range(draw.randint(1, 4)):
        table = draw.choice(tables)
        names = {"unary": UNARY, "binary": BINARY, "write": WRITES}.get(table, "ab")
        operands = *draw.choices("xyzpq", k=2), draw.choice("xy")
        steps.append((table, draw.choice(list(names)), *operands))
    ends = draw.sample("xyzwpq", draw.randint(1, 3))

    def function(x, y, p):
        held = {"x": x, "y": y, "p": p, "z": x * y, "q": p * 2, "w": x + 1}
        for table, name, one, other, third in steps:
            if table == "unary":
                held["w"], held["z"] = held["z"], UNARY[name](held[one])
            elif table == "binary":
                held["w"], held["z"] = held["z"], BINARY[name](held[one], held[other])
            elif table == "inside" and third == "x":
                held["q"] = getattr(x, name)
            elif table == "wrap":
                held["w"] = kind(held[one], held[other], held[third].label, y.seen)
            elif table == "write":
                WRITES[name](held[one])
        return [held[end] for end in ends]

    return f"{kind.__name__} {steps} {ends}", function


def arguments(pattern, kind, seed, nested):
    """Two wrappers and a plain tensor of a pool of tensors and notes; two notes for gradients."""
    generator = torch.Generator().manual_seed(seed)
    draw = random.Random(pattern)
    tensors = [torch.randn(3, 3, generator=generator) for _ in range(draw.choice((2, 3, 6)))]
    notes = [Note(number=1) for _ in range(draw.choice((1, 2, 3, 8)))]

    def around(*parts):
        return kind(*parts, draw.choice(notes), draw.choice(notes))

    pool = tensors
    if nested:
        pool = [around(*draw.choices(tensors, k=2)) for _ in range(draw.choice((1, 2)))]
    wrappers = [around(*draw.choices(pool, k=2)) for _ in range(2)]
    return *wrappers, draw.choice(tensors), draw.choices(notes, k=2), tensors


def gradient_like(value, draw, tensors, notes):
    """A gradient around tensors of a pool."""
    if isinstance(value, Noted):
        parts = [gradient_like(part, draw, tensors, notes) for part in (value.a, value.b)]
        return type(value)(*parts, *notes)
    found = draw.choice(tensors)
    return found if draw.random() < 0.8 else found * 2


class Told:
    """What can be told of things without their values: numbers for objects and for memory."""

    def __init__(self):
        self.numbers = collections.defaultdict(dict)
        self.alive = []

    def number(self, table, key, thing):
        self.alive.append(thing)
        return self.numbers[table].setdefault(key, len(self.numbers[table]))

    def __call__(self, value):
        if value is None:
            return None
        if isinstance(value, list | tuple):
            return [self(each) for each in value]
        told = [type(value), value.requires_grad, tuple(value.shape), value.stride()]
        if not isinstance(value, Noted):
            memory = self.number("memory", value.untyped_storage()._cdata, value)
            return [*told, memory]
        notes = [self.number("notes", id(note), note) for note in (value.label, value.seen)]
        told += [self.number("tensors", id(value), value), notes, dict(value.seen)]
        return [*told, self(value.a), self(value.b)]


def leaves(value):
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    if isinstance(value, Noted):
        return [*leaves(value.a), *leaves(value.b)]
    return [] if value is None else [value]


def values(value):
    return [leaf.detach().clone() for leaf in leaves(value)]


def derivatives(results, given, draw, tensors, notes):
    """Gradients of two orders for gradients whose insides may be one."""
    found, outputs = [], list({id(r): r for r in results if r.requires_grad}.values())
    inputs = list({id(v): v for v in given[:2] if v.requires_grad}.values())
    for order in range(2):
        if not (outputs and inputs):
            break
        tangents = [gradient_like(each, draw, tensors, notes) for each in outputs]
        gradients = torch.autograd.grad(
            outputs, inputs, tangents, allow_unused=True, create_graph=order == 0
        )
        found.append(gradients)
        outputs = [each for each in gradients if each is not None and each.requires_grad]
    return found


def session(seed, compiling):
    """What three calls do, each of another pattern or of the last one."""
    draw = random.Random(seed)
    kind, nested = draw.choice((Noted, LastKeeps, FirstNew, LastNew)), draw.random() < 0.3
    writes = draw.random() < 0.3
    grads = [not writes and draw.random() < 0.5 for _ in range(2)]
    text, function = program(draw, kind, writes)
    called, told, seen, pattern = compiling(function), Told(), [text], draw.random()
    for call in range(3):
        pattern = pattern if draw.random() < 0.3 else draw.random()
        *given, notes, tensors = arguments(pattern, kind, 10 * seed + call, nested)
        for value, grad in zip(given, grads, strict=False):
            value.requires_grad_(grad)
        try:
            results = called(*given)
            looks, found = [told([given, results])], [*values([results, given])]
            gradients = derivatives(results, given, random.Random(pattern), tensors, notes)
            looks.append(told(gradients))
            found += values(gradients)
            for leaf in leaves(results):
                if not leaf._is_view():
                    with torch.no_grad():
                        leaf.mul_(1.5)
                    found += values([results, given])
        except UnsupportedError:
            return [*seen, "refused"]
        except Exception as error:  # noqa: BLE001  (whatever autograd raises)
            return [*seen, f"raised {type(error).__name__}"]
        seen.append((looks, found))
    return seen


def check(seed):
    """How many calls were compared."""
    wanted = session(seed, lambda function: function)
    found = session(seed, lambda function: funcaot.compile(function, backend=COMPILER))
    if found[-1] == "refused":
        found, wanted = found[:-1], wanted[: len(found) - 1]
    assert len(found) == len(wanted), (seed, wanted[0], found[-1], wanted[-1])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        if isinstance(other, str):
            assert one == other, (seed, wanted[0])
            continue
        assert one[0] == other[0], (seed, wanted[0])
        assert_close(one[1], other[1], rtol=1e-3, atol=1e-4)
    return len(found) - 1


def test_patterns_that_change():
    assert sum(map(check, range(5))) > 10


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_more_patterns(part):
    assert sum(map(check, range(50 * part, 50 * part + 50))) > 100


@pytest.mark.parametrize("backend", ["hostile", pytest.param("inductor", marks=pytest.mark.slow)])
def test_gradients_around_one_tensor_and_around_two(backend):
    compiled = funcaot.compile(
        lambda x: x * 2, backend=COMPILER if backend == "hostile" else backend
    )
    for one in (True, False, True):
        for function in (compiled, compiled.function):
            x = TwoTensor(made(0, 3, grad=False), made(1, 3, grad=False)).requires_grad_()
            inner = torch.full((3,), 3.0)
            gradient = TwoTensor(inner, inner if one else torch.full((3,), 7.0))
            (found,) = torch.autograd.grad(function(x), x, gradient)
            assert_close(found.a, gradient.a * 2)
            assert_close(found.b, gradient.b * 2)
    assert len(compiled.entries) == 1


def test_two_gradients_that_hold_one_tensor_and_two_that_do_not():
    def function(x):
        return x.sin(), x * 3

    compiled = funcaot.compile(function, backend=COMPILER)
    for one in (True, False, True):
        results = []
        for each in (compiled, function):
            x = TwoTensor(made(0, 3, grad=False), made(1, 3, grad=False)).requires_grad_()
            inner = [made(seed, 3, grad=False) for seed in (5, 6, 7)]
            gradients = TwoTensor(*inner[:2]), TwoTensor(inner[0 if one else 2], inner[1])
            results.append(torch.autograd.grad(each(x), x, gradients))
        same(*results)


def test_a_wrapper_around_what_another_argument_holds():
    def function(x, y):
        return Factor(x.inner, y.factor), Factor(y.inner, x.factor)

    compiled = funcaot.compile(function, backend=COMPILER)
    for shared in (False, True, False):
        notes = [Note(number=1), Note(number=1)]
        inner = made(0, 3, grad=False)
        x = Factor(inner, notes[0])
        y = Factor(inner if shared else inner.clone(), notes[1])
        for found, wanted in zip(compiled(x, y), function(x, y), strict=True):
            assert found.factor is wanted.factor
            assert found.inner is wanted.inner


DEFAULT = Note(number=5)


class Constant(Noted):
    """Each result has the note of the module."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return cls(made.a, made.b, DEFAULT, made.seen)


def test_an_object_of_the_module_is_that_object():
    compiled = funcaot.compile(lambda x: x * 2, backend=COMPILER)
    for call in range(3):
        parts = [made(call + seed, 3, grad=False) for seed in range(2)]
        x = Constant(*parts, Note(number=call), Note())
        assert compiled(x).label is DEFAULT
        assert compiled(x).seen is x.seen


def test_an_object_that_a_class_makes_is_new_in_each_call():
    compiled = funcaot.compile(lambda x: x.sin(), backend=COMPILER)
    earlier = []
    for call in range(3):
        parts = [made(call + seed, 3, grad=False) for seed in range(2)]
        result = compiled(FirstNew(*parts, Note(), Note()))
        assert result.seen == {"op": "aten.sin.default"}
        assert all(result.seen is not seen for seen in earlier)
        result.seen["op"] = "changed"
        earlier.append(result.seen)
    assert len(compiled.entries) == 1
