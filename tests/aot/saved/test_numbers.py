"""Programs from a file that leave numbers open: arguments, what is read, what ``item()`` gives.

A case is a function with a state of its own, made anew where another process would make it. Eager
is the oracle, over more calls than were saved.
"""

import pytest
import torch
from torch import nn

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

CASES = {}


class State:
    """What a function counts and sums up."""

    def __init__(self):
        self.rate, self.steps, self.total, self.losses = 0.5, 0, 0.0, []
        self.options = {"rate": 0.5}

    def left(self):
        return self.rate, self.steps, self.total, self.losses, self.options


def case(make):
    """Make gives a function of a tensor, and what it has left."""
    CASES[make.__name__] = make
    return make


@case
def a_rate_that_decays():
    state = State()

    def function(x):
        state.rate *= 0.5
        return (x.sin() * state.rate).sum()

    return function, state.left


@case
def a_count():
    state = State()

    def function(x):
        state.steps += 1
        return x.exp().sum() / (1 - 0.5**state.steps)

    return function, state.left


@case
def a_rate_in_a_dictionary():
    state = State()

    def function(x):
        state.options["rate"] *= 0.5
        return (x * state.options["rate"]).sum()

    return function, state.left


@case
def a_variable_that_is_closed_over():
    steps = 0

    def function(x):
        nonlocal steps
        steps += 1
        return (x.cos() * (1 + 0.5 * steps)).sum()

    return function, lambda: steps


@case
def a_sum_of_items():
    state = State()

    def function(x):
        state.total += x.detach().sum().item()
        return (x * 2).sum()

    return function, state.left


@case
def a_history():
    state = State()

    def function(x):
        y = (x * 2).sum()
        state.losses.append(y.item())
        return y

    return function, state.left


@case
def an_average():
    state = State()

    def function(x):
        state.total = 0.5 * state.total + 0.25 * x.detach().sum().item()
        return (x - state.total).square().sum()

    return function, state.left


def point(seed):
    torch.manual_seed(seed)
    return (torch.randint(-8, 8, (2, 3)) / 4).double().requires_grad_()


def called(function, left, seeds):
    """What calls give, with gradients, and what they leave."""
    found = []
    for seed in seeds:
        x = point(seed)
        value = function(x)
        found.append((value.detach().clone(), *torch.autograd.grad(value, x)))
    return found, left()


def in_another_process(make, calls, path, **options):
    """A compiled function that has the programs of some calls of one like it, and what is left."""
    function, left = make()
    compiled = funcaot.compile(function, backend="eager", **options)
    calls(compiled, left)
    saved = compiled.save(path)
    assert saved.programs and not saved.left_out, saved
    function, left = make()
    return funcaot.compile(function, backend="eager", artifacts=path, **options), left


@pytest.fixture
def path(tmp_path):
    return tmp_path / "programs"


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_calls_with_other_numbers_are_served(make, path):
    compiled, left = in_another_process(make, lambda f, left: called(f, left, range(4)), path)
    torch.testing.assert_close(called(compiled, left, range(7)), called(*make(), range(7)))
    assert is_loaded(compiled) and not misses(compiled)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_derivative_that_is_not_in_the_file(make, path):
    def forward(function, left):
        for seed in range(4):
            function(point(seed))

    compiled, left = in_another_process(make, forward, path)
    eager, eager_left = make()
    for function, lefts in ((compiled, left), (eager, eager_left)):
        forward(function, lefts)
    torch.testing.assert_close(called(compiled, left, (5, 6)), called(eager, eager_left, (5, 6)))
    assert is_loaded(compiled) and not misses(compiled)


# --- numbers among the arguments ------------------------------------------------------------------


def scaled(x, rate):
    return (x.sin() * rate).sum()


def branching(x, rate):
    return (x.sin() * rate).sum() if rate < 4 else x.sum()


def repeated(x, count):
    return x[:, :1].expand(2, count).sum() + count


@pytest.mark.parametrize(
    ("function", "seen", "others"),
    [
        (scaled, (0.5, 1.5, 2.5), (3.5, -1.0)),
        (scaled, (-1, 0, -3), (1, 7, -100)),
        (repeated, (2, 3, 4), (7, 100)),
    ],
)
def test_arguments_that_are_numbers(function, seen, others, path):
    compiled = funcaot.compile(function, backend="eager")
    for number in seen:
        compiled(point(0), number)
    assert compiled.save(path).programs == 2
    compiled = funcaot.compile(function, backend="eager", artifacts=path)
    for seed, number in enumerate((*others, *seen)):
        x, y = point(seed), point(seed)
        value, known = compiled(x, number), function(y, number)
        value.backward()
        known.backward()
        torch.testing.assert_close((value, x.grad), (known, y.grad))
    assert is_loaded(compiled) and not misses(compiled)


