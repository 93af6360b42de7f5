"""``sessions`` runs two of these: a model, an optimizer and what a user holds, compiled or not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import funcaot
from tests.aot.saved.reloading import compiled_function

WIDTH = 6
COMPILED = ("call", "loss", "step", "forces")
FEATURES = 4


class Wave(torch.autograd.Function):
    """A Function of the user's, whose gradient isn't autograd's: it tells which rule ran."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return slope * torch.sin(x)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 1.5 * ctx.slope * cotangent * torch.cos(x), None


class Output(NamedTuple):
    """What a network returns when it is asked for more."""

    logits: torch.Tensor
    hidden: torch.Tensor
    size: int


class Net(nn.Module):
    """A small network with all kinds of state that people keep in one."""

    gain = 1.0

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.last = nn.Linear(WIDTH, 2)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("mask", None)
        self.scale = 1.5
        self.waves = False
        self.keeps = "nothing"
        self.fails = ""
        self.options = {"slope": 0.5, "power": 2}
        self.calls = 0
        self.kept = None
        self.seen = []
        self.memory = {}
        self.branches = "none"
        self.activation = torch.tanh
        self.log = []

    def forward(self, x, shift=0.0, *, whole=False):
        self.calls += 1
        if self.fails == "before":
            raise ValueError("before")
        y = self.norm(self.first(x)) if len(x) > 1 else self.first(x)
        if self.waves:
            y = Wave.apply(y, self.options["slope"])
        for block in self.blocks:
            y = y + self.activation(block(y)) * self.options["slope"]
        if self.options.get("power"):
            y = torch.sin(y) ** self.options["power"]
        if self.training:
            self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        if self.mask is not None:
            y = y * self.mask
        if self.fails == "after":
            raise ValueError("after")
        self._keep(y)
        y = self._branch(y)
        logits = self.last(self.drop(y)) * self.scale * self.gain + shift
        return Output(logits, y, len(x)) if whole else logits

    def _branch(self, y):
        if self.branches == "calls":
            return y * 2 if self.calls % 2 else y
        if self.branches == "values":
            return y * 2 if y.sum() > 0 else y - 1
        if self.branches == "mask":
            return torch.where(y > 0, y, 0.1 * y) + y[y > 0].sum()
        if self.branches == "item":
            self.log.append(y.detach().mean().item())
        return y

    def _keep(self, y):
        if self.keeps == "tensor":
            self.kept = y
        elif self.keeps == "detached":
            self.kept = y.detach()
        elif self.keeps == "list":
            self.seen.append(y.detach().sum())
        elif self.keeps == "dict":
            previous = self.memory.get("sum")
            self.memory["sum"] = y.detach().sum() + (0 if previous is None else previous)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


class World:
    """A model with its optimizer; what is ``compiled`` is called through a compiled function.

    Args:
        seed: Of the values of parameters.
        backend: Of what is compiled; None for nothing.
        folder: Where its functions find programs; None for nowhere.
    """

    def __init__(self, seed, backend, folder=None):
        torch.manual_seed(seed)
        Net.gain = 1.0
        self.backend = backend
        self.net = Net().double()
        self.optimizer = OPTIMIZERS["sgd"](self.net.parameters())
        self.target = torch.randn(2, dtype=torch.float64)
        self.rate = 0.5
        self.snapshot = copy.deepcopy(self.net.state_dict())
        self.handles = []
        self.held = None
        self.rng = torch.get_rng_state()
        for name in COMPILED:
            function = self.net if name == "call" else getattr(self, f"_{name}")
            setattr(self, name, self._compiled(function, folder and Path(folder) / name))

    def _compiled(self, function, path):
        if self.backend is None:
            return function
        return funcaot.compile(function, backend=self.backend, artifacts=path)

    def save(self, folder):
        """Keep the programs of its functions for another world."""
        for name in COMPILED:
            compiled_function(getattr(self, name)).save(Path(folder) / name)

    def _loss(self, x):
        return ((self.net(x) - self.target) ** 2).mean() * self.rate

    def _step(self, x):
        self.optimizer.zero_grad()
        loss = self._loss(x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _forces(self, x):
        x = x.detach().requires_grad_()
        energy = self.net(x).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, -force

    def state(self):
        """All that an action can have changed, by name."""
        net = self.net
        found = {f"state {name}": value for name, value in net.state_dict().items()}
        for name, parameter in net.named_parameters():
            found[f"gradient {name}"] = parameter.grad
            found[f"wants {name}"] = parameter.requires_grad
        position = {id(parameter): name for name, parameter in net.named_parameters()}
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                found[f"optimizer {position.get(id(parameter), 'gone')} {name}"] = value
        for name in ("calls", "kept", "seen", "memory", "options", "scale", "training", "log"):
            found[name] = getattr(net, name)
        found |= {"held": self.held, "random": self.rng}
        return found
