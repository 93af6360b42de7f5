"""Draws in a graph that is vmapped: in place again, as vmap's rules for them are.

A capture makes ``tensor.normal_()`` functional, and vmap knows nothing of the ops that come of
that. In place, it raises what eager raises: always under ``randomness="error"``, and for a tensor
without a batch under ``"different"``, whose examples would all get one draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.ops import OpOverload
from funcaot._torch.tensors.random.made_generators import in_state
from funcaot._torch.tensors.random.seeded import OF_TORCH
from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.graph.graphs import op_of

__all__ = ["with_draws_in_place"]

aten = torch.ops.aten

_IN_PLACE: dict[OpOverload, OpOverload] = {
    aten.normal_functional.default: aten.normal_.default,
    aten.uniform.default: aten.uniform_.default,
    aten.exponential.default: aten.exponential_.default,
    aten.cauchy.default: aten.cauchy_.default,
    aten.geometric.default: aten.geometric_.default,
    aten.log_normal.default: aten.log_normal_.default,
    aten.random.default: aten.random_.default,
    aten.random.to: aten.random_.to,
    getattr(aten.random, "from"): getattr(aten.random_, "from"),
    aten.bernoulli.Tensor: aten.bernoulli_.Tensor,
    aten.bernoulli.p: aten.bernoulli_.float,
}

# What makes a tensor only to draw into it. Of another one, `bernoulli.p` may be torch.bernoulli.
_MADE = {
    aten.clone.default,
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.full.default,
    aten.full_like.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.zeros.default,
    aten.zeros_like.default,
}


def with_draws_in_place(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, in which each draw fills a tensor that has a batch where eager's has."""
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        draw = _draw_of(node)
        if draw is not None:
            with module.graph.inserting_before(node):
                made = module.graph.call_function(draw, node.args, node.kwargs)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)
    module.recompile()
    return forget_source_with(module)


def _draw_of(node: fx.Node) -> Callable[..., Any] | None:
    seeded = OF_TORCH.get(node.target)
    if seeded is not None:
        return _Seeded(_in_place_of(seeded, node.args[2:]) or seeded)
    return _in_place_of(op_of(node), node.args)


def _in_place_of(op: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    if op is aten.rrelu_with_noise_functional.default:
        return _rrelu
    in_place = _IN_PLACE.get(op)
    if in_place is None:
        return None
    if op is aten.bernoulli.p and getattr(args[0], "target", None) not in _MADE:
        return None
    return _Drawn(in_place)


class _Drawn:
    """Fill a copy of a tensor."""

    def __init__(self, draw: OpOverload) -> None:
        self.draw = draw
        self.__name__ = str(draw).replace(".", "_")

    def __call__(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.draw(tensor.clone(), *args, **kwargs)


class _Seeded:
    """Draw from a generator in the state that a draw is given; vmap says what that means."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        self.__name__ = f"seeded_{draw.__name__}".replace(".", "_")

    def __call__(
        self, state: torch.Tensor, of: torch.device, /, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, ...]:
        made: Any = in_state(of, state)  # it is recorded, as all of this is
        drawn = self.draw(*args, **kwargs, generator=made)
        return (*(drawn if isinstance(drawn, tuple) else (drawn,)), made.state)


def _rrelu(
    tensor: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What vmap refuses by name."""
    if not args or not (len(args) > 2 and args[2]):
        return aten.rrelu_with_noise_functional.default(tensor, noise, *args, **kwargs)
    return torch.rrelu(tensor, *args, **kwargs), noise
