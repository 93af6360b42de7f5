"""A method ``__hash__`` that runs tells some objects apart, and new ones of other classes match.

A configuration is a key of a table while a batch is new in each call. Eager is the oracle, and
where no hash saw the batch, one program serves all of them.
"""

import dataclasses
import functools
import sys

import pytest
import torch

import funcaot
from funcaot.aot.closure.hashing.hashed import ANY, hashed_in


class Batch:
    def __init__(self, x):
        self.x = x


@dataclasses.dataclass(frozen=True)
class Config:
    factor: float = 2.0
    name: str = "a"


class ByIdentity:
    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


class Shaped:
    __slots__ = ("shape",)
    kind = "shaped"

    def __init__(self, shape):
        self.shape = shape

    def __hash__(self):
        return 1 + hash((type(self).__name__, self.kind, self.shape))

    def __eq__(self, other):
        return self.shape == other.shape


@dataclasses.dataclass(frozen=True)
class Around:
    held: object


class AroundIdentity(Around):
    def __hash__(self):
        return id(self.held)


class AroundProperty(Around):
    @property
    def inner(self):
        return self.held

    def __hash__(self):
        return hash(self.inner)


class AroundSome(Around):
    def __hash__(self):
        return sum(hash(each) for each in (self.held,))


def frozen(value):
    if isinstance(value, dict):
        return tuple((key, frozen(each)) for key, each in sorted(value.items()))
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def place_of(value):
    return id(value)


CURRENT = []


def current(value):
    return (value, *CURRENT)


class Frozen:
    """It is hashed by a function of its module, and keeps its hash."""

    def __init__(self, settings):
        self.settings, self.known = settings, None

    def __hash__(self):
        if self.known is not None:
            return self.known
        found = hash(frozen(self.settings))
        object.__setattr__(self, "known", found)
        return found

    def __eq__(self, other):
        return self.settings == other.settings


class AroundFrozen(Around):
    def __hash__(self):
        return hash(frozen([self.held]))


class AroundPlace(Around):
    def __hash__(self):
        return hash(place_of(self.held))


class AroundCurrent(Around):
    """Its hash is also that of what stands in a global list."""

    def __hash__(self):
        return hash(current(1))


class Registry:
    def __init__(self):
        self.state = State({}, 3.0)

    def factor(self, name):
        self.state = State({**self.state.table, name: 1}, self.state.number)
        return self.state.number


class State:
    def __init__(self, table, number):
        self.table, self.number = table, number


@functools.cache
def of_config(config):
    return config.factor * 2


KEYS = {"config": Config(), "by identity": ByIdentity(), "shaped": Shaped((2, 3))}
KEYS["frozen"] = Frozen({"sizes": [1, 2], "kind": {"a": 1.0}})
AROUND = [Around, AroundIdentity, AroundProperty, AroundSome]
AROUND += [AroundFrozen, AroundPlace, AroundCurrent]


@pytest.mark.parametrize("name", KEYS)
def test_a_new_batch_beside_a_key_is_no_new_program(name):
    key, table, registry = KEYS[name], {KEYS[name]: 5.0}, Registry()

    def function(batch):
        cached = of_config(key) if isinstance(key, Config) else 1.0
        return batch.x * table[key] * cached * registry.factor("one")

    function(Batch(torch.ones(3)))
    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0, 4.0):
        assert torch.equal(
            compiled(Batch(torch.full((3,), value))), function(Batch(torch.full((3,), value)))
        )
    assert funcaot.report(compiled).cache_misses == 1
    table[key] = 7.0
    assert torch.equal(compiled(Batch(torch.ones(3))), function(Batch(torch.ones(3))))


@pytest.mark.parametrize("kind", AROUND)
@pytest.mark.parametrize("nested", [False, True])
def test_a_batch_that_a_hash_sees_is_told_apart(kind, nested):
    first, second = Batch(torch.ones(3)), Batch(torch.ones(3))
    by_address = kind in (AroundIdentity, AroundPlace)
    wrap = (lambda batch: kind((batch, 1))) if nested and not by_address else kind
    CURRENT[:] = [first]
    table = {hash(wrap(first)): 5.0}

    def function(batch):
        return batch.x * table.get(hash(wrap(batch)), 1.0)

    def by_lookup(batch):
        return batch.x * known.get(wrap(batch), 1.0)

    known = {wrap(first): 5.0}
    # A key whose hash changes is no key.
    for each in (function, by_lookup)[: 1 if kind is AroundCurrent else 2]:
        compiled = funcaot.compile(each, backend="eager")
        for batch in (first, second, first, Batch(torch.ones(3)), second):
            CURRENT[:] = [batch]
            assert torch.equal(compiled(batch), each(batch))


class Named:
    """Its property has the name of a function of the module, and gives what stands elsewhere."""

    @property
    def frozen(self):
        return CURRENT[0]

    def __hash__(self):
        return hash(self.frozen)


def test_a_property_with_the_name_of_a_function_may_give_anything():
    CURRENT[:] = [Batch(1)]
    found = []

    def see(frame, event, argument):
        if event == "call" and frame.f_code is Named.__hash__.__code__:
            found.append([*hashed_in(frame)])

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        hash(Named())
    finally:
        sys.setprofile(before)
    assert found == [[ANY]]
