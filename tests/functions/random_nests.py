"""Functions with random traits and random nests of transforms, for test_random_nests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, func

import funcaot

FLAGS = {
    "second": 0.5,  # a second output
    "non_differentiable": 0.35,
    "returns_none": 0.2,
    "returns_view": 0.2,
    "unmaterialized": 0.4,
    "saves_output": 0.4,
    "own_vmap": 0.3,
    "nested": 0.3,  # its backward calls another Function
    "asks_for_needs": 0.3,
    "reads_counts": 0.3,  # a tensor of whole numbers among the operands
}
KINDS = ("vmap", "vmap", "grad", "value", "vjp", "jvp", "jacrev", "jacfwd", "hessian")
BATCH_DIMS = ((0, None, None), (0, 0, None), (None, 0, None), (0, 0, 0), (-1, 0, None))
FACTOR = 0.5

Program = Callable[..., Any]


class _Scaled:
    """The rules of a Function that another one's backward calls."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return gradient * ctx.factor, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent * ctx.factor


class Scaled(_Scaled, torch.autograd.Function):
    """It as PyTorch has it."""


class OwnScaled(_Scaled, funcaot.Function):
    """It as this package has it, which forward mode over forward mode needs."""


@dataclasses.dataclass(frozen=True)
class _Code:
    """The rules of ``x.sin() * y * FACTOR`` and of what else a Function with some flags returns."""

    flags: frozenset[str]
    other: type

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def compute(self, x: Tensor, y: Tensor, counts: Tensor) -> Any:
        first = x.sin() * y * FACTOR * (counts if self.has("reads_counts") else 1)
        if self.has("returns_view"):
            first = first[..., None].expand(*first.shape, 2).select(-1, 0)
        return self._together(first, x.cos() * y, (x > 0).long())

    def _together(self, first: Any, second: Any, signs: Any) -> Any:
        outputs = [first]
        for flag, output in (
            ("second", second),
            ("non_differentiable", signs),
            ("returns_none", None),
        ):
            if self.has(flag):
                outputs.append(output)
        return tuple(outputs) if len(outputs) > 1 else first

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        if self.has("non_differentiable"):
            ctx.mark_non_differentiable(outputs[1 + self.has("second")])
        if self.has("unmaterialized"):
            ctx.set_materialize_grads(False)
        saved = (*inputs, *outputs[: self.has("saves_output")])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    def _read(self, ctx: Any) -> tuple[Tensor, Tensor, Any, Tensor]:
        """Operands, the factor of the first output, and its derivative by ``y``."""
        x, y, counts = ctx.saved_tensors[:3]
        factor = FACTOR * counts if self.has("reads_counts") else FACTOR
        by_y = ctx.saved_tensors[3] / y if self.has("saves_output") else x.sin() * factor
        return x, y, factor, by_y

    def backward(self, ctx: Any, *gradients: Any) -> Any:
        x, y, factor, by_y = self._read(ctx)
        of_x, of_y = [], []
        if gradients[0] is not None:
            of_x.append(gradients[0] * x.cos() * y * factor)
            of_y.append(gradients[0] * by_y)
        if self.has("second") and gradients[1] is not None:
            of_x.append(-gradients[1] * x.sin() * y)
            of_y.append(gradients[1] * x.cos())
        if self.has("nested") and of_x:
            of_x = [self.other.apply(each, 2.0) - each for each in of_x]
        if self.has("asks_for_needs") and not ctx.needs_input_grad[1]:
            of_y = []
        return sum(of_x) if of_x else None, sum(of_y) if of_y else None, None

    def jvp(self, ctx: Any, tangent_x: Any, tangent_y: Any, _: None) -> Any:
        x, y, factor, by_y = self._read(ctx)
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        if tangent_x is not None:
            first = first + tangent_x * x.cos() * y * factor
            second = second - tangent_x * x.sin() * y
        if tangent_y is not None:
            first, second = first + tangent_y * by_y, second + tangent_y * x.cos()
        return self._together(first, second, None)

    def vmap(self, function: Any, info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Move batch dims to the front, and line up the others at the end."""
        fronts = [
            each if dim is None else each.movedim(dim, 0)
            for each, dim in zip(operands, in_dims, strict=True)
        ]
        if in_dims[0] is None:
            fronts[0] = fronts[0].expand(info.batch_size, *fronts[0].shape)
        outputs = function.apply(*fronts)
        if not isinstance(outputs, tuple):
            return outputs, 0
        return outputs, tuple(None if each is None else 0 for each in outputs)


def random_flags(random: Random) -> frozenset[str]:
    """Some traits of a Function."""
    return frozenset(name for name, chance in FLAGS.items() if random.random() < chance)


def program_of(flags: frozenset[str], base: type | None) -> Program:
    """A function that calls a Function with some traits; without a base it is plain code."""
    code = _Code(flags, OwnScaled if base is funcaot.Function else Scaled)
    apply = code.compute
    if base is not None:
        apply = _made(code, base).apply  # type: ignore[attr-defined]

    def program(x: Tensor, y: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        outputs = apply(x.sin(), y, counts)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(each * 2 for each in outputs if each is not None)

    return program


def _made(code: _Code, base: type) -> type:
    rules: dict[str, Any] = {
        "forward": staticmethod(lambda *operands: code.compute(*operands)),
        "setup_context": staticmethod(lambda ctx, inputs, output: code.setup(ctx, inputs, output)),
        "backward": staticmethod(lambda ctx, *gradients: code.backward(ctx, *gradients)),
        "jvp": staticmethod(lambda ctx, *tangents: code.jvp(ctx, *tangents)),
        "generate_vmap_rule": not code.has("own_vmap"),
    }
    if code.has("own_vmap"):
        rules["vmap"] = staticmethod(lambda *given: code.vmap(made, *given))
    made = type("Made", (base,), rules)
    return made


def floats(outputs: Any) -> list[Tensor]:
    """The floating-point tensors of nested outputs."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() else []
    return [found for each in outputs for found in floats(each)]


def scalar(program: Program) -> Program:
    """One number of all outputs."""
    return lambda *inputs: sum(each.sin().sum() for each in floats(program(*inputs)))


@dataclasses.dataclass(frozen=True)
class Step:
    """One transform: its kind, what it differentiates by, and the batch dims of a ``vmap``."""

    kind: str
    argnums: tuple[int, ...]
    in_dims: tuple[int | None, ...]
    has_aux: bool

    def __call__(self, program: Program) -> Program:
        """A program, transformed."""
        if self.kind == "vmap":
            return func.vmap(program, in_dims=self.in_dims)
        if self.kind == "grad" and self.has_aux:
            return func.grad(
                lambda *inputs: (scalar(program)(*inputs), inputs[0] * 2), self.argnums, True
            )
        if self.kind in ("grad", "value"):
            name = "grad" if self.kind == "grad" else "grad_and_value"
            return getattr(func, name)(scalar(program), self.argnums)
        if self.kind == "hessian":
            return func.hessian(scalar(program), self.argnums)
        if self.kind in ("jacrev", "jacfwd"):
            inner = lambda *inputs: tuple(floats(program(*inputs)))  # noqa: E731
            return getattr(func, self.kind)(inner, self.argnums)
        return self._along(program)

    def _along(self, program: Program) -> Program:
        def transformed(*inputs: Tensor) -> Any:
            primals = [inputs[index] for index in self.argnums]

            def inner(*varied: Tensor) -> tuple[Tensor, ...]:
                given = list(inputs)
                for index, each in zip(self.argnums, varied, strict=True):
                    given[index] = each
                return tuple(floats(program(*given)))

            if self.kind == "jvp":
                return func.jvp(inner, tuple(primals), tuple(each.cos() for each in primals))
            outputs, pull = func.vjp(inner, *primals)
            return outputs, pull(tuple(each.cos() for each in outputs))

        return transformed


def random_steps(random: Random) -> list[Step]:
    """Up to three transforms, the innermost first; at most one of them makes Jacobians."""
    steps: list[Step] = []
    for _ in range(random.choice([1, 2, 2, 3, 3])):
        kind = random.choice(KINDS)
        if any(step.kind in ("jacrev", "jacfwd", "hessian") for step in steps):
            kind = random.choice(["vmap", "grad", "vjp", "jvp"])
        argnums = random.choice([(0,), (0,), (1,), (0, 1)])
        steps.append(Step(kind, argnums, random.choice(BATCH_DIMS), random.random() < 0.3))
    return steps


def nested(program: Program, steps: Sequence[Step]) -> Program:
    """A program under some transforms."""
    for step in steps:
        program = step(program)
    return program


def random_inputs(steps: Sequence[Step], size: int, batch: int, seed: int) -> list[Tensor]:
    """``x``, ``y`` and counts for a program under some transforms."""
    shapes: list[list[int]] = [[size], [size], [size]]
    for step in steps:
        if step.kind == "vmap":
            for shape, dim in zip(shapes, step.in_dims, strict=True):
                if dim is not None:
                    shape.insert(0 if dim == 0 else len(shape), batch)
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(each, generator=generator, dtype=torch.float64) for each in shapes[:2])
    return [x, y, torch.randint(1, 4, shapes[2], generator=generator)]
