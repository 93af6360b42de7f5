"""Whatever is edited between two processes, a step of a file is never a wrong one."""

import contextlib
import sys
import types

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import funcaot
from tests.aot.saved.reloading import misses

NAME = "trained_module_of_tests"
SOURCE = """
import torch
from torch import nn
class Scaled(torch.optim.SGD):
    factor = 0.5
    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(p.grad, alpha=-group["lr"] * self.factor)
def penalty(network):
    return sum(p.square().sum() for p in network.parameters()) * WEIGHT
WEIGHT = 0.01
CLIPS = 1.0
class Trainer:
    power = 2
    def __init__(self):
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.spare = nn.Parameter(torch.ones(2).double())
        self.optimizer = MAKE
        self.count, self.last = 0, None
    def parameters(self):
        return [*self.network.parameters(), self.spare]
    def step(self, x, t):
        self.optimizer.zero_grad()
        loss = ((self.network(x) - t) ** self.power).mean() + penalty(self.network)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIPS)
        self.optimizer.step()
        self.count += 1
        self.last = loss.detach() * 2
        return loss.detach()
"""
MAKERS = {
    "SGD": "torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)",
    "Adam": "torch.optim.Adam(self.parameters(), lr=0.01)",
    "of the user's": "Scaled(self.parameters(), lr=0.1)",
}


class World:
    """The module with a trainer, as one process has them."""

    def __init__(self, monkeypatch, maker, edit=None):
        source = SOURCE.replace("MAKE", MAKERS[maker])
        if edit is not None:
            assert source.count(edit[0]) == 1, edit
            source = source.replace(*edit)
        self.module = types.ModuleType(NAME)
        monkeypatch.setitem(sys.modules, NAME, self.module)
        exec(source, vars(self.module))
        self.trainer = self.module.Trainer()
        self.size, self.dtype, self.tensors = 5, torch.float64, []

    @property
    def optimizer(self):
        return self.trainer.optimizer

    def batch(self, seed):
        torch.manual_seed(seed)
        return torch.randn(self.size, 3, dtype=self.dtype), torch.randn(
            self.size, 1, dtype=self.dtype
        )


def shown(world, target, change=contextlib.nullcontext, first=2):
    """Losses and all that is left, of steps before a change and after it."""
    losses = [target(*world.batch(seed)) for seed in range(first)]
    with change():
        losses += [target(*world.batch(seed)) for seed in range(3, 6)]
    parameters = world.trainer.parameters()
    state = world.optimizer.state
    return (
        losses,
        [parameter.detach().clone() for parameter in parameters],
        [parameter.grad for parameter in parameters],
        [dict(state[parameter]) for parameter in parameters if parameter in state],
        world.trainer.count,
        world.trainer.last,
    )


EDITS = {
    "a function that it calls": ("p.square().sum()", "p.abs().sum()"),
    "a global": ("WEIGHT = 0.01", "WEIGHT = 0.5"),
    "an argument of torch's": ("CLIPS = 1.0", "CLIPS = 0.1"),
    "a class attribute": ("power = 2", "power = 4"),
    "the order of calls": ("loss.backward()\n", "loss.backward(); loss = loss * 2\n"),
    "another activation": ("nn.Tanh()", "nn.Sigmoid()"),
    "another optimizer": ("self.optimizer = ", "self.optimizer = torch.optim.RMSprop("
                          "self.parameters(), lr=0.01) or "),
    "what the step stores": ("loss.detach() * 2", "loss.detach() * 3"),
}  # fmt: skip
OF_USER = {
    "the code of the optimizer": ("p.add_(p.grad, alpha=", "p.add_(p.grad.sign(), alpha="),
    "an attribute of the optimizer's class": ("factor = 0.5", "factor = 0.25"),
}


def group(**values):
    def change(world):
        world.optimizer.param_groups[0].update(values)

    return change


def frozen(world):
    world.trainer.network[0].requires_grad_(False)


def with_hook(world):
    world.trainer.network[0].weight.register_hook(lambda grad: grad * 2)


def with_late_hook(world):
    def hook(parameter):
        parameter.grad.mul_(3)

    world.trainer.network[0].weight.register_post_accumulate_grad_hook(hook)


def with_step_hook(world):
    def hook(optimizer, args, kwargs):
        with torch.no_grad():
            world.trainer.spare.mul_(2)

    world.optimizer.register_step_post_hook(hook)


@contextlib.contextmanager
def hook_of_all(world):
    def hook(optimizer, args, kwargs):
        with torch.no_grad():
            world.trainer.spare.add_(1)

    handle = register_optimizer_step_post_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def with_gradient(world):
    world.trainer.spare.grad = torch.ones(2).double()


def without_gradients(world):
    for parameter in world.trainer.parameters():
        parameter.grad = None


