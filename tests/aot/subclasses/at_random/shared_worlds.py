"""Worlds of tensors that share what is inside of them, programs over these, and gradients.

A world is two wrappers, a plain tensor and a closed-over wrapper: of drawn classes, with drawn
histories, which hold each other's tensors in a drawn way.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

from tests.aot.subclasses.kinds import Factor, TwoTensor
from tests.aot.subclasses.programs import BINARY

__all__ = ["SHARING", "Pair", "gradient_for", "program", "world"]


class Pair(torch.Tensor):
    """Two tensors and perhaps a third, which its results have in common with its operands."""

    aliasing, backwards, third_first = True, False, False

    @staticmethod
    def __new__(cls, a, b, third=None):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, storage_offset=a.storage_offset()
        )

    def __init__(self, a, b, third=None):
        self.a, self.b, self.third = a, b, third

    __repr__ = object.__repr__

    def __tensor_flatten__(self):
        names = ["b", "a"] if self.backwards else ["a", "b"]
        if self.third is not None:
            names.insert(0 if self.third_first else 2, "third")
        return names, (self.backwards,)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"], inner["b"], inner.get("third"))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Pair)]

        def part(name):
            plain = pytree.tree_map_only(Pair, lambda v: getattr(v, name), (args, kwargs))
            return pytree.tree_flatten(func(*plain[0], **plain[1]))

        (firsts, spec), (seconds, _) = part("a"), part("b")
        results = [
            cls(a, b, found[0].third) if isinstance(a, torch.Tensor) else a
            for a, b in zip(firsts, seconds, strict=True)
        ]
        result = pytree.tree_unflatten(results, spec)
        if cls.aliasing:
            return return_and_correct_aliasing(func, args, kwargs, result)
        return args[0] if func._schema.is_mutable else result


class Plainly(Pair):
    """It says nothing about aliases."""

    aliasing, third_first = False, True


class Backwards(Pair):
    """Its tensors are named in another order, and functions of torch ask it."""

    backwards = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


Plainly.__torch_function__ = torch._C._disabled_torch_function_impl
CLASSES = (Pair, Plainly, Backwards)
SHARING = (
    "nothing", "a part", "both parts", "twice one", "plain", "plain part", "view", "nested",
    "themselves", "closed", "one base", "gaps", "turned", "third",
)  # fmt: skip


def world(sharing, kind, seed, n, histories):
    """Two wrappers, a plain tensor and a wrapper to close over."""
    generator = torch.Generator().manual_seed(seed)

    def new():
        return torch.randn(n, n, generator=generator)

    a, b, c, d, p, third = new(), new(), new(), new(), new(), None
    if sharing == "one base":
        base = torch.randn(4, n, n, generator=generator)
        a, b, c, d = base
    if sharing == "gaps":
        a, b, c, d = (torch.randn(n, 2 * n, generator=generator)[:, :n] for _ in range(4))
    if sharing == "turned":
        a, b, c, d = (each.t() for each in (a, b, c, d))
    if sharing == "third":
        third = torch.arange(3)
    a, b, c, d, p = _shared(sharing, a, b, c, d, p)
    x, y, closed = kind(a, b, third), kind(c, d, third), kind(new(), new(), third)
    if sharing == "nested":
        y = kind(x, kind(c, d))
    if sharing == "themselves":
        y = x
    if sharing == "closed":
        closed = kind(a, d)
    inner = [a, c]
    given = []
    for value, history in zip((x, y, p), histories, strict=True):
        if history == "inner" and value is not p:
            part = inner[len(given)]
            if part.is_leaf and not isinstance(part, Pair):
                part.requires_grad_()
        if history in ("leaf", "result") and value.is_leaf:
            value.requires_grad_()
        given.append(value * 1 if history == "result" else value)
    return given, closed


def _shared(sharing, a, b, c, d, p):
    if sharing == "a part":
        c = a
    if sharing == "both parts":
        c, d = b, a
    if sharing == "twice one":
        b, d = a, c
    if sharing == "plain":
        p = a
    if sharing == "plain part":
        p = a[:]
    if sharing == "view":
        b = a.view(a.shape)
    return a, b, c, d, p


UNARY = {
    "sin": lambda x: x.sin(),
    "two": lambda x: x * 2,
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "t": lambda x: x.t(),
    "rows": lambda x: x[:],
    "view": lambda x: x.view(x.shape),
    "row": lambda x: x[:1] + x,
    "softmax": lambda x: torch.softmax(x, -1),
    "data": lambda x: x.data,
    "alias": lambda x: x.view_as(x),
    "copy": lambda x: torch.zeros_like(x).copy_(x),
}
WRITES = {
    "mul_": lambda x, y: x.mul_(1.5),
    "add_": lambda x, y: x.add_(1),
    "row_": lambda x, y: x[0].mul_(2),
    "copy_": lambda x, y: x.copy_(y * 2),
    "set": lambda x, y: x.__setitem__(0, 3.0),
    "iadd": lambda x, y: x.add_(y),
}


def _leaf(x, y, kind):
    return kind(x.detach() * 1, y.detach() * 1).requires_grad_()


def program(draw, kind, writes):
    """A function of two wrappers and a plain tensor, as text and as itself."""
    tables = ["unary", "unary", "binary", "binary", "inside", "wrap", "factor", "leaf", "no grad"]
    tables += ["write", "write", "write inside", "write inside"] * writes
    steps = []
    for _ in range(draw.randint(1, 4)):
        table = draw.choice(tables)
        names = {"unary": UNARY, "binary": BINARY, "write": WRITES, "write inside": WRITES}
        name = draw.choice(list(names.get(table, "ab")))
        steps.append((table, name, draw.choice("xyzpqwc"), draw.choice("xyzpqwc")))
    ends = draw.sample("xyzwpqc", draw.randint(1, 3))

    def run(closed, x, y, p):
        held = {"x": x, "y": y, "p": p, "c": closed, "z": x * y, "q": p * 2, "w": x + 1}
        for table, name, one, other in steps:
            _step(held, kind, table, name, (one, other))
        return [held[end] for end in ends]

    return f"{kind.__name__} {steps} {ends}", run


def _step(held, kind, table, name, operands):
    one, other = (held[operand] for operand in operands)
    if table == "unary":
        held["w"], held["z"] = held["z"], UNARY[name](one)
    elif table == "binary":
        held["w"], held["z"] = held["z"], BINARY[name](one, other)
    elif table == "inside" and isinstance(one, Pair):
        held["q"] = getattr(one, name)
    elif table == "wrap":
        held["w"] = kind(one, other)
    elif table == "factor":
        held["w"] = Factor(one, 2)
    elif table == "leaf":
        held["w"] = _leaf(one, other, kind)
    elif table == "no grad":
        with torch.no_grad():
            held["w"] = one * 2
    elif table == "write":
        WRITES[name](one, other)
    elif table == "write inside" and isinstance(one, Pair):
        WRITES[name](one.a, other.b if isinstance(other, Pair) else other)


def gradient_for(value, draw, kind, pool):
    """A gradient: of the class, plain, around one tensor twice, of another class, or none."""
    what = draw.choice(("same", "same", "plain", "twice", "other", "two", "shared", "turned"))
    one, other = draw.choices(pool, k=2)
    if tuple(one.shape) != tuple(value.shape):
        return torch.ones_like(value)
    if what == "plain":
        return one
    if what == "twice":
        return kind(one, one)
    if what == "other":
        return draw.choice(CLASSES)(one, other)
    if what == "two":
        return TwoTensor(one, other)
    if what == "turned":
        return kind(one.t(), other.t())
    return torch.ones_like(value) if what == "same" else kind(one, other)
