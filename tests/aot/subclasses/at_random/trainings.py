"""Drawn trainings of a small model whose parameters, buffers and batches are wrappers.

A training is a model, a function to compile (the model, its loss, a penalty on its gradient, or the
whole step), an optimizer, and what a user does between two steps.
"""

from __future__ import annotations

import copy

import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.aot.subclasses.at_random.shared_worlds import Pair
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, made

__all__ = ["KINDS", "Model", "Training"]

F = torch.nn.functional
WIDTH = 4


def _placed(placements):
    return lambda value, mesh: distribute_tensor(value, mesh, [placements])


KINDS = {
    "plain": lambda value, mesh: value,
    "two": lambda value, mesh: TwoTensor(value, value * 2),
    "pair": lambda value, mesh: Pair(value, value + 1),
    "pair of one": lambda value, mesh: Pair(value, value),
    "third": lambda value, mesh: Pair(value, value * 2, torch.arange(2)),
    "nested": lambda value, mesh: TwoTensor(
        TwoTensor(value, value * 2), TwoTensor(value.clone(), value * 0.5)
    ),
    "metadata": lambda value, mesh: Factor(value, 2),
    "replicated": _placed(Replicate()),
    "rows": _placed(Shard(0)),
    "columns": _placed(Shard(-1)),
}
TOGETHER = {
    "dtensor": ("replicated", "rows", "columns"),
    "wrapper": ("plain", "two", "nested", "plain"),
    "pairs": ("pair", "pair", "plain", "third", "pair of one"),
    "metadata": ("metadata",),
    "jagged": ("plain",),
    "coded": ("plain", "two"),
}


class Model(torch.nn.Module):
    """Layers of drawn kinds with a buffer that is written to."""

    def __init__(self, draw, kinds, mesh, coded=False):
        super().__init__()

        def new(seed, *shape):
            return KINDS[draw.choice(kinds)](made(seed, *shape, grad=False) * 0.5, mesh)

        self.first = torch.nn.Parameter(new(1, WIDTH, WIDTH))
        self.bias = torch.nn.Parameter(new(2, WIDTH))
        self.second = torch.nn.Parameter(new(3, WIDTH, WIDTH))
        self.scale = torch.nn.Parameter(new(4, WIDTH))
        self.coded = None
        if coded:
            weight = Int8.of(made(5, WIDTH, WIDTH, grad=False))
            self.coded = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("mean", new(6, WIDTH))
        self.steps = [draw.choice(list(LAYERS)) for _ in range(draw.randint(1, 4))]
        self.mesh = mesh

    def forward(self, x):
        for name in self.steps:
            x = LAYERS[name](self, x)
        return x


def _running(model, x):
    flat = x.values() if x.is_nested else x
    with torch.no_grad():
        model.mean.mul_(0.9).add_(flat.detach().mean(0), alpha=0.1)
    return x + model.mean


def _low_rank(model, x):
    y = x if model.coded is None else F.linear(x, model.coded)
    return y + (x @ model.first) @ model.second


LAYERS = {
    "linear": lambda m, x: F.linear(x, m.first, m.bias),
    "product": lambda m, x: (x @ m.second).relu(),
    "gelu": lambda m, x: F.gelu(x * m.scale),
    "norm": lambda m, x: F.layer_norm(x, (WIDTH,), m.scale, m.bias),
    "residual": lambda m, x: x + F.linear(x, m.second).sigmoid(),
    "softmax": lambda m, x: torch.softmax(x @ m.first, -1),
    "running": _running,
    "low rank": _low_rank,
    "tied": lambda m, x: F.linear(F.linear(x, m.first).tanh(), m.first.t()),
    "gate": lambda m, x: x * F.silu(x @ m.second),
    "written": lambda m, x: (x * m.scale).mul_(2).add_(m.bias),
    "no grad": lambda m, x: x * x.detach().tanh(),
}


def _mean(value):
    """One number, of a jagged batch too."""
    return (value.values() if value.is_nested else value).square().mean()


def _loss(model, x):
    return _mean(model(x))


def _more(model, x):
    """The loss with views, an argument, a parameter's view, and what is detached."""
    y = model(x)
    beside = y if y.is_nested else y.t()
    return _mean(y), beside, x, model.first[0], model.second.detach()


def _penalty(model, x):
    """The gradient by the batch is a part of the loss."""
    if not x.requires_grad:
        x = x.detach().requires_grad_()
    loss = _loss(model, x)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + _mean(gradient), gradient


FUNCTIONS = {"model": lambda m, x: m(x), "loss": _loss, "more": _more, "penalty": _penalty}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.05, foreach=False),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.05, foreach=True),
}
BETWEEN = (
    "nothing", "nothing", "nothing", "freeze", "load", "accumulate", "write", "evaluate", "hook",
    "data", "new parameter", "zero", "scale", "copy", "rate",
)  # fmt: skip


