"""The training step of these examples for ``jax.jit``: a loss, its gradient, and Adam."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from torch import Tensor, nn


def array(tensor: Tensor) -> jax.Array:
    return jnp.asarray(tensor.detach().numpy().copy())


def parameters_of(module: nn.Module) -> dict[str, jax.Array]:
    return {name: array(parameter) for name, parameter in module.named_parameters()}


def linear(p: dict[str, jax.Array], at: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{at}.weight"].T + p[f"{at}.bias"]


class TrainingStep:
    """A step of ``torch.optim.AdamW`` (``Adam`` without decay) on ``loss_of(parameters, *batch)``.

    The state is donated, so that it is updated in place.
    """

    def __init__(
        self,
        loss_of: Callable[..., jax.Array],
        module: nn.Module,
        batches: Sequence[Sequence[Tensor]],
        *,
        rate: float,
        decay: float = 0.0,
    ) -> None:
        self.parameters = parameters_of(module)
        self._first, self._second = (
            jax.tree.map(jnp.zeros_like, self.parameters) for _ in range(2)
        )
        self._count = jnp.zeros(())
        self._batches = [[array(tensor) for tensor in batch] for batch in batches]
        step = functools.partial(adam, loss_of, rate, decay)
        self._step = jax.jit(step, donate_argnums=(0, 1, 2, 3))

    def __call__(self, index: int) -> jax.Array:
        state = (self.parameters, self._first, self._second, self._count)
        batch = self._batches[index % len(self._batches)]
        made = jax.block_until_ready(self._step(*state, batch))
        loss, self.parameters, self._first, self._second, self._count = made
        return loss


def adam(
    loss_of: Callable[..., jax.Array], rate: float, decay: float, p: Any, m: Any, *rest: Any
) -> Any:
    """Loss, and the new parameters, moments and count."""
    v, t, batch = rest
    loss, g = jax.value_and_grad(loss_of)(p, *batch)
    t = t + 1
    first, second = 1 - 0.9**t, jnp.sqrt(1 - 0.999**t)
    m = {k: 0.9 * m[k] + 0.1 * g[k] for k in p}
    v = {k: 0.999 * v[k] + 0.001 * g[k] ** 2 for k in p}
    p = {
        k: p[k] * (1 - rate * decay) - rate / first * m[k] / (jnp.sqrt(v[k]) / second + 1e-8)
        for k in p
    }
    return loss, p, m, v, t
