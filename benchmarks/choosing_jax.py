"""The programs of ``choosing`` for ``jax.jit``, and how often it compiled where that matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

X = [[0.3, -0.2, 0.5], [1.0, 0.4, -0.7]]
Program = tuple[Callable[[], Any], Callable[[], int | None]]


def energy(x: Any) -> Any:
    return (x**4).sum()


def back(found: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(found))


def nothing() -> None:
    return None


@jax.custom_vjp
def cube(x: Any) -> Any:
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, gradient: (gradient * x**2,))


def double() -> Any:
    force = jax.grad(jax.jit(energy))
    return back(jax.grad(lambda x: (force(x) ** 2).sum())(jnp.array(X)))


def own_rule() -> Any:
    function = jax.jit(lambda x: cube(x).sum())
    return back(jax.vmap(jax.grad(function))(jnp.array(X)))


def own_rule_forward() -> Any:
    x = jnp.array(X)
    return back(jax.jvp(jax.jit(cube), (x,), (jnp.ones_like(x),))[1])


def writes() -> Any:
    buffer = np.array(X, dtype=np.float32)

    @jax.jit
    def function(x: Any) -> Any:
        x *= 2
        return x.sum()

    function(buffer)
    return back(buffer)


def branch() -> Any:
    function = jax.jit(lambda x: x * 2 if x.sum() > 0 else x * 0.1)
    return back(jnp.stack([function(jnp.array(X)), function(-jnp.array(X))]))


SCALE = jnp.array(2.0)


def reads_a_global() -> Any:
    global SCALE
    function = jax.jit(lambda x: x * SCALE)
    results = []
    for value in (2.0, 3.0):
        SCALE = jnp.array(value)
        results.append(function(jnp.array(X)))
    return back(jnp.stack(results))


SIZED = jax.jit(lambda x: jnp.sin(x).sum())


def sizes() -> Any:
    return back(jnp.stack([SIZED(jnp.ones(size)) for size in (2, 3, 5, 7, 11)]))


def whole_step() -> Any:
    @jax.jit
    def step(weight: Any, momentum: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: ((x * w) ** 2).sum())(weight)
        momentum = 0.9 * momentum + gradient
        return weight - 0.1 * momentum, momentum, loss

    weight, momentum, losses = jnp.array(X), jnp.zeros((2, 3)), []
    for _ in range(4):
        weight, momentum, loss = step(weight, momentum, jnp.ones((2, 3)))
        losses.append(loss)
    return back(jnp.stack(losses))


# A function that returns nothing of the kind of "layout" has no counterpart: arrays have none.
PROGRAMS: dict[str, Program] = {
    "gradient of a compiled function": (
        lambda: back(jax.grad(jax.jit(energy))(jnp.array(X))),
        nothing,
    ),
    "double backward through it": (double, nothing),
    "gradients per sample: `vmap(grad(compiled))`": (
        lambda: back(jax.vmap(jax.grad(jax.jit(energy)))(jnp.array(X))),
        nothing,
    ),
    "`hessian(compiled)`": (
        lambda: back(jax.hessian(jax.jit(energy))(jnp.array(X[0]))),
        nothing,
    ),
    "a custom rule, per sample": (own_rule, nothing),
    "a custom reverse rule in forward mode": (own_rule_forward, nothing),
    "a write to an argument": (writes, nothing),
    "a branch on a value": (branch, nothing),
    "a global tensor that is replaced": (reads_a_global, nothing),
    "five sizes of an argument": (sizes, lambda: SIZED._cache_size()),
    "forward, backward and optimizer in one function": (whole_step, nothing),
}