class Training:
    """Five steps of a drawn model."""

    def __init__(self, seed, draw, mesh):
        self.seed, self.draw, self.mesh = seed, draw, mesh
        self.world = draw.choice(list(TOGETHER))
        self.kinds = TOGETHER[self.world]
        self.model = Model(draw, self.kinds, mesh, self.world == "coded")
        # Torch has no second derivative of products of jagged tensors.
        endings = ["model", "loss", "more"] if self.world == "jagged" else list(FUNCTIONS)
        self.ending = draw.choice(endings)
        self.step_inside = draw.random() < 0.3
        # Steps by lists aren't counted in eager where wrappers are in a list.
        self.optimizer_name = draw.choice(list(OPTIMIZERS)[: 3 if self.step_inside else 4])
        # Eager's third derivative of a layer norm isn't right.
        self.double = draw.random() < 0.3 and self.ending != "penalty"
        self.double = self.double and not self.step_inside and self.world != "jagged"
        self.sizes = draw.choice(((3, 3, 3, 3, 3), (3, 5, 4, 3, 6)))
        self.needed = draw.random() < 0.4
        self.between = [draw.choice(BETWEEN) for _ in range(5)]
        self.optimizer = OPTIMIZERS[self.optimizer_name](self.trained())
        self.kept = []

    def __str__(self):
        shown = (self.world, self.model.steps, self.ending, self.optimizer_name, self.step_inside)
        kinds = [type(p).__name__ for p in self.model.parameters()]
        return f"{shown} {kinds} {self.between} {self.sizes} double {self.double}"

    def trained(self):
        """What the optimizer is given."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def batch(self, step):
        """The data of a step."""
        n, seed = self.sizes[step], 100 * self.seed + step
        if self.world == "jagged":
            rows = torch.Generator().manual_seed(seed)
            lengths = torch.randint(1, 6, (n,), generator=rows)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            values = made(seed, int(lengths.sum()), WIDTH, grad=False)
            x = torch.nested.nested_tensor_from_jagged(values, offsets)
        else:
            kinds = self.kinds if self.world == "dtensor" else self.kinds[:2]
            kind = kinds[self.seed % len(kinds)]
            x = KINDS[kind](made(seed, n, WIDTH, grad=False), self.mesh)
        return x.requires_grad_() if self.needed else x

    def step_function(self):
        """What is compiled: it takes a batch."""
        function, model, optimizer = FUNCTIONS[self.ending], self.model, self.optimizer

        def forward(x):
            return function(model, x)

        def step(x):
            optimizer.zero_grad()
            results = function(model, x)
            first = results[0] if isinstance(results, tuple) else results
            self.scalar(first).backward()
            optimizer.step()
            return results

        return step if self.step_inside else forward

    @staticmethod
    def scalar(value):
        """One number to differentiate."""
        return value if value.dim() == 0 else _mean(value)

    def change(self, step):
        """What a user does before a step."""
        what, model, new = self.between[step], self.model, self.draw.random()
        with torch.no_grad():
            if what == "freeze":
                model.second.requires_grad_(not model.second.requires_grad)
            if what == "load":
                state = {k: v.detach().clone() for k, v in model.state_dict().items()}
                model.load_state_dict(state)
            if what == "write":
                model.first.mul_(0.9)
                model.mean.zero_()
            if what == "data":
                model.bias.data = model.bias.detach().clone() * 2
            if what == "scale":
                for p in self.trained():
                    if p.grad is not None:
                        p.grad.mul_(0.5)
            if what == "zero":
                self.optimizer.zero_grad(set_to_none=new < 0.5)
        if what == "new parameter":
            model.scale = torch.nn.Parameter(model.scale.detach().clone() * 1.5)
            self.optimizer = OPTIMIZERS[self.optimizer_name](self.trained())
        if what == "hook":
            # A compiled function calls it with None where no gradient reaches the parameter.
            model.first.register_hook(lambda g: None if g is None else g * 2)
        if what == "copy":
            self.kept.append(copy.deepcopy(model.first))
        if what == "rate":
            self.optimizer.param_groups[0]["lr"] *= 0.5
        return what

    def after(self, results, x, what):
        """The backward and the optimizer's step, where these are outside; what there is then."""
        flat = list(results) if isinstance(results, tuple) else [results]
        found = []
        if not self.step_inside:
            loss = self.scalar(flat[0])
            if self.double:
                leaves = [p for p in (*self.trained(), x) if p.requires_grad]
                found = list(
                    torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
                )
                loss = loss + sum(self.scalar(g) for g in found if g is not None)
            if what not in ("accumulate", "zero"):
                self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return flat, found

    def state(self):
        """Everything of a tensor that a step leaves."""
        kept = [p for p in (*self.model.parameters(), *self.model.buffers()) if p is not None]
        grads = [p.grad for p in self.model.parameters()]
        moments = [
            value
            for p in self.trained()
            for value in self.optimizer.state.get(p, {}).values()
            if isinstance(value, torch.Tensor)
        ]
        return kept, grads, moments