def test_a_number_for_which_the_answer_is_another_one_is_a_miss(path):
    compiled = funcaot.compile(branching, backend="eager")
    for number in (0.5, 1.5, 2.5):
        compiled(point(0), number)
    compiled.save(path)
    compiled = funcaot.compile(branching, backend="eager", artifacts=path)
    x = point(1)
    torch.testing.assert_close(compiled(x, 3.0), branching(x, 3.0))
    assert not misses(compiled)
    torch.testing.assert_close(compiled(x, 5.0), branching(x, 5.0))
    assert misses(compiled) == 1
    assert compiled.entries[-1].reason == "no longer so: a number < 4"
    torch.testing.assert_close(compiled(x, 1), branching(x, 1))  # a whole number now
    assert misses(compiled) == 2


# --- misses ---------------------------------------------------------------------------------------


def counting(state):
    def function(x):
        state.steps += 1
        return (x * state.steps).sum() if state.steps < 5 else x.sum()

    return function


def test_a_count_that_goes_another_way_is_a_miss(path):
    compiled = funcaot.compile(counting(State()), backend="eager")
    for seed in range(3):
        compiled(point(seed))
    assert compiled.save(path).programs
    state, known = State(), State()
    compiled = funcaot.compile(counting(state), backend="eager", artifacts=path)
    eager = counting(known)
    for seed in range(7):
        x = point(seed)
        torch.testing.assert_close(compiled(x), eager(x))
        assert state.steps == known.steps
        assert misses(compiled) == (seed >= 4)


CHANGES = {
    "another class": lambda state: setattr(state, "rate", 2),
    "a tensor": lambda state: setattr(state, "rate", torch.tensor(0.5, dtype=torch.float64)),
    "a sign": lambda state: setattr(state, "rate", -0.0),
    "not a number": lambda state: setattr(state, "rate", float("nan")),
    "infinite": lambda state: setattr(state, "rate", float("inf")),
    "another number": lambda state: setattr(state, "rate", 0.125),
    "another key": lambda state: state.options.update(other=1.0),
    "a missing key": lambda state: state.options.clear(),
    "another container": lambda state: setattr(state, "options", {"rate": 3.0}),
}


def both(state):
    def function(x):
        return x * state.rate + x.sum() * state.options.get("rate", 1.0)

    return function


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_what_is_left_open(change, when, path):
    def worked(compiled, state):
        for number in (1.0, 2.0, 3.0):
            state.rate = state.options["rate"] = number
            compiled(point(0))

    state = State()
    compiled = funcaot.compile(both(state), backend="eager")
    worked(compiled, state)
    assert compiled.save(path).programs == 2
    state, known = State(), State()
    compiled = funcaot.compile(both(state), backend="eager", artifacts=path)
    if when == "after":
        worked(compiled, state)
        worked(both(known), known)
        assert not misses(compiled)
    for each in (state, known):
        change(each)
    x = point(1)
    torch.testing.assert_close(compiled(x), both(known)(x), equal_nan=True)


# --- training -------------------------------------------------------------------------------------


def training_step(make_optimizer):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimizer = make_optimizer(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, optimizer, model


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.5),
        lambda parameters: torch.optim.AdamW(parameters, 0.1),
    ],
    ids=["SGD", "momentum", "AdamW"],
)
def test_a_step_with_a_scheduler_outside_that_returns_its_loss(make_optimizer, path):
    def train(wrap):
        step, optimizer, model = training_step(make_optimizer)
        step = wrap(step)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        losses = []
        for seed in range(6):
            losses.append(step(point(seed).detach()))
            scheduler.step()
        assert all(type(loss) is float for loss in losses)
        return losses, [*model.parameters()], step

    first = train(lambda step: funcaot.compile(step, backend="eager"))[2]
    saved = first.save(path)
    assert saved.programs and not saved.left_out, saved
    losses, parameters, step = train(
        lambda step: funcaot.compile(step, backend="eager", artifacts=path)
    )
    known, expected, _ = train(lambda step: step)
    torch.testing.assert_close((losses, parameters), (known, expected))
    # Where an optimizer makes its state, that is a call of eager.
    assert is_loaded(step) and misses(step) <= 1
