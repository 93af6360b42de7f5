"""Random programs of views and in-place ops on possibly overlapping inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from tests.aot.differential import Inputs

Step = tuple[str, int, tuple[Any, ...]]


def _item(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return tensor.unbind(0)[index]


VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "flatten": lambda x: x.reshape(-1),
    "view": lambda x: x.view(-1),
    "t": lambda x: x.transpose(0, -1),
    "select": lambda x, i: x.select(0, i),
    "narrow": lambda x, i, n: x.narrow(0, i, n),
    "step": lambda x: x[::2],
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.squeeze(),
    "diagonal": lambda x: x.diagonal(),
    "item": _item,
    "split": lambda x: x.split(1)[-1],
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "view_as": lambda x: x.view_as(x),
    "alias": lambda x: x[...],
}

PURE: dict[str, Callable[..., torch.Tensor]] = {
    "sin": lambda x: x.sin(),
    "mul": lambda x, y: x * y,
    "scale": lambda x: x * 0.5,
    "clone": lambda x: x.clone(),
    "sum": lambda x: x.sum(),
}

WRITES: dict[str, Callable[..., Any]] = {
    "mul_": lambda x: x.mul_(1.25),
    "sin_": lambda x: x.sin_(),
    "zero_": lambda x: x.zero_(),
    "add_": lambda x, y: x.add_(y),
    "copy_": lambda x, y: x.copy_(y),
    "times_": lambda x, y: x.mul_(y),
    "setitem": lambda x: x.__setitem__(0, 3.0),
}

METADATA: dict[str, Callable[..., Any]] = {
    "transpose_": lambda x: x.transpose_(0, -1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(),
    "detach_": lambda x: x.detach_(),
    "requires_grad_": lambda x: x.requires_grad_(),
}


@dataclass(frozen=True)
class Layout:
    """How one input lies in a storage: which one, where, how, and its part in autograd."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class Program:
    """Inputs and straight-line code on registers; the first registers are the inputs.

    Attributes:
        layouts: One per input.
        grads: For each storage, what its base is: ``plain``, ``leaf`` or ``non_leaf``.
        steps: Op, how it runs (with grad, no_grad), operands.
        returned: Registers that are returned.
    """

    layouts: tuple[Layout, ...]
    grads: tuple[str, ...]
    steps: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...]
    returned: tuple[int, ...]

    def inputs(self) -> Inputs:
        """Fresh equal inputs."""
        leaves, bases = [], []
        for position, grad in enumerate(self.grads):
            leaf = torch.linspace(0.3, 1.7, 12, dtype=torch.float64) + position
            base = leaf
            if grad != "plain":
                leaf.requires_grad_()
                leaves.append(leaf)
                base = leaf if grad == "leaf" else leaf * 1.0
            bases.append(base)
        args = [self._place(bases[layout.storage], layout) for layout in self.layouts]
        return Inputs(args, bases, leaves)

    @staticmethod
    def _place(base: torch.Tensor, layout: Layout) -> torch.Tensor:
        if layout.kind == "base":
            return base
        if layout.kind == "detached":
            return base.detach().as_strided(layout.shape, layout.stride, layout.offset)
        return base.as_strided(layout.shape, layout.stride, layout.offset)

    def __call__(self, *args: torch.Tensor) -> tuple[Any, ...]:
        """Run it."""
        registers = list(args)
        for step in self.steps:
            registers.append(execute(step, registers))
        return tuple(registers[index] for index in self.returned)


def execute(step: tuple[str, str, tuple[int, ...], tuple[int, ...]], registers: list[Any]) -> Any:
    """Run one step on the registers."""
    name, mode, operands, numbers = step
    tables = {**VIEWS, **PURE, **WRITES, **METADATA}
    context = torch.no_grad() if mode == "no_grad" else contextlib.nullcontext()
    with context:
        result = tables[name](*(registers[index] for index in operands), *numbers)
    return registers[operands[0]] if result is None else result


SHAPES = (
    ((12,), (1,)),
    ((6,), (1,)),
    ((6,), (2,)),
    ((3, 4), (4, 1)),
    ((2, 3), (3, 1)),
    ((3, 2), (1, 3)),
    ((2, 2), (4, 2)),
    ((4,), (1,)),
    ((1, 4), (4, 1)),
    ((), ()),
)


def generate(random: Random, *, metadata: bool = True, overlap: bool = True) -> Program:
    """Draw a program whose steps all run eagerly, but for the last of some programs."""
    count = random.randint(1, 3)
    storages = 1 if overlap and random.random() < 0.6 else count
    grads = tuple(random.choice(("plain", "leaf", "non_leaf", "non_leaf")) for _ in range(storages))
    layouts: list[Layout] = []
    for index in range(count):
        storage = random.randrange(storages) if overlap else index
        shape, stride = random.choice(SHAPES)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        offset = random.randint(0, 12 - extent)
        kinds = ["view", "view", "view", "base"] + (["detached"] if overlap else [])
        kind = random.choice(kinds)
        if kind == "base" and any(old.storage == storage and old.kind == "base" for old in layouts):
            kind = "view"
        layouts.append(Layout(storage, offset, shape, stride, kind))
    draft = Program(tuple(layouts), grads, (), ())
    registers: list[Any] = list(draft.inputs().args)
    steps = []
    for _ in range(random.randint(1, 7)):
        step = _draw(random, registers, metadata=metadata)
        # Programs that fail eagerly are kept now and then: the compiled one must fail too.
        try:
            registers.append(execute(step, registers))
        except (RuntimeError, IndexError):
            if random.random() < 0.05:
                steps.append(step)
                return Program(tuple(layouts), grads, tuple(steps), (0,))
            # The failed op may have written before it failed: start over.
            registers = list(draft.inputs().args)
            for earlier in steps:
                registers.append(execute(earlier, registers))
            continue
        steps.append(step)
    returned = tuple(random.randrange(len(registers)) for _ in range(random.randint(1, 3)))
    return Program(tuple(layouts), grads, tuple(steps), returned)


def _draw(
    random: Random, registers: list[Any], *, metadata: bool
) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
    mode = "no_grad" if random.random() < 0.12 else "grad"
    register = random.randrange(len(registers))
    other = random.randrange(len(registers))
    roll = random.random()
    table: dict[str, Any] = VIEWS if roll < 0.4 else PURE if roll < 0.55 else WRITES
    if metadata and roll > 0.93:
        table = METADATA
    name = random.choice(sorted(table))
    numbers: tuple[int, ...] = ()
    operands: tuple[int, ...] = (register,)
    if name in ("mul", "add_", "copy_", "times_"):
        operands = (register, other)
        target, source = registers[register], registers[other]
        shared = target.untyped_storage()._cdata == source.untyped_storage()._cdata
        if name != "mul" and shared and target is not source:
            # What eager computes when it reads what it writes depends on the order of the loop.
            return "sin", mode, (other,), ()
    elif name in ("requires_grad_", "detach_") and registers[register]._is_view():
        # Of views eager refuses the one and makes the other no leaf of its own.
        return "sin", mode, operands, ()
    elif name in ("select", "item"):
        numbers = (random.randrange(2),)
    elif name == "narrow":
        numbers = (random.randrange(2), random.randint(1, 2))
    return name, mode, operands, numbers
