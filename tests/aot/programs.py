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

WIDE_VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "as integers": lambda x: x.view(torch.int64),
    "as halves": lambda x: x.view(torch.int32),
    "as bytes": lambda x: x.view(torch.uint8),
    "as floats": lambda x: x.view(torch.float64),
    "chunk": lambda x, i: x.chunk(2)[i],
    "unsafe_split": lambda x, i: x.unsafe_split(1)[i],
    "unsafe_chunk": lambda x, i: x.unsafe_chunk(2)[i],
    "tensor_split": lambda x, i: x.tensor_split(2)[i],
    "split_with_sizes": lambda x, i: x.split_with_sizes([1, x.shape[0] - 1])[i],
    "hsplit": lambda x, i: x.hsplit(2)[i],
    "unfold": lambda x: x.unfold(0, 2, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "mT": lambda x: x.mT,
    "as_strided": lambda x: x.as_strided((2,), (1,)),
    "placed": lambda x, i: x.as_strided((2,), (1,), i),
    "by index": lambda x, i: x[i],
    "mixed": lambda x: x[..., None, 1:],
    "unflatten": lambda x: x.unflatten(-1, (2, -1)),
    "broadcast": lambda x: x.broadcast_to(2, *x.shape),
}

WIDE_PURE: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "reshape": lambda x: x.reshape(-1),
    "to the same": lambda x: x.to(x.dtype),
    "compare": lambda x: x > 1,
    "cat": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    "like": lambda x: torch.zeros_like(x),
    "sort": lambda x: x.sort(dim=0)[0],
}

WIDE_WRITES: dict[str, Callable[..., Any]] = {
    "fill_": lambda x: x.fill_(0.75),
    "clamp_": lambda x: x.clamp_(0.4, 1.4),
    "masked_fill_": lambda x: x.masked_fill_(x > 1, 0.25),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0]), 0.5),
    "index_put_": lambda x: x.__setitem__(torch.tensor([0]), 0.5),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0]), torch.ones_like(x[:1])),
    "slice = value": lambda x: x.__setitem__(slice(0, 1), 2.0),
    "row = row": lambda x: x.__setitem__(0, x[1].clone()),
    "out": lambda x: torch.add(x.detach(), 1.0, out=x.detach()),
    "foreach": lambda x: torch._foreach_mul_([x], 1.5),
    "foreach of two": lambda x, y: torch._foreach_add_([x, y], 1.0),
    "+=": lambda x: x.__iadd__(1),
    "squared": lambda x: x.mul_(x),
    "copy of a clone": lambda x, y: x.copy_(y.clone()),
    "data *=": lambda x: x.data.mul_(2),
    "swap": lambda x: x.copy_(x.flip(0)),
    "relu_": lambda x: torch.relu_(x),
    "cumsum_": lambda x: x.cumsum_(0),
    "by name": lambda x: torch.nn.functional.elu_(x),
}

WIDE_METADATA: dict[str, Callable[..., Any]] = {
    "resize_": lambda x: x.resize_(2),
    "resize_ larger": lambda x: x.resize_(13).zero_(),
    "set_": lambda x, y: x.set_(y),
    "as_strided_": lambda x: x.as_strided_((2,), (1,)),
    "swapaxes_": lambda x: x.swapaxes_(0, -1),
    "requires_grad_(False)": lambda x: x.requires_grad_(False),
}

# By whether the narrow table was VIEWS, PURE or WRITES.
WIDE = {
    (True, False, False): WIDE_VIEWS,
    (False, True, False): WIDE_PURE,
    (False, False, True): WIDE_WRITES,
    (False, False, False): WIDE_METADATA,
}
SPLITS = ("chunk", "unsafe_split", "unsafe_chunk", "tensor_split", "split_with_sizes")
INDEXED = frozenset(("select", "item", "by index", "hsplit", *SPLITS))


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
    tables |= {**WIDE_VIEWS, **WIDE_PURE, **WIDE_WRITES, **WIDE_METADATA}
    contexts = {"no_grad": torch.no_grad, "enable_grad": torch.enable_grad}
    context = contexts.get(mode, contextlib.nullcontext)()
    with context:
        result = tables[name](*(registers[index] for index in operands), *numbers)
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


def generate(
    random: Random, *, metadata: bool = True, overlap: bool = True, wide: bool = False
) -> Program:
    """Draw a program whose steps all run eagerly, but for the last of some programs.

    Args:
        random: Where to draw from.
        metadata: Whether shapes are changed in place.
        overlap: Whether inputs may share memory.
        wide: Whether rarer ops are drawn too.
    """
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
        step = _draw(random, registers, metadata=metadata, wide=wide)
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
    random: Random, registers: list[Any], *, metadata: bool, wide: bool
) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
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
