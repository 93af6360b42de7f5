"""Networks of drawn layers under drawn chains of transforms, compiled somewhere in the chain."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch.func import grad, hessian, jvp, vjp, vmap

import funcaot
from tests.derivatives.layers import LAYERS, SHAPE, fixed

TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}
# How often a transform differentiates: a chain has an order of four at most.
ORDERS = {"grad": 1, "jvp": 1, "vjp": 1, "hessian": 2, "vmap": 0}


def _scalar(function):
    """What curves all that comes out, so that the next transform has something to differentiate."""

    def total(x):
        found = function(x)
        return (fixed(found, *found.shape, seed=8) * (found * 0.7).sin()).sum()

    return total


def _batched(function):
    return lambda x: vmap(function)(torch.stack([x, x.flip(0) * 0.8]))


def _pushed(function):
    return lambda x: jvp(function, (x,), (fixed(x, *x.shape, seed=9),))[1]


def _pulled(function):
    def run(x):
        found, pull = vjp(function, x)
        return pull(fixed(found, *found.shape, seed=10))[0]

    return run


TRANSFORMS = {
    "grad": lambda function: grad(_scalar(function)),
    "jvp": _pushed,
    "vjp": _pulled,
    "hessian": lambda function: hessian(_scalar(function)),
    "vmap": _batched,
}


@dataclass(frozen=True)
class Network:
    """Layers in the order in which they run, transforms with the innermost first.

    ``compiled`` is how many transforms are inside of what is compiled.
    """

    layers: tuple[str, ...]
    chain: tuple[str, ...]
    compiled: int
    dtype: torch.dtype

    def __str__(self):
        name = str(self.dtype).removeprefix("torch.")
        chain = [*self.chain[: self.compiled], "COMPILED", *self.chain[self.compiled :]]
        return f"{'+'.join(self.layers)}-{','.join(chain)}-{name}"

    def input(self, step: int = 0) -> torch.Tensor:
        return fixed(torch.empty((), dtype=self.dtype), *SHAPE, seed=11 + step) * (1.5 + 0.2 * step)

    def made(self, compile=None):
        """The function of one input, of fused layers if it is compiled and of plain ones if not."""
        kind = "plain" if compile is None else "fused"
        parts = [getattr(LAYERS[name], kind) for name in self.layers]

        def network(x):
            for part in parts:
                x = part(x)
            return x

        current = network
        for place, name in enumerate(self.chain):
            if compile is not None and place == self.compiled:
                current = compile(current)
            current = TRANSFORMS[name](current)
        if compile is not None and self.compiled == len(self.chain):
            current = compile(current)
        return current


def drawn(seed: int) -> Network:
    pick = random.Random(seed)
    layers = tuple(pick.sample(sorted(LAYERS), pick.randint(1, 3)))
    chain, order = [], 0
    for _ in range(pick.randint(1, 3)):
        name = pick.choice(sorted(TRANSFORMS))
        if order + ORDERS[name] > 3:
            continue
        order += ORDERS[name]
        chain.append(name)
    dtype = pick.choice([torch.float64, torch.float64, torch.float32])
    return Network(
        layers, tuple(chain), pick.choice([0, len(chain), pick.randint(0, len(chain))]), dtype
    )


def check(network: Network, backend=None) -> None:
    """Three calls, the last with another input, against eager with elementary layers."""

    def compile(function):
        return (
            funcaot.compile(function)
            if backend is None
            else funcaot.compile(function, backend=backend)
        )

    actual, wanted = network.made(compile), network.made()
    for step in (0, 0, 1):
        value = network.input(step)
        found, expected = actual(value), wanted(value)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        scale = 1 + expected.abs().max()
        assert expected.isfinite().all(), "the oracle says nothing"
        difference = ((found - expected) / scale).abs().max().item()
        assert difference <= TOLERANCE[network.dtype], f"off by {difference} at call {step}"
