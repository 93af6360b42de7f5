"""Stand-ins for what other people's models do: each once went wrong; eager mode is the oracle.

Each is trained for a few steps, its state changing between, and is compiled as often as it says.
"""

import contextlib
import functools

import pytest
import torch
from torch import nn

import funcaot


class Irreps(tuple):
    """Its length has no meaning, as that of e3nn's."""

    def __len__(self):
        raise NotImplementedError


class ClassProperty(property):
    def __get__(self, instance, owner=None):
        return self.fget(owner)


class Config:
    scale = 2.0

    @ClassProperty
    def parts(cls):  # noqa: N805
        return {"scale": cls.scale}


class BaseModel(nn.Module):
    config_class = None

    def __init__(self):
        super().__init__()
        self.config = self.config_class()
        self.irreps = Irreps((1.0, 2.0))
        self.inner = nn.Linear(3, 3)


class Overriding(BaseModel):
    config_class = Config

    def forward(self, x):
        factor = self.config.scale if isinstance(self.config, self.config_class) else 1.0
        return self.inner(x) * factor * self.config.parts["scale"] * self.irreps[1]


class Operator:
    def __init__(self, x):
        self.x = x

    def __mul__(self, other):
        return self.x * other


class Diagonal(Operator):
    """Its own special methods hide those that run for other classes."""

    def __init__(self, x):
        self.x = x.diagonal()

    def __mul__(self, other):
        return self.x * other * 2


class Hiding(BaseModel):
    config_class = Config

    def forward(self, x):
        if x.dim() == 1:
            return Diagonal(x) * 2
        return Operator(self.inner(x)) * 2


@contextlib.contextmanager
def scaled():
    yield 2.0


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    @scaled()
    def forward(self, x):
        return self.inner(x)


class Neuron(nn.Module):
    """Its state goes from a number to a tensor, in a dictionary behind attributes."""

    def __init__(self):
        super().__init__()
        self.memory = {"v": 0.0}
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        if isinstance(self.memory["v"], float):
            self.memory["v"] = torch.full_like(x, self.memory["v"])
        factor = 2.0 if hasattr(self, "factor") else 1.0
        self.memory["v"] = self.memory["v"] + (self.inner(x) - self.memory["v"]) / 2
        return self.memory["v"] * factor


class Resetting(nn.Module):
    """The state of the step before is only asked for its shape."""

    def __init__(self):
        super().__init__()
        self.state = torch.zeros(4, 3)
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        self.state = torch.zeros_like(self.state)
        for _ in range(2):
            self.state = torch.tanh(self.inner(x) + self.state)
        return self.state


class Hooked(nn.Module):
    """Hooks save what goes in, and a hook of the result reads it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.register_forward_hook(self.save)

    def save(self, module, inputs, output):
        module.saved = inputs[0].detach()

    def forward(self, x):
        return self.inner(x) + self.inner.saved.mean()


CASES = {
    "class attributes": (Overriding, 1),
    "special methods": (Hiding, 1),
    "a decorating context manager": (Decorated, 1),
    "a state in a dictionary": (Neuron, 2),
    "a state that is reset": (Resetting, 2),
    "hooks that save and read": (Hooked, 2),
}


def train(model, function, steps=5):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(steps):
        x = torch.full((4, 3), 0.1 * (step + 1))
        optimizer.zero_grad()
        value = function(x)
        value.pow(2).sum().backward()
        optimizer.step()
        for name in ("memory", "state"):
            kept = getattr(model, name, None)
            if name == "memory" and kept is not None:
                model.memory = {"v": kept["v"].detach()}
        found.append(value.detach())
    return found, [*model.parameters()]


@pytest.mark.parametrize("case", CASES)
def test_trained_as_in_eager(case):
    make, programs = CASES[case]
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    model = make()
    compiled = funcaot.compile(model, backend="eager")
    torch.testing.assert_close(train(model, compiled), train(plain, plain))
    assert funcaot.report(compiled).cache_misses <= programs


def test_a_special_method_of_a_base_is_compared_where_it_runs():
    """Put another one there, and the program isn't used any more."""

    class Base:
        def __call__(self, x):
            return x * 2

    class Derived(Base):
        def __call__(self, x):
            return super().__call__(x) + 1

    thing = Derived()
    compiled = funcaot.compile(lambda x: thing(x), backend="eager")
    x = torch.ones(2)
    assert torch.equal(compiled(x), x * 2 + 1)
    Base.__call__ = lambda self, x: x * 3
    assert torch.equal(compiled(x), x * 3 + 1)


def test_a_property_of_its_own_kind_is_compared():
    thing = Config()
    compiled = funcaot.compile(lambda x: x * type(thing).parts["scale"], backend="eager")
    x = torch.ones(2)
    before = Config.scale
    assert torch.equal(compiled(x), x * before)
    try:
        Config.scale = 5.0
        assert torch.equal(compiled(x), x * 5)
    finally:
        Config.scale = before


def test_a_generator_that_is_read_is_still_refused():
    numbers = (n for n in range(3))
    compiled = funcaot.compile(lambda x: x * next(numbers), backend="eager")
    with pytest.raises(funcaot.errors.UnsupportedError, match="generator"):
        compiled(torch.ones(2))


def test_names_that_are_asked_of_tensors_are_compared():
    class Holder:
        def __init__(self):
            self.x = torch.ones(2)

    holder = Holder()
    compiled = funcaot.compile(
        lambda x: x + holder.x if hasattr(holder.x, "mark") else x, backend="eager"
    )
    x = torch.ones(2)
    assert torch.equal(compiled(x), x)
    holder.x = torch.full((2,), 3.0)
    assert torch.equal(compiled(x), x)
    holder.x.mark = True
    assert torch.equal(compiled(x), x + 3)


def test_partials_of_methods():
    model = Overriding()
    compiled = funcaot.compile(functools.partial(model.forward), backend="eager")
    x = torch.ones(2, 3)
    torch.testing.assert_close(compiled(x), model(x))
