"""Ways to a derivative of a scalar along directions, by order, and what finite differences say.

Of a function's weighted, curved sum ``L``, the derivatives ``D1 L``, ``D2 L`` and ``D3 L`` along
fixed directions are numbers. So a difference quotient of the order below checks each of them, and
all ways to one, through reverse and forward mode in any order, have to agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from funcaot.testing.torch_operators.operators import Call

STEP = 2e-4


def direction(tensor, seed):
    generator = torch.Generator().manual_seed(seed + tensor.numel())
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    if tensor.is_complex():
        drawn = torch.complex(drawn, drawn.flip(-1) if drawn.dim() else drawn * 0.3)
    return drawn.to(tensor.dtype)


def loss_of(function):
    """Of all outputs that move, a sum that is curved in each."""

    def loss(*values):
        total = torch.zeros((), dtype=torch.float64)
        for place, output in enumerate(function(*values)):
            if not (output.is_floating_point() or output.is_complex()):
                continue
            real = torch.view_as_real(output) if output.is_complex() else output
            weights = torch.linspace(-1.0, 1.3, real.numel(), dtype=real.dtype)
            total = total + (weights.reshape(real.shape) * (real * (0.7 + place)).sin()).sum()
        return total

    return loss


def _forward(function, primals, tangents):
    return torch.func.jvp(function, primals, tangents)[1]


def _reverse(function, primals, tangents):
    grads = torch.func.grad(function, argnums=tuple(range(len(primals))))(*primals)
    pairs = zip(grads, tangents, strict=True)
    return sum((_real(g, t) for g, t in pairs), torch.zeros((), dtype=torch.float64))


def _real(one, other):
    product = one * other.conj() if one.is_complex() else one * other
    return (product.real if product.is_complex() else product).sum().double()


def _engine(function, primals, tangents):
    """Reverse mode by autograd itself, which is differentiated by itself again."""
    inputs = [p if p.requires_grad else p.detach().requires_grad_() for p in primals]
    value = function(*inputs)
    grads = [None] * len(inputs)
    if value.requires_grad:
        grads = torch.autograd.grad(value, inputs, create_graph=True, allow_unused=True)
    pairs = zip(grads, tangents, strict=True)
    kept = [_real(g, t) for g, t in pairs if g is not None]
    return sum(kept, torch.zeros((), dtype=torch.float64))


MODES = {"f": _forward, "r": _reverse, "e": _engine}
# The last letter is the innermost.
WAYS = {
    1: ("f", "r", "e"),
    2: ("ee", "fr", "rf", "ff", "rr"),
    3: ("eee", "frr", "fff", "rfr"),
}


def derivative(way, function, primals, seed=0):
    """A number: the derivative of the loss of a function by one way."""
    current = loss_of(function)
    for depth, mode in enumerate(reversed(way)):
        tangents = tuple(direction(p, 10 * depth + seed) for p in primals)
        current = _stepped(MODES[mode], current, tangents)
    return current(*primals)


def _stepped(mode, function, tangents):
    return lambda *primals: mode(function, primals, tangents)


def difference(below, primals, depth, seed=0):
    """A difference quotient of a number; None where two steps don't agree, as beside a kink."""
    tangents = [direction(p, 10 * depth + seed) for p in primals]

    def quotient(step):
        def at(steps):
            moved = [p + steps * step * t for p, t in zip(primals, tangents, strict=True)]
            return float(below(*moved).detach())

        return (at(-2) - 8 * at(-1) + 8 * at(1) - at(2)) / (12 * step)

    first, second = quotient(STEP), quotient(3 * STEP)
    if not (math.isfinite(first) and math.isfinite(second)):
        return None
    if abs(first - second) > 1e-4 * (1 + abs(first)):
        return None
    return first


@dataclass(frozen=True)
class Found:
    """What a way gave: a number, or an error's first line."""

    value: float | None
    error: str = ""

    def agrees(self, wanted):
        return self.value is not None and abs(self.value - wanted) <= 2e-4 * (1 + abs(wanted))

    def __str__(self):
        return self.error or repr(self.value)


def attempt(way, function, primals):
    torch.manual_seed(3)
    try:
        return Found(float(derivative(way, function, primals).detach()))
    except Exception as error:  # noqa: BLE001  (whatever it is, its text is looked at)
        lines = str(error).strip().splitlines() or [""]
        return Found(None, f"{type(error).__name__}: {lines[0][:150]}")


def moving(call: Call):
    """A call as a function of what moves, in double precision."""
    primals = [p.double() if p.is_floating_point() else p for p in call.primals]
    active = tuple(primals[i] for i in call.argnums)

    def function(*values):
        filled = list(primals)
        for place, value in zip(call.argnums, values, strict=True):
            filled[place] = value
        return call.function(*filled)

    return function, active
