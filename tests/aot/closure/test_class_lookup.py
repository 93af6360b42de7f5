"""What comes to hide, or stops hiding, an attribute of a class is noticed as lookup finds it."""

import pytest
import torch

import funcaot


def on_a_metaclass():
    class Meta(type):
        k = 2

    class Parent(metaclass=Meta):
        pass

    class Child(Parent):
        pass

    def read(x):
        return x * Child.k

    yield read
    Meta.k = 3
    yield read
    Parent.k = 5
    yield read
    Child.k = 7
    yield read
    del Parent.k, Child.k
    yield read


def on_a_metaclass_of_another():
    class First(type):
        k = 2

    class Second(First):
        pass

    class Kind(metaclass=Second):
        pass

    def read(x):
        return x * Kind.k

    yield read
    Second.k = 3
    yield read


def a_method_of_a_metaclass():
    class Meta(type):
        def scaled(cls, x):
            return x * 3

    class Kind(metaclass=Meta):
        pass

    def read(x):
        return Kind.scaled(x)

    yield read
    Kind.scaled = lambda x: x * 9
    yield read
    del Kind.scaled
    yield read


def made_by_a_metaclass():
    class Meta(type):
        k = 2

        def __call__(cls):
            made = super().__call__()
            made.own = cls.k
            return made

    class Kind(metaclass=Meta):
        pass

    def read(x):
        return x * Kind().own

    yield read
    Meta.k = 3
    yield read
    Kind.k = 4
    yield read


def a_descriptor():
    class Given:
        def __init__(self, value):
            self.value = value

        def __get__(self, instance, owner):
            return self.value

    class Parent:
        k = Given(2)

    class Child(Parent):
        pass

    thing = Child()

    def read(x):
        return x * thing.k * Child.k

    yield read
    vars(Parent)["k"].value = 3
    yield read
    Child.k = 4
    yield read
    thing.k = 5
    yield read
    del Child.k
    yield read


def a_method_by_super():
    class Parent:
        def scaled(self, x):
            return x * 2

    class Middle(Parent):
        pass

    class Child(Middle):
        def scaled(self, x):
            return super().scaled(x) + 1

    thing = Child()

    def read(x):
        return thing.scaled(x)

    yield read
    Middle.scaled = lambda self, x: x * 5
    yield read
    Parent.scaled = lambda self, x: x * 6
    yield read
    del Middle.scaled
    yield read


def a_value_by_super():
    class Parent:
        k = 2

    class Middle(Parent):
        pass

    class Child(Middle):
        k = 100

        @property
        def inherited(self):
            return super().k

    thing = Child()

    def read(x):
        return x * thing.inherited

    yield read
    Parent.k = 3
    yield read
    Middle.k = 4
    yield read
    del Middle.k
    yield read


def in_a_module_by_super():
    class Parent(torch.nn.Module):
        k = 2

        def forward(self, x):
            return x * self.k

    class Middle(Parent):
        pass

    class Child(Middle):
        def forward(self, x):
            return super().forward(x) + 1

    module = Child()
    yield module
    Middle.forward = lambda self, x: x * 5
    yield module
    del Middle.forward
    yield module
    Middle.k = 9
    yield module


WAYS = [
    on_a_metaclass,
    on_a_metaclass_of_another,
    a_method_of_a_metaclass,
    made_by_a_metaclass,
    a_descriptor,
    a_method_by_super,
    a_value_by_super,
    in_a_module_by_super,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_as_eager_finds_it(way):
    compiled = None
    for step, function in enumerate(way()):
        compiled = compiled or funcaot.compile(function, backend="eager")
        for call in range(3):
            x = torch.full((3,), call + 1.0)
            assert torch.equal(compiled(x), function(x)), f"step {step}, call {call}"


class Codes:
    """Some libraries name attributes by words that Python keeps for itself."""


class SlotCodes:
    __slots__ = ("class", "other")


setattr(Codes, "continue", 2.0)
SLOTS = SlotCodes()
setattr(SLOTS, "class", 3.0)


def test_attributes_that_are_named_by_keywords():
    def scaled(x):
        return x * getattr(Codes, "continue") * getattr(SLOTS, "class")

    compiled, x = funcaot.compile(scaled, backend="eager"), torch.ones(2)
    for number in (1.0, 4.0):
        assert torch.equal(compiled(x), scaled(x))
        setattr(Codes, "continue", number)
        assert torch.equal(compiled(x), scaled(x))
        setattr(SLOTS, "class", number)
    assert torch.equal(compiled(x), scaled(x))
