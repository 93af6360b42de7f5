"""What modules store in attributes, buffers, lists: after each call it is there, as in eager."""

import collections
import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("counter", torch.zeros(()))
        self.last = None
        self.history = []
        self.kept = {}


class ReboundBuffer(Base):
    def forward(self, x):
        self.counter = self.counter + 1
        return self.linear(x) * self.counter


class LastOutput(Base):
    def forward(self, x):
        self.last = self.linear(x)
        return self.last * 2


class DetachedState(Base):
    def forward(self, x):
        h = torch.zeros(3) if self.last is None else self.last
        h = torch.tanh(self.linear(x) + h)
        self.last = h.detach()
        return h


class AttachedState(Base):
    def forward(self, x):
        h = torch.zeros(3) if self.last is None else self.last
        h = torch.tanh(self.linear(x) + h)
        self.last = h
        return h


class TupleState(Base):
    def forward(self, x):
        h, c = (torch.zeros(3), torch.ones(3)) if self.last is None else self.last
        c = c * 0.5 + self.linear(x).detach()
        h = torch.tanh(c) + h
        self.last = (h, c)
        return h


class Aliases(Base):
    def forward(self, x):
        y = self.linear(x)
        self.last = x
        self.row = y[0]
        self.same = y
        self.weight = self.linear.weight
        return y


class Shifted(Base):
    def forward(self, x):
        if not hasattr(self, "previous"):
            self.previous, self.current = x * 0, x * 1
        self.previous, self.current = self.current, x.sin()
        return self.previous + self.current


class Appended(Base):
    def forward(self, x):
        y = self.linear(x)
        self.history.append(y.detach())
        self.kept["y"] = y
        return y.relu()


class AppendedAndRead(Base):
    def forward(self, x):
        self.history.append(x.detach())
        return torch.stack(self.history).sum(0) * len(self.history)


class Window(Base):
    def forward(self, x):
        self.history.append(x.detach())
        if len(self.history) > 2:
            self.history.pop(0)
        return sum(self.history)


class Counted(Base):
    calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.calls


class Removed(Base):
    def forward(self, x):
        if self.last is not None:
            x = x + self.last
            self.last = None
        else:
            self.last = x * 2
        return x


class Inner(Base):
    def __init__(self):
        super().__init__()
        self.part = nn.ModuleDict({"a": ReboundBuffer(), "b": DetachedState()})

    def forward(self, x):
        for part in self.part.values():
            x = part(x)
        return x


class Training(Base):
    def forward(self, x):
        if self.training:
            self.last = x.mean(0)
        return x - self.last


class WrittenAndRebound(Base):
    def forward(self, x):
        self.counter.add_(1)
        old = self.counter
        self.counter = self.counter * 2
        old.mul_(3)
        return x * self.counter + old


class ReturnedView(Base):
    def forward(self, x):
        y = x * 2
        self.last = y
        return y[0], y.detach()


class NewDictionary(Base):
    def forward(self, x):
        previous = self.kept.get("sum", 0)
        self.kept = {"sum": x.detach() + previous, "shape": tuple(x.shape)}
        return x * self.kept["sum"]


MODULES = [
    ReboundBuffer,
    LastOutput,
    DetachedState,
    AttachedState,
    TupleState,
    Aliases,
    Shifted,
    Appended,
    AppendedAndRead,
    Window,
    Counted,
    Removed,
    Inner,
    Training,
    WrittenAndRebound,
    ReturnedView,
    NewDictionary,
]


def state_of(module):
    """Everything that a module holds: places and values."""
    found = {}
    for path, part in module.named_modules():
        for name, value in [*vars(part).items(), *part._buffers.items(), *part._parameters.items()]:
            if name not in vars(nn.Module()) or name == "training":
                found[f"{path}.{name}"] = value
    return found


def assert_same(ours, theirs, where=""):
    if not isinstance(theirs, torch.Tensor):
        assert type(ours) is type(theirs), where
        if isinstance(theirs, dict):
            assert list(ours) == list(theirs), where
            ours, theirs = list(ours.values()), list(theirs.values())
        if isinstance(theirs, list | tuple | collections.deque):
            assert len(ours) == len(theirs), where
            for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
                assert_same(mine, other, f"{where}[{index}]")
        elif not isinstance(theirs, nn.Module):
            assert ours == theirs, where
        return
    assert_close(ours, theirs, msg=lambda text: f"{where}: {text}")
    assert type(ours) is type(theirs), where
    assert ours.requires_grad == theirs.requires_grad, where
    assert ours.is_leaf == theirs.is_leaf, where
    assert (ours.grad_fn is None) == (theirs.grad_fn is None), where
    assert ours.stride() == theirs.stride(), where


def same_memory(values):
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    keys = [value.untyped_storage().data_ptr() for value in tensors]
    identities = [id(value) for value in tensors]
    return [keys.index(key) for key in keys], [identities.index(key) for key in identities]


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, list | tuple | collections.deque | type({}.values())):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def compare(compiled, eager, inputs, *, grad):
    for x in inputs:
        results = []
        for module in (compiled, eager):
            x_own = x.clone().requires_grad_(grad)
            with torch.set_grad_enabled(grad):
                result = module(x_own)
            state = state_of(module)
            everything = [x_own, *tensors_in(result), *tensors_in(state)]
            gradients = None
            wanted = [tensor for tensor in everything if tensor.grad_fn is not None]
            if grad and wanted:
                parameters = [p for p in module.parameters() if p.requires_grad]
                total = sum((tensor * (i + 1)).sum() for i, tensor in enumerate(wanted))
                gradients = torch.autograd.grad(
                    total, [x_own, *parameters], retain_graph=True, allow_unused=True
                )
            results.append((result, state, same_memory(everything), gradients))
        ours, theirs = results
        assert_same(ours[0], theirs[0], "result")
        assert ours[1].keys() == theirs[1].keys()
        for place, value in theirs[1].items():
            assert_same(ours[1][place], value, place)
        assert ours[2] == theirs[2]
        assert_close(ours[3], theirs[3])


def make(kind, backend="eager"):
    torch.manual_seed(0)
    eager = kind()
    return eager, funcaot.compile(copy.deepcopy(eager), backend=backend)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("kind", MODULES)
def test_state_is_as_in_eager(kind, grad):
    eager, compiled = make(kind)
    compare(compiled, eager, [torch.randn(3) + i for i in range(5)], grad=grad)
    compiled.eval(), eager.eval()
    compare(compiled, eager, [torch.randn(3) + i for i in range(3)], grad=grad)


@pytest.mark.parametrize("kind", [ReboundBuffer, DetachedState, TupleState, LastOutput, Appended])
def test_state_of_a_settled_shape_needs_no_more_compilations(kind):
    eager, compiled = make(kind)
    compare(compiled, eager, [torch.randn(3)] * 3, grad=False)
    before = funcaot.report(compiled).cache_misses
    compare(compiled, eager, [torch.randn(3)] * 4, grad=False)
    assert funcaot.report(compiled).cache_misses == before <= 2


def test_on_inductor():
    eager, compiled = make(ReboundBuffer, backend="inductor")
    compare(compiled, eager, [torch.randn(3) for _ in range(3)], grad=True)