def another_group(world):
    world.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1).double())]})


def exchanged(world):
    first = world.optimizer.param_groups[0]["params"]
    first[0], first[2] = first[2], first[0]


def fewer(world):
    world.optimizer.param_groups[0]["params"].pop(0)


def doubled(world):
    world.trainer.network.float()
    world.dtype = torch.float32


def resized(world):
    world.size = 7


def replaced(world):
    network = world.trainer.network
    network[2].weight = torch.nn.Parameter(torch.full_like(network[2].weight, 0.3))


def shared(world):
    network = world.trainer.network
    network[2].weight.data = network[0].weight.data[:1, :].repeat(1, 2)[:, :4]
    network[2].bias.data = network[0].bias.data[:1]


def another_optimizer(world):
    world.trainer.optimizer = torch.optim.SGD(world.trainer.parameters(), lr=0.1)


def another_state(world):
    for state in world.optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                state[key] = torch.ones_like(value)


def less_state(world):
    world.optimizer.state.clear()


CHANGES = {
    "a learning rate": group(lr=0.3),
    "weight decay": group(weight_decay=0.1),
    "maximize": group(maximize=True),
    "a learning rate in a tensor": group(lr=torch.tensor(0.2), foreach=False),
    "a frozen layer": frozen,
    "a hook": with_hook,
    "a hook after the gradient": with_late_hook,
    "a hook of the optimizer": with_step_hook,
    "a gradient of what isn't used": with_gradient,
    "no gradients": without_gradients,
    "another group": another_group,
    "parameters in another order": exchanged,
    "a parameter less": fewer,
    "dtypes": doubled,
    "shapes": resized,
    "a parameter": replaced,
    "parameters that share memory": shared,
    "another optimizer": another_optimizer,
    "another state": another_state,
    "no state": less_state,
    "evaluation": lambda world: world.trainer.network.eval(),
}


def changing(world, change):
    @contextlib.contextmanager
    def around():
        found = change(world)
        with found if found is not None and hasattr(found, "__exit__") else _nothing():
            yield

    return around


_nothing = contextlib.nullcontext


def saved(monkeypatch, maker, path):
    world = World(monkeypatch, maker)
    compiled = funcaot.compile(world.trainer.step, backend="eager")
    shown(world, compiled)
    written = compiled.save(path)
    assert written.programs, str(written)


def outcome(world, target, change, first):
    try:
        return shown(world, target, changing(world, change), first)
    except (RuntimeError, KeyError) as error:
        return type(error)


def check(monkeypatch, maker, path, edit=None, change=lambda world: None, first=2):
    world = World(monkeypatch, maker, edit)
    theirs = outcome(world, world.trainer.step, change, first)
    world = World(monkeypatch, maker, edit)
    compiled = funcaot.compile(world.trainer.step, backend="eager", artifacts=path)
    ours = outcome(world, compiled, change, first)
    if isinstance(theirs, type):
        assert isinstance(ours, type)
    else:
        torch.testing.assert_close(ours, theirs)
    return compiled


def sampled(pairs):
    return [
        pytest.param(*pair, marks=() if index % 5 == 0 else pytest.mark.slow)
        for index, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize("maker", MAKERS)
def test_without_an_edit_it_is_found(maker, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    saved(monkeypatch, maker, path)
    compiled = check(monkeypatch, maker, path)
    assert misses(compiled) == (maker != "of the user's")  # the first step, which makes state
    assert funcaot.report(compiled).graphs_compiled == 0


@pytest.mark.parametrize(
    ("maker", "edit"),
    sampled([(maker, edit) for edit in EDITS for maker in MAKERS])
    + sampled([("of the user's", edit) for edit in OF_USER]),
)
def test_an_edit_of_the_source(maker, edit, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    saved(monkeypatch, maker, path)
    compiled = check(monkeypatch, maker, path, {**EDITS, **OF_USER}[edit])
    entries = funcaot.report(compiled).entries
    assert not any(entry.source for entry in entries)
    assert entries[0].reason


@pytest.mark.parametrize(
    ("maker", "change", "first"),
    sampled([(maker, change, n) for change in CHANGES for maker in MAKERS for n in (0, 2)]),
)
def test_a_change(maker, change, first, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    saved(monkeypatch, maker, path)
    check(monkeypatch, maker, path, change=CHANGES[change], first=first)


@pytest.mark.parametrize("maker", ["Adam", pytest.param("SGD", marks=pytest.mark.slow)])
def test_hooks_of_all_optimizers(maker, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    saved(monkeypatch, maker, path)
    compiled = check(monkeypatch, maker, path, change=hook_of_all)
    assert any(not entry.source for entry in funcaot.report(compiled).entries)
