"""Programs that store things in attributes and containers, from a file: what eager leaves there."""

import pytest
import torch
from torch import nn

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

BACKENDS = ["eager", "inductor"]


class Recurrent(nn.Module):
    """Keeps a hidden state, counts, and fills containers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3).double()
        self.hidden, self.steps, self.seen, self.cache = None, 0, [], {}

    def forward(self, x):
        y = self.linear(x)
        if self.hidden is not None:
            y = y + self.hidden
        self.hidden = y.tanh().detach()
        self.steps += 1
        self.seen.append(y.detach().mean())
        self.cache["last"], self.cache["name"] = y.detach().sum(), "sum"
        return y.square().sum()

    def left(self):
        texts = {key: value == "sum" for key, value in self.cache.items() if key != "last"}
        return self.hidden, self.steps, self.seen, self.cache["last"], texts


def inputs(seed, size=2):
    torch.manual_seed(seed)
    return torch.randn(size, 3, dtype=torch.float64, requires_grad=True)


def training(model, left, sizes=(2, 2, 2)):
    found = []
    for seed, size in enumerate(sizes):
        x = inputs(seed, size)
        model(x).backward()
        found.append(x.grad)
    return found, left()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "programs"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_keeps_state(backend, path):
    model = Recurrent()
    compiled = funcaot.compile(model, backend=backend)
    training(compiled, model.left)
    assert compiled.save(path).programs == 2
    model, eager = Recurrent(), Recurrent()
    compiled = funcaot.compile(model, backend=backend, artifacts=path)
    torch.testing.assert_close(training(compiled, model.left), training(eager, eager.left))
    report = funcaot.report(compiled)
    assert is_loaded(compiled)
    assert report.cache_misses == report.backward_traces == report.graphs_compiled == 0


def test_state_and_open_sizes(path):
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3, dtype=torch.float64))
            self.rows, self.last = 0, None

        def forward(self, x):
            self.total += x.detach().sum(0)
            self.last = x.detach()[1:] * 2
            self.rows += 1
            return (x * self.total.clone()).sum()

        def left(self):
            return self.total, self.rows, self.last

    model = Sums()
    compiled = funcaot.compile(model, backend="eager", dynamic=True)
    training(compiled, model.left, (5, 6))
    assert compiled.save(path).programs >= 1
    model, eager = Sums(), Sums()
    compiled = funcaot.compile(model, backend="eager", dynamic=True, artifacts=path)
    ours = training(compiled, model.left, (9, 4, 5))
    torch.testing.assert_close(ours, training(eager, eager.left, (9, 4, 5)))
    assert is_loaded(compiled)
    assert misses(compiled) == 0


CALLS = 0
LATEST = [None]


class Shelf:
    count = 0
    latest = None


class Slotted:
    __slots__ = ("latest",)


def assigns_global(x):
    global CALLS
    CALLS += 1
    LATEST[0] = x.detach() * 2
    return x.sin()


def assigns_class_attribute(x):
    Shelf.count += 1
    Shelf.latest = x.detach() + 1
    return x.cos()


def makes_closure():
    latest, count = None, 0

    def function(x):
        nonlocal latest, count
        latest = x.detach().exp()
        count += 2
        return x.exp()

    function.left = lambda: (latest, count)
    return function


def left_by_globals():
    return CALLS, LATEST[0], Shelf.count, Shelf.latest


@pytest.fixture
def fresh(monkeypatch):
    def again():
        monkeypatch.setattr(f"{__name__}.CALLS", 0)
        monkeypatch.setattr(f"{__name__}.LATEST", [None])
        Shelf.count, Shelf.latest = 0, None

    again()
    yield again
    again()


@pytest.mark.parametrize("function", [assigns_global, assigns_class_attribute])
def test_globals_and_classes(function, path, fresh):
    def run(target):
        fresh()
        found = []
        for seed in range(3):
            x = inputs(seed)
            found.append(torch.autograd.grad(target(x).sum(), x))
        return found, left_by_globals()

    first = funcaot.compile(function, backend="eager")
    run(first)
    assert first.save(path).programs >= 1
    compiled = funcaot.compile(function, backend="eager", artifacts=path)
    torch.testing.assert_close(run(compiled), run(function))
    assert is_loaded(compiled)


def test_variables_of_a_closure(path):
    def run(target, left):
        return [(torch.autograd.grad(target(x).sum(), x), left()) for x in map(inputs, range(3))]

    function = makes_closure()
    first = funcaot.compile(function, backend="eager")
    run(first, function.left)
    assert first.save(path).programs >= 1
    function, eager = makes_closure(), makes_closure()
    compiled = funcaot.compile(function, backend="eager", artifacts=path)
    torch.testing.assert_close(run(compiled, function.left), run(eager, eager.left))
    assert is_loaded(compiled)


def test_containers_among_the_arguments(path):
    def function(x, cache, rows):
        cache["last"] = x.sin()
        rows.append(x.detach() * 2)
        return cache["last"].sum()

    def run(target):
        x, cache, rows = inputs(0), {"first": 1}, []
        y = target(x, cache, rows)
        return y, torch.autograd.grad(y + cache["last"].square().sum(), x), cache, rows

    first = funcaot.compile(function, backend="eager")
    run(first)
    assert first.save(path).programs == 1
    compiled = funcaot.compile(function, backend="eager", artifacts=path)
    for _ in range(2):
        torch.testing.assert_close(run(compiled), run(function))
    assert is_loaded(compiled)


STATES = {
    "another number that it reads": (lambda m: setattr(m, "scale", 3.0), "scale"),
    "a tensor where none was": (lambda m: setattr(m, "hidden", torch.ones(3).double()), "hidden"),
    "a key more": (lambda m: m.cache.update(other=1), "cache"),
    "another kind of number": (lambda m: setattr(m, "steps", 1.5), ""),
    "another list": (lambda m: setattr(m, "seen", (1,)), "seen"),
}


class Scaled(Recurrent):
    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        if "other" in self.cache:
            return super().forward(x) + 1
        return super().forward(x) * self.scale


@pytest.mark.parametrize("state", STATES)
def test_other_state_is_a_miss_with_a_reason(state, path):
    change, named = STATES[state]
    compiled = funcaot.compile(Scaled(), backend="eager")
    compiled(inputs(0)).backward()
    assert compiled.save(path).programs == 1

    def run(model, target):
        change(model)
        x = inputs(1)
        try:
            target(x).backward()
        except (AttributeError, funcaot.errors.FuncaotError) as error:
            return type(error)
        return x.grad, model.left()

    model, eager = Scaled(), Scaled()
    compiled = funcaot.compile(model, backend="eager", artifacts=path)
    ours, theirs = run(model, compiled), run(eager, eager)
    if isinstance(theirs, type):
        assert ours is theirs
        return
    torch.testing.assert_close(ours, theirs)
    assert is_loaded(compiled) == (not misses(compiled))
    if misses(compiled):
        assert named in funcaot.report(compiled).entries[0].reason


@pytest.mark.parametrize("tied", [True, False])
def test_containers_that_are_one_in_one_process_only(tied, path):
    class Filled(nn.Module):
        def __init__(self, tied):
            super().__init__()
            self.one = []
            self.two = self.one if tied else []

        def forward(self, x):
            self.one.append(x.detach() * 2)
            self.two.append(x.detach() + 1)
            self.one.append(x.detach() - 1)
            return x.sin()

    compiled = funcaot.compile(Filled(tied), backend="eager")
    compiled(inputs(0))
    assert compiled.save(path).programs == 1
    model, eager = Filled(not tied), Filled(not tied)
    compiled = funcaot.compile(model, backend="eager", artifacts=path)
    for target in (compiled, eager):
        target(inputs(1)), target(inputs(2))
    torch.testing.assert_close((model.one, model.two), (eager.one, eager.two))
    assert misses(compiled) == 1
    assert funcaot.report(compiled).entries[0].reason


def test_state_that_is_only_counted_may_be_any(path):
    def counted(model, target):
        model.steps = 40
        target(inputs(1)).backward()
        return model.left()

    compiled = funcaot.compile(Recurrent(), backend="eager")
    compiled(inputs(0)).backward()
    compiled.save(path)
    model, eager = Recurrent(), Recurrent()
    compiled = funcaot.compile(model, backend="eager", artifacts=path)
    torch.testing.assert_close(counted(model, compiled), counted(eager, eager))
    assert is_loaded(compiled)


def test_a_derivative_that_was_not_saved_of_a_call_that_changed_what_it_reads(path):
    """The capture that is made for it sees what the call has left: that is said, or right."""
    compiled = funcaot.compile(Recurrent(), backend="eager")
    compiled(inputs(0))
    assert compiled.save(path).programs == 1
    model, eager = Recurrent(), Recurrent()
    compiled = funcaot.compile(model, backend="eager", artifacts=path)
    with pytest.raises(funcaot.errors.UnsupportedError, match="another one by now"):
        compiled(inputs(0)).backward()
    x, y = inputs(1), inputs(1)
    eager(inputs(0))
    compiled(x).backward(), eager(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_what_a_file_cannot_hold_is_named(path):
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = []

        def forward(self, x):
            self.rows.append(x * 2)
            return self.rows

    model = Returns()
    compiled = funcaot.compile(model, backend="eager")
    compiled(inputs(0))
    saved = compiled.save(path)
    assert saved.programs == 0
    assert saved.left_out
