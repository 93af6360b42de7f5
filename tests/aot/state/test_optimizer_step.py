"""Steps of optimizers that count in numbers, replace their state or are refused."""

import contextlib
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


class Counts(torch.optim.Optimizer):
    """It counts in a number of its group, as many do."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "beta": 0.9, "step": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] += 1
            correction = math.sqrt(1 - group["beta"] ** group["step"])
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                state["mean"].lerp_(parameter.grad, weight=1 - group["beta"])
                parameter.add_(state["mean"], alpha=-group["lr"] / correction)


class Replaces(Counts):
    """It makes new tensors for its state in each step, and keeps one of the gradient's."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.get("mean", torch.zeros_like(parameter))
                state["mean"] = mean * 0.9 + parameter.grad * 0.1
                state["norm"] = parameter.grad.norm() + state.get("norm", 0.0)
                state["last"] = parameter.grad
                parameter.sub_(state["mean"] * group["lr"] / state["norm"])


OPTIMIZERS = {
    "counts": Counts,
    "replaces": Replaces,
    "sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=0.1),
    "adam": torch.optim.Adam,
}


@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_a_step_with_a_schedule_takes_few_programs(name):
    models, steps, schedules, optimizers = [], [], [], []
    for _ in range(2):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = OPTIMIZERS[name](model.parameters(), lr=0.1)
        schedules.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20))

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        models.append(model)
        steps.append(step)
        optimizers.append(optimizer)
    compiled = funcaot.compile(steps[1], backend="eager")
    for _ in range(12):
        x = torch.randn(5, 3)
        assert_close(compiled(x), steps[0](x))
        for first, second in zip(*(model.parameters() for model in models), strict=True):
            assert_close(second, first)
            have, want = (o.state[p] for o, p in zip(optimizers, (first, second), strict=True))
            assert have.keys() == want.keys()
            for key, value in have.items():
                assert_close(value, want[key])
        for schedule in schedules:
            schedule.step()
    assert len(funcaot.report(compiled).entries) <= 3


class Untraceable(torch.optim.Optimizer):
    """Its first step makes state and then asks for a value."""

    def __init__(self, parameters, kind):
        super().__init__(parameters, {"lr": 0.1})
        self.kind = kind

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if self.kind == "beside":
                self.state.setdefault("k", torch.zeros(1)).add_(1)
                math.pow(self.state["k"], 0.5)
            elif self.kind == "list":
                self.state[parameter].setdefault("kept", [torch.zeros_like(parameter)])[0].add_(1)
            else:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
            parameter.sub_(parameter.grad)


@pytest.mark.parametrize("kind", ["beside", "list", "number"])
def test_a_step_that_is_refused_leaves_the_state_as_it_was(kind):
    model = torch.nn.Linear(2, 1)
    optimizer = Untraceable(model.parameters(), kind)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    compiled = funcaot.compile(step, backend="eager")
    for _ in range(3):
        with contextlib.suppress(UnsupportedError):
            compiled(torch.ones(1, 2))
    for key, state in optimizer.state.items():
        values = torch.utils._pytree.tree_leaves([key, state])
        assert not any(isinstance(value, FakeTensor | FunctionalTensor) for value in values)
        assert all(value < 2 for value in values if type(value) is int)
    with pytest.raises(UnsupportedError, match=r"Untraceable\.step"):
        compiled(torch.ones(1, 2))


HOOKS = {
    "before": register_optimizer_step_pre_hook,
    "after": register_optimizer_step_post_hook,
}


@pytest.mark.parametrize("when", HOOKS)
@pytest.mark.parametrize("comes", [True, False])
def test_hooks_of_all_optimizers_come_and_go(when, comes):
    def run(compiling):
        w = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([w], lr=0.1)

        def hook(optimizer, args, kwargs):
            with torch.no_grad():
                w.mul_(0.5)

        def step(x):
            optimizer.zero_grad()
            (x * w).square().sum().backward()
            optimizer.step()

        target = funcaot.compile(step, backend="eager") if compiling else step
        found, handle = [], None
        for index in range(6):
            if index == (3 if comes else 0):
                handle = HOOKS[when](hook)
            if index == 3 and not comes:
                handle.remove()
            target(torch.arange(3.0) + index)
            found.append(w.detach().clone())
        handle.remove()
        return found

    assert_close(run(compiling=True), run(compiling=False))
