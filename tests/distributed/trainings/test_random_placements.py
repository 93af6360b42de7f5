"""Random small models whose parameters are `DTensor`s, trained on two ranks: each as in eager.

Drawn are layers, the placement of each parameter and of the batch, optimizer, what is compiled and
how rows vary. The oracle is the same training uncompiled; compared on each rank are the loss, and
placements, local parts and strides of parameters, gradients and the optimizer's state.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import funcaot
from tests.distributed.ranks import Ranks
from tests.hostile import COMPILER

STEPS = 4
WIDTHS = (4, 6, 5)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, foreach=False),
    "momentum": lambda p: torch.optim.SGD(p, 0.03, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01, eps=0.05),
    "adam, one by one": lambda p: torch.optim.Adam(p, 0.01, eps=0.05, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, eps=0.05, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, eps=0.05),
}
LAYERS = ("linear", "linear", "layer norm", "rms norm", "tanh", "relu", "gelu", "residual")
COMPILED = ("model", "loss", "step", "forward and update")


class _Residual(nn.Module):
    """A layer around which its input goes on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + self.inner(x).tanh()


def _layer(name: str, width: int) -> nn.Module:
    made = {
        "linear": lambda: nn.Linear(width, width),
        "layer norm": lambda: nn.LayerNorm(width),
        "rms norm": lambda: nn.RMSNorm(width),
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "gelu": nn.GELU,
        "residual": lambda: _Residual(width),
    }
    return made[name]()


def draw(seed: int) -> dict[str, Any]:
    """The settings of a training."""
    made = random.Random(seed)
    return {
        "seed": seed,
        "embedding": made.random() < 0.4,
        "layers": [made.choice(LAYERS) for _ in range(made.randint(1, 4))],
        "width": made.choice(WIDTHS),
        "batch": made.choice("0r"),
        "rows": made.choice(((4, 4, 4, 4), (4, 6, 4, 5), (5, 3, 7, 2))),
        "optimizer": made.choice(list(OPTIMIZERS)),
        "compiled": made.choice(COMPILED),
        "whole": made.random() < 0.5,
        "frozen": made.random() < 0.3,
        "none": made.random() < 0.7,
        "clip": made.random() < 0.3,
        "places": made.randrange(1000),
    }


def _model(drawn: dict[str, Any], mesh) -> nn.Sequential:
    """The layers, each parameter where it was drawn to be."""
    torch.manual_seed(drawn["seed"])
    width = drawn["width"]
    first = nn.Embedding(8, width) if drawn["embedding"] else nn.Linear(3, width)
    layers = [_layer(name, width) for name in drawn["layers"]]
    model = nn.Sequential(first, *layers, nn.Linear(width, 2))
    places = random.Random(drawn["places"])
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            cuts = [Replicate(), *map(Shard, range(parameter.dim()))]
            placed = distribute_tensor(parameter.detach(), mesh, [places.choice(cuts)])
            kept = not (drawn["frozen"] and places.random() < 0.4)
            module.register_parameter(name, nn.Parameter(placed, requires_grad=kept))
    return model


def _batch(drawn: dict[str, Any], step: int, mesh):
    made = torch.Generator().manual_seed(100 * drawn["seed"] + step)
    rows, place = drawn["rows"][step], Shard(0) if drawn["batch"] == "0" else Replicate()
    x = torch.randn(rows, 3, generator=made)
    if drawn["embedding"]:
        x = torch.randint(8, (rows,), generator=made)
    target = torch.randn(rows, 2, generator=made)
    return [distribute_tensor(each, mesh, [place]) for each in (x, target)]


