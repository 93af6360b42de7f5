"""Numbers that Python computes in each call, returned or stored in new containers."""

import copy

import pytest
import torch
from torch import nn

import funcaot
from tests.aot.saved.reloading import misses

CASES = {}


class State:
    """What functions count in and store in."""

    def __init__(self):
        self.steps, self.rate, self.kept, self.history = 0, 0.5, None, []
        self.rates = [1.0, 3]


def case(function):
    CASES[function.__name__] = function
    return function


@case
def returned(state, x):
    state.steps += 1
    return x * 2, state.steps


@case
def returned_inside(state, x):
    state.steps += 1
    return {"step": state.steps, "rates": [state.rate**state.steps, (x + 1, -state.steps)]}


@case
def alone(state, x):
    state.steps += 1
    return state.steps


@case
def a_new_list(state, x):
    state.rate *= 0.5
    state.kept = [state.rate, {"half": state.rate / 2}]
    return x * state.rate


@case
def a_new_list_of_the_old_one(state, x):
    state.rates = [state.rates[0] * 0.5, 3]
    return x * state.rates[0]


@case
def a_list_that_is_returned_and_kept(state, x):
    state.steps += 1
    state.kept = [state.steps]
    return x, state.kept


@case
def a_history(state, x):
    state.steps += 1
    state.history.append({"step": state.steps})
    return x + 1


@case
def a_tuple(state, x):
    state.steps += 1
    state.kept = (state.steps, (state.rate + state.steps, "text"))
    return x + 1


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_each_call_has_its_own_numbers(function):
    state, known = State(), State()
    compiled = funcaot.compile(lambda x: function(state, x), backend="eager")
    found, expected = [], []
    for step in range(6):
        x = torch.arange(3.0) + step
        found.append((compiled(x), copy.deepcopy(vars(state))))
        expected.append((function(known, x), copy.deepcopy(vars(known))))
    assert str(found) == str(expected)
    assert misses(compiled) <= 3


def test_a_list_that_is_returned_is_the_one_that_is_kept():
    state = State()
    compiled = funcaot.compile(
        lambda x: a_list_that_is_returned_and_kept(state, x), backend="eager"
    )
    for _ in range(4):
        assert compiled(torch.ones(2))[1] is state.kept


def another_item(state):
    state.rates = [state.rates[0], 5]


def another_length(state):
    state.rates = [*state.rates, 1.0]


def another_class(state):
    state.rates = tuple(state.rates)


def a_whole_number(state):
    state.rates = [2, 3]


@pytest.mark.parametrize("change", [another_item, another_length, another_class, a_whole_number])
def test_what_else_is_in_a_list_is_compared(change):
    def function(state, x):
        state.rates = [state.rates[0] * 0.5, *state.rates[1:]]
        return x * state.rates[0] + len(state.rates) + state.rates[1]

    state, known = State(), State()
    compiled = funcaot.compile(lambda x: function(state, x), backend="eager")
    x = torch.ones(2)
    for step in range(8):
        if step == 4:
            change(state)
            change(known)
        torch.testing.assert_close(compiled(x), function(known, x))
        assert str(state.rates) == str(known.rates)


SCHEDULERS = {
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n),
    "Cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=30
    ),
}


@pytest.mark.parametrize("make_scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_that_steps_inside_takes_no_program_for_each_step(make_scheduler):
    def training(wrap):
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
        scheduler = make_scheduler(optimizer)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.item(), scheduler.get_last_lr()

        step = wrap(step)
        x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 4
        return [step(x) for _ in range(7)], [*model.parameters()], scheduler.last_epoch, step

    *known, _ = training(lambda step: step)
    *found, step = training(lambda step: funcaot.compile(step, backend="eager"))
    torch.testing.assert_close(found, known)
    assert misses(step) <= 4


class Fitted:
    """Keeps what only code that doesn't run here reads."""

    def __init__(self):
        self.model, self.scale = nn.Linear(2, 2), [1.0]

    def step(self, x):
        self.scale = [2.0]
        return self.model(x)

    def unused(self):
        return self.scale


def test_what_code_that_did_not_run_reads_is_no_number_of_the_program():
    fitted = Fitted()
    compiled = funcaot.compile(lambda x: fitted.step(x), backend="eager")
    x = torch.ones(2)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fitted.model(x))
        assert fitted.scale == [2.0]
