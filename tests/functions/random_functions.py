"""Functions with random traits, for test_random_functions: how they compute, keep and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

FLAGS = {
    "with_setup": 0.4,  # setup_context, in place of a forward with ctx
    "dirty": 0.25,
    "non_differentiable": 0.4,
    "unmaterialized": 0.3,
    "saves_output": 0.4,
    "returns_input": 0.15,
    "returns_view": 0.15,
    "returns_none": 0.2,
    "keeps_attribute": 0.4,
    "once": 0.3,
    "gives_none": 0.2,
    "nested": 0.2,
    "asks_for_needs": 0.3,
}


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a Function does.

    Attributes:
        forward: How its forward computes: traceable, or by real values.
        backward: The same of its backward.
        outputs: How many it has.
        flags: Which of ``FLAGS`` hold.
    """

    forward: str
    backward: str
    outputs: int
    flags: frozenset[str]


def random_traits(random: Random) -> Traits:
    """Some traits that go together."""
    outputs = random.choice([1, 1, 2, 2, 3])
    flags = {name for name, chance in FLAGS.items() if random.random() < chance}
    if outputs == 1:
        flags -= {"non_differentiable", "returns_none"}
    if "dirty" in flags:
        flags -= {"returns_input"}
    forward = random.choice(["traced", "traced", "numpy", "item", "tolist"])
    backward = random.choice(["traced", "traced", "numpy", "item"])
    return Traits(forward, backward, outputs, frozenset(flags))


class Tripled(torch.autograd.Function):
    """A Function that another one's backward calls."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


def _sine(x: torch.Tensor, way: str) -> torch.Tensor:
    """The sine, computed in some way."""
    if way == "numpy":
        return torch.from_numpy(np.sin(x.detach().numpy()))
    if way == "item":
        return x.sin() * (1.0 if x.detach().abs().max().item() < 1e9 else 2.0)
    if way == "tolist":
        values = x.detach().reshape(-1).tolist()
        return torch.tensor(values, dtype=x.dtype).reshape(x.shape).sin()
    return x.sin()


def _scaled(gradient: torch.Tensor, way: str) -> torch.Tensor:
    """A gradient times 1.5, computed in some way."""
    if way == "numpy":
        return torch.from_numpy(gradient.detach().numpy() * 1.5)
    if way == "item":
        return gradient * (1.5 if gradient.detach().abs().max().item() < 1e9 else 3.0)
    return gradient * 1.5


@dataclasses.dataclass(frozen=True)
class _Code:
    """Forward, setup and backward of a Function with some traits."""

    traits: Traits

    def has(self, flag: str) -> bool:
        return flag in self.traits.flags

    def compute(self, x: torch.Tensor, weight: torch.Tensor, factor: float) -> Any:
        made = _sine(x, self.traits.forward) * weight
        first = x.mul_(2) if self.has("dirty") else made * factor
        if self.has("returns_view") and not self.has("dirty"):
            first = first.t()
        results = [first]
        if self.traits.outputs > 1:
            second = made > 0 if self.has("non_differentiable") else made.sum(0)
            results.append(None if self.has("returns_none") else second)
        if self.traits.outputs > 2:
            results.append(x if self.has("returns_input") else made.cos())
        return tuple(results) if len(results) > 1 else first

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, ctx.factor = inputs
        outputs = output if isinstance(output, tuple) else (output,)
        if self.has("dirty"):
            ctx.mark_dirty(x)
        if self.has("non_differentiable") and not self.has("returns_none"):
            ctx.mark_non_differentiable(outputs[1])
        if self.has("unmaterialized"):
            ctx.set_materialize_grads(False)
        saved = [weight, *outputs[: self.has("saves_output")]]
        if self.has("keeps_attribute") and not self.has("with_setup"):
            ctx.x = x.detach().clone()
        elif not self.has("dirty"):
            saved.append(x)
        ctx.save_for_backward(*saved)

    def backward(self, ctx: Any, *gradients: Any) -> Any:
        weight = ctx.saved_tensors[0]
        is_turned = self.has("returns_view") and not self.has("dirty")
        x = getattr(ctx, "x", weight if self.has("dirty") else ctx.saved_tensors[-1])
        found = gradients[0]
        if found is None:
            found = torch.zeros_like(weight)
        elif is_turned:
            found = found.t()
        found = _scaled(found, self.traits.backward) * ctx.factor * (1 + x * 0.1)
        if self.has("saves_output"):
            output = ctx.saved_tensors[1]
            found = found * (1 + (output.t() if is_turned else output) * 0.1)
        if self.traits.outputs > 2 and gradients[2] is not None:
            found = found + gradients[2] * 0.3
        is_sum = self.traits.outputs > 1 and not {"non_differentiable", "returns_none"} & set(
            self.traits.flags
        )
        if is_sum and gradients[1] is not None:
            found = found + gradients[1]
        if self.has("nested") and self.traits.backward == "traced":
            found = found + Tripled.apply(found * 0.01)
        of_weight = None if self.has("gives_none") else found.sum(0) * x.mean()
        if self.has("asks_for_needs") and not ctx.needs_input_grad[1]:
            of_weight = None
        return found, of_weight, None


def function_of(traits: Traits) -> Callable[..., tuple[Any, ...]]:
    """A function that calls a Function with some traits; its backward is linear in gradients."""
    code = _Code(traits)
    rule = once_differentiable(code.backward) if code.has("once") else code.backward

    class Made(torch.autograd.Function):
        backward = staticmethod(rule)

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = code.compute(*inputs)
        code.setup(ctx, inputs, output)
        return output

    if code.has("with_setup"):
        Made.forward = staticmethod(lambda *inputs: code.compute(*inputs))
        Made.setup_context = staticmethod(lambda ctx, *both: code.setup(ctx, *both))
    else:
        Made.forward = staticmethod(forward)

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[Any, ...]:
        results = Made.apply(x.sin(), weight, 0.5)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(each * 2 if _is_float(each) else each for each in results)

    return function


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