class _Training:
    """A model with its optimizer, and a step of which some is compiled."""

    def __init__(self, drawn: dict[str, Any], mesh, compiling: Callable[[Any], Any]) -> None:
        self.model = _model(drawn, mesh)
        self.wanted = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = OPTIMIZERS[drawn["optimizer"]](self.wanted)
        self.drawn = drawn
        parts = {
            "model": self.model,
            "loss": self._loss,
            "step": self._step,
            "update": self._update,
        }
        compiled = drawn["compiled"]
        for name in parts:
            parts[name] = compiling(parts[name]) if name in compiled else parts[name]
        if compiled == "forward and update":
            parts["loss"] = compiling(parts["loss"])
        self.parts = parts
        self.step = parts["step"]

    def _loss(self, x, target):
        found = self.parts["model"](x)
        value = (found - target).square().mean()
        return value.full_tensor() if self.drawn["whole"] else value

    def _update(self):
        if self.drawn["clip"]:
            for each in self.wanted:
                each.grad.mul_(0.5)
        self.optimizer.step()

    def _step(self, x, target):
        self.optimizer.zero_grad(set_to_none=self.drawn["none"])
        value = self.parts["loss"](x, target)
        value.backward()
        self.parts["update"]()
        return value.detach()

    def seen(self, value) -> list[Any]:
        """What can be told of it after a step."""
        found = [("loss", *_looks(value))]
        for name, each in self.model.named_parameters():
            found.append((name, *_looks(each)))
            found.append((f"{name}.grad", *_looks(each.grad)))
            for key, state in sorted(self.optimizer.state.get(each, {}).items()):
                found.append((f"{name}.{key}", *_looks(state)))
        return found


def _looks(value) -> tuple[Any, Any]:
    """What compares by equality, and numbers."""
    if not isinstance(value, torch.Tensor):
        return repr(value), None
    if isinstance(value, DTensor):
        local = value.to_local().detach().clone()
        told = (value.placements, value.shape, value.stride(), local.stride())
        return (*told, value.requires_grad), local
    return ("plain", value.shape, value.stride(), value.requires_grad), value.detach().clone()


def _played(drawn: dict[str, Any], mesh, compiling) -> list[Any]:
    """What each step comes to; the last one may be what is raised."""
    found: list[Any] = []
    training = None
    for step in range(STEPS):
        try:
            training = training or _Training(drawn, mesh, compiling)
            value = training.step(*_batch(drawn, step, mesh))
        except Exception as error:  # noqa: BLE001 (whatever torch raises for a placement)
            return [*found, f"{type(error).__name__}: {error}"]
        found.append(training.seen(value))
    return found


def _difference(found: list[Any], wanted: list[Any]) -> str:
    for step, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if isinstance(one, str) or isinstance(other, str):
            kinds = [each.split(":")[0] if isinstance(each, str) else "" for each in (one, other)]
            return "" if kinds[0] == kinds[1] else f"step {step}: {one!s:.300} for {other!s:.300}"
        for (name, told, number), (other_name, wanted_told, wanted_number) in zip(
            one, other, strict=True
        ):
            if (name, told) != (other_name, wanted_told):
                return f"step {step}, {name}: {told} for {other_name} {wanted_told}"
            if wanted_number is not None:
                try:
                    torch.testing.assert_close(number, wanted_number, rtol=1e-4, atol=1e-5)
                except AssertionError as error:
                    return f"step {step}, {name}: {error}"
    return "" if len(found) == len(wanted) else f"{len(found)} steps for {len(wanted)}"


def check(seed: int, backend: Any = COMPILER) -> str:
    """How a training came out on all ranks: compared, raised, or what differs."""
    mesh = dist.init_device_mesh("cpu", (2,))
    drawn = draw(seed)
    wanted = _played(drawn, mesh, lambda function: function)
    found = _played(drawn, mesh, lambda function: funcaot.compile(function, backend=backend))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, _difference(found, wanted))
    for rank, said in enumerate(every):
        if said:
            return f"{seed} on rank {rank}: {drawn}: {said}"
    return "raised" if isinstance(wanted[-1], str) else "compared"


def _checked(seeds: tuple[int, ...], backend: Any) -> list[str]:
    return [check(seed, backend or COMPILER) for seed in seeds]


def _outcomes(ranks: Ranks, seeds, deadline: float, backend: str | None = None) -> Counter[str]:
    """How often each came out; what differs from eager fails the test."""
    said, same = ranks.run(_checked, tuple(seeds), backend, deadline=deadline)
    assert said == same
    different = [text for text in said if text not in ("compared", "raised")]
    assert not different, "\n".join(different)
    return Counter(said)


def test_two(ranks: Ranks):
    assert _outcomes(ranks, (0, 1), deadline=300)["compared"] == 2


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_more(ranks: Ranks, part):
    seeds = range(10 + 12 * part, 22 + 12 * part)
    assert _outcomes(ranks, seeds, deadline=900)["compared"] > 5


@pytest.mark.long
def test_on_inductor(ranks: Ranks):
    assert _outcomes(ranks, range(100, 103), deadline=900, backend="inductor")["compared"] > 0
