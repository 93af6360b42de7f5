"""Random programs of views and in-place ops on possibly overlapping inputs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import torch

from tests.aot.programs.differential import Inputs
from tests.aot.programs.program_ops import (
    EQUAL,
    INDEXED,
    METADATA,
    OPS,
    OVERWRITES,
    PURE,
    VIEWS,
    WIDE,
    WRITES,
)

Step = tuple[str, str, tuple[int, ...], tuple[int, ...]]


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
        stored: Registers that are stored in attributes of `store`.
        store: Where a call leaves them.
    """

    layouts: tuple[Layout, ...]
    grads: tuple[str, ...]
    steps: tuple[Step, ...]
    returned: tuple[int, ...]
    stored: tuple[int, ...] = ()
    store: SimpleNamespace = field(default_factory=SimpleNamespace, compare=False, repr=False)

    @property
    def tensors(self) -> int:
        """How many tensors a caller has after a call."""
        return len(self.layouts) + len(self.grads) + len(self.returned) + len(self.stored)

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
        results, stored = self.run(*args)
        for name, value in stored.items():
            setattr(self.store, name, value)
        return results

    def run(self, *args: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What it returns, and what it would store."""
        registers = list(args)
        for step in self.steps:
            registers.append(execute(step, registers))
        stored = {f"register_{index}": registers[index] for index in self.stored}
        return tuple(registers[index] for index in self.returned), stored


def execute(step: Step, registers: list[Any]) -> Any:
    """Run one step on the registers."""
    name, mode, operands, numbers = step
    contexts = {"no_grad": torch.no_grad, "enable_grad": torch.enable_grad}
    context = contexts.get(mode, contextlib.nullcontext)()
    with context:
        result = OPS[name](*(registers[index] for index in operands), *numbers)
    return result if isinstance(result, torch.Tensor) else registers[operands[0]]


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


# What a step raises that its operands don't suit.
FAILURES = (RuntimeError, IndexError, TypeError)


def generate(
    random: Random,
    *,
    metadata: bool = True,
    overlap: bool = True,
    wide: bool = False,
    equal: bool = False,
    grads: tuple[str, ...] = ("plain", "leaf", "non_leaf", "non_leaf"),
) -> Program:
    """Draw a program whose steps all run eagerly, but for the last of some programs.

    Args:
        random: Where to draw from.
        metadata: Whether shapes are changed in place.
        overlap: Whether inputs may share memory.
        wide: Whether rarer ops are drawn too.
        equal: Whether much of what is drawn has the elements of its operand, or overwrites what
            was copied; results are then returned twice, beside copies of them, and stored.
        grads: What the bases of inputs may be.
    """
    layouts, grads = _draw_inputs(random, grads, overlap=overlap)
    draft = Program(layouts, grads, (), ())
    registers: list[Any] = list(draft.inputs().args)
    steps = []
    for _ in range(random.randint(1, 7)):
        if equal and random.random() < 0.5:
            step = _draw_equal(random, registers)
        else:
            step = _draw(random, registers, metadata=metadata, wide=wide)
        # Programs that fail eagerly are kept now and then: the compiled one must fail too.
        try:
            registers.append(execute(step, registers))
        except FAILURES:
            if random.random() < 0.05:
                steps.append(step)
                return Program(layouts, grads, tuple(steps), (0,))
            # The failed op may have written before it failed: start over.
            registers = list(draft.inputs().args)
            for earlier in steps:
                registers.append(execute(earlier, registers))
            continue
        steps.append(step)
    returned = tuple(random.randrange(len(registers)) for _ in range(random.randint(1, 3)))
    program = Program(layouts, grads, tuple(steps), returned)
    return _with_copies(random, program, registers) if equal else program


def _draw_inputs(
    random: Random, choices: tuple[str, ...], *, overlap: bool
) -> tuple[tuple[Layout, ...], tuple[str, ...]]:
    """Inputs, and what the bases of their storages are."""
    count = random.randint(1, 3)
    storages = 1 if overlap and random.random() < 0.6 else count
    grads = tuple(random.choice(choices) for _ in range(storages))
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
    return tuple(layouts), grads


def _with_copies(random: Random, program: Program, registers: list[Any]) -> Program:
    """Return results twice and beside copies of them, and store some."""
    steps, returned = list(program.steps), list(program.returned)
    for register in program.returned:
        roll = random.random()
        if roll < 0.2:
            returned.append(register)
        elif roll < 0.7:
            mode = "no_grad" if random.random() < 0.4 else "grad"
            step = (random.choice(sorted(EQUAL)), mode, (register,), ())
            try:
                registers.append(execute(step, registers))
            except FAILURES:
                continue
            steps.append(step)
            returned.append(len(registers) - 1)
    random.shuffle(returned)
    count = random.choice((0, 0, 0, 1, 2))
    stored = sorted({random.randrange(len(registers)) for _ in range(count)})
    return replace(program, steps=tuple(steps), returned=tuple(returned), stored=tuple(stored))


def _draw_equal(random: Random, registers: list[Any]) -> Step:
    name = random.choice(sorted(EQUAL) if random.random() < 0.6 else sorted(OVERWRITES))
    mode = "no_grad" if random.random() < 0.3 else "grad"
    operands = (random.randrange(len(registers)),)
    if name == "into the first":
        operands += (random.randrange(len(registers)),)
    return name, mode, operands, ()


def _draw(random: Random, registers: list[Any], *, metadata: bool, wide: bool) -> Step:
    mode = "no_grad" if random.random() < 0.12 else "grad"
    if wide and random.random() < 0.05:
        mode = "enable_grad"
    register = random.randrange(len(registers))
    other = random.randrange(len(registers))
    roll = random.random()
    table: dict[str, Any] = VIEWS if roll < 0.4 else PURE if roll < 0.55 else WRITES
    if metadata and roll > 0.93:
        table = METADATA
    if wide and random.random() < 0.5:
        table = WIDE[table is VIEWS, table is PURE, table is WRITES]
    name = random.choice(sorted(table))
    numbers: tuple[int, ...] = ()
    operands: tuple[int, ...] = (register,)
    if name in ("mul", "cat", "foreach of two", "copy of a clone", "set_"):
        operands = (register, other)
    elif name in ("add_", "copy_", "times_"):
        operands = (register, other)
        target, source = registers[register], registers[other]
        shared = target.untyped_storage()._cdata == source.untyped_storage()._cdata
        if shared and target is not source:
            # What eager computes when it reads what it writes depends on the order of the loop.
            return "sin", mode, (other,), ()
    elif (
        name in ("requires_grad_", "detach_", "requires_grad_(False)")
        and registers[register]._is_view()
    ):
        # Of views eager refuses the one and makes the other no leaf of its own.
        return "sin", mode, operands, ()
    elif name in INDEXED:
        numbers = (random.randrange(2),)
    elif name == "placed":
        numbers = (random.randrange(4),)
    elif name == "narrow":
        numbers = (random.randrange(2), random.randint(1, 2))
    return name, mode, operands, numbers
