"""Every optimizer of torch.optim in a compiled step: parameters and state as in eager."""

import copy

import pytest
import torch
from torch import nn

import funcaot

COMMON = [{}, {"maximize": True}, {"foreach": True}, {"foreach": False}]
DECAY = [{"weight_decay": 0.1}]
OPTIONS = {
    "Adadelta": COMMON + DECAY,
    "Adafactor": [*COMMON, {"lr": 0.1, "weight_decay": 0.1}],
    "Adagrad": [*COMMON, {"lr_decay": 0.1, "weight_decay": 0.1}, {"fused": True}],
    "Adam": [*COMMON, {"amsgrad": True}, {"fused": True}, {"differentiable": True}],
    "AdamW": [*COMMON, {"amsgrad": True}, {"lr": torch.tensor(0.01)}, {"capturable": True}],
    "Adamax": COMMON + DECAY,
    "ASGD": [*COMMON, *DECAY, {"t0": 2.0}, {"differentiable": True}, {"lr": torch.tensor(0.01)}],
    "NAdam": [*COMMON, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [*COMMON, *DECAY, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RMSprop": [*COMMON, {"momentum": 0.9, "centered": True}],
    "Rprop": COMMON,
    "SGD": [*COMMON, {"momentum": 0.9, "nesterov": True}, {"fused": True}],
    "Muon": [{}],
    "SparseAdam": [{}],
    "LBFGS": [{}, {"line_search_fn": "strong_wolfe"}],
}


class Schedule:
    """What happens between two calls."""

    def __init__(self, kind, optimizer):
        self.kind, self.optimizer, self.calls = kind, optimizer, 0
        if kind == "scheduler":
            self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def __call__(self):
        self.calls += 1
        if self.kind == "scheduler":
            self.scheduler.step()
        elif self.kind == "rate" and self.calls == 3:
            self.optimizer.param_groups[0]["lr"] *= 0.5
        elif self.kind == "loaded" and self.calls == 3:
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))


def make_step(name, model, optimizer):
    def closure(x):
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss

    def step(x):
        if name == "LBFGS":
            return optimizer.step(lambda: closure(x))
        loss = closure(x)
        optimizer.step()
        return loss.detach()

    return step


def trained(name, options, wrap, between, steps=6):
    torch.manual_seed(0)
    bias = name != "Muon"
    model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias))
    x = torch.randn(5, 3)
    if name == "SparseAdam":
        model, x = nn.Embedding(5, 3, sparse=True), torch.tensor([0, 2, 2])
    own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    optimizer = getattr(torch.optim, name)(model.parameters(), **own)
    step = wrap(make_step(name, model, optimizer))
    schedule, losses = Schedule(between, optimizer), []
    for index in range(steps):
        losses.append(step(x + index if x.is_floating_point() else x).detach().clone())
        schedule()
    state = {
        (index, key): value
        for index, parameter in enumerate(model.parameters())
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor | int | float)
    }
    return losses, [parameter.detach() for parameter in model.parameters()], state


def attempt(*args):
    try:
        return trained(*args)
    except (RuntimeError, AssertionError) as error:
        return error


def check(name, options, between, backend="eager"):
    wanted = attempt(name, options, lambda step: step, between)
    found = attempt(name, options, lambda s: funcaot.compile(s, backend=backend), between)
    if isinstance(wanted, Exception):
        assert isinstance(found, Exception)
    elif isinstance(found, funcaot.errors.UnsupportedError):
        assert name in str(found)
        return str(found)
    else:
        assert not isinstance(found, Exception), found
        torch.testing.assert_close(found, wanted)
    return None


OFTEN_WRONG = ("RAdam", "ASGD", "Adafactor")
CASES = [
    pytest.param(
        name, options, id=f"{name}-{options}", marks=() if name in OFTEN_WRONG else pytest.mark.slow
    )
    for name, all_options in OPTIONS.items()
    for options in all_options[1:]
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options"), CASES)
def test_steps_with_options(name, options):
    check(name, options, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIONS)
def test_steps(name):
    refused = check(name, {}, "rate")
    assert refused is None or name in ("NAdam", "LBFGS", "SparseAdam")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("between", ["scheduler", "loaded"])
@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in OFTEN_WRONG])
def test_what_changes_between_steps(name, between):
    check(name, {}, between)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("between", ["scheduler", "loaded"])
@pytest.mark.parametrize("name", OFTEN_WRONG)
def test_what_changes_between_steps_that_branch(name, between):
    check(name, {}, between)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["RAdam", "Adafactor", "Adam"])
def test_steps_on_inductor(name):
    check(name, {}, None, backend="inductor")
