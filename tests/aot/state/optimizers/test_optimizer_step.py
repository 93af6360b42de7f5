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


class Nested(Counts):
    """It keeps lists and dictionaries of tensors and numbers; its first step only makes them."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad
                if not state:
                    sides = [torch.eye(size, dtype=gradient.dtype) for size in gradient.shape]
                    state.update(sides=sides, means={0.5: torch.zeros_like(gradient)}, step=0)
                    continue
                state["step"] += 1
                for at, side in enumerate(state["sides"]):
                    flat = gradient.movedim(at, 0).reshape(len(side), -1)
                    side.lerp_(flat @ flat.mT, 0.1)
                if state["step"] % 3 == 0:
                    state["sides"][0] = state["sides"][0] * 0.5
                for beta, mean in state["means"].items():
                    mean.lerp_(gradient, 1 - beta ** state["step"])
                    parameter.sub_(mean / state["sides"][0].trace(), alpha=group["lr"])


class Beside(Counts):
    """It counts in a tensor beside the parameters' state."""

    @torch.no_grad()
    def step(self):
        count = self.state.setdefault("k", torch.tensor([0]))
        for group in self.param_groups:
            rate = group["lr"] / math.pow(count + 1, 0.5) * math.sqrt(1 + 1 / (1 + count.item()))
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=rate)
        count.add_(1)


class Estimates(Counts):
    """It keeps numbers that it reads off tensors, and a tensor, in its group."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            norm, before = group.get("norm", 0.0), group.get("norm", 0.0)
            for parameter in group["params"]:
                norm += parameter.grad.square().sum().item()
            group["growth"] = norm - before
            group["norm"] = max(norm, before)
            group["counted"] = group.get("counted", 0) + torch.tensor(2).item()
            group["last"] = torch.stack([parameter.grad.norm() for parameter in group["params"]])
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / (1.0 + group["norm"] ** 0.5))


class OwnPaths(Counts):
    """It has a way of its own for all parameters together, which does something else."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.param_groups[0]["foreach"] = True

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            factor = 1.0 if group["foreach"] else 0.5
            parameters = group["params"]
            gradients = [parameter.grad for parameter in parameters]
            torch._foreach_add_(parameters, gradients, alpha=-factor * group["lr"])


OPTIMIZERS = {
    "counts": Counts,
    "replaces": Replaces,
    "nested": Nested,
    "beside": Beside,
    "estimates": Estimates,
    "own paths": OwnPaths,
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
        have, want = (optimizer.state_dict() for optimizer in optimizers)
        (have, tree), (want, expected) = map(torch.utils._pytree.tree_flatten, (have, want))
        assert tree == expected
        assert [*map(type, have)] == [*map(type, want)]
        assert_close(have, want)
        for schedule in schedules:
            schedule.step()
    assert len(funcaot.report(compiled).entries) <= PROGRAMS.get(name, 3)


# One for each answer of a branch.
PROGRAMS = {"nested": 5}


class Untraceable(torch.optim.Optimizer):
    """It makes state, and leaves torch."""

    def __init__(self, parameters, kind):
        super().__init__(parameters, {"lr": 0.1})
        self.kind = kind

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if self.kind == "beside":
                self.state.setdefault("k", torch.zeros(1)).add_(1)
            elif self.kind == "list":
                self.state[parameter].setdefault("kept", [torch.zeros_like(parameter)])[0].add_(1)
            else:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
            parameter.sub_(torch.from_numpy(parameter.grad.numpy()))


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
    with pytest.raises(UnsupportedError, match="NumPy"):
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


def test_a_rate_that_is_a_tensor_multiplies_as_exactly_as_in_eager():
    def training():
        torch.manual_seed(0)
        weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        rate = torch.tensor(0.0012345678, dtype=torch.float64)
        optimizer = torch.optim.Muon([weight], lr=rate)  # It computes updates in bfloat16.

        def step(x):
            optimizer.zero_grad()
            (x @ weight).tanh().sum().backward()
            optimizer.step()

        return weight, step

    (weight, step), (expected, eager) = training(), training()
    compiled = funcaot.compile(step, backend="eager")
    for seed in range(3):
        x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        compiled(x)
        eager(x)
        assert torch.equal(weight, expected)
