"""The same of what isn't an attribute or an item by its name; see ``test_assigned``."""

from types import SimpleNamespace

import pytest
import torch

import funcaot


def new():
    return torch.rand(3)


def variable():
    a = b = new()

    def f(x):
        nonlocal a
        a = b
        return x + 1

    def change_source():
        nonlocal b
        b = new()

    def change_target():
        nonlocal a
        a = new()

    return f, lambda: a is b, change_source, change_target


def about(o, f, at, change_target):
    """A life of an object with the source ``g``."""
    return f, lambda: at() is o.g, lambda: setattr(o, "g", new()), change_target


def gradient():
    p, o = torch.nn.Parameter(new()), SimpleNamespace(g=new())
    p.grad = o.g

    def f(x):
        p.grad = o.g
        return x + 1

    return about(o, f, lambda: p.grad, lambda: setattr(p, "grad", new()))


def attribute_of_a_tensor():
    t, o = new(), SimpleNamespace(g=new())
    t.kept = o.g

    def f(x):
        t.kept = o.g
        return x + 1

    return about(o, f, lambda: t.kept, lambda: setattr(t, "kept", new()))


def attribute_of_a_function():
    def held():
        pass

    o = SimpleNamespace(g=new())
    held.kept = o.g

    def f(x):
        held.kept = o.g
        return x + 1

    return about(o, f, lambda: held.kept, lambda: setattr(held, "kept", new()))


def by_object():
    o = SimpleNamespace(g=new())
    o.t = o.g

    def f(x):
        object.__setattr__(o, "t", o.g)
        return x + 1

    return about(o, f, lambda: o.t, lambda: setattr(o, "t", new()))


def by_slice():
    o = SimpleNamespace(g=new())
    kept = [o.g, o.g]

    def f(x):
        kept[:1] = [o.g]
        return x + 1

    return about(o, f, lambda: kept[0], lambda: kept.__setitem__(0, new()))


def in_a_loop():
    o, kept = SimpleNamespace(g=[3, 4]), [3, 4]

    def f(x):
        for i in range(2):
            kept[i] = o.g[i]
        return x + 1

    def change_source():
        o.g = [o.g[0] + 4, o.g[1] + 4]

    return f, lambda: kept == o.g, change_source, lambda: kept.__setitem__(0, 9)


def in_a_set():
    kept, key = {"a"}, "b"

    def f(x):
        kept.add("a")
        kept.add(key)
        return x + 1

    return f, lambda: kept >= {"a", "b"}, kept.clear, lambda: kept.discard("a")


def parameter_of_a_module():
    module, o = torch.nn.Module(), SimpleNamespace(g=torch.nn.Parameter(new()))
    module.t = o.g

    def f(x):
        module.t = o.g
        return x + 1

    def change_source():
        o.g = torch.nn.Parameter(new())

    def change_target():
        module.t = torch.nn.Parameter(new())

    return f, lambda: module.t is o.g, change_source, change_target


def buffer_of_a_module():
    module, o = torch.nn.Module(), SimpleNamespace(g=new())
    module.register_buffer("t", o.g)

    def f(x):
        module.t = o.g
        return x + 1

    return about(o, f, lambda: module.t, lambda: setattr(module, "t", new()))


MADE = (
    variable,
    gradient,
    attribute_of_a_tensor,
    attribute_of_a_function,
    by_object,
    by_slice,
    in_a_loop,
    in_a_set,
    parameter_of_a_module,
    buffer_of_a_module,
)


@pytest.mark.parametrize("changes", ["call call source call target call", "call target call"])
@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_is_assigned_in_each_call(make, changes):
    f, holds, change_source, change_target = make()
    compiled = funcaot.compile(f, backend="eager")
    for step in changes.split():
        if step == "source":
            change_source()
        elif step == "target":
            change_target()
        else:
            compiled(torch.ones(3))
            assert holds()


@pytest.mark.parametrize("inner", [False, True])
def test_what_is_set_and_deleted_in_the_call(inner):
    """It leaves no trace where it wasn't there at the capture; a later call may find it there."""
    results = []
    for compiled in (False, True):
        w = SimpleNamespace(inside=SimpleNamespace())

        def f(x, w=w):
            thing = w.inside if inner else w
            thing.used = x
            y = thing.used * 2
            del thing.used
            return y

        def unread(x, w=w):
            thing = w.inside if inner else w
            thing.used = x
            del thing.used
            return x * 2

        for function in (f, unread):
            g = funcaot.compile(function, backend="eager") if compiled else function
            for call in range(4):
                if call == 2:
                    (w.inside if inner else w).used = 5
                results.append((g(torch.ones(2)).tolist(), repr(w)))
    half = len(results) // 2
    assert results[:half] == results[half:]
