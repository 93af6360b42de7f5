"""An attribute that comes to hide what a ``__getattr__`` answered is seen by the next call.

The oracle is the function itself in eager mode.
"""

import types

import pytest
import torch

import funcaot


class OfStore:
    def __init__(self):
        self.store = {"scale": 2}

    def __getattr__(self, name):
        if name == "store":
            raise AttributeError(name)
        return self.store[name]


def on_an_object():
    thing = OfStore()
    return thing, [
        lambda: thing.store.update(scale=3),
        lambda: setattr(thing, "scale", 50),
        lambda: delattr(thing, "scale"),
    ]


def on_its_class():
    kind = type("Kind", (OfStore,), {})
    return kind(), [lambda: setattr(kind, "scale", 50), lambda: delattr(kind, "scale")]


def on_a_module_of_python():
    module = types.ModuleType("answers")
    answers = [2]
    module.__getattr__ = lambda name: answers[0]
    return module, [
        lambda: answers.__setitem__(0, 3),
        lambda: setattr(module, "scale", 50),
        lambda: delattr(module, "scale"),
    ]


def on_a_class_of_a_metaclass():
    class Meta(type):
        def __getattr__(cls, name):
            return cls.store[name]

    class Kind(metaclass=Meta):
        store = {"scale": 2}

    return Kind, [
        lambda: setattr(Kind, "scale", 50),
        lambda: delattr(Kind, "scale"),
        lambda: setattr(Meta, "scale", 9),
    ]


def on_a_wrapper_of_a_module():
    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Identity()
            self.inner.scale = 2

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

    wrapper = Wrapper()
    return wrapper, [
        lambda: setattr(wrapper.inner, "scale", 3),
        lambda: setattr(wrapper, "scale", 50),
        lambda: delattr(wrapper, "scale"),
        lambda: setattr(Wrapper, "scale", 9),
    ]


MAKERS = [
    on_an_object,
    on_its_class,
    on_a_module_of_python,
    on_a_class_of_a_metaclass,
    on_a_wrapper_of_a_module,
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_hides_an_answer_is_seen(make):
    thing, changes = make()

    def function(x):
        return x * thing.scale

    compiled = funcaot.compile(function, backend="eager")
    x = torch.rand(3)
    for change in (lambda: None, *changes):
        change()
        assert torch.equal(compiled(x), function(x))
        assert torch.equal(compiled(x), function(x))
    assert funcaot.report(compiled).cache_hits >= len(changes)
